"""What a backward returned, and what is said of it where it is wrong; every text whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import opwright as ow
from opwright.errors import GradientError

# Torch scripts its own formulas of forward mode when they are first needed.

NS = "torch_gradients"


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@ow.custom_op(f"{NS}::mul", mutates_args=())
def mul(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@ow.custom_op(f"{NS}::scaled", mutates_args=())
def scaled(x: Tensor, k: float) -> Tensor:
    return x * k


@ow.custom_op(f"{NS}::total", mutates_args=())
def total(xs: list[Tensor], ys: list[Tensor] | None = None) -> Tensor:
    return torch.stack(xs).sum(0)


def calls(op):
    namespace, _, name = op.name.partition("::")
    return op, getattr(getattr(torch.ops, namespace), name)


def run_twice(call, *args):
    """Fast and slow, eager and under functorch: each raises the same."""
    for _ in range(2):
        yield lambda: call(*args).sum().backward()
    detached = [a.detach() if isinstance(a, Tensor) else a for a in args]
    if isinstance(detached[0], Tensor):
        yield lambda: torch.func.grad(lambda x: call(x, *detached[1:]).sum())(detached[0])


FIX = "return None for an argument without a gradient, or a dict by argument name"


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("returned", "lines"),
    [
        (
            lambda g: (g,),
            [
                "backward of torch_gradients::mul returned an incorrect number of gradients "
                "(expected 2, got 1)",
                "expected: one for each of x, y",
                "got: 1, none for y",
            ],
        ),
        (
            lambda g: g,
            [
                "backward of torch_gradients::mul returned an incorrect number of gradients "
                "(expected 2, got 1)",
                "expected: one for each of x, y",
                "got: 1, none for y",
            ],
        ),
        (
            lambda g: (g, g, g),
            [
                "backward of torch_gradients::mul returned an incorrect number of gradients "
                "(expected 2, got 3)",
                "expected: one for each of x, y",
                "got: 3, more than there are arguments",
            ],
        ),
        (
            lambda g: (g, torch.ones(5)),
            [
                "backward of torch_gradients::mul returned an invalid gradient for argument y",
                "expected: shape (2,), that of the argument",
                "got: shape (5,)",
            ],
        ),
        (
            lambda g: (3.0, g),
            [
                "backward of torch_gradients::mul returned an invalid gradient for argument x",
                "expected: a tensor, or None where it has no gradient",
                "got: 3.0 of type float",
            ],
        ),
        (
            lambda g: {"x": g, "z": g},
            [
                "backward of torch_gradients::mul returned gradients for unknown arguments",
                "expected: names among x, y",
                "got: 'z'",
            ],
        ),
    ],
)
def test_a_wrong_gradient_names_its_argument(which, returned, lines):
    def backward(ctx, g):
        return returned(g)

    handle = ow.register_autograd(mul, backward, setup_context=save)
    lines = [*lines, f"registered at: {handle.source}"]
    if "number" in lines[0]:
        lines.append(f"to fix: {FIX}")
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    for run in run_twice(calls(mul)[which], x, y):
        with pytest.raises(GradientError) as error:
            run()
        assert str(error.value) == "\n  ".join(lines)
    handle.destroy()


@pytest.mark.parametrize("which", [0, 1])
def test_a_gradient_for_what_is_no_tensor(which):
    handle = ow.register_autograd(scaled, lambda ctx, g: (g, g))
    for run in run_twice(calls(scaled)[which], torch.ones(2, requires_grad=True), 2.0):
        with pytest.raises(GradientError) as error:
            run()
        assert str(error.value) == (
            f"backward of {NS}::scaled returned a gradient for argument k, which is no tensor\n"
            "  expected: None\n"
            "  got: a tensor of shape (2,)\n"
            f"  registered at: {handle.source}"
        )
    handle.destroy()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("returned", "got"),
    [(lambda g: (g, None), "a tensor of shape (2,)"), (lambda g: ([g], None), "list of 1")],
)
def test_gradients_of_a_list_must_be_a_list(which, returned, got):
    handle = ow.register_autograd(total, lambda ctx, g: returned(g))
    x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    for run in run_twice(calls(total)[which], [x, y]):
        with pytest.raises(GradientError) as error:
            run()
        assert str(error.value) == (
            f"backward of {NS}::total: the gradient of xs must be a list of the same structure as the "
            "inputs\n"
            "  expected: a list of 2 gradients\n"
            f"  got: {got}\n"
            f"  registered at: {handle.source}"
        )
    handle.destroy()


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_that_are_expanded_transposed_or_none(which):
    call = calls(mul)[which]
    x, y = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    handle = ow.register_autograd(mul, lambda ctx, g: (torch.ones(1).expand(2, 3), torch.ones(3, 2).T))
    call(x, y).sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 3))
    assert torch.equal(y.grad, torch.ones(2, 3))
    handle.destroy()
    handle = ow.register_autograd(mul, lambda ctx, g: {"y": g})
    x.grad = y.grad = None
    call(x, y).sum().backward()
    assert x.grad is None
    assert torch.equal(y.grad, torch.ones(2, 3))
    handle.destroy()


@pytest.mark.parametrize("which", [0, 1])
def test_a_broadcast_gradient_is_summed_as_torch_does(which):
    call = calls(mul)[which]
    handle = ow.register_autograd(
        mul, lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]), setup_context=save
    )
    x, b = torch.randn(4, 3, dtype=torch.double), torch.randn(3, dtype=torch.double)
    leaf = b.clone().requires_grad_()
    call(x, leaf).sum().backward()
    assert torch.allclose(leaf.grad, x.sum(0))
    tangent = torch.randn(3, dtype=torch.double)
    assert torch.allclose(torch.func.jvp(lambda b: call(x, b), (b,), (tangent,))[1], x * tangent)
    handle.destroy()


@pytest.mark.parametrize("which", [0, 1])
def test_the_same_tensor_twice(which):
    call = calls(mul)[which]
    handle = ow.register_autograd(
        mul, lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]), setup_context=save
    )
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    for _ in range(3):
        (grad,) = torch.autograd.grad(call(x, x).sum(), x)
        assert torch.equal(grad, 2 * x.detach())
    handle.destroy()


@pytest.mark.parametrize("dtype", [torch.double, torch.cdouble])
@pytest.mark.parametrize("which", [0, 1])
def test_gradcheck(which, dtype):
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y.conj(), g * x.conj()

    handle = ow.register_autograd(mul, backward, setup_context=save)
    handle_2 = ow.register_vmap(mul, _batched)
    call = calls(mul)[which]
    x, y = (torch.randn(3, dtype=dtype, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(
        call, (x, y), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(call, (x, y), check_batched_grad=True)
    handle.destroy()
    handle_2.destroy()


def _batched(info, in_dims, x, y):
    x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x
    y = y.movedim(in_dims[1], 0) if in_dims[1] is not None else y
    return mul(x, y), 0


COMPLEX = 1 + 2j


def complex_error(op, handle, name):
    return (
        f"backward of {op.name} returned a gradient of another dtype for argument {name}\n"
        "  expected: dtype float32, that of the argument\n"
        "  got: dtype complex64\n"
        f"  registered at: {handle.source}\n"
        "  to fix: take its real part: array_namespace(grad).real(grad)"
    )


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("op", "rule", "name"),
    [
        (mul, lambda ctx, g: (g, g * COMPLEX), "y"),
        (mul, once_differentiable(lambda ctx, g: (g, g * COMPLEX)), "y"),
        (scaled, lambda ctx, g: {"x": g * COMPLEX}, "x"),
        (total, lambda ctx, g: ([g, g * COMPLEX], None), "xs[1]"),
    ],
    ids=["several", "once", "one", "list"],
)
def test_a_complex_gradient_of_a_real_argument(which, op, rule, name):
    handle = ow.register_autograd(op, rule, setup_context=lambda ctx, inputs, output: None)
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    args = {mul: (x, y), scaled: (x, 2.0), total: ([x, y],)}[op]
    call = calls(op)[which]
    runs = [*run_twice(call, *args)][:2]
    if op is not total:
        number = args.index(x) if op is scaled else 1
        plain = [one.detach() if isinstance(one, Tensor) else one for one in args]
        runs.append(lambda: torch.func.grad(lambda *args: call(*args).sum(), argnums=number)(*plain))
    for run in runs:
        with pytest.raises(GradientError) as error:
            run()
        assert str(error.value) == complex_error(op, handle, name)
    handle.destroy()


@pytest.mark.parametrize("which", [0, 1])
def test_a_complex_gradient_that_nobody_asked_for(which):
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x.conj()

    handle = ow.register_autograd(mul, backward, setup_context=save)
    x = torch.tensor([1 + 1j, 2.0], requires_grad=True)
    for _ in range(2):
        (grad,) = torch.autograd.grad(calls(mul)[which](x, torch.ones(2)).real.sum(), x)
        assert torch.equal(grad, torch.ones(2, dtype=torch.complex64))
    plain = x.detach()
    assert torch.equal(
        torch.func.jvp(lambda x: calls(mul)[which](x, torch.ones(2)), (plain,), (plain,))[1], plain
    )
    listed = ow.register_autograd(total, lambda ctx, g: ([g, g], None))
    for _ in range(2):
        (grad,) = torch.autograd.grad(calls(total)[which]([x, x.detach().abs() * 1j]).real.sum(), x)
        assert torch.equal(grad, torch.ones(2, dtype=torch.complex64))
    handle.destroy()
    listed.destroy()


def test_a_complex_tangent_of_a_real_output():
    handle = ow.register_jvp(mul, lambda ctx, x, y: x * COMPLEX)
    x = torch.ones(2)
    with pytest.raises(GradientError) as error:
        torch.func.jvp(lambda x: mul(x, x), (x,), (x,))
    assert str(error.value) == (
        f"jvp of {NS}::mul returned a tangent of another dtype for output 0\n"
        "  expected: dtype float32, that of the output\n"
        "  got: dtype complex64\n"
        f"  registered at: {handle.source}\n"
        "  to fix: take its real part: array_namespace(tangent).real(tangent)"
    )
    handle.destroy()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("several", [list, tuple])
def test_lists_of_gradients_in_a_compiled_backward(ns, several):
    from torch._dynamo import compiled_autograd

    @ow.custom_op(f"{ns}::weighted", mutates_args=())
    def weighted(xs: list[Tensor], weights: list[int]) -> Tensor:
        return sum((x * weight for x, weight in zip(xs, weights, strict=True)), torch.zeros(2))

    def setup_context(ctx, inputs, output):
        ctx.weights = inputs[1]

    weighted.register_autograd(
        lambda ctx, grad: (several(grad * weight for weight in ctx.weights), several([None, None])),
        setup_context=setup_context,
    )
    x = torch.ones(2, requires_grad=True)
    out = weighted([x, 2 * x], [3, 5]).sum()
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        out.backward()
    assert x.grad.tolist() == [13, 13]
