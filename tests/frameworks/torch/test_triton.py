"""A ``triton_op`` under torch's tracers, without a GPU: graphs are looked at, kernels are not run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs the package triton")

from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import opwright as ow  # noqa: E402
import triton_kernels as kernels  # noqa: E402
from opwright.errors import UnsupportedError  # noqa: E402
from opwright.frameworks.torch import private  # noqa: E402

pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def launches(graph):
    """Return the launches in a graph: the form, the tensors that are copied first, and the arguments."""
    return [
        (
            node.target.__name__,
            node.kwargs.get("tensors_to_clone"),
            node.kwargs["kwargs"],
            node.kwargs["grid"],
        )
        for node in graph.nodes
        if "triton_kernel_wrapper" in getattr(node.target, "__name__", "")
    ]


def calls(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


@pytest.fixture
def compile_only():
    """Return a function that compiles a call and returns the graphs, whose results are zeros."""

    def run(function, *args, dynamic=None):
        graphs = []

        def compiler(module, _):
            graphs.append(module.graph)
            (outputs,) = next(node for node in module.graph.nodes if node.op == "output").args
            metas = [None if node is None else node.meta["val"] for node in outputs]
            shapes = [None if meta is None else [int(size) for size in meta.shape] for meta in metas]
            return lambda *_: [None if shape is None else torch.zeros(shape) for shape in shapes]

        torch._dynamo.reset()
        backend = aot_autograd(fw_compiler=compiler)
        torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)(*args)
        torch._dynamo.reset()
        return graphs

    return run


@pytest.fixture
def add(ns):
    @ow.triton_op(f"{ns}::add", mutates_args=())
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = out.numel()
        ow.wrap_triton(kernels.add)[blocks](x, y, out, n, BLOCK=16)
        return out

    return add


def test_row_109_the_body_replaces_the_operator_in_compiled_code(add, ns, compile_only):
    (graph,) = compile_only(lambda x, y: add(x, y) * 2, torch.randn(40), torch.randn(40))
    ((form, cloned, arguments, grid),) = launches(graph)
    assert form == "triton_kernel_wrapper_functional"
    assert cloned == ["out"]
    assert arguments["n"] == 40
    assert arguments["BLOCK"] == 16
    assert grid == [(3, 1, 1)]
    assert not [call for call in calls(graph) if ns in call]


def test_row_110_sizes_may_be_symbolic(add, compile_only):
    def both(x, y):
        return add(x, y)

    torch._dynamo.reset()
    graphs = []

    def compiler(module, _):
        graphs.append(module.graph)
        return lambda *args: [torch.zeros(args[1].shape)]

    compiled = torch.compile(both, fullgraph=True, backend=aot_autograd(fw_compiler=compiler), dynamic=True)
    for n in (40, 50, 60):
        assert compiled(torch.randn(n), torch.randn(n)).shape == (n,)
    torch._dynamo.reset()
    assert len(graphs) == 1
    ((_, cloned, arguments, _),) = launches(graphs[0])
    assert cloned == ["out"]
    assert isinstance(arguments["n"], torch.fx.Node)


def test_heuristics_and_configs_in_any_order(ns, compile_only):
    @ow.triton_op(f"{ns}::all", mutates_args=())
    def every(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for kernel in (kernels.tuned, kernels.tuned_outside, kernels.computed, kernels.tuned_inside):
            ow.wrap_triton(kernel)[blocks](x, out, out.numel())
        return out

    (graph,) = compile_only(every, torch.randn(64))
    found = launches(graph)
    assert [cloned for _, cloned, _, _ in found] == [["out"]] * 4
    assert found[2][2]["BLOCK"] == 32
    assert found[2][2]["EVEN"] is True
    assert found[0][3] == [(2, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("name", ["tuned", "tuned_outside", "computed", "tuned_inside"])
def test_values_that_depend_on_symbolic_sizes_are_guarded_on(ns, name):
    @ow.triton_op(f"{ns}::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        ow.wrap_triton(getattr(kernels, name))[blocks](x, out, out.numel())
        return out

    graphs = []

    def compiler(module, _):
        graphs.append(module.graph)
        return lambda *args: [torch.zeros(args[1].shape)]

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler)
    compiled = torch.compile(lambda x: op(x), fullgraph=True, backend=backend, dynamic=True)
    for n in (100, 200, 333):
        compiled(torch.randn(n))
    torch._dynamo.reset()
    assert len(graphs) == 1
    ((_, _, arguments, _),) = launches(graphs[0])
    assert isinstance(arguments["n"], torch.fx.Node)
    assert all(arguments[name] is False for name in {"EVEN"} & {*arguments})


def test_row_110_subclasses_reach_the_dispatcher_in_compiled_code(ns):
    from torch.testing._internal.two_tensor import TwoTensor

    @ow.custom_op(f"{ns}::add", mutates_args=())
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    add.register_fake(lambda x, y: ow.empty_like(x))
    x, y = torch.randn(4), torch.randn(4)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: add(a, b) * 2, fullgraph=True, backend="aot_eager")
    out = compiled(TwoTensor(x, y), TwoTensor(y, x))
    assert torch.equal(out.a, (x + y) * 2)


def test_mutated_arguments_are_functionalised(ns, compile_only):
    @ow.triton_op(f"{ns}::double_", mutates_args=("x",))
    def double_(x: torch.Tensor) -> None:
        ow.wrap_triton(kernels.in_place)[blocks](x, x.numel(), BLOCK=16)

    @ow.triton_op(f"{ns}::both", mutates_args=("out",))
    def both(x: torch.Tensor, out: torch.Tensor) -> None:
        double_(out)
        ow.wrap_triton(kernels.add)[blocks](x, out, out, out.numel(), BLOCK=16)

    def function(x):
        y = x.sin()
        both(x, y)
        return y

    (graph,) = compile_only(function, torch.randn(40))
    assert [cloned for _, cloned, _, _ in launches(graph)] == [["x"], ["out"]]


def test_an_analysis_that_fails_is_an_error_not_everything(ns, compile_only):
    def op(name, **kwargs):
        @ow.triton_op(f"{ns}::{name}", mutates_args=())
        def op(table: torch.Tensor) -> torch.Tensor:
            ow.wrap_triton(kernels.loaded_address, **kwargs)[(1,)](table, 0)
            return table.clone()

        return op

    table = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(
        Exception, match="what Triton kernel loaded_address writes to cannot be told"
    ) as error:
        compile_only(op("open"), table)
    assert isinstance(error.value.__cause__ or error.value, UnsupportedError) or "UnsupportedError" in str(
        error.value
    )
    (graph,) = compile_only(op("declared", writes=("table",)), table)
    assert [cloned for _, cloned, _, _ in launches(graph)] == [["table"]]


def test_a_declaration_where_torch_cannot_be_told(add, ns, compile_only, monkeypatch):
    monkeypatch.setattr(private, "functionalisation", lambda: None)

    @ow.triton_op(f"{ns}::declared", mutates_args=())
    def declared(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        ow.wrap_triton(kernels.add, writes=("out",))[(1,)](x, x, out, 8, BLOCK=16)
        return out

    with pytest.raises(Exception, match="cannot be told what Triton kernel add writes"):
        compile_only(declared, torch.zeros(8))


def test_row_112_make_fx_keeps_the_operator_and_traces_a_plain_function(add, ns):
    x = torch.randn(40)
    for mode in ("fake", "symbolic"):
        assert calls(make_fx(add, tracing_mode=mode)(x, x).graph) == [f"{ns}.add.default"]

    def function(x, y):
        out = torch.empty_like(x)
        ow.wrap_triton(kernels.add)[(3,)](x, y, out, 40, 16, num_warps=8)
        return out

    for mode in ("fake", "symbolic"):
        ((form, cloned, arguments, _),) = launches(make_fx(function, tracing_mode=mode)(x, x).graph)
        assert form == "triton_kernel_wrapper_mutation"
        assert cloned is None
        assert arguments["BLOCK"] == 16


def test_row_108_fakes_and_meta_tensors_run_the_body_without_a_launch(add):
    meta = add(torch.empty(3, device="meta"), torch.empty(3, device="meta"))
    assert meta.is_meta
    assert meta.shape == (3,)
    with torch._subclasses.FakeTensorMode():
        assert add(torch.empty(3), torch.empty(3)).shape == (3,)
    assert add(ow.FakeArray((3,), "float32"), ow.FakeArray((3,), "float32")).shape == (3,)


def test_an_exported_program_keeps_the_operator(add, ns):
    module = type("Module", (torch.nn.Module,), {"forward": lambda self, x, y: add(x, y)})()
    for strict in (True, False):
        program = torch.export.export(module, (torch.zeros(4), torch.zeros(4)), strict=strict)
        assert calls(program.graph) == [f"{ns}.add.default"]


def test_another_kernel_for_the_device_keeps_the_operator_opaque(add, ns, compile_only):
    add.register_kernel("cpu")(lambda x, y: x + y)
    (graph,) = compile_only(lambda x, y: add(x, y) * 2, torch.randn(40), torch.randn(40))
    assert f"{ns}.add.default" in calls(graph)
    assert launches(graph) == []
    x = torch.randn(3)
    assert torch.equal(torch.compile(add, fullgraph=True, backend="aot_eager")(x, x), 2 * x)


def test_an_author_may_say_what_functionalisation_does(add, ns, compile_only):
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    @add.register_torch_dispatch(FunctionalTensorMode)
    def rule(mode, func, types, args, kwargs):
        with mode:
            return torch.add(*args)

    (graph,) = compile_only(lambda x, y: add(x, y), torch.randn(4), torch.randn(4))
    assert calls(graph) == ["aten.add.Tensor"]


def test_gradients_trace_the_kernels_of_the_backward(add, compile_only):
    @add.register_autograd
    def backward(ctx, grad):
        return add(grad, grad), grad

    graphs = compile_only(lambda x, y: add(x, y), torch.randn(4, requires_grad=True), torch.randn(4))
    assert len(launches(graphs[0])) == 1


def test_the_code_of_the_kernels_is_part_of_what_torch_caches_by(add, ns):
    table = torch._library.triton.triton_ops_to_kernels
    assert table[f"{ns}::add"] == [kernels.add]
