"""Outputs, contexts and tangents beside what the matrix covers; what raises because no rule covers it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jvp, vjp, vmap

import opwright as ow
from opwright.errors import StaleError

# Torch scripts its own formulas of forward mode when they are first needed.

NS = "torch_autograd"
D = torch.double


def save(ctx, inputs, output):
    ctx.save_for_backward(*[one for one in inputs if isinstance(one, Tensor)])


def calls(op):
    namespace, _, name = op.name.partition("::")
    return op, getattr(getattr(torch.ops, namespace), name)


@ow.custom_op(f"{NS}::maximum", mutates_args=())
def maximum(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = torch.max(x, 0)
    return values.clone(), indices.clone()


def _maximum_setup(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.shape = inputs[0].shape


def _maximum_backward(ctx, g, _indices):
    (indices,) = ctx.saved_tensors
    return torch.zeros(ctx.shape, dtype=g.dtype).scatter(0, indices.unsqueeze(0), g.unsqueeze(0))


maximum.register_autograd(_maximum_backward, setup_context=_maximum_setup)


@ow.custom_op(f"{NS}::two", mutates_args=())
def two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.cos()


@ow.custom_op(f"{NS}::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


@ow.custom_op(f"{NS}::numbers", mutates_args=())
def numbers(x: Tensor) -> tuple[int, float, Tensor]:
    return 3, 2.5, x * 2


numbers.register_autograd(lambda ctx, a, b, g: g * 2)

X = torch.tensor([0.4, 1.1, -0.8], dtype=D)


@pytest.mark.parametrize("which", [0, 1])
def test_integer_outputs_have_no_gradient(which):
    call = calls(maximum)[which]
    x = torch.randn(4, 3, dtype=D, requires_grad=True)
    for _ in range(2):
        values, indices = call(x)
        assert values.requires_grad
        assert not indices.requires_grad
        (found,) = torch.autograd.grad((values * values).sum(), x)
        assert torch.equal(found, torch.autograd.grad((x.max(0)[0] ** 2).sum(), x)[0])
    tangent = torch.randn(4, 3, dtype=D)
    found = jvp(lambda y: call(y)[0], (x.detach(),), (tangent,))[1]
    assert torch.equal(found, jvp(lambda y: y.max(0)[0], (x.detach(),), (tangent,))[1])


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_of_unused_outputs_may_stay_none(which):
    seen = []

    def setup(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)

    def backward(ctx, g, h):
        seen.append((g is None, h is None))
        (x,) = ctx.saved_tensors
        return (0 if g is None else g * x.cos()) - (0 if h is None else h * x.sin())

    handle = ow.register_autograd(two, backward, setup_context=setup)
    call = calls(two)[which]
    x = X.clone().requires_grad_()
    for _ in range(2):
        assert torch.allclose(torch.autograd.grad(call(x)[1].sum(), x)[0], -x.sin())
        assert seen.pop() == (True, False)
    assert torch.allclose(jacfwd(lambda y: call(y)[1])(X), torch.diag(-X.sin()))
    handle.destroy()


@pytest.mark.parametrize("which", [0, 1])
def test_outputs_that_are_numbers(which):
    call = calls(numbers)[which]
    x = X.clone().requires_grad_()
    for _ in range(2):
        a, b, out = call(x)
        assert (a, b) == (3, 2.5)
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.full_like(X, 2.0))
    assert torch.equal(jvp(lambda y: call(y)[2], (X,), (X,))[1], 2 * X)


@pytest.fixture
def sine():
    @ow.custom_op(f"{NS}::sine", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x.sin()

    op.register_autograd(lambda ctx, g: g * ctx.saved_tensors[0].cos(), setup_context=save)
    op.register_fake(lambda x: torch.empty_like(x))
    op.register_vmap(lambda info, in_dims, x: (op(x), in_dims[0]))
    return op


@pytest.mark.parametrize("which", [0, 1])
def test_a_pullback_outlives_its_transform(sine, which):
    call = calls(sine)[which]
    _, pull = vjp(lambda y: call(y) * y * y, X)
    _, expected = vjp(lambda y: y.sin() * y * y, X)
    for _ in range(2):
        assert torch.allclose(pull(X)[0], expected(X)[0])
    assert torch.allclose(vmap(pull)(torch.eye(3, dtype=D))[0], vmap(expected)(torch.eye(3, dtype=D))[0])


@pytest.mark.parametrize("which", [0, 1])
def test_a_wrapper_that_outlives_its_transform(sine, which):
    call, leaked = calls(sine)[which], []
    grad(lambda y: (leaked.append(y), call(y).sum())[1])(X)
    assert torch.allclose(call(leaked[0]), X.sin())
    x = X.clone().requires_grad_()
    (call(x) * leaked[0]).sum().backward()
    assert torch.allclose(x.grad, X.cos() * X)


@pytest.mark.parametrize("which", [0, 1])
def test_grad_mode_inside_transforms(sine, which):
    call = calls(sine)[which]

    def held(f):
        def run(y):
            with torch.no_grad():
                constant = f(y)
            return (constant * y).sum()

        return run

    assert torch.allclose(grad(held(call))(X), grad(held(torch.sin))(X))
    assert torch.allclose(jvp(held(call), (X,), (X,))[1], jvp(held(torch.sin), (X,), (X,))[1])
    assert torch.allclose(grad(lambda y: (call(y.detach()) * y).sum())(X), X.sin())
    with torch.inference_mode():
        assert torch.allclose(vmap(call)(torch.stack([X, X])), torch.stack([X, X]).sin())


@pytest.mark.parametrize("which", [0, 1])
def test_the_engine_s_own_forms(sine, which):
    call = calls(sine)[which]
    x = X.clone().requires_grad_()
    loss = (call(x) * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.allclose(x.grad, 2 * (X.cos() * X + X.sin()))
    (batched,) = torch.autograd.grad(call(x), x, torch.eye(3, dtype=D), is_grads_batched=True)
    assert torch.allclose(batched, torch.diag(X.cos()))
    expected = hessian(lambda y: (y.sin() * y).sum())(X)
    functional = torch.autograd.functional.hessian
    assert torch.allclose(functional(lambda y: (call(y) * y).sum(), X), expected)
    found = functional(
        lambda y: (call(y) * y).sum(), X, vectorize=True, outer_jacobian_strategy="forward-mode"
    )
    assert torch.allclose(found, expected)


def test_threads(sine):
    wrong = []

    def work():
        for _ in range(30):
            x = X.clone().requires_grad_()
            sine(x).sum().backward()
            under = grad(lambda y: calls(sine)[1](y).sum())(X)
            if not (torch.allclose(x.grad, X.cos()) and torch.allclose(under, X.cos())):
                wrong.append(x.grad)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_graph_outlives_the_redefinition_of_its_operator(sine):
    x = X.clone().requires_grad_()
    loss = sine(x).sum()

    @ow.custom_op(sine.name, mutates_args=())
    def again(x: Tensor) -> Tensor:
        return x.cos()

    loss.backward()
    assert torch.allclose(x.grad, X.cos())
    with pytest.raises(StaleError, match="was redefined at"):
        sine(X)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        again(x).sum().backward()


def test_rules_cover_each_other_and_come_back():
    @ow.custom_op(f"{NS}::covered", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x * 1

    def gradient(call):
        x = torch.ones(2, requires_grad=True)
        call(x).sum().backward()
        return x.grad[0].item()

    first = ow.register_autograd(op, lambda ctx, g: g * 2)
    second = ow.register_autograd(op, lambda ctx, g: g * 3)
    assert [gradient(call) for call in calls(op)] == [3, 3]
    second.destroy()
    assert [gradient(call) for call in calls(op)] == [2, 2]
    first.destroy()
    for call in calls(op):
        with pytest.raises(RuntimeError, match="no autograd formula"):
            gradient(call)
