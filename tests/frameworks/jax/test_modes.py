"""``ow.autocast`` and dispatch modes with JAX's arrays, eagerly and while tracing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow

X = jnp.asarray([0.5, -1.25, 2.0])


@ow.custom_op("jaxo::keep", mutates_args=())
def keep(x: np.ndarray, i: np.ndarray) -> np.ndarray:
    return x * 1


keep.register_fake(lambda x, i: ow.empty_like(x))
keep.register_autograd(lambda ctx, g: (g, None))
keep.register_autocast("cpu", jnp.float16)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_autocast_casts_floating_inputs(wrap):
    def run(x):
        with ow.autocast("cpu"):
            return keep(x, jnp.arange(3))

    assert wrap(run)(X).dtype == np.float16
    assert wrap(lambda x: keep(x, jnp.arange(3)))(X).dtype == np.float32
    assert wrap(jax.grad(lambda x: run(x).astype(np.float32).sum()))(X).dtype == np.float32


def test_a_dispatch_mode_sees_every_call():
    seen = []

    class Log(ow.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((func.name, types))
            return func(*args, **(kwargs or {}))

    with Log():
        keep(X, jnp.arange(3))
        jax.jit(keep)(X, jnp.arange(3))
    assert seen[0] == ("jaxo::keep", (type(X),))
    assert issubclass(seen[1][1][0], jax.core.Tracer)
    assert len(seen) == 2
