"""Autocast: which tensors are cast, nested and disabled regions, other devices, other transforms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import opwright as ow

pytestmark = pytest.mark.filterwarnings("ignore:.*has no vmap rule")
NS = "torch_autocast"
seen = []


@ow.custom_op(f"{NS}::look", mutates_args=())
def look(x: Tensor, ys: list[Tensor], n: Tensor, *, z: Tensor | None = None) -> Tensor:
    seen.append((x.dtype, [y.dtype for y in ys], n.dtype, None if z is None else z.dtype))
    return x * 2


look.register_autocast("cpu", torch.bfloat16)
look.register_autograd(
    lambda ctx, g: {"x": 2 * g}, setup_context=lambda ctx, inputs, keyword_only_inputs, output: None
)
X, N = torch.ones(2), torch.ones(2, dtype=torch.int64)


@pytest.fixture(params=["operator", "torch.ops"])
def call(request):
    seen.clear()
    return look if request.param == "operator" else torch.ops.torch_autocast.look


def test_floating_tensors_are_cast(call):
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert call(X, [X, X.double()], N, z=X.half()).dtype == torch.bfloat16
        assert seen.pop() == (
            torch.bfloat16,
            [torch.bfloat16, torch.float64],
            torch.int64,
            torch.bfloat16,
        )
        assert call(X, [X], N).dtype == torch.float32


def test_regions_inside_regions(call):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert call(X, [X], N).dtype == torch.float32
        assert call(X, [X], N).dtype == torch.bfloat16


def test_another_device_s_autocast(call):
    with torch.autocast("cuda", dtype=torch.float16, enabled=torch.cuda.is_available()):
        assert call(X, [X], N).dtype == torch.float32


def test_under_transforms(call):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert vmap(lambda x: call(x, [x], N))(torch.ones(3, 2)).dtype == torch.bfloat16
        found = grad(lambda x: call(x, [x], N).float().sum())(X)
    assert torch.equal(found, torch.full((2,), 2.0))


def test_gradients_have_the_argument_s_dtype(call):
    x = X.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = call(x, [X], N)
    out.float().sum().backward()
    assert x.grad.dtype == torch.float32


def test_compiled():
    look.register_fake(lambda x, ys, n, *, z=None: torch.empty_like(x))

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return look(x, [x], N)

    torch._dynamo.reset()
    assert torch.compile(f, fullgraph=True, backend="aot_eager")(X).dtype == torch.bfloat16


def test_no_rule_no_cast():
    @ow.custom_op(f"{NS}::plain", mutates_args=())
    def plain(x: Tensor) -> Tensor:
        return x.clone()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plain(X).dtype == torch.float32
        assert torch.ops.torch_autocast.plain(X).dtype == torch.float32
