"""``jax.export``: traced kernels as any program, host kernels under a stable name or a clear refusal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import opwright as ow
from opwright.frameworks.jax import export_target, ffi

X = jnp.asarray([[0.5, -1.25, 2.0]])


@ow.custom_op("jaxx::traced", mutates_args=())
def traced(x: ow.Array) -> ow.Array:
    return ow.array_namespace(x).sin(x) * x.shape[-1]


@ow.custom_op("jaxx::hosted", mutates_args=())
def hosted(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    return np.concatenate([x * np.asarray(k, x.dtype), x], axis=0)


hosted.register_fake(lambda x, k=2.0: x.new_empty((2 * x.shape[0], *x.shape[1:])))
hosted.register_autograd(lambda ctx, g: (g[: g.shape[0] // 2] * 2.0 + g[g.shape[0] // 2 :], None))


@ow.custom_op("jaxx::positions", mutates_args=())
def positions(x: np.ndarray) -> np.ndarray:
    return np.arange(x.shape[0])


def symbolic():
    return jax.ShapeDtypeStruct(export.symbolic_shape("n, 3"), jnp.float32)


def test_symbolic_dimensions_in_shapes():
    out = jax.eval_shape(jax.jit(traced), X)
    assert out.shape == (1, 3)
    exported = export.export(jax.jit(traced))(symbolic())
    assert str(exported.out_avals[0].shape) == "(n, 3)"
    for n in (1, 4):
        x = jnp.ones((n, 3))
        np.testing.assert_allclose(exported.call(x), np.sin(x) * 3, rtol=1e-6)


def test_the_gradient_of_a_traced_kernel():
    traced.register_autograd(
        lambda ctx, g: g * jnp.cos(ctx.saved_tensors[0]) * 3,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    exported = export.export(jax.jit(jax.grad(lambda x: traced(x).sum())))(symbolic())
    np.testing.assert_allclose(exported.call(X), 3 * np.cos(X), rtol=1e-6)


def test_a_host_kernel_without_the_extra_is_refused(monkeypatch):
    monkeypatch.setattr(ffi, "enabled", False)
    with pytest.raises(ow.errors.UnsupportedError) as caught:
        export.export(jax.jit(hosted))(X)
    assert str(caught.value).startswith(
        "jaxx::hosted cannot be exported: its kernel runs on the host\n"
        "  expected: a kernel of flavour jax or array_api, "
        "or the extra that gives host kernels a target by name\n"
        "  to fix: pip install 'opwright[tvm-ffi]', then allow the target that "
        "opwright.frameworks.jax.export_target(op) names"
    )


def test_the_name_of_a_target_needs_the_extra(monkeypatch):
    monkeypatch.setattr("opwright.frameworks.jax.call.installed", lambda: False)
    with pytest.raises(ow.errors.UnsupportedError, match="jaxx::hosted cannot be exported"):
        export_target(hosted)


@pytest.fixture
def allowed():
    if not ffi.installed():
        pytest.skip("the extra tvm-ffi is not installed")
    name = export_target(hosted)
    assert name == "opwright.jaxx.hosted.default"
    return [export.DisabledSafetyCheck.custom_call(name)]


def test_a_host_kernel_is_exported_under_its_name(allowed):
    with pytest.raises(ValueError, match="custom calls whose targets have no compatibility guarantees"):
        export.export(jax.jit(hosted))(X)
    exported = export.export(jax.jit(lambda x: hosted(x, 3.0)), disabled_checks=allowed)(symbolic())
    assert str(exported.out_avals[0].shape) == "(2*n, 3)"
    for n in (1, 4):
        x = jnp.ones((n, 3))
        np.testing.assert_array_equal(exported.call(x), np.concatenate([x * 3, x]))


def test_batches_and_gradients_of_a_host_kernel_are_exported(allowed):
    hosted.register_vmap(lambda info, in_dims, x, k: (hosted(jnp.moveaxis(x, in_dims[0], -1), k), -1))
    f = jax.jit(jax.vmap(jax.grad(lambda x: (hosted(x) ** 2).sum())))
    exported = export.export(f, disabled_checks=allowed)(
        jax.ShapeDtypeStruct(export.symbolic_shape("b, n, 3"), jnp.float32)
    )
    x = jnp.ones((2, 4, 3))
    np.testing.assert_array_equal(exported.call(x), f(x))
