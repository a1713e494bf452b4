"""``vmap`` against a Python loop: every in_dims and out_dims, nested, mutated, random, empty."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import numpy_operators as ops
import opwright as ow
from opwright.batching import LoopWarning
from opwright.errors import ArgumentError, ArgumentValueError, MissingRuleError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::opwright.batching.LoopWarning")


def loop(function, in_dims=0, out_dims=0):
    """What vmap must give: a loop over slices, and a stack."""

    def call(*args):
        if isinstance(in_dims, int):
            dims = [in_dims if isinstance(a, np.ndarray | list) else None for a in args]
        else:
            dims = list(in_dims)
        spread = [
            [d] * len(a) if isinstance(a, list) and not isinstance(d, list) else d
            for a, d in zip(args, dims, strict=True)
        ]
        sizes = [
            a.shape[d]
            for arg, dim in zip(args, spread, strict=True)
            for a, d in (zip(arg, dim, strict=True) if isinstance(arg, list) else [(arg, dim)])
            if d is not None
        ]

        def piece(a, d, i):
            if isinstance(d, list):
                return [piece(one, axis, i) for one, axis in zip(a, d, strict=True)]
            return a if d is None else np.take(a, i, axis=d)

        rows = [
            function(*(piece(a, d, i) for a, d in zip(args, spread, strict=True))) for i in range(sizes[0])
        ]
        if isinstance(rows[0], tuple | list):
            places = out_dims if isinstance(out_dims, tuple) else (out_dims,) * len(rows[0])
            return type(rows[0])(
                np.stack([row[k] for row in rows], axis=places[k]) for k in range(len(rows[0]))
            )
        return np.stack(rows, axis=out_dims)

    return call


def same(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, tuple | list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            same(one, other)
    else:
        np.testing.assert_allclose(got, expected)


x = np.random.default_rng(0).uniform(0.5, 2, (3, 4, 5))


@pytest.mark.parametrize("op", [ops.sin, ops.gammaln, ops.bare, ops.sincos], ids=lambda op: op.name)
def test_every_axis(op):
    for in_dim, out_dim in itertools.product(range(-3, 3), repeat=2):
        same(ow.vmap(op, in_dim, out_dim)(x), loop(op, in_dim, out_dim)(x))


@pytest.mark.parametrize("op", [ops.sin, ops.bare, ops.sincos], ids=lambda op: op.name)
def test_every_axis_nested(op):
    for outer, inner in itertools.product(
        itertools.product((0, 1, -1), (0, -1)), itertools.product((0, 1, -2), (0, 1, -1))
    ):
        got = ow.vmap(ow.vmap(op, *inner), *outer)(x)
        same(got, loop(loop(op, *inner), *outer)(x))


def test_three_levels():
    y = np.random.default_rng(1).standard_normal((2, 3, 4, 5))
    for outer, middle, inner in (
        ((0, 0), (0, 0), (0, 0)),
        ((-1, 1), (1, -1), (-1, 0)),
        ((2, -1), (0, 2), (1, 1)),
    ):
        got = ow.vmap(ow.vmap(ow.vmap(ops.sin, *inner), *middle), *outer)(y)
        same(got, loop(loop(loop(ops.sin, *inner), *middle), *outer)(y))


@pytest.mark.parametrize(
    "dims", [d for d in itertools.product((None, 0, 1, -1), repeat=2) if d != (None, None)]
)
def test_batched_and_not(dims):
    a = np.moveaxis(x, 0, dims[0]) if dims[0] is not None else x[0]
    b = np.moveaxis(x + 1, 0, dims[1]) if dims[1] is not None else x[0, 0]
    same(ow.vmap(ops.mul, dims, 1)(a, b), loop(ops.mul, dims, 1)(a, b))
    same(ow.vmap(ops.mul, list(dims), 1)(a, b), loop(ops.mul, dims, 1)(a, b))


@pytest.mark.parametrize(
    ("inner", "outer"), [((None, 0), (0, None)), ((0, None), (None, 0)), ((0, 0), (0, None))]
)
def test_levels_that_batch_other_arguments(inner, outer):
    a = x[:, 0] if outer[0] == 0 and inner[0] is None else x[:, :, 0] if outer[0] == 0 else x[0, :4]
    b = x[0, :4] if outer[1] is None else x[:, 0]
    same(ow.vmap(ow.vmap(ops.mul, inner), outer)(a, b), loop(loop(ops.mul, inner), outer)(a, b))


@pytest.mark.parametrize(
    "dims", [(0, None), ([0, 1], None), ([0, None], None), ([None, 0], None), ([-2, -1], None)]
)
def test_lists(dims):
    def shaped(d):
        return x[0, :, :3] if d is None else np.moveaxis(x[:, :, :3], 0, d)

    each = dims[0] if isinstance(dims[0], list) else [dims[0]] * 2
    if each == [-2, -1]:
        each = [1, 2]
    xs = [shaped(d) for d in each]
    got = ow.vmap(ops.weighted, dims)(xs, [1.0, 2.0])
    same(got, loop(ops.weighted, (each, None))(xs, [1.0, 2.0]))
    same(ow.vmap(ops.weighted, dims)(tuple(xs), [1.0, 2.0]), got)


def test_lists_nested():
    xs = [x, x[0]]
    got = ow.vmap(ow.vmap(ops.weighted, ([0, 0], None)), ([0, None], None))(xs, [1.0, 2.0])
    same(got, loop(loop(ops.weighted, ([0, 0], None)), ([0, None], None))(xs, [1.0, 2.0]))


def test_a_list_as_output():
    first, second = loop(ops.parts)(x)
    same(ow.vmap(ops.parts)(x), [first, second])
    same(ow.vmap(ops.parts, out_dims=1)(x), [np.moveaxis(first, 0, 1), np.moveaxis(second, 0, 1)])
    same(ow.vmap(ops.parts, out_dims=([0, -1],))(x), [first, np.moveaxis(second, 0, -1)])
    same(ow.vmap(ow.vmap(ops.parts, 1), 0, 1)(x), loop(loop(ops.parts, 1), 0, 1)(x))


def test_out_dims_of_several_outputs():
    first, second = loop(ops.sincos)(x)
    same(ow.vmap(ops.sincos, out_dims=(0, 1))(x), (first, np.moveaxis(second, 0, 1)))
    same(ow.vmap(ops.sincos, out_dims=[-1, 0])(x), (np.moveaxis(first, 0, -1), second))


def test_arguments_by_name_are_not_batched():
    same(ow.vmap(ops.gammaln)(x, scale=2.0), 2 * ops.gammaln(x))
    same(ow.vmap(ops.shift)(x, by=x[0], factor=2.0), x + 2 * x[0])
    same(ow.vmap(ops.mul)(x, y=x[0]), x * x[0])


def test_defaults_and_scalars():
    same(ow.vmap(ops.gammaln, (0, None))(x, 3), 3 * ops.gammaln(x))
    same(ow.vmap(ops.gammaln)(x, 3), 3 * ops.gammaln(x))
    same(ow.vmap(ops.maybe, (0, None))(x, None), x)
    same(ow.vmap(ops.maybe, 0)(x, x), 2 * x)


@pytest.mark.parametrize(
    "layout",
    [np.asfortranarray, lambda a: a[::-1, :, ::-1], lambda a: a.transpose(2, 0, 1), lambda a: a[:, ::2]],
)
def test_layouts(layout):
    a = layout(x)
    for op in (ops.sin, ops.bare):
        same(ow.vmap(op, 1, -1)(a), loop(op, 1, -1)(a))
        same(ow.vmap(ow.vmap(op, 1), 0, 1)(a), loop(loop(op, 1), 0, 1)(a))


def test_elements_without_axes():
    same(ow.vmap(ops.sin)(np.arange(3.0)), np.sin(np.arange(3.0)))
    same(ow.vmap(ops.bare)(np.arange(3.0)), np.arange(3.0) + 1)
    same(ow.vmap(ops.mul, (0, None))(np.arange(3.0), np.float64(2)), 2 * np.arange(3.0))
    same(ow.vmap(ow.vmap(ops.bare))(np.ones((2, 3))), np.full((2, 3), 2.0))


# ------------------------------------------------------------------------------------------- mutation


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_mutated_argument_is_mutated_in_place(axis):
    a = x.copy()
    assert ow.vmap(ops.add_, (axis, None))(a, np.asarray(1.0)) is None
    same(a, 2 * x)
    a = x.copy()
    out = ow.vmap(ops.double_, axis)(a)
    same(a, 2 * x)
    same(out, np.moveaxis(2 * x, axis, 0))
    assert np.shares_memory(out, a)


@pytest.mark.parametrize(
    "layout", [np.array, np.asfortranarray, lambda a: a.copy()[::-1], lambda a: a.copy().transpose(1, 2, 0)]
)
def test_a_mutated_argument_nested(layout):
    a = layout(x)
    before = a.copy()
    out = ow.vmap(ow.vmap(ops.double_, 1), 0, 1)(a)
    same(a, 2 * before)
    same(out, loop(loop(lambda b: 2 * b, 1), 0, 1)(before))
    assert np.shares_memory(out, a)
    ow.vmap(ow.vmap(ops.add_, (0, None)), (0, 0))(a, np.ones(a.shape[0]))
    same(a, 4 * before)


def test_a_mutated_argument_that_is_not_batched():
    with pytest.raises(ArgumentError) as caught:
        ow.vmap(ops.add_, (None, 0))(x[0].copy(), x)
    assert str(caught.value) == (
        "vmap of nops::add_: argument x is mutated and not batched\n"
        "  expected: an axis for it in in_dims\n"
        "  got: None: each element of the batch would write to the same array\n"
        "  to fix: give it a batch axis: a copy of x for each element"
    )


# ------------------------------------------------------------------------------------------ randomness


def test_randomness():
    with pytest.raises(UnsupportedError) as caught:
        ow.vmap(ops.noise)(x)
    assert str(caught.value) == (
        "vmap of nops::noise: it is random, and randomness is 'error'\n"
        f"  registered at: {ops.noise._record.source}\n"
        "  to fix: say randomness='different' (one draw for each element) or randomness='same'"
    )
    drawn = ow.vmap(ops.noise, randomness="different")(np.zeros((2, 100)))
    assert not np.array_equal(drawn[0], drawn[1])
    with pytest.raises(UnsupportedError) as caught:
        ow.vmap(ops.noise, randomness="same")(x)
    assert str(caught.value) == (
        "vmap of nops::noise: one draw for all elements needs a batching rule\n"
        f"  registered at: {ops.noise._record.source}\n"
        "  to fix: register one: @opwright.register_vmap('nops::noise')"
    )
    with pytest.raises(UnsupportedError) as caught:
        ow.vmap(ow.vmap(ops.noise, randomness="same"), randomness="different")(x)
    assert str(caught.value) == (
        "nested vmap of nops::noise: its levels have different randomness\n  got: different, same"
    )


def test_a_rule_is_told_of_the_randomness():
    told = []

    @ow.custom_op("batching::noise", mutates_args=(), tags="nondeterministic_seeded")
    def noise(x: np.ndarray) -> np.ndarray:
        return x + 1

    @noise.register_vmap
    def _(info, in_dims, x):
        told.append((info.batch_size, info.randomness))
        return noise(x), in_dims[0]

    ow.vmap(noise, 1, randomness="same")(x)
    ow.vmap(ow.vmap(noise, randomness="different"), randomness="different")(x)
    assert told == [(4, "same"), (12, "different")]


# ----------------------------------------------------------------------------------------- empty batches


def test_empty_batches():
    assert ow.vmap(ops.sin)(x[:0]).shape == (0, 4, 5)  # the rule is called
    out = ow.vmap(ops.gammaln, 1, -1)(x[:, :0].astype(np.float32))
    assert (out.shape, out.dtype) == ((3, 5, 0), np.float32)
    assert [one.shape for one in ow.vmap(ops.parts)(x[:0])] == [(0, 2, 5)] * 2
    assert ow.vmap(ow.vmap(ops.sin))(x[:, :0]).shape == (3, 0, 5)
    assert ow.vmap(ow.vmap(ops.gammaln))(x[:0]).shape == (0, 4, 5)
    assert ow.vmap(ops.add_, (0, None))(x[:0], 1 + x[0]) is None
    empty = x[:0].copy()
    assert ow.vmap(ops.double_)(empty) is empty


def test_an_empty_batch_without_a_fake():
    with pytest.raises(MissingRuleError) as caught:
        ow.vmap(ops.bare)(x[:0])
    assert str(caught.value) == (
        "vmap of nops::bare over an empty batch: no fake impl is registered, so that the shapes of its "
        "outputs are not known\n"
        f"  registered at: {ops.bare._record.source}\n"
        "  to fix: register one: @opwright.register_fake('nops::bare')"
    )


# -------------------------------------------------------------------------------------------- the object


def test_the_object():
    batched = ow.vmap(ow.vmap(ops.sin), 1)
    assert repr(batched) == "vmap(vmap(nops::sin))"
    same(ow.vmap("nops::sin", -1)(x), loop(ops.sin, -1)(x))
    same(ow.vmap(ow.ops.nops.sin, -1)(x), loop(ops.sin, -1)(x))


def test_only_operators():
    with pytest.raises(ArgumentError) as caught:
        ow.vmap(np.sin)
    assert str(caught.value) == (
        "opwright.vmap takes one operator\n"
        "  expected: an operator, or its qualified name\n"
        "  got: <ufunc 'sin'> of type ufunc\n"
        "  to fix: make it an operator with opwright.custom_op; for whole programs use torch.func or jax"
    )


def test_out_dims_of_what_is_not_batched():
    @ow.custom_op("batching::constant", mutates_args=())
    def constant(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x + 1, np.arange(2.0)

    @constant.register_vmap
    def _(info, in_dims, x):
        return constant(x), (in_dims[0], None)

    out, same_for_all = ow.vmap(constant, 0, (0, 1))(x)
    same(out, x + 1)
    same(same_for_all, np.tile(np.arange(2.0)[:, None], (1, 3)))
    assert same_for_all.flags.writeable
    _, same_for_all = ow.vmap(constant, 0, (0, None))(x)
    same(same_for_all, np.arange(2.0))
    _, nested = ow.vmap(ow.vmap(constant, 0, (0, -1)), 0, (0, 0))(x)
    assert nested.shape == (3, 2, 4)
    with pytest.raises(ArgumentValueError) as caught:
        ow.vmap(constant, 0, None)(x)
    assert str(caught.value) == (
        "vmap of batching::constant: out_dims for output 0 is None, but it is batched\n"
        "  expected: the axis that its batch is to have"
    )


@pytest.mark.parametrize("out_dim", [3, -4])
def test_out_dims_out_of_range(out_dim):
    for call in (ow.vmap(ops.sin, 0, out_dim), ow.vmap(ops.bare, 0, out_dim)):
        with pytest.raises(ArgumentValueError) as caught:
            call(x)
        assert str(caught.value).partition(": ")[2] == (
            "out_dims for output 0 is out of range\n"
            "  expected: from -3 to 2\n"
            f"  got: {out_dim} for shape (3, 4, 5)"
        )


def test_one_warning_for_each_operator():
    @ow.custom_op("batching::slow", mutates_args=())
    def slow(x: np.ndarray) -> np.ndarray:
        return x + 1

    with pytest.warns(LoopWarning) as caught:
        ow.vmap(slow)(x)
    assert len(caught) == 1
    assert str(caught[0].message) == (
        "batching::slow has no vmap rule: opwright.vmap calls it once for each element of the batch; "
        "register one with opwright.register_vmap('batching::slow', ...)"
    )
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ow.vmap(slow)(x)
        ow.vmap(ow.vmap(slow))(x)


def test_a_rule_of_another_flavour_is_not_used():
    pytest.importorskip("torch")

    @ow.custom_op("batching::foreign", mutates_args=())
    def foreign(x: np.ndarray) -> np.ndarray:
        return x + 1

    def rule(info, in_dims, x):
        raise AssertionError

    foreign.register_vmap(rule, flavour="torch")
    with pytest.warns(LoopWarning) as caught:
        same(ow.vmap(foreign, 1)(x), loop(foreign, 1)(x))
    source = foreign._record.rule("vmap").source
    assert str(caught[0].message).startswith(
        f"batching::foreign has a vmap rule of flavour torch ({source}), not numpy: opwright.vmap calls it"
    )


def test_registering_again_replaces_and_destroying_restores():
    @ow.custom_op("batching::ruled", mutates_args=())
    def ruled(x: np.ndarray) -> np.ndarray:
        return x + 1

    used = []

    def rule(name):
        def batch(info, in_dims, x):
            used.append(name)
            return ruled(x), in_dims[0]

        return batch

    ruled.register_vmap(rule("first"))
    handle = ow.register_vmap("batching::ruled", rule("second"))
    same(ow.vmap(ruled)(x), x + 1)
    handle.destroy()
    same(ow.vmap(ruled)(x), x + 1)
    assert used == ["second", "first"]


def test_nested_rules_are_called_once():
    calls = []

    @ow.custom_op("batching::counted", mutates_args=())
    def counted(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    @counted.register_vmap
    def _(info, in_dims, x, y):
        calls.append((info.batch_size, in_dims, x.shape, y.shape))
        return counted(x, y[None] if in_dims[1] is None else y), 0

    out = ow.vmap(ow.vmap(counted, (0, None)), (0, None))(x, x[0, 0])
    same(out, x + x[0, 0])
    assert calls == [(12, (0, None), (12, 5), (5,))]
