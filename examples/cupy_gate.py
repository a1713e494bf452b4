"""A gated activation in raw CUDA C through CuPy: ``silu(x) * y``, forward and backward in one kernel each.

The kernels take arrays of CuPy, and by DLPack those of PyTorch and JAX on a GPU, without a copy. Arrays on
the CPU have a reference in the array API standard. Needs CuPy for the GPU only.
"""

from __future__ import annotations

import importlib.util

import numpy as np

import opwright as ow

SOURCE = r"""
template <typename T> __global__ void forward(const T* x, const T* y, T* out, long long n) {
    long long i = (long long)blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n) out[i] = x[i] / (T(1) + exp(-x[i])) * y[i];
}
template <typename T> __global__ void backward(
    const T* grad, const T* x, const T* y, T* grad_x, T* grad_y, long long n
) {
    long long i = (long long)blockDim.x * blockIdx.x + threadIdx.x;
    if (i >= n) return;
    T s = T(1) / (T(1) + exp(-x[i]));
    grad_y[i] = grad[i] * x[i] * s;
    grad_x[i] = grad[i] * y[i] * s * (T(1) + x[i] * (T(1) - s));
}
"""
TYPES = {"float32": "float", "float64": "double"}
THREADS = 256


@ow.custom_op("examples::gate", mutates_args=(), device_types="cpu")
def gate(x: ow.Array, y: ow.Array) -> ow.Array:
    """Return ``silu(x) * y`` for arrays of one shape."""
    xp = ow.array_namespace(x)
    return x / (1 + xp.exp(-x)) * y


@ow.custom_op("examples::gate_backward", mutates_args=(), device_types="cpu")
def gate_backward(grad: ow.Array, x: ow.Array, y: ow.Array) -> tuple[ow.Array, ow.Array]:
    """Return the gradients of ``x`` and ``y``."""
    share = 1 / (1 + ow.array_namespace(x).exp(-x))
    return grad * y * share * (1 + x * (1 - share)), grad * x * share


if importlib.util.find_spec("cupy") is not None:
    import cupy

    _names = [f"{name}<{type_}>" for name in ("forward", "backward") for type_ in TYPES.values()]
    _module = cupy.RawModule(code=SOURCE, options=("-std=c++14",), name_expressions=_names)

    def _launch(name: str, *arrays: cupy.ndarray) -> None:
        size = arrays[0].size
        if size:
            kernel = _module.get_function(f"{name}<{TYPES[arrays[0].dtype.name]}>")
            kernel(((size + THREADS - 1) // THREADS,), (THREADS,), (*arrays, np.int64(size)))

    def _computed_in(dtype: np.dtype) -> np.dtype:
        """Return the dtype of the kernels for arrays of a dtype: that, or float32."""
        return dtype if dtype.name in TYPES else np.dtype("float32")

    @gate.register_kernel("cuda")
    def _(x: cupy.ndarray, y: cupy.ndarray) -> cupy.ndarray:
        dtype = x.dtype
        x, y = (cupy.ascontiguousarray(array, dtype=_computed_in(dtype)) for array in (x, y))
        out = cupy.empty_like(x)
        _launch("forward", x, y, out)
        return out.astype(dtype, copy=False)

    @gate_backward.register_kernel("cuda")
    def _(grad: cupy.ndarray, x: cupy.ndarray, y: cupy.ndarray) -> tuple[cupy.ndarray, cupy.ndarray]:
        dtype = x.dtype
        grad, x, y = (cupy.ascontiguousarray(array, dtype=_computed_in(dtype)) for array in (grad, x, y))
        grads = cupy.empty_like(x), cupy.empty_like(x)
        _launch("backward", grad, x, y, *grads)
        return tuple(one.astype(dtype, copy=False) for one in grads)


@gate.register_fake
def _(x, y):
    return ow.empty_like(x)


@gate_backward.register_fake
def _(grad, x, y):
    return ow.empty_like(x), ow.empty_like(y)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@gate.register_autograd(setup_context=_setup)
def _(ctx, grad):
    return gate_backward(grad, *ctx.saved_tensors)


@gate.register_jvp
def _(ctx, dx, dy):
    x, y = ctx.saved_tensors
    share = 1 / (1 + ow.array_namespace(x).exp(-x))
    out = 0 if dy is None else dy * x * share
    return out if dx is None else out + dx * y * share * (1 + x * (1 - share))


def _front(xp, array, dim, size):
    """Return an array with its batch in front; one without gets one."""
    if dim is None:
        return xp.broadcast_to(array, (size, *array.shape))
    return xp.permute_dims(array, (dim, *(axis for axis in range(array.ndim) if axis != dim)))


@gate.register_vmap
def _(info, in_dims, x, y):
    xp, size = ow.array_namespace(x), info.batch_size
    return gate(_front(xp, x, in_dims[0], size), _front(xp, y, in_dims[1], size)), 0


@gate.register_samples
def _():
    make = np.random.default_rng(0).standard_normal
    for shape in ((4, 5), (7,)):
        yield make(shape, np.float32), make(shape, np.float32)


def main() -> None:
    """Compare with the formula in NumPy, on CuPy's arrays where there is a GPU."""
    make = np.random.default_rng(0).standard_normal
    x, y = make(1000, np.float32), make(1000, np.float32)
    expected = x / (1 + np.exp(-x)) * y
    found, where = gate(x, y), "cpu"
    if importlib.util.find_spec("cupy") is not None and cupy.is_available():
        found, where = cupy.asnumpy(gate(cupy.asarray(x), cupy.asarray(y))), "cuda"
    error = float(np.abs(found - expected).max())
    print(f"gate on {where}: largest difference to NumPy {error:.1e}")
    assert error < 1e-5  # noqa: S101  (an example that is wrong must fail)


if __name__ == "__main__":
    main()
