"""Operators whose rules take every framework's arrays: right ones, and wrong ones by what is found."""

from __future__ import annotations

import numpy as np

import opwright as ow

RIGHT = {}
WRONG = {}
normal = np.random.default_rng(0).standard_normal((3, 4))


def define(table, samples, mutates_args=(), ids=""):
    def decorate(fn):
        operator = ow.custom_op(f"portable::{fn.__name__}", fn, mutates_args=mutates_args)
        operator.register_samples(lambda: samples)
        table[fn.__name__] = operator if table is RIGHT else (operator, set(ids.split()))
        return operator

    return decorate


def right(*samples, **options):
    return define(RIGHT, list(samples), **options)


def wrong(ids, *samples, **options):
    return define(WRONG, list(samples), ids=ids, **options)


def save(ctx, inputs, output):
    ctx.save_for_backward(*[one for one in inputs if hasattr(one, "shape")])


def like(x, *rest):
    return ow.empty_like(x)


def cosine(x):
    return ow.array_namespace(x).cos(x)


@right((normal,), (normal.astype("float32"),), (normal[0, 0],))
def sin(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(x))


sin.register_fake(like)
sin.register_autograd(lambda ctx, grad: grad * cosine(ctx.saved_tensors[0]), setup_context=save)
sin.register_jvp(lambda ctx, tangent: tangent * cosine(ctx.saved_tensors[0]))
sin.register_vmap(lambda info, in_dims, x: (sin(x), in_dims[0]))


@right((normal, normal + 1))
def product_and_sum(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x * y, x + y


@product_and_sum.register_fake
def _(x, y):
    shape = ow.broadcast_shapes(x.shape, y.shape)
    return x.new_empty(shape), x.new_empty(shape)


@product_and_sum.register_autograd(setup_context=save)
def _(ctx, by_product, by_sum):
    x, y = ctx.saved_tensors
    return by_product * y + by_sum, by_product * x + by_sum


@right((normal, 2.0), mutates_args=("x",))
def scale_(x: np.ndarray, k: float) -> None:
    x *= x.dtype.type(k)


def _setup_scale(ctx, inputs, output):
    ctx.k = inputs[1]


@scale_.register_autograd(setup_context=_setup_scale)
def _(ctx, grad):
    return grad * ctx.k, None


@right(([normal, normal[:1]],))
def stack_rows(xs: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(xs)


@stack_rows.register_fake
def _(xs):
    return xs[0].new_empty((sum(x.shape[0] for x in xs), *xs[0].shape[1:]))


def _setup_rows(ctx, inputs, output):
    ctx.sizes = [x.shape[0] for x in inputs[0]]


@stack_rows.register_autograd(setup_context=_setup_rows)
def _(ctx, grad):
    xp = ow.array_namespace(grad)
    ends = [sum(ctx.sizes[: i + 1]) for i in range(len(ctx.sizes))]
    return [xp.asarray(grad[end - size : end], copy=True) for end, size in zip(ends, ctx.sizes, strict=True)]


@right((normal,))
def sort(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(x, axis=-1, kind="stable")
    return np.take_along_axis(x, order, -1), order


@sort.register_fake
def _(x):
    return ow.empty_like(x), ow.empty_like(x, dtype="int64")


@right((np.round(normal),))
def nonzero(x: np.ndarray) -> np.ndarray:
    return np.stack(np.nonzero(x), axis=1)


@nonzero.register_fake
def _(x):
    return ow.empty((ow.get_ctx().new_dynamic_size(), x.ndim), dtype="int64", like=x)


# --------------------------------------------------------------------------------------------------- wrong


@wrong("OW301", (normal,))
def wrong_factor(x: np.ndarray) -> np.ndarray:
    return x * x


wrong_factor.register_fake(like)
wrong_factor.register_autograd(lambda ctx, grad: 3 * grad * ctx.saved_tensors[0], setup_context=save)


@wrong("OW101", (normal,))
def changes_its_argument(x: np.ndarray) -> np.ndarray:
    x += 1
    return x * 2


changes_its_argument.register_fake(like)


@wrong("OW201", (normal,))
def other_shape_in_the_fake(x: np.ndarray) -> np.ndarray:
    return x * 2


other_shape_in_the_fake.register_fake(lambda x: x.new_empty((4, 3)))


@wrong("OW501", (np.arange(3.0),))
def ignores_in_dims(x: np.ndarray) -> np.ndarray:
    return np.cumsum(x, -1)


ignores_in_dims.register_fake(like)


@ignores_in_dims.register_vmap
def _(info, in_dims, x):
    return ignores_in_dims(x), 0


@wrong("OW401", (normal,))
def zero_tangent(x: np.ndarray) -> np.ndarray:
    return np.sin(x)


zero_tangent.register_fake(like)
zero_tangent.register_autograd(lambda ctx, grad: grad * cosine(ctx.saved_tensors[0]), setup_context=save)
zero_tangent.register_jvp(lambda ctx, tangent: 0 * tangent)
