"""Faults that gave wrong numbers without a word in prototypes or in other bindings: each has a test here."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright.errors import GradientError, OutputError

X = jnp.asarray([0.5, -1.25, 2.0])


def spread(f):
    mesh = jax.make_mesh(
        (2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2]
    )
    spec = jax.sharding.PartitionSpec("i")
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))


@ow.custom_op("jaxf::told", mutates_args=())
def told(x: np.ndarray, k: int | float | bool) -> np.ndarray:
    kinds = {bool: 1, int: 2, float: 3}
    return np.full(x.shape, kinds[type(k)] * 10 + np.copysign(1, k), x.dtype)


told.register_fake(lambda x, k: ow.empty_like(x))


def test_equal_static_values_of_other_types_are_other_calls():
    got = jax.jit(lambda x: [told(x, k)[0] for k in (1, 1.0, True, 0.0, -0.0)])(X)
    np.testing.assert_array_equal(np.asarray(got), [21, 31, 11, 31, 29])


def test_equal_static_values_of_other_types_are_other_derivatives():
    @ow.custom_op("jaxf::told_apart", mutates_args=())
    def told_apart(x: np.ndarray, k: int | float) -> np.ndarray:
        return x * 1

    told_apart.register_fake(lambda x, k: ow.empty_like(x))
    told_apart.register_autograd(
        lambda ctx, g: (g * (2 if ctx.kind is int else 3), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "kind", type(inputs[1])),
    )
    slope = lambda x, k: jax.grad(lambda y: told_apart(y, k).sum())(x)[0]  # noqa: E731
    np.testing.assert_array_equal(jax.jit(lambda x: [slope(x, 1), slope(x, 1.0)])(X), [2, 3])
    np.testing.assert_array_equal([slope(X, 1), slope(X, 1.0)], [2, 3])


def test_hessian_inside_shard_map_of_an_operator_that_saves_its_output():
    @ow.custom_op("jaxf::exponential", mutates_args=())
    def exponential(x: np.ndarray) -> np.ndarray:
        return np.exp(x)

    exponential.register_fake(lambda x: ow.empty_like(x))
    exponential.register_autograd(
        lambda ctx, g: g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    many = jnp.stack([X, 2 * X])
    hessian = lambda f: spread(lambda part: jax.hessian(lambda x: f(x).sum())(part[0])[None])(many)  # noqa: E731
    np.testing.assert_allclose(hessian(exponential), hessian(jnp.exp), rtol=1e-5)


def test_a_fake_that_says_float64_means_float32_while_x64_is_off():
    @ow.custom_op("jaxf::wide", mutates_args=())
    def wide(x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64) / 3

    wide.register_fake(lambda x: ow.empty_like(x, dtype="float64"))
    assert not jax.config.jax_enable_x64
    for run in (wide, jax.jit(wide), jax.vmap(wide, in_axes=None, axis_size=1, out_axes=None)):
        assert run(X).dtype == np.float32
    np.testing.assert_allclose(jax.jit(wide)(X), wide(X))
    with jax.enable_x64(True):
        assert wide(X).dtype == jax.jit(wide)(X).dtype == np.float64


@pytest.mark.parametrize("how", ["eager", "jit", "vmap", "jit_vmap"])
@pytest.mark.parametrize("flavour", ["numpy", "array_api"])
def test_arrays_of_64_bits_while_x64_is_off(how, flavour):
    op = ow.custom_op(
        f"jaxf::wide_{how}_{flavour}",
        lambda x: x * x,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
        flavour=flavour,
    )
    op.register_fake(ow.empty_like)
    op.register_vmap(lambda info, in_dims, x: (op(x), in_dims[0]))
    with jax.enable_x64(True):
        x = jnp.asarray([[0.5, -1.25]], jnp.float64)
    f = jax.vmap(op) if "vmap" in how else op
    got = (jax.jit(f) if "jit" in how else f)(x)
    np.testing.assert_array_equal(got, [[0.25, 1.5625]])


def test_two_equal_calls_of_a_random_operator_are_both_run():
    calls = []

    @ow.custom_op("jaxf::draw", mutates_args=(), tags="nondeterministic_seeded")
    def draw(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x + np.float32(len(calls))

    draw.register_fake(lambda x: ow.empty_like(x))
    first, second = jax.jit(lambda x: (draw(x), draw(x)))(X)
    assert len(calls) == 2
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("size", [4, 1 << 16])
def test_a_result_that_the_kernel_keeps_is_copied(how, size):
    kept = []

    @ow.custom_op("jaxf::keeping", mutates_args=())
    def keeping(x: np.ndarray) -> np.ndarray:
        out = x * 2
        kept.append(out)
        return out

    @ow.custom_op("jaxf::keeping_a_view", mutates_args=())
    def keeping_a_view(x: np.ndarray) -> np.ndarray:
        out = x * 2
        kept.append(out[1:])
        return out

    @ow.custom_op("jaxf::returning_a_view", mutates_args=())
    def returning_a_view(x: np.ndarray) -> np.ndarray:
        out = np.concatenate([x, x]) * 2
        kept.append(out)
        return out[: len(x)]

    for op in (keeping, keeping_a_view, returning_a_view):
        op.register_fake(lambda x: ow.empty_like(x))
        x = jnp.ones(size)
        run = jax.jit(op) if how == "jit" else op
        for _ in range(3):
            got = run(x)
            for one in kept:
                one[...] = 99
            np.testing.assert_array_equal(got, np.full(size, 2, np.float32))


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_a_kernel_cannot_write_to_its_inputs(how):
    @ow.custom_op("jaxf::writing", mutates_args=())
    def writing(x: np.ndarray) -> np.ndarray:
        x[0] = 99
        return x * 1

    writing.register_fake(lambda x: ow.empty_like(x))
    x = jnp.zeros(3)
    run = jax.jit(writing) if how == "jit" else writing
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="assignment destination is read-only"):
        run(x)
    np.testing.assert_array_equal(x, np.zeros(3))


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_a_kernel_that_keeps_its_input_is_refused_in_a_program(shape):
    kept = []

    @ow.custom_op("jaxf::hoarding", mutates_args=())
    def hoarding(x: np.ndarray) -> np.ndarray:
        kept.append(x[:1])
        return x * 1

    hoarding.register_fake(lambda x: ow.empty_like(x))
    np.testing.assert_array_equal(hoarding(jnp.ones(shape)), np.ones(shape))  # eagerly JAX keeps it alive
    with pytest.raises(jax.errors.JaxRuntimeError, match="keeps a view of one of its arrays after the call"):
        jax.jit(hoarding)(jnp.ones(shape))


def test_a_kernel_that_caught_its_own_exception_keeps_nothing():
    @ow.custom_op("jaxf::catching", mutates_args=())
    def catching(x: np.ndarray) -> np.ndarray:
        try:
            raise ValueError("caught below")  # noqa: TRY301  (its traceback refers to this frame)
        except ValueError as error:
            catching.error = error
        out = x * 1
        catching.error = None
        return out

    catching.register_fake(lambda x: ow.empty_like(x))
    np.testing.assert_array_equal(jax.jit(catching)(jnp.ones(3)), np.ones(3))


@pytest.mark.parametrize("wrong", ["dtype", "shape", "scalar", "count"])
def test_a_kernel_that_differs_from_its_fake_is_refused(wrong):
    results = {
        "dtype": lambda x: x.astype(np.int32),
        "shape": lambda x: x[:2] * 1,
        "scalar": lambda x: x.sum(),
        "count": lambda x: (x * 1, x * 1),
    }

    @ow.custom_op(f"jaxf::differing_{wrong}", mutates_args=(), schema="(Tensor x) -> Tensor")
    def differing(x: np.ndarray):
        return results[wrong](x)

    differing.register_fake(lambda x: ow.empty_like(x))
    text = "something else than its schema says" if wrong == "count" else "the kernel and the fake differ"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.jit(differing)(X)


def test_a_traced_kernel_that_differs_from_its_fake_is_refused():
    @ow.custom_op("jaxf::traced_differing", mutates_args=())
    def traced_differing(x: ow.Array) -> ow.Array:
        return x.sum()

    traced_differing.register_fake(lambda x: ow.empty_like(x))
    with pytest.raises(ow.errors.OutputError, match="the kernel and the fake differ"):
        jax.jit(traced_differing)(X)


def test_debug_nans_sees_what_an_eager_kernel_returns():
    @ow.custom_op("jaxf::root", mutates_args=())
    def root(x: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.sqrt(x)

    root.register_fake(lambda x: ow.empty_like(x))
    assert np.isnan(np.asarray(root(X))[1])
    with jax.debug_nans(True):
        for run in (root, jax.jit(root)):
            with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in jaxf::root"):
                run(X)


def test_complex_gradients_follow_torch_in_rules_and_jax_outside():
    @ow.custom_op("jaxf::squared", mutates_args=())
    def squared(x: np.ndarray) -> np.ndarray:
        return x * x

    seen = []

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        seen.append(grad)
        return grad * jnp.conj(2 * x)  # torch's convention

    squared.register_fake(lambda x: ow.empty_like(x))
    squared.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    x, cotangent = jnp.asarray(1 + 2j), jnp.asarray(1 + 1j)
    (got,) = jax.vjp(squared, x)[1](cotangent)
    assert complex(got) == -2 + 6j == complex(jax.vjp(lambda z: z * z, x)[1](cotangent)[0])
    assert complex(seen[0]) == 1 - 1j
    assert complex(jax.grad(squared, holomorphic=True)(x)) == 2 + 4j


def test_registering_a_rule_is_not_answered_with_an_older_program():
    @ow.custom_op("jaxf::growing", mutates_args=())
    def growing(x: np.ndarray) -> np.ndarray:
        return x * 2

    growing.register_fake(lambda x: ow.empty_like(x))
    growing.register_autograd(lambda ctx, g: g * 2)
    slope = lambda x: jax.grad(lambda y: growing(y).sum())(x)[0]  # noqa: E731
    assert slope(X) == 2
    handle = ow.register_autograd(growing, lambda ctx, g: g * 7)
    assert slope(X) == 7
    assert jax.jit(slope)(X) == 7
    handle.destroy()
    assert slope(X) == 2
    growing.register_kernel("cpu", lambda x: x * 5)
    np.testing.assert_array_equal(growing(X), X * 5)
    np.testing.assert_array_equal(jax.jit(growing)(X), X * 5)


def test_a_redefined_operator_takes_its_own_kernel_in_new_programs():
    def define(times):
        @ow.custom_op("jaxf::again", mutates_args=())
        def again(x: np.ndarray) -> np.ndarray:
            return x * np.float32(times)

        again.register_fake(lambda x: ow.empty_like(x))
        return again

    old = define(2)
    kept = jax.jit(old)
    np.testing.assert_array_equal(kept(X), X * 2)
    new = define(3)
    np.testing.assert_array_equal(jax.jit(new)(X), X * 3)
    with pytest.raises(ow.errors.StaleError, match="jaxf::again was redefined"):
        kept(X)


def test_a_closed_over_array_is_no_constant_of_the_trace():
    calls = []

    @ow.custom_op("jaxf::counted", mutates_args=())
    def counted(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x * 2

    counted.register_fake(lambda x: ow.empty_like(x))
    f = jax.jit(lambda k: counted(X) * k)
    f(1.0), f(2.0)
    assert len(calls) == 2


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">c8"])
@pytest.mark.filterwarnings("ignore::opwright.frameworks.jax.vmap.NoVmapRuleWarning")
def test_an_output_of_foreign_byte_order(dtype):
    name = dtype.removeprefix(">")

    @ow.custom_op(f"jaxf::foreign_{name}", mutates_args=())
    def foreign(x: np.ndarray) -> np.ndarray:
        return (x * 2).astype(dtype)

    @ow.custom_op(f"jaxf::two_foreign_{name}", mutates_args=())
    def two_foreign(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (x * 2).astype(dtype), np.asarray(x.sum(), dtype)

    foreign.register_fake(lambda x: ow.empty_like(x))
    two_foreign.register_fake(lambda x: (ow.empty_like(x), x.new_empty(())))
    x = jnp.asarray([1, 2, 3], name)
    for call in (foreign, lambda x: two_foreign(x)[0]):
        for transformed in (call, jax.jit(call)):
            for _ in range(5):
                got = transformed(x)
            np.testing.assert_array_equal(got, [2, 4, 6])
            assert got.dtype == x.dtype
        for batched in (jax.vmap(call), jax.jit(jax.vmap(call))):
            np.testing.assert_array_equal(batched(jnp.stack([x, x])), [[2, 4, 6]] * 2)
    assert [two_foreign(x)[1], jax.jit(two_foreign)(x)[1]] == [6, 6]


@pytest.mark.filterwarnings("ignore::opwright.frameworks.jax.vmap.NoVmapRuleWarning")
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda x: np.ma.masked_less(x, 1), "numpy.ma.MaskedArray"),
        (lambda x: x.view(np.recarray), f"{np.recarray.__module__}.recarray"),
    ],
)
def test_an_output_with_more_than_its_elements(make, got, several):
    returns = "(Tensor, Tensor)" if several else "Tensor"
    made = []

    @ow.custom_op(
        f"jaxf::more_{several}", mutates_args=(), flavour="numpy", schema=f"(Tensor x) -> {returns}"
    )
    def more(x):
        one = make(x * 2) if made else x * 2
        return (one, x * 3) if several else one

    more.register_fake(lambda x: (ow.empty_like(x), ow.empty_like(x)) if several else ow.empty_like(x))
    x = jnp.asarray([[0.5, -1.25]])
    for _ in range(5):
        more(x)
    made.append(True)
    for given in (np.asarray(x), x):
        with pytest.raises(OutputError, match=f"expected: an array of numpy as output 0.*\n  got: .*{got}"):
            more(given)
    batch = jnp.stack([x, x])
    for transformed, given in [(jax.vmap(more), batch), (jax.jit(more), x), (jax.jit(jax.vmap(more)), batch)]:
        with pytest.raises((OutputError, jax.errors.JaxRuntimeError), match=f"as output 0.*\n  got: .*{got}"):
            jax.block_until_ready(transformed(given))


def test_a_gradient_with_more_than_its_elements():
    @ow.custom_op("jaxf::masked_gradient", mutates_args=())
    def doubled(x: np.ndarray) -> np.ndarray:
        return x * 2

    doubled.register_fake(lambda x: ow.empty_like(x))
    ow.register_autograd(doubled, lambda ctx, g: np.ma.masked_less(g * 2, 5), flavour="numpy")
    with pytest.raises(GradientError, match=r"masked_gradient returned a gradient for x[^$]*MaskedArray"):
        jax.grad(lambda x: doubled(x).sum())(X)
