"""A linear recurrence compiled by numba: what no array language says without a loop.

``h[t] = decay[t] * h[t - 1] + x[t]`` along the last axis. The gradient is the same recurrence, run backwards.
"""

from __future__ import annotations

import numba
import numpy as np

import opwright as ow


@numba.njit
def steps(x: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Run the recurrence over ``x`` (rows, steps) with ``decay`` (rows, steps)."""
    out = np.empty_like(x)
    for row in range(x.shape[0]):
        state = x.dtype.type(0)
        for step in range(x.shape[1]):
            state = decay[row, step] * state + x[row, step]
            out[row, step] = state
    return out


recurrence = ow.custom_op("examples::recurrence", steps, mutates_args=())


@recurrence.register_fake
def _(x, decay):
    return ow.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1], output)


@recurrence.register_autograd(setup_context=_setup)
def _(ctx, grad):
    decay, states = ctx.saved_tensors
    xp = ow.array_namespace(grad)
    first = xp.zeros_like(decay[:, :1])
    later = xp.concat([decay[:, 1:], first], axis=1)  # what carries a state on to the next step
    grad_x = xp.flip(recurrence(xp.flip(grad, axis=1), xp.flip(later, axis=1)), axis=1)
    before = xp.concat([first, states[:, :-1]], axis=1)
    return grad_x, grad_x * before


def _front(xp, array, dim, size):
    """Return an array with its batch in front; one without gets one."""
    if dim is None:
        return xp.broadcast_to(array, (size, *array.shape))
    return xp.permute_dims(array, (dim, *(axis for axis in range(array.ndim) if axis != dim)))


@recurrence.register_vmap
def _(info, in_dims, x, decay):
    xp = ow.array_namespace(x)
    moved = [_front(xp, *pair, info.batch_size) for pair in zip((x, decay), in_dims, strict=True)]
    size, rows, steps = moved[0].shape
    out = recurrence(*[xp.reshape(array, (size * rows, steps)) for array in moved])
    return xp.reshape(out, (size, rows, steps)), 0


@recurrence.register_samples
def _():
    random = np.random.default_rng(0)
    for rows, steps in ((2, 8), (3, 1)):
        yield random.standard_normal((rows, steps)), random.uniform(0, 1, (rows, steps))


def main() -> None:
    """Compare with a loop in Python."""
    random = np.random.default_rng(0)
    x, decay = random.standard_normal((4, 100)), random.uniform(0, 1, (4, 100))
    states = [np.zeros(4)]
    for step in range(100):
        states.append(decay[:, step] * states[-1] + x[:, step])
    error = float(np.abs(recurrence(x, decay) - np.stack(states[1:], 1)).max())
    print(f"recurrence: largest difference to a loop {error:.1e}")
    assert error < 1e-12  # noqa: S101  (an example that is wrong must fail)


if __name__ == "__main__":
    main()
