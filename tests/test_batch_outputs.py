"""What a batching rule gets, and what it may not return: each an error with its whole text."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.errors import OutputError
from opwright.source import source_of


@ow.custom_op("batch_outputs::one", mutates_args=())
def one(x: np.ndarray) -> np.ndarray:
    return x + 1


@ow.custom_op("batch_outputs::two", mutates_args=())
def two(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + 1, x + 2


@ow.custom_op("batch_outputs::many", mutates_args=())
def many(x: np.ndarray, n: int) -> list[np.ndarray]:
    return [x + k for k in range(n)]


@ow.custom_op("batch_outputs::none_", mutates_args=("x",))
def none_(x: np.ndarray) -> None:
    x += 1


@ow.custom_op("batch_outputs::tupled", mutates_args=())
def tupled(x: np.ndarray) -> tuple[np.ndarray]:
    return (x + 1,)


@ow.custom_op("batch_outputs::optional", mutates_args=())
def optional(x: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    return None, x + 1


@ow.custom_op("batch_outputs::counting", mutates_args=())
def counting(x: np.ndarray) -> tuple[np.ndarray, int]:
    return x + 1, x.ndim


x = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("op", "args", "rule", "expected"),
    [
        (one, (x,), lambda info, dims, x: (one(x), 0), x + 1),
        (one, (x,), lambda info, dims, x: (one(x), -2), x + 1),
        (one, (x,), lambda info, dims, x: (one(x).T, 1), x + 1),
        (one, (x,), lambda info, dims, x: (one(x), np.int64(0)), x + 1),
        (two, (x,), lambda info, dims, x: (two(x), 0), (x + 1, x + 2)),
        (two, (x,), lambda info, dims, x: (list(two(x)), [0, 0]), (x + 1, x + 2)),
        (two, (x,), lambda info, dims, x: ((one(x), one(x).T), (0, 1)), (x + 1, x + 1)),
        (two, (x,), lambda info, dims, x: ((one(x), x[0]), (0, None)), (x + 1, np.stack([x[0]] * 3))),
        (many, (x, 2), lambda info, dims, x, n: (many(x, n), 0), [x, x + 1]),
        (many, (x, 2), lambda info, dims, x, n: (many(x, n), [0, 0]), [x, x + 1]),
        (many, (x, 2), lambda info, dims, x, n: (tuple(many(x, n)), (0, 0)), [x, x + 1]),
        (many, (x, 3), lambda info, dims, x, n: ([x, x.T, x], (0, 1, -2)), [x, x, x]),
        (many, (x, 0), lambda info, dims, x, n: ([], 0), []),
        (tupled, (x,), lambda info, dims, x: ((x,), 0), (x,)),
        (tupled, (x,), lambda info, dims, x: ((x,), (0,)), (x,)),
        (optional, (x,), lambda info, dims, x: ((None, x), (None, 0)), (None, x)),
        (optional, (x,), lambda info, dims, x: ((None, x), 0), (None, x)),
        (counting, (x,), lambda info, dims, x: ((x, 1), (0, None)), (x, 1)),
        (none_, (x.copy(),), lambda info, dims, x: (none_(x), None), None),
        (none_, (x.copy(),), lambda info, dims, x: ((), ()), None),
    ],
)
def test_what_a_rule_may_return(op, args, rule, expected):
    handle = op.register_vmap(rule)
    got = ow.vmap(op)(*args)
    handle.destroy()
    assert type(got) is type(expected)
    if isinstance(expected, tuple | list):
        assert len(got) == len(expected)
        for first, second in zip(got, expected, strict=True):
            np.testing.assert_array_equal(first, second)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("op", "rule", "what", "expected", "got"),
    [
        (
            one,
            lambda info, dims, x: one(x),
            "something else than (outputs, out_dims)",
            "a pair of the outputs and the batch axis of each",
            "shape (3, 4), dtype float64",
        ),
        (
            one,
            lambda info, dims, x: None,
            "something else than (outputs, out_dims)",
            "a pair of the outputs and the batch axis of each",
            "None of type NoneType",
        ),
        (
            one,
            lambda info, dims, x: [one(x), 0],
            "something else than (outputs, out_dims)",
            "a pair of the outputs and the batch axis of each",
            "a list of 2 (ndarray, int)",
        ),
        (
            one,
            lambda info, dims, x: (one(x), 0, 0),
            "something else than (outputs, out_dims)",
            "a pair of the outputs and the batch axis of each",
            "a tuple of 3 (ndarray, int, int)",
        ),
        (
            two,
            lambda info, dims, x: two(x),
            "a wrong number of outputs",
            "2: batch_outputs::two(Tensor x) -> (Tensor, Tensor)",
            "shape (3, 4), dtype float64",
        ),
        (
            two,
            lambda info, dims, x: ((one(x),), 0),
            "a wrong number of outputs",
            "2: batch_outputs::two(Tensor x) -> (Tensor, Tensor)",
            "a tuple of 1 (ndarray)",
        ),
        (
            none_,
            lambda info, dims, x: (x, 0),
            "outputs",
            "None: batch_outputs::none_(Tensor(a0!) x) -> ()",
            "shape (3, 4), dtype float64",
        ),
        (
            two,
            lambda info, dims, x: (two(x), (0,)),
            "a wrong number of out_dims",
            "2, one for each output",
            "(0,)",
        ),
        (
            one,
            lambda info, dims, x: (one(x), (0, 0)),
            "a wrong number of out_dims",
            "1, one for each output",
            "(0, 0)",
        ),
        (
            one,
            lambda info, dims, x: (one(x), "0"),
            "something else than an axis as out_dim of output 0",
            "an int, or None for an output that is not batched",
            "'0' of type str",
        ),
        (
            two,
            lambda info, dims, x: (two(x), (0, True)),
            "something else than an axis as out_dim of output 1",
            "an int, or None for an output that is not batched",
            "True of type bool",
        ),
        (
            one,
            lambda info, dims, x: (one(x), one(x)),
            "something else than an axis as out_dim of output 0",
            "an int, or None for an output that is not batched",
            "shape (3, 4), dtype float64",
        ),
        (
            one,
            lambda info, dims, x: (one(x), 5),
            "an impossible out_dim for output 0",
            "an axis of output 0, from -2 to 1",
            "5 for shape (3, 4)",
        ),
        (
            one,
            lambda info, dims, x: (np.asarray(1.0), 0),
            "an impossible out_dim for output 0",
            "None: it has no axis",
            "0 for shape ()",
        ),
        (
            one,
            lambda info, dims, x: (one(x), 1),
            "an out_dim for output 0 that is not the batch's axis",
            "an axis of size 3",
            "axis 1 of shape (3, 4)",
        ),
        (
            two,
            lambda info, dims, x: ((one(x), one(x)), (0, -1)),
            "an out_dim for output 1 that is not the batch's axis",
            "an axis of size 3",
            "axis -1 of shape (3, 4)",
        ),
        (
            one,
            lambda info, dims, x: ("x", 0),
            "no array as output 0",
            "an array of numpy",
            "'x' of type str",
        ),
        (
            one,
            lambda info, dims, x: (None, 0),
            "no array as output 0",
            "an array of numpy",
            "None of type NoneType",
        ),
    ],
)
def test_what_a_rule_may_not_return(op, rule, what, expected, got):
    handle = op.register_vmap(rule)
    try:
        with pytest.raises(OutputError) as caught:
            ow.vmap(op)(x.copy())
    finally:
        handle.destroy()
    fix = "\n  to fix: return out, 0 for an output with the batch in front, out, None for one without"
    assert str(caught.value) == (
        f"the vmap rule of {op.name} returned {what}\n"
        f"  expected: {expected}\n"
        f"  got: {got}\n"
        f"  registered at: {source_of(rule)}"
    ) + (fix if "pair" in expected else "")


@pytest.mark.parametrize(
    ("rule", "what", "expected", "got"),
    [
        (
            lambda info, dims, x, n: ([x, x], [0]),
            "a wrong number of out_dims",
            "2 for a list",
            "[0]",
        ),
        (
            lambda info, dims, x, n: ([x, x], [0, 1]),
            "an out_dim for output 0[1] that is not the batch's axis",
            "an axis of size 3",
            "axis 1 of shape (3, 4)",
        ),
        (
            lambda info, dims, x, n: (x, 0),
            "no list as output 0",
            "a list: batch_outputs::many(Tensor x, SymInt n) -> Tensor[]",
            "shape (3, 4), dtype float64",
        ),
    ],
)
def test_what_a_rule_may_not_return_for_a_list(rule, what, expected, got):
    handle = many.register_vmap(rule)
    try:
        with pytest.raises(OutputError) as caught:
            ow.vmap(many)(x, 2)
    finally:
        handle.destroy()
    assert str(caught.value) == (
        f"the vmap rule of batch_outputs::many returned {what}\n"
        f"  expected: {expected}\n"
        f"  got: {got}\n"
        f"  registered at: {source_of(rule)}"
    )


def test_what_a_rule_gets():
    seen = []

    @ow.custom_op("batch_outputs::everything", mutates_args=())
    def everything(
        x: np.ndarray, ys: list[np.ndarray], z: np.ndarray | None = None, k: float = 2.0, *, w: int = 3
    ) -> np.ndarray:
        return x * k

    @everything.register_vmap
    def _(info, in_dims, x, ys, z, k, *, w):
        seen.append((info.batch_size, info.randomness, in_dims, z, k, w, type(x), x.flags.f_contiguous))
        return everything(x, ys, z, k, w=w), in_dims[0]

    fortran = np.asfortranarray(x)
    ow.vmap(everything, (-1, [None, 0], None, None))(fortran, [x, x.T], None, 5)
    ow.vmap(everything, (1, 1))(fortran, (x, x), w=7)
    assert seen == [
        (4, "error", (1, [None, 0], None, None), None, 5.0, 3, np.ndarray, True),
        (4, "error", (1, [1, 1], None, None), None, 2.0, 7, np.ndarray, True),
    ]


def test_an_error_in_a_rule_is_the_callers():
    def rule(info, in_dims, x):
        raise KeyError("mine")

    handle = one.register_vmap(rule)
    with pytest.raises(KeyError, match="mine"):
        ow.vmap(one)(x)
    handle.destroy()
