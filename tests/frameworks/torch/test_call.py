"""A call's arguments and outputs, spread out for torch and put together again."""

from __future__ import annotations

import torch
from torch import Tensor

import opwright as ow
from opwright.frameworks.torch.autograd import Plan
from opwright.frameworks.torch.call import Call
from opwright.frameworks.torch.lowered import lowered_of, tensors_in

NS = "torch_call"


@ow.custom_op(f"{NS}::mixed", mutates_args={"ys"})
def mixed(
    x: Tensor, ys: list[Tensor], k: int, zs: list[Tensor] | None = None, *, w: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    return x + 1, [y + 1 for y in ys]


A, B, C = torch.zeros(1), torch.ones(1), torch.ones(2)


def call_of(flat):
    return Call(Plan(lowered_of(mixed._record)), None, flat, full=False)


def test_lists_are_spread_and_nested():
    flat = (A, [B, C], 3, None, C)
    call = call_of(flat)
    spread = call.flatten(flat)
    assert [one if not isinstance(one, Tensor) else id(one) for one in spread] == [
        id(A), id(B), id(C), 3, None, id(C),
    ]  # fmt: skip
    nested = call.nest(spread)
    assert nested[1][0] is B
    assert nested[3] is None
    assert nested[4] is C
    assert call.nest(range(6), missing="-") == [0, [1, 2], 3, "-", 5]


def test_an_empty_list():
    flat = (A, [], 3, [B], None)
    call = call_of(flat)
    assert call.nest(call.flatten(flat)) == [A, [], 3, [B], None]


def test_outputs_and_new_values():
    flat = (A, [B, C], 3, None, None)
    call = call_of(flat)
    spread = call.spread_outputs(list(flat), (A, [B]))
    assert [id(one) for one in spread] == [id(A), id(B), id(B), id(C)]
    assert call.nest_outputs("abcd") == ["a", ["b"], ["c", "d"]]


def test_which_values_are_mutated():
    flat = (A, [B, C], 3, None, None)
    call = call_of(flat)
    call.shapes = [None] * len(call.flatten(flat))
    assert [call.is_dirty(index) for index in range(6)] == [False, True, True, False, False, False]


def test_tensors_in_values():
    assert tensors_in([A, (B, None), 3]) == [A, B]
    assert tensors_in(None) == []
