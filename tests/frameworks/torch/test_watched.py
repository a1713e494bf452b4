"""What something else registers with torch.library for an operator of ours holds for every way to call it."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

import opwright as ow
from opwright.frameworks.torch import fast, private, watched

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")


def make(ns: str) -> Any:
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
        return x * k

    f.register_fake(lambda x, k=2.0: torch.empty_like(x))
    return f


def calls(f: Any) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the ways to write one call."""
    native = getattr(torch.ops, f.name.partition("::")[0]).f
    return {
        "default": lambda x: f(x),
        "position": lambda x: f(x, 2.0),
        "keyword": lambda x: f(x, k=2.0),
        "all keywords": lambda x: f(k=2.0, x=x),
        "torch.ops": lambda x: native(x, 2.0),
        "compiled": torch.compile(lambda x: f(x), backend="aot_eager", fullgraph=True),
    }


def reason(f: Any) -> str | None:
    return fast.reason_against(f._record)


@pytest.fixture(params=["before", "after"])
def called(request: pytest.FixtureRequest, ns: str) -> Any:
    torch._dynamo.reset()
    f = make(ns)
    assert reason(f) is None
    if request.param == "after":
        for name, call in calls(f).items():
            assert call(torch.ones(1)).item() == 2.0
            assert name == "compiled" or call(torch.ones(1, requires_grad=True)).item() == 2.0
    return f


def test_a_kernel(called: Any) -> None:
    torch.library.register_kernel(called.name, "cpu", lambda x, k=2.0: x * k + 1)
    assert {call(torch.ones(1)).item() for call in calls(called).values()} == {3.0}
    assert reason(called) == "something else registered a kernel for CPU with torch.library"


def test_a_kernel_by_a_library(called: Any) -> None:
    library = torch.library.Library(called.name.partition("::")[0], "IMPL")
    library.impl("f", lambda x, k=2.0: x * k + 1, "CPU")
    assert {call(torch.ones(1)).item() for call in calls(called).values()} == {3.0}
    library._destroy()
    assert {call(torch.ones(1)).item() for call in calls(called).values()} == {2.0}


def test_a_gradient(called: Any) -> None:
    torch.library.register_autograd(called.name, lambda ctx, grad: (grad * 7, None))
    for name, call in calls(called).items():
        x = torch.ones(1, requires_grad=True)
        assert torch.autograd.grad(call(x), x)[0].item() == 7.0, name


def test_autocast(called: Any) -> None:
    torch.library.register_autocast(called.name, "cpu", torch.bfloat16)
    for name, call in calls(called).items():
        assert call(torch.ones(1)).dtype is torch.float32, name
        with torch.autocast("cpu", torch.bfloat16):
            assert call(torch.ones(1)).dtype is torch.bfloat16, name


def test_a_kernel_that_is_there_before_the_operator(ns: str) -> None:
    library = torch.library.Library(ns, "IMPL")
    library.impl("f", lambda x, k=2.0: x * k + 1, "CPU")
    f = make(ns)
    assert {call(torch.ones(1)).item() for call in calls(f).values()} == {3.0}
    library._destroy()


def test_what_a_plain_call_never_reaches_leaves_it_direct(called: Any) -> None:
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        pass

    nine = torch.full((1,), 9.0)
    torch.library.register_fake(called.name, lambda x, k=2.0: x.new_empty(5))
    torch.library.register_vmap(called.name, lambda info, dims, x, k=2.0: (x * 10, dims[0]))
    torch.library.register_torch_dispatch(called.name, Mode, lambda *_: nine)
    assert reason(called) is None
    for name, call in calls(called).items():
        if name != "compiled":
            assert call(torch.ones(1, device="meta")).shape == (5,), name
            assert torch.func.vmap(call)(torch.ones(2)).tolist() == [10.0, 10.0], name
            x = torch.ones(1)
            with Mode():
                out = call(x)
            assert out.item() == 9.0, name


def test_our_own_registrations_leave_it_direct(ns: str) -> None:
    f = make(ns)
    ow.register_kernel(f, "cpu", lambda x, k=2.0: x * k + 1)
    ow.register_autograd(f, lambda ctx, grad: (grad * 7, None))
    ow.register_vmap(f, lambda info, dims, x, k=2.0: (x * 10, dims[0]))
    ow.register_autocast(f, "cpu", torch.bfloat16)
    assert reason(f) is None
    assert make(ns)(torch.ones(1)).item() == 2.0  # defined anew
    assert not any(name.startswith(f"{ns}::") for name in watched.covered)


def test_an_operator_of_torchs_own_is_none_of_ours(ns: str) -> None:
    with torch.library._scoped_library(ns, "FRAGMENT") as library:
        library.define("g(Tensor x) -> Tensor")
        library.impl("g", lambda x: x * 2, "CPU")
        assert getattr(torch.ops, ns).g(torch.ones(1)).item() == 2.0


def test_the_set_goes_on_as_torchs_own() -> None:
    before = {"a/f/CPU", "a/g/CPU"}
    kernels = watched.Registrations(before)
    assert "a/f/CPU" in kernels
    assert len(kernels) == 2
    before -= {"a/f/CPU"}  # the end of a library that was made before
    assert "a/f/CPU" not in kernels
    kernels.add("a/f/CPU")
    assert "a/f/CPU" in kernels
    kernels -= {"a/f/CPU", "a/g/CPU"}
    assert "a/g/CPU" not in kernels
    assert isinstance(kernels, watched.Registrations)
    for name in ("a::f.default", "a::g.default"):
        del watched.covered[name]


def test_a_library_that_is_collected_takes_its_kernel_along(ns: str) -> None:
    f = make(ns)
    library = torch.library.Library(ns, "IMPL")
    library.impl("f", lambda x, k=2.0: x * k + 1, "CPU")
    assert f"{ns}/f/CPU" in torch.library._impls
    assert f(torch.ones(1)).item() == 3.0
    del library
    gc.collect()
    assert f"{ns}/f/CPU" not in torch.library._impls
    assert f(torch.ones(1)).item() == 2.0


def test_without_such_a_set_calls_go_through_torch(monkeypatch: pytest.MonkeyPatch, ns: str) -> None:
    with monkeypatch.context() as without:
        without.delattr(torch.library, "_impls")
        assert not private.watch_registrations(watched.Registrations)
        why = watched._start()
    monkeypatch.setattr(watched, "UNAVAILABLE", why)
    f = make(ns)
    assert reason(f) == "this torch does not say which kernels others register"


def test_a_release_that_notes_kernels_elsewhere_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.library.Library, "impl", lambda *args, **kwargs: None)
    monkeypatch.setattr(torch.library, "_impls", set())
    assert watched._start() == "this torch does not note kernels where it did"


KERNEL_FIRST = """
import torch
kernels = torch.library.Library("early", "IMPL")
kernels.impl("f", lambda x: x + 1, "CPU")
import opwright as ow
f = ow.custom_op("early::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
assert f(torch.ones(1)).item() == f(torch.ones(1)).item() == torch.ops.early.f(torch.ones(1)).item() == 2.0
kernels.impl("f", lambda x: x + 4, "CPU", allow_override=True)
assert f(torch.ones(1)).item() == 5.0
"""


def test_a_kernel_that_is_there_before_opwright() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", KERNEL_FIRST], check=True, timeout=120)
