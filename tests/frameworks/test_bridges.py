"""Kernels of another flavour on a framework's arrays: what goes over and back, what is not written to."""

from __future__ import annotations

import sys
import types
import warnings

import numpy as np
import pytest

import opwright as ow
from boxes import Box, Boxes
from opwright import catalogue
from opwright.errors import AliasError, ArgumentError, UnsupportedError
from opwright.framework_info import FrameworkInfo
from opwright.frameworks import base
from opwright.frameworks.base import load
from opwright.frameworks.bridges import bridge
from opwright.overload import Kernel

ANY = "CompositeExplicitAutograd"


@pytest.fixture
def boxes(monkeypatch):
    info = FrameworkInfo("boxes", package="boxarrays", module="none", array_classes=(("boxarrays", "Box"),))
    monkeypatch.setitem(sys.modules, "boxarrays", types.SimpleNamespace(Box=Box))
    monkeypatch.setattr(catalogue, "_infos", (*catalogue.known(), info))
    monkeypatch.setattr(catalogue, "_framework_of", type(catalogue._framework_of)())
    framework = Boxes()
    monkeypatch.setitem(base._loaded, "boxes", framework)
    return framework


@pytest.mark.parametrize("flavour", ["numpy", "array_api"])
def test_no_bridge_where_the_kernel_takes_the_arrays(flavour):
    kernel = Kernel(len, ANY, flavour, "")
    assert bridge(kernel, load("numpy")) is len


def test_a_bridge_carries_arrays_in_lists_and_by_name(boxes):
    given = []

    def body(x, xs, k, *, y):
        given.append((x, xs, k, y))
        return x + 1, [one * 2 for one in xs if one is not None], None

    call = bridge(Kernel(body, ANY, "numpy", ""), boxes)
    x = np.ones(2)
    out, many, nothing = call(Box(x), [Box(x), None], [1, 2], y=Box(x))
    assert given[0][0] is x
    assert given[0][1][0] is x
    assert given[0][1][1] is None
    assert given[0][2] == [1, 2]
    assert given[0][3] is x
    assert isinstance(out, Box)
    assert isinstance(many[0], Box)
    assert nothing is None


def test_a_bridge_between_two_frameworks_goes_by_dlpack(boxes, monkeypatch):
    torch = pytest.importorskip("torch", reason="the second framework")
    monkeypatch.setattr(
        Box, "__dlpack__", lambda self, **kwargs: self.inside.__dlpack__(**kwargs), raising=False
    )
    monkeypatch.setattr(Box, "__dlpack_device__", lambda self: self.inside.__dlpack_device__(), raising=False)
    given = []

    def body(x):
        given.append(x)
        return x + 1

    x = np.ones(2)
    out = bridge(Kernel(body, ANY, "torch", ""), boxes)(Box(x))
    assert type(given[0]) is torch.Tensor
    assert given[0].data_ptr() == x.ctypes.data
    np.testing.assert_array_equal(out.inside, [2.0, 2.0])


# ------------------------------------------------------------------------- what may not be written to


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs torch")


def read_only(array):
    array.flags.writeable = False
    return array


def swapped():
    return np.arange(3, dtype=">f8")


def reversed_():
    return np.arange(3.0)[::-1]


UNWRITABLE = {
    "read-only": lambda: read_only(np.arange(3.0)),
    "broadcast": lambda: np.broadcast_to(np.ones(1), (3,)),
    "bytes": lambda: np.frombuffer(bytes(24)),
    "scalar": lambda: np.float64(1.0),
}
UNLENDABLE = {"swapped": swapped, "reversed": reversed_}


@pytest.fixture
def mutating(ns, torch):
    op = ow.custom_op(
        f"{ns}::add_",
        lambda x, ys, *, out: [one.add_(x) for one in (*ys, out)] and None,
        mutates_args=("ys", "out"),
        schema="(Tensor x, Tensor(a!)[] ys, *, Tensor(b!) out) -> ()",
        flavour="torch",
    )
    boxed = ow.get_kernel(op, ANY)
    return op, {"operator": op, "get_kernel": lambda *args, **kwargs: boxed.call_boxed(None, *args, **kwargs)}


@pytest.mark.parametrize("way", ["operator", "get_kernel"])
@pytest.mark.parametrize("kind", UNWRITABLE)
def test_a_read_only_array_that_is_mutated_is_refused(mutating, way, kind):
    op, ways = mutating
    for at in range(2):
        bad, good = UNWRITABLE[kind](), np.ones(3)
        before = np.array(bad)
        ys, out = ([good, bad], good) if at else ([good], bad)
        with pytest.raises(ArgumentError) as caught:
            ways[way](np.ones(3), ys, out=out)
        assert str(caught.value) == (
            f"{op.name} mutates argument {'ys[1]' if at else 'out'}, which is read-only\n"
            "  expected: an array that can be written to\n"
            f"  got: numpy.{type(bad).__name__}\n"
            "  to fix: pass a copy, and use the copy afterwards"
        )
        np.testing.assert_array_equal(bad, before)
        np.testing.assert_array_equal(good, np.ones(3))


@pytest.mark.parametrize("way", ["operator", "get_kernel"])
@pytest.mark.parametrize("kind", UNLENDABLE)
def test_memory_that_torch_cannot_have_and_that_is_mutated_is_refused(mutating, way, kind):
    op, ways = mutating
    bad = UNLENDABLE[kind]()
    before = bad.copy()
    with pytest.raises(ArgumentError) as caught:
        ways[way](np.ones(3), [], out=bad)
    assert str(caught.value) == (
        f"{op.name}: argument out cannot be taken\n"
        "  expected: an array whose memory a kernel of flavour torch can write to\n"
        "  got: an array with a negative stride, or of foreign byte order\n"
        "  to fix: pass a copy, and use the copy afterwards"
    )
    np.testing.assert_array_equal(bad, before)


@pytest.mark.parametrize("way", ["operator", "get_kernel"])
def test_what_can_be_written_to_is(mutating, way):
    ys, out = [np.zeros(3), np.zeros((2, 3)).T[:, 0]], np.zeros(6)[::2]
    mutating[1][way](read_only(np.ones(3)), ys, out=out)
    for one in (*ys, out):
        np.testing.assert_array_equal(one, np.ones(3))


@pytest.mark.parametrize("kind", [*UNWRITABLE, *UNLENDABLE])
def test_an_array_that_is_only_read_goes_over_as_a_copy(ns, torch, kind):
    x = (UNWRITABLE | UNLENDABLE)[kind]()

    schema = "(Tensor x) -> Tensor"
    twice = ow.custom_op(f"{ns}::twice", lambda x: x * 2, mutates_args=(), schema=schema, flavour="torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's own, about arrays that are not writable
        for _ in range(5):
            np.testing.assert_array_equal(twice(x), np.asarray(x) * 2)


@pytest.mark.parametrize("kind", ["read-only", "broadcast", "bytes", *UNLENDABLE])
@pytest.mark.parametrize("inference", [False, True])
def test_a_write_to_a_copy_that_nobody_declared_is_found(ns, torch, kind, inference):
    x = (UNWRITABLE | UNLENDABLE)[kind]()
    before = np.array(x)

    def sneaky(xs, k):
        xs[1].mul_(k)
        return xs[0] + xs[1]

    op = ow.custom_op(
        f"{ns}::sneaky", sneaky, mutates_args=(), schema="(Tensor[] xs, float k) -> Tensor", flavour="torch"
    )
    why = "an array with a negative stride, or of foreign byte order" if kind in UNLENDABLE else "read-only"
    for _ in range(5):
        with torch.inference_mode(inference), pytest.raises(AliasError) as caught:
            op([np.ones(3), x], 3.0)
        assert str(caught.value) == (
            f"kernel of {ns}::sneaky wrote to argument xs[1], which it may not mutate\n"
            f"  expected: an array left as it is: it is {why}\n"
            "  got: a write to it, or to a copy of it\n"
            f"  registered at: {op._record.source}\n"
            "  to fix: write to a copy, or declare the argument in mutates_args"
        )
    np.testing.assert_array_equal(x, before)


def test_a_rule_of_a_mode_that_writes_to_a_copy_is_found(torch):
    def rule(x):
        x.add_(1)

    call = bridge(Kernel(rule, ANY, "torch", "a.py:1"), load("numpy"))
    assert call(np.ones(2)) is None
    with pytest.raises(
        AliasError, match="a rule of flavour torch wrote to an array, which it may not mutate"
    ):
        call(read_only(np.ones(2)))


def test_arrays_that_never_change_are_not_mutated_from_outside(mutating):
    jax = pytest.importorskip("jax", reason="needs jax")
    op, ways = mutating
    out = jax.numpy.zeros(3)
    with pytest.raises(ArgumentError, match=rf"{op.name} mutates argument out, which is read-only"):
        ways["get_kernel"](jax.numpy.ones(3), [], out=out)
    assert out.tolist() == [0, 0, 0]


def test_a_kernel_whose_arrays_never_change_cannot_mutate_others(ns):
    pytest.importorskip("jax", reason="needs jax")
    op = ow.custom_op(
        f"{ns}::add_", lambda x: x + 1, mutates_args=("x",), schema="(Tensor(a!) x) -> ()", flavour="jax"
    )
    with pytest.raises(UnsupportedError) as caught:
        op(np.ones(2))
    assert str(caught.value) == (
        f"kernel of {ns}::add_ has flavour jax and mutates numpy arrays\n"
        "  expected: a kernel that writes to memory of these arrays\n"
        f"  registered at: {op._record.source}\n"
        "  to fix: register a kernel with np.ndarray or torch.Tensor annotations for this operator"
    )


def test_a_key_set_in_front_of_the_arguments(ns, torch):
    def set_(keys, x, *, y):
        x.copy_(y)

    set_.__annotations__ = {"x": torch.Tensor, "y": torch.Tensor}
    with ow.Library(ns, "FRAGMENT") as library:
        library.define("set_(Tensor(a!) x, *, Tensor y) -> ()")
        library.impl("set_", set_, "CPU", with_keyset=True)
        op = getattr(ow.ops, ns).set_.default
        x = np.zeros(2)
        for _ in range(2):
            op(x, y=read_only(np.ones(2)))
            assert x.tolist() == [1, 1]
        for call in (op, lambda x, *, y: ow.get_kernel(op, "CPU").call_boxed(None, x, y=y)):
            with pytest.raises(ArgumentError, match="mutates argument x, which is read-only"):
                call(read_only(np.zeros(2)), y=x)
