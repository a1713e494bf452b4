"""Programs that were compiled before a registration run what is registered now."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow

X = jnp.arange(1.0, 4.0)


def times(k):
    def kernel(x: np.ndarray) -> np.ndarray:
        return x * np.float32(k)

    return kernel


def define(name, k):
    op = ow.custom_op(f"jaxre::{name}", times(k), mutates_args=())
    op.register_fake(lambda x: ow.empty_like(x))
    op.register_autograd(lambda ctx, grad: grad * k)
    op.register_vmap(lambda info, in_dims, x: (op(x), in_dims[0]))
    return op


def test_a_kernel():
    op = define("kernel", 2.0)
    compiled = jax.jit(lambda x: op(x) + 1)
    np.testing.assert_array_equal(compiled(X), X * 2 + 1)
    handle = op.register_kernel("cpu", times(7.0))
    np.testing.assert_array_equal(compiled(X), X * 7 + 1)
    handle.destroy()
    np.testing.assert_array_equal(compiled(X), X * 2 + 1)


def test_a_backward():
    op = define("backward", 2.0)
    compiled = jax.jit(jax.vmap(jax.grad(op)))
    np.testing.assert_array_equal(compiled(X), [2, 2, 2])
    op.register_autograd(lambda ctx, grad: grad * 5.0)
    np.testing.assert_array_equal(compiled(X), [5, 5, 5])


def test_a_definition():
    define("definition", 2.0)
    compiled = jax.jit(lambda x: ow.ops.jaxre.definition(x))
    np.testing.assert_array_equal(compiled(X), X * 2)
    define("definition", 5.0)
    np.testing.assert_array_equal(compiled(X), X * 5)


def test_programs_of_other_operators_stay_compiled(monkeypatch):
    op = define("first", 2.0)
    op(X)  # concrete arrays trace nothing
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(1))
    op.register_kernel("cpu", times(3.0))
    assert not cleared
    jax.eval_shape(op, X)
    op.register_samples(lambda: [(np.ones(3, np.float32),)])
    assert not cleared
    op.register_kernel("cpu", times(4.0))
    assert cleared


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: jax.jit(jax.checkpoint(f))])
def test_inside_other_programs(wrap):
    op = define("inside", 2.0)
    inner = wrap(lambda x: op(x))
    outer = jax.jit(lambda x: inner(x) - x)
    np.testing.assert_array_equal(outer(X), X)
    op.register_kernel("cpu", times(3.0))
    np.testing.assert_array_equal(outer(X), X * 2)
