"""Gradients that a backward may not return: number, shape, dtype, each named by argument in a whole text."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.errors import GradientError
from opwright.source import source_of


@ow.custom_op("gradients::one", mutates_args=())
def one(x: np.ndarray) -> np.ndarray:
    return x + 1


@ow.custom_op("gradients::two", mutates_args=())
def two(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x + y


@ow.custom_op("gradients::scaled", mutates_args=())
def scaled(x: np.ndarray, k: float = 1.0, *, b: np.ndarray | None = None) -> np.ndarray:
    return x * k


@ow.custom_op("gradients::listed", mutates_args=())
def listed(xs: list[np.ndarray], y: np.ndarray) -> np.ndarray:
    return xs[0] + y


x = np.ones((2, 3), np.float32)
ARGS = {"one": (x,), "two": (x, x), "scaled": (x, 2.0), "listed": ([x, x], x)}


def pulled(op, backward):
    handle = op.register_autograd(backward)
    try:
        return ow.vjp(op, *ARGS[op.name.partition("::")[2]])[1](x)
    finally:
        handle.destroy()


@pytest.mark.parametrize(
    ("op", "backward"),
    [
        (one, lambda ctx, grad: grad),
        (one, lambda ctx, grad: (grad,)),
        (one, lambda ctx, grad: {"x": grad}),
        (one, lambda ctx, grad: None),
        (one, lambda ctx, grad: {}),
        (two, lambda ctx, grad: (grad, None)),
        (two, lambda ctx, grad: {"y": grad}),
        (scaled, lambda ctx, grad: grad),
        (scaled, lambda ctx, grad: (grad, None)),
        (scaled, lambda ctx, grad: (grad, None, None)),
        (scaled, lambda ctx, grad: {"x": grad}),
        (scaled, lambda ctx, grad: (grad, None, grad)),
        (listed, lambda ctx, grad: ([grad, None], grad)),
        (listed, lambda ctx, grad: ((grad, grad), None)),
        (listed, lambda ctx, grad: (None, grad)),
        (listed, lambda ctx, grad: {"xs": [grad, grad]}),
    ],
)
def test_what_a_backward_may_return(op, backward):
    grads = pulled(op, backward)
    for grad, value in zip(grads, ARGS[op.name.partition("::")[2]], strict=True):
        if isinstance(value, list):
            assert [one.shape for one in grad] == [(2, 3)] * 2
        elif isinstance(value, np.ndarray):
            assert (grad.shape, grad.dtype) == ((2, 3), np.float32)
        else:
            assert grad is None


@pytest.mark.parametrize(
    ("op", "backward", "text", "fix"),
    [
        (
            two,
            lambda ctx, grad: grad,
            "an incorrect number of gradients (expected 2, got 1)\n"
            "  expected: one for each of x, y\n"
            "  got: 1, none for y",
            "return None for an argument without a gradient, or a dict by argument name",
        ),
        (
            two,
            lambda ctx, grad: (grad, grad, grad),
            "an incorrect number of gradients (expected 2, got 3)\n"
            "  expected: one for each of x, y\n"
            "  got: 3, more than there are arguments",
            "return None for an argument without a gradient, or a dict by argument name",
        ),
        (
            one,
            lambda ctx, grad: (),
            "an incorrect number of gradients (expected 1, got 0)\n"
            "  expected: one for each of x\n"
            "  got: 0, none for x",
            "return None for an argument without a gradient, or a dict by argument name",
        ),
        (
            two,
            lambda ctx, grad: {"x": grad, "z": grad},
            "gradients for unknown arguments\n  expected: names among x, y\n  got: 'z'",
            None,
        ),
        (
            two,
            lambda ctx, grad: (grad, grad[0]),
            "a gradient of another shape for argument y\n"
            "  expected: shape (2, 3), that of the argument\n"
            "  got: shape (3,)",
            "sum it over the axes along which the operator broadcasts the argument",
        ),
        (
            one,
            lambda ctx, grad: grad.sum(),
            "a gradient of another shape for argument x\n"
            "  expected: shape (2, 3), that of the argument\n"
            "  got: shape ()",
            "sum it over the axes along which the operator broadcasts the argument",
        ),
        (
            two,
            lambda ctx, grad: (grad.astype(np.float64), grad),
            "a gradient of another dtype for argument x\n"
            "  expected: dtype float32, that of the argument\n"
            "  got: dtype float64",
            "convert it: array_namespace(grad).astype(grad, x.dtype)",
        ),
        (
            one,
            lambda ctx, grad: grad.astype(int),
            "a gradient of another dtype for argument x\n"
            "  expected: dtype float32, that of the argument\n"
            f"  got: dtype {np.dtype(int)}",
            "convert it: array_namespace(grad).astype(grad, x.dtype)",
        ),
        (
            one,
            lambda ctx, grad: grad * 1j,
            "a gradient of another dtype for argument x\n"
            "  expected: dtype float32, that of the argument\n"
            "  got: dtype complex64",
            "take its real part: array_namespace(grad).real(grad)",
        ),
        (
            one,
            lambda ctx, grad: np.ma.masked_array(grad),
            "something else than a gradient for argument x\n"
            "  expected: an array of numpy, or None\n"
            "  got: numpy.ma.MaskedArray, shape (2, 3), dtype float32",
            None,
        ),
        (
            one,
            lambda ctx, grad: 1.0,
            "something else than a gradient for argument x\n"
            "  expected: an array of numpy, or None\n"
            "  got: 1.0 of type float",
            None,
        ),
        (
            one,
            lambda ctx, grad: [grad],
            "something else than a gradient for argument x\n"
            "  expected: an array of numpy, or None\n"
            "  got: a list of 1",
            None,
        ),
        (
            scaled,
            lambda ctx, grad: (grad, 2.0),
            "a gradient for argument k\n  expected: None: it is not an array\n  got: 2.0 of type float",
            None,
        ),
        (
            scaled,
            lambda ctx, grad: (grad, grad),
            "a gradient for argument k\n"
            "  expected: None: it is not an array\n"
            "  got: shape (2, 3), dtype float32",
            None,
        ),
        (
            listed,
            lambda ctx, grad: (grad, grad),
            "a gradient that must be a list for argument xs\n"
            "  expected: a list of 2\n"
            "  got: shape (2, 3), dtype float32",
            None,
        ),
        (
            listed,
            lambda ctx, grad: ([grad], grad),
            "an incorrect number of gradients (expected 2, got 1) for argument xs\n"
            "  expected: a list of 2\n"
            "  got: a list of 1",
            None,
        ),
        (
            listed,
            lambda ctx, grad: ([grad, grad[:1]], grad),
            "a gradient of another shape for argument xs[1]\n"
            "  expected: shape (2, 3), that of the argument\n"
            "  got: shape (1, 3)",
            "sum it over the axes along which the operator broadcasts the argument",
        ),
    ],
)
def test_what_a_backward_may_not_return(op, backward, text, fix):
    with pytest.raises(GradientError) as caught:
        pulled(op, backward)
    assert str(caught.value) == (
        f"backward of {op.name} returned {text}\n  registered at: {source_of(backward)}"
    ) + ("" if fix is None else f"\n  to fix: {fix}")


def test_gradients_of_what_was_not_asked_for_are_ignored():
    handle = two.register_autograd(lambda ctx, grad: (grad, grad))
    out, pull = ow.vjp(two, x, np.ones((2, 3), np.int64))
    assert out.dtype == np.float64
    with pytest.raises(GradientError, match="a gradient of another dtype for argument x"):
        pull(x)  # the sum is a float64, and so is its gradient
    grads = ow.vjp(two, x.astype(np.float64), np.ones((2, 3), np.int64))[1](x)
    assert grads[1] is None
    handle.destroy()


def test_an_error_in_a_backward_is_the_callers():
    def backward(ctx, grad):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pulled(one, backward)
