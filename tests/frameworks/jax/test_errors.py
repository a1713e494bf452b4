"""Errors name the operator, what is missing, where it was registered and what to do: whole texts."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright import errors
from opwright.frameworks.jax.vmap import NoVmapRuleWarning
from opwright.source import source_of

X = jnp.asarray([0.5, -1.25, 2.0])


def text_of(kind, run):
    with pytest.raises(kind) as caught:
        run()
    # JAX adds a paragraph of its own to errors that cross its frames.
    return str(caught.value)


def like_x(*args, **kwargs):
    return ow.empty_like(args[0])


@ow.custom_op("jaxe::doubled", mutates_args=())
def doubled(x: np.ndarray, k: float = 2.0, sizes: list[int] = (1,)) -> np.ndarray:
    return x * k


@ow.custom_op("jaxe::bare", mutates_args=())
def bare(x: np.ndarray) -> np.ndarray:
    return x * 2


doubled.register_fake(like_x)


def test_a_tracer_for_a_static_argument():
    assert text_of(TypeError, lambda: jax.jit(doubled)(X, 2.0)) == (
        "jaxe::doubled: argument k is static, and JAX traces it\n"
        "  expected: a value of type float that is known while tracing\n"
        "  got: a traced float32[]\n"
        "  to fix: make k a 0-d Tensor in the schema, or static in the transform "
        "(jax.jit(..., static_argnames='k')), or give it inside the function that JAX transforms"
    )
    np.testing.assert_array_equal(jax.jit(doubled, static_argnames="k")(X, k=3.0), X * 3)


@pytest.mark.filterwarnings("ignore:.*no vmap rule")
def test_a_transform_that_traces_defaults_too():
    rows = jnp.stack([X, X])
    with pytest.raises(errors.ArgumentError, match="or give it inside the function that JAX transforms"):
        jax.vmap(jax.custom_batching.sequential_vmap(doubled))(rows)
    inside = jax.vmap(jax.custom_batching.sequential_vmap(lambda x: doubled(x)))
    np.testing.assert_array_equal(inside(rows), rows * 2)


def test_a_tracer_in_a_static_list():
    assert text_of(TypeError, lambda: jax.jit(lambda x, i: doubled(x, 2.0, [1, i]))(X, 2)) == (
        "jaxe::doubled: argument sizes is static, and JAX traces it\n"
        "  expected: a value of type SymInt[] that is known while tracing\n"
        "  got: a traced int32[]\n"
        "  to fix: make sizes a 1-d Tensor in the schema, or static in the transform "
        "(jax.jit(..., static_argnames='sizes')), or give it inside the function that JAX transforms"
    )


def test_no_fake():
    where = source_of(bare)
    np.testing.assert_array_equal(bare(X), X * 2)
    where = bare._record.source
    assert text_of(errors.MissingRuleError, lambda: jax.jit(bare)(X)) == (
        "no fake impl is registered for jaxe::bare: JAX cannot trace a call without its outputs' shapes\n"
        "  expected: a fake, or a kernel of flavour jax or array_api\n"
        f"  got: kernels for any device (numpy, {where})\n"
        f"  registered at: {where}\n"
        "  to fix: register one: @opwright.register_fake('jaxe::bare')"
    )


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.grad(lambda x: f(x).sum()),
        lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
        lambda f: lambda x: jax.jvp(f, (x,), (x,)),
        jax.jacfwd,
    ],
    ids=["grad", "jit", "jvp", "jacfwd"],
)
def test_no_autograd(transform):
    assert text_of(errors.MissingRuleError, lambda: transform(lambda x: doubled(x))(X)) == (
        "jaxe::doubled: no autograd formula is registered, and JAX differentiates it\n"
        "  expected: a backward or a jvp rule\n"
        "  got: a kernel, which is never differentiated through\n"
        f"  registered at: {doubled._record.source}\n"
        "  to fix: register one: @opwright.register_autograd('jaxe::doubled', setup_context=…); "
        "or stop the gradient with jax.lax.stop_gradient"
    )


def test_a_size_that_depends_on_data():
    @ow.custom_op("jaxe::positive", mutates_args=())
    def positive(x: np.ndarray) -> np.ndarray:
        return np.flatnonzero(x > 0)

    @positive.register_fake
    def fake(x):
        return x.new_empty((ow.get_ctx().new_dynamic_size(),), dtype="int64")

    np.testing.assert_array_equal(positive(X), [0, 2])
    assert text_of(errors.UnsupportedError, lambda: jax.jit(positive)(X)) == (
        "jaxe::positive has outputs whose size depends on data, which JAX cannot trace\n"
        "  expected: shapes that are known while tracing\n"
        "  got: get_ctx().new_dynamic_size() in its fake\n"
        f"  registered at: {source_of(fake)}\n"
        "  to fix: call it outside of jax.jit and its like, or give it a static argument for the size, "
        "as jax.numpy.nonzero(x, size=…) has"
    )


def test_a_size_that_depends_on_data_works_in_eager_derivatives():
    @ow.custom_op("jaxe::chosen", mutates_args=())
    def chosen(x: np.ndarray) -> np.ndarray:
        return x[x > 0]

    chosen.register_fake(lambda x: x.new_empty((ow.get_ctx().new_dynamic_size(),)))

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return jnp.zeros_like(x).at[x > 0].set(grad)

    chosen.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    np.testing.assert_array_equal(jax.grad(lambda x: (chosen(x) ** 2).sum())(X), [1, 0, 4])


# ----------------------------------------------------------------------------------- what rules return

_counter = iter(range(1000))


def with_backward(backward):
    @ow.custom_op(f"jaxe::product{next(_counter)}", mutates_args=())
    def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * y

    product.register_fake(like_x)
    product.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    return product, lambda: jax.grad(lambda x: product(x, x).sum())(X)


@pytest.mark.parametrize(
    ("backward", "message", "expected", "got", "fix"),
    [
        (
            lambda ctx, g: g,
            "returned an incorrect number of gradients (expected 2, got 1)",
            "one for each of x, y",
            "1, none for y",
            "return None for an argument without a gradient, or a dict by argument name",
        ),
        (
            lambda ctx, g: (g, g, g),
            "returned an incorrect number of gradients (expected 2, got 3)",
            "one for each of x, y",
            "3, more than there are arguments",
            "return None for an argument without a gradient, or a dict by argument name",
        ),
        (
            lambda ctx, g: {"z": g},
            "returned gradients for unknown arguments",
            "names among x, y",
            "'z'",
            None,
        ),
        (
            lambda ctx, g: (g, g.sum()),
            "returned a gradient for y that does not fit",
            "an array of shape (3,)",
            "shape ()",
            None,
        ),
        (
            lambda ctx, g: ("no", g),
            "returned a gradient for x that does not fit",
            "an array of shape (3,)",
            "str",
            None,
        ),
    ],
    ids=["one", "three", "unknown", "shape", "type"],
)
def test_wrong_gradients(backward, message, expected, got, fix):
    op, run = with_backward(backward)
    text = f"backward of {op.name} {message}\n  expected: {expected}\n  got: {got}\n"
    text += f"  registered at: {source_of(backward)}"
    assert text_of(errors.GradientError, run) == text + (f"\n  to fix: {fix}" if fix else "")


@pytest.mark.parametrize(
    ("backward", "name", "expected", "got"),
    [
        (lambda ctx, g: g, "xs", "a list, for the argument is one: it must be a list", "ArrayImpl"),
        (lambda ctx, g: [g], "xs", "a list of 2", "list of 1"),
        (lambda ctx, g: ([g, g], g), "k", "None, for it is no array", "ArrayImpl"),
    ],
    ids=["no_list", "short", "static"],
)
def test_wrong_gradients_of_lists_and_statics(backward, name, expected, got):
    @ow.custom_op(f"jaxe::first{next(_counter)}", mutates_args=())
    def first(xs: list[np.ndarray], k: int = 1) -> np.ndarray:
        return xs[0] * k

    first.register_fake(lambda xs, k=1: ow.empty_like(xs[0]))
    first.register_autograd(backward)
    assert text_of(errors.GradientError, lambda: jax.grad(lambda x: first([x, x]).sum())(X)) == (
        f"backward of {first.name} returned a wrong gradient for {name}\n"
        f"  expected: {expected}\n"
        f"  got: {got}\n"
        f"  registered at: {source_of(backward)}"
    )


@pytest.mark.parametrize(
    ("jvp", "message", "expected", "got"),
    [
        (
            lambda ctx, tx: (tx, tx),
            "returned an incorrect number of tangents (expected 1, got 2)",
            "one for each output",
            None,
        ),
        (
            lambda ctx, tx: tx.sum(),
            "returned a tangent for output 0 that does not fit",
            "an array of shape (3,)",
            "shape ()",
        ),
    ],
    ids=["count", "shape"],
)
def test_wrong_tangents(jvp, message, expected, got):
    @ow.custom_op(f"jaxe::forward{next(_counter)}", mutates_args=())
    def forward(x: np.ndarray) -> np.ndarray:
        return x * 1

    forward.register_fake(like_x)
    ow.register_jvp(forward, jvp)
    text = f"jvp of {forward.name} {message}\n  expected: {expected}\n" + (f"  got: {got}\n" if got else "")
    assert text_of(errors.GradientError, lambda: jax.jvp(forward, (X,), (X,))) == (
        f"{text}  registered at: {source_of(jvp)}"
    )


@pytest.mark.parametrize(
    ("rule", "what", "expected", "got"),
    [
        (
            lambda info, d, x: (x * 1.0, 5),
            "an impossible out_dim for output 0",
            "an axis of output 0, from -2 to 1",
            "5 for shape (2, 3)",
        ),
        (
            lambda info, d, x: (x[:1], 0),
            "an out_dim for output 0 that is not the batch's axis",
            "an axis of size 2",
            "axis 0 of shape (1, 3)",
        ),
        (
            lambda info, d, x: (x * 1.0, (0, 0)),
            "a wrong number of out_dims",
            "1, one for each output",
            "(0, 0)",
        ),
        (
            lambda info, d, x: (x * 1.0, "a"),
            "something else than an axis as out_dim of output 0",
            "an int, or None for an output that is not batched",
            "'a' of type str",
        ),
        (
            lambda info, d, x: ([x * 1.0], 0),
            "a list as output 0",
            "no list: jaxe::batched(Tensor x) -> Tensor",
            "a list of 1 (ArrayImpl)",
        ),
        (
            lambda info, d, x: (x * 1.0, None),
            "output 0 unlike the fake's, its batch axis None left out",
            "shape (3,), dtype float32",
            "shape (2, 3), dtype float32",
        ),
        (
            lambda info, d, x: (x.astype(int), 0),
            "output 0 unlike the fake's, its batch axis 0 left out",
            "shape (3,), dtype float32",
            "shape (3,), dtype int32",
        ),
    ],
    ids=["axis", "size", "count", "kind", "list", "unbatched", "dtype"],
)
def test_wrong_vmap_rules(rule, what, expected, got):
    @ow.custom_op(f"jaxe::batched{next(_counter)}", mutates_args=())
    def batched(x: np.ndarray) -> np.ndarray:
        return x * 1

    batched.register_fake(like_x)
    batched.register_vmap(rule)
    expected = expected.replace("jaxe::batched", batched.name)
    assert text_of(errors.OutputError, lambda: jax.vmap(batched)(jnp.ones((2, 3)))) == (
        f"the vmap rule of {batched.name} returned {what}\n"
        f"  expected: {expected}\n"
        f"  got: {got}\n"
        f"  registered at: {source_of(rule)}"
    )


def test_a_vmap_rule_that_returns_no_pair():
    @ow.custom_op("jaxe::unpaired", mutates_args=())
    def unpaired(x: np.ndarray) -> np.ndarray:
        return x * 1

    handle = ow.register_vmap(unpaired, lambda info, d, x: x * 1.0)
    assert text_of(errors.OutputError, lambda: jax.vmap(unpaired)(jnp.ones((2, 3)))) == (
        "the vmap rule of jaxe::unpaired returned something else than (outputs, out_dims)\n"
        "  expected: a pair of the outputs and the batch axis of each\n"
        "  got: shape (2, 3), dtype float32\n"
        f"  registered at: {handle.source}\n"
        "  to fix: return out, 0 for an output with the batch in front, out, None for one without"
    )


# --------------------------------------------------------------------------------- exceptions of kernels


@ow.custom_op("jaxe::failing", mutates_args=())
def failing(x: np.ndarray) -> np.ndarray:
    raise KeyError("lost")


failing.register_fake(like_x)
failing.register_autograd(lambda ctx, g: g)
failing.register_vmap(lambda info, in_dims, x: (failing(x), in_dims[0]))


@pytest.mark.parametrize(
    "run",
    [
        failing,
        jax.grad(lambda x: failing(x).sum()),
        lambda x: jax.jvp(failing, (x,), (x,)),
        jax.vmap(failing),
        jax.linearize(lambda x: x, X)[1] and (lambda x: jax.linearize(failing, x)),
    ],
    ids=["eager", "grad", "jvp", "vmap", "linearize"],
)
def test_a_kernels_exception_reaches_an_eager_caller(run):
    with pytest.raises(KeyError, match="lost") as caught:
        run(X)
    assert caught.traceback[-1].name == "failing"


def test_a_kernels_exception_reaches_the_caller_under_disable_jit():
    with jax.disable_jit(), pytest.raises(KeyError, match="lost"):
        jax.jit(failing)(X)


@pytest.mark.parametrize("run", [jax.jit(failing), lambda x: jax.lax.map(failing, jnp.stack([x, x]))])
def test_a_kernels_exception_in_a_program(run):
    text = text_of(jax.errors.JaxRuntimeError, lambda: run(X))
    where = failing._record.source
    lines = f"kernel of jaxe::failing raised KeyError: 'lost'\n  registered at: {where} (numpy)\nTraceback"
    assert lines in text
    assert re.search(r'File ".*test_errors.py", line \d+, in failing\n +raise KeyError\("lost"\)', text)
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(X), X + 1)


def test_where_our_own_frame_encloses_the_program_the_exception_is_the_kernels():
    mesh = jax.make_mesh(
        (2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2]
    )
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    many = jax.device_put(jnp.ones(4), where)
    with pytest.raises(KeyError, match="lost") as caught:
        failing(many)
    assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
    np.testing.assert_array_equal(doubled(many), [2] * 4)  # JAX reports an unused failure again at exit


# ------------------------------------------------------------------------------- values of traced arrays


def test_setup_context_that_needs_values():
    @ow.custom_op("jaxe::valued", mutates_args=())
    def valued(x: np.ndarray) -> np.ndarray:
        return x * x[0]

    def setup(ctx, inputs, output):
        ctx.k = float(inputs[0][0])

    valued.register_fake(like_x)

    def backward(ctx, g):
        return g * ctx.k

    valued.register_autograd(backward, setup_context=setup)
    slope = jax.grad(lambda x: valued(x).sum())
    np.testing.assert_array_equal(slope(X), [0.5] * 3)
    assert text_of(TypeError, lambda: jax.jit(slope)(X)) == (
        "the setup_context of jaxe::valued needs the values of an array that JAX traces\n"
        "  expected: a body that works on shapes, dtypes and array operations alone\n"
        "  got: ConcretizationTypeError: Abstract tracer value encountered where concrete value is expected: "
        "traced array with shape float32[]\n"
        f"  registered at: {source_of(backward)}\n"
        "  to fix: compute with arrays instead of Python numbers, take sizes from a static argument, "
        "or call the operator outside of jax.jit"
    )


def test_a_traced_kernel_that_calls_numpy():
    @ow.custom_op("jaxe::numpy_inside", mutates_args=())
    def numpy_inside(x: ow.Array) -> ow.Array:
        return np.sin(x)

    np.testing.assert_allclose(numpy_inside(X), np.sin(X), rtol=1e-6)
    assert text_of(TypeError, lambda: jax.jit(numpy_inside)(X)) == (
        "the kernel of jaxe::numpy_inside needs the values of an array that JAX traces\n"
        "  expected: a body that works on shapes, dtypes and array operations alone\n"
        "  got: TracerArrayConversionError: The numpy.ndarray conversion method __array__() was called on "
        "traced array with shape float32[3]\n"
        f"  registered at: {numpy_inside._record.source}\n"
        "  to fix: compute with opwright.array_namespace(x) instead of numpy, "
        "or call the operator outside of jax.jit"
    )


# ------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("make", "message", "expected", "got", "fix"),
    [
        (
            lambda: jax.random.key(0),
            "cannot be taken",
            "an array of numbers",
            "a key of dtype key<fry>",
            "pass jax.random.key_data(y)",
        ),
        (
            lambda: np.array([object()]),
            "cannot be taken",
            "a dtype that JAX has",
            "a numpy.ndarray of dtype object",
            None,
        ),
        (
            lambda: np.ma.masked_array([1.0, 2.0, 3.0]),
            "cannot be taken",
            "a numpy.ndarray as a constant beside JAX's arrays",
            "a numpy.ma.MaskedArray",
            "pass numpy.asarray(y)",
        ),
        (
            lambda: 1.0,
            "must be an array",
            "an array of a framework, such as numpy.ndarray, torch.Tensor or jax.Array",
            "float",
            "make it one first, for example numpy.asarray(y)",
        ),
        (
            lambda: jax.new_ref(X),
            "is a mutable reference, and the operator only reads it",
            "an array of jax",
            "a Ref of Ref{float32[3]}",
            "pass y[...]",
        ),
    ],
    ids=["key", "object", "masked", "float", "reference"],
)
def test_arguments_that_are_refused(make, message, expected, got, fix):
    op, _ = with_backward(lambda ctx, g: (g, g))
    text = f"{op.name}: argument y {message}\n  expected: {expected}\n  got: {got}"
    assert text_of(TypeError, lambda: op(X, make())) == text + (f"\n  to fix: {fix}" if fix else "")


def test_numpy_arrays_beside_jax_arrays_are_constants():
    op, _ = with_backward(lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]))
    y = np.array([1, 2, 3], np.float32)
    for a, b in ((X, y), (y, X)):
        np.testing.assert_array_equal(op(a, b), X * y)
        np.testing.assert_array_equal(jax.jit(lambda x, b=b, a=a: op(x, b) if a is X else op(a, x))(X), X * y)
    np.testing.assert_array_equal(op(y, y), y * y)
    assert type(op(y, y)) is np.ndarray
    np.testing.assert_array_equal(jax.grad(lambda x: op(y, x).sum())(X), y)


@pytest.mark.parametrize("flavour", ["array_api", "numpy"])
@pytest.mark.parametrize("kind", ["gradient", "tangent"])
def test_a_complex_derivative_of_what_is_real(flavour, kind):
    @ow.custom_op(f"jaxe::turned_{kind}_{flavour}", mutates_args=())
    def turned(x: np.ndarray) -> np.ndarray:
        return x * 2

    turned.register_fake(like_x)
    if kind == "gradient":
        handle = ow.register_autograd(turned, lambda ctx, g: g * (2 + 1j), flavour=flavour)
        source, of, name = "backward", "argument x", "grad"
    else:
        handle = ow.register_jvp(turned, lambda ctx, t: t * (2 + 1j), flavour=flavour)
        source, of, name = "jvp", "output 0", "tangent"

    def derived(x):
        total = lambda x: turned(x).sum()  # noqa: E731
        return jax.grad(total)(x) if kind == "gradient" else jax.jvp(total, (x,), (x,))

    text = (
        f"{source} of {turned.name} returned a {kind} of another dtype for {of}\n"
        f"  expected: dtype float32, that of the {of.split()[0]}\n"
        "  got: dtype complex64\n"
        f"  registered at: {handle.source}\n"
        f"  to fix: take its real part: array_namespace({name}).real({name})"
    )
    assert text_of(errors.GradientError, lambda: derived(X)) == text
    kinds = (errors.GradientError, jax.errors.JaxRuntimeError)
    assert text.splitlines()[2] in text_of(kinds, lambda: jax.block_until_ready(jax.jit(derived)(X)))


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize(
    ("name", "collective"),
    [("psum", lambda x: jax.lax.psum(x, "i")), ("axis_index", lambda x: x + jax.lax.axis_index("i"))],
)
def test_an_axis_name_of_vmap_inside_an_operator(name, collective, fake):
    op = ow.custom_op(f"jaxe::{name}", mutates_args=(), schema="(Tensor x) -> Tensor", flavour="jax")(
        collective
    )
    op.register_autograd(lambda ctx, g: g)
    if fake:
        op.register_fake(like_x)
    batched = jax.vmap(op, axis_name="i")
    derivative = jax.vmap(jax.value_and_grad(lambda x: op(x).sum()), axis_name="i")
    for call in (batched, jax.jit(batched), derivative, jax.jit(derivative)):
        text = text_of(errors.UnsupportedError, lambda call=call: call(jnp.stack([X, X])))
        lines = text.splitlines()
        assert lines[:2] == [
            f"the kernel of jaxe::{name} uses an axis by name: those of jax.vmap are not visible inside an "
            "operator",
            "  expected: a body without collectives, or with those of axes of jax.shard_map",
        ]
        assert re.match("  got: (NameError: .*unbound axis name: i|AssertionError: raised by JAX)", lines[2])
        assert lines[3:5] == [
            f"  registered at: {op._record.source}",
            "  to fix: call the collective outside of the operator, on its arguments or outputs",
        ]


@pytest.mark.parametrize(
    "error", [NameError("name 'k' is not defined"), AssertionError(), AssertionError("no")]
)
def test_an_error_of_the_author_s_own_under_a_named_axis(error):
    @ow.custom_op("jaxe::own_error", mutates_args=(), schema="(Tensor x) -> Tensor", flavour="jax")
    def own_error(x):
        raise error

    with pytest.raises(type(error)) as caught:
        jax.vmap(own_error, axis_name="i")(jnp.stack([X, X]))
    assert caught.value is error


def test_an_axis_name_of_shard_map_inside_an_operator():
    @ow.custom_op("jaxe::summed", mutates_args=(), schema="(Tensor x) -> Tensor", flavour="jax")
    def summed(x):
        return jax.lax.psum(x, "i") + x

    mesh = jax.make_mesh(
        (2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2]
    )
    spec = jax.sharding.PartitionSpec("i")
    for run in (lambda f: f, jax.jit):
        spread = run(jax.shard_map(summed, mesh=mesh, in_specs=spec, out_specs=spec))
        np.testing.assert_array_equal(spread(jnp.stack([X, 2 * X])), jnp.stack([4 * X, 5 * X]))


def test_a_numpy_array_that_is_mutated_beside_jax_arrays():
    @ow.custom_op("jaxe::add_", mutates_args={"x", "xs"})
    def add_(x: np.ndarray, xs: list[np.ndarray], y: np.ndarray) -> None:
        for one in (x, *xs):
            np.add(one, y, out=one)

    zero = np.zeros(3, np.float32)
    calls = {"x": lambda y: add_(zero, [X], y), "xs[1]": lambda y: add_(X, [X, zero], y)}
    for name, call in calls.items():
        for transformed in (call, jax.jit(call), lambda y, call=call: jax.vmap(call)(y[None])):
            assert text_of(errors.ArgumentError, lambda transformed=transformed: transformed(X)) == (
                f"jaxe::add_: argument {name} cannot be taken\n"
                "  expected: an array of jax for an argument that is mutated, as the other arrays are\n"
                "  got: a numpy.ndarray, which would not change: beside JAX's arrays it is a constant\n"
                f"  to fix: pass jax.numpy.asarray({name}) and take the new value from what the call "
                "returns, or pass NumPy arrays only"
            )
    x, (one,) = add_(X, [jnp.asarray(zero)], np.ones(3, np.float32))
    np.testing.assert_array_equal([x - X, one], np.ones((2, 3)))
    add_(zero, [], np.ones(3, np.float32))
    np.testing.assert_array_equal(zero, np.ones(3))


def test_an_output_that_is_an_argument():
    @ow.custom_op("jaxe::same", mutates_args=())
    def same(x: np.ndarray) -> np.ndarray:
        return x

    same.register_fake(like_x)
    where = same._record.source
    expected = (
        "output 0 of jaxe::same is argument x itself; an output may not alias an argument or another output\n"
        f"  registered at: any device (numpy, {where})\n"
        "  to fix: return a copy, or declare the aliasing in the schema"
    )
    assert text_of(errors.AliasError, lambda: same(X)) == expected
    with pytest.raises(jax.errors.JaxRuntimeError, match="may not alias an argument"):
        jax.jit(same)(X)


def test_numbers_cannot_be_traced():
    @ow.custom_op("jaxe::counted", mutates_args=())
    def counted(x: np.ndarray) -> tuple[int, np.ndarray]:
        return x.size, x * 2

    counted.register_fake(lambda x: (3, ow.empty_like(x)))
    size, doubled_ = counted(X)
    assert size == 3
    np.testing.assert_array_equal(doubled_, X * 2)
    assert text_of(errors.UnsupportedError, lambda: jax.jit(counted)(X)) == (
        "jaxe::counted returns something else than arrays, which JAX cannot trace\n"
        "  expected: returns of Tensor\n"
        "  got: jaxe::counted(Tensor x) -> (SymInt, Tensor)\n"
        f"  registered at: {counted._record.source}\n"
        "  to fix: return a 0-d array, or call it outside of jax.jit and every other transform"
    )


def test_no_kernel_for_the_device():
    op = ow.custom_op("jaxe::elsewhere", mutates_args=(), device_types="cuda", schema="(Tensor x) -> Tensor")(
        lambda x: x
    )
    assert text_of(NotImplementedError, lambda: op(X)) == (
        "jaxe::elsewhere has no kernel for jax arrays on cpu\n"
        f"  expected: kernels for cuda (array_api, {op._record.source})\n"
        "  got: jax arrays on cpu\n"
        f"  registered at: {op._record.source}\n"
        "  to fix: register one: @opwright.register_kernel('jaxe::elsewhere', 'cpu')"
    )


def test_an_operator_has_no_transpose():
    with pytest.raises(NotImplementedError, match="jaxe::doubled is called on the tangents"):
        jax.linear_transpose(lambda x: doubled(x), X)(X)


def test_a_rule_of_flavour_numpy_is_first_order():
    @ow.custom_op("jaxe::host_rule", mutates_args=())
    def host_rule(x: np.ndarray) -> np.ndarray:
        return np.sin(x)

    def backward(ctx, grad):
        return grad * np.cos(ctx.saved_tensors[0])

    host_rule.register_fake(like_x)
    host_rule.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs), flavour="numpy"
    )
    slope = jax.grad(lambda x: host_rule(x).sum())
    np.testing.assert_allclose(slope(X), np.cos(X), rtol=1e-6)
    with pytest.warns(NoVmapRuleWarning, match="vmap of jaxe::host_rule: no vmap rule is registered"):
        many = jax.jit(jax.vmap(slope))(jnp.stack([X, X]))
    np.testing.assert_allclose(many[1], np.cos(X), rtol=1e-6)
    assert text_of(errors.MissingRuleError, lambda: jax.grad(lambda x: slope(x).sum())(X)) == (
        "the backward of jaxe::host_rule is of flavour numpy: JAX runs it on the host as a whole and has no "
        "autograd formula of it\n"
        "  expected: a first derivative in reverse mode\n"
        "  got: forward mode or a second derivative\n"
        f"  registered at: {source_of(backward)}\n"
        "  to fix: write the rule with opwright.array_namespace, for any framework"
    )


def test_arrays_of_two_frameworks_are_named_by_a_warm_operator_too(ns):
    torch = pytest.importorskip("torch", reason="the second framework of the mixture")

    @ow.custom_op(f"{ns}::add", mutates_args=())
    def add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    add.register_fake(like_x)
    for warm in (False, True):
        if warm:
            add(X, X)
        assert text_of(errors.MixedFrameworksError, lambda: add(X, torch.ones(3))) == (
            f"{ns}::add was called with arrays of 2 frameworks\n"
            "  expected: arrays of one framework\n"
            "  got: x of jax, y of torch\n"
            "  to fix: convert them to one framework first; data is never moved without being asked"
        )
        assert add(X, ow.FakeArray((3,), "float32")).shape == (3,)
