"""A long causal convolution through the fast Fourier transform, in the array API standard alone.

``y[t] = sum over s <= t of kernel[t - s] * x[s]`` over the last axis, in O(n log n). One body serves NumPy,
PyTorch, JAX and CuPy; the gradient is two correlations, each of them the same operator on reversed inputs.
"""

from __future__ import annotations

import numpy as np

import opwright as ow


@ow.custom_op("examples::fft_convolution", mutates_args=())
def fft_convolution(x: ow.Array, kernel: ow.Array) -> ow.Array:
    """Convolve ``x`` (..., n) with ``kernel`` (channels..., n), whose leading axes broadcast."""
    xp = ow.array_namespace(x)
    if 0 in x.shape:
        return xp.zeros_like(x)
    size = x.shape[-1]
    spectrum = xp.fft.rfft(x, n=2 * size) * xp.fft.rfft(kernel, n=2 * size)
    return xp.asarray(xp.fft.irfft(spectrum, n=2 * size)[..., :size], copy=True)


@fft_convolution.register_fake
def _(x, kernel):
    return x.new_empty(x.shape)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@fft_convolution.register_autograd(setup_context=_setup)
def _(ctx, grad):
    x, kernel = ctx.saved_tensors
    xp = ow.array_namespace(x)
    back = xp.flip(grad, axis=-1)
    grad_x = xp.flip(fft_convolution(back, kernel), axis=-1)
    grad_kernel = xp.flip(fft_convolution(back, x), axis=-1)
    extra = grad_kernel.ndim - kernel.ndim
    if extra:
        grad_kernel = xp.sum(grad_kernel, axis=tuple(range(extra)))
    return grad_x, grad_kernel


def _front(xp, array, dim, size):
    """Return an array with its batch in front; one without gets one."""
    if dim is None:
        return xp.broadcast_to(array, (size, *array.shape))
    return xp.permute_dims(array, (dim, *(axis for axis in range(array.ndim) if axis != dim)))


@fft_convolution.register_vmap
def _(info, in_dims, x, kernel):
    xp = ow.array_namespace(x)
    x = _front(xp, x, in_dims[0], info.batch_size)
    if in_dims[1] is not None:
        kernel = _front(xp, kernel, in_dims[1], info.batch_size)
        kernel = xp.reshape(kernel, (info.batch_size, *[1] * (x.ndim - kernel.ndim), *kernel.shape[1:]))
    return fft_convolution(x, kernel), 0


@fft_convolution.register_samples
def _():
    make = np.random.default_rng(0).standard_normal
    yield make((2, 3, 16), np.float32), make((3, 16), np.float32)
    yield make(9, np.float32), make(9, np.float32)


def main() -> None:
    """Compare with NumPy's direct convolution."""
    make = np.random.default_rng(0).standard_normal
    x, kernel = make(200), make(200)
    error = float(np.abs(fft_convolution(x, kernel) - np.convolve(x, kernel)[:200]).max())
    print(f"fft_convolution: largest difference to the direct sum {error:.1e}")
    assert error < 1e-9  # noqa: S101  (an example that is wrong must fail)


if __name__ == "__main__":
    main()
