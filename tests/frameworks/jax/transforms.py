"""The columns of the matrix: transforms of JAX, each applied to an operator and to its reference alike.

``TRANSFORMS[name](f, args)`` returns arrays. ``NEEDS[name]`` says what of a rule it needs: ``first`` order,
``forward`` mode, ``higher`` order, or ``none``.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

TRANSFORMS = {}
NEEDS = {}


def transform(needs="none", name=None):
    def register(fn):
        key = name or fn.__name__
        TRANSFORMS[key] = fn
        NEEDS[key] = needs
        return fn

    return register


def loss(f):
    """A real number of every output, with curvature of its own."""

    def real(*args):
        outs = f(*args)
        return sum((jnp.sin(jnp.real(out)) + 0.5 * jnp.abs(out) ** 2).sum() for out in outs)

    return real


def all_of(f):
    return lambda *args: jnp.concatenate([jnp.ravel(out) for out in f(*args)])


def argnums(args):
    return tuple(range(len(args)))


def tangents(args):
    return tuple(jnp.asarray(np.cos(np.arange(a.size).reshape(a.shape) + 1).astype(a.dtype)) for a in args)


def rows(args, axis=0, n=2):
    return tuple(jnp.stack([a * (1 + 0.5 * i) for i in range(n)], axis=axis) for a in args)


def gradient(f, args):
    return jax.grad(loss(f), argnums(args))


def holomorphic(args):
    return any(np.iscomplexobj(a) for a in args)


# ------------------------------------------------------------------------------------------ no derivative


@transform()
def eager(f, args):
    return f(*args)


@transform()
def jit(f, args):
    return jax.jit(f)(*args)


@transform()
def jit_twice(f, args):
    g = jax.jit(f)
    return g(*args), g(*args)


@transform()
def nested_jit(f, args):
    return jax.jit(lambda *a: jax.jit(f)(*a))(*args)


@transform()
def eval_shape(f, args):
    return [jnp.zeros(out.shape, out.dtype) for out in jax.eval_shape(f, *args)]


@transform()
def make_jaxpr_and_eval(f, args):
    closed = jax.make_jaxpr(f)(*args)
    return jax.core.jaxpr_as_fun(closed)(*args) if hasattr(jax.core, "jaxpr_as_fun") else _eval(closed, args)


def _eval(closed, args):
    from jax.extend.core import jaxpr_as_fun

    return jaxpr_as_fun(closed)(*args)


@transform()
def lower_and_compile(f, args):
    return jax.jit(f).lower(*args).compile()(*args)


@transform()
def donated(f, args):
    copies = [jnp.array(a) for a in args]
    if f(*args)[0].shape != args[0].shape or f(*args)[0].dtype != args[0].dtype:
        return f(*args)  # XLA can only use a donated buffer for an output of its size
    return jax.jit(f, donate_argnums=0, keep_unused=True)(*copies)


@transform()
def disable_jit(f, args):
    with jax.disable_jit():
        return jax.jit(f)(*args)


@transform()
def debug_nans(f, args):
    with jax.debug_nans(True):
        return f(*args), jax.jit(f)(*args)


@transform()
def named_call(f, args):
    return jax.named_call(f, name="here")(*args)


@transform()
def closed_over_in_jit(f, args):
    return jax.jit(lambda k: [k * out for out in f(*args)])(jnp.float32(2))


# -------------------------------------------------------------------------------------------- first order


@transform("first")
def grad(f, args):
    return gradient(f, args)(*args)


@transform("first")
def value_and_grad(f, args):
    return jax.value_and_grad(loss(f), argnums(args))(*args)


@transform("first")
def grad_of_first_alone(f, args):
    return jax.grad(loss(f))(*args)


@transform("first")
def grad_has_aux(f, args):
    return jax.grad(lambda *a: (loss(f)(*a), f(*a)), argnums(args), has_aux=True)(*args)


@transform("first")
def vjp(f, args):
    outs, pull = jax.vjp(f, *args)
    return outs, pull(tangents(outs))


@transform("first")
def vjp_has_aux(f, args):
    outs, pull, aux = jax.vjp(lambda *a: (f(*a), a), *args, has_aux=True)
    return outs, pull(tangents(outs)), aux


@transform("first")
def jit_grad(f, args):
    return jax.jit(gradient(f, args))(*args)


@transform("first")
def grad_jit(f, args):
    return gradient(jax.jit(f), args)(*args)


@transform("first")
def jit_vjp(f, args):
    outs = f(*args)
    return jax.jit(lambda a, c: jax.vjp(f, *a)[1](c))(tuple(args), tangents(outs))


@transform("forward")
def jvp(f, args):
    return jax.jvp(f, args, tangents(args))


@transform("forward")
def jvp_of_first_alone(f, args):
    return jax.jvp(lambda x: f(x, *args[1:]), args[:1], tangents(args[:1]))


@transform("forward")
def jit_jvp(f, args):
    return jax.jit(lambda a, t: jax.jvp(f, a, t))(tuple(args), tangents(args))


@transform("forward")
def linearize(f, args):
    outs, push = jax.linearize(f, *args)
    return outs, push(*tangents(args))


@transform("first")
def linear_transpose_of_linearize(f, args):
    outs, push = jax.linearize(f, *args)
    return jax.linear_transpose(push, *args)(tangents(outs))


@transform("forward")
def jacfwd(f, args):
    return jax.jacfwd(all_of(f), argnums(args), holomorphic=holomorphic(args))(*args)


@transform("first")
def jacrev(f, args):
    return jax.jacrev(all_of(f), argnums(args), holomorphic=holomorphic(args))(*args)


@transform("forward")
def jit_jacfwd(f, args):
    return jax.jit(jax.jacfwd(all_of(f), argnums(args), holomorphic=holomorphic(args)))(*args)


@transform("first")
def jit_jacrev(f, args):
    return jax.jit(jax.jacrev(all_of(f), argnums(args), holomorphic=holomorphic(args)))(*args)


# ------------------------------------------------------------------------------------------- higher order


@transform("higher")
def hessian(f, args):
    real = loss(f)
    if holomorphic(args):
        return jax.jvp(gradient(f, args), args, tangents(args))
    return jax.hessian(real, argnums(args))(*args)


@transform("higher")
def jit_hessian(f, args):
    return jax.jit(lambda *a: hessian(f, a))(*args)


@transform("higher")
def jacfwd_of_jacfwd(f, args):
    g = jax.jacfwd(all_of(f), holomorphic=holomorphic(args))
    return jax.jacfwd(g, holomorphic=holomorphic(args))(*args)


@transform("higher")
def jacrev_of_jacrev(f, args):
    g = jax.jacrev(all_of(f), holomorphic=holomorphic(args))
    return jax.jacrev(g, holomorphic=holomorphic(args))(*args)


@transform("higher")
def jacrev_of_jacfwd(f, args):
    g = jax.jacfwd(all_of(f), holomorphic=holomorphic(args))
    return jax.jacrev(g, holomorphic=holomorphic(args))(*args)


@transform("higher")
def jacfwd_of_jacrev(f, args):
    g = jax.jacrev(all_of(f), holomorphic=holomorphic(args))
    return jax.jacfwd(g, holomorphic=holomorphic(args))(*args)


@transform("higher")
def grad_of_grad(f, args):
    return jax.grad(lambda *a: sum((jnp.abs(g) ** 2).sum() for g in gradient(f, a)(*a)), argnums(args))(*args)


@transform("higher")
def jvp_of_grad(f, args):
    return jax.jvp(gradient(f, args), args, tangents(args))


@transform("higher")
def jit_jvp_of_grad(f, args):
    return jax.jit(lambda *a: jax.jvp(gradient(f, a), a, tangents(a)))(*args)


@transform("higher")
def jvp_of_jvp(f, args):
    inner = lambda *a: jax.jvp(f, a, tangents(a))  # noqa: E731
    return jax.jvp(inner, args, tangents(args))


@transform("higher")
def grad_of_jvp(f, args):
    inner = lambda *a: loss(lambda *b: jax.jvp(f, b, tangents(b))[1])(*a)  # noqa: E731
    return jax.grad(inner, argnums(args))(*args)


@transform("higher")
def third_order_reverse(f, args):
    real = lambda g: lambda *a: sum((jnp.abs(one) ** 2).sum() for one in g(*a))  # noqa: E731
    g = gradient(f, args)
    g = jax.grad(real(g), argnums(args))
    return jax.grad(real(g), argnums(args))(*args)


@transform("higher")
def third_order_forward(f, args):
    g = f
    for _ in range(3):
        g = partial(lambda h, *a: jax.jvp(h, a, tangents(a))[1], g)
    return g(*args)


# --------------------------------------------------------------------------------------------------- vmap


@transform()
def vmap(f, args):
    return jax.vmap(f)(*rows(args))


@transform()
def jit_vmap(f, args):
    return jax.jit(jax.vmap(f))(*rows(args))


@transform()
def vmap_inner_axis(f, args):
    return jax.vmap(f, in_axes=1)(*rows(args, 1))


@transform()
def vmap_negative_axis_and_out_axes(f, args):
    return jax.vmap(f, in_axes=-1, out_axes=-1)(*rows(args, -1))


@transform()
def vmap_of_first_alone(f, args):
    return jax.vmap(f, in_axes=(0, *[None] * (len(args) - 1)))(*rows(args[:1]), *args[1:])


@transform()
def vmap_of_last_alone(f, args):
    return jax.vmap(f, in_axes=(*[None] * (len(args) - 1), 0))(*args[:-1], *rows(args[-1:]))


@transform()
def vmap_closed_over(f, args):
    return jax.vmap(lambda k: [out * k for out in f(*args)])(jnp.arange(2.0))


@transform()
def vmap_of_vmap(f, args):
    return jax.vmap(jax.vmap(f))(*rows(rows(args), n=3))


@transform()
def vmap_of_vmap_crosswise(f, args):
    return jax.vmap(jax.vmap(f, in_axes=1), in_axes=2, out_axes=1)(*rows(rows(args, 1), 2, n=3))


@transform()
def vmap_of_vmap_of_other_arguments(f, args):
    outer = (0, *[None] * (len(args) - 1))
    inner = (*[None] * (len(args) - 1), 0)
    both = rows(args)
    if len(args) == 1:
        return jax.vmap(jax.vmap(f))(*rows(both))
    return jax.vmap(jax.vmap(f, in_axes=inner), in_axes=outer)(both[0], *args[1:-1], both[-1])


@transform()
def vmap_of_one(f, args):
    return jax.vmap(f)(*rows(args, n=1))


@transform()
def vmap_of_none(f, args):
    return jax.vmap(f)(*[jnp.zeros((0, *a.shape), a.dtype) for a in args])


@transform()
def vmap_of_jit(f, args):
    return jax.vmap(jax.jit(f))(*rows(args))


@transform("first")
def vmap_of_grad(f, args):
    return jax.vmap(gradient(f, args))(*rows(args))


@transform("first")
def jit_vmap_of_grad(f, args):
    return jax.jit(jax.vmap(gradient(f, args)))(*rows(args))


@transform("first")
def grad_of_vmap(f, args):
    return gradient(jax.vmap(f), args)(*rows(args))


@transform("first")
def grad_of_vmap_of_first_alone(f, args):
    g = jax.vmap(f, in_axes=(0, *[None] * (len(args) - 1)))
    return gradient(g, args)(*rows(args[:1]), *args[1:])


@transform("first")
def grad_of_vmap_of_last_alone(f, args):
    g = jax.vmap(f, in_axes=(*[None] * (len(args) - 1), 0))
    return gradient(g, args)(*args[:-1], *rows(args[-1:]))


@transform("first")
def jit_grad_of_vmap(f, args):
    return jax.jit(gradient(jax.vmap(f), args))(*rows(args))


@transform("first")
def grad_of_vmap_of_jit(f, args):
    return gradient(jax.vmap(jax.jit(f)), args)(*rows(args))


@transform("first")
def vmap_of_grad_of_jit(f, args):
    return jax.vmap(gradient(jax.jit(f), args))(*rows(args))


@transform("first")
def vmap_of_jit_of_grad(f, args):
    return jax.vmap(jax.jit(gradient(f, args)))(*rows(args))


@transform("first")
def vmap_of_vjp_of_cotangents(f, args):
    outs, pull = jax.vjp(f, *args)
    return jax.vmap(pull)(tuple(rows(tangents(outs), n=3)))


@transform("forward")
def vmap_of_jvp(f, args):
    return jax.vmap(lambda *a: jax.jvp(f, a, tangents(args)))(*rows(args))


@transform("forward")
def jvp_of_vmap(f, args):
    many = rows(args)
    return jax.jvp(jax.vmap(f), many, tangents(many))


@transform("forward")
def vmap_of_linearized(f, args):
    _, push = jax.linearize(f, *args)
    return jax.vmap(push)(*rows(tangents(args), n=3))


@transform("higher")
def vmap_of_hessian(f, args):
    return jax.vmap(lambda *a: hessian(f, a))(*rows(args))


@transform("higher")
def hessian_of_vmap(f, args):
    many = rows(args)
    return hessian(jax.vmap(f), many)


@transform("higher")
def grad_of_vmap_of_grad(f, args):
    inner = jax.vmap(gradient(f, args))
    return jax.grad(lambda *a: sum((jnp.abs(g) ** 2).sum() for g in inner(*a)), argnums(args))(*rows(args))


@transform("first")
def vmap_of_grad_of_vmap(f, args):
    return jax.vmap(gradient(jax.vmap(f), args))(*rows(rows(args), n=3))


# ------------------------------------------------------------------------------------------- control flow


def scanned(f):
    def run(*args):
        def body(carry, k):
            return carry + k, f(*[a * (1 + k) for a in args])

        return jax.lax.scan(body, jnp.zeros(()), jnp.arange(3.0))[1]

    return run


@transform()
def scan(f, args):
    return scanned(f)(*args)


@transform("first")
def grad_of_scan(f, args):
    return gradient(scanned(f), args)(*args)


@transform("first")
def jit_grad_of_scan(f, args):
    return jax.jit(gradient(scanned(f), args))(*args)


@transform("forward")
def jvp_of_scan(f, args):
    return jax.jvp(scanned(f), args, tangents(args))


@transform("higher")
def hessian_of_scan(f, args):
    return hessian(scanned(f), args)


@transform()
def vmap_of_scan(f, args):
    return jax.vmap(scanned(f))(*rows(args))


@transform("first")
def vmap_of_grad_of_scan(f, args):
    return jax.vmap(gradient(scanned(f), args))(*rows(args))


@transform("first")
def grad_of_scan_over_rows(f, args):
    def over(*many):
        return jax.lax.scan(lambda c, one: (c, f(*one)), 0, many)[1]

    return gradient(over, args)(*rows(args))


@transform()
def map_over_rows(f, args):
    return jax.lax.map(lambda one: f(*one), rows(args))


def conditional(f):
    def run(*args):
        away = lambda *a: tuple(out * 2 for out in f(*a))  # noqa: E731
        return jax.lax.cond(jnp.real(args[0]).ravel()[0] > 0, f, away, *args)

    return run


@transform()
def cond(f, args):
    return conditional(f)(*args)


@transform("first")
def grad_of_cond(f, args):
    return gradient(conditional(f), args)(*args)


@transform("first")
def vmap_of_grad_of_cond(f, args):
    many = tuple(jnp.stack([a, -a]) for a in args)
    return jax.vmap(gradient(conditional(f), args))(*many)


def looped(f):
    def run(*args):
        shapes = jax.eval_shape(f, *args)
        start = tuple(jnp.zeros(one.shape, one.dtype) for one in shapes)
        body = lambda s: (s[0] + 1, tuple(a + b for a, b in zip(s[1], f(*args), strict=True)))  # noqa: E731
        return jax.lax.while_loop(lambda s: s[0] < 3, body, (0, start))[1]

    return run


@transform()
def while_loop(f, args):
    return looped(f)(*args)


@transform("forward")
def jvp_of_while_loop(f, args):
    return jax.jvp(looped(f), args, tangents(args))


@transform("first")
def grad_of_fori_loop(f, args):
    def run(*a):
        body = lambda i, s: tuple(x + y for x, y in zip(s, f(*a), strict=True))  # noqa: E731
        return jax.lax.fori_loop(0, 2, body, f(*a))

    return gradient(run, args)(*args)


# ----------------------------------------------------------------------------------------------- wrappers


@transform("first")
def checkpoint(f, args):
    return gradient(jax.checkpoint(f), args)(*args)


@transform("first")
def checkpoint_with_policy(f, args):
    policy = jax.checkpoint_policies.everything_saveable
    return gradient(jax.checkpoint(f, policy=policy), args)(*args)


@transform("first")
def jit_of_checkpoint(f, args):
    return jax.jit(gradient(jax.checkpoint(f), args))(*args)


@transform("higher")
def hessian_of_checkpoint(f, args):
    return hessian(jax.checkpoint(f), args)


@transform("first")
def vmap_of_grad_of_checkpoint(f, args):
    return jax.vmap(gradient(jax.checkpoint(f), args))(*rows(args))


@transform("first")
def inside_custom_vjp(f, args):
    @jax.custom_vjp
    def g(*a):
        return f(*a)

    def forward(*a):
        outs, pull = jax.vjp(f, *a)
        return outs, pull

    g.defvjp(forward, lambda pull, cts: pull(cts))
    return gradient(g, args)(*args)


@transform("first")
def grad_under_disable_jit(f, args):
    with jax.disable_jit():
        return gradient(jax.jit(f), args)(*args)


@transform("first")
def grad_under_debug_nans(f, args):
    with jax.debug_nans(True):
        return gradient(f, args)(*args), jax.jit(gradient(f, args))(*args)


@transform()
def stop_gradient(f, args):
    return jax.grad(lambda *a: loss(f)(*[jax.lax.stop_gradient(one) for one in a]), argnums(args))(*args)


@transform("first")
def numpy_arguments(f, args):
    return gradient(f, args)(*[np.asarray(a) for a in args])


@transform()
def stop_gradient_of_numpy(f, args):
    g = lambda *a: loss(f)(*[jax.lax.stop_gradient(one) for one in a])  # noqa: E731
    return jax.grad(g, argnums(args))(*[np.asarray(a) for a in args])


@transform()
def committed_to_second_device(f, args):
    device = jax.devices("cpu")[1]
    placed = [jax.device_put(a, device) for a in args]
    outs = f(*placed), jax.jit(f)(*placed)
    assert all(out.devices() == {device} for out in jax.tree.leaves(outs))
    return outs


@transform()
def default_device(f, args):
    with jax.default_device(jax.devices("cpu")[1]):
        outs = f(*args)
    assert all(out.devices() == {jax.devices("cpu")[1]} for out in outs)
    return outs


# ----------------------------------------------------------------------------------------------- sharding


def spread(f, *, check=True):
    mesh = jax.make_mesh(
        (2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2]
    )
    spec = jax.sharding.PartitionSpec("i")

    def each(*parts):
        return tuple(out[None] for out in f(*[part[0] for part in parts]))

    return jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check)


@transform()
def shard_map(f, args):
    return jax.jit(spread(f))(*rows(args))


@transform()
def shard_map_unchecked(f, args):
    return jax.jit(spread(f, check=False))(*rows(args))


@transform("first")
def grad_of_shard_map(f, args):
    return jax.jit(gradient(spread(f), args))(*rows(args))


@transform("first")
def grad_inside_shard_map(f, args):
    return jax.jit(spread(gradient(f, args)))(*rows(args))


@transform("higher")
def hessian_inside_shard_map(f, args):
    if holomorphic(args):
        along = lambda a: tuple(t + 0 * one for t, one in zip(tangents(a), a, strict=True))  # noqa: E731
        g = lambda *a: tuple(jax.jvp(gradient(f, a), a, along(a))[1])  # noqa: E731
    else:
        g = lambda *a: tuple(jax.tree.leaves(jax.hessian(loss(f), argnums(a))(*a)))  # noqa: E731
    return jax.jit(spread(g))(*rows(args))


@transform("first")
def grad_of_shard_map_with_replicated_arguments(f, args):
    mesh = jax.make_mesh(
        (2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2]
    )
    part, whole = jax.sharding.PartitionSpec("i"), jax.sharding.PartitionSpec()

    def each(first, *others):
        return tuple(out[None] for out in f(first[0], *others))

    specs = (part, *[whole] * (len(args) - 1))
    g = jax.shard_map(each, mesh=mesh, in_specs=specs, out_specs=part)
    return jax.jit(gradient(g, args))(*rows(args[:1]), *args[1:])


@transform()
def sharded_automatically(f, args):
    mesh = jax.make_mesh(
        (2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2]
    )
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    many = [jax.device_put(a, where) for a in rows(args)]
    return jax.jit(jax.vmap(f))(*many), jax.vmap(f)(*many)


@transform("first")
def grad_sharded_automatically(f, args):
    mesh = jax.make_mesh(
        (2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2]
    )
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    many = [jax.device_put(a, where) for a in rows(args)]
    return jax.jit(jax.vmap(gradient(f, args)))(*many)


@transform()
def pmap(f, args):
    return jax.pmap(f, devices=jax.devices("cpu")[:2])(*rows(args))
