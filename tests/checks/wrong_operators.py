"""Wrong operators, each with the ids of all that the checker finds in it.

``WRONG`` has a row for each: a name, the operator, its sample, the ids, and words that name the cause.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import random
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import opwright as ow


@dataclass
class Wrong:
    name: str
    operator: Any
    args: tuple
    ids: set[str]
    words: str
    level: str = "default"
    kwargs: dict = field(default_factory=dict)


WRONG: list[Wrong] = []
normal = np.random.default_rng(0).standard_normal((3, 4))
vector = np.array([0.5, 1.5, -2.0])


def wrong(ids, words, *args, mutates_args=(), rules=(), level="default", **options):
    """Define a wrong operator, and say what is to be found in it."""

    def define(fn):
        operator = ow.custom_op(f"wrong::{fn.__name__}", fn, mutates_args=mutates_args, **options)
        for kind, *rule in rules:
            more = rule.pop() if isinstance(rule[-1], dict) else {}
            getattr(operator, f"register_{kind}")(*rule, **more)
        WRONG.append(Wrong(fn.__name__, operator, args, set(ids.split()), words, level))
        return operator

    return define


def like(x, *rest, **named):
    return ow.empty_like(x)


def save(ctx, inputs, output):
    ctx.save_for_backward(*[one for one in inputs if isinstance(one, np.ndarray)])


def autograd(backward, setup_context=save):
    return ("autograd", backward, {"setup_context": setup_context})


def double_x(ctx, grad):
    return 2 * grad * ctx.saved_tensors[0]


# ---------------------------------------------------------------------------------------------------- call


@wrong("OW001", "the operator raises on a sample", normal)
def always_raises(x: np.ndarray) -> np.ndarray:
    raise ValueError("no luck")


@wrong("OW002", "the kernel returned something else than its schema says", normal)
def one_output_for_two(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (x + 1,)


@wrong("OW002", "the kernel returned something else than its schema says", normal)
def a_number_for_an_array(x: np.ndarray) -> np.ndarray:
    return 3.0


# -------------------------------------------------------------------------------------------------- schema


@wrong("OW101", "argument x was changed", normal)
def adds_in_place(x: np.ndarray) -> np.ndarray:
    x += 1
    return x.copy()


@wrong("OW101", "argument x was changed", normal, False)
def adds_in_place_with_a_flag(x: np.ndarray, flag: bool = False) -> np.ndarray:
    if flag:
        x += 1
    return x * 1.0


@wrong("OW101", "argument y was changed", normal, normal, mutates_args=("x",))
def changes_a_second_argument(x: np.ndarray, y: np.ndarray) -> None:
    x += y
    y *= 2


@wrong("OW101", "argument xs[1] was changed", [normal, normal])
def changes_an_element(xs: list[np.ndarray]) -> np.ndarray:
    total = xs[0] + xs[1]
    xs[1] *= 0
    return total


@wrong("OW102", "the shape, strides of argument x changed", normal)
def reshapes_its_argument(x: np.ndarray) -> np.ndarray:
    out = x * 2
    try:
        x.resize(x.shape[::-1], refcheck=False)
    except ValueError:  # its elements are not next to each other
        out += 0
    return out.reshape(x.shape[::-1])


@wrong("OW102", "the writeable flag of argument x changed", normal)
def locks_its_argument(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x * 2


@wrong("OW103", "argument x is declared as mutated, but no call changed it", normal, mutates_args=("x",))
def changes_nothing(x: np.ndarray) -> np.ndarray:
    return x + 1


@wrong("OW104", "output 0 is argument x itself", normal)
def returns_its_argument(x: np.ndarray) -> np.ndarray:
    return x


@wrong("OW104", "output 0 shares memory with argument x", normal)
def returns_a_view(x: np.ndarray) -> np.ndarray:
    return x[1:]


@wrong("OW104", "output 0 is argument x itself", normal, np.dtype("float32"))
def cast_that_may_do_nothing(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return x.astype(dtype, copy=False)


@wrong("OW104", "output 0 is argument x itself", normal, 2.0)
def scale_that_may_do_nothing(x: np.ndarray, k: float) -> np.ndarray:
    return x if k == 1 else x * k


@wrong("OW104", "output 0 is argument x itself", normal.astype("float32"))
def double_precision(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float64)


@wrong("OW105", "output 1 is output 0 itself", normal)
def one_array_twice(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = x + 1
    return y, y


@wrong("OW105", "output 1 is output 0 itself", normal)
def one_empty_array_twice(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = np.empty((0,))
    return y, y


@wrong("OW105", "output 0 shares memory with output 0", normal)
def list_of_views(x: np.ndarray) -> list[np.ndarray]:
    return np.split(x + 1, 3)


_buffer = np.zeros((3, 4))


@wrong("OW106", "output 0 of two calls is in the same memory", normal)
def keeps_its_buffer(x: np.ndarray) -> np.ndarray:
    if x.shape == _buffer.shape and x.dtype == _buffer.dtype:
        return np.add(x, 1, out=_buffer)
    return x + 1


_log = []


@wrong("OW107", "no outputs and mutates nothing", normal)
def only_logs(x: np.ndarray) -> None:
    _log.append(x.sum())


@wrong("OW108", "argument y makes no difference", normal, normal, level="thorough")
def ignores_an_argument(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x + 1


# ---------------------------------------------------------------------------------------------------- fake


@wrong("OW201", "the shape of the output", normal, rules=[("fake", lambda x: x.new_empty((*x.shape, 1)))])
def padded_in_the_fake(x: np.ndarray) -> np.ndarray:
    return x * 2


@wrong("OW201", "the shape of output 1", normal, rules=[("fake", lambda x: (like(x), like(x)))])
def second_output_wrong(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x * 2, x.sum(0)


@wrong("OW201", "the shape of the output", normal, rules=[("fake", lambda x: x.new_empty((3, 4)))])
def fixed_size_in_the_fake(x: np.ndarray) -> np.ndarray:
    return x * 2


@wrong(
    "OW202", "the dtype of the output", normal, rules=[("fake", lambda x: ow.empty_like(x, dtype="float32"))]
)
def other_dtype_in_the_fake(x: np.ndarray) -> np.ndarray:
    return x.astype("float64") * 2


@wrong(
    "OW202",
    "the dtype of the output",
    normal,
    rules=[("fake", lambda x: x.new_empty(x.shape, dtype="float64"))],
)
def double_in_the_fake(x: np.ndarray) -> np.ndarray:
    return x * np.ones((), x.dtype)


@wrong("OW203", "the fake returned something else", normal, rules=[("fake", lambda x: (like(x),))])
def too_few_in_the_fake(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + 1, x + 2


@wrong("OW203", "the number of arrays in the output", normal, rules=[("fake", lambda x: [like(x)] * 0)])
def no_list_in_the_fake(x: np.ndarray) -> list[np.ndarray]:
    return [x + 1, x + 2]


@wrong("OW205", "in the fake, the output is argument x itself", normal, rules=[("fake", lambda x: x)])
def argument_from_the_fake(x: np.ndarray) -> np.ndarray:
    return x + 1


def _same_twice(x):
    one = ow.empty_like(x)
    return one, one


@wrong("OW205", "in the fake, output 1 is output 0 itself", normal, rules=[("fake", _same_twice)])
def one_array_twice_from_the_fake(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + 1, x + 2


@wrong(
    "OW206", "the fake raises on arguments that the kernel accepts", normal, rules=[("fake", lambda x: x * 2)]
)
def arithmetic_in_the_fake(x: np.ndarray) -> np.ndarray:
    return x * 2


def _mixed(x, y):
    return ow.empty_like(x)


@wrong(
    "OW207", "the kernel raises on arguments that the fake accepts", vector, vector,
    rules=[("fake", _mixed)], level="thorough",
)  # fmt: skip
def only_equal_dtypes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype != y.dtype or x.shape != y.shape:
        raise TypeError("one dtype and shape, please")
    return x + y


@wrong(
    "OW208",
    "the fake makes a number of a size: int(x.shape[0])",
    normal,
    rules=[("fake", lambda x: x.new_empty((int(x.shape[0]), x.shape[1])))],
)
def int_in_the_fake(x: np.ndarray) -> np.ndarray:
    return x * 2


def _range(x):
    return [x.new_empty(x.shape[1:]) for _ in range(x.shape[0])]


@wrong("OW208", "the fake makes a number of a size", normal, rules=[("fake", _range)])
def range_in_the_fake(x: np.ndarray) -> list[np.ndarray]:
    return [row.copy() for row in x]


def _branch(x):
    if x.shape[0] > 2:
        return ow.empty_like(x)
    return x.new_empty(x.shape)


@wrong("OW209", "the fake branches on a size: x.shape[0] > 2", normal, rules=[("fake", _branch)])
def branch_in_the_fake(x: np.ndarray) -> np.ndarray:
    return x * 2


@wrong("OW210", "the shape of the output depends on the data", vector, rules=[("fake", like)])
def positive_ones(x: np.ndarray) -> np.ndarray:
    return x[x != 0].copy()


@wrong("OW211", "the dtype of the output depends on the data", np.abs(normal), rules=[("fake", like)])
def square_root_of_anything(x: np.ndarray) -> np.ndarray:
    return np.sqrt(x.astype(complex)) if (x < 0).any() else np.sqrt(x)


def _bounded(x):
    return x.new_empty((ow.get_ctx().new_dynamic_size(max=2),))


@wrong("OW212", "axis 0 of the output is outside the bounds", vector, rules=[("fake", _bounded)])
def more_than_the_bound(x: np.ndarray) -> np.ndarray:
    return x[x != 0].copy()


# ------------------------------------------------------------------------------------------------ autograd


def _square(name, ids, words, backward, setup_context=save):
    def fn(x: np.ndarray) -> np.ndarray:
        return x * x

    fn.__name__ = name
    wrong(ids, words, normal, rules=[("fake", like), autograd(backward, setup_context)])(fn)


def _clip_forgotten(ctx, grad):
    return grad


_square("wrong_factor", "OW301", "the gradient for x differs", lambda ctx, g: 3 * g * ctx.saved_tensors[0])
_square("wrong_sign", "OW301", "the gradient for x differs", lambda ctx, g: -2 * g * ctx.saved_tensors[0])
_square(
    "ignores_the_gradient", "OW301", "the gradient for x differs", lambda ctx, g: 2 * ctx.saved_tensors[0]
)
_square("broadcast_gradient", "OW302", "another shape", lambda ctx, g: np.stack([double_x(ctx, g)] * 2))
_square("single_gradient", "OW303", "another dtype", lambda ctx, g: double_x(ctx, g).astype("float32"))
_square("no_gradient", "OW304", "no gradient for x", lambda ctx, g: None)
_square("two_gradients", "OW306", "incorrect number of gradients", lambda ctx, g: (double_x(ctx, g), None))
_square("number_for_a_gradient", "OW306", "is no array", lambda ctx, g: 2.0)
_square("unknown_name", "OW306", "unknown arguments", lambda ctx, g: {"y": g})
_square("backward_raises", "OW306", "the backward raises", lambda ctx, g: ctx.nothing)


@wrong("OW301", "the gradient for x differs", normal * 3, rules=[("fake", like), autograd(lambda ctx, g: g)])
def clip_forgotten(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -1, 1)


def _dense(ctx, grad):
    raw = np.frombuffer(np.asarray(grad).tobytes(order="A"), grad.dtype)
    return 2 * raw.reshape(grad.shape) * ctx.saved_tensors[0]


def _expanded(ctx, grad):
    if 0 in grad.strides and grad.size > 1:
        raise ValueError("not contiguous")
    return double_x(ctx, grad)


_square("dense_gradient", "OW307", "where the incoming gradient is transposed", _dense)
_square("no_expanded_gradient", "OW307", "where the incoming gradient is expanded", _expanded)


def _changes_gradient(ctx, grad):
    out = 2 * grad * ctx.saved_tensors[0]
    if grad.flags.writeable:
        grad += 1
    return out


def _changes_saved(ctx, grad):
    (x,) = ctx.saved_tensors
    out = 2 * grad * x
    x += 1
    return out


_square("changes_its_gradient", "OW308", "changed its incoming gradient", _changes_gradient)
_square("changes_a_saved_array", "OW309 OW313", "the backward changed argument x", _changes_saved)


def _product(name, ids, words, backward, jvp=None):
    def fn(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x * y, x + y

    fn.__name__ = name
    rules = [("fake", lambda x, y: (like(x), like(x))), autograd(backward)]
    wrong(ids, words, vector, vector + 1, rules=[*rules, ("jvp", jvp)] if jvp else rules)(fn)


def _product_backward(ctx, by_product, by_sum):
    x, y = ctx.saved_tensors
    return by_product * y + by_sum, by_product * x + by_sum


def _all_or_nothing(ctx, by_product, by_sum):
    return _product_backward(ctx, by_product, by_sum) if all(ctx.needs_input_grad) else (None, None)


def _one_of_two(ctx, by_product, by_sum):
    if not ctx.needs_input_grad[1]:
        raise RuntimeError("y needs a gradient")
    return _product_backward(ctx, by_product, by_sum)


_product("all_or_nothing", "OW310", "where only x needs a gradient", _all_or_nothing)
_product("one_of_two", "OW310", "raises where only x needs a gradient", _one_of_two)


def _offset(ctx, by_product, by_sum):
    first, second = _product_backward(ctx, by_product, by_sum)
    return first + (0 if by_product.any() or by_sum.any() else 1), second


_product("not_zero_for_zero", "OW311", "of a zero gradient is not zero", _offset)


def _no_zeros(ctx, inputs, output):
    save(ctx, inputs, output)
    ctx.set_materialize_grads(False)


@wrong(
    "OW311", "raises where only output 0 is used", vector, vector + 1,
    rules=[("fake", lambda x, y: (like(x), like(x))), autograd(_product_backward, _no_zeros)],
)  # fmt: skip
def none_is_not_expected(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x * y, x + y


_kept = []


def _keeps_output(ctx, inputs, output):
    save(ctx, inputs, output)
    ctx.result = output


def _keeps_in_a_global(ctx, inputs, output):
    save(ctx, inputs, output)
    _kept.append(output)


_square("keeps_its_output", "OW312", "the output is kept alive", double_x, _keeps_output)
_square("keeps_in_a_global", "OW312", "the output is kept alive", double_x, _keeps_in_a_global)


def _counts(ctx, grad):
    ctx.calls = getattr(ctx, "calls", 0) + 1
    return double_x(ctx, grad) * ctx.calls


_square("counts_its_calls", "OW313", "another when it is pulled back again", _counts)


@wrong(
    "OW301", "the gradient for x differs", normal, 2.0, mutates_args=("x",),
    rules=[autograd(lambda ctx, g: (g, None))],
)  # fmt: skip
def in_place_factor_forgotten(x: np.ndarray, k: float) -> None:
    x *= k


# ----------------------------------------------------------------------------------------------------- jvp


def _zero_tangent(ctx, dx, dy):
    return 0 * (dx if dx is not None else dy), 0 * (dx if dx is not None else dy)


def _product_jvp(ctx, dx, dy):
    x, y = ctx.saved_tensors
    dx, dy = (0 * x if d is None else d for d in (dx, dy))
    return dx * y + x * dy, dx + dy


def _x_only(ctx, dx, dy):
    _, y = ctx.saved_tensors
    if dy is not None and dx is None:
        return 0 * y, 0 * y
    return _product_jvp(ctx, dx, dy)


def _offset_tangent(ctx, dx, dy):
    product, total = _product_jvp(ctx, dx, dy)
    return product + (0 if (dx is not None and dx.any()) or (dy is not None and dy.any()) else 1), total


def _needs_both(ctx, dx, dy):
    x, y = ctx.saved_tensors
    return dx * y + x * dy, dx + dy


_product("zero_tangent", "OW401", "the tangent of output 0 differs", _product_backward, _zero_tangent)
_product("tangent_of_x_only", "OW401", "where only y has a tangent", _product_backward, _x_only)
_product("one_tangent", "OW403", "incorrect number of tangents", _product_backward, lambda ctx, dx, dy: dx)
_product(
    "needs_both_tangents", "OW403", "jvp raises where only x has a tangent", _product_backward, _needs_both
)
_product("tangent_from_nothing", "OW404", "for zero tangents is not zero", _product_backward, _offset_tangent)


@wrong(
    "OW402", "the tangents are not adjoint to the gradients", np.round(normal * 8) / 8,
    rules=[("fake", like), autograd(lambda ctx, g: g), ("jvp", lambda ctx, dx: dx / 2)],
)  # fmt: skip
def on_a_grid(x: np.ndarray) -> np.ndarray:
    if (np.round(x * 8) != x * 8).any():
        raise ValueError("not on the grid")  # so that no slope can be measured
    return x + 0


# ---------------------------------------------------------------------------------------------------- vmap


def _batched(name, ids, words, rule, kernel, *args, fake=None):
    kernel.__name__ = name
    rules = [("vmap", rule)] + ([("fake", fake)] if fake else [])
    wrong(ids, words, *args, rules=rules)(kernel)


def _dot():
    def fn(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(x @ y)

    return fn


def _cumulate():
    def fn(x: np.ndarray) -> np.ndarray:
        return np.cumsum(x, -1)

    return fn


_batched(
    "ignores_in_dims", "OW501", "differs from a loop where the batch axis is the last",
    lambda info, in_dims, x: (np.cumsum(x, -1), 0), _cumulate(), np.arange(3.0),
)  # fmt: skip
_batched(
    "always_batched", "OW504", "raises where only x is batched",
    lambda info, in_dims, x, y: ((np.moveaxis(x, in_dims[0], 0) * np.moveaxis(y, in_dims[1], 0)).sum(-1), 0),
    _dot(), vector, vector + 1,
)  # fmt: skip
_batched(
    "only_the_output", "OW503", "something else than (outputs, out_dims)",
    lambda info, in_dims, x: np.cumsum(x, -1), _cumulate(), normal,
)  # fmt: skip
_batched(
    "impossible_out_dim", "OW503", "an impossible out_dim for output 0",
    lambda info, in_dims, x: (np.cumsum(np.moveaxis(x, in_dims[0], 0), -1), 5), _cumulate(), normal,
)  # fmt: skip
_batched(
    "wrong_out_dim", "OW501", "differs from a loop",
    lambda info, in_dims, x: (np.cumsum(np.moveaxis(x, in_dims[0], 0), -1), 1), _cumulate(), np.ones((3, 5)),
)  # fmt: skip
_batched(
    "sums_over_the_batch", "OW501", "differs from a loop",
    lambda info, in_dims, x: (np.cumsum(np.moveaxis(x, in_dims[0], 0), 0), 0), _cumulate(), normal,
)  # fmt: skip
_batched(
    "one_axis_more", "OW502", "differs from a loop",
    lambda info, in_dims, x: (np.cumsum(np.moveaxis(x, in_dims[0], 0), -1)[..., None], 0),
    _cumulate(), normal,
)  # fmt: skip
_batched(
    "no_empty_batch", "OW505", "raises where the batch has no elements",
    lambda info, in_dims, x: (
        np.stack([np.cumsum(row, -1) for row in np.moveaxis(x, in_dims[0], 0)]), 0
    ), _cumulate(), normal,
)  # fmt: skip


def _squeezing(info, in_dims, x):
    out = np.cumsum(np.moveaxis(x, in_dims[0], 0), -1)
    return (out, 0) if info.batch_size != 1 else (out[0] * 2, None)


_batched("batch_of_one", "OW501", "where the batch has one element", _squeezing, _cumulate(), normal)


# ------------------------------------------------------------------------------------------------ autocast


@wrong(
    "OW601", "the operator raises under autocast, which casts to float16", np.eye(3) + 0.1,
    rules=[("fake", like), ("autocast", "cpu", "float16")],
)  # fmt: skip
def no_half(x: np.ndarray) -> np.ndarray:
    return np.linalg.inv(x)


@wrong(
    "OW602", "the output under autocast is far from float32's", normal,
    rules=[("fake", like), ("autocast", "cpu", "float16")],
)  # fmt: skip
def overflows_in_half(x: np.ndarray) -> np.ndarray:
    scaled = x * x.dtype.type(300)
    return scaled * scaled


def _never_half(x):
    return ow.empty_like(x, dtype="float64" if x.dtype == "float64" else "float32")


@wrong(
    "OW603", "fake and kernel disagree on the dtype of the output for inputs of autocast's float16", normal,
    rules=[("fake", _never_half), ("autocast", "cpu", "float16")],
)  # fmt: skip
def half_forgotten_in_the_fake(x: np.ndarray) -> np.ndarray:
    return x * x.dtype.type(2)


def _inverts(ctx, grad):
    return grad * np.linalg.inv(np.eye(1, dtype=grad.dtype))[0, 0]


@wrong(
    "OW604", "the gradient raises under autocast, which casts to float16", normal,
    rules=[("fake", like), autograd(_inverts), ("autocast", "cpu", "float16")],
)  # fmt: skip
def no_half_in_the_backward(x: np.ndarray) -> np.ndarray:
    return x.copy()


def _large_and_back(ctx, grad):
    return grad * grad.dtype.type(300) * grad.dtype.type(300) / grad.dtype.type(300) / grad.dtype.type(300)


@wrong(
    "OW604", "the gradient for x under autocast is far from float32's", normal,
    rules=[("fake", like), autograd(_large_and_back), ("autocast", "cpu", "float16")],
)  # fmt: skip
def gradient_overflows_in_half(x: np.ndarray) -> np.ndarray:
    return x.copy()


# --------------------------------------------------------------------------------------- functionalization


@wrong("OW701", "the new value of x differs where x is transposed", normal, mutates_args=("x",))
def writes_to_a_copy(x: np.ndarray) -> None:
    dense = np.ascontiguousarray(x)
    dense *= 2


@wrong("OW701", "the new value of x differs where x is transposed", normal, mutates_args=("x",))
def flattens_what_it_writes(x: np.ndarray) -> None:
    x.reshape(-1)[:] = 0


@wrong("OW702", "the kernel raises where x is transposed", normal, mutates_args=("x",))
def writes_to_contiguous_only(x: np.ndarray) -> None:
    if not x.flags.c_contiguous:
        raise ValueError("not contiguous")
    x *= 2


@wrong("OW703", "the kernel writes beside x where that is sliced", normal, mutates_args=("x",))
def clears_the_gaps(x: np.ndarray) -> None:
    x *= 2
    if x.ndim and x.strides[-1] == 2 * x.itemsize:
        ctypes.memset(x.ctypes.data + x.itemsize, 0, x.itemsize)


@wrong("OW704", "the new value of x differs where x, y are views of one array", normal, normal,
       mutates_args=("x",))  # fmt: skip
def scales_the_base(x: np.ndarray, y: np.ndarray) -> None:
    whole = x.base is not None and x.base.dtype == x.dtype and x.base.ndim == 1
    target = x.base if whole else x
    target *= 2
    x += y


@wrong("OW704", "the kernel raises where x, y are views of one array", normal, normal, mutates_args=("x",))
def refuses_views(x: np.ndarray, y: np.ndarray) -> None:
    if x.base is not None and x.base is y.base:
        raise ValueError("views of one array")
    x += y


# -------------------------------------------------------------------------------------------------- layout


@wrong("OW901", "the output differs where x is transposed", normal, rules=[("fake", like)])
def reads_the_buffer(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(x.tobytes(order="A"), x.dtype).reshape(x.shape) + 1


@wrong("OW901", "the output differs where y is transposed", normal, normal, rules=[("fake", like)])
def reads_the_second_buffer(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x + np.frombuffer(y.tobytes(order="A"), y.dtype).reshape(y.shape)


@wrong("OW901", "the output differs where x is transposed", normal, rules=[("fake", like)])
def writes_densely(x: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    out.reshape(-1, order="A")[:] = (x + 1).ravel()
    return out


@wrong("OW902", "the kernel raises where x is", normal, rules=[("fake", like)])
def only_contiguous(x: np.ndarray) -> np.ndarray:
    if not x.flags.c_contiguous:
        raise ValueError("not contiguous")
    return x + 1


@wrong("OW902", "the kernel raises where x is read-only", normal, rules=[("fake", like)])
def only_writeable(x: np.ndarray) -> np.ndarray:
    if not x.flags.writeable:
        raise ValueError("read-only")
    return x + 1


@wrong("OW903", "disagree on arrays without elements", vector, rules=[("fake", lambda x: x.new_empty(()))])
def largest(x: np.ndarray) -> np.ndarray:
    return np.asarray(x.max())


@wrong("OW904", "holds NaN and infinities", normal, rules=[("fake", like)])
def nan_by_layout(x: np.ndarray) -> np.ndarray:
    return np.nan_to_num(x) if x.flags.f_contiguous else x + 0.0


# --------------------------------------------------------------------------------------------- determinism


_random = np.random.default_rng(0)
_calls = itertools.count()
_seen = {}


@wrong("OW1001", "two calls with equal arguments give different results", normal, rules=[("fake", like)])
def adds_noise(x: np.ndarray) -> np.ndarray:
    return x + _random.standard_normal(x.shape).astype(x.dtype)


@wrong("OW1001", "two calls with equal arguments give different results", normal, rules=[("fake", like)])
def adds_its_count(x: np.ndarray) -> np.ndarray:
    return x + x.dtype.type(next(_calls))


def registered(ids, words, *samples, rules=()):
    """Define a wrong operator that takes several samples to find out."""

    def define(fn):
        operator = wrong(ids, words, rules=rules)(fn)
        operator.register_samples(lambda: [(sample,) for sample in samples])
        return operator

    return define


_shapes = set()


@registered("OW1002", "the result depends on the calls before", normal, vector, rules=[("fake", like)])
def counts_shapes(x: np.ndarray) -> np.ndarray:
    _shapes.add(x.shape)
    return x + x.dtype.type(len(_shapes))


_first = {}


@wrong("OW1002", "the values of the first call with a shape", vector, rules=[("fake", like)])
def keeps_the_first_of_a_shape(x: np.ndarray) -> np.ndarray:
    return _first.setdefault((x.shape, x.dtype), x * 2).copy()


_scratch = {}


@wrong("OW1004", "a call changes NumPy's global random generator", normal, rules=[("fake", like)])
def seeds_the_global_generator(x: np.ndarray) -> np.ndarray:
    np.random.seed(0)  # noqa: NPY002
    return x + np.random.standard_normal(x.shape).astype(x.dtype)  # noqa: NPY002


@wrong("OW1004", "a call changes Python's global random generator", normal, rules=[("fake", like)])
def draws_and_does_not_use_it(x: np.ndarray) -> np.ndarray:
    random.shuffle(list(x.flat))
    return x * 2.0


@registered("OW1003", "calls from several threads at once", vector, rules=[("fake", like)])
def shares_its_scratch(x: np.ndarray) -> np.ndarray:
    _scratch["x"] = x
    time.sleep(0.0005)
    return _scratch["x"] + 1


class Differentiable(np.ndarray):
    """Stands for a tensor that requires a gradient."""

    requires_grad = True

    def detach(self):
        return np.asarray(self)


@wrong("OW305", "argument x requires a gradient", vector.view(Differentiable), rules=[("fake", like)])
def not_differentiable_yet(x: np.ndarray) -> np.ndarray:
    return x * 2


# ----------------------------------------------------------------------------------------------- agreement


def _thrice(x: np.ndarray) -> np.ndarray:
    return x * 3


@wrong("OW1101", "the output of the kernel for any device (numpy) differs", normal,
       rules=[("fake", like), ("kernel", "cpu", _thrice)])  # fmt: skip
def twice_for_other_devices(x: np.ndarray) -> np.ndarray:
    return x * 2


@wrong("OW1101", "the output of the kernel for any device (numpy) differs", normal,
       rules=[("fake", like), ("kernel", "cpu", lambda x: x * 2)])  # fmt: skip
def single_for_other_devices(x: np.ndarray) -> np.ndarray:
    return (x * 2).astype("float32")


@wrong(
    "OW1102", "the output differs from the reference", normal, rules=[("fake", like), ("reference", _thrice)]
)
def other_than_its_reference(x: np.ndarray) -> np.ndarray:
    return x * 2


@wrong("OW1102", "the output differs from the reference", np.round(normal), False,
       rules=[("fake", like), ("reference", lambda x, flag: x * (3 if flag else 2))])  # fmt: skip
def other_with_a_flag(x: np.ndarray, flag: bool = False) -> np.ndarray:
    return x * 2


@wrong("OW1104", "the output in float32 is far from that in double precision", normal, rules=[("fake", like)])
def coarse_in_single(x: np.ndarray) -> np.ndarray:
    return x * np.float32(1.001) if x.dtype == "float32" else x * 1.0


@wrong("OW1104", "the output in float16 is far from that in double precision", np.ones((2, 500)),
       rules=[("fake", lambda x: x.new_empty(x.shape[:1]))], level="thorough")  # fmt: skip
def sums_in_half(x: np.ndarray) -> np.ndarray:
    total = np.zeros(x.shape[:1], x.dtype)
    for column in x.T:
        total = total + column * x.dtype.type(10)
    return total


# ------------------------------------------------------- right on the sample, wrong on other arguments


def _summed(x: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(x.sum(axis))


def _shape_without(x, axis):
    shape = list(x.shape)
    del shape[axis]
    return x.new_empty(shape)


def _elsewhere(name, ids, words, kernel, *args, rules):
    def fn(*values, **named):
        return kernel(*values, **named)

    fn.__name__, fn.__signature__ = name, inspect.signature(kernel, eval_str=True)
    fn.__annotations__ = inspect.get_annotations(kernel, eval_str=True)
    wrong(ids, words, *args, rules=rules)(fn)


def _scaled(x: np.ndarray, k: float = 1.0) -> np.ndarray:
    return np.sin(x) * k


def _repeated(x: np.ndarray, count: int) -> np.ndarray:
    return np.repeat(x, count, 0)


def _summed_over(x: np.ndarray, axes: list[int]) -> np.ndarray:
    return np.asarray(x.sum(tuple(axes)))


def _gram(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.T) @ x


def _magnitude(x: np.ndarray) -> np.ndarray:
    return np.abs(x)


def _mixed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x * np.sin(y)


def _mean(x: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(x.mean(axis))


def _mean_setup(ctx, inputs, output):
    ctx.x, ctx.axis = inputs[0].shape, inputs[1]


def _mean_backward(ctx, grad):
    return np.broadcast_to(np.expand_dims(grad, ctx.axis), ctx.x) / ctx.x[1], None


def _mixed_backward(ctx, grad):
    y, x = ctx.saved_tensors
    return grad * np.sin(y), grad * x * np.cos(y)


def _keep(ctx, x, k):
    ctx.x, ctx.k = x, k


def _maybe_weighted(x: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
    return np.sin(x) if w is None else np.sin(x) * w


def _maybe_setup(ctx, inputs, output):
    x, w = inputs
    ctx.save_for_backward(x, x * 0 if w is None else w)
    ctx.weighted = w is not None


def _maybe_backward(ctx, grad):
    x, w = ctx.saved_tensors
    return grad * np.cos(x) * w, grad * np.sin(x) if ctx.weighted else None


DIFFERS = "differs from finite differences"
_elsewhere("axis_from_the_front_in_the_fake", "OW201", "disagree on the shape", _summed, normal, 1,
           rules=[("fake", lambda x, axis: x.new_empty(x.shape[:axis] + x.shape[axis + 1 :]))])  # fmt: skip
_elsewhere("axes_from_the_front_in_the_fake", "OW201", "disagree on the shape", _summed_over, normal, [0],
           rules=[("fake", lambda x, axes: x.new_empty([n for i, n in enumerate(x.shape) if i not in axes]))
                  ])  # fmt: skip
_elsewhere("count_of_the_sample_in_the_fake", "OW201", "disagree on the shape", _repeated, normal, 2,
           rules=[("fake", lambda x, count: x.new_empty((2 * x.shape[0], x.shape[1])))])  # fmt: skip
_elsewhere("square_in_the_fake", "OW201", "disagree on the shape", _gram, normal[:, :3],
           rules=[("fake", lambda x: x.new_empty((x.shape[0], x.shape[0])))])  # fmt: skip
_elsewhere("axis_from_the_end_in_vmap", "OW502", "differs from a loop", _summed, normal, -1,
           rules=[("fake", _shape_without),
                  ("vmap", lambda info, in_dims, x, axis: (np.moveaxis(x, in_dims[0], 0).sum(axis), 0))
                  ])  # fmt: skip
_elsewhere("default_in_vmap", "OW501", "differs from a loop", _scaled, normal,
           rules=[("fake", like), ("vmap", lambda info, in_dims, x, k: (np.sin(x), in_dims[0]))])  # fmt: skip
_elsewhere("default_in_the_backward", "OW301", DIFFERS, _scaled, normal,
           rules=[("fake", like), autograd(lambda ctx, grad: (grad * np.cos(*ctx.saved_tensors), None))
                  ])  # fmt: skip
_elsewhere("default_in_jvp", "OW401", "differ from finite differences", _scaled, normal,
           rules=[("fake", like), ("autograd", lambda ctx, grad: (grad * ctx.k * np.cos(ctx.x), None),
                                   {"setup_context": lambda ctx, inputs, output: _keep(ctx, *inputs)}),
                  ("jvp", lambda ctx, dx, k: dx * np.cos(ctx.x))])  # fmt: skip
_elsewhere("default_in_another_kernel", "OW1101", "differs", _scaled, normal,
           rules=[("fake", like), ("kernel", "cpu", lambda x, k=1.0: np.sin(x))])  # fmt: skip
_elsewhere("square_in_the_backward", "OW301", DIFFERS, _mean, normal[:, :3], 0,
           rules=[("fake", _shape_without), autograd(_mean_backward, _mean_setup)])  # fmt: skip
_elsewhere("positive_in_the_backward", "OW301", DIFFERS, _magnitude, np.abs(normal),
           rules=[("fake", like), autograd(lambda ctx, grad: grad * 1.0)])  # fmt: skip
_elsewhere("equal_arguments_in_the_backward", "OW301", DIFFERS, _mixed, normal, normal,
           rules=[("fake", like), autograd(_mixed_backward)])  # fmt: skip
_elsewhere("an_option_in_the_backward", "OW301", DIFFERS, _maybe_weighted, normal, normal + 1,
           rules=[("fake", like), autograd(_maybe_backward, _maybe_setup)])  # fmt: skip


def _joined(xs: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(xs)


def _converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return x.astype(dtype)


def _first_rows(x: np.ndarray, count: int) -> np.ndarray:
    rows = x * 1.0
    rows[:count] *= 2
    return rows


_elsewhere("two_arrays_in_the_fake", "OW201", "disagree on the shape", _joined, [normal, normal],
           rules=[("fake", lambda xs: xs[0].new_empty((2 * xs[0].shape[0], *xs[0].shape[1:])))])  # fmt: skip
_elsewhere("one_dtype_in_the_fake", "OW202", "disagree on the dtype", _converted, normal, np.dtype("float32"),
           rules=[("fake", lambda x, dtype: ow.empty_like(x, dtype="float32"))])  # fmt: skip
_elsewhere("all_rows_in_the_backward", "OW301", DIFFERS, _first_rows, normal, 3,
           rules=[("fake", like), autograd(lambda ctx, grad: (2 * grad, None))])  # fmt: skip
