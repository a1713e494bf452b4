"""The guarded direct call: when it is taken, and what it computes."""

from __future__ import annotations

import enum

import numpy as np
import pytest
import torch
from torch import Tensor

import opwright as ow
import torch_operators
import torch_situations
from opwright.errors import ArgumentError, OutputError
from opwright.frameworks.torch import fast

DIRECT, DISPATCHER = "direct", "dispatcher"


def guards_of(op, pattern=()):
    """Return the guards that an operator keeps for a pattern of list lengths and missing tensors."""
    found = op._record.table[Tensor].__globals__["_ow_found"](pattern, ())
    return [entry[0] for entry in found]


def define(fn, path, name="fast", **options):
    """Return an operator of a function that notes its path."""
    options.setdefault("mutates_args", ())
    op = ow.custom_op(torch_operators.name_of(name), fn, **options)
    assert path is not None
    return op


# ------------------------------------------------------------------------------------- when it is taken


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3),
        lambda: torch.ones(3, 3).t(),
        lambda: torch.ones(()),
        lambda: torch.ones(3, dtype=torch.complex64),
        lambda: torch.nn.Parameter(torch.ones(3)),
        lambda: torch.ones(3, requires_grad=True),
        lambda: torch.ones(3, requires_grad=True) * 2,
    ],
)
def test_dense_tensors_take_it(make):
    path = torch_operators.Path()
    op = torch_operators.with_rule(path)
    op(make())
    assert path.of(lambda: op(make())) == [DIRECT]


def test_an_operator_with_an_autocast_rule_takes_it_where_autocast_is_off():
    path = torch_operators.Path()
    op = torch_operators.cast(path)
    x = torch.ones(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [op(x).dtype for _ in range(3)] == [torch.bfloat16] * 3
        assert guards_of(op) == []
    op(x)
    assert path.of(lambda: op(x)) == [DIRECT]
    assert op(x).dtype == torch.float32


def test_the_same_tensor_twice():
    path = torch_operators.Path()

    def add(x: Tensor, y: Tensor, zs: list[Tensor], w: Tensor | None = None) -> Tensor:
        path.note()
        return x + y + sum(zs) + (0 if w is None else w)

    op = define(add, path)
    x, y = torch.ones(3), torch.zeros(3)
    rows = [(x, x, [y]), (x, y, [x]), (x, y, [y, y]), (x, x, [x, x], x), (x, y, [x, y], x), (y, x, [y, x], x)]
    for _ in range(3):
        found = [op(*args) for args in rows]
        for args, out in zip(rows, found, strict=True):
            torch.testing.assert_close(out, args[0] + args[1] + sum(args[2]) + (args[3] if args[3:] else 0))
    assert path.taken == [DISPATCHER] * 6 + [DIRECT] * 12
    a, b = torch.ones(3), torch.zeros(3)
    assert path.of(lambda: op(a, a, [b])) == [DIRECT]
    assert path.of(lambda: op(a, b, [torch.zeros(3)])) == [DISPATCHER]


def test_the_same_tensor_twice_with_a_gradient():
    @ow.custom_op(torch_operators.name_of("product"), mutates_args=())
    def op(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @op.register_autograd(setup_context=setup_context)
    def _(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    for _ in range(4):
        x = torch.full((3,), 5.0, requires_grad=True)
        op(x, x).sum().backward()
        assert x.grad.tolist() == [10.0] * 3


class Logging(Tensor):
    """Notes what it is asked."""

    asked: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.asked.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_beside_plain_tensors_is_only_asked_for_the_operator():
    def first(x: Tensor, y: Tensor, zs: list[Tensor]) -> Tensor:
        return x * 1

    op = define(first, ())
    x, y = torch.ones(3), torch.zeros(3)
    for _ in range(3):
        op(x, y, [y.clone()])
    logging = torch.ones(3).as_subclass(Logging)
    Logging.asked.clear()
    for args in ((x, logging, [y]), (x, y, [logging])):
        op(*args)
    assert len(Logging.asked) == 2
    assert all(op._record.name.partition("::")[2] in asked for asked in Logging.asked)


@pytest.mark.parametrize("wrong", [1.0, None, [1], "two", np.ones(3)])
def test_what_is_no_tensor_raises_after_direct_calls_as_before(wrong):
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    op = define(add, ())
    texts = []
    for _ in range(3):
        with pytest.raises(ArgumentError) as error:
            op(torch.ones(3), wrong)
        texts.append(str(error.value))
        op(torch.ones(3), torch.ones(3))
    assert texts == texts[:1] * 3


def test_operators_without_tensor_arguments_take_the_dispatcher():
    def make(n: int, *, device: torch.device) -> Tensor:
        return torch.zeros(n, device=device)

    op = define(make, ())
    assert fast.reason_against(op._record) == "no argument is a Tensor"
    assert [op(3, device=torch.device("cpu")).shape for _ in range(3)] == [(3,)] * 3


@pytest.mark.parametrize("key", ["Autograd", "AutogradCPU", "ADInplaceOrView", "BackendSelect"])
def test_kernels_that_the_dispatcher_calls_first_keep_it_in_use(key):
    op = torch_operators.without_rule()
    x = torch.ones(3)
    op(x)
    op(x)
    library = ow.Library("situations", "FRAGMENT")
    seen = []

    def first(x):
        seen.append(key)
        return x * 5

    library.impl(op._record.qualname, first, key)
    assert fast.reason_against(op._record) == f"it has a kernel for {key}, which torch's dispatcher calls"
    assert [op(x).tolist() for _ in range(4)] == [[5.0] * 3] * 4
    assert len(seen) == 4
    library._destroy()
    assert op(x).tolist() == [3.0] * 3


def test_an_autocast_kernel_is_reached():
    op = torch_operators.without_rule()
    x = torch.ones(3)
    op(x)
    library = ow.Library("situations", "FRAGMENT")
    library.impl(op._record.qualname, lambda x: x * 7, "AutocastCPU")
    for _ in range(3):
        assert op(x).tolist() == [3.0] * 3
        with torch.autocast("cpu"):
            assert op(x).tolist() == [7.0] * 3
    library._destroy()


def test_a_kernel_with_the_dispatch_keys_gets_them():
    library = ow.Library("situations", "FRAGMENT")
    name = torch_operators.name_of("keys").partition("::")[2]
    library.define(name + "(Tensor x) -> Tensor")
    seen = []

    def kernel(keys, x):
        seen.append(keys)
        return x + 1

    library.impl(name, kernel, "CPU", with_keyset=True)
    op = getattr(ow.ops.situations, name)
    assert [op(torch.ones(1)).item() for _ in range(3)] == [2.0] * 3
    assert all(keys.has(torch._C.DispatchKey.CPU) for keys in seen)
    library._destroy()


def test_a_kernel_that_skips_its_key_keeps_the_dispatcher_in_use():
    op = torch_operators.without_rule()
    library = ow.Library("situations", "FRAGMENT")
    library.impl(op._record.qualname, ow.fallthrough_kernel, "AutocastCPU")
    reason = "a kernel takes the dispatch keys, or skips one, which torch's dispatcher knows of"
    assert fast.reason_against(op._record) == reason
    with torch.autocast("cpu"):
        assert op(torch.ones(1)).item() == 3.0
    library._destroy()


def test_a_subclass_first_never_leaves_a_direct_call_in_the_table():
    op = torch_operators.with_rule()
    x = torch.ones(3).as_subclass(torch_situations.Subclass)
    for _ in range(3):
        assert type(op(x)) is torch_situations.Subclass
    reason = fast.reason_against(op._record, (x, 2.0))
    assert reason == "the first tensor is a Subclass"


# ------------------------------------------------------------------------------------- what it computes


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_scalars_are_coerced_on_the_direct_call_as_before_the_dispatcher():
    seen = []

    def scaled(
        x: Tensor,
        k: float,
        n: int,
        sizes: list[int],
        name: str,
        c: Colour = Colour.RED,
        d: torch.dtype | None = None,
    ) -> Tensor:
        seen.append((k, type(k), n, type(n), sizes, type(sizes), name, c, d))
        return x * k

    op = define(scaled, ())
    x = torch.ones(3)
    for _ in range(4):
        op(x, 3, np.int64(2), (1, 2), "a", "blue", torch.float32)
    assert seen == [(3.0, float, 2, int, [1, 2], list, "a", Colour.BLUE, torch.float32)] * 4


@pytest.mark.parametrize("calls", [1, 4])
def test_a_scalar_that_does_not_fit_raises_the_same_on_both_ways(calls):
    op = torch_operators.with_rule()
    x = torch.ones(3)
    for _ in range(calls - 1):
        op(x)
    with pytest.raises(ArgumentError) as error:
        op(x, "two")
    assert str(error.value) == (
        f"{op._record.qualname}: argument k must be a number\n  expected: float\n  got: 'two' of type str"
    )


def test_grad_mode_is_off_in_the_kernel_and_on_again_after_it():
    seen = []

    def kernel(x: Tensor, fail: bool) -> Tensor:
        seen.append(torch.is_grad_enabled())
        if fail:
            raise ZeroDivisionError("as asked")
        return x * 1

    op = define(kernel, ())
    x = torch.ones(3)
    for _ in range(4):
        op(x, False)
        with pytest.raises(ZeroDivisionError, match="as asked"):
            op(x, True)
        assert torch.is_grad_enabled()
    with torch.no_grad():
        op(x, False)
        assert not torch.is_grad_enabled()
    assert seen == [False] * 9


def test_a_kernel_over_a_parameter_gives_no_gradient():
    op = torch_operators.closed_over()
    assert [op(torch.ones(3)).requires_grad for _ in range(4)] == [False] * 4


def test_outputs_of_the_wrong_class_and_number_raise_on_the_direct_call():
    answers = []

    def one(x: Tensor) -> Tensor:
        return answers.pop() if answers else x * 1

    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return answers.pop() if answers else (x * 1, x * 2)

    x = torch.ones(3)
    for fn, wrong in ((one, 1.5), (one, None), (two, x * 1), (two, (x * 1,)), (two, (x * 1, None))):
        op = define(fn, ())
        for _ in range(5):
            op(x)
        answers.append(wrong)
        with pytest.raises(OutputError) as direct:
            op(x)
        answers.append(wrong)
        with pytest.raises(OutputError) as dispatched:
            torch_situations.calls_of(op)[1](x)
        assert str(direct.value) == str(dispatched.value)


def test_an_argument_that_is_returned_is_itself():
    library = ow.Library("situations", "FRAGMENT")
    name = torch_operators.name_of("double_").partition("::")[2]
    library.define(name + "(Tensor(a!) x) -> Tensor(a!)")
    library.impl(name, lambda x: x.mul_(2), "CPU")
    op = getattr(ow.ops.situations, name)
    x = torch.ones(3)
    for _ in range(4):
        version = x._version
        assert op(x) is x
        assert x._version > version
    assert x.tolist() == [16.0] * 3
    library._destroy()


def test_a_mutated_argument_that_a_graph_needs_raises():
    path = torch_operators.Path()
    op = torch_operators.mutating_numpy(path)
    op(torch.ones(3))
    y = torch.ones(3, requires_grad=True)
    saved = torch.ones(3)
    out = y * saved
    assert path.of(lambda: op(saved)) == [DIRECT]
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        out.sum().backward()


def test_an_inference_tensor_is_not_written_to_outside_inference_mode():
    op = torch_operators.mutating()
    with torch.inference_mode():
        x = torch.ones(3)
        for _ in range(3):
            op(x)
    for _ in range(2):
        op(torch.ones(3))
        with pytest.raises(RuntimeError, match="inplace update to inference tensor outside InferenceMode"):
            op(x)


# ---------------------------------------------------------------------------------------- compiled code


@pytest.mark.parametrize(
    "kind", [torch_operators.with_rule, torch_operators.of_numpy, torch_operators.mutating]
)
def test_compiled_code_is_not_compiled_anew_by_direct_calls(kind):
    path = torch_operators.Path()
    op = kind(path)
    graphs = []

    def count(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()

    def body(x):
        out = op(x)
        return x if out is None else out

    compiled = torch.compile(body, backend=count, fullgraph=True)
    for _ in range(5):
        compiled(torch.ones(3))
        op(torch.ones(3))
        op(torch.ones(3, dtype=torch.float64))
        op([torch.ones(2, 2), torch.nn.Parameter(torch.ones(1)).detach()][0])
    assert len(graphs) == 1
    assert any(op._record.name.partition("::")[2] in target for target in graphs[0])
    assert path.of(lambda: op(torch.ones(3))) == [DIRECT]
