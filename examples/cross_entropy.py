"""Cross-entropy over classes, fused: no probabilities are stored, and the backward is a kernel of its own.

For each row, ``logsumexp(logits) - logits[label]``. The backward launches a kernel that reads the logits once
more and writes ``(softmax(logits) - onehot(label)) * grad``.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

import opwright as ow


@triton.jit
def _forward(logits, labels, losses, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = -float("inf")
    total = 0.0
    for start in range(0, classes, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * classes + at, mask=at < classes, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(value, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(value - higher), 0)
        top = higher
    chosen = tl.load(logits + row * classes + tl.load(labels + row)).to(tl.float32)
    tl.store(losses + row, tl.log(total) + top - chosen)


@triton.jit
def _backward(grad, logits, labels, losses, out, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    chosen = tl.load(logits + row * classes + label).to(tl.float32)
    norm = tl.load(losses + row).to(tl.float32) + chosen  # the logarithm of the sum of exponentials
    slope = tl.load(grad + row).to(tl.float32)
    for start in range(0, classes, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * classes + at, mask=at < classes, other=-float("inf")).to(tl.float32)
        share = tl.exp(value - norm) - tl.where(at == label, 1.0, 0.0)
        tl.store(out + row * classes + at, share * slope, mask=at < classes)


def _block(classes: int) -> dict[str, int]:
    block = min(triton.next_power_of_2(classes), 8192)
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


@ow.triton_op("examples::cross_entropy", mutates_args=())
def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of each row of ``logits`` (rows, classes) for ``labels`` (rows,)."""
    rows, classes = logits.shape
    if classes == 0:
        return logits.new_zeros(rows)
    logits = logits.contiguous()
    losses = torch.empty(rows, dtype=logits.dtype, device=logits.device)
    ow.wrap_triton(_forward)[(rows,)](logits, labels.contiguous(), losses, classes, **_block(classes))
    return losses


@ow.triton_op("examples::cross_entropy_backward", mutates_args=())
def cross_entropy_backward(
    grad: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of the logits."""
    rows, classes = logits.shape
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    ow.wrap_triton(_backward)[(rows,)](
        grad.contiguous(), logits, labels.contiguous(), losses.contiguous(), out, classes, **_block(classes)
    )
    return out


def _hot(xp, labels, logits):
    classes = xp.arange(logits.shape[-1], dtype=labels.dtype, **_where(logits))
    return xp.astype(classes[None, :] == labels[:, None], logits.dtype)


def _where(array):
    return {"device": array.device} if isinstance(array, torch.Tensor) else {}


@cross_entropy.register_kernel("cpu")
def _(logits: ow.Array, labels: ow.Array) -> ow.Array:
    xp = ow.array_namespace(logits)
    if logits.shape[-1] == 0:
        return xp.sum(logits, axis=-1)
    top = xp.max(logits, axis=-1, keepdims=True)
    norm = xp.log(xp.sum(xp.exp(logits - top), axis=-1)) + top[:, 0]
    return norm - xp.sum(logits * _hot(xp, labels, logits), axis=-1)


@cross_entropy_backward.register_kernel("cpu")
def _(grad: ow.Array, logits: ow.Array, labels: ow.Array, losses: ow.Array) -> ow.Array:
    xp = ow.array_namespace(logits)
    hot = _hot(xp, labels, logits)
    norm = losses + xp.sum(logits * hot, axis=-1)
    return (xp.exp(logits - norm[:, None]) - hot) * grad[:, None]


@cross_entropy.register_fake(flavour="array_api")
def _(logits, labels):
    return ow.empty(logits.shape[:1], like=logits)


@cross_entropy_backward.register_fake(flavour="array_api")
def _(grad, logits, labels, losses):
    return ow.empty_like(logits)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


@cross_entropy.register_autograd(setup_context=_setup, flavour="array_api")
def _(ctx, grad):
    logits, labels, losses = ctx.saved_tensors
    return cross_entropy_backward(grad, logits, labels, losses), None


@cross_entropy.register_jvp(flavour="array_api")
def _(ctx, dlogits, _):
    logits, labels, losses = ctx.saved_tensors
    xp = ow.array_namespace(logits)
    hot = _hot(xp, labels, logits)
    norm = losses + xp.sum(logits * hot, axis=-1)
    return xp.sum((xp.exp(logits - norm[:, None]) - hot) * dlogits, axis=-1)


def _front(xp, array, dim, size):
    """Return an array with its batch in front; one without gets one."""
    if dim is None:
        return xp.broadcast_to(array, (size, *array.shape))
    return xp.permute_dims(array, (dim, *(axis for axis in range(array.ndim) if axis != dim)))


@cross_entropy.register_vmap(flavour="array_api")
def _(info, in_dims, logits, labels):
    xp, size = ow.array_namespace(logits), info.batch_size
    logits, labels = _front(xp, logits, in_dims[0], size), _front(xp, labels, in_dims[1], size)
    rows, classes = logits.shape[1], logits.shape[2]
    losses = cross_entropy(xp.reshape(logits, (size * rows, classes)), xp.reshape(labels, (size * rows,)))
    return xp.reshape(losses, (size, rows)), 0


@cross_entropy.register_samples
def _():
    random = np.random.default_rng(0)
    for rows, classes in ((4, 10), (3, 100)):
        labels = random.integers(0, classes, rows)
        yield random.standard_normal((rows, classes), np.float32), labels.astype(np.int64)


def main() -> None:
    """Compare the operator with PyTorch's own, forward and backward."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits = torch.randn(64, 5000, device=device, requires_grad=True)
    labels = torch.randint(0, 5000, (64,), device=device)
    ours = cross_entropy(logits, labels)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    (pulled,) = torch.autograd.grad(ours.mean(), logits)
    (theirs,) = torch.autograd.grad(expected.mean(), logits)
    error = max(float((ours - expected).detach().abs().max()), float((pulled - theirs).abs().max()))
    print(f"cross_entropy on {device}: largest difference to torch {error:.1e}")
    assert error < 1e-4  # noqa: S101  (an example that is wrong must fail)


if __name__ == "__main__":
    main()
