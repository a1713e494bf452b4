"""Kernels of every flavour with JAX's arrays: which is chosen, what its body gets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright.frameworks.jax import invoke, kernels, lowering, primitive
from opwright.frameworks.jax.call import Call
from opwright.frameworks.jax.framework import FRAMEWORK

_counter = iter(range(1000))
X = jnp.asarray([0.5, -1.25, 2.0])
WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])


@WRAPS
def test_the_kernel_for_jax_arrays_goes_before_any_other(wrap):
    @ow.custom_op("jaxk::chosen", mutates_args=())
    def chosen(x: np.ndarray) -> np.ndarray:
        return x * 2

    chosen.register_fake(lambda x: ow.empty_like(x))
    np.testing.assert_array_equal(wrap(lambda x: chosen(x))(X), X * 2)
    portable = ow.register_kernel(chosen, None, lambda x: x * 3, flavour="array_api")
    np.testing.assert_array_equal(wrap(lambda x: chosen(x))(X), X * 3)
    own = ow.register_kernel(chosen, "cpu", lambda x: x * 4, flavour="jax")
    np.testing.assert_array_equal(wrap(lambda x: chosen(x))(X), X * 4)
    own.destroy()
    portable.destroy()
    np.testing.assert_array_equal(wrap(lambda x: chosen(x))(X), X * 2)


@WRAPS
def test_torch_kernels(wrap):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def body(x, k=2.0, dtype=None):
        assert isinstance(x, torch.Tensor)
        assert not torch.is_grad_enabled() or not x.requires_grad
        assert dtype is torch.float64
        return x * k

    op = ow.custom_op(
        "jaxk::torch_kernel",
        mutates_args=(),
        schema="(Tensor x, float k=2.0, *, ScalarType dtype) -> Tensor",
        flavour="torch",
    )(lambda x, k=2.0, *, dtype: body(x, k, dtype))
    op.register_fake(lambda x, k=2.0, *, dtype: ow.empty_like(x), flavour="array_api")
    for dtype in ("float32", "bfloat16", "complex64", "bool"):
        x = X.astype(dtype) if dtype != "complex64" else X + 1j
        if dtype == "bool":
            continue
        got = wrap(lambda x: op(x, 3.0, dtype=jnp.float64))(x)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(got, np.complex64), np.asarray(x * 3, np.complex64), rtol=1e-2)


@WRAPS
def test_a_mutating_torch_kernel(wrap):
    pytest.importorskip("torch", reason="torch is not installed")
    op = ow.custom_op(
        "jaxk::torch_scale_", mutates_args=("x",), schema="(Tensor(a!) x, float k) -> ()", flavour="torch"
    )(lambda x, k: x.mul_(k) is None or None)
    np.testing.assert_array_equal(wrap(lambda x: op(x, 3.0))(X), X * 3)
    np.testing.assert_array_equal(X, [0.5, -1.25, 2.0])


@WRAPS
def test_dtypes_and_devices_reach_a_body_as_its_flavours_own(wrap):
    seen = []

    @ow.custom_op(
        "jaxk::told", mutates_args=(), schema="(Tensor x, ScalarType dtype, Device? device=None) -> Tensor"
    )
    def told(x: np.ndarray, dtype, device=None) -> np.ndarray:
        seen.append((dtype, device))
        return x.astype(dtype)

    told.register_fake(lambda x, dtype, device=None: ow.empty_like(x, dtype=dtype))
    for dtype in (jnp.int32, np.int32, "int32", np.dtype("int32")):
        for device in (None, "cpu", jax.devices("cpu")[0]):
            got = wrap(lambda x, dtype=dtype, device=device: told(x, dtype, device))(X)
            assert got.dtype == np.int32
    assert set(seen) == {(np.dtype("int32"), None), (np.dtype("int32"), "cpu")}


def test_a_traced_body_gets_a_device_of_jax():
    seen = []

    @ow.custom_op("jaxk::placed", mutates_args=(), schema="(Tensor x, Device device) -> Tensor")
    def placed(x: jax.Array, device):
        seen.append(device)
        return jax.device_put(x, device)

    assert placed(X, "cpu:1").devices() == {jax.devices("cpu")[1]}
    assert seen == [jax.devices("cpu")[1]]


@pytest.mark.parametrize(
    ("signature", "takes"),
    [
        (lambda x, *, out=None: x, True),
        (lambda x, out=None: x, True),
        (lambda x, out=1: x, False),
        (lambda x: x, False),
        (np.positive, True),
    ],
)
def test_a_kernel_declares_that_it_takes_out(signature, takes):
    op = ow.custom_op(
        f"jaxk::out{id(signature)}", mutates_args=(), schema="(Tensor x) -> Tensor", flavour="numpy"
    )(lambda x: x * 1)
    (kernel,) = op._record.kernels
    kernel.fn = signature
    assert kernels.takes_out(kernel, op.schema) is takes


@WRAPS
def test_fallbacks(wrap):
    lib = ow.Library("jaxk_fallback", "DEF")
    lib.define("anything(Tensor x, int k=1) -> Tensor")
    lib.fallback(lambda op, x, k=1: x * 5 * k, "CPU")
    got = wrap(lambda x: ow.ops.jaxk_fallback.anything(x, 2))(X)
    np.testing.assert_array_equal(got, X * 10)


def test_numpy_scalars_and_lists_of_outputs():
    @ow.custom_op("jaxk::many", mutates_args=())
    def many(x: np.ndarray) -> list[np.ndarray]:
        return [x.sum(), x * 2]

    many.register_fake(lambda x: [x.new_empty(()), ow.empty_like(x)])
    for run in (many, jax.jit(many)):
        total, doubled = run(X)
        np.testing.assert_array_equal(total, 1.25)
        np.testing.assert_array_equal(doubled, X * 2)
        assert total.shape == ()


def test_optional_outputs():
    op = ow.custom_op(
        "jaxk::perhaps", mutates_args=(), schema="(Tensor x, bool both) -> (Tensor, Tensor?)", flavour="numpy"
    )(lambda x, both: (x * 2, x * 3 if both else None))
    op.register_fake(lambda x, both: (ow.empty_like(x), ow.empty_like(x) if both else None))
    op.register_autograd(
        lambda ctx, g, h: (g * 2 + (0 if h is None else 3 * h), None),
    )
    for wrap in (lambda f: f, jax.jit):
        assert wrap(lambda x: op(x, False))(X)[1] is None
        np.testing.assert_array_equal(wrap(lambda x: op(x, True))(X)[1], X * 3)
        np.testing.assert_array_equal(wrap(jax.grad(lambda x: sum(op(x, True)).sum()))(X), [5] * 3)
        np.testing.assert_array_equal(wrap(jax.grad(lambda x: op(x, False)[0].sum()))(X), [2] * 3)


@pytest.mark.cuda
@pytest.mark.parametrize("flavour", ["torch", "cupy"])
def test_cuda_kernels_on_xlas_buffers_and_stream(flavour):
    gpu = jax.devices("gpu")[0]
    pytest.importorskip(flavour)
    op = ow.custom_op(
        f"jaxk::cuda_{flavour}",
        mutates_args=(),
        device_types="cuda",
        schema="(Tensor x) -> Tensor",
        flavour=flavour,
    )(lambda x: x * 2)
    op.register_fake(lambda x: ow.empty_like(x), flavour="array_api")
    op.register_autograd(lambda ctx, g: g * 2, flavour="array_api")
    x = jax.device_put(jnp.arange(1 << 16, dtype=jnp.float32), gpu)
    f = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, y: op(y + 1) / 2, x))
    np.testing.assert_allclose(f(x), x + 50)
    np.testing.assert_array_equal(op(x), 2 * x)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: op(x).sum()))(x), np.full(x.shape, 2))


def copying():
    op = ow.custom_op(
        f"jaxk::copying{next(_counter)}",
        lambda x: x * 0,
        mutates_args=(),
        device_types="cpu",
        schema="(Tensor x) -> Tensor",
        flavour="numpy",
    )
    op.register_fake(ow.empty_like)
    op.register_autograd(lambda ctx, g: g * 2)
    op.register_kernel("cuda", lambda x: np.asarray(x) * np.float32(2), copy=True)
    return op


def test_the_route_of_a_kernel_that_arrays_are_copied_for():
    op = copying()
    assert FRAMEWORK.routes(op._record)["cuda"].startswith("pure_callback, copies both ways (numpy, ")
    plan = Call(op._record, (0,)).plan("cuda")
    assert lowering.route(plan, "cuda", [X.dtype], None) == "pure_callback"


@pytest.mark.filterwarnings("ignore::opwright.frameworks.jax.vmap.NoVmapRuleWarning")
def test_a_kernel_that_arrays_are_copied_for_where_the_cpu_is_taken_for_a_gpu(monkeypatch):
    op = copying()
    monkeypatch.setitem(lowering.PLATFORMS, "cpu", "cuda")
    monkeypatch.setattr(primitive, "device_type_of", lambda array: "cuda")
    monkeypatch.setattr(invoke, "device_type_of", lambda array: "cuda")
    for f in (op, jax.jit(op)):
        for _ in range(4):
            np.testing.assert_array_equal(f(X), X * 2)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: op(x).sum()))(X), [2] * 3)
    np.testing.assert_array_equal(jax.jit(jax.vmap(op))(jnp.stack([X, X])), jnp.stack([X, X]) * 2)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::opwright.frameworks.jax.vmap.NoVmapRuleWarning")
def test_a_kernel_that_arrays_are_copied_for_on_a_gpu():
    op, gpu = copying(), jax.devices("gpu")[0]
    x = jax.device_put(X, gpu)
    for f in (op, jax.jit(op), jax.jit(jax.vmap(op)), jax.jit(jax.grad(lambda x: op(x).sum()))):
        for _ in range(4):
            got = f(x)
            assert got.devices() == {gpu}
    np.testing.assert_array_equal(op(x), X * 2)
    np.testing.assert_array_equal(jax.jit(op)(x), X * 2)


@pytest.mark.cuda
def test_a_host_kernel_never_gets_arrays_from_a_gpu():
    @ow.custom_op("jaxk::on_host", mutates_args=())
    def on_host(x: np.ndarray) -> np.ndarray:
        return x * 2

    on_host.register_fake(lambda x: ow.empty_like(x))
    x = jax.device_put(X, jax.devices("gpu")[0])
    for run in (on_host, jax.jit(on_host)):
        with pytest.raises(
            ow.errors.NoKernelError, match="jaxk::on_host has no kernel for jax arrays on cuda"
        ):
            run(x)
