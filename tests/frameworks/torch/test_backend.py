"""The backend kernel: devices, outputs that do not fit, enumerations, and Dynamo kept out."""

from __future__ import annotations

import contextlib
import enum
from typing import Literal, Optional

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import opwright as ow
from opwright.errors import ArgumentError, NoKernelError, OutputError
from opwright.frameworks.torch import backend
from opwright.frameworks.torch.lowered import lowered_of

NS = "torch_backend"
BODY = [None]


@ow.custom_op(f"{NS}::one", mutates_args=())
def one(x: Tensor) -> Tensor:
    return BODY[0](x)


@ow.custom_op(f"{NS}::several", mutates_args=())
def several(x: Tensor) -> tuple[Tensor, list[Tensor], Optional[Tensor], int]:
    return BODY[0](x)


@ow.custom_op(f"{NS}::nothing", mutates_args=())
def nothing(x: Tensor) -> None:
    return BODY[0](x)


@pytest.fixture(params=["operator", "torch.ops"])
def route(request):
    if request.param == "operator":
        return lambda op: op
    return lambda op: getattr(torch.ops.torch_backend, op.name.partition("::")[2])


@pytest.mark.parametrize(
    ("op", "body", "expected", "got"),
    [
        (one, lambda x: None, "a tensor", "NoneType"),
        (one, lambda x: (x,), "a tensor", "tuple of 1 (torch.Tensor)"),
        (nothing, lambda x: 3, "None", "int"),
    ],
)
def test_outputs_that_do_not_fit(route, op, body, expected, got):
    BODY[0] = body
    for _ in range(2):
        with pytest.raises(OutputError) as error:
            route(op)(torch.ones(2))
        lines = str(error.value).splitlines()
        assert lines[0] == f"kernel of {op.name} returned something else than its schema says"
        assert lines[1].endswith(f": {op.schema}")
        assert lines[2:] == [f"  got: {got}", f"  registered at: {op._record.source}"]


@pytest.mark.parametrize(
    "body",
    [
        lambda x: (x + 1, [x + 2], None),
        lambda x: (x + 1, x + 2, None, 3),
        lambda x: (x + 1, [x + 2], 5, 3),
        lambda x: x + 1,
    ],
)
def test_several_outputs_that_do_not_fit(route, body):
    BODY[0] = body
    for _ in range(2):
        with pytest.raises(OutputError, match="returned something else than its schema says"):
            route(several)(torch.ones(2))


def test_several_outputs(route):
    BODY[0] = lambda x: (x + 1, [x + 2, x + 3], None, 7)
    for _ in range(2):
        first, rest, missing, number = route(several)(torch.zeros(1))
        assert (first.item(), [t.item() for t in rest], missing, number) == (1, [2, 3], None, 7)
    BODY[0] = lambda x: [x + 1, (x + 2,), x + 4, 7]
    first, rest, there, number = route(several)(torch.zeros(1))
    assert (first.item(), [t.item() for t in rest], there.item(), number) == (1, [2], 4, 7)


class Mode(enum.Enum):
    UP = "up"
    DOWN = "down"


def test_literals_and_enumerations(route):
    seen = []

    @ow.custom_op(f"{NS}::choices", mutates_args=())
    def op(x: Tensor, mode: Mode, way: Literal["a", "b"] = "a") -> Tensor:
        seen.append((mode, way))
        return x.clone()

    call = route(op)
    given = (Mode.UP, "up") if call is op else ("up",)
    for mode in given:
        call(torch.ones(1), mode)
        call(torch.ones(1), mode, "b")
        assert seen == [(Mode.UP, "a"), (Mode.UP, "b")]
        seen.clear()
    with pytest.raises(ArgumentError, match="argument mode is not among its choices"):
        call(torch.ones(1), "sideways")


def test_no_kernel_for_a_device(route):
    @ow.custom_op(f"{NS}::only_cuda", mutates_args=(), device_types="cuda")
    def op(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(NoKernelError) as error:
        route(op)(torch.ones(2))
    assert str(error.value) == (
        f"{NS}::only_cuda has no kernel for torch arrays on cpu\n"
        f"  expected: kernels for cuda (torch, {op._record.source})\n"
        "  got: torch arrays on cpu\n"
        f"  registered at: {op._record.source}\n"
        f"  to fix: register one: @opwright.register_kernel('{NS}::only_cuda', 'cpu')"
    )


def test_optional_tensors_and_empty_lists(route):
    @ow.custom_op(f"{NS}::maybe", mutates_args=())
    def op(x: Optional[Tensor] = None, n: int = 2) -> Tensor:
        return torch.ones(n) if x is None else x.clone()

    @ow.custom_op(f"{NS}::total", mutates_args=())
    def total(xs: list[Tensor]) -> Tensor:
        return torch.stack(xs).sum(0) if xs else torch.zeros(1)

    call = route(op)
    for _ in range(2):
        assert torch.equal(call(), torch.ones(2))
        assert torch.equal(call(None, 3), torch.ones(3))
        assert torch.equal(call(torch.zeros(1)), torch.zeros(1))
        assert torch.equal(route(total)([]), torch.zeros(1))
        assert torch.equal(route(total)((torch.ones(1), torch.ones(1))), torch.full((1,), 2.0))


def test_dynamo_does_not_trace_kernels(route):
    traced = []

    @ow.custom_op(f"{NS}::opaque_to_dynamo", mutates_args=())
    def op(x: Tensor) -> Tensor:
        traced.append(torch.compiler.is_compiling())
        return x.sin()

    def f(x):
        torch._dynamo.graph_break()
        return route(op)(x) + 1

    torch._dynamo.reset()
    x = torch.ones(2)
    op.register_fake(lambda x: torch.empty_like(x))
    assert torch.allclose(torch.compile(f, backend="eager")(x), x.sin() + 1)
    assert not any(traced)


def test_torch_compile_inside_a_kernel(route):
    @ow.custom_op(f"{NS}::compiles", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.compile(lambda y: y.sin() + 1, backend="eager", fullgraph=True)(x)

    torch._dynamo.reset()
    assert torch.allclose(route(op)(torch.ones(2)), torch.ones(2).sin() + 1)


@pytest.mark.cuda
def test_the_device_of_the_tensors_is_current(route):
    seen = []

    @ow.custom_op(f"{NS}::current", mutates_args=())
    def op(x: Tensor) -> Tensor:
        seen.append(torch.cuda.current_device())
        return x + 1

    last = torch.cuda.device_count() - 1
    for _ in range(2):
        route(op)(torch.ones(2, device=f"cuda:{last}"))
        assert seen.pop() == last


class Devices:
    """Stands for ``torch.cpu`` on a machine that has several."""

    def __init__(self, count, current):
        self.count, self.current, self.entered = count, current, []

    def device_count(self):
        return self.count

    def current_device(self):
        return self.current

    def device(self, device):
        self.entered.append(device)
        return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("count", "current", "entered"),
    [(1, 1, []), (2, -1, []), (2, None, []), (2, 1, [torch.device("cpu")])],
    ids=["one device", "current, as its number", "current, as its index", "another is current"],
)
def test_the_device_of_the_tensors_is_made_current_where_there_are_several(
    monkeypatch, count, current, entered
):
    devices = Devices(count, current)
    monkeypatch.setattr(torch, "cpu", devices)
    run = backend._on_device(lowered_of(one._record), "cpu", lambda flat: flat[0] + 1)
    assert run((torch.ones(2),)).tolist() == [2.0, 2.0]
    assert devices.entered == entered


def test_a_kernel_for_all_devices_is_looked_up_once_where_none_has_to_be_made_current(monkeypatch):
    for several, kept in ((False, True), (True, False)):
        monkeypatch.setattr(backend, "several_devices", lambda several=several: several)
        op = ow.custom_op(f"{NS}::kept", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
        assert torch.ops.torch_backend.kept(torch.ones(2)).tolist() == [2.0, 2.0]
        assert ("run" in lowered_of(op._record).cache) == kept


def test_meta_tensors_first_leave_nothing_to_run_on_others():
    op = ow.custom_op(f"{NS}::meta", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(lambda x: torch.empty_like(x))
    assert torch.ops.torch_backend.meta(torch.ones(2, device="meta")).is_meta
    assert torch.ops.torch_backend.meta(torch.ones(2)).tolist() == [2.0, 2.0]


def _undefined(lib, name, key, backward=lambda ctx, grad, _: 2 * ctx.saved_tensors[0] * grad):
    """Define an operator whose second output is None, with a fake and a gradient."""

    def setup_context(ctx, inputs, output):
        assert output[1] is None
        ctx.save_for_backward(*inputs)

    lib.define(f"{name}(Tensor x) -> (Tensor, Tensor)")
    lib.impl(name, lambda x: (x * x, None), key)
    ow.register_fake(f"{lib.ns}::{name}", lambda x: (torch.empty_like(x), None), lib=lib)
    ow.register_autograd(f"{lib.ns}::{name}", backward, setup_context=setup_context, lib=lib)
    return getattr(getattr(ow.ops, lib.ns), name).default, getattr(getattr(torch.ops, lib.ns), name)


@pytest.mark.filterwarnings("ignore:.*has no vmap rule:UserWarning")
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd"])
def test_none_for_one_of_several_outputs_of_impl(ns, key, once):
    with ow.Library(ns, "FRAGMENT") as lib:
        options = (once_differentiable(lambda ctx, grad, _: 2 * ctx.saved_tensors[0] * grad),) if once else ()
        for op in _undefined(lib, "f", key, *options):
            torch._dynamo.reset()
            compiled = torch.compile(lambda x, op=op: op(x), backend="aot_eager", fullgraph=True)
            for call in (op, op, compiled):
                x = torch.tensor([1.0, 3.0], requires_grad=True)
                out, none = call(x)
                assert none is None
                assert torch.autograd.grad(out.sum(), x)[0].tolist() == [2.0, 6.0]
                assert call(x.detach())[0].tolist() == [1.0, 9.0]
            assert op(torch.empty(2, device="meta"))[1] is None
            assert torch.vmap(lambda x, op=op: op(x)[0])(x.detach()).tolist() == [1.0, 9.0]
            gradient = torch.func.grad(lambda x, op=op: op(x)[0].sum())
            assert gradient(x.detach()).tolist() == [2.0, 6.0]
            if not once:
                _, tangent = torch.func.jvp(lambda x, op=op: op(x)[0], (x.detach(),), (torch.ones(2),))
                assert tangent.tolist() == [2.0, 6.0]


@pytest.mark.parametrize(
    ("returns", "out"),
    [("Tensor", None), ("Tensor[]", [None]), ("(Tensor, Tensor[])", (torch.ones(1), None))],
)
def test_none_for_the_only_output_or_a_list_is_refused(ns, returns, out):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define(f"f(Tensor x) -> {returns}")
        lib.impl("f", lambda x: out, "CPU")
        for op in (getattr(ow.ops, ns).f.default, getattr(torch.ops, ns).f):
            with pytest.raises(OutputError, match="returned something else than its schema says"):
                op(torch.ones(1))


def test_none_is_refused_where_a_decorator_defined(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, None

    with pytest.raises(OutputError, match="a tensor as output 1"):
        f(torch.ones(1))


def test_none_of_a_numpy_kernel_is_refused(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> (Tensor, Tensor)", flavour="numpy")
        lib.impl("f", lambda x: (x * 2, None), "CPU")
        with pytest.raises(OutputError, match="returned something else than its schema says"):
            getattr(ow.ops, ns).f(torch.ones(1))
