"""Mutating operators: new values are outputs, callers' arrays stay as they are, references are written to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow

X = jnp.asarray([0.5, -1.25, 2.0])


@ow.custom_op("jaxu::scale_", mutates_args=("x",))
def scale_(x: np.ndarray, k: float) -> None:
    x *= np.float32(k)


@ow.custom_op("jaxu::step_", mutates_args=("x", "m"))
def step_(x: np.ndarray, g: np.ndarray, m: np.ndarray, rate: float = 0.5) -> np.ndarray:
    m += g
    x -= np.float32(rate) * m
    return np.asarray((g * g).sum())


@ow.custom_op("jaxu::halve_all_", mutates_args=("xs",))
def halve_all_(xs: list[np.ndarray]) -> None:
    for x in xs:
        np.divide(x, 2, out=x)


@ow.custom_op("jaxu::relu_", mutates_args=("x",), schema="(Tensor(a!) x) -> Tensor(a!)")
def relu_(x: np.ndarray):
    np.maximum(x, 0, out=x)
    return x


step_.register_fake(lambda x, g, m, rate=0.5: g.new_empty(()))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_new_values_follow_the_returns(wrap):
    np.testing.assert_array_equal(wrap(lambda x: scale_(x, 3.0))(X), X * 3)
    norm, x, m = wrap(step_)(X, jnp.ones(3), jnp.full(3, 2.0))
    np.testing.assert_array_equal(norm, 3)
    np.testing.assert_array_equal(m, np.full(3, 3))
    np.testing.assert_array_equal(x, X - 1.5)
    first, second = wrap(halve_all_)([X, 2 * X])
    np.testing.assert_array_equal(first, X / 2)
    np.testing.assert_array_equal(second, X)
    np.testing.assert_array_equal(wrap(relu_)(X), [0.5, 0, 2])
    np.testing.assert_array_equal(X, [0.5, -1.25, 2.0])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_references_hold_the_new_values(wrap):
    x, m, first, second = (jax.new_ref(value) for value in (X, jnp.zeros(3), X, 2 * X))

    def run(x, m, first, second):
        scale_(x, 2.0)
        step_(x, jnp.ones(3), m, rate=1.0)
        relu_(x)
        halve_all_([first, second])

    wrap(run)(x, m, first, second)
    np.testing.assert_array_equal(m[...], np.ones(3))
    np.testing.assert_array_equal(x[...], np.maximum(2 * X - 1, 0))
    np.testing.assert_array_equal(first[...], X / 2)
    np.testing.assert_array_equal(second[...], X)


def test_a_reference_inside_a_loop_and_a_gradient():
    scale_.register_autograd(
        lambda ctx, g: (g * ctx.k, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1]),
    )

    def run(x):
        ref = jax.new_ref(x)
        jax.lax.fori_loop(0, 3, lambda i, _: scale_(ref, 2.0) is None, False)
        return ref[...].sum()

    assert run(X) == (8 * X).sum()
    np.testing.assert_array_equal(jax.grad(run)(X), [8] * 3)


def test_a_mixture_of_references_and_arrays():
    ref = jax.new_ref(jnp.zeros(3))
    norm, x, m = step_(X, jnp.ones(3), ref)
    np.testing.assert_array_equal(ref[...], m)
    np.testing.assert_array_equal(x, X - 0.5)
    assert norm == 3


def test_a_mutating_kernel_of_flavour_jax_returns_its_new_values():
    @ow.custom_op("jaxu::shift_", mutates_args=("x",))
    def shift_(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x += y
        return y * 2

    shift_.register_fake(lambda x, y: ow.empty_like(y))

    @shift_.register_kernel("cpu")
    def shift_jax(x: jax.Array, y: jax.Array):
        return y * 2, x + y

    for wrap in (lambda f: f, jax.jit):
        out, new = wrap(shift_)(X, jnp.ones(3))
        np.testing.assert_array_equal(out, [2] * 3)
        np.testing.assert_array_equal(new, X + 1)
    x = np.zeros(3, np.float32)
    np.testing.assert_array_equal(shift_(x, np.ones(3, np.float32)), [2] * 3)
    np.testing.assert_array_equal(x, [1] * 3)


def test_a_mutating_kernel_of_flavour_jax_that_returns_too_few():
    @ow.custom_op("jaxu::lost_", mutates_args=("x",))
    def lost_(x: jax.Array) -> jax.Array:
        return x * 2

    lost_.register_fake(lambda x: ow.empty_like(x))
    with pytest.raises(ow.errors.OutputError) as caught:
        lost_(X)
    assert str(caught.value) == (
        "kernel of jaxu::lost_ must return its outputs and then the new values of x, "
        "for JAX's arrays are immutable\n"
        "  expected: 2 values\n"
        "  got: 1\n"
        f"  registered at: {lost_._record.source}"
    )


def test_a_kernel_that_returns_another_array_than_the_argument():
    @ow.custom_op("jaxu::copy_", mutates_args=("x",), schema="(Tensor(a!) x) -> Tensor(a!)")
    def copy_(x: np.ndarray):
        return x * 2

    with pytest.raises(ow.errors.OutputError) as caught:
        copy_(X)
    assert str(caught.value).splitlines()[0] == (
        "kernel of jaxu::copy_ must return its argument x itself as output 0"
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="must return its argument x itself as output 0"):
        jax.jit(copy_)(X)


def test_an_operator_without_outputs_runs_for_what_it_does():
    seen = []

    @ow.custom_op("jaxu::watch", mutates_args=())
    def watch(x: np.ndarray) -> None:
        seen.append(np.array(x))

    watch(X)
    np.testing.assert_array_equal(seen.pop(), X)

    @jax.jit
    def run(x):
        watch(x + 1)
        return x

    run(X)
    jax.effects_barrier()
    np.testing.assert_array_equal(seen.pop(), X + 1)
    jax.grad(lambda x: (watch(x), (x * x).sum())[1])(X)
    jax.effects_barrier()
    np.testing.assert_array_equal(seen.pop(), X)
    jax.vmap(lambda x: watch(x))(jnp.stack([X, 2 * X]))
    jax.effects_barrier()
    np.testing.assert_array_equal(sorted(x[0] for x in seen), [0.5, 1.0])


@ow.custom_op("jaxm::two_", mutates_args=("x", "ys"))
def two_(x: np.ndarray, ys: list[np.ndarray]) -> None:
    x += 1


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_one_reference_for_two_mutated_arguments_is_refused(wrap):
    def f(x):
        ref = jax.new_ref(x)
        two_(jax.new_ref(x), [ref, jax.new_ref(x)])
        two_(x, [x, x])  # arrays never change, so that each has a new value of its own
        two_(ref, [jax.new_ref(x), ref])

    with pytest.raises(ow.errors.ArgumentError) as caught:
        wrap(f)(jnp.ones(3))
    assert str(caught.value) == (
        "jaxm::two_: argument ys[1] is a mutable reference that is mutated already\n"
        "  expected: another reference for each argument that is mutated\n"
        "  got: one reference twice, of which only one new value could be kept\n"
        "  to fix: pass jax.new_ref(ys[1][...])"
    )


def test_one_array_twice_is_two_values():
    @ow.custom_op("jaxu::multiply_", mutates_args=("x",))
    def multiply_(x: np.ndarray, y: np.ndarray) -> None:
        x *= y

    @multiply_.register_autograd(setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    def _(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    def f(x):
        return multiply_(x, x).sum()

    np.testing.assert_allclose(multiply_(X, X), X * X)
    for wrap in (lambda f: f, jax.jit):
        np.testing.assert_allclose(wrap(jax.grad(f))(X), 2 * X)
        np.testing.assert_allclose(wrap(jax.hessian(f))(X), 2 * np.eye(3))
        np.testing.assert_allclose(wrap(lambda x: jax.jvp(f, (x,), (x,)))(X)[1], 2 * (X * X).sum())
