"""Operators of JAX's arrays: right ones, and wrong ones by what is found.

``WRONG`` has a row for each: the operator, its sample, the ids, and words that name the cause.
"""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

RIGHT = {}
WRONG = {}
normal = np.random.default_rng(0).standard_normal((3, 4))


def define(fn, namespace, rules=(), **options):
    operator = ow.custom_op(f"{namespace}::{fn.__name__}", fn, mutates_args=(), **options)
    for kind, rule, *more in rules:
        getattr(operator, f"register_{kind}")(rule, **(more[0] if more else {}))
    return operator


def right(*args, **options):
    def decorate(fn):
        RIGHT[fn.__name__] = (define(fn, "right_jax", **options), args)
        return RIGHT[fn.__name__][0]

    return decorate


def wrong(ids, words, *args, **options):
    def decorate(fn):
        WRONG[fn.__name__] = (define(fn, "wrong_jax", **options), args, set(ids.split()), words)
        return WRONG[fn.__name__][0]

    return decorate


def like(x, *rest):
    return ow.empty_like(x)


def save(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def autograd(backward, setup_context=save):
    return ("autograd", backward, {"setup_context": setup_context})


def double_x(ctx, grad):
    return 2 * grad * ctx.saved_tensors[0]


def square(name, ids, words, backward, setup_context=save, **options):
    def fn(x: jax.Array) -> jax.Array:
        return x * x

    fn.__name__ = name
    rules = [("fake", like), autograd(backward, setup_context)]
    if ids:
        wrong(ids, words, normal, rules=rules, **options)(fn)
    else:
        right(normal, rules=rules, **options)(fn)


square("saved", "", "", double_x)


@right(normal, normal.T)
def traced_without_a_fake(x: jax.Array, y: jax.Array) -> jax.Array:
    return x @ y


@right(
    normal,
    rules=[("fake", like), autograd(double_x), ("vmap", lambda info, in_dims, x: (batched(x), in_dims[0]))],
)
def batched(x: jax.Array) -> jax.Array:
    return x * x


# ------------------------------------------------------------------------------------------------ autograd


def _one_more_axis(ctx, grad):
    return jnp.stack([double_x(ctx, grad)] * 2)


square("broadcast_gradient", "OW302", "another shape", _one_more_axis)
square("single_gradient", "OW303", "another dtype", lambda ctx, g: double_x(ctx, g).astype("float32"))
square(
    "stops_gradients", "OW314", "the second derivative along x differs",
    lambda ctx, g: 2 * g * jax.lax.stop_gradient(ctx.saved_tensors[0]),
)  # fmt: skip


@jax.custom_vjp
def no_second(grad, x):
    return 2 * grad * x


def _no_luck(residuals, grad):
    raise ValueError("not thought of")


no_second.defvjp(lambda grad, x: (no_second(grad, x), None), _no_luck)
square(
    "raises_when_differentiated", "OW315", "the backward raises when it is differentiated",
    lambda ctx, g: no_second(g, ctx.saved_tensors[0]),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------- compile


def _is_traced(x):
    return isinstance(x, jax.core.Tracer)


@wrong("OW801", "the kernel cannot be compiled by jax.jit", normal)
def decides_on_a_value(x: jax.Array) -> jax.Array:
    return x * 2 if float(x.sum()) > -1000 else x * 3


@wrong("OW802", "the output differs under jax.jit", normal)
def twice_or_thrice(x: jax.Array) -> jax.Array:
    return x * (3 if _is_traced(x) else 2)


def _otherwise_under_jit(info, in_dims, x):
    return twice_in_a_batch(x * (2 if type(x).__name__ == "DynamicJaxprTracer" else 1)), in_dims[0]


@wrong(
    "OW802", "the output under vmap differs under jax.jit", normal,
    rules=[("fake", like), ("vmap", _otherwise_under_jit)],
)  # fmt: skip
def twice_in_a_batch(x: jax.Array) -> jax.Array:
    return x * 2
