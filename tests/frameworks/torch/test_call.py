"""A call's arguments and outputs, spread out for torch and put together again."""

from __future__ import annotations

import numpy as np
import pytest
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


# ------------------------------------------------------------------ one number for a list of known length

TYPES = (
    "int[2]",
    "int[2]?",
    "int[2] = 7",
    "float[2]",
    "float[2]?",
    "SymInt[2]",
    "SymInt[2]?",
    "bool[2]",
    "int[]",
)
ONES = (3, True, 2.5, 3.0, np.int64(3), np.float64(2.5), np.float32(2.5), torch.tensor(3), "3")


def outcome(call, seen):
    """Return what the kernel was called with, or that the call was refused."""
    seen.clear()
    try:
        call()
    except (RuntimeError, TypeError):
        return "refused"
    ((kind, values),) = seen
    return kind, values and [(type(one), one) for one in values]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("keyword", [False, True])
def test_one_number_for_a_list_is_taken_where_torch_takes_it(ns, type_, keyword):
    name, _, default = type_.partition(" = ")
    schema = f"(Tensor x, {'*, ' if keyword else ''}{name} k{'=' + default if default else ''}) -> Tensor"
    seen = []

    def kernel(x, k):
        seen.append((type(k), k))
        return x.clone()

    def keyword_only(x, *, k):
        return kernel(x, k)

    fn = keyword_only if keyword else kernel
    with torch.library._scoped_library(f"{ns}_reference", "DEF") as library:
        library.define(f"f{schema}")
        library.impl("f", fn, "CPU")
        op = ow.custom_op(f"{ns}::f", fn, mutates_args=(), schema=schema, flavour="torch")
        calls = (getattr(torch.ops, f"{ns}_reference").f, getattr(torch.ops, ns).f, op, getattr(ow.ops, ns).f)
        x = torch.ones(2)
        for value in (*ONES, [1, 0], (1, 1), None):
            found = [
                outcome(lambda f=f: f(x, k=value) if keyword else f(x, value), seen)  # noqa: B023
                for f in calls
            ]
            assert found == [found[0]] * len(calls), value


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_a_parameter_that_is_a_tuple_of_integers_takes_no_single_one(ns, kind):
    if kind == "jax":
        pytest.importorskip("jax", reason="needs jax")

    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor, k: tuple[int, int]) -> Tensor:
        return x * k[1]

    f.register_fake(lambda x, k: torch.empty_like(x))
    asarray = {"numpy": np.asarray, "torch": torch.asarray}.get(kind) or __import__("jax").numpy.asarray
    x = asarray([1.0, 2.0])
    for _ in range(5):
        assert f(x, (3, 2)).tolist() == [2, 4]
        with pytest.raises(ow.errors.ArgumentError) as caught:
            f(x, 3)
        assert str(caught.value) == (
            f"{ns}::f: argument k must be a list\n  expected: SymInt[2]\n  got: 3 of type int"
        )
