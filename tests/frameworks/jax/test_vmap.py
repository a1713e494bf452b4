"""Batching: what a rule is told, loops where there is none, and what they cost."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright.frameworks.jax.vmap import NoVmapRuleWarning

X = jnp.arange(6.0).reshape(2, 3)
_counter = iter(range(1000))


def made(rule=None):
    @ow.custom_op(f"jaxv::op{next(_counter)}", mutates_args=())
    def op(x: np.ndarray, ys: list[np.ndarray], z: np.ndarray | None = None, k: float = 2.0) -> np.ndarray:
        return x * np.asarray(k, x.dtype) + sum(ys)

    op.register_fake(lambda x, ys, z=None, k=2.0: ow.empty_like(x))
    if rule is not None:
        op.register_vmap(rule)
    return op


def test_what_a_rule_is_told():
    told = []

    def rule(info, in_dims, *args):
        x, ys, z, k = args
        told.append((info.batch_size, info.randomness, in_dims, x.shape, [y.shape for y in ys], z, k))
        return op(jnp.moveaxis(x, in_dims[0], 0), [jnp.moveaxis(ys[0], in_dims[1][0], 0), ys[1]], z, k), 0

    op = made(rule)
    got = jax.vmap(lambda x, y: op(x, [y, jnp.ones(3)], k=3.0), in_axes=(-1, 0))(X.T, X)
    np.testing.assert_array_equal(got, X * 3 + X + 1)
    assert told == [(2, "different", (1, (0, None), None, None), (3, 2), [(2, 3), (3,)], None, 3.0)]


@pytest.mark.parametrize("out_dims", [0, (0, -1), [0, -1], None])
def test_out_dims(out_dims):
    @ow.custom_op(f"jaxv::two{next(_counter)}", mutates_args=())
    def two(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x * 2, x * 3

    two.register_fake(lambda x: (ow.empty_like(x), ow.empty_like(x)))

    def rule(info, in_dims, x):
        if out_dims is None:
            return (x[0] * 2, x[0] * 3), None
        a, b = two(x)
        return (a, b if out_dims == 0 else jnp.moveaxis(b, 0, -1)), out_dims

    two.register_vmap(rule)
    a, b = jax.vmap(two)(X)
    expected = jnp.broadcast_to(X[0], X.shape) if out_dims is None else X
    np.testing.assert_array_equal(a, expected * 2)
    np.testing.assert_array_equal(b, expected * 3)


def test_a_loop_warns_once_for_each_operator():
    op = made()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.vmap(lambda x: op(x, [x]))(X)
        jax.vmap(lambda x: op(x, [x]))(X)
        jax.jit(jax.vmap(lambda x: op(x, [x])))(X)
    assert [str(one.message) for one in caught] == [
        f"vmap of {op.name}: no vmap rule is registered, "
        "so its kernel is called once for each element of the batch\n"
        f"  to fix: register one: @opwright.register_vmap({op.name!r})"
    ]


def test_a_traced_kernel_is_vectorised_and_does_not_warn():
    calls = []

    @ow.custom_op("jaxv::traced", mutates_args=())
    def traced(x: ow.Array, y: ow.Array) -> ow.Array:
        calls.append(x.shape)
        return x @ y

    np.testing.assert_array_equal(jax.vmap(traced, in_axes=(0, None))(X, X[0]), X @ X[0])
    assert set(calls) == {(3,)}
    jaxpr = str(jax.make_jaxpr(jax.vmap(traced, in_axes=(0, None)))(X, X[0]))
    assert "jaxv.traced_loop" in jaxpr


def test_loops_fold_into_one():
    sizes = []

    @ow.custom_op("jaxv::folded", mutates_args=())
    def folded(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        sizes.append(x.shape)
        return x + y

    folded.register_fake(lambda x, y: ow.empty_like(x))
    x, y = jnp.arange(24.0).reshape(2, 4, 3), jnp.arange(3.0)
    with pytest.warns(NoVmapRuleWarning):
        got = jax.vmap(jax.vmap(folded, in_axes=(0, None)), in_axes=(0, None))(x, y)
    np.testing.assert_array_equal(got, x + y)
    assert sizes == [(3,)] * 8
    assert (
        str(jax.make_jaxpr(jax.vmap(jax.vmap(folded, in_axes=(0, None)), in_axes=(0, None)))(x, y)).count(
            "folded"
        )
        == 1
    )


def test_a_second_eager_call_compiles_nothing():
    op = made()
    f = jax.vmap(lambda x: op(x, [x]))
    slope = jax.grad(lambda x: f(x).sum())
    op.register_autograd(lambda ctx, g: (g * 2, [g], None, None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoVmapRuleWarning)
        f(X), slope(X)
        compiled = []
        jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
        f(X), slope(X)
    jax.monitoring.clear_event_listeners()
    assert not [event for event in compiled if "backend_compile" in event]


def test_rows_of_other_shapes_are_refused():
    @ow.custom_op("jaxv::uneven", mutates_args=())
    def uneven(x: np.ndarray) -> np.ndarray:
        return x[x > 1]

    uneven.register_fake(lambda x: x.new_empty((ow.get_ctx().new_dynamic_size(),)))
    with pytest.warns(NoVmapRuleWarning), pytest.raises(ow.errors.UnsupportedError) as caught:
        jax.vmap(uneven)(X)
    assert str(caught.value) == (
        "vmap of jaxv::uneven: output 0 differs between the elements of the batch\n"
        "  expected: one shape and dtype, length or value for all of them\n"
        "  got: (1,) and (3,)\n"
        "  to fix: pad it inside the operator, or call the operator in a loop of your own"
    )


def test_a_rule_that_returns_constants_of_numpy_lists_and_absent_outputs():
    @ow.custom_op("jaxv::kinds", mutates_args=())
    def kinds(x: np.ndarray) -> tuple[np.ndarray | None, list[np.ndarray], np.ndarray]:
        return None, [x * 2, x * 3], np.ones(2, x.dtype)

    kinds.register_fake(lambda x: (None, [ow.empty_like(x)] * 2, x.new_empty((2,))))

    @kinds.register_vmap
    def _(info, in_dims, x):
        return (None, [x * 2, (x * 3).T], np.ones(2, x.dtype)), (0, [0, -1], None)

    expected = [X * 2, X * 3, np.ones((2, 2), np.float32)]
    for f in (jax.vmap(kinds), jax.jit(jax.vmap(kinds))):
        none, parts, ones = f(X)
        assert none is None
        for got, wanted in zip([*parts, ones], expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_rule_with_another_number_of_arrays_than_the_fake_says():
    @ow.custom_op("jaxv::fewer", mutates_args=())
    def fewer(x: np.ndarray) -> list[np.ndarray]:
        return [x * 2, x * 3]

    fewer.register_fake(lambda x: [ow.empty_like(x)] * 2)
    handle = ow.register_vmap(fewer, lambda info, in_dims, x: ([x * 2], 0))
    with pytest.raises(ow.errors.OutputError) as caught:
        jax.vmap(fewer)(X)
    assert str(caught.value) == (
        "the vmap rule of jaxv::fewer returned a wrong number of arrays\n"
        "  expected: 2 (the fake)\n"
        "  got: 1\n"
        f"  registered at: {handle.source}"
    )


def test_a_rule_on_a_keyword_only_array_is_not_told_so_the_operator_is_looped():
    op = ow.custom_op(
        "jaxv::keyword", mutates_args=(), schema="(Tensor x, *, Tensor y) -> Tensor", flavour="numpy"
    )(lambda x, *, y: x + y)
    op.register_fake(lambda x, *, y: ow.empty_like(x))
    op.register_vmap(lambda info, in_dims, x, *, y: (op(x, y=y), in_dims[0]))
    np.testing.assert_array_equal(jax.vmap(lambda x: op(x, y=X[0]))(X), X + X[0])
    with pytest.warns(
        NoVmapRuleWarning, match="its keyword-only argument y is batched, which a vmap rule is not told"
    ):
        np.testing.assert_array_equal(jax.vmap(lambda y: op(X[0], y=y))(X), X + X[0])


def test_random_operators_differ_in_each_element():
    drawn = iter(range(100))

    @ow.custom_op("jaxv::draw", mutates_args=(), tags="nondeterministic_seeded")
    def draw(x: np.ndarray) -> np.ndarray:
        return x * 0 + np.float32(next(drawn))

    draw.register_fake(lambda x: ow.empty_like(x))
    with pytest.warns(NoVmapRuleWarning):
        got = jax.jit(jax.vmap(draw))(jnp.zeros(4))
    assert len(set(np.asarray(got))) == 4
