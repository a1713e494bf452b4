"""What the public tests of ``torch.library`` pin down about ``custom_op``, row by row."""

from __future__ import annotations

import logging
from typing import Optional

import numpy as np
import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.errors import AliasError, MissingRuleError, NoKernelError
from opwright.frameworks.torch import backend
from opwright.frameworks.torch.lowered import lowered_of

NS = "behaviours"
_count = 0


@pytest.fixture
def name():
    """A name that no other test uses."""
    global _count
    _count += 1
    return f"{NS}::op_{_count}"


def sin(name, **options):
    @ow.custom_op(name, mutates_args=(), **options)
    def op(x: Tensor) -> Tensor:
        return torch.sin(x)

    return op


def native(op):
    namespace, _, base = op.name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), op.overload)


def test_row_1_called_like_the_function(name):
    @ow.custom_op(name, mutates_args=())
    def add(x: Tensor, y: float) -> Tensor:
        return x + y

    x = torch.randn(3)
    assert torch.equal(add(x, 2.0), x + 2.0)
    assert torch.equal(add(x, y=2.0), x + 2.0)
    assert torch.equal(native(add)(x, 2.0), x + 2.0)


@pytest.mark.parametrize("given", [("x",), ["x"], {"x"}, frozenset({"x"}), (n for n in ["x"])])
def test_row_2_mutates_args_is_any_iterable(name, given):
    @ow.custom_op(name, mutates_args=given)
    def op(x: Tensor) -> None:
        x.add_(1)

    x = torch.zeros(3)
    op(x)
    assert torch.equal(x, torch.ones(3))
    assert str(native(op)._schema) == f"{name}(Tensor(a0!) x) -> ()"


def test_row_3_a_bare_string(name):
    with pytest.raises(ValueError, match="must either be a sequence of the names"):

        @ow.custom_op(name, mutates_args="x")
        def op(x: Tensor) -> None: ...


def test_row_4_unknown_marks_every_tensor(name):
    @ow.custom_op(name, mutates_args="unknown")
    def op(x: Tensor, y: Optional[Tensor], z: list[Tensor], k: int) -> None: ...

    assert str(op.schema) == f"{name}(Tensor(a0!) x, Tensor(a1!)? y, Tensor(a2!)[] z, SymInt k) -> ()"


def test_row_5_names_that_do_not_exist(name):
    with pytest.raises(ValueError, match="nope"):

        @ow.custom_op(name, mutates_args=("x", "nope"))
        def op(x: Tensor) -> None: ...


@pytest.mark.parametrize("direct", [True, False])
def test_row_6_version_counters_of_mutated_arguments(name, direct):
    @ow.custom_op(name, mutates_args=("x", "y", "xs", "ys"))
    def op(
        x: Tensor, y: Optional[Tensor], xs: list[Tensor], ys: list[Optional[Tensor]], other: Tensor
    ) -> None: ...

    call = op if direct else native(op)
    x, y, a, b, other = (torch.zeros(2) for _ in range(5))
    for number in range(1, 4):
        call(x, y, [a], [b, None], other)
        assert [t._version for t in (x, y, a, b)] == [number] * 4
        assert other._version == 0
    call(x, None, [], [None], other)
    assert (x._version, y._version) == (4, 3)


def test_row_7_a_mutated_optional_argument_left_out_and_by_keyword(name):
    @ow.custom_op(name, mutates_args=("y",))
    def op(x: Tensor, y: Optional[Tensor] = None) -> None:
        if y is not None:
            y.copy_(x)

    x, y = torch.ones(2), torch.zeros(2)
    for call in (op, native(op)):
        y.zero_()
        call(x)
        assert torch.equal(y, torch.zeros(2))
        call(x, y=y)
        assert torch.equal(y, x)


def test_row_8_no_warning_from_a_mutating_definition(name, recwarn):
    @ow.custom_op(name, mutates_args=("x",))
    def op(x: Tensor) -> None:
        x.add_(1)

    op(torch.zeros(2))
    native(op)(torch.zeros(2))
    assert not recwarn.list


def test_row_9_defaults_reach_the_kernel_as_written(name):
    seen = []

    @ow.custom_op(name, mutates_args=())
    def op(
        x: Tensor,
        a: Optional[int] = None,
        b: float = 3.14,
        c: bool = True,
        d: int = 3,
        e: str = "foo",
        f: torch.dtype = torch.float64,
        g: torch.device = torch.device("cpu"),  # noqa: B008  (a default of the schema)
        h: torch.device = "cpu",
    ) -> Tensor:
        seen.append((a, b, c, d, e, f, g, h))
        return x.clone()

    expected = (None, 3.14, True, 3, "foo", torch.float64, torch.device("cpu"), torch.device("cpu"))
    for call in (op, native(op), torch.compile(op, backend="aot_eager")):
        op.register_fake(lambda x, *rest: torch.empty_like(x))
        call(torch.zeros(2))
        assert seen.pop() == expected
    assert [a.default and a.default.value for a in op.schema.arguments] == [
        None, None, 3.14, True, 3, "foo", "float64", "cpu", "cpu",
    ]  # fmt: skip


def test_row_10_a_return_annotation_is_needed(name):
    with pytest.raises(ValueError, match="return"):

        @ow.custom_op(name, mutates_args=())
        def op(x: Tensor): ...

    @ow.custom_op(name, mutates_args=())
    def fine(x: Tensor) -> None: ...

    assert fine(torch.zeros(1)) is None


def test_row_12_a_schema_by_hand(name):
    @ow.custom_op(name, mutates_args={"x"}, schema="(Tensor(a!) x, int k) -> ()", flavour="torch")
    def op(x, k):
        x.add_(k)

    x = torch.zeros(2)
    op(x, 3)
    assert torch.equal(x, torch.full((2,), 3.0))
    with pytest.raises(ValueError, match="name other arguments as mutated"):
        ow.custom_op(name, lambda x: None, mutates_args=(), schema="(Tensor(a!) x) -> ()")


def test_row_13_keyword_only_tensors_are_taken(name):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor, *, y: Tensor, z: Optional[Tensor] = None, ws: list[Tensor]) -> Tensor:
        return x + y + (0 if z is None else z) + sum(ws)

    x = torch.ones(2)
    for call in (op, native(op)):
        assert torch.equal(call(x, y=x, ws=[x]), 3 * x)
        assert torch.equal(call(x, y=x, z=x, ws=[]), 3 * x)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("body", [lambda x: x, lambda x: x.view(-1), lambda x: x[0]])
def test_row_14_outputs_may_not_alias_inputs(name, body, needs_grad):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor) -> Tensor:
        return body(x)

    x = torch.randn(3, requires_grad=needs_grad)
    for call in (native(op), op):
        with pytest.raises(RuntimeError, match="may not alias"):
            call(x)


def test_row_14_outputs_may_not_alias_each_other(name):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        out = x.clone()
        return out, out.view(-1)

    for call in (native(op), op):
        with pytest.raises(AliasError) as error:
            call(torch.randn(3))
        assert str(error.value).splitlines()[0] == (
            f"output 1 of {name} shares memory with output 0; an output may not alias an argument or "
            "another output"
        )


def test_row_14_a_mutating_operator_may_not_return_its_argument(name):
    @ow.custom_op(name, mutates_args={"x"})
    def op(x: Tensor) -> Tensor:
        return x.add_(1)

    for call in (native(op), op):
        with pytest.raises(RuntimeError, match="may not alias"):
            call(torch.randn(3))


def test_row_15_a_second_definition_replaces_the_first(name):
    first = sin(name)
    assert torch.equal(first(torch.ones(2)), torch.sin(torch.ones(2)))

    @ow.custom_op(name, mutates_args=())
    def second(x: Tensor, k: int = 1) -> Tensor:
        return torch.cos(x)

    assert torch.equal(second(torch.ones(2)), torch.cos(torch.ones(2)))
    assert torch.equal(native(second)(torch.ones(2)), torch.cos(torch.ones(2)))


def test_row_16_overloads(name):
    @ow.custom_op(f"{name}.one", mutates_args=())
    def one(x: Tensor) -> Tensor:
        return x + 1

    @ow.custom_op(f"{name}.two", mutates_args=())
    def two(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    packet = getattr(torch.ops.behaviours, name.partition("::")[2])
    x = torch.ones(2)
    assert torch.equal(packet(x), x + 1)
    assert torch.equal(packet(x, x), x + x)
    assert sorted(packet.overloads()) == ["one", "two"]


def test_row_17_a_tuple_of_one(name):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor) -> tuple[Tensor]:
        return (x.clone(),)

    for call in (op, native(op)):
        (found,) = call(torch.ones(2))
        assert torch.equal(found, torch.ones(2))


def test_row_18_a_factory_function(name):
    with pytest.raises(ValueError, match=r"device: torch\.device"):

        @ow.custom_op(name, mutates_args=(), device_types="cpu")
        def wrong(size: int) -> Tensor: ...

    @ow.custom_op(name, mutates_args=(), device_types="cpu")
    def ones(size: int, device: torch.device) -> Tensor:
        return torch.ones(size, device=device)

    for call in (ones, native(ones)):
        assert torch.equal(call(2, device=torch.device("cpu")), torch.ones(2))
        with pytest.raises(RuntimeError, match=f"{name} has no kernel for torch arrays on cuda"):
            call(2, device=torch.device("cuda"))
    assert torch.equal(ones(2, "cpu"), torch.ones(2))


def test_row_18_register_kernel_of_a_factory_without_a_device(name):
    @ow.custom_op(name, mutates_args=())
    def ones(size: int) -> Tensor:
        return torch.ones(size)

    assert torch.equal(ones(2), torch.ones(2))
    with pytest.raises(ValueError, match=r"device: torch\.device"):
        ones.register_kernel("cpu", lambda size: torch.ones(size))


def test_row_19_a_kernel_for_another_device(name):
    op = sin(name, device_types="cpu")
    x = torch.ones(2)
    assert torch.equal(op(x), torch.sin(x))
    with pytest.raises(NoKernelError, match="has no kernel for torch arrays on cuda"):
        backend.make_runner(lowered_of(op._record), "cuda")
    op.register_kernel("cuda", lambda x: torch.cos(x))
    assert backend.make_runner(lowered_of(op._record), "cuda")((x,)).equal(torch.cos(x))
    assert torch.equal(op(x), torch.sin(x))


@pytest.mark.cuda
def test_row_19_on_a_gpu(name):
    op = sin(name, device_types="cpu")
    op.register_kernel("cuda", lambda x: torch.cos(x))
    x = torch.ones(2)
    for call in (op, native(op)):
        assert torch.equal(call(x), torch.sin(x))
        assert torch.allclose(call(x.cuda()).cpu(), torch.cos(x))


@pytest.mark.parametrize(
    "tags", [torch.Tag.pointwise, [torch.Tag.pointwise], (torch.Tag.pointwise,), "pointwise"]
)
def test_row_20_tags(name, tags):
    op = sin(name, tags=tags)
    assert sorted(tag.name for tag in native(op).tags) == ["pointwise", "pt2_compliant_tag"]


def test_row_20_the_compliance_tag_is_there_once(name):
    op = sin(name, tags=[torch.Tag.pt2_compliant_tag])
    assert [tag.name for tag in native(op).tags] == ["pt2_compliant_tag"]


def test_row_21_compiled_whole(name):
    ran = []

    @ow.custom_op(name, mutates_args=())
    def op(x: np.ndarray) -> np.ndarray:
        ran.append("kernel")
        return np.sin(x)

    @op.register_fake
    def _(x):
        ran.append("fake")
        return torch.empty_like(x)

    x = torch.randn(3)
    assert torch.allclose(torch.compile(op, fullgraph=True, backend="aot_eager")(x), x.sin())
    assert ran[-1] == "kernel"
    assert ran[0] == "fake"


@pytest.mark.parametrize("direct", [True, False])
def test_row_22_setup_context_only_where_a_gradient_is_needed(name, direct):
    op = sin(name)
    calls = []
    op.register_autograd(lambda ctx, g: g, setup_context=lambda ctx, inputs, output: calls.append(1))
    call = op if direct else native(op)
    for _ in range(3):
        call(torch.ones(2))
    with torch.no_grad():
        call(torch.ones(2, requires_grad=True))
    assert not calls
    call(torch.ones(2, requires_grad=True))
    assert len(calls) == 1


@pytest.mark.parametrize("direct", [True, False])
def test_row_23_no_formula(name, direct):
    op = sin(name)
    call = op if direct else native(op)
    for _ in range(3):
        out = call(torch.ones(2, requires_grad=True))
        assert out.requires_grad
        with pytest.raises(RuntimeError, match="no autograd formula"):
            out.sum().backward()


def test_row_23_the_whole_text(name):
    op = sin(name)
    with pytest.raises(MissingRuleError) as error:
        native(op)(torch.ones(2, requires_grad=True)).sum().backward()
    assert str(error.value) == (
        f"differentiation of {name}: no autograd formula was registered for it\n"
        f"  registered at: {op._record.source}\n"
        f"  to fix: add one: opwright.register_autograd({name!r}, backward, setup_context=...), "
        "or declare non_differentiable=True"
    )


def test_row_24_kernels_are_turned_off(name, caplog):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.zeros(1)

    op.register_kernel("cpu", lambda x: torch.ones(1))
    x = torch.randn(3)
    for call in (op, native(op)):
        assert call(x).item() == 1
        with op.set_kernel_enabled("cpu", enabled=False):
            assert call(x).item() == 0
            with op.set_kernel_enabled("cpu", enabled=True):
                assert call(x).item() == 1
            assert call(x).item() == 0
        assert call(x).item() == 1
    with caplog.at_level(logging.WARNING, "opwright"):
        with op.set_kernel_enabled("cuda", enabled=False):
            pass
        with op.set_kernel_enabled("cpu", enabled=True):
            pass
    assert [record.getMessage() for record in caplog.records] == [
        f"{name} has no kernel for cuda to turn on or off",
        f"the kernel of {name} for cpu is on already",
    ]
