"""What JAX takes for an array without its being one of JAX's: a body gets one of JAX's for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright.frameworks.jax import avals, private

HOST = np.array([1.0, 2.0, 3.0], np.float32)


def traced_constant():
    """Return what JAX makes of a NumPy array while it traces: an array of NumPy only since JAX 0.10."""
    found = []
    jax.grad(lambda x: (found.append(jax.lax.stop_gradient(x)), x.sum())[1])(HOST)
    assert isinstance(found[0], private.HOST_ARRAYS)
    assert not isinstance(found[0], jax.Array)
    return found[0]


@pytest.fixture(scope="module")
def constant():
    return traced_constant()


def test_every_class_of_constants(constant):
    values = [True, 1, 1.5, 2j, np.float32(1.5), HOST, constant]
    for value, array in zip(values, avals.arrays(values), strict=True):
        assert isinstance(array, jax.Array)
        assert array.dtype == jax.typeof(value).dtype
        np.testing.assert_array_equal(array, value)


def test_what_is_no_constant_stays():
    values = [jnp.ones(2), np.zeros(2, jax.dtypes.float0), None]
    assert all(one is other for one, other in zip(avals.arrays(values), values, strict=True))


def test_namespace(constant):
    assert ow.array_namespace(constant) is jnp
    assert ow.array_namespace(constant, HOST, jnp.ones(2)) is jnp


def define(ns, mutates_args=()):
    seen = []

    def scale(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * y

    op = ow.custom_op(f"{ns}::scale", scale, mutates_args=mutates_args)
    op.register_fake(lambda x, y: ow.empty_like(x))

    def setup_context(ctx, inputs, output):
        seen.extend(inputs)
        ctx.save_for_backward(*inputs)

    def backward(ctx, grad):
        seen.extend([*ctx.saved_tensors, grad])
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    def rule(info, in_dims, x, y):
        seen.extend([x, y])
        return op(x, y), 0

    op.register_autograd(backward, setup_context=setup_context)
    op.register_vmap(rule)
    return op, seen


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_rules_get_arrays_of_jax(ns, constant, wrap):
    op, seen = define(ns)
    for value in (HOST, constant):
        np.testing.assert_array_equal(wrap(op)(value, jnp.ones(3)), HOST)
        np.testing.assert_array_equal(jax.grad(lambda x: wrap(op)(x, x).sum())(value), 2 * HOST)
        pulled = jax.vjp(wrap(op), value, value)[1](value)
        np.testing.assert_array_equal(pulled, [HOST * HOST] * 2)
        np.testing.assert_array_equal(jax.jvp(wrap(op), (value, value), (HOST, HOST))[1], 2 * HOST * HOST)
        rows = jax.vmap(wrap(op))(np.stack([value, value]), np.ones((2, 3), np.float32))
        np.testing.assert_array_equal(rows, [HOST, HOST])
        got = jax.grad(lambda x, y=value: (wrap(op)(jax.lax.stop_gradient(x), y) * x).sum())(value)
        np.testing.assert_array_equal(got, HOST * HOST)
    assert seen
    assert all(isinstance(one, jax.Array) for one in seen)


def test_arguments_of_every_kind(ns, constant):
    seen = []

    def kernel(x: jax.Array, rest: list[jax.Array], other: jax.Array | None) -> jax.Array:
        seen.extend([x, *rest, other])
        return x.at[0].add(rest[0][0] + other[0])

    op = ow.custom_op(f"{ns}::listed", kernel, mutates_args=())
    np.testing.assert_array_equal(op(constant, [constant], constant), [3, 2, 3])
    assert all(isinstance(one, jax.Array) for one in seen)


def test_mutated_arguments(ns, constant):
    def double(x: np.ndarray) -> None:
        x *= 2

    op = ow.custom_op(f"{ns}::double", double, mutates_args={"x"})
    np.testing.assert_array_equal(op(constant), 2 * HOST)
    np.testing.assert_array_equal(constant, HOST)


def test_operators_without_arrays_as_outputs(ns, constant):
    seen = []

    def keep(x: np.ndarray) -> None:
        seen.append(x.tolist())

    def total(x: np.ndarray) -> int:
        return int(x.sum())

    ow.custom_op(f"{ns}::keep", keep, mutates_args=())(constant)
    assert seen == [HOST.tolist()]
    assert ow.custom_op(f"{ns}::total", total, mutates_args=())(constant) == 6


def test_what_a_kernel_or_rule_returns(ns, constant):
    def always(x: jax.Array) -> jax.Array:
        return constant

    op = ow.custom_op(f"{ns}::always", always, mutates_args=())
    op.register_autograd(lambda ctx, grad: constant)
    np.testing.assert_array_equal(op(jnp.ones(3)), HOST)
    np.testing.assert_array_equal(jax.grad(lambda x: op(x).sum())(jnp.ones(3)), HOST)


def test_what_is_saved(ns, constant):
    def same(x: np.ndarray) -> np.ndarray:
        return x.copy()

    op = ow.custom_op(f"{ns}::same", same, mutates_args=())
    op.register_fake(lambda x: ow.empty_like(x))
    seen = []

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(constant)
        ctx.more = [constant]

    def backward(ctx, grad):
        seen.extend([*ctx.saved_tensors, *ctx.more])
        return grad * seen[0] + 0 * seen[1]

    op.register_autograd(backward, setup_context=setup_context)
    np.testing.assert_array_equal(jax.grad(lambda x: op(x).sum())(jnp.ones(3)), HOST)
    assert all(isinstance(one, jax.Array) for one in seen)
