"""Calling an operator with fakes runs its fake rule."""

from __future__ import annotations

import numpy as np
import pytest

import numpy_operators as ops
import opwright as ow
from opwright.errors import ArgumentError, FakeError, MissingRuleError
from opwright.frameworks.base import load

x = ow.FakeArray(("n", 3), "float32")


def test_a_call_runs_the_fake():
    assert repr(ops.sin(x)) == "FakeArray((n, 3), float32, cpu)"
    assert repr(ops.mul(x, y=ow.FakeArray((3,)))) == "FakeArray((n, 3), float64, cpu)"
    assert repr(ops.weighted([x, x], [1, 2])) == "FakeArray((n, 3), float32, cpu)"
    assert [repr(one) for one in ops.parts(ow.FakeArray((6, "m")), n=3)] == [
        "FakeArray((2, m), float64, cpu)"
    ] * 3
    assert ops.double_(x) is x


def test_arrays_of_other_frameworks_are_constants():
    assert repr(ops.mul(np.ones(3, np.float32), x)) == "FakeArray((n, 3), float32, cpu)"
    assert repr(ops.mul(x, np.float64(2))) == "FakeArray((n, 3), float64, cpu)"
    # The class of the first array does not decide: later calls with NumPy arrays alone compute.
    assert ops.mul(np.ones(3), np.ones(3)).sum() == 3
    assert repr(ops.mul(np.ones(3, np.float32), x)) == "FakeArray((n, 3), float32, cpu)"


def test_shapes_of_a_whole_function():
    def function(x, y):
        s, c = ops.sincos(ops.mul(x, y))
        return ops.parts(ops.weighted([s, c], [1.0, -1.0]), 3)[1]

    assert repr(function(ow.FakeArray(("m", 1)), ow.FakeArray((7,)))) == "FakeArray((m//3, 7), float64, cpu)"


def test_fakes_call_operators():
    @ow.custom_op("fakes::twice", mutates_args=())
    def twice(x: np.ndarray) -> np.ndarray:
        return ops.sin(ops.sin(x))

    @twice.register_fake
    def _(x):
        return ops.sin(ops.sin(x))

    assert repr(twice(x)) == "FakeArray((n, 3), float32, cpu)"


def test_the_context_of_the_outer_fake():
    @ow.custom_op("fakes::firsts", mutates_args=())
    def firsts(x: np.ndarray) -> np.ndarray:
        return ops.nonzero(x)[:, 0]

    @firsts.register_fake
    def _(x):
        return x.new_empty((ops.nonzero(x).shape[0],), dtype="int64")

    from opwright.fake_context import entered_ctx
    from opwright.fakes import FakeContext

    with entered_ctx(FakeContext()):
        (size,) = firsts(x).shape
    assert str(size).startswith("u")


def test_symbolic_sizes_as_arguments():
    @ow.custom_op("fakes::tile", mutates_args=())
    def tile(x: np.ndarray, n: int, ns: list[int]) -> np.ndarray:
        return np.tile(x, n)

    @tile.register_fake
    def _(x, n, ns):
        return x.new_empty((n * x.shape[0], *ns))

    n = x.shape[0]
    assert repr(tile(ow.FakeArray((4,)), 2 * n, [n, 3])) == "FakeArray((8*n, n, 3), float64, cpu)"
    assert repr(tile(ow.FakeArray((4,)), np.int64(3), (2,))) == "FakeArray((12, 2), float64, cpu)"
    assert tile(np.ones(2), 2, []).size == 4
    with pytest.raises(FakeError, match=r"^int\(n\) needs"):
        tile(np.ones(2), n, [])


def test_scalars_are_coerced():
    with pytest.raises(ArgumentError, match="argument n must be an integer"):
        ops.parts(x, 2.5)


def test_no_fake():
    with pytest.raises(MissingRuleError, match=r"^no fake impl is registered for nops::bare"):
        ops.bare(x)


def test_what_is_no_array():
    with pytest.raises(ArgumentError) as caught:
        ops.mul(x, 3.0)
    assert str(caught.value).startswith("nops::mul: argument y must be an array\n")


def test_modes():
    class Log(ow.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((func.name, types))
            return func(*args, **(kwargs or {}))

    seen = []
    with Log():
        assert repr(ops.sin(x)) == "FakeArray((n, 3), float32, cpu)"
    assert seen == [("nops::sin", (ow.FakeArray,))]
    handle = ops.sin.register_autocast("cpu", "float16")
    with ow.autocast("cpu"):
        assert repr(ops.sin(x)) == "FakeArray((n, 3), float16, cpu)"
        assert repr(ops.sin(x.astype("int8"))) == "FakeArray((n, 3), int8, cpu)"
        assert repr(ops.sin(ow.FakeArray((2,), "float32", "cuda:0"))) == "FakeArray((2,), float32, cuda:0)"
    handle.destroy()


def test_conversions():
    fake = load("fake")
    assert repr(fake.from_numpy(np.ones(2, np.int8))) == "FakeArray((2,), int8, cpu)"
    assert repr(fake.from_dlpack(np.ones(2, np.int8))) == "FakeArray((2,), int8, cpu)"
    assert (fake.device_type(None), fake.device_type(ow.FakeArray((2,), "int8", "cuda:1"))) == ("cpu", "cuda")
    with pytest.raises(FakeError) as caught:
        fake.to_numpy(x)
    assert str(caught.value) == "FakeArray((n, 3), float32, cpu) has no data to convert to NumPy"


@pytest.mark.parametrize("transform", ["vjp", "jvp", "vmap"])
def test_transforms_are_refused(transform):
    calls = {
        "vjp": lambda: ow.vjp(ops.sin, x),
        "jvp": lambda: ow.jvp(ops.sin, (x,), (None,)),
        "vmap": lambda: ow.vmap(ops.sin)(x),
    }
    with pytest.raises(ow.errors.UnsupportedError) as caught:
        calls[transform]()
    reason = load("fake").unsupported[{"vjp": "autograd"}.get(transform, transform)]
    assert str(caught.value) == f"opwright.{transform} is not for fake arrays: {reason}\n  got: nops::sin"
