"""Opaque backwards with batches of gradients: jacobian(vectorize=True), grad(is_grads_batched=True)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import opwright as ow
from opwright.errors import UnsupportedError
from opwright.frameworks.torch import private


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@ow.custom_op("legacy_batches::once", mutates_args=())
def once(x: Tensor, y: Tensor) -> Tensor:
    return x * x * y


@once.register_autograd(setup_context=setup_context)
@once_differentiable
def _(ctx, grad):
    x, y = ctx.saved_tensors
    return 2 * x * y * grad, x * x * grad


@ow.custom_op("legacy_batches::host", mutates_args=())
def host(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x * x * y


def backward(ctx, grad):
    x, y = ctx.saved_tensors
    return np.multiply(2 * x * y, grad), np.multiply(x * x, grad)


host.register_autograd(backward, setup_context=setup_context, flavour="numpy")


@ow.custom_op("legacy_batches::several", mutates_args=())
def several(xs: list[Tensor]) -> tuple[Tensor, Tensor]:
    return xs[0] * xs[1], xs[0] + xs[1]


@several.register_autograd(setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[0]))
@once_differentiable
def _(ctx, product, total):
    a, b = ctx.saved_tensors
    return [product * b + total, product * a + total]


X, Y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])


@pytest.mark.parametrize("op", [once, host], ids=["once_differentiable", "numpy"])
@pytest.mark.parametrize("count", [1, 4])
def test_batches_of_gradients(op, count):
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    grads = torch.randn(count, 3)
    got = torch.autograd.grad(op(x, y), (x, y), grads, is_grads_batched=True)
    assert torch.allclose(got[0], 2 * X * Y * grads)
    assert torch.allclose(got[1], X * X * grads)
    (alone,) = torch.autograd.grad(op(X, y), y, grads, is_grads_batched=True)
    assert torch.allclose(alone, X * X * grads)


@pytest.mark.parametrize("op", [once, host], ids=["once_differentiable", "numpy"])
def test_a_vectorized_jacobian(op):
    expected = torch.diag(2 * X * Y), torch.diag(X * X)
    for route in (op, getattr(torch.ops.legacy_batches, op.name.partition("::")[2])):
        got = torch.autograd.functional.jacobian(route, (X, Y), vectorize=True)
        assert all(map(torch.allclose, got, expected))


def test_lists_and_several_outputs():
    def run(a, b):
        return several([a, b])

    got = torch.autograd.functional.jacobian(run, (X, Y), vectorize=True)
    expected = torch.autograd.functional.jacobian(run, (X, Y))
    assert all(
        torch.allclose(g, e)
        for gs, es in zip(got, expected, strict=True)
        for g, e in zip(gs, es, strict=True)
    )


def test_a_release_that_cannot_take_them_apart(monkeypatch):
    monkeypatch.setattr(private, "remove_legacy", None)
    x = X.clone().requires_grad_()
    with pytest.raises(UnsupportedError, match="was called with gradients that torch batches"):
        torch.autograd.grad(once(x, Y), x, torch.eye(3), is_grads_batched=True)


def test_nested_batches_are_refused():
    from torch._vmap_internals import _vmap

    x = X.clone().requires_grad_()
    out = once(x, Y)

    def inner(grads):
        return torch.autograd.grad(out, x, grads, is_grads_batched=True, retain_graph=True)[0]

    with pytest.raises(UnsupportedError, match="a batch inside of another one"):
        _vmap(inner)(torch.randn(2, 4, 3))
