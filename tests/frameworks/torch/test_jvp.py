"""Tangents: the author's rule, those derived from the backward, and what raises because there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import opwright as ow
from opwright.errors import GradientError, MissingRuleError
from opwright.frameworks.torch.jvp import primal

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


class Pair(NamedTuple):
    x: object
    y: object


KEPT = {
    "saved": (lambda ctx, x, y: ctx.save_for_backward(x, y), lambda ctx: ctx.saved_tensors),
    "attributes": (lambda ctx, x, y: vars(ctx).update(x=x, y=y), lambda ctx: (ctx.x, ctx.y)),
    "list": (lambda ctx, x, y: setattr(ctx, "kept", [x, y]), lambda ctx: ctx.kept),
    "tuple": (lambda ctx, x, y: setattr(ctx, "kept", (x, y)), lambda ctx: ctx.kept),
    "dict": (
        lambda ctx, x, y: setattr(ctx, "kept", {"x": x, "y": y}),
        lambda ctx: (ctx.kept["x"], ctx.kept["y"]),
    ),
    "named tuple": (
        lambda ctx, x, y: setattr(ctx, "kept", Pair(x, y)),
        lambda ctx: (ctx.kept.x, ctx.kept.y),
    ),
    "nested": (
        lambda ctx, x, y: setattr(ctx, "kept", {"all": [(x, None), Pair(y, 2)]}),
        lambda ctx: (ctx.kept["all"][0][0], ctx.kept["all"][1].x),
    ),
}
V = torch.tensor([0.7, -0.4, 0.3], dtype=D)
BATCH = torch.stack([X, V])
ORDERS = {
    "backward": lambda f: _backward(f),
    "double backward": lambda f: torch.autograd.functional.hessian(f, X),
    "jvp": lambda f: jvp(f, (X,), (V,))[1],
    "jvp(grad)": lambda f: jvp(grad(f), (X,), (V,))[1],
    "grad(jvp)": lambda f: grad(lambda x: jvp(f, (x,), (V,))[1])(X),
    "hessian": lambda f: hessian(f)(X),
    "jacrev of jacrev": lambda f: jacrev(jacrev(f))(X),
    "vmap(grad)": lambda f: vmap(grad(f))(BATCH),
    "vmap(jvp(grad))": lambda f: vmap(lambda x: jvp(grad(f), (x,), (V,))[1])(BATCH),
    "jvp(vmap(grad))": lambda f: jvp(vmap(grad(f)), (BATCH,), (BATCH.flip(0),))[1],
}


def _backward(f):
    x = X.clone().requires_grad_()
    f(x).backward()
    return x.grad


def _keeping(ns, keep, read, *, own_rule, mutates):
    """Return ``x * x * y``, as a new array or in place of x, with rules that read what is kept."""

    def functional(x: Tensor, y: Tensor) -> Tensor:
        return x * x * y

    def in_place(x: Tensor, y: Tensor) -> None:
        x.mul_(x.clone()).mul_(y)

    op = ow.custom_op(f"{ns}::f", in_place if mutates else functional, mutates_args=("x",) if mutates else ())

    def setup(ctx, inputs, output):
        keep(ctx, *inputs)

    def backward(ctx, g):
        x, y = read(ctx)
        return g * 2 * x * y, g * x * x

    def tangent(ctx, tx, ty):
        x, y = read(ctx)
        return 2 * x * y * tx + x * x * ty

    op.register_autograd(backward, setup_context=setup)
    if own_rule:
        op.register_jvp(tangent)
    return op


def _loss(op, mutates):
    def loss(x):
        value, y = x * 1, x * 3
        if mutates:
            op(value, y)
        else:
            value = op(value, y)
        return (value * x).sum()

    return loss


@pytest.mark.filterwarnings("ignore:.*has no vmap rule")
@pytest.mark.parametrize("mutates", [False, True])
@pytest.mark.parametrize("own_rule", [False, True])
@pytest.mark.parametrize("kept", KEPT)
def test_what_is_kept_has_its_derivatives_in_containers_too(ns, kept, own_rule, mutates):
    op = _keeping(ns, *KEPT[kept], own_rule=own_rule, mutates=mutates)
    for which in calls(op):
        for order, run in ORDERS.items():
            expected = run(lambda x: (3 * x**4).sum())
            torch.testing.assert_close(run(_loss(which, mutates)), expected, msg=f"{order}, {kept}")


@pytest.mark.parametrize("mutates", [False, True])
@pytest.mark.parametrize("own_rule", [False, True])
@pytest.mark.parametrize("where", ["an object", "a closure"])
def test_what_is_kept_out_of_sight_has_no_tangent(ns, where, own_rule, mutates):
    keep, read = {
        "an object": (
            lambda ctx, x, y: setattr(ctx, "kept", SimpleNamespace(x=x, y=y)),
            lambda ctx: (ctx.kept.x, ctx.kept.y),
        ),
        "a closure": (lambda ctx, x, y: setattr(ctx, "kept", lambda: (x, y)), lambda ctx: ctx.kept()),
    }[where]
    op = _keeping(ns, keep, read, own_rule=own_rule, mutates=mutates)
    loss = _loss(op, mutates)
    torch.testing.assert_close(grad(loss)(X), 12 * X**3)
    for order in ("jvp", "jvp(grad)", "hessian"):
        with pytest.raises(GradientError) as error:
            ORDERS[order](loss)
        kind = "jvp" if own_rule else "autograd"
        assert str(error.value) == (
            f"{kind} rule of {ns}::f: it read an array with a tangent of its own, which was neither saved "
            "nor an attribute of ctx\n"
            "  expected: arrays from ctx.save_for_backward, or in attributes of ctx: arrays, and lists, "
            "tuples and dicts of them, no other objects\n"
            f"  registered at: {op._record.rule(kind).source}\n"
            "  to fix: keep it with ctx.save_for_backward"
        )


def test_a_container_without_arrays_is_the_authors_own():
    cache = {"n": [1]}
    assert primal(cache) is cache
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, V)
        bare = primal({"x": [dual, Pair(dual, 1)]})
        assert bare["x"][1].y == 1
        for one in (bare["x"][0], bare["x"][1].x):
            assert forward_ad.unpack_dual(one).tangent is None
