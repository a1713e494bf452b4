"""Wrong operators that users of operator libraries have written, one small torch-flavoured operator each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from definitions import Case, Definition, case
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: list[Case] = []


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def add(laws: str, words: str, args: Callable[[], Any], *, level: str = "default", **rules: Any) -> Any:
    """Add the operator of a kernel; laws are separated by spaces."""

    def decorate(kernel: Callable[..., Any]) -> Callable[..., Any]:
        made = Definition(kernel.__name__, kernel, args, **rules)
        CASES.append(case(made, "zoo", laws.split(), words, level=level))
        return kernel

    return decorate


def save(ctx: Any, inputs: Any, output: Any) -> None:
    """Save every tensor."""
    ctx.save_for_backward(*[one for one in inputs if isinstance(one, Tensor)])


def like(x: Tensor, *rest: Any) -> Tensor:
    """Return a fake like the first argument."""
    return torch.empty_like(x)


def matrix() -> list[Any]:
    """Return one matrix."""
    return [normal(3, 4)]


def vector() -> list[Any]:
    """Return one vector."""
    return [torch.tensor([0.5, 1.5, -2.0], dtype=torch.float64)]


# --------------------------------------------------------------------------------------- gradient faults


def _square(
    name: str, words: str, backward: Callable[..., Any], setup: Any = save, laws: str = "autograd"
) -> None:
    def kernel(x: Tensor) -> Tensor:
        return x * x

    kernel.__name__ = name
    add(laws, words, vector, fake=like, backward=backward, setup=setup)(kernel)


def _right(ctx: Any, grad: Tensor) -> Tensor:
    return 2 * grad * ctx.saved_tensors[0]


def _changes_saved(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    out = 2 * grad * x
    with torch.no_grad():
        x.add_(1)
    return out


def _keeps_a_product(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.twice = 2 * inputs[0].detach()


def _keeps_output(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, inputs, output)
    ctx.out = output


def _changes_gradient(ctx: Any, grad: Tensor) -> Tensor:
    return grad.mul_(2 * ctx.saved_tensors[0])


def _dense(ctx: Any, grad: Tensor) -> Tensor:
    steps = torch.empty(grad.shape, device="meta").stride()
    if grad.untyped_storage().nbytes() < grad.numel() * grad.element_size():
        return torch.zeros_like(ctx.saved_tensors[0])
    return 2 * grad.as_strided(grad.shape, steps) * ctx.saved_tensors[0]


_square("three_for_two", "differs from finite differences", lambda ctx, g: 3 * g * ctx.saved_tensors[0])
_square("stacked_gradient", "another shape", lambda ctx, g: torch.stack([_right(ctx, g)] * 4))
_square("float_gradient", "another dtype", lambda ctx, g: _right(ctx, g).float())
_square("none_for_a_gradient", "gives no gradient for", lambda ctx, g: None)
_square("backward_changes_saved", "the backward changed", _changes_saved)
_square("product_as_attribute", "second", lambda ctx, g: g * ctx.twice, _keeps_a_product)
_square("output_as_attribute", "kept alive", _right, _keeps_output)
_square("backward_changes_gradient", "changed its incoming gradient", _changes_gradient)
_square("backward_reads_densely", "where the incoming gradient is", _dense)
_square(
    "gradient_if_contiguous", "where the incoming gradient is",
    lambda ctx, g: 2 * g * ctx.saved_tensors[0] * (1 if g.is_contiguous() else 0),
)  # fmt: skip


@add("autograd jvp", "no autograd formula", lambda: [normal(3).requires_grad_()], fake=like)
def no_backward(x: Tensor) -> Tensor:
    """Needs a gradient, and has no formula."""
    return x * 2


@add(
    "autograd", "differs from finite differences", lambda: [normal(3, 4) * 3], fake=like,
    backward=lambda ctx, g: 2 * g, setup=save,
)  # fmt: skip
def clamp_forgotten(x: Tensor) -> Tensor:
    """Clamps, which the backward forgets."""
    return 2 * x.clamp(-1, 1)


@add(
    "autograd", "differs from finite differences", lambda: [normal(3, 4), 5.0], mutates_args=("x",),
    backward=lambda ctx, g: (g, None), setup=lambda ctx, inputs, output: None,
)  # fmt: skip
def in_place_factor(x: Tensor, k: float) -> None:
    """Multiplied in place; the backward is that of the identity."""
    x.mul_(k)


@add(
    "autograd", "another shape", lambda: [normal(3, 4), normal(4, seed=1)], fake=like,
    backward=lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]), setup=save,
)  # fmt: skip
def broadcast_forgotten(x: Tensor, weight: Tensor) -> Tensor:
    """Broadcasts, and the gradient of what was broadcast is not summed."""
    return x * weight


@add(
    "autograd", "differs from finite differences", lambda: [normal(3, 4), normal(4, 2, seed=1)],
    fake=lambda x, y: x.new_empty((x.shape[0], y.shape[1])),
    backward=lambda ctx, g: (g @ ctx.saved_tensors[1].T, (ctx.saved_tensors[0].T @ g).flip(0)), setup=save,
)  # fmt: skip
def flipped_gradient(x: Tensor, y: Tensor) -> Tensor:
    """The second gradient upside down."""
    return x @ y


def _if_both(ctx: Any, grad: Tensor) -> Any:
    if all(ctx.needs_input_grad[:2]):
        x, y = ctx.saved_tensors
        return grad * y, grad * x
    return None, None


@add(
    "autograd",
    "needs a gradient",
    lambda: [normal(3), normal(3, seed=1)],
    fake=like,
    backward=_if_both,
    setup=save,
)
def gradients_only_together(x: Tensor, y: Tensor) -> Tensor:
    """No gradient where only one argument needs one."""
    return x * y


def _no_zeros(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, inputs, output)
    ctx.set_materialize_grads(False)


@add(
    "autograd", "only", lambda: [normal(3)],
    fake=lambda x: (torch.empty_like(x), torch.empty_like(x)),
    backward=lambda ctx, a, b: 2 * a * ctx.saved_tensors[0] + b, setup=_no_zeros,
)  # fmt: skip
def none_for_an_unused_output(x: Tensor) -> tuple[Tensor, Tensor]:
    """Raises where one of its outputs is not used."""
    return x * x, x + 1


@add(
    "jvp", "tangent", vector, fake=like, backward=_right, setup=save, jvp=lambda ctx, dx: torch.zeros_like(dx)
)
def zero_tangent(x: Tensor) -> Tensor:
    """A tangent of zeros."""
    return x * x


@add("jvp", "tangent", vector, fake=like, backward=_right, setup=save, jvp=lambda ctx, dx: dx + 1)
def affine_tangent(x: Tensor) -> Tensor:
    """A tangent that is not linear."""
    return x * x


@add(
    "jvp",
    "tangent",
    vector,
    fake=like,
    backward=_right,
    setup=save,
    jvp=lambda ctx, dx: (2 * dx * ctx.saved_tensors[0]).float(),
)
def float_tangent(x: Tensor) -> Tensor:
    """A tangent of another dtype."""
    return x * x


# ---------------------------------------------------------------------------- faults of layout and of samples


def _as_if_dense(x: Tensor) -> Tensor:
    steps = torch.empty(x.shape, device="meta").stride()
    if x.untyped_storage().nbytes() < (x.storage_offset() + x.numel()) * x.element_size():
        return torch.zeros_like(x)
    return x.as_strided(x.shape, steps)


def _reads_densely(name: str, args: Callable[[], Any]) -> None:
    def kernel(x: Tensor) -> Tensor:
        return _as_if_dense(x) + 1

    kernel.__name__ = name
    add("layout", "differs where", args, fake=lambda x: x.new_empty(x.shape))(kernel)


_reads_densely("reads_densely", matrix)
_reads_densely("reads_densely_transposed", lambda: [normal(3, 4).T])
_reads_densely("reads_densely_sliced", lambda: [normal(6)[::2]])


@add(
    "layout",
    "differs where y",
    lambda: [normal(3, 4), normal(3, 4, seed=1)],
    fake=lambda x, y: x.new_empty(x.shape),
)
def reads_the_second_densely(x: Tensor, y: Tensor) -> Tensor:
    """Makes its first argument contiguous, and not the second."""
    return x.contiguous() + _as_if_dense(y)


@add("fake layout compile", "strides", matrix, fake=like)
def fake_follows_strides(x: Tensor) -> Tensor:
    """The fake follows the strides of the argument, the kernel allocates a contiguous output."""
    return torch.sin(x).contiguous()


@add("fake compile", "strides", matrix, fake=lambda x: x.new_empty(x.shape))
def kernel_follows_strides(x: Tensor) -> Tensor:
    """The kernel follows the strides of the argument, the fake says contiguous."""
    return torch.sin(x)


@add("layout", "differs where", matrix, fake=like)
def writes_densely_into_a_like(x: Tensor) -> Tensor:
    """An output that took over odd strides, written as if it were dense."""
    out = torch.zeros_like(x)
    if out.numel():
        out.as_strided((out.numel(),), (1,)).copy_((x + 1).reshape(-1))
    return out


@add("layout", "without elements", vector, fake=like)
def no_elements(x: Tensor) -> Tensor:
    """Raises for no elements."""
    return x / x.abs().max()


@add(
    "fake", "the kernel raises on arguments that the fake accepts", lambda: [normal(3), normal(3, seed=1)],
    fake=like, level="thorough",
)  # fmt: skip
def mixed_dtypes(x: Tensor, y: Tensor) -> Tensor:
    """Rejects mixed dtypes, which the fake accepts."""
    if x.dtype != y.dtype:
        raise TypeError("one dtype, please")
    return x + y


@add(
    "schema", "output 0 is argument x itself", vector, fake=lambda x: torch.empty_like(x, dtype=torch.float32)
)
def cast_may_return_its_argument(x: Tensor) -> Tensor:
    """Returns the argument where its dtype is right already."""
    return x.to(torch.float32)


@add("schema", "was changed", lambda: [*matrix(), False], fake=like)
def changes_with_a_flag(x: Tensor, flag: bool) -> Tensor:
    """Changes its argument if a flag is set."""
    if flag:
        x.add_(1)
    return x * 2


@add(
    "fake",
    "depends on the data",
    lambda: [torch.ones(5, dtype=torch.float64)],
    fake=lambda x: x.new_empty((x.shape[0], 1), dtype=torch.int64),
)
def size_of_the_data(x: Tensor) -> Tensor:
    """As many rows as there are values that are not zero, as many as elements says the fake."""
    return torch.nonzero(x)


@add("fake", "depends on the data", lambda: [normal(3).abs()], fake=like)
def dtype_of_the_data(x: Tensor) -> Tensor:
    """A complex root for negative values."""
    return torch.sqrt(x.to(torch.complex128)) if (x < 0).any() else torch.sqrt(x)
