"""The guarded direct call: when it is taken, what it keeps, what it must not outlive."""

from __future__ import annotations

import contextlib
import enum
import gc
import re
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

import opwright as ow
import torch_situations
from opwright.errors import AliasError, ArgumentError, OutputError, StaleError
from opwright.frameworks.torch import entries, fast

DIRECT, DISPATCHER = "direct", "dispatcher"


def guards_of(op, pattern=()):
    """Return the guards that an operator keeps for a pattern of list lengths and missing tensors."""
    found = op._record.table[Tensor].__globals__["_ow_found"](pattern, ())
    return [entry[0] for entry in found]


def define(fn, path, name="fast", **options):
    """Return an operator of a function that notes its path."""
    options.setdefault("mutates_args", ())
    op = ow.custom_op(torch_situations.name_of(name), fn, **options)
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
    path = torch_situations.Path()
    op = torch_situations.with_rule(path)
    op(make())
    assert path.of(lambda: op(make())) == [DIRECT]


@pytest.mark.parametrize("kind", torch_situations.KINDS)
def test_guards_made_in_inference_mode_are_true_only_there(kind):
    op = kind()
    with torch.inference_mode():
        x = torch.ones(3)
        op(x)
        (check,) = guards_of(op)
        assert check(x)
    assert not check(x)
    assert not check(torch.ones(3))


def test_guards_made_under_autocast_are_true_only_there():
    path = torch_situations.Path()
    op = torch_situations.without_rule(path)
    x = torch.ones(3)
    with torch.autocast("cpu"):
        op(x)
        (check,) = guards_of(op)
        assert check(x)
        assert path.of(lambda: op(x)) == [DIRECT]
    assert not check(x)
    assert path.of(lambda: op(x)) == [DISPATCHER]
    assert path.of(lambda: op(x)) == [DIRECT]


def test_an_operator_with_an_autocast_rule_takes_it_where_autocast_is_off():
    path = torch_situations.Path()
    op = torch_situations.cast(path)
    x = torch.ones(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [op(x).dtype for _ in range(3)] == [torch.bfloat16] * 3
        assert guards_of(op) == []
    op(x)
    assert path.of(lambda: op(x)) == [DIRECT]
    assert op(x).dtype == torch.float32


def test_states_that_torch_must_see_leave_no_guard():
    for name in (
        "function mode",
        "dispatch mode",
        "vmap",
        "jvp",
        "in a dual level",
        "profiler",
        "fake tensor",
    ):
        op = torch_situations.with_rule()
        torch_situations.observed(torch_situations.SITUATIONS[name], op)
        assert guards_of(op) == [], name


def test_the_same_tensor_twice_takes_the_dispatcher_and_leaves_no_guard():
    path = torch_situations.Path()

    def add(x: Tensor, y: Tensor) -> Tensor:
        path.note()
        return x + y

    op = define(add, path)
    x = torch.ones(3)
    assert path.of(lambda: [op(x, x) for _ in range(3)]) == [DISPATCHER] * 3
    assert guards_of(op) == []
    op(x, torch.ones(3))
    assert path.of(lambda: op(x, torch.zeros(3))) == [DIRECT]
    torch.testing.assert_close(op(x, x), torch.full((3,), 2.0))


def test_operators_without_tensor_arguments_take_the_dispatcher():
    def make(n: int, *, device: torch.device) -> Tensor:
        return torch.zeros(n, device=device)

    op = define(make, ())
    assert fast.reason_against(op._record) == "no argument is a Tensor"
    assert [op(3, device=torch.device("cpu")).shape for _ in range(3)] == [(3,)] * 3


@pytest.mark.parametrize("key", ["Autograd", "AutogradCPU", "ADInplaceOrView", "BackendSelect"])
def test_kernels_that_the_dispatcher_calls_first_keep_it_in_use(key):
    op = torch_situations.without_rule()
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
    op = torch_situations.without_rule()
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
    name = torch_situations.name_of("keys").partition("::")[2]
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
    op = torch_situations.without_rule()
    library = ow.Library("situations", "FRAGMENT")
    library.impl(op._record.qualname, ow.fallthrough_kernel, "AutocastCPU")
    reason = "a kernel takes the dispatch keys, or skips one, which torch's dispatcher knows of"
    assert fast.reason_against(op._record) == reason
    with torch.autocast("cpu"):
        assert op(torch.ones(1)).item() == 3.0
    library._destroy()


class Devices:
    """Stands for ``torch.cuda`` on a machine with several."""

    def __init__(self, count):
        self.count, self.current, self.entered = count, 0, []

    def device_count(self):
        return self.count

    def current_device(self):
        return self.current

    def device(self, index):
        self.entered.append(index)
        return contextlib.nullcontext()


def test_the_device_of_the_tensors_is_made_current_where_there_are_several(monkeypatch):
    several = Devices(2)
    monkeypatch.setattr(torch, "cuda", several)
    kernel = lambda x, *, k: (x, k)  # noqa: E731
    assert entries._on_device(kernel, torch.device("cpu")) is kernel
    on_first = entries._on_device(kernel, torch.device("cuda", 0))
    on_second = entries._on_device(kernel, torch.device("cuda", 1))
    assert on_first(1, k=2) == on_second(1, k=2) == (1, 2)
    assert several.entered == [1]
    monkeypatch.setattr(torch, "cuda", Devices(1))
    assert entries._on_device(kernel, torch.device("cuda", 0)) is kernel


def test_a_subclass_first_never_leaves_a_direct_call_in_the_table():
    op = torch_situations.with_rule()
    x = torch.ones(3).as_subclass(torch_situations.Subclass)
    for _ in range(3):
        assert type(op(x)) is torch_situations.Subclass
    reason = fast.reason_against(op._record, (x, 2.0))
    assert reason == "the first tensor is a Subclass"


# ---------------------------------------------------------------------------------------- what it keeps


def signatures(count):
    dtypes = [
        torch.float32,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.int16,
        torch.uint8,
        torch.complex64,
    ]
    return [torch.ones((1,) * (i // len(dtypes)), dtype=dtypes[i % len(dtypes)]) for i in range(count)]


def test_nine_signatures_and_more_alternate():
    path = torch_situations.Path()
    op = torch_situations.without_rule(path)
    inputs = signatures(entries.MOST_ENTRIES * 3)
    for _ in range(6):
        for x in inputs:
            assert op(x).dtype == x.dtype
            assert op(x).shape == x.shape
    assert len(guards_of(op)) == entries.MOST_ENTRIES


def test_once_full_few_misses_replace_a_guard():
    op = torch_situations.without_rule()
    inputs = signatures(entries.MOST_ENTRIES + 1)
    for x in inputs[:-1]:
        op(x)
    before = guards_of(op)
    late = inputs[-1]
    for _ in range(entries.ADDED_WHEN_FULL - 1):
        op(late)
    assert guards_of(op) == before
    op(late)
    assert guards_of(op)[0](late)
    assert guards_of(op)[1:] == before[:-1]


def test_patterns_of_lists_and_missing_tensors_are_kept_apart_and_bounded():
    path = torch_situations.Path()

    def total(xs: list[Tensor], y: Tensor | None = None) -> Tensor:
        path.note()
        return sum(xs, torch.zeros(3)) if y is None else sum(xs, y * 1)

    op = define(total, path)
    for _ in range(2):
        for length in range(1, 4):
            for y in (None, torch.ones(3)):
                xs = [torch.ones(3) for _ in range(length)]
                assert op(xs, y).tolist() == [length + (y is not None)] * 3
    assert path.taken == [DISPATCHER] * 6 + [DIRECT] * 6
    found = op._record.table[Tensor].__globals__["_ow_found"].__self__
    assert set(found) == {(n, missing) for n in (1, 2, 3) for missing in (True, False)}
    for length in range(4, 200):
        op([torch.ones(3) for _ in range(length)])
    assert len(found) == entries.MOST_PATTERNS


def test_a_tuple_of_tensors_reaches_the_kernel_as_a_list():
    seen = []

    def count(xs: list[Tensor]) -> Tensor:
        seen.append(type(xs))
        return torch.tensor(len(xs))

    op = define(count, ())
    for _ in range(3):
        op((torch.ones(1), torch.ones(2)))
    assert seen == [list] * 3


def test_no_tensor_is_kept_alive():
    op = torch_situations.with_rule()
    x = torch.ones(3)
    op(x)
    op(x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None


# ------------------------------------------------------------------------- what it must not outlive


def test_a_new_kernel_is_used_at_once():
    op = torch_situations.without_rule()
    x = torch.ones(3)
    for _ in range(4):
        op(x)
    handle = op.register_kernel("cpu", lambda x: x * 9)
    assert [op(x).tolist() for _ in range(3)] == [[9.0] * 3] * 3
    handle.destroy()
    assert [op(x).tolist() for _ in range(3)] == [[3.0] * 3] * 3


def test_a_new_autograd_rule_is_used_at_once():
    op = torch_situations.without_rule()
    x = torch.ones(3, requires_grad=True)
    for _ in range(4):
        op(x)
    op.register_autograd(lambda ctx, grad: grad * 10)
    for _ in range(3):
        assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [10.0] * 3


def test_a_disabled_kernel_is_not_called():
    op = torch_situations.without_rule()
    op.register_kernel("cpu", lambda x: x * 9)
    x = torch.ones(3)
    for _ in range(3):
        op(x)
    with op.set_kernel_enabled("cpu", enabled=False):
        assert [op(x).tolist() for _ in range(3)] == [[3.0] * 3] * 3
    assert [op(x).tolist() for _ in range(3)] == [[9.0] * 3] * 3


def test_a_redefined_operator_is_stale():
    name = torch_situations.name_of("again")

    def first(x: Tensor) -> Tensor:
        return x * 1

    old = ow.custom_op(name, first, mutates_args=())
    x = torch.ones(3)
    for _ in range(4):
        old(x)
    new = ow.custom_op(name, first, mutates_args=())
    with pytest.raises(StaleError, match=re.escape(f"operator {name} was redefined")):
        old(x)
    assert new(x).tolist() == [1.0] * 3


def test_a_call_that_began_before_a_change_leaves_no_guard():
    op = torch_situations.without_rule()
    old = op._record.table[Tensor]
    op.register_kernel("cpu", lambda x: x * 9)
    old(torch.ones(3))
    assert old.__globals__["_ow_found"]((), ()) == ()


# ------------------------------------------------------------------------------------- what it computes


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_scalars_are_coerced_on_the_direct_call_as_before_the_dispatcher():
    seen = []

    def scaled(  # noqa: PLR0917  (one of every kind)
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
    op = torch_situations.with_rule()
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
    op = torch_situations.closed_over()
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


def test_outputs_that_alias_raise_in_the_first_direct_calls():
    answers = [None]

    def kernel(x: Tensor) -> Tensor:
        return answers[0](x)

    for alias in (lambda x: x, lambda x: x[:2], lambda x: x.detach()):
        answers[0] = lambda x: x * 1
        op = define(kernel, ())
        x = torch.ones(3)
        op(x)
        answers[0] = alias
        with pytest.raises(AliasError, match="may not alias an argument or another output"):
            op(x)
        with pytest.raises(AliasError, match="may not alias an argument or another output"):
            op(x)


def test_an_argument_that_is_returned_is_itself():
    library = ow.Library("situations", "FRAGMENT")
    name = torch_situations.name_of("double_").partition("::")[2]
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
    path = torch_situations.Path()
    op = torch_situations.mutating_numpy(path)
    op(torch.ones(3))
    y = torch.ones(3, requires_grad=True)
    saved = torch.ones(3)
    out = y * saved
    assert path.of(lambda: op(saved)) == [DIRECT]
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        out.sum().backward()


def test_an_inference_tensor_is_not_written_to_outside_inference_mode():
    op = torch_situations.mutating()
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
    "kind", [torch_situations.with_rule, torch_situations.of_numpy, torch_situations.mutating]
)
def test_compiled_code_is_not_compiled_anew_by_direct_calls(kind):
    path = torch_situations.Path()
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
