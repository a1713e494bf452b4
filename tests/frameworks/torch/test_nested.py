"""A transform of ``torch.func`` inside a rule that another transform runs."""

import pytest
import torch

import opwright as ow
from opwright.errors import UnsupportedError

X = torch.linspace(0.1, 0.9, 3, dtype=torch.float64)


def doubled(x):
    """Return twice ``x``, by a transform."""
    return torch.func.jvp(lambda y: 2 * y, (x,), (x,))[1]


def define(ns):
    return ow.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")


def keep(ctx, inputs, output):
    ctx.kept = doubled(inputs[0])


def by_vmap(info, in_dims, x):
    return torch.vmap(lambda row: 2 * row)(x), in_dims[0]


CASES = {
    "jvp rule": (
        lambda op: ow.register_jvp(op, lambda ctx, t: doubled(t)),
        lambda op: torch.func.jvp(op, (X,), (X,)),
    ),
    "backward, of which the tangent is derived,": (
        lambda op: ow.register_autograd(op, lambda ctx, g: torch.func.vjp(lambda y: 2 * y, g)[1](g)[0]),
        lambda op: torch.func.jvp(op, (X,), (X,)),
    ),
    "vmap rule": (lambda op: ow.register_vmap(op, by_vmap), lambda op: torch.vmap(op)(X[:, None])),
}


@pytest.mark.parametrize("what", CASES)
def test_a_rule_that_calls_a_transform(ns, what):
    register, run = CASES[what]
    op = define(ns)
    handle = register(op)
    with pytest.raises(UnsupportedError) as error:
        run(op)
    assert str(error.value) == (
        f"the {what} of {ns}::f calls a transform of torch.func while it is run by one, "
        "which torch does not support\n"
        "  expected: a rule of tensor operations; torch.autograd.grad is one\n"
        f"  registered at: {handle.source}\n"
        "  to fix: write the formula out, or make the part that is transformed an operator of its own"
    )
    torch.testing.assert_close(torch.vmap(torch.sin)(X), X.sin())


@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_a_setup_context_that_calls_a_transform(ns, transform):
    op = define(ns)
    op.register_autograd(lambda ctx, g: 2 * g, setup_context=keep)
    run = {
        "grad": lambda: torch.func.grad(lambda x: op(x).sum())(X),
        "jvp": lambda: torch.func.jvp(op, (X,), (X,)),
    }
    with pytest.raises(UnsupportedError, match=f"the setup_context of {ns}::f calls a transform of torch"):
        run[transform]()
    leaf = X.clone().requires_grad_()
    op(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full_like(X, 2))


def test_the_part_that_is_transformed_as_an_operator_of_its_own(ns):
    inner = ow.custom_op(
        f"{ns}::inner", doubled, mutates_args=(), schema="(Tensor x) -> Tensor", flavour="torch"
    )
    inner.register_jvp(lambda ctx, t: 2 * t)
    op = define(ns)
    op.register_jvp(lambda ctx, t: inner(t))
    op.register_vmap(lambda info, dims, x: (inner(x), dims[0]))
    torch.testing.assert_close(torch.func.jvp(op, (X,), (X,))[1], 2 * X)
    torch.testing.assert_close(torch.vmap(op)(X[:, None]), 2 * X[:, None])


def test_another_error_of_a_rule_reaches_the_caller(ns):
    def wrong(ctx, t):
        raise RuntimeError("mine")

    op = define(ns)
    op.register_jvp(wrong)
    with pytest.raises(RuntimeError, match=r"^mine$"):
        torch.func.jvp(op, (X,), (X,))
