"""Rules of derivatives: how often they run, what their context holds, what reaches them."""

from __future__ import annotations

import enum
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow

X = jnp.asarray([0.5, -1.25, 2.0])
_counter = iter(range(1000))


class Kind(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


def made(backward=None, setup=None, jvp=None, jvp_setup=None, **options):
    @ow.custom_op(f"jaxd::op{next(_counter)}", mutates_args=(), **options)
    def op(x: np.ndarray, y: np.ndarray, n: int = 2) -> np.ndarray:
        return x * y

    op.register_fake(lambda x, y, n=2: ow.empty_like(x))
    if backward is not None:
        op.register_autograd(backward, setup_context=setup)
    if jvp is not None:
        ow.register_jvp(op, jvp, setup_context=jvp_setup)
    return op


def saving(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def test_each_rule_serves_its_own_direction():
    calls = []

    def backward(ctx, g):
        calls.append("backward")
        x, y = ctx.saved_tensors
        return g * y, g * x

    def jvp(ctx, tx, ty, tn):
        calls.append("jvp")
        x, y = ctx.saved_tensors
        assert tn is None
        return tx * y + x * ty

    op = made(backward, saving, jvp)
    jax.grad(lambda x: op(x, x).sum())(X)
    assert calls == ["backward"]
    calls.clear()
    jax.jvp(lambda x: op(x, x), (X,), (X,))
    assert set(calls) == {"jvp"}
    calls.clear()
    jax.jit(jax.jacfwd(lambda x: op(x, x)))(X)
    assert set(calls) == {"jvp"}


def test_setup_context_runs_once_and_never_without_a_derivative():
    calls = []

    def setup(ctx, inputs, output):
        calls.append(ctx.needs_input_grad)
        saving(ctx, inputs, output)

    op = made(lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]), setup)
    op(X, X)
    jax.jit(op)(X, X)
    jax.vmap(op, in_axes=(None, None), axis_size=2, out_axes=None)(X, X)
    assert calls == []
    jax.grad(lambda x: op(x, X).sum())(X)
    jax.grad(lambda y: op(X, y).sum())(X)
    jax.grad(lambda x: op(x, x).sum())(X)
    assert calls == [(True, False, False), (False, True, False), (True, True, False)]


def test_needs_input_grad_is_nested_for_lists():
    needs = []

    @ow.custom_op("jaxd::lists", mutates_args=())
    def lists(xs: list[np.ndarray], y: np.ndarray | None = None) -> np.ndarray:
        return xs[0] + xs[1]

    lists.register_fake(lambda xs, y=None: ow.empty_like(xs[0]))
    lists.register_autograd(
        lambda ctx, g: ([g, None], None),
        setup_context=lambda ctx, inputs, output: needs.append(ctx.needs_input_grad),
    )
    got = jax.grad(lambda x: lists([x, X]).sum())(X)
    np.testing.assert_array_equal(got, [1] * 3)
    assert needs == [((True, False), False)]


def test_needs_input_grad_has_an_entry_for_each_keyword_only_argument():
    needs = []

    @ow.custom_op("jaxd::named", mutates_args=())
    def named(x: np.ndarray, *, y: np.ndarray, s: float = 1.0) -> np.ndarray:
        return x * y * s

    @named.register_fake
    def _(x, *, y, s=1.0):
        return ow.empty_like(x)

    def setup(ctx, inputs, keyword_only_inputs, output):
        ctx.save_for_backward(inputs[0], keyword_only_inputs["y"])

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        needs.append(ctx.needs_input_grad)
        return {name: g * one for name, one, on in zip("xy", (y, x), needs[-1], strict=False) if on}

    named.register_autograd(backward, setup_context=setup)
    for argument in (0, 1):
        got = jax.grad(lambda x, y: named(x, y=y).sum(), argument)(X, 3 * X)
        np.testing.assert_array_equal(got, (3 * X, X)[argument])
    assert needs == [(True, False, False), (False, True, False)]
    needs.clear()
    x = np.ones(3)
    ow.vjp(named, x, y=3 * x)[1](x)
    assert needs == [(True, True, False)]


def test_attributes_of_the_context():
    def setup(ctx, inputs, output):
        x, y, n = inputs
        ctx.deep = {"arrays": [x, (y, None)], "number": n}
        ctx.kind = Kind.FAST
        ctx.helper = len
        ctx.shape = x.shape

    def backward(ctx, g):
        x, (y, nothing) = ctx.deep["arrays"]
        assert nothing is None
        assert ctx.kind is Kind.FAST
        assert ctx.helper(ctx.shape) == 1
        return {"x": g * y * ctx.deep["number"], "y": g * x}

    op = made(backward, setup)
    op.register_vmap(lambda info, in_dims, x, y, n: (op(x, y, n), in_dims[0]))
    f = lambda x: op(x, x, 3).sum()  # noqa: E731
    for slope in (jax.grad(f), jax.jit(jax.grad(f)), lambda x: jax.jvp(f, (x,), (jnp.ones(3),))[1]):
        got = slope(X)
        expected = 4 * X
        np.testing.assert_allclose(got, expected if got.shape else expected.sum(), rtol=1e-6)
    many = jnp.stack([X, 2 * X])
    np.testing.assert_allclose(jax.vmap(jax.grad(f))(many), 4 * many, rtol=1e-6)
    np.testing.assert_allclose(jax.hessian(f)(X), 4 * np.eye(3), rtol=1e-6)


class Pair(NamedTuple):
    x: object
    y: object


@pytest.mark.parametrize(
    ("keep", "read"),
    [
        (lambda x, y: [x, y], lambda kept: kept),
        (lambda x, y: {"x": x, "y": y}, lambda kept: (kept["x"], kept["y"])),
        (lambda x, y: Pair(x, (y, None)), lambda kept: (kept.x, kept.y[0])),
    ],
)
def test_containers_of_the_context_have_derivatives_of_every_order(keep, read):
    def backward(ctx, g):
        x, y = read(ctx.kept)
        return {"x": g * y, "y": g * x}

    op = made(backward, lambda ctx, inputs, output: setattr(ctx, "kept", keep(*inputs[:2])))
    loss = lambda x: (op(x, x * x) * x).sum()  # noqa: E731
    plain = lambda x: (x**4).sum()  # noqa: E731
    for order in (jax.grad, jax.hessian, lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (2 * x,))[1]):
        np.testing.assert_allclose(order(loss)(X), order(plain)(X), rtol=1e-5)
        np.testing.assert_allclose(jax.jit(order(loss))(X), order(plain)(X), rtol=1e-5)


def test_an_attribute_that_is_new_each_time_does_not_compile_each_time():
    def setup(ctx, inputs, output):
        y = inputs[1]
        ctx.pull = lambda g: g * y  # closes over an array: only right eagerly or in one trace

    op = made(lambda ctx, g: (ctx.pull(g), None), setup)
    push = lambda: jax.jvp(lambda x: op(x, X), (X,), (jnp.ones(3),))  # noqa: E731
    push()
    with warnings.catch_warnings():
        compiled = []
        jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
        push()
    jax.monitoring.clear_event_listeners()
    assert not [event for event in compiled if "backend_compile" in event]
    np.testing.assert_array_equal(push()[1], X)


def test_gradients_of_unused_outputs():
    seen = []

    @ow.custom_op("jaxd::split", mutates_args=())
    def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return x * 2, x * 3, np.argsort(x)

    split.register_fake(lambda x: (ow.empty_like(x), ow.empty_like(x), ow.empty_like(x, dtype="int32")))

    wanted = [True, False]

    def setup(ctx, inputs, output):
        ctx.set_materialize_grads(wanted.pop(0))

    def backward(ctx, g, h, i):
        seen.append((g, h, i))
        return (0 if g is None else 2 * g) + (0 if h is None else 3 * h)

    split.register_autograd(backward, setup_context=setup)
    for _ in range(2):
        np.testing.assert_array_equal(jax.grad(lambda x: split(x)[1].sum())(X), [3] * 3)
    (g, h, i), (none, other, nothing) = seen
    np.testing.assert_array_equal(g, np.zeros(3))
    np.testing.assert_array_equal(i, np.zeros(3, np.int32))
    assert i.dtype == np.int32
    assert none is None
    assert nothing is None
    np.testing.assert_array_equal(other, h)


def test_gradients_are_cast_to_their_inputs():
    op = made(lambda ctx, g: (np.ones(3), g.astype(jnp.float16)), saving)
    gx, gy = jax.grad(lambda x, y: op(x, y).sum(), (0, 1))(X, X)
    assert gx.dtype == gy.dtype == np.float32


def test_the_gradient_of_a_real_input_of_a_complex_output():
    @ow.custom_op("jaxd::turned", mutates_args=())
    def turned(x: np.ndarray) -> np.ndarray:
        return (x * (1 + 2j)).astype(np.complex64)

    turned.register_fake(lambda x: ow.empty_like(x, dtype="complex64"))
    turned.register_autograd(lambda ctx, g: (g * (1 - 2j)).real)
    for real in (jnp.real, jnp.imag):
        got = jax.grad(lambda x, real=real: real(turned(x)).sum())(X)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, jax.grad(lambda x, real=real: real(x * (1 + 2j)).sum())(X))


def test_declared_non_differentiable():
    op = made(non_differentiable=True)
    np.testing.assert_array_equal(jax.grad(lambda x: (op(x, X) + x).sum())(X), [1] * 3)
    np.testing.assert_array_equal(jax.jvp(lambda x: op(x, X), (X,), (X,))[1], [0] * 3)


def test_a_kernel_without_rule_can_be_called_beside_a_derivative():
    op = made()
    got = jax.grad(lambda x: (x * op(jax.lax.stop_gradient(x), X)).sum())(X)
    np.testing.assert_allclose(got, X * X)


def test_integer_inputs_have_no_gradient():
    op = made(lambda ctx, g: (g, None), saving)
    assert jax.grad(lambda i: op(X, i).sum(), allow_int=True)(jnp.arange(3)).dtype == jax.dtypes.float0


def test_a_backward_without_a_rule_of_its_own_goes_one_order_deep():
    @ow.custom_op("jaxd::opaque", mutates_args=())
    def opaque(g: np.ndarray, x: np.ndarray) -> np.ndarray:
        return 2 * g * x

    opaque.register_fake(lambda g, x: ow.empty_like(x))
    op = made(lambda ctx, g: (opaque(g, ctx.saved_tensors[0]), None), saving)
    f = lambda x: op(x, x).sum()  # noqa: E731
    np.testing.assert_allclose(jax.grad(f)(X), 2 * X)
    np.testing.assert_allclose(jax.jit(jax.grad(f))(X), 2 * X)
    for higher in (
        lambda: jax.hessian(f)(X),
        lambda: jax.jvp(f, (X,), (X,)),
        lambda: jax.grad(jax.grad(lambda x: f(x * X)))(1.0),
    ):
        with pytest.raises(
            ow.errors.MissingRuleError, match="jaxd::opaque: no autograd formula is registered"
        ):
            higher()


def test_residuals_are_the_callers_arrays():
    kept = []
    op = made(lambda ctx, g: (kept.append(ctx.saved_tensors[0]) or g, None), saving)
    _, pull = jax.vjp(lambda x: op(x, X), X)
    pull(X)
    assert kept[0].unsafe_buffer_pointer() == X.unsafe_buffer_pointer()


@pytest.mark.parametrize("x", [1.5, np.float32(1.5), np.asarray(1.5, np.float32)])
def test_primals_and_tangents_may_be_numbers(x):
    @ow.custom_op("jaxd::sine", mutates_args=())
    def sine(x: np.ndarray, n: int = 0) -> np.ndarray:
        return np.asarray(np.sin(x + n * np.pi / 2), x.dtype)

    sine.register_fake(lambda x, n=0: ow.empty_like(x))

    def setup_context(ctx, inputs, output):
        x, ctx.n = inputs
        ctx.save_for_backward(x)

    sine.register_autograd(
        lambda ctx, g: (g * sine(ctx.saved_tensors[0], ctx.n + 1), None), setup_context=setup_context
    )
    f = sine
    for n in range(1, 4):
        f = jax.grad(f)
        np.testing.assert_allclose(f(x), np.sin(1.5 + n * np.pi / 2), rtol=1e-5)
    one = type(x)(1.0) if not isinstance(x, np.ndarray) else np.ones_like(x)
    np.testing.assert_allclose(jax.jvp(sine, (x,), (one,))[1], np.cos(1.5), rtol=1e-5)
    np.testing.assert_allclose(jax.vjp(sine, x)[1](jnp.float32(2.0))[0], 2 * np.cos(1.5), rtol=1e-5)
    np.testing.assert_allclose(jax.linearize(sine, x)[1](one), np.cos(1.5), rtol=1e-5)
    np.testing.assert_allclose(jax.hessian(sine)(x), -np.sin(1.5), rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_an_operator_is_not_transposed(wrap):
    @jax.custom_jvp
    def twice(x):
        return 2 * x

    twice.defjvp(lambda primals, tangents: (twice(*primals), scaled(*tangents)))

    @ow.custom_op("jaxa::scaled", mutates_args=())
    def scaled(x: np.ndarray) -> np.ndarray:
        return x * np.float32(2)

    scaled.register_fake(ow.empty_like)
    x = jnp.ones(3)
    np.testing.assert_array_equal(wrap(lambda x: jax.jvp(twice, (x,), (x,))[1])(x), [2] * 3)
    text = (
        "jaxa::scaled is called on the tangents of a derivative, and JAX transposes it\n"
        "  expected: a linear function: an operator is not known to be one\n"
        "  got: a call in the rule of a jax.custom_jvp, or jax.linear_transpose of the operator itself\n"
        "  to fix: write that rule with jax.custom_vjp, or take jax.vjp of the operator"
    )
    for f in (jax.grad(lambda x: twice(x).sum()), lambda x: jax.linear_transpose(scaled, x)(x)):
        with pytest.raises(ow.errors.UnsupportedError) as caught:
            wrap(f)(x)
        assert str(caught.value) == text
