"""Operators of every kind, each beside the same function in ``jax.numpy``: the rows of the matrix.

``Kind.fn`` and ``Kind.ref`` take the differentiable arrays alone and return a tuple of floating arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import opwright as ow

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Kind:
    """A row: an operator, what it computes in ``jax.numpy``, arguments, and what it refuses and why."""

    name: str
    fn: Callable[..., tuple[Any, ...]]
    ref: Callable[..., tuple[Any, ...]]
    args: tuple[Any, ...]
    refuses: dict[str, str] = field(default_factory=dict)
    skips: dict[str, str] = field(default_factory=dict)


KINDS: dict[str, Kind] = {}

X = np.array([0.5, -1.25, 2.0], np.float32)
Y = np.array([1.5, 0.25, -0.75], np.float32)


def kind(name, ref, *args, fn, refuses=None, skips=None):
    KINDS[name] = Kind(name, fn, ref, args, refuses or {}, skips or {})


def saving(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def xp_of(*arrays):
    return ow.array_namespace(*arrays)


# ------------------------------------------------------------------------------------ one array, one output


def square_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return 2 * x * grad


@ow.custom_op("jaxm::square", mutates_args=())
def square(x: np.ndarray) -> np.ndarray:
    return x * x


square.register_fake(lambda x: ow.empty_like(x))
square.register_autograd(square_backward, setup_context=saving)
kind("no_vmap_rule", lambda x: (x * x,), X, fn=lambda x: (square(x),))


@ow.custom_op("jaxm::square_ruled", mutates_args=())
def square_ruled(x: np.ndarray) -> np.ndarray:
    return x * x


square_ruled.register_fake(lambda x: ow.empty_like(x))
square_ruled.register_autograd(square_backward, setup_context=saving)
square_ruled.register_vmap(lambda info, in_dims, x: (square_ruled(x), in_dims[0]))
kind("vmap_rule", lambda x: (x * x,), X, fn=lambda x: (square_ruled(x),))


@ow.custom_op("jaxm::out_square", mutates_args=(), schema="(Tensor x) -> Tensor")
def out_square(x: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
    return np.multiply(x, x, out=out)


out_square.register_fake(lambda x: ow.empty_like(x))
out_square.register_autograd(square_backward, setup_context=saving)
kind("destination_passing", lambda x: (x * x,), X, fn=lambda x: (out_square(x),))


@ow.custom_op("jaxm::exponential", mutates_args=())
def exponential(x: np.ndarray) -> np.ndarray:
    return np.exp(x)


exponential.register_fake(lambda x: ow.empty_like(x))
exponential.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)
kind("output_is_saved", lambda x: (jnp.exp(x),), X, fn=lambda x: (exponential(x),))


@ow.custom_op("jaxm::cosine", mutates_args=())
def cosine(x: np.ndarray) -> np.ndarray:
    return np.cos(x)


@ow.custom_op("jaxm::sine", mutates_args=())
def sine(x: np.ndarray) -> np.ndarray:
    return np.sin(x)


@ow.custom_op("jaxm::product", mutates_args=())
def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x * y


def product_backward(ctx, grad):
    x, y = ctx.saved_tensors
    return product(grad, y), product(grad, x)


for _op in (cosine, sine):
    _op.register_fake(lambda x: ow.empty_like(x))
product.register_fake(lambda x, y: ow.empty_like(x))
product.register_autograd(product_backward, setup_context=saving)
sine.register_autograd(lambda ctx, g: product(g, cosine(ctx.saved_tensors[0])), setup_context=saving)
cosine.register_autograd(lambda ctx, g: -product(g, sine(ctx.saved_tensors[0])), setup_context=saving)
kind("backward_calls_operators", lambda x: (jnp.sin(x),), X, fn=lambda x: (sine(x),))


@ow.custom_op("jaxm::total", mutates_args=())
def total(x: np.ndarray) -> np.ndarray:
    return (x**3).sum()


def total_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return 3 * x**2 * grad


total.register_fake(lambda x: x.new_empty(()))
total.register_autograd(total_backward, setup_context=saving)
kind("scalar_output", lambda x: ((x**3).sum(),), X, fn=lambda x: (total(x),))


@ow.custom_op("jaxm::half_precision", mutates_args=())
def half_precision(x: np.ndarray) -> np.ndarray:
    return x * np.array(3, x.dtype)


half_precision.register_fake(lambda x: ow.empty_like(x))
half_precision.register_autograd(lambda ctx, grad: 3 * grad)
kind(
    "bfloat16",
    lambda x: ((x.astype(jnp.bfloat16) * 3).astype(x.dtype),),
    X,
    fn=lambda x: (half_precision(x.astype(jnp.bfloat16)).astype(x.dtype),),
)

# ------------------------------------------------------------------------------ several arrays and outputs


@ow.custom_op("jaxm::scaled", mutates_args=())
def scaled(x: np.ndarray, k: float = 2.5) -> tuple[np.ndarray, np.ndarray]:
    return x * np.asarray(k, x.dtype), np.sin(x)


def keep_k(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.k = inputs[1]


scaled.register_fake(lambda x, k=2.5: (ow.empty_like(x), ow.empty_like(x)))
scaled.register_autograd(
    lambda ctx, g, h: (g * ctx.k + h * xp_of(h).cos(ctx.saved_tensors[0]), None), setup_context=keep_k
)
kind("two_outputs_float_default", lambda x: (x * 2.5, jnp.sin(x)), X, fn=lambda x: scaled(x))


@ow.custom_op("jaxm::mixed", mutates_args=())
def mixed(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x * y, x + y * y


def mixed_backward(ctx, g, h):
    x, y = ctx.saved_tensors
    return g * y + h, g * x + 2 * y * h


mixed.register_fake(lambda x, y: (ow.empty_like(x), ow.empty_like(x)))
mixed.register_autograd(mixed_backward, setup_context=saving)
kind("two_by_two", lambda x, y: (x * y, x + y * y), X, Y, fn=lambda x, y: mixed(x, y))


@ow.custom_op("jaxm::sum_of_squares", mutates_args=())
def sum_of_squares(xs: list[np.ndarray]) -> np.ndarray:
    return np.sum([x * x for x in xs], axis=0)


def save_list(ctx, inputs, output):
    ctx.xs = list(inputs[0])


sum_of_squares.register_fake(lambda xs: ow.empty_like(xs[0]))
sum_of_squares.register_autograd(lambda ctx, g: [2 * x * g for x in ctx.xs], setup_context=save_list)
kind(
    "list_of_arrays",
    lambda x, y: (x * x + y * y + x * x,),
    X,
    Y,
    fn=lambda x, y: (sum_of_squares([x, y, x]),),
)


@ow.custom_op("jaxm::powers", mutates_args=())
def powers(x: np.ndarray, n: int) -> list[np.ndarray]:
    return [x ** (i + 1) for i in range(n)]


def powers_backward(ctx, grads):
    (x,) = ctx.saved_tensors
    return sum((i + 1) * x**i * g for i, g in enumerate(grads)), None


powers.register_fake(lambda x, n: [ow.empty_like(x) for _ in range(n)])
powers.register_autograd(
    powers_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0])
)
kind("list_returned", lambda x: (x * 1, x**2, x**3), X, fn=lambda x: tuple(powers(x, 3)))

INDEX, MASK = np.array([2, 0, 2, 1]), np.array([1, 0, 2, 3], np.float32)


@ow.custom_op("jaxm::gather", mutates_args=())
def gather(x: np.ndarray, index: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x[index] * weight, index + 1


def gather_setup(ctx, inputs, output):
    x, index, weight = inputs
    ctx.save_for_backward(index, weight)
    ctx.n = x.shape[0]


def gather_backward(ctx, grad, _):
    index, weight = ctx.saved_tensors
    xp = xp_of(grad)
    places = xp.astype(index[None, :] == xp.arange(ctx.n)[:, None], grad.dtype)
    return {"x": places @ (grad * weight)}


gather.register_fake(lambda x, index, weight: (x.new_empty(index.shape), ow.empty_like(index)))
gather.register_autograd(gather_backward, setup_context=gather_setup)
kind(
    "integer_array_and_dict_of_gradients",
    lambda x: (x[INDEX] * MASK,),
    X,
    fn=lambda x: (gather(x, jnp.asarray(INDEX), jnp.asarray(MASK))[0],),
)


@ow.custom_op("jaxm::affine", mutates_args=())
def affine(
    x: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    mode: str = "add",
    twice: bool = False,
    shape: list[int] = (1,),
) -> np.ndarray:
    out = x * 3 if bias is None else (x * 3 + bias if mode == "add" else x * 3 - bias)
    return (out * (2 if twice else 1)).astype(x.dtype)


def affine_setup(ctx, inputs, keyword_only_inputs, output):
    ctx.sign = 0 if inputs[1] is None else (1 if keyword_only_inputs["mode"] == "add" else -1)
    ctx.times = 2 if keyword_only_inputs["twice"] else 1


affine.register_fake(lambda x, bias=None, *, mode="add", twice=False, shape=(1,): ow.empty_like(x))
affine.register_autograd(
    lambda ctx, g: (3 * ctx.times * g, ctx.sign * ctx.times * g if ctx.sign else None),
    setup_context=affine_setup,
)
kind("optional_absent", lambda x: (x * 3,), X, fn=lambda x: (affine(x),))
kind(
    "optional_and_keywords",
    lambda x, y: ((x * 3 - y) * 2,),
    X,
    Y,
    fn=lambda x, y: (affine(x, y, mode="sub", twice=True, shape=[1, 2]),),
)


@ow.custom_op("jaxm::partly", mutates_args=())
def partly(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x * y, np.floor(x)


def partly_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])
    ctx.mark_non_differentiable(output[1])


partly.register_fake(lambda x, y: (ow.empty_like(x), ow.empty_like(x)))
partly.register_autograd(lambda ctx, g, _: (g * ctx.saved_tensors[0], None), setup_context=partly_setup)
kind(
    "none_and_non_differentiable",
    lambda x: (x * Y, jnp.floor(jax.lax.stop_gradient(x))),
    X,
    fn=lambda x: partly(x, jnp.asarray(Y)),
)

# ----------------------------------------------------------------------------------- mutation


@ow.custom_op("jaxm::scale_", mutates_args=("x",))
def scale_(x: np.ndarray, y: np.ndarray) -> None:
    x *= y


def scale_backward(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * y, grad * x


scale_.register_autograd(scale_backward, setup_context=saving)
kind("mutating", lambda x, y: (x * y,), X, Y, fn=lambda x, y: (scale_(x, y),))


@ow.custom_op("jaxm::add_", mutates_args=("x",), schema="(Tensor(a!) x, Tensor y) -> (Tensor(a!), Tensor)")
def add_(x: np.ndarray, y: np.ndarray):
    before = x * y
    x += y
    return x, before


add_.register_fake(lambda x, y: (x, ow.empty_like(x)))
add_.register_autograd(
    lambda ctx, g, h: (g + h * ctx.saved_tensors[1], g + h * ctx.saved_tensors[0]), setup_context=saving
)
kind("mutating_and_returning", lambda x, y: (x + y, x * y), X, Y, fn=lambda x, y: add_(x, y))


@ow.custom_op("jaxm::fill_", mutates_args=("x",))
def fill_(x: ow.Array, y: ow.Array) -> ow.Array:
    x[...] = x[...] * y[...]
    return y[...] + 1.0


fill_.register_fake(lambda x, y: ow.empty_like(y))
fill_.register_autograd(
    lambda ctx, g, h: (h * ctx.saved_tensors[1], g + h * ctx.saved_tensors[0]), setup_context=saving
)
kind("mutating_array_api", lambda x, y: (y + 1, x * y), X, Y, fn=lambda x, y: fill_(x, y))

# --------------------------------------------------------------------------- flavours, and kinds of rules


@ow.custom_op("jaxm::cube", mutates_args=())
def cube(x: ow.Array, k: float = 3.0) -> ow.Array:
    return x**k


cube.register_autograd(
    lambda ctx, g: (ctx.k * ctx.saved_tensors[0] ** (ctx.k - 1) * g, None),
    setup_context=keep_k,
)
kind("array_api_kernel", lambda x: (x**2.0,), X, fn=lambda x: (cube(x, 2.0),))


@ow.custom_op("jaxm::tangent", mutates_args=())
def tangent(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


tangent.register_autograd(
    lambda ctx, g: g * (1 - ctx.saved_tensors[0] ** 2),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)
kind("jax_kernel", lambda x: (jnp.tanh(x),), X, fn=lambda x: (tangent(x),))


@ow.custom_op("jaxm::forward_only", mutates_args=())
def forward_only(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x * y, x * x


def forward_jvp(ctx, tx, ty):
    x, y = ctx.saved_tensors
    return tx * y + x * ty, 2 * x * tx


forward_only.register_fake(lambda x, y: (ow.empty_like(x), ow.empty_like(x)))
ow.register_jvp(forward_only, forward_jvp, setup_context=saving)
kind("jvp_rule_alone", lambda x, y: (x * y, x * x), X, Y, fn=lambda x, y: forward_only(x, y))


@ow.custom_op("jaxm::both_rules", mutates_args=())
def both_rules(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x * y, x * x


def both_backward(ctx, g, h):
    x, y = ctx.saved_tensors
    return g * y + 2 * x * h, g * x


both_rules.register_fake(lambda x, y: (ow.empty_like(x), ow.empty_like(x)))
both_rules.register_autograd(both_backward, setup_context=saving)
ow.register_jvp(both_rules, forward_jvp)
kind("jvp_rule_and_backward", lambda x, y: (x * y, x * x), X, Y, fn=lambda x, y: both_rules(x, y))

_lib = ow.Library("jaxm", "FRAGMENT")
_lib.define("composed(Tensor x) -> Tensor")
_lib.impl("composed", lambda x: product(x, sine(x)), "CompositeImplicitAutograd")
kind("composite_implicit", lambda x: (x * jnp.sin(x),), X, fn=lambda x: (ow.ops.jaxm.composed(x),))


@ow.custom_op("jaxm::rotate", mutates_args=())
def rotate(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x * x * np.conj(y)


def rotate_backward(ctx, grad):
    x, y = ctx.saved_tensors
    xp = xp_of(grad)
    # Torch's convention: the gradient of z = f(x) is conj(df/dx) g for holomorphic f.
    return xp.conj(2 * x * xp.conj(y)) * grad, xp.conj(grad) * x * x


rotate.register_fake(lambda x, y: ow.empty_like(x))
rotate.register_autograd(rotate_backward, setup_context=saving)
kind(
    "complex",
    lambda x, y: (x * x * jnp.conj(y),),
    (X + 1j * Y).astype(np.complex64),
    (Y - 2j * X).astype(np.complex64),
    fn=lambda x, y: (rotate(x, y),),
    skips={"checkpoint_with_policy": "JAX itself rounds nothing complex: reduce_precision refuses it"},
)
