"""The loop of a batch without a rule: stacking, what cannot be stacked, empty batches."""

from __future__ import annotations

import numpy as np
import pytest

import numpy_operators as ops
import opwright as ow
from opwright.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::opwright.batching.LoopWarning")

x = np.arange(12.0).reshape(3, 4)


@ow.custom_op("batch_loop::everything", mutates_args=())
def everything(x: np.ndarray, n: int = 2) -> tuple[np.ndarray, list[np.ndarray], np.ndarray | None, int]:
    return x + 1, [x * k for k in range(n)], None, n


@ow.custom_op("batch_loop::depends", mutates_args=())
def depends(x: np.ndarray, what: str) -> tuple[list[np.ndarray], int, np.ndarray | None]:
    """Outputs that depend on the first element."""
    first = bool(x[0] == 0)
    return (
        [x + k for k in range(1 if first and what == "length" else 2)],
        int(x[0]) if what == "number" else 0,
        None if first and what == "none" else x.copy(),
    )


def test_every_kind_of_output():
    out, parts, none, n = ow.vmap(everything, 1, (0, [0, 1], 0, 0))(x)
    np.testing.assert_array_equal(out, x.T + 1)
    np.testing.assert_array_equal(parts[0], 0 * x.T)
    np.testing.assert_array_equal(parts[1], x)
    assert none is None
    assert n == 2


def test_elements_are_views_and_0d_arrays():
    seen = []

    @ow.custom_op("batch_loop::look", mutates_args=())
    def look(x: np.ndarray) -> np.ndarray:
        seen.append((type(x), x.shape, x.base is not None))
        return x + 1

    ow.vmap(look)(np.arange(2.0))
    ow.vmap(look, -1)(x)
    assert seen[:2] == [(np.ndarray, (), True)] * 2
    assert seen[2:] == [(np.ndarray, (3,), True)] * 4


@pytest.mark.parametrize(
    ("what", "index", "got"),
    [("length", 0, "lists of 1 and 2"), ("number", 1, "0 and 4 and 8"), ("none", 2, "None and (4,)")],
)
def test_outputs_that_differ(what, index, got):
    with pytest.raises(UnsupportedError) as caught:
        ow.vmap(depends, (0, None))(x, what)
    assert str(caught.value) == (
        f"vmap of batch_loop::depends: output {index} differs between the elements of the batch\n"
        "  expected: one shape and dtype, length or value for all of them\n"
        f"  got: {got}\n"
        "  to fix: pad it inside the operator, or call the operator in a loop of your own"
    )


def test_shapes_that_differ():
    with pytest.raises(UnsupportedError) as caught:
        ow.vmap(ops.nonzero)(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    assert str(caught.value) == (
        "vmap of nops::nonzero: output 0 differs between the elements of the batch\n"
        "  expected: one shape and dtype, length or value for all of them\n"
        "  got: (1, 1) and (2, 1)\n"
        "  to fix: pad it inside the operator, or call the operator in a loop of your own"
    )


@ow.custom_op("batch_loop::numbers", mutates_args=(), schema="(Tensor x) -> (float, complex, float[], int)")
def numbers(x: np.ndarray) -> tuple[float, complex, list[float], int]:
    nan = float("nan")
    return float(x[0]), complex(nan, x[1]), [nan, x[2]], 1


def test_numbers_that_are_nan_for_all():
    nan = float("nan")
    number, pair, several, one = ow.vmap(numbers)(np.array([[nan, 2.0, nan]] * 3))
    assert repr((number, pair, several, one)) == "(nan, (nan+2j), [nan, nan], 1)"


@pytest.mark.parametrize(
    ("row", "index", "got"),
    [
        ([1.0, 2.0, 3.0], 0, "nan and 1.0"),
        ([np.nan, 3.0, 3.0], 1, r"\(nan\+2j\) and \(nan\+3j\)"),
        ([np.nan, 2.0, np.nan], 2, "3.0 and nan"),
    ],
)
def test_a_nan_differs_from_a_number(row, index, got):
    with pytest.raises(UnsupportedError, match=rf"output {index} differs(.|\n)*got: {got}\n"):
        ow.vmap(numbers)(np.array([[np.nan, 2.0, 3.0], row]))


def test_dtypes_that_differ():
    @ow.custom_op("batch_loop::roots", mutates_args=())
    def roots(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.emath.sqrt(x))

    with pytest.raises(UnsupportedError) as caught:
        ow.vmap(roots)(np.array([[1.0, 4.0], [1.0, -4.0]]))
    assert str(caught.value) == (
        "vmap of batch_loop::roots: output 0 differs between the elements of the batch\n"
        "  expected: one shape and dtype, length or value for all of them\n"
        "  got: shape (2,), dtype float64 and shape (2,), dtype complex128\n"
        "  to fix: pad it inside the operator, or call the operator in a loop of your own"
    )


def test_an_empty_batch_whose_shape_depends_on_data():
    with pytest.raises(UnsupportedError, match=r"got: shape \(u\d+, 1\), which depends on data"):
        ow.vmap(ops.nonzero)(np.ones((0, 2)))


def test_an_empty_batch_of_every_kind_of_output():
    everything.register_fake(lambda x, n=2: (ow.empty_like(x), [ow.empty_like(x)] * n, None, n))
    out, parts, none, n = ow.vmap(everything, 1, (0, 1, 0, 0))(x[:, :0].astype(np.float32))
    assert (out.shape, out.dtype) == ((0, 3), np.float32)
    assert [part.shape for part in parts] == [(3, 0)] * 2
    assert none is None
    assert n == 2
