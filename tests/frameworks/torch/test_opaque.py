"""Backwards that take another framework's arrays, or may be differentiated once: operators of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import grad, hessian, jvp, vmap

import opwright as ow
from opwright.errors import GradientError, MissingRuleError

pytestmark = pytest.mark.filterwarnings("ignore:.*has no vmap rule")
NS = "torch_opaque"
D = torch.double


@ow.custom_op(f"{NS}::mixed", mutates_args=())
def mixed(
    x: Tensor, ys: list[Tensor], k: float = 2.0, *, w: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    return x * k * (1 if w is None else w), [y * x for y in ys]


mixed.register_fake(lambda x, ys, k=2.0, *, w=None: (torch.empty_like(x), [torch.empty_like(y) for y in ys]))


def _setup(ctx, inputs, keyword_only_inputs, output):
    ctx.x, ctx.ys, ctx.k = inputs
    ctx.w = keyword_only_inputs["w"]
    assert isinstance(output, tuple)
    assert isinstance(output[1], list)


def _backward(ctx, g, hs):
    assert all(isinstance(one, np.ndarray) for one in (g, *hs, ctx.x, *ctx.ys))
    w = 1 if ctx.w is None else ctx.w
    return {
        "x": g * ctx.k * w + sum(h * y for h, y in zip(hs, ctx.ys, strict=True)),
        "ys": [h * ctx.x for h in hs],
        "w": None if ctx.w is None else g * ctx.x * ctx.k,
    }


mixed.register_autograd(_backward, setup_context=_setup, flavour="numpy")


@ow.custom_op(f"{NS}::once", mutates_args=())
def once(x: Tensor) -> Tensor:
    return x.sin()


@once_differentiable
def _once_backward(ctx, g):
    return g * ctx.saved_tensors[0].cos()


once.register_autograd(
    _once_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


@pytest.fixture(params=["operator", "torch.ops"])
def route(request):
    if request.param == "operator":
        return lambda op: op
    return lambda op: getattr(torch.ops.torch_opaque, op.name.partition("::")[2])


def expected(x, w):
    return (x * 3 * w * (x * x * x) * (w * x)).sum()


@pytest.fixture
def f(route):
    def run(x, w):
        out, (p, q) = route(mixed)(x, [x * x, w], 3.0, w=w)
        return (out * p * q).sum()

    return run


X, W = torch.tensor([0.4, 1.1, -0.8], dtype=D), torch.tensor([0.3, -0.2, 0.9], dtype=D)


def same(found, wanted):
    return all(map(torch.allclose, found, wanted))


def test_first_derivatives(f):
    wanted = grad(expected, argnums=(0, 1))(X, W)
    assert same(grad(f, argnums=(0, 1))(X, W), wanted)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    assert same(torch.autograd.grad(f(x, w), (x, w)), wanted)
    batch = torch.stack([X, 2 * X])
    assert torch.allclose(
        vmap(grad(f), in_dims=(0, None))(batch, W), vmap(grad(expected), in_dims=(0, None))(batch, W)
    )


def test_compiled(f):
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (3, 4):
        x, w = (torch.linspace(0.1, end, size, dtype=D).requires_grad_() for end in (1.0, 2.0))
        wanted = grad(expected, argnums=(0, 1))(x.detach(), w.detach())
        assert same(torch.autograd.grad(compiled(x, w), (x, w)), wanted)


def test_an_argument_that_is_none(route):
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(route(mixed)(x, [W])[0].sum(), x)
    assert torch.equal(found, torch.full((3,), 2.0, dtype=D))


@pytest.mark.parametrize("transform", ["hessian", "jvp", "grad of grad", "double backward"])
def test_a_second_derivative_raises(route, transform):
    call = route(once)
    x = X.clone().requires_grad_()
    run = {
        "hessian": lambda: hessian(lambda y: call(y).sum())(X),
        "jvp": lambda: jvp(call, (X,), (X,)),
        "grad of grad": lambda: grad(lambda y: grad(lambda z: call(z).sum())(y).sum())(X),
        "double backward": lambda: torch.autograd.grad(
            torch.autograd.grad(call(x).sum(), x, create_graph=True)[0].sum(), x
        ),
    }[transform]
    with pytest.raises(MissingRuleError) as error:
        run()
    assert str(error.value) == (
        f"second derivative of {NS}::once: no autograd formula was registered for its backward, which "
        "runs as one "
        "opaque kernel\n"
        "  expected: a backward of differentiable operations of the arrays that it gets, not "
        "once_differentiable\n"
        f"  registered at: {once._record.rule('autograd').source}\n"
        "  to fix: write it so, or make it an operator of its own with register_autograd"
    )


def test_a_plain_backward_through_a_transform_raises(route):
    """The depth of functorch's stack does not tell that this is a second derivative."""
    x = X.clone().requires_grad_()
    inner = grad(lambda y: route(once)(y).sum())(x)
    with pytest.raises(MissingRuleError, match="second derivative"):
        inner.sum().backward()


def test_a_jax_definition_on_tensors(route):
    jax = pytest.importorskip("jax", reason="needs JAX")
    jnp = jax.numpy
    name = f"{NS}::jax_sine_{'op' if route(once) is once else 'native'}"

    def sine(x, k=2.0):
        return jnp.sin(x) * k

    sine.__annotations__ = {"x": jax.Array, "k": float, "return": jax.Array}
    op = ow.custom_op(name, sine, mutates_args=())
    op.register_fake(lambda x, k=2.0: ow.empty_like(x), flavour="array_api")

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    op.register_autograd(
        lambda ctx, g: (g * jnp.cos(ctx.saved_tensors[0]) * ctx.k, None), setup_context=setup
    )
    call = route(op)
    x = torch.randn(3, requires_grad=True)
    assert torch.allclose(call(x), 2 * x.sin())
    assert torch.allclose(torch.autograd.grad(call(x).sum(), x)[0], 2 * x.cos())
    torch._dynamo.reset()
    compiled = torch.compile(lambda y: call(y), fullgraph=True, backend="aot_eager")
    assert torch.allclose(torch.autograd.grad(compiled(x).sum(), x)[0], 2 * x.cos())
    with pytest.raises(MissingRuleError, match="second derivative"):
        hessian(lambda y: call(y).sum())(x.detach())


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            lambda ctx, g: g * (1 + 2j),
            "returned a gradient of another dtype for argument x\n"
            "  expected: dtype float32, that of the argument\n"
            "  got: dtype complex64\n",
        ),
        (
            lambda ctx, g: np.ma.masked_less(g, 2),
            "returned an invalid gradient for argument x\n"
            "  expected: a tensor, or None where it has no gradient\n"
            "  got: numpy.ma.MaskedArray, shape (2,), dtype float32\n",
        ),
    ],
)
def test_a_gradient_of_numpy_that_would_lose_something(rule, message):
    @ow.custom_op("opaque_lost::doubled", mutates_args=())
    def doubled(x: np.ndarray) -> np.ndarray:
        return x * 2

    handle = ow.register_autograd(doubled, rule, flavour="numpy")
    x = torch.ones(2, requires_grad=True)
    for call in (doubled, torch.ops.opaque_lost.doubled):
        with pytest.raises(GradientError) as error:
            call(x).sum().backward()
        text = f"backward of opaque_lost::doubled {message}  registered at: {handle.source}"
        assert str(error.value).startswith(text)
