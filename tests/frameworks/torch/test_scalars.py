"""A tensor that stands for a number is refused where its gradient, tangent or batch would be lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import opwright as ow
from opwright.errors import ArgumentError

X = torch.ones(3)


@pytest.fixture
def scale(ns):
    def kernel(x: torch.Tensor, a: float, more: list[float] = [1.0]) -> torch.Tensor:  # noqa: B006
        return x * a * more[0]

    op = ow.custom_op(f"{ns}::scale", kernel, mutates_args=())
    op.register_autograd(
        lambda ctx, grad: (grad * ctx.a, None, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "a", inputs[1]),
    )
    return op


def _number(requires_grad=False):
    return torch.tensor(2.0, requires_grad=requires_grad)


def test_a_tensor_that_requires_a_gradient_is_refused_cold_and_warm(scale):
    for _ in range(4):
        with pytest.raises(ArgumentError) as e:
            scale(X, _number(requires_grad=True))
        assert str(e.value) == (
            f"{scale._qualname}: argument a is a number, and a tensor that requires a gradient was given: "
            "its gradient would be lost\n"
            "  expected: float\n"
            "  to fix: declare argument a as a Tensor, or pass a.item() or a.detach()"
        )
        with pytest.raises(ArgumentError, match="argument more is a number"):
            scale(X, 2.0, [_number(requires_grad=True)])
        torch.testing.assert_close(scale(X, 2.0), X * 2)


def test_without_a_gradient_it_is_a_number(scale):
    for _ in range(3):
        torch.testing.assert_close(scale(X, _number()), X * 2)
        with torch.no_grad():
            torch.testing.assert_close(scale(X, _number(requires_grad=True)), X * 2)
        torch.testing.assert_close(scale(X, _number(requires_grad=True).detach()), X * 2)


def test_under_transforms(scale):
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        with pytest.raises(ArgumentError, match=r"argument a .* its gradient would be lost"):
            transform(lambda a: scale(X, a).sum())(_number())
    with pytest.raises(ArgumentError, match="argument a is a number, and a tensor that vmap maps over"):
        torch.vmap(lambda a: scale(X, a))(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(_number(), torch.tensor(1.0))
        with pytest.raises(ArgumentError, match="its gradient would be lost"):
            scale(X, dual)
    # What is detached inside is a wrapper still, and a number.
    grad = torch.func.grad(lambda x, a: scale(x, a.detach()).sum(), argnums=(0, 1))
    torch.testing.assert_close(grad(X, _number()), (torch.full((3,), 2.0), torch.tensor(0.0)))


def test_a_numpy_operator_loses_it_too(ns):
    def kernel(x: np.ndarray, a: float) -> np.ndarray:
        return x * a

    op = ow.custom_op(f"{ns}::f", kernel, mutates_args=())
    x = np.ones(2)
    np.testing.assert_array_equal(op(x, _number()), x * 2)
    with pytest.raises(ArgumentError, match="its gradient would be lost"):
        op(x, _number(requires_grad=True))
    with torch.no_grad():
        np.testing.assert_array_equal(op(x, _number(requires_grad=True)), x * 2)


def test_an_overload_with_a_tensor_takes_it(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x, float a) -> Tensor")
        lib.define("f.Tensor(Tensor x, Tensor a) -> Tensor")
        for name in ("f", "f.Tensor"):
            lib.impl(name, lambda x, a: x * a, "CompositeImplicitAutograd")
        a = _number(requires_grad=True)
        getattr(ow.ops, ns).f(X, a).sum().backward()
        assert a.grad.item() == 3.0
