"""Operators that return what they mutate, compiled: another operator stands in for them."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.frameworks.torch.lowered import lowered_of

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
NS = "torch_returned"
COMPILERS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=pytest.mark.skipif(
            not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")),
            reason="inductor needs a C++ compiler, and there is none",
        ),
    ),
]


@ow.custom_op(
    f"{NS}::scale_",
    mutates_args={"x"},
    tags="inplace",
)
def scale_(x: Tensor, y: Tensor) -> Tensor:
    return x.mul_(y)


LIBRARY = ow.Library(NS, "FRAGMENT")
LIBRARY.define("both(Tensor(a!) x, Tensor y, *, Tensor(b!) out, int k=2) -> (Tensor(a!), Tensor, Tensor(b!))")


@ow.impl(f"{NS}::both", "default")
def _both(x, y, *, out, k=2):
    return x.mul_(y), x + y, out.copy_(x * k)


@pytest.fixture(params=["operator", "torch.ops"])
def route(request):
    if request.param == "operator":
        return lambda op: op
    return lambda op: getattr(torch.ops.torch_returned, op.name.partition("::")[2])


@pytest.mark.parametrize("backend", COMPILERS)
def test_the_result_and_what_follows_from_it(route, backend):
    def f(x):
        z = route(scale_)(torch.sin(x), x)
        return z * x, z

    torch._dynamo.reset()
    x = torch.linspace(0.5, 1.5, 5)  # no sum of these is near zero, where a rounding would tell
    found = torch.compile(f, fullgraph=True, backend=backend)(x)
    assert torch.allclose(found[0], x.sin() * x * x)
    assert torch.allclose(found[1], x.sin() * x)


@pytest.mark.parametrize("backend", COMPILERS)
def test_returns_of_both_kinds(route, backend):
    def f(x):
        y, out = torch.sin(x), torch.empty_like(x)
        a, b, c = route(ow.ops.torch_returned.both.default)(y, x, out=out, k=3)
        return a, b, c, y, out

    torch._dynamo.reset()
    x = torch.linspace(0.5, 1.5, 5)  # no sum of these is near zero, where a rounding would tell
    a = x.sin() * x
    expected = (a, a + x, 3 * a, a, 3 * a)
    assert all(map(torch.allclose, f(x), expected))
    ow.register_fake(f"{NS}::both", lambda x, y, *, out, k=2: (x, torch.empty_like(x), out))
    assert all(map(torch.allclose, torch.compile(f, fullgraph=True, backend=backend)(x), expected))


def test_the_stand_in_is_not_there_in_eager_calls(route):
    ran = []
    stand_in = lowered_of(scale_._record).stand_in
    kernel = stand_in.record.kernels[0]
    original = kernel.fn
    kernel.fn = lambda *args, **kwargs: (ran.append(1), original(*args, **kwargs))[1]
    stand_in.cache.clear()
    x = torch.ones(2)
    assert route(scale_)(x, x) is x
    assert not ran
    kernel.fn = original
    stand_in.cache.clear()


def test_it_goes_with_its_operator():
    library = ow.Library(NS, "FRAGMENT")
    library.define("short_(Tensor(a!) x) -> Tensor(a!)")
    library.impl("short_", lambda x: x.add_(1), "CPU")
    assert hasattr(torch.ops.torch_returned, "opwright_mutate_of_short_")
    library.destroy()
    assert not hasattr(torch.ops.torch_returned, "opwright_mutate_of_short_")


def test_a_program_that_is_exported(route):
    class Module(torch.nn.Module):
        def forward(self, x):
            z = torch.sin(x)
            route(scale_)(z[1:], x[1:])
            return z

    x = torch.randn(4)
    expected = torch.cat([x.sin()[:1], (x.sin() * x)[1:]])
    program = torch.export.export(Module(), (x,), strict=False).run_decompositions({})
    assert torch.allclose(program.module()(x), expected)
