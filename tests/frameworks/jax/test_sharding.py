"""Meshes: what a kernel sees under automatic, manual and explicit sharding. Values are in the matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import opwright as ow

SEEN = []


@ow.custom_op("jaxs::square", mutates_args=())
def square(x: np.ndarray) -> np.ndarray:
    SEEN.append(x.shape)
    return x * x


@ow.custom_op("jaxs::traced", mutates_args=())
def traced(x: ow.Array) -> ow.Array:
    return x * x


square.register_fake(lambda x: ow.empty_like(x))
square.register_vmap(lambda info, in_dims, x: (square(x), in_dims[0]))
for _op in (square, traced):
    _op.register_autograd(
        lambda ctx, g: 2 * ctx.saved_tensors[0] * g,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )


def mesh(kind):
    return jax.make_mesh((2,), ("i",), axis_types=(kind,), devices=jax.devices("cpu")[:2])


def spread(kind):
    where = NamedSharding(mesh(kind), PartitionSpec("i"))
    return jax.device_put(jnp.arange(8.0).reshape(4, 2), where)


def test_automatic_sharding_gives_a_host_kernel_the_whole_array():
    SEEN.clear()
    np.testing.assert_array_equal(jax.jit(square)(spread(AxisType.Auto)), np.arange(8.0).reshape(4, 2) ** 2)
    assert set(SEEN) == {(4, 2)}


def test_shard_map_gives_each_device_its_part():
    SEEN.clear()
    spec = PartitionSpec("i")
    f = jax.jit(jax.shard_map(square, mesh=mesh(AxisType.Auto), in_specs=spec, out_specs=spec))
    np.testing.assert_array_equal(f(spread(AxisType.Auto)), np.arange(8.0).reshape(4, 2) ** 2)
    assert SEEN == [(2, 2), (2, 2)]


def total(op):
    return lambda x: op(x).sum()


@pytest.mark.parametrize("op", [square, traced], ids=["host", "traced"])
@pytest.mark.parametrize(
    "transform",
    [
        lambda op: op,
        jax.jit,
        lambda op: jax.grad(total(op)),
        lambda op: jax.jit(jax.grad(total(op))),
        lambda op: lambda x: jax.jvp(op, (x,), (x,))[1],
        jax.vmap,
        lambda op: jax.vmap(jax.grad(total(op))),
        lambda op: jax.grad(total(jax.vmap(op))),
        lambda op: jax.jit(jax.vmap(jax.grad(total(op)))),
        lambda op: lambda x: jax.jvp(jax.grad(total(op)), (x,), (x,))[1],
        lambda op: jax.hessian(total(op)),
        lambda op: jax.jit(jax.hessian(total(op))),
        lambda op: jax.jacfwd(jax.jacfwd(total(op))),
        lambda op: jax.jit(jax.jacrev(jax.jacrev(total(op)))),
    ],
    ids=[
        "eager",
        "jit",
        "grad",
        "jit_grad",
        "jvp",
        "vmap",
        "vmap_grad",
        "grad_vmap",
        "jit_vmap_grad",
        "jvp_grad",
        "hessian",
        "jit_hessian",
        "jacfwd_jacfwd",
        "jit_jacrev_jacrev",
    ],
)
def test_explicit_sharding(op, transform):
    x = spread(AxisType.Explicit)
    with jax.set_mesh(mesh(AxisType.Explicit)):
        got = transform(lambda x: op(x))(x)
    plain = jnp.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(got, transform(lambda x: x * x)(plain))
