"""Fakes: FakeTensors and meta tensors, layouts of NumPy kernels, and what is said where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import opwright as ow
from opwright.errors import MissingRuleError, OutputError, UnsupportedError

NS = "torch_fake"


@ow.custom_op(f"{NS}::copy", mutates_args=())
def copy(x: np.ndarray) -> np.ndarray:
    return x.copy()


@ow.custom_op(f"{NS}::write", mutates_args={"x"})
def write(x: np.ndarray) -> None:
    x += 1


@pytest.fixture(params=["operator", "torch.ops"])
def route(request):
    if request.param == "operator":
        return lambda op: op
    return lambda op: getattr(torch.ops.torch_fake, op.name.partition("::")[2])


@pytest.fixture(params=["fake", "meta"])
def tensor(request):
    def make(x):
        return (
            FakeTensorMode(allow_non_fake_inputs=True).from_tensor(x)
            if request.param == "fake"
            else x.to("meta")
        )

    return make


def test_no_fake(route, tensor):
    with pytest.raises(MissingRuleError) as error:
        route(copy)(tensor(torch.ones(2)))
    assert str(error.value) == (
        f"{NS}::copy was called with fake inputs and no fake impl is registered for it\n"
        "  expected: a function from the metadata of its inputs to that of its outputs; "
        "torch.compile, torch.export "
        "and meta tensors need it\n"
        f"  registered at: {copy._record.source}\n"
        f"  to fix: add one: @opwright.register_fake('{NS}::copy')"
    )


def test_no_fake_under_compile(route):
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="no fake impl is registered"):
        torch.compile(lambda x: route(copy)(x), fullgraph=True, backend="aot_eager")(torch.ones(2))


def test_an_operator_that_returns_nothing_has_one(route, tensor):
    x = tensor(torch.ones(2))
    assert route(write)(x) is None


@pytest.mark.parametrize("returned", [lambda x: (x.clone(),), lambda x: None, lambda x: 3])
def test_a_fake_that_does_not_fit(route, tensor, returned):
    handle = ow.register_fake(copy, returned)
    with pytest.raises(OutputError) as error:
        route(copy)(tensor(torch.ones(2)))
    lines = str(error.value).splitlines()
    assert lines[:2] == [
        f"the fake of {NS}::copy returned something else than its schema says",
        f"  expected: {NS}::copy(Tensor x) -> Tensor",
    ]
    assert lines[3] == f"  registered at: {handle.source}"
    handle.destroy()


def test_outputs_of_a_numpy_kernel_are_contiguous(route, tensor):
    handle = ow.register_fake(copy, lambda x: torch.empty_like(x))
    transposed = torch.ones(2, 3).T
    assert route(copy)(tensor(transposed)).stride() == (2, 1)
    assert route(copy)(transposed).stride() == (2, 1)
    handle.destroy()


def test_the_fake_of_a_torch_kernel_is_used_as_given(tensor):
    @ow.custom_op(f"{NS}::keep", mutates_args=())
    def keep(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    keep.register_fake(lambda x: torch.empty_like(x))
    transposed = torch.ones(2, 3).T
    assert keep(tensor(transposed)).stride() == (1, 3)
    assert keep(transposed).stride() == (1, 3)


def _refused(op, *args):
    for _ in range(3):
        with pytest.raises(UnsupportedError) as caught:
            op(*args)
        lines = str(caught.value).splitlines()
        assert lines.pop(2).startswith(f"  registered at: {__file__}:")
        assert lines == [
            f"{op.name} was called with tensors on cpu and meta",
            "  expected: tensors on meta alone, or none there: meta tensors have no data to compute with",
            "  to fix: move them to one device",
        ]


def test_an_output_with_data_of_a_call_with_meta_tensors_is_refused():
    @ow.custom_op(f"{NS}::mixed", mutates_args=())
    def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    mixed.register_fake(lambda x, y: torch.empty_like(x))
    x, y = torch.ones(2), torch.ones(2, device="meta")
    _refused(mixed, x, y)
    _refused(mixed, torch.tensor(1.0), y)
    assert mixed(x, x).tolist() == [2, 2]
    _refused(mixed, x, y)
    assert mixed(y, y).is_meta
    assert mixed(y, torch.tensor(1.0)).is_meta
    with FakeTensorMode() as mode:
        assert mixed(mode.from_tensor(x), mode.from_tensor(x)).device.type == "cpu"


def test_an_argument_with_data_that_a_call_with_meta_tensors_would_mutate_is_refused():
    @ow.custom_op(f"{NS}::mixed_", mutates_args=("x",))
    def mixed_(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y)

    x, y = torch.ones(2), torch.ones(2, device="meta")
    _refused(mixed_, x, y)
    assert mixed_(y, x) is None
    mixed_(x, x)
    assert x.tolist() == [2, 2]


def _defined(lib: ow.Library) -> dict[str, str]:
    """Return operators by name, whose kernel for every device is also what runs without data."""
    ns = lib.ns
    for name in ("library", "legacy", "kernel", "select"):
        lib.define(f"{name}(Tensor x, float factor=2.0) -> Tensor")

    def double(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor

    lib.impl("library", double, "CompositeExplicitAutograd")
    ow.impl(f"{ns}::legacy", "default", double, lib=lib)
    ow.register_kernel(f"{ns}::kernel", None, double, lib=lib)
    lib.impl("select", double, "BackendSelect")
    return {name: f"{ns}::{name}" for name in ("library", "legacy", "kernel", "select")}


@pytest.mark.parametrize("name", ["library", "legacy", "kernel", "select"])
def test_a_kernel_for_every_device_is_its_own_fake(ns: str, name: str) -> None:
    with ow.Library(ns, "FRAGMENT") as lib:
        _defined(lib)
        op = getattr(getattr(torch.ops, ns), name)
        assert op(torch.ones(3, device="meta")).shape == (3,)
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: op(x) + 1, backend="aot_eager", fullgraph=True, dynamic=True)
        assert compiled(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]
        program = torch.export.export(_Calls(op.default), (torch.ones(2),))
        assert program.module()(torch.ones(2)).tolist() == [2.0, 2.0]
        graph = make_fx(op, tracing_mode="symbolic")(torch.ones(2))
        assert op.default in [node.target for node in graph.graph.nodes]
        ow.register_fake(f"{ns}::{name}", lambda x, factor=2.0: x.new_empty(7), lib=lib)
        assert op(torch.ones(3, device="meta")).shape == ((3,) if name == "select" else (7,))


class _Calls(torch.nn.Module):
    def __init__(self, op: object) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x)


def test_what_a_decorator_defined_needs_a_fake(ns: str) -> None:
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    ow.register_kernel(f, None, lambda x: x * 3)
    with pytest.raises(MissingRuleError, match="no fake impl is registered for it"):
        f(torch.ones(3, device="meta"))


def test_a_kernel_of_numpy_is_no_fake(ns: str) -> None:
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x * 2, "CompositeExplicitAutograd", flavour="numpy")
        with pytest.raises(MissingRuleError, match="no fake impl is registered for it"):
            getattr(torch.ops, ns).f(torch.ones(3, device="meta"))
