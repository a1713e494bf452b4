"""The call through torch's dispatcher: arguments that are no tensors, names, symbolic numbers."""

from __future__ import annotations

import enum

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import opwright as ow
from opwright.errors import ArgumentError, MixedFrameworksError
from opwright.frameworks.torch.slow import slow_call

NS = "torch_slow"


@ow.custom_op(f"{NS}::add", mutates_args=())
def add(x: Tensor, y: Tensor, *, zs: list[Tensor] | None = None, k: float = 1.0) -> Tensor:
    return x + k * y


@ow.custom_op(f"{NS}::sine", mutates_args=())
def sine(x: Tensor, k: float = 1.0) -> Tensor:
    return x.sin() * k


def test_one_tensor_goes_to_the_overload_itself():
    assert slow_call(sine._record) is torch.ops.torch_slow.sine.default


def test_keyword_only_arguments_go_by_name():
    x = torch.ones(2)
    assert torch.equal(slow_call(add._record)(x, x, None, 2.0), 3 * x)


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"y": np.ones(2)}, MixedFrameworksError, "was called with arrays of 2 frameworks"),
        ({"y": 3}, ArgumentError, "argument y must be an array"),
        ({"y": None}, ArgumentError, "argument y must be an array"),
        ({"zs": torch.ones(2)}, ArgumentError, "argument zs must be a list of arrays"),
        ({"zs": [3]}, ArgumentError, "argument zs[0] must be an array"),
    ],
)
def test_arguments_that_are_no_tensors(calls, given, error, text):
    x = torch.ones(2)
    for _ in range(calls):
        add(x, x)
    for mode in (torch.no_grad(), torch.device("cpu")):  # the second keeps every call from the direct way
        with mode, pytest.raises(error) as caught:
            add(x, **{"y": x, **given})
        assert text in str(caught.value).splitlines()[0]


def test_symbolic_numbers():
    sine.register_fake(lambda x, k=1.0: torch.empty_like(x))
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: sine(x, float(x.shape[0])), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for size in (3, 5):
        x = torch.ones(size)
        assert torch.allclose(compiled(x), x.sin() * size)


def test_a_symbolic_size_outside_dynamo():
    from torch.fx.experimental.proxy_tensor import make_fx

    @ow.custom_op(f"{NS}::sized", mutates_args=())
    def sized(x: Tensor, sizes: list[int], n: int) -> Tensor:
        return x.new_ones(sizes) * n

    sized.register_fake(lambda x, sizes, n: x.new_empty(sizes))
    traced = make_fx(lambda x: sized(x, [x.shape[0], 2], x.shape[0]), tracing_mode="symbolic")(torch.ones(4))
    assert torch.equal(traced(torch.ones(3)), torch.full((3, 2), 3.0))


class Shape(enum.Enum):
    ROUND = "round"
    SQUARE = "square"


def _with_enum(name, backward):
    seen = []

    @ow.custom_op(f"{NS}::{name}", mutates_args=())
    def area(x: Tensor, shape: Shape = Shape.ROUND) -> Tensor:
        seen.append(shape)
        return x * (3.0 if shape is Shape.ROUND else 4.0)

    @area.register_fake
    def _(x, shape=Shape.ROUND):
        seen.append(shape)
        return torch.empty_like(x)

    def setup_context(ctx, inputs, output):
        _, ctx.shape = inputs
        seen.append(ctx.shape)

    area.register_autograd(backward, setup_context=setup_context)

    @area.register_vmap
    def _(info, in_dims, x, shape):
        seen.append(shape)
        return area(x, shape), in_dims[0]

    return area, seen


def _factor(ctx):
    return 3.0 if ctx.shape is Shape.ROUND else 4.0


@pytest.mark.parametrize(
    ("given", "member"), [((), Shape.ROUND), ((Shape.SQUARE,), Shape.SQUARE), (("square",), Shape.SQUARE)]
)
def test_every_rule_gets_members_of_an_enum(given, member):
    torch._dynamo.reset()
    area, seen = _with_enum("area", lambda ctx, grad: (grad * _factor(ctx), None))
    factor = 3.0 if member is Shape.ROUND else 4.0
    for _ in range(6):  # the first call of a default with a gradient goes through the dispatcher
        x = torch.ones(2, requires_grad=True)
        area(x, *given).sum().backward()
        assert x.grad.tolist() == [factor, factor]
    x = torch.ones(2, 2)
    area(x.to("meta"), *given)
    for gradient in (
        torch.func.grad(lambda x: area(x, *given).sum()),
        torch.func.vmap(torch.func.grad(lambda x: area(x, *given).sum())),
        torch.compile(torch.func.grad(lambda x: area(x, *given).sum()), fullgraph=True, backend="aot_eager"),
        torch.func.jacfwd(lambda x: area(x, *given).sum()),
    ):
        assert torch.equal(gradient(x), torch.full((2, 2), factor))
    assert set(seen) == {member}


def test_an_opaque_backward_gets_members_of_an_enum():
    @once_differentiable
    def backward(ctx, grad):
        return grad * _factor(ctx), None

    area, seen = _with_enum("opaque_area", backward)
    for given in ((), (Shape.SQUARE,)) * 3:
        x = torch.ones(2, requires_grad=True)
        area(x, *given).sum().backward()
        assert x.grad.tolist() == [4.0, 4.0] if given else [3.0, 3.0]
    assert set(map(type, seen)) == {Shape}


@ow.custom_op(f"{NS}::placed", mutates_args=())
def placed(
    x: Tensor, ys: list[Tensor], sizes: list[int], device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    return sum(ys, x).to(device, dtype) * sizes[-1]


placed.register_fake(lambda x, ys, sizes, device, dtype: x.new_empty(x.shape, device=device, dtype=dtype))


@pytest.mark.parametrize(
    "given", [("cpu", "float64"), (torch.device("cpu"), torch.float64), ("cpu:0", float)]
)
@pytest.mark.parametrize("several", [list, tuple])
def test_lists_and_names_are_traced(given, several):
    x = torch.ones(2)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: placed(x, several([x, x]), several([1, 2]), *given), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(x), torch.full((2,), 6.0, dtype=torch.float64))


@pytest.mark.parametrize("wrong", [1, None, [1], "s"], ids=repr)
def test_compiled_code_with_something_else_for_a_tensor(ns, wrong):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    f.register_fake(lambda x, y: torch.empty_like(x))
    torch._dynamo.reset()
    with pytest.raises(ArgumentError, match=f"^{ns}::f: argument y must be an array"):
        torch.compile(lambda x: f(x, wrong), backend="eager")(torch.ones(2))
    with pytest.raises(torch._dynamo.exc.Unsupported, match=f"{ns}::f got something else for a tensor"):
        torch.compile(lambda x: f(x, wrong), backend="eager", fullgraph=True)(torch.ones(2))
