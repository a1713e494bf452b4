"""What the integration tests of torch pin down about operators under its compiler: rows 83 and 113 to 116."""

from __future__ import annotations

import io
from typing import Optional

import pytest
import torch
from torch import Tensor

import opwright as ow

# Draft export leaves its log to the garbage collector, which may come at any time later.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def native(op):
    namespace, _, name = op.name.partition("::")
    return getattr(getattr(torch.ops, namespace), name).default


def calls(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


@pytest.fixture
def graphs():
    """A backend that keeps the graphs which Dynamo makes, and runs them."""
    torch._dynamo.reset()
    found = []

    def backend(module, _):
        found.append(module.graph)
        return module.forward

    yield found, backend
    torch._dynamo.reset()


def test_row_83_one_graph_break_that_names_the_operator(ns):
    @ow.custom_op(f"{ns}::nonzero", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.nonzero(x)

    op.register_fake(lambda x: x.new_empty((ow.get_ctx().new_dynamic_size(), x.dim()), dtype=torch.int64))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=False):
        explained = torch._dynamo.explain(lambda x: native(op)(x.sin()).cos())(torch.ones(3))
    torch._dynamo.reset()
    assert explained.graph_break_count == 1
    assert f"{ns}.nonzero" in explained.break_reasons[0].reason


@pytest.mark.parametrize("call", [lambda op: op, native], ids=["operator", "torch.ops"])
def test_row_113_a_kernel_is_not_traced_and_may_compile_itself(ns, graphs, call):
    found, backend = graphs

    @ow.custom_op(f"{ns}::op", mutates_args=())
    def op(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return torch.compile(lambda y: y.sin() + 1, backend="eager")(x)

    op.register_fake(torch.empty_like)
    x = torch.randn(3)
    compiled = torch.compile(lambda x: call(op)(x) * 2, fullgraph=True, backend=backend)
    assert torch.allclose(compiled(x), (x.sin() + 1) * 2)
    assert [calls(graph)[0] for graph in found] == [f"{ns}.op.default"]


def test_row_114_tagged_operators_stay_in_the_graph(ns, graphs):
    found, backend = graphs
    with ow.Library(ns, "FRAGMENT") as lib:
        for name, tags in (("kept", torch.Tag.pt2_compliant_tag), ("left", ())):
            lib.define(f"{name}(Tensor x) -> Tensor", tags=tags)
            lib.define(f"{name}.int(Tensor x, int k) -> Tensor", tags=tags)
            lib.impl(name, lambda x: x.clone(), "CompositeExplicitAutograd")
            lib.impl(f"{name}.int", lambda x, k: x * k, "CompositeExplicitAutograd")
            lib.impl(name, torch.empty_like, "Meta")
            lib.impl(f"{name}.int", lambda x, k: torch.empty_like(x), "Meta")
        ops, x = getattr(torch.ops, ns), torch.ones(3)
        with torch._dynamo.config.patch(only_allow_pt2_compliant_ops=True):
            compiled = torch.compile(
                lambda x: ops.kept(ops.kept(x, 3).sin()), fullgraph=True, backend=backend
            )
            assert torch.allclose(compiled(x), (x * 3).sin())
            assert len([call for call in calls(found[0]) if ns in call]) == 2
            with pytest.raises(torch._dynamo.exc.Unsupported, match="pt2"):
                torch.compile(lambda x: ops.left(x), fullgraph=True, backend=backend)(x)
        compiled = torch.compile(lambda x: ops.left(x, 2), fullgraph=True, backend=backend)
        assert torch.equal(compiled(x), x * 2)


def test_row_115_draft_export_infers_a_missing_fake(ns):
    from torch.export import draft_export

    @ow.custom_op(f"{ns}::op", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x * 2

    module = type("Module", (torch.nn.Module,), {"forward": lambda self, x: op(x) + 1})()
    x = torch.randn(3)
    program = draft_export(module, (x,))
    assert torch.allclose(program.module()(x), x * 2 + 1)
    assert f"{ns}.op.default" in str(program._report)


def test_row_115_draft_export_reports_a_wrong_fake(ns):
    from torch.export import draft_export

    @ow.custom_op(f"{ns}::op", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x * 2

    op.register_fake(lambda x: x.new_empty((x.shape[0] + 1,)))
    module = type("Module", (torch.nn.Module,), {"forward": lambda self, x: op(x).sum()})()
    program = draft_export(module, (torch.randn(3),))
    (failure,) = program._report.failures
    assert f"{ns}::op" in str(failure.data) or f"{ns}.op" in str(failure.data)


def test_row_116_lists_optionals_and_tuples_survive_serialization(ns):
    @ow.custom_op(f"{ns}::op", mutates_args=())
    def op(
        xs: list[Tensor], y: Optional[Tensor], ks: tuple[int, int], *, s: str = "a"
    ) -> tuple[Tensor, list[Tensor]]:
        out = sum(xs) * ks[0] + (0 if y is None else y)
        return out, [x * ks[1] for x in xs]

    op.register_fake(lambda xs, y, ks, *, s: (torch.empty_like(xs[0]), [torch.empty_like(x) for x in xs]))

    class Module(torch.nn.Module):
        def forward(self, x, y):
            a, bs = op([x, x + 1], y, (2, 3), s="b")
            c, _ = op([a], None, (4, 5))
            return c + bs[0], bs[1]

    x, y = torch.randn(3), torch.randn(3)
    program = torch.export.export(Module(), (x, y))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer)
    for found, expected in zip(loaded.module()(x, y), Module()(x, y), strict=True):
        assert torch.equal(found, expected)


def test_row_116_effectful_operators_keep_their_order(ns):
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    said = []

    def define(name):
        @ow.custom_op(f"{ns}::{name}", mutates_args=())
        def op(x: Tensor) -> Tensor:
            said.append(name)
            return x.clone()

        op.register_fake(torch.empty_like)
        return op

    first, second = define("first"), define("second")
    handles = [_register_effectful_op(native(op), _EffectType.ORDERED) for op in (first, second)]
    try:
        x = torch.ones(2)

        def function(x):
            second(x)
            first(x)
            return second(x)

        assert torch.equal(torch.compile(function, fullgraph=True, backend="aot_eager")(x), x)
        assert said == ["second", "first", "second"]
    finally:
        for handle in handles:
            if handle is not None:  # torch 2.9 has none, and forgets an operator that is gone
                handle.destroy()
