"""``result_type`` follows JAX's promotion in fakes too, with weak types and with x64 on and off."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright.testing import fake

NAMES = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64")


def product(x, y):
    return ow.empty(ow.broadcast_shapes(x.shape, y.shape), like=x, dtype=ow.result_type(x, y))


@ow.custom_op("jaxpromotion::mul", mutates_args=())
def mul(x: ow.Array, y: ow.Array) -> ow.Array:
    return x * y


@ow.custom_op("jaxpromotion::mul_numpy", mutates_args=())
def mul_numpy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x * y


@ow.custom_op("jaxpromotion::mul_jax", mutates_args=())
def mul_jax(x: jax.Array, y: jax.Array) -> jax.Array:
    return x * y


@ow.custom_op("jaxpromotion::bare", mutates_args=())
def bare(x: ow.Array, y: ow.Array) -> ow.Array:
    return x * y


mul.register_fake(product)
mul_numpy.register_fake(product)


@mul_jax.register_fake
def _(x: jax.Array, y: jax.Array) -> jax.Array:
    return x * y


def operands(x64):
    names = NAMES if x64 else [name for name in NAMES if "64" not in name or name == "complex64"]
    arrays = [jnp.ones(2, name) for name in names]
    return [*arrays, jax.lax.full((2,), 2.0), jax.lax.full((), 2), jnp.asarray(1j)]


@pytest.mark.parametrize("x64", [False, True])
def test_result_type(x64):
    with jax.enable_x64(x64):
        seen = []

        def note(x, y):
            seen.append(ow.result_type(x, y))
            return x

        for x, y in itertools.product(operands(x64), operands(x64)):
            wanted = (x * y).dtype
            jax.eval_shape(note, x, y)
            assert ow.result_type(x, y) == jnp.result_type(x, y) == wanted
            assert seen.pop() == wanted
            made = fake(mul, x, y)
            assert (made.framework, made.dtype) == ("jax", wanted)
        assert ow.result_type(jnp.ones(2, "float16"), 1.5) == jnp.float16
        assert ow.result_type(jnp.ones(2, "float16"), "float64") == (jnp.float64 if x64 else jnp.float32)


PAIRS = [
    ("float16", "int32"),
    ("float32", "int32"),
    ("complex64", "int32"),
    ("int64", "float32"),
    ("float16", "float64"),
]


@pytest.mark.parametrize("op", [mul, mul_numpy, mul_jax, bare], ids=lambda op: op.name)
@pytest.mark.parametrize("x64", [False, True])
def test_the_fake_says_what_the_kernel_returns(op, x64):
    with jax.enable_x64(x64):
        pairs = [(jnp.ones(2, x), jnp.ones(2, y)) for x, y in PAIRS if x64 or "64" not in x[-2:] + y[-2:]]
        for x, y in pairs:
            assert jax.jit(op)(x, y).dtype == op(x, y).dtype


@pytest.mark.parametrize("op", [mul, mul_jax, bare], ids=lambda op: op.name)
def test_weak_types(op):
    x, y = jnp.ones((3, 2), "float16"), jax.lax.full((3,), 2.0)
    assert jax.jit(op)(x, y[0]).dtype == jnp.float16
    assert jax.jit(jax.vmap(op))(x, y).dtype == jnp.float16
    assert jax.vmap(op)(x, y).dtype == jnp.float16


def test_bfloat16_beside_float16():
    x, y = jnp.ones(2, "float16"), jnp.ones(2, "bfloat16")
    assert jax.jit(mul)(x, y).dtype == mul(x, y).dtype == jnp.float32
