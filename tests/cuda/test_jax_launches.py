"""Triton operators in compiled JAX programs on a GPU: their kernels are in the program, without Python."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs the package triton")
jax = pytest.importorskip("jax", reason="needs jax")

import jax.numpy as jnp  # noqa: E402

import opwright as ow  # noqa: E402
import triton_kernels as kernels  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")]
TARGET = "triton_kernel_call_ffi"


@pytest.fixture(autouse=True)
def held():
    from opwright.frameworks.jax import launches

    if jax.default_backend() != "gpu":
        pytest.skip("jax finds no GPU")
    if launches.library() is None:
        pytest.skip("this jaxlib cannot hold Triton kernels")


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def targets(function, *args):
    """Return how many launches a compiled program holds, and whether it calls Python."""
    text = jax.jit(function).lower(*args).as_text()
    return text.count(TARGET), "callback" in text


def defined(ns, name, body, *, kernel=None, mutates=(), schema="(Tensor x) -> Tensor", fake=True):
    operator = ow.triton_op(f"{ns}::{name}", body, mutates_args=mutates, schema=schema, flavour="torch")
    if fake:
        operator.register_fake(lambda x, *rest: ow.empty_like(x), flavour="array_api")
    return operator


def scaled(x, factor=2.0):
    out = torch.empty_like(x)
    ow.wrap_triton(kernels.scale)[blocks](x, out, out.numel(), factor, None, BLOCK=64)
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_kernel_is_in_the_program(ns, dtype):
    op = defined(ns, "scaled", scaled, schema="(Tensor x, float factor=2.0) -> Tensor")
    x = jnp.arange(1000.0).reshape(10, 100).astype(dtype)
    assert targets(op, x) == (1, False)
    for factor in (0.5, 3.0):
        got = jax.jit(lambda a, factor=factor: op(a * 2, factor) + 1)(x)
        assert got.dtype == x.dtype
        assert jnp.allclose(got, x * 2 * factor + 1, rtol=1e-2)
    assert jnp.allclose(op(x), 2 * x)
    assert op(x[:0]).shape == (0, 100)


def test_several_launches_with_memory_between_them(ns):
    def body(x):
        out, sum_ = torch.zeros_like(x), torch.empty_like(x)
        ow.wrap_triton(kernels.add)[blocks](x, out, sum_, x.numel(), BLOCK=64)  # zeros are read
        ow.wrap_triton(kernels.computed)[(64,)](sum_, out, x.numel())
        ow.wrap_triton(kernels.in_place)[blocks](out, x.numel(), BLOCK=64)
        return out

    op = defined(ns, "several", body)
    x = jnp.arange(1000.0)
    assert targets(op, x) == (3, False)
    assert jnp.allclose(jax.jit(op)(x), 4 * x)


def test_mutation_gives_a_new_value_and_leaves_the_argument(ns):
    def body(x):
        ow.wrap_triton(kernels.in_place)[blocks](x, x.numel(), BLOCK=64)

    op = defined(ns, "double_", body, mutates=("x",), schema="(Tensor(a!) x) -> ()", fake=False)
    x = jnp.arange(1000.0)
    assert targets(op, x) == (1, False)
    program = jax.jit(lambda a: (op(a), a + 1))
    for _ in range(2):
        new, other = program(x)
        assert jnp.allclose(new, 2 * jnp.arange(1000.0))
        assert jnp.allclose(other, jnp.arange(1000.0) + 1)
    assert jnp.allclose(x, jnp.arange(1000.0))
    donated = jax.jit(op, donate_argnums=0)(jnp.arange(1000.0))
    assert jnp.allclose(donated, 2 * jnp.arange(1000.0))


def test_gradients_loops_and_batches(ns):
    op = defined(ns, "scaled", scaled, schema="(Tensor x, float factor=2.0) -> Tensor")
    op.register_autograd(lambda ctx, grad: (op(grad, 2.0), None), flavour="array_api")
    op.register_vmap(lambda info, in_dims, x, factor: (op(x, factor), in_dims[0]), flavour="array_api")
    x = jnp.arange(200.0).reshape(2, 100)
    slope = jax.grad(lambda a: (op(a) ** 2).sum())
    assert targets(slope, x) == (2, False)
    assert jnp.allclose(jax.jit(slope)(x), 8 * x)
    assert jnp.allclose(jax.jit(jax.vmap(op))(x), 2 * x)
    looped = jax.jit(lambda a: jax.lax.scan(lambda c, _: (op(c, 0.5), None), a, length=3)[0])
    assert jnp.allclose(looped(x), x / 8)


def test_an_exported_program_holds_the_kernel(ns):
    op = defined(ns, "scaled", scaled, schema="(Tensor x, float factor=2.0) -> Tensor")
    x = jnp.arange(100.0)
    checks = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]
    data = jax.export.export(jax.jit(op), disabled_checks=checks)(x).serialize()
    assert jnp.allclose(jax.export.deserialize(data).call(x), 2 * x)


def test_what_cannot_be_held_is_called(ns):
    def tuned(x):
        out = torch.empty_like(x)
        ow.wrap_triton(kernels.tuned)[blocks](x, out, x.numel())
        return out

    def computes(x):
        return scaled(x) + 1

    x = jnp.arange(1000.0)
    for op, expected in (
        (defined(ns, "tuned", tuned), 2 * x),
        (defined(ns, "computes", computes), 2 * x + 1),
    ):
        assert targets(op, x) == (0, True)
        assert jnp.allclose(jax.jit(op)(x), expected)
