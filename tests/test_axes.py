"""``in_dims`` and ``out_dims`` that do not fit: each a specific error with its whole text."""

from __future__ import annotations

import numpy as np
import pytest

import numpy_operators as ops
import opwright as ow
from opwright.axes import level
from opwright.errors import ArgumentError, ArgumentValueError

x = np.ones((3, 4, 5))


def test_levels():
    assert level(0, (0, None), "same").out_dims == (0, None)
    assert level([0, None], None, "error").in_dims == [0, None]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (
            {"in_dims": "0"},
            ArgumentError,
            "vmap: in_dims must be an int or a tuple\n"
            "  expected: an int, or a tuple with one entry for each input\n"
            "  got: '0' of type str",
        ),
        (
            {"in_dims": None},
            ArgumentError,
            "vmap: in_dims must be an int or a tuple\n"
            "  expected: an int, or a tuple with one entry for each input\n"
            "  got: None of type NoneType",
        ),
        (
            {"out_dims": 1.0},
            ArgumentError,
            "vmap: out_dims must be an int or a tuple\n"
            "  expected: an int, or a tuple with one entry for each output\n"
            "  got: 1.0 of type float",
        ),
        (
            {"randomness": "none"},
            ArgumentValueError,
            "vmap: not a randomness mode\n  expected: error, different, same\n  got: 'none'",
        ),
    ],
)
def test_wrong_types(arguments, kind, text):
    with pytest.raises(kind) as caught:
        ow.vmap(ops.sin, **arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("op", "in_dims", "args", "kind", "text"),
    [
        (
            "sin",
            3,
            (x,),
            ArgumentValueError,
            "in_dims for argument x is out of range\n  expected: from -3 to 2\n  got: 3 for shape (3, 4, 5)",
        ),
        (
            "mul",
            (0, -4),
            (x, x),
            ArgumentValueError,
            "in_dims for argument y is out of range\n  expected: from -3 to 2\n  got: -4 for shape (3, 4, 5)",
        ),
        (
            "sin",
            0,
            (np.asarray(1.0),),
            ArgumentValueError,
            "in_dims for argument x is out of range\n"
            "  expected: None: the array has no axis\n"
            "  got: 0 for shape ()",
        ),
        (
            "weighted",
            ([0, 2], None),
            ([x, x[0]], [1.0, 2.0]),
            ArgumentValueError,
            "in_dims for argument xs[1] is out of range\n  expected: from -2 to 1\n  got: 2 for shape (4, 5)",
        ),
        (
            "mul",
            (0,),
            (x, x),
            ArgumentValueError,
            "in_dims has another length than there are arguments\n"
            "  expected: 2, one for each argument given by position\n"
            "  got: 1: (0,)",
        ),
        (
            "weighted",
            ([0], None),
            ([x, x], [1.0, 2.0]),
            ArgumentValueError,
            "in_dims for argument xs has another length than the list\n  expected: 2\n  got: 1: [0]",
        ),
        (
            "mul",
            (0, "a"),
            (x, x),
            ArgumentError,
            "in_dims for argument y must be an int or None\n  got: 'a' of type str",
        ),
        (
            "mul",
            (0, [0]),
            (x, x),
            ArgumentError,
            "in_dims for argument y must be an int or None\n  got: [0] of type list",
        ),
        (
            "gammaln",
            (0, 0),
            (x, 2.0),
            ArgumentError,
            "argument scale is not an array and cannot be batched\n"
            "  expected: None for it in in_dims\n"
            "  got: 0 for 2.0 of type float",
        ),
        (
            "maybe",
            (0, 0),
            (x, None),
            ArgumentError,
            "argument y is not an array and cannot be batched\n"
            "  expected: None for it in in_dims\n"
            "  got: 0 for None of type NoneType",
        ),
        (
            "mul",
            (None, None),
            (x, x),
            ArgumentValueError,
            "no argument is batched\n"
            "  expected: an axis in in_dims for one array at least\n"
            "  to fix: call the operator itself",
        ),
        (
            "mul",
            (0, 1),
            (x, x),
            ArgumentValueError,
            "the arguments' batches have different sizes\n"
            "  expected: one size for all batched arguments\n"
            "  got: x has 3 along axis 0, y has 4 along axis 1",
        ),
        (
            "weighted",
            ([0, -1], None),
            ([x, x], [1.0, 2.0]),
            ArgumentValueError,
            "the arguments' batches have different sizes\n"
            "  expected: one size for all batched arguments\n"
            "  got: xs[0] has 3 along axis 0, xs[1] has 5 along axis 2",
        ),
    ],
)
def test_in_dims_that_do_not_fit(op, in_dims, args, kind, text):
    with pytest.raises(kind) as caught:
        ow.vmap(getattr(ops, op), in_dims)(*args)
    assert str(caught.value) == f"vmap of nops::{op}: {text}"


def test_an_inner_level_has_one_axis_less():
    with pytest.raises(ArgumentValueError) as caught:
        ow.vmap(ow.vmap(ops.sin, 2))(x)
    assert str(caught.value) == (
        "vmap of nops::sin: in_dims for argument x is out of range\n"
        "  expected: from -2 to 1\n"
        "  got: 2 for shape (4, 5)"
    )


@pytest.mark.parametrize(
    ("op", "out_dims", "text"),
    [
        ("sincos", (0,), "out_dims has another length than there are outputs\n  expected: 2\n  got: 1: (0,)"),
        (
            "sin",
            (0, 1),
            "out_dims has another length than there are outputs\n  expected: 1\n  got: 2: (0, 1)",
        ),
        ("parts", ([0, 1, 0],), "out_dims does not have the structure of the outputs\n  got: ([0, 1, 0],)"),
        ("sincos", (0, [0]), "out_dims does not have the structure of the outputs\n  got: (0, [0])"),
    ],
)
@pytest.mark.filterwarnings("ignore::opwright.batching.LoopWarning")
def test_out_dims_that_do_not_fit(op, out_dims, text):
    with pytest.raises(ArgumentValueError) as caught:
        ow.vmap(getattr(ops, op), 0, out_dims)(x)
    assert str(caught.value) == f"vmap of nops::{op}: {text}"
