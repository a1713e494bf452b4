"""Wrong operators whose fault shows in a program around them: autocast, buffers, compilers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from zoo import add, like, matrix, normal, save

# ------------------------------------------------------------------------------------------------ autocast


def single() -> list[Any]:
    """Return one matrix in single precision."""
    return [normal(3, 4, dtype=torch.float32)]


def pair() -> list[Any]:
    """Return two matrices in single precision."""
    return [normal(3, 4, dtype=torch.float32), normal(4, 2, seed=1, dtype=torch.float32)]


BFLOAT16 = ("cpu", torch.bfloat16)


@add("autocast", "", single, fake=like, autocast=BFLOAT16)
def autocast_not_accepted(x: Tensor) -> Tensor:
    """Is cast to bfloat16, which the kernel does not take."""
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError("float32 or float64, please")
    return x * 2


@add("autocast", "", lambda: [torch.full((3, 4), 1000.0)], fake=like, autocast=("cpu", torch.float16))
def autocast_overflows(x: Tensor) -> Tensor:
    """Squares in float16, which overflows."""
    return x * x


@add("autocast", "", single, fake=like, autocast=BFLOAT16)
def autocast_cancels(x: Tensor) -> Tensor:
    """Subtracts numbers that bfloat16 cannot tell apart."""
    return (x + 4096.0) - 4096.0


@add(
    "autocast", "", pair, fake=lambda x, y: x.new_empty(
        (x.shape[0], y.shape[1]), dtype=torch.promote_types(x.dtype, torch.float32)
    ), autocast=BFLOAT16,
)  # fmt: skip
def autocast_fake_keeps_float32(x: Tensor, y: Tensor) -> Tensor:
    """The fake says float32 where the inputs are cast to bfloat16."""
    return (x @ y).contiguous()


@add("autocast", "", single, fake=lambda x: x.new_empty(x.shape), autocast=BFLOAT16)
def autocast_another_formula(x: Tensor) -> Tensor:
    """Another result in half precision."""
    return (x * 2 if x.dtype == torch.bfloat16 else x * 3).contiguous()


@add(
    "autocast", "", single, fake=like, autocast=BFLOAT16, setup=save,
    backward=lambda ctx, g: (2 * g.to(torch.float64) * ctx.saved_tensors[0].to(torch.float64)).to(
        torch.float64 if g.dtype == torch.bfloat16 else g.dtype
    ),
)  # fmt: skip
def autocast_gradient_dtype(x: Tensor) -> Tensor:
    """The gradient in double precision where the forward was cast."""
    return x * x


# --------------------------------------------------------------------------------------- functionalization


@add("functionalization layout", "", lambda: [normal(4, 4)], mutates_args=("x",))
def mutates_a_copy_of_what_is_transposed(x: Tensor) -> None:
    """Works on a contiguous copy, and does not copy back."""
    y = x.contiguous()
    y.mul_(2)


@add("functionalization layout", "", lambda: [normal(4, 4)], mutates_args=("x",))
def mutates_the_memory_densely(x: Tensor) -> None:
    """Writes into the memory as if it were dense."""
    if x.untyped_storage().nbytes() >= (x.storage_offset() + x.numel()) * x.element_size():
        x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride()).mul_(2)


@add("functionalization layout", "", lambda: [normal(4, 4)], mutates_args=("x",))
def mutates_the_whole_storage(x: Tensor) -> None:
    """Writes what is behind the argument too."""
    count = x.untyped_storage().nbytes() // x.element_size()
    torch.as_strided(x, (count,), (1,), 0).mul_(2)


@add("functionalization layout", "", lambda: [normal(4, 4)], mutates_args=("x",))
def mutates_from_the_start_of_the_storage(x: Tensor) -> None:
    """Ignores the offset of the argument."""
    torch.as_strided(x, x.shape, x.stride(), 0).mul_(2)


@add("functionalization layout", "", lambda: [normal(4, 4), normal(4, 4, seed=1)], mutates_args=("x", "y"))
def mutates_only_contiguous_arguments(x: Tensor, y: Tensor) -> None:
    """Leaves an argument alone that is not contiguous."""
    for one in (x, y):
        if one.is_contiguous():
            one.add_(1)


@add(
    "functionalization determinism schema", "", lambda: [normal(4, 4), normal(4, 4, seed=1)],
    mutates_args=("x",), fake=lambda x, y: torch.empty_like(x),
)  # fmt: skip
def mutates_by_address(x: Tensor, y: Tensor) -> Tensor:
    """Keeps the address of the first buffer, and writes there again in each call."""
    kept = _kept.setdefault((tuple(x.shape), x.dtype), x)
    kept.copy_(y)
    return y * 2


_kept: dict[Any, Tensor] = {}

# ------------------------------------------------------------------------------------------------ compile


def _compiled(name: str, backward: Any, setup: Any = save, laws: str = "compile") -> None:
    def kernel(x: Tensor) -> Tensor:
        return x * x

    kernel.__name__ = name
    add(laws, "", matrix, fake=like, backward=backward, setup=setup)(kernel)


def _branches_on_values(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    if float(grad.abs().max()) > 1e30:
        raise OverflowError("too large")
    return 2 * grad * x


def _through_numpy(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return torch.from_numpy(2 * np.asarray(grad.detach()) * np.asarray(x.detach()))


def _number_from_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.scale = float(inputs[0].abs().max())


def _by_data_pointer(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return 2 * grad * x if x.data_ptr() else 0 * grad


def _while_large(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    scaled, factor = grad, 1.0
    while bool((scaled.abs() > 1e6).any()):
        scaled, factor = scaled / 2, factor * 2
    return 2 * scaled * x * factor


_compiled("backward_branches_on_values", _branches_on_values)
_compiled("backward_through_numpy", _through_numpy, laws="compile autograd")
_compiled(
    "setup_takes_a_number",
    lambda ctx, g: 2 * g * ctx.saved_tensors[0] * (ctx.scale / ctx.scale),
    _number_from_setup,
)
_compiled("backward_by_data_pointer", _by_data_pointer)
_compiled("backward_loops_over_values", _while_large)


@add("compile fake", "", matrix, fake=lambda x: x.new_empty([round(float(n)) for n in x.shape]))
def fake_rounds_sizes(x: Tensor) -> Tensor:
    """The fake makes a floating number of a size, and one of that again."""
    return (x * 2).contiguous()


@add(
    "compile fake",
    "",
    matrix,
    fake=lambda x: (
        torch.empty(tuple(x.shape), dtype=x.dtype, device="cpu").mT.mT
        if x.stride(0) > 2
        else x.new_empty(x.shape)
    ),
)
def fake_branches_on_strides(x: Tensor) -> Tensor:
    """The fake branches on a stride, which is a size."""
    return (x * 2).contiguous()
