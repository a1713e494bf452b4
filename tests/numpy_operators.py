"""Operators on NumPy arrays that the tests of rules share; each shows one shape of operator."""

from __future__ import annotations

import numpy as np
import scipy.special

import opwright as ow


def save_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@ow.custom_op("nops::sin", mutates_args=())
def sin(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(x))


@sin.register_fake
def _(x):
    return ow.empty_like(x)


@sin.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * ow.array_namespace(x).cos(x)


@sin.register_vmap
def _(info, in_dims, x):
    return sin(x), in_dims[0]


@ow.custom_op("nops::gammaln", mutates_args=())
def gammaln(x: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """SciPy's log of the gamma function; its derivative is digamma."""
    return np.asarray(scale * scipy.special.gammaln(x), dtype=x.dtype)


@gammaln.register_fake
def _(x, scale=1.0):
    return ow.empty_like(x)


def _keep(ctx, inputs, output):
    x, ctx.scale = inputs
    ctx.save_for_backward(x)


@gammaln.register_autograd(setup_context=_keep)
def _(ctx, grad):
    return (grad * ctx.scale * scipy.special.digamma(ctx.saved_tensors[0])).astype(grad.dtype)


@ow.custom_op("nops::mul", mutates_args=())
def mul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The product, broadcast."""
    return np.asarray(x * y)


@mul.register_fake
def _(x, y):
    return x.new_empty(ow.broadcast_shapes(x.shape, y.shape), dtype=ow.result_type(x, y))


def _sum_to(grad, x):
    extra = grad.ndim - x.ndim
    axes = (
        *range(extra),
        *(extra + i for i, n in enumerate(x.shape) if n == 1 and grad.shape[extra + i] != 1),
    )
    return grad.sum(axis=axes, keepdims=True).reshape(x.shape)


@mul.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    x, y = ctx.saved_tensors
    return _sum_to(grad * np.conj(y), x), _sum_to(grad * np.conj(x), y)


@mul.register_jvp
def _(ctx, x_tangent, y_tangent):
    x, y = ctx.saved_tensors
    out = np.zeros(np.broadcast(x, y).shape, x.dtype)
    if x_tangent is not None:
        out = out + x_tangent * y
    if y_tangent is not None:
        out = out + x * y_tangent
    return out


@mul.register_vmap
def _(info, in_dims, x, y):
    rank = max(a.ndim - (d is not None) for a, d in zip((x, y), in_dims, strict=True))

    def front(a, d):
        if d is None:
            return a
        a = np.moveaxis(a, d, 0)
        return a.reshape(a.shape[0], *(1,) * (rank - a.ndim + 1), *a.shape[1:])

    return mul(front(x, in_dims[0]), front(y, in_dims[1])), 0


@ow.custom_op("nops::sincos", mutates_args=())
def sincos(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(np.sin(x)), np.asarray(np.cos(x))


@sincos.register_fake
def _(x):
    return ow.empty_like(x), ow.empty_like(x)


@sincos.register_autograd(setup_context=save_inputs)
def _(ctx, sin_grad, cos_grad):
    (x,) = ctx.saved_tensors
    return sin_grad * np.cos(x) - cos_grad * np.sin(x)


@sincos.register_vmap
def _(info, in_dims, x):
    return sincos(x), (in_dims[0], in_dims[0])


@ow.custom_op("nops::weighted", mutates_args=())
def weighted(xs: list[np.ndarray], weights: list[float]) -> np.ndarray:
    """The weighted sum of a list."""
    return sum((w * x for w, x in zip(weights, xs, strict=True)), np.zeros_like(xs[0]))


@weighted.register_fake
def _(xs, weights):
    return ow.empty_like(xs[0])


def _keep_weights(ctx, inputs, output):
    ctx.weights = inputs[1]


@weighted.register_autograd(setup_context=_keep_weights)
def _(ctx, grad):
    return [grad * w for w in ctx.weights], None


@ow.custom_op("nops::parts", mutates_args=())
def parts(x: np.ndarray, n: int = 2) -> list[np.ndarray]:
    """Equal pieces along the first axis, as copies."""
    return [piece.copy() for piece in np.split(x, n)]


@parts.register_fake
def _(x, n=2):
    return [x.new_empty((x.shape[0] // n, *x.shape[1:])) for _ in range(n)]


@parts.register_autograd(setup_context=None)
def _(ctx, grads):
    return np.concatenate(grads)


@ow.custom_op("nops::add_", mutates_args=("x",))
def add_(x: np.ndarray, y: np.ndarray) -> None:
    """Add ``y * x`` to ``x``, in place."""
    x += x * y


@add_.register_fake
def _(x, y):
    return None


@add_.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * (1 + y), grad * x


@ow.custom_op("nops::double_", mutates_args=("x",), tags="inplace")
def double_(x: np.ndarray) -> np.ndarray:
    x *= 2
    return x


@ow.custom_op("nops::sort", mutates_args=())
def sort(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values in order, and where they were."""
    return np.sort(x), np.argsort(x)


def _keep_order(ctx, inputs, output):
    ctx.order = output[1]
    ctx.mark_non_differentiable(output[1])


@sort.register_autograd(setup_context=_keep_order)
def _(ctx, grad, order_grad):
    ctx.seen = order_grad
    out = np.empty_like(grad)
    out[ctx.order] = grad
    return out


@ow.custom_op("nops::shift", mutates_args=())
def shift(x: np.ndarray, *, by: np.ndarray, factor: float = 1.0) -> np.ndarray:
    """An array that is passed by name."""
    return x + factor * by


def _keep_factor(ctx, inputs, keyword_only_inputs, output):
    ctx.factor = keyword_only_inputs["factor"]


@shift.register_autograd(setup_context=_keep_factor)
def _(ctx, grad):
    return {"x": grad, "by": ctx.factor * grad}


@shift.register_vmap
def _(info, in_dims, x, *, by, factor=1.0):
    return shift(np.moveaxis(x, in_dims[0], 0), by=by, factor=factor), 0


@ow.custom_op("nops::square", mutates_args=())
def square(z: np.ndarray) -> np.ndarray:
    """Of a complex array."""
    return z * z


@square.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    return grad * 2 * np.conj(ctx.saved_tensors[0])


@ow.custom_op("nops::maybe", mutates_args=())
def maybe(x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """An optional array."""
    return x.copy() if y is None else x + y


@maybe.register_autograd
def _(ctx, grad):
    return grad, grad if ctx.needs_input_grad[1] else None


@ow.custom_op("nops::noise", mutates_args=(), tags="nondeterministic_seeded")
def noise(x: np.ndarray) -> np.ndarray:
    return x + np.random.default_rng().standard_normal(x.shape)


@ow.custom_op("nops::nonzero", mutates_args=())
def nonzero(x: np.ndarray) -> np.ndarray:
    """An output whose size depends on data."""
    return np.stack(np.nonzero(x), axis=1)


@nonzero.register_fake
def _(x):
    return x.new_empty((ow.get_ctx().new_dynamic_size(), x.ndim), dtype="int64")


@ow.custom_op("nops::bare", mutates_args=())
def bare(x: np.ndarray) -> np.ndarray:
    """Without any rule."""
    return x + 1


@ow.custom_op("nops::rounded", mutates_args=(), non_differentiable=True)
def rounded(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.round(x))
