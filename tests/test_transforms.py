"""``vjp`` and ``jvp``: values against numerical derivatives, contexts, mutation, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import numpy_operators as ops
import opwright as ow
from opwright.errors import ArgumentError, MissingRuleError, UnsupportedError
from opwright.source import source_of

rng = np.random.default_rng(0)
x = rng.uniform(0.5, 2.0, (3, 4))


def numerical(function, array, cotangent, step=1e-6):
    """Return the gradient of ``sum(cotangent * function(array))`` by central differences."""
    grad = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        plus, minus = array.copy(), array.copy()
        plus[index] += step
        minus[index] -= step
        grad[index] = np.sum((function(plus) - function(minus)) * cotangent) / (2 * step)
    return grad


# --------------------------------------------------------------------------------------------- vjp


def test_a_gradient():
    out, pull = ow.vjp(ops.sin, x)
    np.testing.assert_array_equal(out, np.sin(x))
    (grad,) = pull(x)
    np.testing.assert_allclose(grad, x * np.cos(x))
    np.testing.assert_allclose(pull(np.ones_like(x))[0], np.cos(x))  # again, with another gradient
    assert repr(pull) == "<Pull of nops::sin>"


def test_against_differences():
    cotangent = rng.standard_normal((3, 4))
    _, pull = ow.vjp(ops.gammaln, x, 3.0)
    grad, none = pull(cotangent)
    assert none is None
    np.testing.assert_allclose(grad, numerical(lambda a: ops.gammaln(a, 3.0), x, cotangent), rtol=1e-6)
    np.testing.assert_allclose(grad, 3 * cotangent * scipy.special.digamma(x))


def test_one_gradient_for_each_argument_given_by_position():
    assert len(ow.vjp(ops.gammaln, x)[1](x)) == 1
    assert len(ow.vjp(ops.gammaln, x, 2.0)[1](x)) == 2
    assert len(ow.vjp(ops.gammaln, x, scale=2.0)[1](x)) == 1
    assert ow.vjp(ops.mul, x, y=x)[1](x)[0].shape == x.shape


def test_arguments_by_name_are_constants():
    needs = []

    @ow.custom_op("transforms::needs", mutates_args=())
    def op(a: np.ndarray, b: np.ndarray, n: int = 2, *, c: np.ndarray | None = None) -> np.ndarray:
        return a * b

    def setup(ctx, inputs, keyword_only_inputs, output):
        needs.append(ctx.needs_input_grad)
        ctx.inputs = inputs

    @op.register_autograd(setup_context=setup)
    def _(ctx, grad):
        a, b, _ = ctx.inputs
        return grad * b, grad * a, None

    ow.vjp(op, x, b=x)
    ow.vjp(op, x, x, 3, c=x)
    ow.vjp(op, np.ones((3, 4), np.int64), x, c=None)
    assert needs == [
        (True, False, False, False),
        (True, True, False, True),
        (False, True, False, False),
    ]
    assert ow.vjp(op, x, b=x)[1].by_name(x).keys() == {"a"}


def test_keyword_only_arrays():
    out, pull = ow.vjp(ops.shift, x, by=x, factor=2.0)
    np.testing.assert_allclose(out, 3 * x)
    (grad,) = pull(x)
    np.testing.assert_array_equal(grad, x)
    named = pull.by_name(x)
    assert named.keys() == {"x", "by"}
    np.testing.assert_array_equal(named["by"], 2 * x)


def test_broadcasting():
    y = rng.standard_normal((4,))
    _, pull = ow.vjp(ops.mul, x, y)
    by_x, by_y = pull(x)
    np.testing.assert_allclose(by_x, x * y)
    np.testing.assert_allclose(by_y, (x * x).sum(0))


def test_several_outputs():
    (sin, cos), pull = ow.vjp(ops.sincos, x)
    np.testing.assert_allclose(pull(x, sin)[0], x * cos - sin * sin)
    np.testing.assert_allclose(pull(x, None)[0], x * cos)
    np.testing.assert_allclose(pull(None, x)[0], -x * sin)
    np.testing.assert_array_equal(pull(None, None)[0], np.zeros_like(x))


def test_lists():
    _, pull = ow.vjp(ops.weighted, [x, 2 * x], [1.0, 3.0])
    grads, none = pull(x)
    assert none is None
    assert isinstance(grads, list)
    np.testing.assert_array_equal(grads, [x, 3 * x])
    out, pull = ow.vjp(ops.parts, np.arange(8.0).reshape(4, 2))
    assert isinstance(out, list)
    np.testing.assert_array_equal(pull([np.full((2, 2), 2.0), None])[0], [[2, 2], [2, 2], [0, 0], [0, 0]])
    np.testing.assert_array_equal(pull(None)[0], np.zeros((4, 2)))


def test_lists_with_arrays_that_have_no_gradient():
    _, pull = ow.vjp(ops.weighted, (x, np.ones((3, 4), np.int64)), [1.0, 3.0])
    first, second = pull(x)[0]
    np.testing.assert_array_equal(first, x)
    assert second is None


def test_optional_arrays():
    assert [g.shape for g in ow.vjp(ops.maybe, x, x)[1](x)] == [(3, 4)] * 2
    assert ow.vjp(ops.maybe, x, None)[1](x)[1] is None
    assert len(ow.vjp(ops.maybe, x)[1](x)) == 1


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8])
def test_integers_have_no_gradient(dtype):
    grads = ow.vjp(ops.mul, x, np.ones((3, 4), dtype))[1](x)
    np.testing.assert_array_equal(grads[0], x)
    assert grads[1] is None


def test_outputs_without_gradient():
    (values, order), pull = ow.vjp(ops.sort, x[0])
    np.testing.assert_array_equal(pull(np.arange(4.0), None)[0][order], np.arange(4.0))
    assert pull.ctx.seen.dtype == np.int64
    assert not pull.ctx.seen.any()
    np.testing.assert_array_equal(pull(np.arange(4.0), np.ones(4))[0][order], np.arange(4.0))
    np.testing.assert_array_equal(pull(None, np.ones(4))[0], np.zeros(4))
    assert values[0] == x[0].min()


def test_gradients_that_are_not_materialized():
    seen = []

    @ow.custom_op("transforms::sparse", mutates_args=())
    def op(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return a * 2, a * 3

    def setup(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @op.register_autograd(setup_context=setup)
    def _(ctx, first, second):
        seen.append((first, second))
        return 2 * first if second is None else None

    _, pull = ow.vjp(op, x)
    np.testing.assert_array_equal(pull(x, None)[0], 2 * x)
    assert seen[0][1] is None
    np.testing.assert_array_equal(pull(x, x)[0], np.zeros_like(x))  # None stands for zeros


def test_mark_non_differentiable():
    @ow.custom_op("transforms::marked", mutates_args=())
    def op(a: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        return a * 2, [a * 3, a * 4]

    def setup(ctx, inputs, output):
        ctx.mark_non_differentiable(output[0], output[1][1])

    @op.register_autograd(setup_context=setup)
    def _(ctx, first, rest):
        return first + 3 * rest[0] + rest[1]

    _, pull = ow.vjp(op, x)
    np.testing.assert_array_equal(pull(x, [x, x])[0], 3 * x)
    assert ow.jvp(op, (x,), (x,))[1][0] is None
    assert ow.jvp(op, (x,), (x,))[1][1][1] is None


def test_complex_gradients_follow_torch():
    z = np.array([1 + 2j])
    out, pull = ow.vjp(ops.square, z)
    np.testing.assert_allclose(out, z * z)
    np.testing.assert_allclose(pull(np.array([1 + 1j]))[0], [6 - 2j])
    np.testing.assert_allclose(pull(np.array([1.0]))[0], 2 * np.conj(z))  # a real gradient is a complex one


def test_dtypes_are_kept():
    for dtype in (np.float16, np.float32, np.float64):
        (grad,) = ow.vjp(ops.sin, x.astype(dtype))[1](np.ones((3, 4)))
        assert grad.dtype == dtype


@pytest.mark.parametrize("value", [np.float64(2.0), np.array(2.0)])
def test_arrays_without_axes(value):
    out, pull = ow.vjp(ops.sin, value)
    for cotangent in (1.0, np.float64(1.0), np.array(1.0), 1):
        (grad,) = pull(cotangent)
        assert isinstance(grad, np.ndarray)
        assert grad.shape == ()
        np.testing.assert_allclose(grad, np.cos(2.0))
    np.testing.assert_allclose(out, np.sin(2.0))


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda a: a[::-1], lambda a: a[:, ::2], lambda a: a.T])
def test_layouts(layout):
    a = layout(x)
    (grad,) = ow.vjp(ops.sin, a)[1](layout(x))
    np.testing.assert_allclose(grad, a * np.cos(a))


def test_gradients_belong_to_the_caller():
    @ow.custom_op("transforms::add", mutates_args=())
    def add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return a + b + c

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[2])

    @add.register_autograd(setup_context=setup)
    def _(ctx, grad):
        return grad, grad, ctx.saved_tensors[0]

    cotangent, c = np.ones(3), np.ones(3)
    grads = ow.vjp(add, np.ones(3), np.ones(3), c)[1](cotangent)
    arrays = [*grads, cotangent, c]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    assert all(grad.flags.writeable for grad in grads)


def test_a_backward_that_changes_its_gradient_leaves_the_callers_alone():
    @ow.custom_op("transforms::greedy", mutates_args=())
    def greedy(a: np.ndarray) -> np.ndarray:
        return a * 3

    @greedy.register_autograd
    def _(ctx, grad):
        grad *= 3
        return grad

    cotangent = np.ones(3)
    _, pull = ow.vjp(greedy, np.ones(3))
    assert [pull(cotangent)[0].tolist() for _ in range(2)] == [[3, 3, 3]] * 2
    assert cotangent.tolist() == [1, 1, 1]


def test_defaults_and_scalars_reach_setup_context():
    seen = []

    @ow.custom_op("transforms::scalars", mutates_args=())
    def op(
        a: np.ndarray, k: float, ks: list[int], dtype: np.dtype, name: str = "n", *, z: bool = True
    ) -> np.ndarray:
        return a + k

    def setup(ctx, inputs, keyword_only_inputs, output):
        seen.append((inputs[1:], keyword_only_inputs))

    @op.register_autograd(setup_context=setup)
    def _(ctx, grad):
        return grad, None, None, None, None

    ow.vjp(op, x, 3, (1, np.int64(2)), "float32")
    assert seen == [((3.0, [1, 2], np.dtype("float32"), "n"), {"z": True})]


def test_a_gradient_by_name_alone():
    _, pull = ow.vjp(ops.shift, x, by=x)
    np.testing.assert_array_equal(pull(x)[0], x)


# ----------------------------------------------------------------------------------------- mutation


def test_a_mutated_argument():
    a, y = x.copy(), rng.standard_normal((3, 4))
    out, pull = ow.vjp(ops.add_, a, y)
    assert out is None
    np.testing.assert_allclose(a, x * (1 + y))
    by_x, by_y = pull(y)  # the gradient of the new value
    np.testing.assert_allclose(by_x, y * (1 + y))
    np.testing.assert_allclose(by_y, y * x)  # setup_context saw the old value


def test_an_inplace_operator():
    def setup(ctx, inputs, output):
        seen.append((inputs[0].copy(), output))

    seen = []

    @ow.custom_op("transforms::square_", mutates_args=("a",), tags="inplace")
    def square_(a: np.ndarray) -> np.ndarray:
        a *= a
        return a

    def keep(ctx, inputs, output):
        setup(ctx, inputs, output)
        ctx.save_for_backward(*inputs)

    @square_.register_autograd(setup_context=keep)
    def _(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]

    a = x.copy()
    out, pull = ow.vjp(square_, a)
    assert out is a
    np.testing.assert_array_equal(seen[0][0], x)
    assert seen[0][1] is a
    np.testing.assert_allclose(pull(x)[0], 2 * x * x)
    np.testing.assert_allclose(ow.jvp(square_, (x.copy(),), (x,))[1], 2 * x * x)


def test_returns_and_new_values():
    @ow.custom_op("transforms::both_", mutates_args=("a", "bs"))
    def both_(a: np.ndarray, bs: list[np.ndarray]) -> np.ndarray:
        out = a * bs[0]
        a *= 2
        for b in bs:
            np.multiply(b, 3, out=b)
        return out

    def keep(ctx, inputs, output):
        ctx.inputs = inputs

    @both_.register_autograd(setup_context=keep)
    def _(ctx, grad, a_grad, b_grads):
        a, bs = ctx.inputs
        rest = [3 * g for g in b_grads]
        rest[0] = rest[0] + grad * a
        return grad * bs[0] + 2 * a_grad, rest

    a, b, c = x.copy(), x + 1, x + 2
    _, pull = ow.vjp(both_, a, [b, c])
    by_a, (by_b, by_c) = pull(np.ones_like(x), x, [None, x])
    np.testing.assert_allclose(by_a, (x + 1) + 2 * x)
    np.testing.assert_allclose(by_b, x)
    np.testing.assert_allclose(by_c, 3 * x)
    out, tangents = ow.jvp(both_, (x.copy(), [x + 1, x + 2]), (x, [None, np.ones_like(x)]))
    np.testing.assert_allclose(out, x * (x + 1))
    assert len(tangents) == 3
    np.testing.assert_allclose(tangents[0], x * (x + 1))
    np.testing.assert_allclose(tangents[1], 2 * x)
    np.testing.assert_allclose(tangents[2], [0 * x, 3 + 0 * x])


# --------------------------------------------------------------------------------------------- jvp


def test_a_jvp_rule():
    y = rng.standard_normal((4,))
    out, tangent = ow.jvp(ops.mul, (x, y), (x, None))
    np.testing.assert_allclose(out, x * y)
    np.testing.assert_allclose(tangent, x * y)
    _, tangent = ow.jvp(ops.mul, (x, y), (x, y))
    np.testing.assert_allclose(tangent, 2 * x * y)
    _, tangent = ow.jvp(ops.mul, [x, y], [None, None])
    np.testing.assert_array_equal(tangent, np.zeros((3, 4)))


def test_a_derived_jvp_is_exact():
    t = rng.standard_normal((3, 4))
    out, tangent = ow.jvp(ops.gammaln, (x, 2.0), (t, None))
    np.testing.assert_array_equal(out, ops.gammaln(x, 2.0))
    np.testing.assert_allclose(tangent, 2 * t * scipy.special.digamma(x))
    _, tangents = ow.jvp(ops.sincos, (x,), (t,))
    np.testing.assert_allclose(tangents[0], t * np.cos(x))
    np.testing.assert_allclose(tangents[1], -t * np.sin(x))
    _, tangents = ow.jvp(ops.parts, (x[:2],), (t[:2],))
    np.testing.assert_allclose(np.concatenate(tangents), t[:2])
    _, tangents = ow.jvp(ops.sort, (x[0],), (t[0],))
    np.testing.assert_allclose(tangents[0], t[0][np.argsort(x[0])])
    assert tangents[1] is None
    _, tangent = ow.jvp(ops.weighted, ([x, x], [1.0, 3.0]), ([t, None], None))
    np.testing.assert_allclose(tangent, t)
    _, tangent = ow.jvp(ops.shift, (x,), (t,), by=x)
    np.testing.assert_allclose(tangent, t)


def test_a_derived_jvp_of_complex_arrays():
    z = rng.standard_normal(3) + 1j * rng.standard_normal(3)
    t = rng.standard_normal(3) + 1j * rng.standard_normal(3)
    _, tangent = ow.jvp(ops.square, (z,), (t,))
    np.testing.assert_allclose(tangent, 2 * z * t)

    @ow.custom_op("transforms::modulus", mutates_args=())
    def modulus(z: np.ndarray) -> np.ndarray:
        return (z * np.conj(z)).real

    @modulus.register_autograd(setup_context=ops.save_inputs)
    def _(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]

    _, tangent = ow.jvp(modulus, (z,), (t,))
    np.testing.assert_allclose(tangent, 2 * (np.conj(z) * t).real)
    assert tangent.dtype == np.float64


def test_a_derived_jvp_of_nothing():
    _, tangent = ow.jvp(ops.gammaln, (x[:0],), (x[:0],))
    assert tangent.shape == (0, 4)


@pytest.mark.parametrize("op", [ops.sin, ops.gammaln, ops.square], ids=lambda op: op.name)
def test_jvp_and_vjp_are_adjoint(op):
    a = x[0] + (1j if op is ops.square else 0)
    t, c = rng.standard_normal(4) + 0 * a, rng.standard_normal(4) + 0 * a
    _, tangent = ow.jvp(op, (a,), (t,))
    (gradient,) = ow.vjp(op, a)[1](c)
    np.testing.assert_allclose(np.vdot(c, tangent).real, np.vdot(gradient, t).real)


def test_a_jvp_rule_without_a_backward():
    @ow.custom_op("transforms::forward", mutates_args=())
    def forward(a: np.ndarray) -> np.ndarray:
        return a**3

    @forward.register_jvp(setup_context=ops.save_inputs)
    def _(ctx, tangent):
        return 3 * tangent * ctx.saved_tensors[0] ** 2

    np.testing.assert_allclose(ow.jvp(forward, (x,), (x,))[1], 3 * x**3)
    with pytest.raises(
        MissingRuleError, match=r"^transforms::forward has no autograd formula, which opwright\.vjp"
    ):
        ow.vjp(forward, x)


def test_a_jvp_rule_goes_before_the_backward_and_uses_its_setup_context():
    used = []

    @ow.custom_op("transforms::two_rules", mutates_args=())
    def op(a: np.ndarray) -> np.ndarray:
        return a**2

    @op.register_autograd(setup_context=ops.save_inputs)
    def _(ctx, grad):
        raise AssertionError

    @op.register_jvp
    def _(ctx, tangent):
        used.append(ctx.needs_input_grad)
        return 2 * tangent * ctx.saved_tensors[0]

    np.testing.assert_allclose(ow.jvp(op, (x,), (x,))[1], 2 * x * x)
    assert used == [(True,)]


# ------------------------------------------------------------------------------------------- flavours


def test_a_backward_with_torchs_tensors():
    torch = pytest.importorskip("torch")
    kinds = []

    schema = "(Tensor x, float[] ks, ScalarType dtype=float64) -> Tensor"

    @ow.custom_op("transforms::cube", mutates_args=(), schema=schema, flavour="torch")
    def cube(x, ks, dtype):
        return x**3

    def setup(ctx, inputs, output):
        kinds.extend([type(inputs[0]), type(output), inputs[2]])
        ctx.save_for_backward(inputs[0])

    @cube.register_autograd(setup_context=setup)
    def _(ctx, grad):
        kinds.append(type(grad))
        return 3 * grad * torch.square(ctx.saved_tensors[0]), None, None

    out, pull = ow.vjp(cube, x, [1.0])
    np.testing.assert_allclose(out, x**3)
    (grad, none) = pull(x)
    assert none is None
    assert isinstance(grad, np.ndarray)
    np.testing.assert_allclose(grad, 3 * x**3)
    assert kinds == [torch.Tensor, torch.Tensor, torch.float64, torch.Tensor]
    np.testing.assert_allclose(ow.jvp(cube, (x, [1.0]), (x, None))[1], 3 * x**3)


def test_a_backward_with_jaxs_arrays():
    jax = pytest.importorskip("jax")

    @ow.custom_op("transforms::jcube", mutates_args=(), schema="(Tensor x) -> Tensor", flavour="jax")
    def cube(x):
        return x**3

    @cube.register_autograd(setup_context=ops.save_inputs)
    def _(ctx, grad):
        assert isinstance(grad, jax.Array)
        return 3 * grad * jax.numpy.square(ctx.saved_tensors[0])

    a = x.astype(np.float32)
    (grad,) = ow.vjp(cube, a)[1](a)
    assert isinstance(grad, np.ndarray)
    np.testing.assert_allclose(grad, 3 * a**3, rtol=1e-5)


# ------------------------------------------------------------------------------------------- autocast


def test_under_autocast_gradients_have_the_arguments_dtype():
    seen = []

    @ow.custom_op("transforms::autocast", mutates_args=())
    def op(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * b

    def setup(ctx, inputs, output):
        seen.append([array.dtype.name for array in (*inputs, output)])
        ctx.save_for_backward(*inputs)

    @op.register_autograd(setup_context=setup)
    def _(ctx, grad):
        seen.append(grad.dtype.name)
        a, b = ctx.saved_tensors
        return grad * b, grad * a

    op.register_autocast("cpu", "float32")
    with ow.autocast("cpu"):
        out, pull = ow.vjp(op, x, x.astype(np.float16))
        _, tangent = ow.jvp(op, (x, x), (x, x))
    assert out.dtype == tangent.dtype == np.float32
    assert [grad.dtype.name for grad in pull(x)] == ["float64", "float16"]
    assert seen[0] == ["float32"] * 3
    assert set(seen[2:]) >= {"float32"}
    np.testing.assert_allclose(tangent, 2 * x * x, rtol=1e-5)


# ---------------------------------------------------------------------------------------- bad input


def test_an_operator_without_a_formula():
    for transform, call, wanted in (
        ("vjp", lambda: ow.vjp(ops.bare, x), "a backward"),
        ("jvp", lambda: ow.jvp(ops.bare, (x,), (x,)), "a backward or a jvp rule"),
    ):
        with pytest.raises(MissingRuleError) as caught:
            call()
        assert str(caught.value) == (
            f"nops::bare has no autograd formula, which opwright.{transform} needs\n"
            f"  registered at: {ops.bare._record.source}\n"
            f"  to fix: register {wanted}: @opwright.register_autograd('nops::bare', setup_context=...)"
        )
    assert ops.bare(x).shape == x.shape  # forward works


def test_an_operator_that_is_declared_non_differentiable():
    for call in (lambda: ow.vjp(ops.rounded, x), lambda: ow.jvp(ops.rounded, (x,), (x,))):
        with pytest.raises(MissingRuleError) as caught:
            call()
        assert str(caught.value) == (
            "nops::rounded has no autograd formula: it is declared non_differentiable\n"
            f"  registered at: {ops.rounded._record.source}\n"
            "  to fix: do not differentiate it, or define it without non_differentiable and register a "
            "backward"
        )


@pytest.mark.parametrize("package", ["torch", "jax"])
def test_arrays_of_frameworks_with_transforms(package):
    module = pytest.importorskip("torch" if package == "torch" else "jax.numpy")
    array = module.ones(3)
    own = {
        "torch": ["torch.func.vjp", "torch.func.jvp", "torch.vmap"],
        "jax": ["jax.vjp", "jax.jvp", "jax.vmap"],
    }
    calls = [
        lambda: ow.vjp(ops.sin, array),
        lambda: ow.jvp(ops.sin, (array,), (array,)),
        lambda: ow.vmap(ops.sin)(array),
    ]
    for name, call in zip(own[package], calls, strict=True):
        transform = name.rpartition(".")[2]
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert str(caught.value) == (
            f"opwright.{transform} is for arrays whose library has no transforms, unlike {package}\n"
            "  expected: NumPy or CuPy arrays\n"
            f"  got: nops::sin with arrays of {package}\n"
            f"  to fix: use {name}, which takes the operator as it is"
        )


@pytest.mark.parametrize("transform", ["vjp", "jvp"])
def test_only_operators(transform):
    def plain(a):
        return a

    with pytest.raises(ArgumentError) as caught:
        ow.vjp(plain, x) if transform == "vjp" else ow.jvp(plain, (x,), (x,))
    assert str(caught.value) == (
        f"opwright.{transform} takes one operator\n"
        "  expected: an operator, or its qualified name\n"
        f"  got: {plain!r} of type function\n"
        "  to fix: make it an operator with opwright.custom_op; for whole programs use torch.func or jax"
    )


def test_wrong_arguments():
    with pytest.raises(ArgumentError) as caught:
        ow.vjp(ops.sin, x, x)
    assert str(caught.value) == (
        "nops::sin does not take these arguments\n"
        "  got: nops::sin(Tensor x) -> Tensor: too many positional arguments"
    )
    with pytest.raises(ArgumentError, match="argument x must be an array"):
        ow.vjp(ops.sin, "x")


@pytest.mark.parametrize(
    ("cotangents", "text"),
    [
        (
            (),
            "pull takes one gradient for each output\n  expected: 2, for output_0, output_1\n  got: 0",
        ),
        (
            (x,),
            "pull takes one gradient for each output\n  expected: 2, for output_0, output_1\n  got: 1",
        ),
        (
            (x[0], None),
            "the gradient of output_0 does not fit it\n  expected: shape (3, 4)\n  got: shape (4,)",
        ),
        (
            (None, 1j * x),
            "the gradient of output_1 does not fit it\n  expected: dtype float64\n  got: dtype complex128",
        ),
        (
            ("x", None),
            "the gradient of output_0 does not fit it\n  expected: an array of numpy\n  got: 'x' of type str",
        ),
        (
            (None, 1.0),
            "the gradient of output_1 does not fit it\n  expected: shape (3, 4)\n  got: shape ()",
        ),
    ],
)
def test_gradients_of_outputs_that_do_not_fit(cotangents, text):
    _, pull = ow.vjp(ops.sincos, x)
    with pytest.raises(ArgumentError) as caught:
        pull(*cotangents)
    assert str(caught.value) == f"nops::sincos: {text}"


@pytest.mark.parametrize(
    ("cotangent", "got"),
    [(np.ones((2, 4)), "shape (2, 4), dtype float64"), ([np.ones((2, 4))], "a list of 1")],
)
def test_the_gradient_of_a_list_must_be_a_list(cotangent, got):
    _, pull = ow.vjp(ops.parts, np.ones((4, 4)))
    with pytest.raises(ArgumentError) as caught:
        pull(cotangent)
    assert str(caught.value) == (
        "nops::parts: the gradient of output_0 must be a list\n"
        "  expected: a list of 2, or None\n"
        f"  got: {got}"
    )


@pytest.mark.parametrize(
    ("op", "primals", "tangents", "text"),
    [
        ("mul", (x, x), (x,), "jvp takes one tangent for each primal\n  expected: 2\n  got: 1"),
        (
            "mul",
            (x, x),
            (x, x[0]),
            "the tangent of argument y does not fit it\n  expected: shape (3, 4)\n  got: shape (4,)",
        ),
        (
            "mul",
            (x, x),
            (1j * x, x),
            "the tangent of argument x does not fit it\n  expected: dtype float64\n  got: dtype complex128",
        ),
        (
            "gammaln",
            (x, 2.0),
            (x, 1.0),
            "argument scale has no tangent\n"
            "  expected: None: only floating and complex arrays have one\n"
            "  got: float",
        ),
        (
            "mul",
            (x, np.ones((3, 4), int)),
            (x, np.ones((3, 4))),
            "argument y has no tangent\n"
            "  expected: None: only floating and complex arrays have one\n"
            "  got: ndarray",
        ),
        (
            "weighted",
            ([x, x], [1.0, 2.0]),
            (x, None),
            "the tangent of argument xs must be a list\n  expected: a list of 2, or None\n  got: ndarray",
        ),
    ],
)
def test_tangents_that_do_not_fit(op, primals, tangents, text):
    with pytest.raises(ArgumentError) as caught:
        ow.jvp(getattr(ops, op), primals, tangents)
    assert str(caught.value) == f"nops::{op}: {text}"


def test_primals_and_tangents_are_tuples():
    with pytest.raises(ArgumentError) as caught:
        ow.jvp(ops.sin, x, x)
    assert str(caught.value) == (
        "opwright.jvp takes primals and tangents as tuples\n  got: ndarray and ndarray"
    )


@pytest.mark.parametrize("array", [np.ma.array([1.0, 2.0]), np.ones((2, 2)).view(np.matrix)])
def test_subclasses_that_would_lose_what_they_add(array):
    for call in (lambda: ow.vjp(ops.sin, array), lambda: ow.vmap(ops.sin)(array)):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert str(caught.value) == (
            "nops::sin: argument x cannot be taken\n"
            "  expected: a plain array of numpy\n"
            f"  got: {type(array).__module__}.{type(array).__qualname__}\n"
            "  to fix: take its plain array first"
        )


def test_no_arrays():
    @ow.custom_op("transforms::factory", mutates_args=())
    def factory(n: int) -> np.ndarray:
        return np.zeros(n)

    with pytest.raises(ArgumentError) as caught:
        ow.vmap(factory)(3)
    assert str(caught.value) == "opwright.vmap of transforms::factory was given no array"


def test_overloads_are_chosen_by_their_arguments():
    @ow.custom_op("transforms::pick", mutates_args=())
    def one(a: np.ndarray) -> np.ndarray:
        return a * 1

    @ow.custom_op("transforms::pick.two", mutates_args=())
    def two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * b

    for op, factor in ((one, 10), (two, 20)):
        names = len(op.schema.arguments)
        op.register_autograd(lambda ctx, grad, n=names, f=factor: tuple([grad * f] * n))
    packet = ow.ops.transforms.pick
    assert ow.vjp(packet, x[0])[1](np.ones(4))[0].tolist() == [10] * 4
    assert ow.vjp("transforms::pick", x[0], x[0])[1](np.ones(4))[1].tolist() == [20] * 4
    assert ow.vjp("transforms::pick.two", x[0], x[0])[1](np.ones(4))[1].tolist() == [20] * 4
    with pytest.raises(ArgumentError) as caught:
        ow.vjp(packet, x, x, x)
    assert str(caught.value) == (
        "transforms::pick does not take these arguments\n"
        "  got: transforms::pick(Tensor a) -> Tensor: too many positional arguments; "
        "transforms::pick.two(Tensor a, Tensor b) -> Tensor: too many positional arguments"
    )


def test_sources_are_those_of_the_rules():
    assert source_of(ops.sin._record.rule("autograd").fn) == ops.sin._record.rule("autograd").source
