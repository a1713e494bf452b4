"""Operators that mutate: gradients, what raises before anything is written, version counters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import opwright as ow
from opwright.errors import ArgumentError, GradientError, UnsupportedError
from opwright.frameworks.torch.mutation import InferenceTensorError

pytestmark = pytest.mark.filterwarnings("ignore:.*has no vmap rule")
NS = "torch_mutation"
A = torch.tensor([2.0, 3.0], dtype=torch.double)


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@ow.custom_op(f"{NS}::multiply", mutates_args={"x"})
def multiply(x: np.ndarray, y: np.ndarray) -> None:
    x *= y


def _multiply_backward(ctx, g):
    x, y = ctx.saved_tensors
    return g * y, g * x


multiply.register_autograd(_multiply_backward, setup_context=save)


@ow.custom_op(f"{NS}::multiply_all", mutates_args={"xs"})
def multiply_all(xs: list[Tensor], y: Tensor) -> None:
    for x in xs:
        x.mul_(y)


def _all_setup(ctx, inputs, output):
    xs, y = inputs
    ctx.save_for_backward(*xs, y)


def _all_backward(ctx, gs):
    *xs, y = ctx.saved_tensors
    return [g * y for g in gs], sum(g * x for g, x in zip(gs, xs, strict=True))


multiply_all.register_autograd(_all_backward, setup_context=_all_setup)


@ow.custom_op(f"{NS}::multiply_and_add", mutates_args={"x"})
def multiply_and_add(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(y)
    return x + y


def _add_backward(ctx, g_out, g_x):
    x, y = ctx.saved_tensors
    g = g_out + g_x
    return g * y, g * x + g_out


multiply_and_add.register_autograd(_add_backward, setup_context=save)


@ow.custom_op(f"{NS}::rotate", mutates_args={"x"})
def rotate(x: np.ndarray) -> None:
    x *= 1j


def native(op):
    return getattr(torch.ops.torch_mutation, op.name.partition("::")[2])


@pytest.fixture(params=["operator", "torch.ops"])
def route(request):
    return (lambda op: op) if request.param == "operator" else native


def test_a_leaf_that_requires_grad_is_not_touched(route):
    x = A.clone().requires_grad_()
    for given, what in ((x, "a leaf Variable"), (x[:1], "a view of a leaf Variable")):
        with pytest.raises(GradientError) as error:
            route(multiply)(given, A[: len(given)])
        assert str(error.value) == (
            f"{NS}::multiply, argument x: {what} that requires grad is being used in an in-place operation\n"
            "  expected: a tensor without grad, or one computed from others\n"
            "  to fix: pass x.clone(), or call it under torch.no_grad()"
        )
        assert torch.equal(x.detach(), A)
    with torch.no_grad():
        route(multiply)(x, A)
    assert torch.equal(x.detach(), A * A)
    assert x._version == 1


def test_a_view_of_an_intermediate_value(route):
    w = A.clone().requires_grad_()
    y = w * 2
    route(multiply)(y[:1], w[1:])
    y.sum().backward()
    assert torch.allclose(w.grad, torch.tensor([6.0, 6.0], dtype=torch.double))


def test_what_needs_no_gradient_gets_one_by_what_is_written(route):
    w, plain = A.clone().requires_grad_(), A.clone()
    route(multiply)(plain, w)
    assert plain.requires_grad
    plain.sum().backward()
    assert torch.equal(w.grad, A)


def test_a_saved_tensor_that_was_overwritten(route):
    w = A.clone().requires_grad_()
    q = w * 1
    squared = q * q
    route(multiply)(q, A)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


def test_second_derivatives(route):
    def f(w):
        y = w * w
        route(multiply)(y, w)
        return y.sum()

    assert torch.allclose(hessian(f)(A), torch.diag(6 * A))
    assert torch.autograd.gradgradcheck(f, (A.clone().requires_grad_(),))


def test_a_list_of_mutated_tensors(route):
    def f(w):
        p, q = w * 1, w * w
        route(multiply_all)([p, q], w)
        return (p + q).sum()

    expected = 2 * A + 3 * A * A
    assert torch.allclose(grad(f)(A), expected)
    assert torch.allclose(hessian(f)(A), torch.diag(2 + 6 * A))
    w = A.clone().requires_grad_()
    f(w).backward()
    assert torch.allclose(w.grad, expected)
    torch._dynamo.reset()
    found = torch.compile(lambda w: grad(f)(w), fullgraph=True, backend="aot_eager")(A)
    assert torch.allclose(found, expected)


def test_new_values_have_gradients_after_those_of_the_outputs(route):
    def f(w):
        p = w * 1
        out = route(multiply_and_add)(p, w)
        return (out * p).sum()

    assert torch.allclose(grad(f)(A), 4 * A**3 + 3 * A**2)
    assert torch.allclose(jacfwd(f)(A), 4 * A**3 + 3 * A**2)
    assert torch.allclose(hessian(f)(A), torch.diag(12 * A**2 + 6 * A))


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap(grad)", "grad in grad"])
def test_a_captured_tensor_is_not_touched(route, transform):
    captured = A.clone()

    def f(w):
        route(multiply)(captured, w)
        return captured.sum()

    run = {
        "grad": lambda: grad(f)(A),
        "jvp": lambda: jvp(f, (A,), (A,)),
        "vmap(grad)": lambda: vmap(grad(f))(torch.stack([A, A])),
        "grad in grad": lambda: grad(lambda w: grad(f)(w).sum())(A),
    }[transform]
    with pytest.raises(UnsupportedError) as error:
        run()
    assert str(error.value) == (
        f"{NS}::multiply would mutate a captured tensor, argument x, inside a transform of "
        "torch.func, which its "
        "derivative would not know of\n"
        "  expected: a tensor that the transform was given, or that was made inside it\n"
        "  to fix: pass x.clone(), or give x to the transform as an argument"
    )
    assert torch.equal(captured, A)


def test_a_captured_tensor_in_compiled_code(route):
    captured = A.clone()

    def f(w):
        route(multiply)(captured, w)
        return captured.sum()

    torch._dynamo.reset()
    with pytest.raises(Exception, match="would mutate a captured tensor"):
        torch.compile(lambda w: grad(f)(w), fullgraph=True, backend="aot_eager")(A)


def test_tensors_made_inside_nested_transforms(route):
    def f(w):
        def inner(v):
            y, z = w * v, torch.ones(2, dtype=torch.double)
            route(multiply)(y, v)
            route(multiply)(z, v)
            return (y * z).sum()

        return grad(inner)(w * w).sum()

    def expected(w):
        return grad(lambda v: (w * v * v * v).sum())(w * w).sum()

    assert torch.allclose(grad(f)(A), grad(expected)(A))


def test_vmap_needs_a_batch_to_write_to(route):
    batch = torch.stack([A, 2 * A])

    def write(x, y):
        route(multiply)(x, y)
        return x

    for run in (lambda: vmap(write, in_dims=(None, 0))(A.clone(), batch),):
        with pytest.raises(UnsupportedError) as error:
            run()
        assert str(error.value) == (
            f"vmap of {NS}::multiply: argument x is mutated and not batched, but another one is\n"
            "  expected: in_dims that batch x too: it has no room for a result for each\n"
            f"  registered at: {multiply._record.source}\n"
            "  to fix: expand and clone x to the batch first, or use a functional operator"
        )
    given = batch.T.contiguous()
    vmap(write, in_dims=(1, 0))(given, batch)
    assert torch.equal(given, (batch * batch).T)


def test_an_inference_tensor_outside_inference_mode(route):
    with torch.inference_mode():
        x = A.clone()
        route(multiply)(x, A)
    assert torch.equal(x, A * A)
    with pytest.raises(InferenceTensorError) as error:
        route(multiply)(x, A)
    assert str(error.value) == (
        f"{NS}::multiply: inplace update to inference tensor outside InferenceMode is not allowed\n"
        "  expected: a normal tensor as x\n"
        "  to fix: pass x.clone(), or call it under torch.inference_mode()"
    )


def test_an_expanded_tensor(route):
    with pytest.raises(ArgumentError) as error:
        route(multiply)(torch.ones(1, dtype=torch.double).expand(2), A)
    assert str(error.value) == (
        f"{NS}::multiply mutates argument x, whose elements share memory\n"
        "  expected: a tensor whose elements have memory of their own\n"
        "  got: a tensor of shape (2,) with strides (0,)\n"
        "  to fix: pass x.contiguous(), and use that afterwards"
    )


@pytest.mark.parametrize("view", [torch.conj, torch._neg_view])
def test_conjugated_and_negated_tensors_are_written_through(route, view):
    z = torch.tensor([1 + 2j, 3j])
    given = view(z.clone())
    expected = view(z) * 1j
    route(rotate)(given)
    assert torch.allclose(given, expected)


def test_no_rule(route):
    @ow.custom_op(f"{NS}::no_rule", mutates_args={"x"})
    def op(x: Tensor) -> None:
        x.sin_()

    y = A.clone().requires_grad_() * 1
    route(op)(y)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        y.sum().backward()


def test_selective_checkpoint_that_recomputes(route):
    def f(w):
        y = w * 1
        route(multiply)(y, w)
        return (y * y).sum()

    w = A.clone().requires_grad_()
    contexts = lambda: create_selective_checkpoint_contexts(  # noqa: E731
        lambda ctx, op, *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE
    )
    checkpoint(f, w, use_reentrant=False, context_fn=contexts).backward()
    assert torch.allclose(w.grad, 4 * A**3)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own look
@pytest.mark.parametrize("compiled", [False, True])
def test_a_write_to_an_argument_of_a_program_has_its_gradient(ns, compiled):
    def scale(x: torch.Tensor, k: float) -> None:
        x.mul_(k)

    operator = ow.custom_op(f"{ns}::scale", scale, mutates_args=("x",))
    operator.register_autograd(lambda ctx, grad: (grad * 2, None))
    program = torch.compile(operator, fullgraph=True, backend="aot_eager") if compiled else operator
    leaf = torch.ones(3, requires_grad=True)
    x = leaf.clone()
    program(x, 2.0)
    assert torch.autograd.grad(x.sum(), leaf)[0].tolist() == [2.0] * 3


def _in_common(text):
    return (
        f"{NS}::multiply: arguments x and y {text}, and x is mutated; such a call has no gradient\n"
        "  expected: arguments with memory of their own where a gradient or tangent is needed\n"
        f"  registered at: {multiply._record.source}\n"
        "  to fix: pass a copy as y, or call it without gradients"
    )


TWICE = {
    "itself": (lambda x: x, "are one array"),
    "a view": (lambda x: x.view(-1), "share memory"),
    "the same elements": (lambda x: x.as_strided((2,), (1,)), "share memory"),
    "detached": (lambda x: x.detach(), "share memory"),
}
DERIVATIVES = {
    "backward": lambda f: f(A.clone().requires_grad_()).backward(),
    "grad": lambda f: grad(f)(A),
    "hessian": lambda f: hessian(f)(A),
    "jvp": lambda f: jvp(f, (A,), (A,)),
    "vmap(grad)": lambda f: vmap(grad(f))(torch.stack([A, A])),
    "dual tensors": lambda f: _dual(f),
}


def _dual(f):
    with torch.autograd.forward_ad.dual_level():
        return f(torch.autograd.forward_ad.make_dual(A, torch.ones_like(A)))


@pytest.mark.parametrize("other", TWICE)
@pytest.mark.parametrize("transform", DERIVATIVES)
def test_memory_that_a_mutated_argument_shares_has_no_gradient(route, transform, other):
    second, text = TWICE[other]
    seen = []

    def f(w):
        x = w * 1
        seen.append(x)
        route(multiply)(x, second(x))
        return x.sum()

    with pytest.raises(GradientError) as error:
        DERIVATIVES[transform](f)
    assert str(error.value) == _in_common(text)
    if transform == "backward":
        assert torch.equal(seen[0].detach(), A)


@pytest.mark.parametrize("other", TWICE)
def test_memory_in_common_in_compiled_code(route, other):
    second, text = TWICE[other]

    def f(w):
        x = w * 1
        route(multiply)(x, second(x))
        return x.sum()

    torch._dynamo.reset()
    with pytest.raises(Exception, match=f"arguments x and y {text}, and x is mutated"):
        torch.compile(f, fullgraph=True, backend="aot_eager")(A.clone().requires_grad_())


def test_without_a_gradient_memory_may_be_shared(route):
    for given in (A, A.clone().requires_grad_()):
        for second in (lambda x: x, lambda x: x.view(-1)):
            with torch.set_grad_enabled(not given.requires_grad):
                x = given.clone()
                for _ in range(3):
                    route(multiply)(x, second(x))
                assert torch.equal(x, A**8)
    batch = torch.stack([A, 2 * A])
    vmap(lambda x: (route(multiply)(x, x), x)[1])(batch)
    assert torch.equal(batch, torch.stack([A, 2 * A]) ** 2)
    with torch.autograd.forward_ad.dual_level():
        x = A.clone()
        route(multiply)(x, x)
        assert torch.equal(x, A * A)

    def constant(w):
        x = A.clone()
        route(multiply)(x, x)
        return (x * w).sum()

    assert torch.equal(grad(constant)(A), A * A)
    assert torch.equal(jvp(constant, (A,), (torch.ones_like(A),))[1], (A * A).sum())
    assert torch.equal(hessian(constant)(A), torch.zeros(2, 2, dtype=torch.double))


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_views_of_one_tensor_that_are_apart(route, dynamic):
    cuts = {
        "halves": (lambda x: x[:2], lambda x: x[2:]),
        "interleaved": (lambda x: x[::2], lambda x: x[1::2]),
        "columns": (lambda x: x.view(2, 2)[:, 0], lambda x: x.view(2, 2)[:, 1]),
    }
    values = torch.cat([A, A + 2])

    for first, second in cuts.values():

        def f(w):
            x = w * 1
            route(multiply)(first(x), second(x))  # noqa: B023  (called in this turn)
            return (x * x).sum()

        def functional(w):
            return ((first(w) * second(w)) ** 2 + second(w) ** 2).sum()  # noqa: B023

        if dynamic is not None:
            torch._dynamo.reset()
            run = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=dynamic)
            w = values.clone().requires_grad_()
            run(w).backward()
            assert torch.allclose(w.grad, grad(functional)(values))
        else:
            assert torch.allclose(grad(f)(values), grad(functional)(values))
            assert torch.allclose(hessian(f)(values), hessian(functional)(values))
            assert torch.autograd.gradgradcheck(f, (values.clone().requires_grad_(),))


def test_one_tensor_twice_in_a_list(route):
    x = A.clone().requires_grad_() * 1
    with pytest.raises(GradientError, match=r"arguments xs\[0\] and xs\[1\] are one array"):
        route(multiply_all)([x, x], A)
    with pytest.raises(GradientError, match=r"arguments xs\[1\] and y share memory"):
        route(multiply_all)([A.clone(), x], x.view(-1))


def test_a_gradient_of_another_argument_only(route):
    @ow.custom_op(f"{NS}::three", mutates_args={"x"})
    def op(x: Tensor, y: Tensor, z: Tensor) -> None:
        x.mul_(y).mul_(z)

    op.register_autograd(lambda ctx, g: (g, g, g))
    x = A.clone()
    with pytest.raises(GradientError, match="arguments x and y are one array"):
        route(op)(x, x, A.clone().requires_grad_())
    assert torch.equal(x, A)


def test_a_call_without_gradient_counts_one_version_for_each_mutated_tensor(route):
    xs, y = [A.clone(), A.clone()], A.clone()
    route(multiply_all)(xs, y)
    assert [x._version for x in xs] == [1, 1]
    assert y._version == 0


def test_nothing_is_counted_in_inference_mode(route):
    with torch.inference_mode():
        x = A.clone()
        route(multiply)(x, A)
        assert torch.equal(x, A * A)
        assert x.is_inference()


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.parametrize("own", ["opwright", "torch.library"])
def test_another_kernel_where_versions_are_counted_is_called(own):
    name = f"counted_by_{own[:5]}"
    library = ow.Library(f"{NS}_{own[:5]}", "DEF")
    library.define(f"{name}(Tensor(a!) x) -> ()")
    library.impl(name, lambda x: x.mul_(2) and None, "CPU")
    called = []
    other = library if own == "opwright" else torch.library.Library(f"{NS}_{own[:5]}", "IMPL")
    other.impl(name, lambda x: called.append(x), "ADInplaceOrView")
    x = A.clone()
    getattr(getattr(torch.ops, f"{NS}_{own[:5]}"), name)(x)
    assert len(called) == 1
    assert torch.equal(x, A)
