"""The loop of a host kernel without a vmap rule: the result of every row is compared with the fake."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright.frameworks.jax import ffi
from opwright.outputs import CHECKED_CALLS

pytestmark = pytest.mark.filterwarnings("ignore::opwright.frameworks.jax.vmap.NoVmapRuleWarning")

ROWS = 5
_counter = iter(range(1000))

SHAPES = [(4,), (2, 3), (), (1,), (1, 3)]
REFUSED = (jax.errors.JaxRuntimeError, ValueError)
"""What JAX raises for a kernel's exception in the first call of a program, and in later ones."""
ROUTES = [False, pytest.param(True, marks=pytest.mark.skipif(not ffi.installed(), reason="no tvm-ffi"))]


@pytest.fixture(params=ROUTES, ids=["buffer_callback", "tvm-ffi"], autouse=True)
def _route(request, monkeypatch):
    monkeypatch.setattr(ffi, "enabled", request.param)


def looped(body, *, into=False):
    """Return a compiled loop over a kernel that ends with ``body(x)``, and what switches that on.

    What is switched on comes after the calls whose outputs are looked at for aliasing.
    """
    on = []

    def kernel(x):
        return body(x) if on else np.asarray(x * 2)

    def kernel_into(x, *, out=None):
        return body(x) if on else np.multiply(x, 2, out=out)

    name = f"jaxb::op{next(_counter)}"
    op = ow.custom_op(name, mutates_args=(), schema="(Tensor x) -> Tensor", flavour="numpy")(
        kernel_into if into else kernel
    )
    op.register_fake(ow.empty_like)
    return jax.jit(jax.vmap(op)), on


def warm(f, x):
    for _ in range(CHECKED_CALLS + 2):
        np.testing.assert_array_equal(f(x), x * 2)


def last_differs(change):
    """Return a kernel whose result for the last row alone is changed."""
    seen = []

    def body(x):
        seen.append(1)
        return np.asarray(change(x * 2) if len(seen) % ROWS == 0 else x * 2)

    return body


WRONG = {
    "dtype": lambda y: y.astype(np.int32),
    "a wider dtype": lambda y: y.astype(np.complex64),
    "another order of bytes": lambda y: y.astype(">i4"),
    "one axis more": lambda y: y[None],
    "one axis more behind": lambda y: y[..., None],
    "no axes": lambda y: np.asarray(y.sum(), np.float32).reshape(() if y.shape else (1,)),
    "one element": lambda y: np.ones((1,) * y.ndim if y.size > 1 else (2,), np.float32),
    "another length": lambda y: np.ones((*y.shape[:-1], 7), np.float32),
    "another order of axes": lambda y: np.ones(
        y.shape[::-1] if y.shape != y.shape[::-1] else (9,), np.float32
    ),
}


@pytest.mark.parametrize(("shape", "into"), [*((shape, False) for shape in SHAPES), ((4,), True), ((), True)])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_result_of_any_row_is_refused(wrong, shape, into):
    f, on = looped(last_differs(WRONG[wrong]), into=into)
    x = jnp.arange(ROWS * max(1, int(np.prod(shape))), dtype=np.float32).reshape(ROWS, *shape)
    warm(f, x)
    on.append(True)
    with pytest.raises(REFUSED, match="the kernel and the fake differ") as caught:
        f(x)
    expected = f"expected: float32[{','.join(map(str, shape))}] (the fake)"
    assert expected in str(caught.value)
    assert "During handling" not in str(caught.value)


RIGHT = {
    "a step between elements": lambda y: np.repeat(y, 2).reshape(*y.shape, 2)[..., 0],
    "a negative step": lambda y: np.asarray(np.flip(np.array(np.flip(y)))),
    "a transposed array": lambda y: np.asarray(y, order="F"),
    "a scalar of NumPy": lambda y: y[()],
    "64 bits, which JAX makes 32": lambda y: y.astype(np.float64),
    "read-only": lambda y: np.broadcast_to(y, y.shape),
}


@pytest.mark.parametrize(("shape", "into"), [*((shape, False) for shape in SHAPES[:3]), ((4,), True)])
@pytest.mark.parametrize("right", RIGHT)
def test_results_of_any_layout_are_copied(right, shape, into):
    f, on = looped(lambda x: RIGHT[right](np.asarray(x * 2)), into=into)
    x = jnp.arange(ROWS * max(1, int(np.prod(shape))), dtype=np.float32).reshape(ROWS, *shape)
    warm(f, x)
    on.append(True)
    np.testing.assert_array_equal(f(x), x * 2)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "float8_e5m2", "complex64"]
)
@pytest.mark.parametrize("shape", [(4,), (2, 2), ()])
def test_dtypes(dtype, shape):
    @ow.custom_op(f"jaxb::op{next(_counter)}", mutates_args=())
    def same(x: np.ndarray) -> np.ndarray:
        return np.array(x)

    same.register_fake(ow.empty_like)
    f, x = jax.jit(jax.vmap(same)), jnp.ones((ROWS, *shape), dtype)
    for _ in range(CHECKED_CALLS + 2):
        got = f(x)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("shape", [(4,), (2, 2), ()])
def test_each_result_is_copied_before_the_next_call(shape):
    scratch = np.empty(shape, np.float32)

    def body(x):
        scratch[...] = x
        scratch[...] *= 2
        return scratch

    f, on = looped(body)
    x = jnp.arange(ROWS * scratch.size, dtype=np.float32).reshape(ROWS, *shape)
    warm(f, x)
    on.append(True)
    np.testing.assert_array_equal(f(x), x * 2)


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("shape", [(4,), (2, 2), ()])
def test_a_row_that_the_kernel_keeps_is_refused(shape, into):
    kept = []

    def body(x):
        kept.append(x)
        return np.asarray(x * 2)

    f, on = looped(body, into=into)
    x = jnp.ones((ROWS, *shape), np.float32)
    warm(f, x)
    on.append(True)
    with pytest.raises(REFUSED, match="keeps a view of one of its arrays after the call"):
        f(x)


def test_an_output_row_that_the_kernel_keeps_is_refused():
    kept, on = [], []

    @ow.custom_op("jaxb::keeping_out", mutates_args=(), schema="(Tensor x) -> Tensor", flavour="numpy")
    def keeping_out(x, *, out=None):
        kept.extend([out] if on else ())
        return np.multiply(x, 2, out=out)

    keeping_out.register_fake(ow.empty_like)
    f, x = jax.jit(jax.vmap(keeping_out)), jnp.ones((ROWS, 4))
    warm(f, x)
    on.append(True)
    with pytest.raises(REFUSED, match="keeps a view of one of its arrays after the call"):
        f(x)


@pytest.mark.parametrize("shape", [(4,), (2, 2), ()])
def test_an_exception_of_a_later_row_comes_through(shape):
    def body(x):
        if float(np.sum(x)) > 8:
            raise ValueError("too much")
        return np.asarray(x * 2)

    f, on = looped(body)
    x = jnp.stack([jnp.full(shape, float(i)) for i in range(0, 3 * ROWS, 3)])
    warm(f, x)
    on.append(True)
    with pytest.raises(REFUSED, match="raised ValueError: too much"):
        f(x)


def test_operands_that_are_not_mapped():
    @ow.custom_op("jaxb::unmapped", mutates_args=())
    def unmapped(x: np.ndarray, y: np.ndarray, z: np.ndarray, k: float = 2.0) -> np.ndarray:
        assert type(x) is type(y) is type(z) is np.ndarray
        return x * y + z * np.float32(k)

    unmapped.register_fake(lambda x, y, z, k=2.0: ow.empty_like(y))
    x, y, z = jnp.arange(3.0), jnp.arange(12.0).reshape(4, 3), jnp.arange(4.0)
    f = jax.jit(jax.vmap(lambda y, z: unmapped(x, y, z, 3.0)))
    for _ in range(CHECKED_CALLS + 2):
        np.testing.assert_array_equal(f(y, z), x * y + z[:, None] * 3)


def test_rows_of_other_dtypes_are_refused_without_a_program():
    seen = []

    @ow.custom_op("jaxb::mixed", mutates_args=())
    def mixed(x: np.ndarray) -> np.ndarray:
        seen.append(1)
        return x.astype(np.int32) if len(seen) == 2 else x * 2

    mixed.register_fake(ow.empty_like)
    with pytest.raises(ow.errors.UnsupportedError) as caught:
        jax.vmap(mixed)(jnp.ones((3, 4)))
    assert str(caught.value) == (
        "vmap of jaxb::mixed: output 0 differs between the elements of the batch\n"
        "  expected: one shape and dtype, length or value for all of them\n"
        "  got: shape (4,), dtype float32 and shape (4,), dtype int32\n"
        "  to fix: pad it inside the operator, or call the operator in a loop of your own"
    )


# ------------------------------------------------------------------------------------- several outputs


def several(body, *, looped):
    """Return a compiled operator of two outputs, and what switches ``body(x)`` on after the first calls."""
    on = []

    def kernel(x):
        return body(x) if on else (np.asarray(x * 2), np.asarray(x.sum()))

    schema = "(Tensor x) -> (Tensor, Tensor)"
    name = f"jaxb::op{next(_counter)}"
    op = ow.custom_op(name, mutates_args=(), schema=schema, flavour="numpy")(kernel)
    op.register_fake(lambda x: (ow.empty_like(x), x.new_empty(())))
    return jax.jit(jax.vmap(op) if looped else op), on


def warm_several(f, x):
    for _ in range(CHECKED_CALLS + 2):
        same_several(f(x), x)


def same_several(got, x):
    assert [one.dtype for one in got] == [x.dtype] * 2
    np.testing.assert_array_equal(got[0], x * 2)
    np.testing.assert_array_equal(np.asarray(got[1]).ravel(), np.atleast_2d(x).sum(1))


SEVERAL_RIGHT = {
    "scalars of NumPy": lambda x: (x * 2, x.sum()),
    "a list": lambda x: [x * 2, np.asarray(x.sum())],
    "64 bits, which JAX makes 32": lambda x: (x.astype(np.float64) * 2, np.float64(x.sum())),
    "a step between elements": lambda x: (np.repeat(x * 2, 2)[::2], x.sum()),
}


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("right", SEVERAL_RIGHT)
def test_several_results(right, looped):
    f, on = several(SEVERAL_RIGHT[right], looped=looped)
    x = jnp.arange(12.0).reshape(3, 4) if looped else jnp.arange(4.0)
    warm_several(f, x)
    on.append(True)
    same_several(f(x), x)


SEVERAL_WRONG = {
    "the first's dtype": (
        lambda x: (x.astype(np.int32), x.sum()),
        "output 0 of the kernel and the fake differ",
    ),
    "the second's dtype": (
        lambda x: (x, x.sum().astype(np.int32)),
        "output 1 of the kernel and the fake differ",
    ),
    "the second's shape": (lambda x: (x * 2, x[:1] * 2), "output 1 of the kernel and the fake differ"),
    "one that would be spread": (
        lambda x: (x[:1] * 2, x.sum()),
        "output 0 of the kernel and the fake differ",
    ),
    "one too few": (lambda x: (x * 2,), "something else than its schema says"),
    "no array": (lambda x: (x * 2, 1.0), "something else than its schema says"),
    "nothing": (lambda x: None, "something else than its schema says"),
}


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("wrong", SEVERAL_WRONG)
def test_any_wrong_one_of_several_is_refused(wrong, looped):
    body, text = SEVERAL_WRONG[wrong]
    f, on = several(body, looped=looped)
    x = jnp.arange(12.0).reshape(3, 4) if looped else jnp.arange(4.0)
    warm_several(f, x)
    on.append(True)
    with pytest.raises(REFUSED, match=text):
        f(x)


@pytest.mark.parametrize("looped", [False, True])
def test_several_results_and_a_kept_input(looped):
    kept = []
    f, on = several(lambda x: kept.append(x) or (x * 2, x.sum()), looped=looped)
    x = jnp.arange(12.0).reshape(3, 4) if looped else jnp.arange(4.0)
    warm_several(f, x)
    on.append(True)
    with pytest.raises(REFUSED, match="keeps a view of one of its arrays after the call"):
        f(x)


@pytest.mark.parametrize("looped", [False, True])
def test_several_results_that_share_memory_are_refused_at_first(looped):
    def body(x):
        out = x * 2
        return out, out[..., 0]

    f, on = several(body, looped=looped)
    on.append(True)
    with pytest.raises(REFUSED, match="may not alias"):
        f(jnp.arange(12.0).reshape(3, 4) if looped else jnp.arange(4.0))
