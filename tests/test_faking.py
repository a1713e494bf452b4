"""Running a fake: what it gets, what ``get_ctx`` gives it, what is wrong with what it returns."""

from __future__ import annotations

import numpy as np
import pytest

import numpy_operators as ops
import opwright as ow
from opwright.errors import FakeError, MissingRuleError, OutputError, UnsupportedError
from opwright.faking import run_fake
from opwright.sizes import symbol
from opwright.source import source_of
from opwright.transforms import run_fake as run_any_fake

x = ow.FakeArray(("n", 3), "float32")


def line(fn):
    return source_of(fn)


@pytest.mark.parametrize(
    ("op", "values", "text"),
    [
        (ops.sin, [x], "FakeArray((n, 3), float32, cpu)"),
        (ops.sin, [np.ones((2, 3), np.int8)], "FakeArray((2, 3), int8, cpu)"),
        (ops.mul, [x, ow.FakeArray((3,), "float64")], "FakeArray((n, 3), float64, cpu)"),
        (ops.sincos, [x], "(FakeArray((n, 3), float32, cpu), FakeArray((n, 3), float32, cpu))"),
        (ops.weighted, [[x, x], [1.0, 2.0]], "FakeArray((n, 3), float32, cpu)"),
        (
            ops.parts,
            [ow.FakeArray((4, 3)), 2],
            "[FakeArray((2, 3), float64, cpu), FakeArray((2, 3), float64, cpu)]",
        ),
        (ops.parts, [x, 1], "[FakeArray((n, 3), float32, cpu)]"),
        (ops.add_, [x, x], "None"),
        (ops.double_, [x], "FakeArray((n, 3), float32, cpu)"),
    ],
)
def test_outputs(op, values, text):
    assert repr(run_fake(op._record, values)) == text


def test_sizes_that_depend_on_data():
    out = run_fake(ops.nonzero._record, [x])
    assert (out.shape[1], out.dtype) == (2, np.int64)
    assert out.shape[0] >= 0

    class Context:
        def new_dynamic_size(self):
            return symbol("count")

    assert str(run_fake(ops.nonzero._record, [x], ctx=Context()).shape) == "(count, 2)"


def test_an_operator_without_a_fake():
    with pytest.raises(MissingRuleError) as caught:
        run_fake(ops.bare._record, [x])
    assert str(caught.value) == (
        "no fake impl is registered for nops::bare: the shapes of its outputs are not known\n"
        f"  registered at: {ops.bare._record.source}\n"
        "  to fix: register one: @opwright.register_fake('nops::bare')"
    )


def test_tagged_operators_have_their_own():
    assert run_fake(ops.double_._record, [x]) is x

    @ow.custom_op("faking::both_out", mutates_args=("a", "b"), tags="out")
    def both_out(x: np.ndarray, *, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a[...], b[...] = x, -x
        return a, b

    a, b = ow.FakeArray((1,)), ow.FakeArray((2,))
    outs = run_fake(both_out._record, [x, a, b])
    assert [id(out) for out in outs] == [id(a), id(b)]


# ------------------------------------------------------------------------------------- wrong fakes


@ow.custom_op("faking::single", mutates_args=())
def single(x: np.ndarray) -> np.ndarray:
    return np.sin(x)


@ow.custom_op("faking::pair", mutates_args=())
def pair(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + 1, x + 2


@ow.custom_op("faking::pieces", mutates_args=())
def pieces(x: np.ndarray) -> list[np.ndarray]:
    return [x + 1]


@ow.custom_op("faking::count", mutates_args=())
def count(x: np.ndarray) -> int:
    return int(x.size)


@ow.custom_op("faking::nothing_", mutates_args=("x",))
def nothing_(x: np.ndarray) -> None:
    x += 1


@pytest.mark.parametrize(
    ("op", "fake", "expected", "got"),
    [
        (pair, ow.empty_like, "a tuple of 2", "FakeArray"),
        (pair, lambda x: (ow.empty_like(x),), "a tuple of 2", "tuple of 1 (FakeArray)"),
        (
            pair,
            lambda x: (ow.empty_like(x), None),
            "an array without data as output 1",
            "NoneType",
        ),
        (pair, lambda x: None, "a tuple of 2", "NoneType"),
        (single, lambda x: None, "an array without data as output 0", "NoneType"),
        (single, lambda x: x.shape, "an array without data as output 0", "tuple of 2 (Size, int)"),
        (single, lambda x: x.shape[0], "an array without data as output 0", "the size n"),
        (single, lambda x: np.ones(3), "an array without data as output 0", "ndarray"),
        (single, lambda x: [x], "an array without data as output 0", "list of 1 (FakeArray)"),
        (pieces, ow.empty_like, "a list as output 0", "FakeArray"),
        (pieces, lambda x: [x, 3], "an array without data as output 0", "int"),
        (count, ow.empty_like, "SymInt as output 0", "FakeArray"),
        (nothing_, lambda x: x, "None", "FakeArray"),
    ],
)
def test_what_a_fake_may_not_return(op, fake, expected, got):
    handle = op.register_fake(fake)
    try:
        with pytest.raises(OutputError) as caught:
            run_fake(op._record, [x])
    finally:
        handle.destroy()
    assert str(caught.value) == (
        f"the fake of {op.name} returned something else than its schema says\n"
        f"  expected: {expected}: {op.schema}\n"
        f"  got: {got}\n"
        f"  registered at: {line(fake)}\n"
        "  to fix: return opwright.empty_like(x) or x.new_empty(shape, dtype=...) for each output"
    )


def test_sizes_as_outputs():
    handle = count.register_fake(lambda x: x.numel())
    assert str(run_fake(count._record, [x])) == "3*n"
    handle.destroy()


def test_a_fake_that_does_arithmetic():
    handle = single.register_fake(lambda x: x + 1)
    with pytest.raises(
        FakeError, match=r"^FakeArray\(\(n, 3\), float32, cpu\) has no data, so __add__ cannot"
    ):
        run_fake(single._record, [x])
    handle.destroy()


def test_shapes_of_other_libraries():
    class Struct:
        shape, dtype = (2, 3), np.dtype("int8")

    handle = single.register_fake(lambda x: Struct())
    assert repr(run_fake(single._record, [x])) == "FakeArray((2, 3), int8, cpu)"
    handle.destroy()


# ------------------------------------------------------------------------------------------ flavours


def test_a_fake_written_with_numpy():
    seen = []

    def fake(x):
        seen.append(x.strides)
        return np.empty((x.shape[0] * 1000, 10**6), np.float16)[:0]

    handle = single.register_fake(fake, flavour="numpy")
    assert (
        repr(run_any_fake(single._record, [ow.FakeArray((5, 3))])) == "FakeArray((0, 1000000), float16, cpu)"
    )
    assert seen == [(0, 0)]
    with pytest.raises(FakeError, match=r"^int\(n\) needs the value"):
        run_any_fake(single._record, [x])
    handle.destroy()


def test_a_fake_written_with_torch():
    torch = pytest.importorskip("torch")
    seen = []

    def fake(x):
        seen.append(x.device.type)
        return torch.empty_like(x, dtype=torch.int8)

    handle = single.register_fake(fake, flavour="torch")
    assert repr(run_any_fake(single._record, [ow.FakeArray((5, 3))])) == "FakeArray((5, 3), int8, cpu)"
    assert repr(run_any_fake(single._record, [np.ones(2)])) == "FakeArray((2,), int8, cpu)"
    assert seen == ["cpu", "cpu"]
    with pytest.raises(UnsupportedError) as caught:
        run_any_fake(single._record, [x])
    assert str(caught.value) == (
        "a fake of flavour torch runs on FakeTensors of known sizes outside torch\n"
        "  got: shape (n, 3)\n"
        f"  registered at: {line(fake)}\n"
        "  to fix: write it with opwright.empty_like and opwright.empty, for any framework"
    )
    handle.destroy()


def test_a_fake_written_with_jax():
    jnp = pytest.importorskip("jax.numpy")
    handle = single.register_fake(lambda x: jnp.sin(x)[:2], flavour="jax")
    assert (
        repr(run_any_fake(single._record, [ow.FakeArray((5, 3), "float32")]))
        == "FakeArray((2, 3), float32, cpu)"
    )
    handle.destroy()
