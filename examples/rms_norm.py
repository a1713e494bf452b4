"""RMS normalisation in two Triton kernels: one pass forward, one pass backward.

``y = x / sqrt(mean(x**2) + eps) * weight`` over the last axis. The kernels run on tensors of PyTorch, and by
DLPack on arrays of CuPy and JAX on a GPU; a reference in the array API standard serves all arrays on the CPU.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

import opwright as ow

PROGRAMS = 1024  # that share the rows of a backward pass; each sums the weight's gradient of its rows


@triton.jit
def _forward(x, weight, out, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    factor = tl.load(weight + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, value * scale * factor, mask=at < width)


@triton.jit
def _backward(grad, x, weight, grad_x, partial, rows, width, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    factor = tl.load(weight + at, mask=at < width, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        here = row.to(tl.int64) * width + at
        value = tl.load(x + here, mask=at < width, other=0.0).to(tl.float32)
        slope = tl.load(grad + here, mask=at < width, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
        normal = value * scale
        total += slope * normal
        pull = slope * factor
        inner = tl.sum(pull * normal, 0) / width
        tl.store(grad_x + here, scale * (pull - normal * inner), mask=at < width)
    tl.store(partial + tl.program_id(0) * width + at, total, mask=at < width)


def _block(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


@ow.triton_op("examples::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Normalise the last axis of ``x`` (..., width) and multiply by ``weight`` (width,)."""
    x = x.contiguous()
    out = torch.empty_like(x)
    width = weight.numel()
    ow.wrap_triton(_forward)[(x.numel() // width,)](x, weight, out, width, eps, **_block(width))
    return out


@ow.triton_op("examples::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of ``x`` and ``weight``."""
    grad, x = grad.contiguous(), x.contiguous()
    width = weight.numel()
    rows = x.numel() // width
    programs = min(rows, PROGRAMS)
    grad_x = torch.empty_like(x)
    partial = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    ow.wrap_triton(_backward)[(programs,)](
        grad, x, weight, grad_x, partial, rows, width, eps, **_block(width)
    )
    return grad_x, partial.sum(0).to(weight.dtype)


@rms_norm.register_kernel("cpu")
def _(x: ow.Array, weight: ow.Array, eps: float = 1e-6) -> ow.Array:
    xp = ow.array_namespace(x)
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


@rms_norm_backward.register_kernel("cpu")
def _(grad: ow.Array, x: ow.Array, weight: ow.Array, eps: float) -> tuple[ow.Array, ow.Array]:
    xp = ow.array_namespace(x)
    scale = 1 / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps)
    normal, pull = x * scale, grad * weight
    leading = tuple(range(x.ndim - 1))
    inner = xp.mean(pull * normal, axis=-1, keepdims=True)
    return scale * (pull - normal * inner), xp.sum(grad * normal, axis=leading)


@rms_norm.register_fake(flavour="array_api")
def _(x, weight, eps=1e-6):
    return ow.empty_like(x)


@rms_norm_backward.register_fake(flavour="array_api")
def _(grad, x, weight, eps):
    return ow.empty_like(x), ow.empty_like(weight)


def _setup(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


@rms_norm.register_autograd(setup_context=_setup, flavour="array_api")
def _(ctx, grad):
    x, weight = ctx.saved_tensors
    return *rms_norm_backward(grad, x, weight, ctx.eps), None


@rms_norm.register_jvp(flavour="array_api")
def _(ctx, dx, dweight, _):
    x, weight = ctx.saved_tensors
    xp = ow.array_namespace(x)
    scale = 1 / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + ctx.eps)
    normal = x * scale
    out = 0 if dweight is None else normal * dweight
    return (
        out
        if dx is None
        else out + scale * weight * (dx - normal * xp.mean(normal * dx, axis=-1, keepdims=True))
    )


def _front(xp, array, dim, size):
    """Return an array with its batch in front; one without gets one."""
    if dim is None:
        return xp.broadcast_to(array, (size, *array.shape))
    return xp.permute_dims(array, (dim, *(axis for axis in range(array.ndim) if axis != dim)))


@rms_norm.register_vmap(flavour="array_api")
def _(info, in_dims, x, weight, eps):
    xp = ow.array_namespace(x)
    x = _front(xp, x, in_dims[0], info.batch_size)
    if in_dims[1] is None:
        return rms_norm(x, weight, eps), 0
    factors = _front(xp, weight, in_dims[1], info.batch_size)
    ones = xp.ones_like(xp.sum(factors, axis=0))
    factors = xp.reshape(factors, (info.batch_size, *[1] * (x.ndim - 2), factors.shape[-1]))
    return rms_norm(x, ones, eps) * factors, 0


@rms_norm.register_samples
def _():
    make = np.random.default_rng(0).standard_normal
    for shape in ((4, 64), (2, 3, 33), (5,)):
        yield make(shape, np.float32), 1 + make(shape[-1:], np.float32)


def main() -> None:
    """Compare the operator with PyTorch's own formula, forward and backward."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(64, 1000, device=device, requires_grad=True)
    weight = torch.randn(1000, device=device, requires_grad=True)
    grad = torch.randn_like(x)
    ours = rms_norm(x, weight)
    expected = torch.nn.functional.rms_norm(x, (1000,), weight, 1e-6)
    theirs = torch.autograd.grad(expected, (x, weight), grad)
    pulled = torch.autograd.grad(ours, (x, weight), grad)
    errors = [
        float((a - b).detach().abs().max()) for a, b in zip((ours, *pulled), (expected, *theirs), strict=True)
    ]
    print(f"rms_norm on {device}: largest difference to torch {max(errors):.1e}")
    assert max(errors) < 1e-3  # noqa: S101  (an example that is wrong must fail)


if __name__ == "__main__":
    main()
