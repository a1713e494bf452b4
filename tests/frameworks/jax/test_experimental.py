"""Transforms of ``jax.experimental`` with tables of rules of their own."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet

import opwright as ow
from opwright.errors import MissingRuleError, UnsupportedError
from opwright.frameworks.jax import private

X = jnp.linspace(0.1, 1.0, 3)
SERIES = (jnp.ones(3), jnp.full(3, 0.5), jnp.array([0.0, 1.0, -2.0]), jnp.full(3, -1.0))


def made(name, fn):
    op = ow.custom_op(f"jaxexp::{name}", fn, mutates_args=())
    op.register_fake(lambda x, k=2.0: (ow.empty_like(x), ow.empty_like(x, dtype=np.int32)))

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return grad * ow.array_namespace(x).cos(x) * ctx.k, None

    op.register_autograd(backward, setup_context=setup)
    return op


def on_host(x: np.ndarray, k: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    return np.sin(x) * np.float32(k), np.sign(x).astype(np.int32)


def traced(x: ow.Array, k: float = 2.0) -> tuple[ow.Array, ow.Array]:
    xp = ow.array_namespace(x)
    return xp.sin(x) * k, xp.astype(xp.sign(x), xp.int32)


OPERATORS = {"host": made("host", on_host), "traced": made("traced", traced)}

WAYS = {
    "itself": lambda f: f,
    "jit": jax.jit,
    "composed": lambda f: lambda x: f(f(x) * x) + x,
    "vmap": lambda f: lambda x: jax.vmap(f)(x[:, None])[:, 0],
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "jacfwd": jax.jacfwd,
    "hessian": lambda f: jax.hessian(lambda x: f(x).sum()),
}


def compiled(f, primals, series, **how):
    return jax.jit(lambda primals, series: jet(f, primals, series, **how))(primals, series)


def same(got, expected):
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "way"),
    [*(("host", way) for way in WAYS), *(("traced", way) for way in ("itself", "jit", "vmap"))],
)
@pytest.mark.filterwarnings("ignore:.*no vmap rule")
def test_jet_is_that_of_the_function(kind, way):
    op = OPERATORS[kind]
    f, reference = WAYS[way](lambda x: op(x)[0]), WAYS[way](lambda x: jnp.sin(x) * 2)
    args = (X,), (SERIES[:2],)
    same(compiled(f, *args), compiled(reference, *args))


@pytest.mark.parametrize("order", [1, 4])
@pytest.mark.parametrize("scaled", [True, False])
def test_the_terms_of_jet(order, scaled):
    args = (X,), (SERIES[:order],)
    got = compiled(lambda x: OPERATORS["host"](x)[0], *args, factorial_scaled=scaled)
    same(got, compiled(lambda x: jnp.sin(x) * 2, *args, factorial_scaled=scaled))


def test_jet_of_concrete_arrays():
    args = (X,), (SERIES[:2],)
    same(jet(lambda x: OPERATORS["host"](x)[0], *args), jet(lambda x: jnp.sin(x) * 2, *args))


@pytest.mark.parametrize("kind", OPERATORS)
def test_the_gradient_of_a_term_of_jet(kind):
    op = OPERATORS[kind]

    def slope(f):
        return jax.jit(jax.grad(lambda x: jet(f, (x,), (SERIES[:2],))[1][1].sum()))

    same(slope(lambda x: op(x)[0])(X), slope(lambda x: jnp.sin(x) * 2)(X))


@pytest.mark.parametrize("kind", OPERATORS)
def test_an_output_of_integers_has_no_series(kind):
    (out, sign), (terms, none) = jet(OPERATORS[kind], (-X,), (SERIES[:2],))
    assert out.shape == (3,)
    assert len(terms) == 2
    assert sign.dtype == jnp.int32
    assert sign.tolist() == [-1, -1, -1]
    assert [term.tolist() for term in none] == [[0, 0, 0]] * 2


def test_several_arguments_and_one_that_has_no_series():
    @ow.custom_op("jaxexp::pick", mutates_args=())
    def pick(x: np.ndarray, at: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x[at] * y

    pick.register_fake(lambda x, at, y: ow.empty_like(y))

    @pick.register_jvp
    def rule(ctx, x, at, y):
        return x[ctx.at] * ctx.y + ctx.x[ctx.at] * y

    def setup(ctx, inputs, output):
        ctx.x, ctx.at, ctx.y = inputs

    pick.register_autograd(lambda ctx, grad: (None, None, None), setup_context=setup)
    at = jnp.array([2, 0])
    args = (X, X[:2]), (SERIES[:3], tuple(term[:2] for term in SERIES[:3]))
    expected = compiled(lambda x, y: x[at] * y, *args)
    same(compiled(lambda x, y: pick(x, at, y), *args), expected)
    zeros = (jnp.zeros(2, at.dtype),) * 3
    same(compiled(lambda x, at, y: pick(x, at, y), (X, at, X[:2]), (args[1][0], zeros, args[1][1])), expected)


def test_jet_of_an_operator_without_a_derivative():
    @ow.custom_op("jaxexp::plain", mutates_args=())
    def plain(x: np.ndarray) -> np.ndarray:
        return x * 2

    plain.register_fake(ow.empty_like)
    with pytest.raises(MissingRuleError, match="jaxexp::plain: no autograd formula is registered"):
        jet(plain, (X,), (SERIES[:2],))
    same(jet(lambda x: plain(X) * x, (X,), (SERIES[:2],)), jet(lambda x: X * 2 * x, (X,), (SERIES[:2],)))


def test_a_jax_whose_jet_is_another_is_left_alone(monkeypatch):
    import jax.experimental.jet as module

    monkeypatch.delattr(module, "zero_series")
    assert private.jet.__wrapped__() is None


SPARSE = """
import jax.numpy as jnp
import numpy as np
import opwright as ow

@ow.custom_op("jaxexp::twice", mutates_args=())
def twice(x: np.ndarray) -> np.ndarray:
    return x * 2

twice.register_fake(ow.empty_like)
import jax, sys
assert jax.jit(twice)(jnp.ones(3)).tolist() == [2, 2, 2]
assert "jax.experimental.sparse" not in sys.modules
from jax.experimental import sparse

x = jnp.array([0.0, 1.0, 0.0])
assert sparse.sparsify(twice)(x).tolist() == [0, 2, 0]
for make in (sparse.BCOO.fromdense, lambda x: sparse.BCSR.fromdense(x[None])):
    for f in (sparse.sparsify(twice), sparse.sparsify(twice, use_tracer=True)):
        try:
            f(make(x))
        except NotImplementedError as error:
            print(error)
        else:
            raise AssertionError
"""


def test_sparsify_gives_an_operator_dense_arrays_alone():
    done = subprocess.run(
        [sys.executable, "-c", SPARSE], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    text = (
        "jaxexp::twice takes dense arrays, and jax.experimental.sparse.sparsify gives it a sparse one\n"
        "  expected: an array, for what an operator makes of zeros is not known\n"
        "  got: a BCOO or BCSR array\n"
        "  to fix: call it outside of sparsify on x.todense(), or on x.data if it maps zeros to zeros\n"
    )
    assert done.stdout == text * 4


def test_the_error_is_one_of_ours():
    from opwright.frameworks.jax.experimental import _sparse

    with pytest.raises(UnsupportedError, match=r"ns::f\.more takes dense arrays"):
        _sparse("ns.f.more", None)
