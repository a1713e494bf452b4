"""The guards that an overload keeps: how many, of what, and what they must not outlive."""

from __future__ import annotations

import contextlib
import gc
import re
import weakref

import pytest
import torch
from torch import Tensor

import opwright as ow
import torch_operators
import torch_situations
from opwright.errors import AliasError, StaleError
from opwright.frameworks.torch import entries, guards

DIRECT, DISPATCHER = "direct", "dispatcher"


def guards_of(op, pattern=()):
    """Return the guards that an operator keeps for a pattern of list lengths and missing tensors."""
    found = op._record.table[Tensor].__globals__["_ow_found"](pattern, ())
    return [entry[0] for entry in found]


def define(fn, path):
    """Return an operator of a function that notes its path."""
    assert path is not None
    return ow.custom_op(torch_operators.name_of("entries"), fn, mutates_args=())


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
    path = torch_operators.Path()
    op = torch_operators.without_rule(path)
    inputs = signatures(entries.MOST_ENTRIES * 3)
    for _ in range(6):
        for x in inputs:
            assert op(x).dtype == x.dtype
            assert op(x).shape == x.shape
    assert len(guards_of(op)) == entries.MOST_ENTRIES


def test_once_full_few_misses_replace_a_guard():
    op = torch_operators.without_rule()
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
    path = torch_operators.Path()

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
    op = torch_operators.with_rule()
    x = torch.ones(3)
    op(x)
    op(x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None


# ------------------------------------------------------------------------- what it must not outlive


def test_a_new_kernel_is_used_at_once():
    op = torch_operators.without_rule()
    x = torch.ones(3)
    for _ in range(4):
        op(x)
    handle = op.register_kernel("cpu", lambda x: x * 9)
    assert [op(x).tolist() for _ in range(3)] == [[9.0] * 3] * 3
    handle.destroy()
    assert [op(x).tolist() for _ in range(3)] == [[3.0] * 3] * 3


def test_a_new_autograd_rule_is_used_at_once():
    op = torch_operators.without_rule()
    x = torch.ones(3, requires_grad=True)
    for _ in range(4):
        op(x)
    op.register_autograd(lambda ctx, grad: grad * 10)
    for _ in range(3):
        assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [10.0] * 3


def test_a_disabled_kernel_is_not_called():
    op = torch_operators.without_rule()
    op.register_kernel("cpu", lambda x: x * 9)
    x = torch.ones(3)
    for _ in range(3):
        op(x)
    with op.set_kernel_enabled("cpu", enabled=False):
        assert [op(x).tolist() for _ in range(3)] == [[3.0] * 3] * 3
    assert [op(x).tolist() for _ in range(3)] == [[9.0] * 3] * 3


def test_a_redefined_operator_is_stale():
    name = torch_operators.name_of("again")

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
    op = torch_operators.without_rule()
    op(torch.ones(3, dtype=torch.float64))
    old = op._record.table[Tensor]
    op.register_kernel("cpu", lambda x: x * 9)
    held = old.__globals__["_ow_found"]((), ())
    old(torch.ones(3))
    assert old.__globals__["_ow_found"]((), ()) == held
    assert op._record.table[Tensor] is not old


def test_a_change_in_the_middle_of_the_first_call_leaves_no_guard(monkeypatch):
    op = torch_operators.without_rule()
    known = guards.thread_is_known

    def known_then_changed(*, autocast):
        found = known(autocast=autocast)
        monkeypatch.undo()
        op.register_kernel("cpu", lambda x: x * 9)
        return found

    monkeypatch.setattr(guards, "thread_is_known", known_then_changed)
    first = op._record.table[Tensor]
    x = torch.ones(3)
    op(x)
    assert first.__globals__["_ow_found"]((), ()) == ()
    assert [op(x).tolist() for _ in range(3)] == [[9.0] * 3] * 3


def test_what_no_call_has_reached_serves_for_the_next_version():
    op = torch_operators.without_rule()
    first = op._record.table[Tensor]
    op.register_autocast("cpu", torch.bfloat16)
    assert op._record.table[Tensor] is first
    with torch.autocast("cpu"):
        assert [op(torch.ones(3)).dtype for _ in range(4)] == [torch.bfloat16] * 4
    op.register_kernel("cpu", lambda x: x * 9)
    assert op._record.table[Tensor] is not first
    assert [op(torch.ones(3)).tolist() for _ in range(3)] == [[9.0] * 3] * 3


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


@pytest.mark.parametrize("kind", torch_operators.KINDS)
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
    path = torch_operators.Path()
    op = torch_operators.without_rule(path)
    x = torch.ones(3)
    with torch.autocast("cpu"):
        op(x)
        (check,) = guards_of(op)
        assert check(x)
        assert path.of(lambda: op(x)) == [DIRECT]
    assert not check(x)
    assert path.of(lambda: op(x)) == [DISPATCHER]
    assert path.of(lambda: op(x)) == [DIRECT]


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
        op = torch_operators.with_rule()
        torch_situations.observed(torch_situations.SITUATIONS[name], op)
        assert guards_of(op) == [], name


def test_the_same_tensor_twice_takes_the_dispatcher_where_it_is_mutated():
    path = torch_operators.Path()

    def add(x: Tensor, y: Tensor) -> None:
        path.note()
        x.add_(y)

    op = ow.custom_op(torch_operators.name_of("add"), add, mutates_args=("x",))
    x = torch.ones(3)
    assert path.of(lambda: [op(x, x) for _ in range(3)]) == [DISPATCHER] * 3
    assert x.tolist() == [8.0] * 3
