"""Right operators, which the checker must let pass: the false-alarm suite.

Each entry of ``OPERATORS`` is an operator with its rules and its registered samples.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.linalg
import scipy.ndimage
import scipy.special

import opwright as ow

OPERATORS = {}


def rng():
    return np.random.default_rng(0)


def right(fn=None, *, samples, mutates_args=(), **options):
    """Define a right operator; its samples are registered with it."""

    def define(fn):
        operator = ow.custom_op(f"right::{fn.__name__}", fn, mutates_args=mutates_args, **options)
        operator.register_samples(samples)
        OPERATORS[fn.__name__] = operator
        return operator

    return define if fn is None else define(fn)


def save_inputs(ctx, inputs, output):
    ctx.save_for_backward(*[one for one in inputs if hasattr(one, "shape")])


def like_first(x, *rest):
    return ow.empty_like(x)


def need(fits):
    """Raise in a fake for what the kernel rejects."""
    if not fits:
        raise ValueError("the arguments do not fit each other")


def in_front(x, dim):
    return x if dim is None else ow.array_namespace(x).moveaxis(x, dim, 0)


def summed_to(grad, shape):
    """Sum a gradient over the axes along which an argument was broadcast."""
    xp = ow.array_namespace(grad)
    extra = grad.ndim - len(shape)
    if extra:
        grad = xp.sum(grad, axis=tuple(range(extra)))
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and grad.shape[i] != 1)
    return xp.sum(grad, axis=axes, keepdims=True) if axes else grad


def elementwise(name, kernel, derivative, sample):
    """Define a function of one array, element by element, with all its rules."""

    def fn(x: np.ndarray) -> np.ndarray:
        return np.asarray(kernel(x), dtype=x.dtype)

    fn.__name__ = name
    operator = right(fn, samples=lambda: [(sample,), (sample[0, 0],), (sample.astype("float32"),)])
    operator.register_fake(like_first)
    operator.register_autograd(
        lambda ctx, grad: (grad * derivative(ctx.saved_tensors[0])).astype(grad.dtype),
        setup_context=save_inputs,
    )
    operator.register_jvp(
        lambda ctx, tangent: (tangent * derivative(ctx.saved_tensors[0])).astype(tangent.dtype)
    )
    operator.register_vmap(lambda info, in_dims, x: (operator(x), in_dims[0]))


normal = rng().standard_normal((3, 4))
positive = rng().uniform(0.5, 3.0, (3, 4))
elementwise("sin", np.sin, np.cos, normal)
elementwise("erf", scipy.special.erf, lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x), normal)
elementwise("gammaln", scipy.special.gammaln, scipy.special.digamma, positive)
elementwise("bessel", scipy.special.j0, lambda x: -scipy.special.j1(x), normal)
elementwise("expit", scipy.special.expit, lambda x: scipy.special.expit(x) * scipy.special.expit(-x), normal)
elementwise("softplus", lambda x: np.logaddexp(0, x), scipy.special.expit, normal)
elementwise("relu", lambda x: np.maximum(x, 0), lambda x: (x > 0).astype(x.dtype), np.round(normal))
elementwise("clip", lambda x: np.clip(x, -1, 1), lambda x: (np.abs(x) <= 1).astype(x.dtype), normal)
elementwise("square_root", np.sqrt, lambda x: 0.5 / np.sqrt(x), positive)


# --------------------------------------------------------------------------------- several arguments


@right(samples=lambda: [(normal, normal[0]), (normal[:, :1], normal[:1]), (normal[0, 0], normal)])
def mul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(x * y)


@mul.register_fake
def _(x, y):
    return x.new_empty(ow.broadcast_shapes(x.shape, y.shape), dtype=ow.result_type(x, y))


@mul.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    x, y = ctx.saved_tensors
    return summed_to(grad * y, x.shape), summed_to(grad * x, y.shape)


@mul.register_jvp
def _(ctx, dx, dy):
    x, y = ctx.saved_tensors
    parts = [] if dx is None else [dx * y]
    return sum(parts if dy is None else [*parts, x * dy])


@mul.register_vmap
def _(info, in_dims, x, y):
    ndim = max(x.ndim - (in_dims[0] is not None), y.ndim - (in_dims[1] is not None))
    arrays = []
    for array, dim in zip((x, y), in_dims, strict=True):
        front = in_front(array, dim)
        gap = ndim - (front.ndim - 1) if dim is not None else 0
        arrays.append(
            front.reshape(front.shape[:1] + (1,) * gap + front.shape[1:]) if dim is not None else front
        )
    return mul(*arrays), 0


@right(samples=lambda: [(normal, normal.T), (normal[None], normal.T)])
def matmul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.matmul(x, y)


@matmul.register_fake
def _(x, y):
    if x.shape[-1] != y.shape[0]:
        raise ValueError("sizes do not fit")
    return x.new_empty((*x.shape[:-1], y.shape[1]), dtype=ow.result_type(x, y))


@matmul.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    x, y = ctx.saved_tensors
    by_x = matmul(grad, np.ascontiguousarray(y.T)) if ctx.needs_input_grad[0] else None
    flat, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return by_x, matmul(flat.T, grads) if ctx.needs_input_grad[1] else None


@right(samples=lambda: [(normal, normal, normal[0, :3]), (normal, normal, None)])
def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    out = x @ weight.T
    return out if bias is None else out + bias


@linear.register_fake
def _(x, weight, bias=None):
    need(weight.ndim == 2 and x.shape[-1] == weight.shape[1])
    need(bias is None or (bias.ndim == 1 and bias.shape[0] == weight.shape[0]))
    return x.new_empty((x.shape[0], weight.shape[0]))


def _setup_linear(ctx, inputs, output):
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


@linear.register_autograd(setup_context=_setup_linear)
def _(ctx, grad):
    x, weight = ctx.saved_tensors
    return {"x": grad @ weight, "weight": grad.T @ x, "bias": grad.sum(0) if ctx.has_bias else None}


@linear.register_vmap
def _(info, in_dims, x, weight, bias=None):
    rows = []
    for i in range(info.batch_size):
        each = [
            a if d is None else np.take(a, i, axis=d) for a, d in zip((x, weight, bias), in_dims, strict=True)
        ]
        rows.append(linear(*each))
    return np.stack(rows) if rows else np.empty((0, x.shape[-2 if in_dims[0] in (None, 0) else 0], 3)), 0


def _spd(n):
    half = rng().standard_normal((n, n))
    return half @ half.T + n * np.eye(n)


@right(samples=lambda: [(_spd(3), rng().standard_normal((3, 2)))])
def solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.linalg.solve(a, b)


@solve.register_fake
def _(a, b):
    need(a.ndim == 2 and a.shape[0] == a.shape[1] and b.ndim == 2 and b.shape[0] == a.shape[0])
    return ow.empty_like(b)


def _setup_solve(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output)


@solve.register_autograd(setup_context=_setup_solve)
def _(ctx, grad):
    a, x = ctx.saved_tensors
    by_b = solve(a.T.copy(), grad)
    return -by_b @ x.T, by_b


@right(samples=lambda: [(_spd(3),)])
def logdet(a: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.slogdet(a)[1])


@logdet.register_fake
def _(a):
    need(a.ndim == 2 and a.shape[0] == a.shape[1])
    return a.new_empty(())


@logdet.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    return grad * np.linalg.inv(ctx.saved_tensors[0]).T


@right(samples=lambda: [(positive, positive + 1)])
def xlogy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(scipy.special.xlogy(x, y))


@xlogy.register_fake
def _(x, y):
    return x.new_empty(ow.broadcast_shapes(x.shape, y.shape))


@xlogy.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * np.log(y), grad * x / y


# -------------------------------------------------------------------- reductions, flags, words, dtypes


@right(samples=lambda: [(normal, 1, False), (normal, 0, True)])
def logsumexp(x: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    return np.asarray(scipy.special.logsumexp(x, axis=axis, keepdims=keepdims), dtype=x.dtype)


@logsumexp.register_fake
def _(x, axis, keepdims=False):
    shape = list(x.shape)
    if keepdims:
        shape[axis] = 1
    else:
        del shape[axis]
    return x.new_empty(shape)


def _setup_logsumexp(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.axis, ctx.keepdims = inputs[1:]


@logsumexp.register_autograd(setup_context=_setup_logsumexp)
def _(ctx, grad):
    (x,) = ctx.saved_tensors
    grad = grad if ctx.keepdims else np.expand_dims(grad, ctx.axis)
    return grad * scipy.special.softmax(x, axis=ctx.axis), None, None


@right(samples=lambda: [(normal,), (normal, "mean"), (normal, "max")])
def reduce(x: np.ndarray, how: Literal["sum", "mean", "max"] = "sum") -> np.ndarray:
    return np.asarray(getattr(np, how)(x, axis=-1))


@reduce.register_fake
def _(x, how="sum"):
    if how == "max" and x.shape[-1] == 0:
        raise ValueError("no maximum of nothing")
    return x.new_empty(x.shape[:-1])


@right(samples=lambda: [(normal, np.dtype("float32")), (normal, np.dtype("int64"))])
def cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return x.astype(dtype)


@cast.register_fake
def _(x, dtype):
    return ow.empty_like(x, dtype=dtype)


@right(samples=lambda: [(normal, normal > 0, 0.5)])
def masked_fill(x: np.ndarray, mask: np.ndarray, value: float) -> np.ndarray:
    return np.where(mask, np.asarray(value, x.dtype), x)


masked_fill.register_fake(lambda x, mask, value: x.new_empty(ow.broadcast_shapes(x.shape, mask.shape)))


def _setup_masked(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


@masked_fill.register_autograd(setup_context=_setup_masked)
def _(ctx, grad):
    return np.where(ctx.saved_tensors[0], np.zeros((), grad.dtype), grad), None, None


@right(samples=lambda: [(normal,)], non_differentiable=True)
def rounded(x: np.ndarray) -> np.ndarray:
    return np.round(x)


rounded.register_fake(like_first)


# --------------------------------------------------------------- several outputs, lists, integers, sizes


@right(samples=lambda: [(normal,)])
def sort(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(x, axis=-1, kind="stable")
    return np.take_along_axis(x, order, -1), order


@sort.register_fake
def _(x):
    return ow.empty_like(x), ow.empty_like(x, dtype="int64")


def _setup_sort(ctx, inputs, output):
    ctx.save_for_backward(output[1])


@sort.register_autograd(setup_context=_setup_sort)
def _(ctx, grad, _):
    (order,) = ctx.saved_tensors
    out = np.zeros_like(grad)
    np.put_along_axis(out, order, grad, -1)
    return out


@sort.register_vmap
def _(info, in_dims, x):
    return sort(in_front(x, in_dims[0])), (0, 0)


@right(samples=lambda: [(normal,), (normal[0],)])
def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return x.mean(-1, keepdims=True), np.square(x).mean(-1, keepdims=True), x - x.mean(-1, keepdims=True)


@moments.register_fake
def _(x):
    need(x.ndim > 0)
    one = (*x.shape[:-1], 1)
    return x.new_empty(one), x.new_empty(one), ow.empty_like(x)


@moments.register_autograd(setup_context=save_inputs)
def _(ctx, mean, square, centred):
    (x,) = ctx.saved_tensors
    n = x.shape[-1]
    return (mean + 2 * square * x) / n + centred - centred.sum(-1, keepdims=True) / n


@right(samples=lambda: [(normal, np.array([2, 0, 2]))])
def take(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return x[index]


@take.register_fake
def _(x, index):
    return x.new_empty((*index.shape, *x.shape[1:]))


def _setup_take(ctx, inputs, output):
    x, index = inputs
    ctx.save_for_backward(index)
    ctx.shape = x.shape


@take.register_autograd(setup_context=_setup_take)
def _(ctx, grad):
    out = np.zeros(ctx.shape, grad.dtype)
    np.add.at(out, ctx.saved_tensors[0], grad)
    return out, None


@right(samples=lambda: [([normal, normal[:1]],), ([normal, normal, normal], 1)])
def cat(xs: list[np.ndarray], axis: int = 0) -> np.ndarray:
    return np.concatenate(xs, axis)


@cat.register_fake
def _(xs, axis=0):
    shape = list(xs[0].shape)
    for x in xs:
        need(x.ndim == len(shape) and all(n == x.shape[i] for i, n in enumerate(shape) if i != axis))
    shape[axis] = sum(x.shape[axis] for x in xs)
    return xs[0].new_empty(shape)


def _setup_cat(ctx, inputs, output):
    xs, ctx.axis = inputs
    ctx.sizes = [x.shape[ctx.axis] for x in xs]


@cat.register_autograd(setup_context=_setup_cat)
def _(ctx, grad):
    return list(np.split(grad, np.cumsum(ctx.sizes)[:-1], ctx.axis)), None


@cat.register_vmap
def _(info, in_dims, xs, axis=0):
    dims = in_dims[0]
    fronts = [
        np.broadcast_to(x, (info.batch_size, *x.shape)) if d is None else np.moveaxis(x, d, 0)
        for x, d in zip(xs, dims, strict=True)
    ]
    return cat(fronts, axis + 1 if axis >= 0 else axis), 0


@right(samples=lambda: [(normal, 2), (normal[0], 4)])
def chunks(x: np.ndarray, parts: int) -> list[np.ndarray]:
    return [part.copy() for part in np.array_split(x, parts)]


@chunks.register_fake
def _(x, parts):
    n = x.shape[0]
    return [x.new_empty(((n + parts - 1 - i) // parts, *x.shape[1:])) for i in range(parts)]


@chunks.register_autograd
def _(ctx, grads):
    return np.concatenate(grads), None


@right(samples=lambda: [(np.round(normal),)])
def nonzero(x: np.ndarray) -> np.ndarray:
    return np.stack(np.nonzero(x), axis=1)


@nonzero.register_fake
def _(x):
    size = ow.get_ctx().new_dynamic_size()
    return x.new_empty((size, x.ndim), dtype="int64")


@right(samples=lambda: [(normal,)])
def argmax(x: np.ndarray) -> np.ndarray:
    if x.shape[-1] == 0:
        return np.zeros(x.shape[:-1], np.int64)
    return np.asarray(np.argmax(x, axis=-1))


argmax.register_fake(lambda x: x.new_empty(x.shape[:-1], dtype="int64"))


@right(samples=lambda: [(np.array([0, 2, 2, 3]), 6)])
def bincount(x: np.ndarray, length: int) -> np.ndarray:
    return np.bincount(x, minlength=length)[:length]


@bincount.register_fake
def _(x, length):
    need(x.ndim == 1)
    return x.new_empty((length,))


@right(samples=lambda: [(normal,)])
def count_positive(x: np.ndarray) -> int:
    return int((x > 0).sum())


@right(samples=lambda: [([2, 3], 1.5)])
def full(shape: list[int], value: float) -> np.ndarray:
    return np.full(tuple(shape), value)


full.register_fake(lambda shape, value: ow.empty(tuple(shape), dtype="float64"))


# --------------------------------------------------------------------------------- mutation, order, words


@right(samples=lambda: [(normal, 2.0)], mutates_args=("x",))
def scale_(x: np.ndarray, k: float) -> None:
    x *= x.dtype.type(k)


def _setup_scale(ctx, inputs, output):
    ctx.k = inputs[1]


@scale_.register_autograd(setup_context=_setup_scale)
def _(ctx, grad):
    return grad * ctx.k, None


@scale_.register_vmap
def _(info, in_dims, x, k):
    scale_(x, k)
    return None, ()


@right(
    samples=lambda: [(normal, 0.5, normal.copy())],
    mutates_args=("out",),
    schema="(Tensor x, float k, Tensor(a!) out) -> Tensor(a!)",
    flavour="numpy",
)
def scaled_into(x, k, out):
    np.multiply(x, x.dtype.type(k), out=out)
    return out


@scaled_into.register_fake
def _(x, k, out):
    need(out.dtype == x.dtype and ow.broadcast_shapes(x.shape, out.shape) == out.shape)
    return out


@right(samples=lambda: [(normal, normal)], mutates_args=("total", "count"))
def accumulate(x: np.ndarray, total: np.ndarray, count: np.ndarray | None = None) -> np.ndarray:
    total += x
    if count is not None:
        count += 1
    return total.sum(axis=-1)


@accumulate.register_fake
def _(x, total, count=None):
    need(total.dtype == x.dtype and ow.broadcast_shapes(x.shape, total.shape) == total.shape)
    return x.new_empty(total.shape[:-1])


@right(samples=lambda: [((normal,), {"weight": normal + 1})])
def weighted(x: np.ndarray, *, weight: np.ndarray, power: int = 1) -> np.ndarray:
    return np.asarray(x * weight**power, dtype=x.dtype)


weighted.register_fake(lambda x, *, weight, power=1: x.new_empty(ow.broadcast_shapes(x.shape, weight.shape)))


def _setup_weighted(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(inputs[0], keyword_only_inputs["weight"])
    ctx.power = keyword_only_inputs["power"]


@weighted.register_autograd(setup_context=_setup_weighted)
def _(ctx, grad):
    x, weight = ctx.saved_tensors
    return {"x": grad * weight**ctx.power, "weight": grad * x * ctx.power * weight ** (ctx.power - 1)}


@right(samples=lambda: [(normal, 0.5)], tags="nondeterministic_seeded")
def dropout(x: np.ndarray, p: float) -> np.ndarray:
    return np.where(np.random.default_rng().random(x.shape) < p, np.zeros((), x.dtype), x)


dropout.register_fake(lambda x, p: ow.empty_like(x))


# ----------------------------------------------------------------------------------------- complex numbers

complicated = normal + 1j * normal[::-1]


@right(samples=lambda: [(complicated,), (complicated.astype("complex64"),)])
def square_complex(z: np.ndarray) -> np.ndarray:
    return z * z


square_complex.register_fake(like_first)
square_complex.register_autograd(
    lambda ctx, grad: grad * np.conj(2 * ctx.saved_tensors[0]), setup_context=save_inputs
)


@right(samples=lambda: [(complicated,)])
def magnitude(z: np.ndarray) -> np.ndarray:
    return np.abs(z)


@magnitude.register_fake
def _(z):
    return z.new_empty(z.shape, dtype="float32" if z.dtype == "complex64" else "float64")


magnitude.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0] / np.abs(ctx.saved_tensors[0]), setup_context=save_inputs
)


@right(samples=lambda: [(complicated,)])
def fourier(z: np.ndarray) -> np.ndarray:
    return scipy.fft.fft(z, axis=-1) if z.size else z.copy()


fourier.register_fake(like_first)
fourier.register_autograd(lambda ctx, grad: scipy.fft.ifft(grad, axis=-1) * grad.shape[-1])


# -------------------------------------------------------------------------------------- whole-array work


@right(samples=lambda: [(normal,)])
def cumsum(x: np.ndarray) -> np.ndarray:
    return np.cumsum(x, axis=-1, dtype=x.dtype)


cumsum.register_fake(like_first)
cumsum.register_autograd(lambda ctx, grad: np.flip(np.cumsum(np.flip(grad, -1), -1), -1).copy())
cumsum.register_jvp(lambda ctx, tangent: np.cumsum(tangent, -1))
cumsum.register_vmap(lambda info, in_dims, x: (cumsum(in_front(x, in_dims[0])), 0))


@right(samples=lambda: [(normal, 1.5)])
def blur(x: np.ndarray, sigma: float) -> np.ndarray:
    return scipy.ndimage.gaussian_filter(x, sigma, mode="constant") if x.size else x.copy()


blur.register_fake(lambda x, sigma: ow.empty_like(x))


def _setup_blur(ctx, inputs, output):
    ctx.sigma = inputs[1]


@blur.register_autograd(setup_context=_setup_blur)
def _(ctx, grad):
    return blur(grad, ctx.sigma), None


@right(samples=lambda: [(normal[0], np.array([0.5, -0.25]))])
def convolve(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return np.convolve(x, kernel)


@convolve.register_fake
def _(x, kernel):
    need(x.ndim == kernel.ndim == 1)
    if x.shape[0] == 0 or kernel.shape[0] == 0:
        raise ValueError("nothing to convolve")
    return x.new_empty((x.shape[0] + kernel.shape[0] - 1,))


@convolve.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    x, kernel = ctx.saved_tensors
    return np.correlate(grad, kernel, "valid"), np.correlate(grad, x, "valid")


@right(samples=lambda: [(np.array([0.3, 1.7, -1.0]), np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 2.0]))])
def interpolate(x: np.ndarray, knots: np.ndarray, heights: np.ndarray) -> np.ndarray:
    return np.interp(x, knots, heights).astype(x.dtype)


@right(samples=lambda: [(np.array([1.0, 2.0, 4.0]), np.array([0.5, 2.0]))])
def searchsorted(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.searchsorted(x, values)


@searchsorted.register_fake
def _(x, values):
    need(x.ndim == 1)
    return ow.empty_like(values, dtype="int64")


@right(samples=lambda: [(normal,), (normal[:1],)], flavour="array_api")
def normalised(x: ow.Array) -> ow.Array:
    xp = ow.array_namespace(x)
    return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))


normalised.register_fake(like_first)


@normalised.register_autograd(setup_context=save_inputs)
def _(ctx, grad):
    (x,) = ctx.saved_tensors
    xp = ow.array_namespace(x)
    length = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    unit = x / length
    return (grad - unit * xp.sum(grad * unit, axis=-1, keepdims=True)) / length


# ------------------------------------------------------------------------------------- shapes alone matter


@right(samples=lambda: [(normal,), (normal[:, 0].astype("float32"),)])
def places(x: np.ndarray) -> np.ndarray:
    return np.arange(x.size, dtype=x.dtype).reshape(x.shape)


places.register_fake(like_first)
