"""Tangents: the author's rule, those derived from the backward, and what raises because there is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jvp

import opwright as ow
from opwright.errors import GradientError, MissingRuleError

# Torch scripts its own formulas of forward mode when they are first needed.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

NS = "torch_jvp"
D = torch.double
X = torch.tensor([0.4, 1.1, -0.8], dtype=D)


def save(ctx, inputs, output):
    ctx.save_for_backward(*[one for one in inputs if isinstance(one, Tensor)])


def calls(op):
    namespace, _, name = op.name.partition("::")
    return op, getattr(getattr(torch.ops, namespace), name)


@ow.custom_op(f"{NS}::two", mutates_args=())
def two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.cos()


@ow.custom_op(f"{NS}::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


@ow.custom_op(f"{NS}::lists", mutates_args=())
def lists(xs: list[Tensor], y: Tensor, *, w: Tensor) -> tuple[list[Tensor], Tensor]:
    return [x * y for x in xs], y * w


@pytest.fixture
def sine():
    @ow.custom_op(f"{NS}::sine", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x.sin()

    op.register_autograd(lambda ctx, g: g * ctx.saved_tensors[0].cos(), setup_context=save)
    op.register_fake(lambda x: torch.empty_like(x))
    return op


@pytest.mark.parametrize("which", [0, 1])
def test_a_rule_with_lists_and_keyword_only_tensors(which):
    def setup(ctx, inputs, keyword_only_inputs, output):
        xs, ctx.y = inputs
        ctx.w = keyword_only_inputs["w"]
        ctx.save_for_backward(*xs)

    def tangent(ctx, t_xs, t_y, t_w):
        assert isinstance(t_xs, list)
        assert len(t_xs) == len(ctx.needs_input_grad[0]) == 2
        outs = [
            (0 if t is None else t * ctx.y) + (0 if t_y is None else x * t_y)
            for x, t in zip(ctx.saved_tensors, t_xs, strict=True)
        ]
        second = (0 if t_y is None else t_y * ctx.w) + (0 if t_w is None else ctx.y * t_w)
        return outs, second

    handle = ow.register_jvp(lists, tangent, setup_context=setup)
    call = calls(lists)[which]

    def f(x, w):
        (a, b), c = call([x, X], x * 2, w=w)
        return a + b + c

    def expected(x, w):
        return x * x * 2 + X * x * 2 + x * 2 * w

    out = jvp(f, (X, X), (X, 2 * X))
    assert torch.allclose(out[1], jvp(expected, (X, X), (X, 2 * X))[1])
    assert torch.allclose(
        jacfwd(jacfwd(lambda x: f(x, X).sum()))(X), hessian(lambda x: expected(x, X).sum())(X)
    )
    handle.destroy()


@pytest.mark.parametrize("which", [0, 1])
def test_an_output_declared_without_gradient_has_a_zero_tangent(which):
    def setup(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)

    handle = ow.register_autograd(two, lambda ctx, g, h: g * ctx.saved_tensors[0].cos(), setup_context=setup)
    _, tangents = jvp(calls(two)[which], (X,), (torch.ones_like(X),))
    assert torch.allclose(tangents[0], X.cos())
    assert torch.equal(tangents[1], torch.zeros_like(X))
    handle.destroy()


@pytest.mark.parametrize("which", [0, 1])
def test_a_jvp_rule_with_a_context_of_its_own(which):
    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.kind = "tangent"

    def tangent(ctx, t):
        assert ctx.kind == "tangent"
        return 3 * ctx.saved_tensors[0] ** 2 * t

    handle = ow.register_jvp(cube, tangent, setup_context=setup)
    call = calls(cube)[which]
    assert torch.allclose(
        jacfwd(jacfwd(lambda x: (call(x) * x).sum()))(X), hessian(lambda x: (x**4).sum())(X)
    )
    with pytest.raises(MissingRuleError, match="no autograd formula"):
        grad(lambda x: call(x).sum())(X)
    handle.destroy()


@pytest.mark.parametrize(
    ("returned", "expected", "got"),
    [
        (lambda t: (t, t), "1, one for each output", "2"),
        (lambda t: t[:1], "shape (3,) for output 0", "shape (1,)"),
    ],
)
def test_a_wrong_tangent(returned, expected, got):
    handle = ow.register_jvp(cube, lambda ctx, t: returned(t))
    for call in calls(cube):
        with pytest.raises(GradientError) as error:
            jvp(call, (X,), (X,))
        assert str(error.value) == (
            f"jvp of {NS}::cube returned an incorrect number, kind or shape of tangents\n"
            f"  expected: {expected}\n"
            f"  got: {got}\n"
            f"  registered at: {handle.source}"
        )
    handle.destroy()


def test_no_rule_for_a_tangent():
    for call in calls(cube):
        with pytest.raises(MissingRuleError) as error:
            jvp(call, (X,), (X,))
        assert str(error.value) == (
            f"forward-mode differentiation of {NS}::cube: no autograd formula was registered for it\n"
            f"  registered at: {cube._record.source}\n"
            f"  to fix: add one: opwright.register_autograd('{NS}::cube', backward, setup_context=...), "
            "or declare non_differentiable=True"
        )


@pytest.mark.parametrize("which", [0, 1])
def test_no_tangent_from_a_backward_that_detaches(which):
    call = calls(cube)[which]
    handle = ow.register_autograd(
        cube, lambda ctx, g: (3 * ctx.saved_tensors[0] ** 2 * g).detach(), setup_context=save
    )
    x = X.clone().requires_grad_()
    assert torch.allclose(torch.autograd.grad(call(x).sum(), x)[0], 3 * X**2)
    with pytest.raises(GradientError) as error:
        jvp(call, (X,), (X,))
    assert str(error.value) == (
        f"no tangent of {NS}::cube can be derived from its backward: a gradient that it returns does "
        "not depend on "
        "those that it got\n"
        "  expected: a backward of differentiable operations; None, not zeros, where there is no gradient; "
        "ctx.mark_non_differentiable for outputs that have none\n"
        f"  registered at: {handle.source}\n"
        f"  to fix: add the tangent: opwright.register_jvp('{NS}::cube', ...)"
    )
    handle.destroy()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_level_of_forward_mode_that_compiled_code_enters(sine, which, backend):
    call = calls(sine)[which]

    def tangent(x, t):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(call(forward_ad.make_dual(x, t)) * 1.0).tangent

    torch._dynamo.reset()
    found = torch.compile(tangent, fullgraph=True, backend=backend)(X, X)
    assert torch.allclose(found, X.cos() * X)


@pytest.mark.parametrize(
    ("returned", "expected", "got"),
    [
        (2.0, "a tensor, or None for zero, for output 0", "2.0 of type float"),
        ("x", "a tensor, or None for zero, for output 0", "'x' of type str"),
        (torch.ones(3, dtype=torch.int64), "a floating or complex tensor for output 0", "dtype torch.int64"),
    ],
    ids=["a number", "a string", "integers"],
)
def test_what_is_no_tangent_is_refused(ns, returned, expected, got):
    op = ow.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    rule = ow.register_jvp(op, lambda ctx, t: returned)
    with pytest.raises(GradientError) as e:
        torch.func.jvp(op, (torch.ones(3),), (torch.ones(3),))
    assert str(e.value) == (
        f"jvp of {ns}::f returned an incorrect number, kind or shape of tangents\n"
        f"  expected: {expected}\n"
        f"  got: {got}\n"
        f"  registered at: {rule.source}"
    )


def test_none_is_a_zero_tangent(ns):
    x = torch.ones(3)
    schema = "(Tensor x) -> (Tensor, Tensor)"
    by_rule = ow.custom_op(f"{ns}::rule", lambda x: (x * 2, x * 3), mutates_args=(), schema=schema)
    ow.register_jvp(by_rule, lambda ctx, t: (None, t * 3))
    derived = ow.custom_op(f"{ns}::derived", lambda x: (x * 2, x * 3), mutates_args=(), schema=schema)
    derived.register_autograd(lambda ctx, a, b: None)
    written = ow.custom_op(
        f"{ns}::written",
        lambda x, y: [x.add_(y)].clear(),
        mutates_args=("x",),
        schema="(Tensor(a!) x, Tensor y) -> ()",
    )
    ow.register_jvp(written, lambda ctx, tx, ty: None)

    def mutating(x):
        mutated = x * 1
        written(mutated, x)
        return mutated

    for op, wanted in ((by_rule, (x * 0, x * 3)), (derived, (x * 0, x * 0)), (mutating, x * 0)):
        torch.testing.assert_close(torch.func.jvp(op, (x,), (x,))[1], wanted)
        batched = torch.vmap(lambda t, op=op: torch.func.jvp(op, (x,), (t,))[1])(torch.ones(2, 3))
        got = batched if isinstance(batched, tuple) else (batched,)
        for one, row in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            torch.testing.assert_close(one, row.expand(2, 3))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        tangents = [torch.autograd.forward_ad.unpack_dual(one).tangent for one in by_rule(dual)]
    torch.testing.assert_close(tangents, [x * 0, x * 3])
