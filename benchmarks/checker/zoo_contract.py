"""Wrong operators that break the contract of a schema, a fake, a batching rule, or of equal calls."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from zoo import add, like, matrix, normal, save, vector


@add("fake compile", "number of a size", matrix, fake=lambda x: x.new_empty((int(x.shape[0]), x.shape[1])))
def fake_makes_a_number(x: Tensor) -> Tensor:
    """The fake makes a number of a size."""
    return (x * 2).contiguous()


@add(
    "fake compile",
    "branches on a size",
    matrix,
    fake=lambda x: x.new_empty(x.shape) if x.shape[0] > 2 else x.new_empty(x.shape[:2]),
)
def fake_branches(x: Tensor) -> Tensor:
    """The fake branches on a size."""
    return (x * 2).contiguous()


@add("schema", "declared as mutated, but no call changed it", matrix, mutates_args=("x",), fake=like)
def declares_a_mutation(x: Tensor) -> Tensor:
    """Says that it mutates, and does not."""
    return x * 2


_buffer = torch.zeros(3, 4, dtype=torch.float64)


@add("schema determinism", "of two calls is in the same memory", matrix, fake=like)
def returns_a_module_buffer(x: Tensor) -> Tensor:
    """The same buffer for every call."""
    return torch.mul(x, 2, out=_buffer) if x.shape == _buffer.shape and x.dtype == _buffer.dtype else x * 2


@add("determinism", "two calls with equal arguments", matrix, fake=like)
def random_undeclared(x: Tensor) -> Tensor:
    """Random, and does not say so."""
    return x + torch.randn_like(x)


_log: list[float] = []


@add("schema", "no outputs and mutates nothing", vector, fake=lambda x: None)
def appends_to_a_log(x: Tensor) -> None:
    """Has a side effect, and nothing else."""
    _log.append(float(x.sum()))


@add("vmap", "differs from a loop", vector, fake=like, vmap=lambda info, in_dims, x: (x.cumsum(-1), 0))
def vmap_ignores_in_dims(x: Tensor) -> Tensor:
    """The batching rule takes the batch axis to be the first."""
    return x.cumsum(-1)


@add(
    "vmap",
    "impossible out_dim",
    vector,
    fake=like,
    vmap=lambda info, in_dims, x: (x.movedim(in_dims[0], 0).cumsum(-1), 5),
)
def vmap_impossible_out_dim(x: Tensor) -> Tensor:
    """The batching rule returns an axis that there is not."""
    return x.cumsum(-1)


@add("vmap", "raises where", lambda: [normal(3), normal(3, seed=1)], fake=like,
     vmap=lambda info, in_dims, x, y: (x.movedim(in_dims[0], 0) * y.movedim(in_dims[1], 0), 0))  # fmt: skip
def vmap_both_batched(x: Tensor, y: Tensor) -> Tensor:
    """The batching rule needs every argument batched."""
    return x * y


@add("schema", "output 0 is argument x itself", matrix, fake=like)
def returns_its_argument(x: Tensor) -> Tensor:
    """Returns its argument."""
    return x


@add(
    "schema",
    "shares memory with argument x",
    matrix,
    fake=lambda x: x.new_empty((x.shape[0] - 1, x.shape[1])),
)
def returns_a_view(x: Tensor) -> Tensor:
    """Returns a view of its argument."""
    return x[1:]


@add(
    "schema", "output 1 is output 0 itself", matrix, fake=lambda x: (torch.empty_like(x), torch.empty_like(x))
)
def one_tensor_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns one tensor twice."""
    out = x * 2
    return out, out


@add("schema", "output 1 is output 0 itself", matrix, fake=lambda x: (x.new_empty(0), x.new_empty(0)))
def one_empty_tensor_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns one empty tensor twice."""
    out = x.new_empty(0)
    return out, out


@add(
    "schema",
    "argument buf",
    lambda: [*matrix(), normal(3, 4, seed=1)],
    mutates_args=("buf",),
    fake=lambda x, buf: torch.empty_like(buf),
)
def returns_the_buffer_it_filled(x: Tensor, buf: Tensor) -> Tensor:
    """Fills a buffer, and returns it."""
    return buf.copy_(x)


@add("schema", "was changed", matrix, fake=like)
def undeclared_mutation(x: Tensor) -> Tensor:
    """Changes its argument."""
    x.add_(1)
    return x * 2


@add("schema", "argument y was changed", lambda: [*matrix(), normal(3, 4, seed=1)], mutates_args=("x",))
def mutates_a_second_argument(x: Tensor, y: Tensor) -> None:
    """Changes a second argument, which is not declared."""
    x.add_(y)
    y.zero_()


@add("fake compile", "dtype", matrix, fake=lambda x: torch.empty_like(x, dtype=torch.int32))
def fake_another_dtype(x: Tensor) -> Tensor:
    """The fake says int32, the kernel returns int64."""
    return x.argsort(-1)


@add("fake compile", "strides of output 1", matrix,
     fake=lambda x: (x.new_empty(x.shape), x.new_empty((x.shape[1], x.shape[0]))))  # fmt: skip
def fake_second_strides(x: Tensor) -> tuple[Tensor, Tensor]:
    """The strides of the second output."""
    return (x * 2).contiguous(), (x * 3).contiguous().mT


@add("fake compile", "itself", matrix, fake=lambda x: x)
def fake_returns_its_argument(x: Tensor) -> Tensor:
    """The fake returns its argument."""
    return x * 2


@add("fake compile", "returned something else", matrix, fake=lambda x: (torch.empty_like(x),))
def fake_too_few(x: Tensor) -> tuple[Tensor, Tensor]:
    """The fake returns one output of two."""
    return x * 2, x * 3


@add("fake compile", "shape", lambda: [normal(3, 6)], fake=lambda x: x.new_empty((x.shape[0], x.shape[1])))
def fake_keeps_the_padding(x: Tensor) -> Tensor:
    """The kernel strips two columns of padding, the fake keeps them."""
    return x[:, :-2].contiguous()


@add("fake", "", lambda: [*matrix(), 2], fake=lambda x: x.new_empty(x.shape))
def fake_without_an_argument(x: Tensor, n: int) -> Tensor:
    """The fake does not take the second argument."""
    return x * n


_weight = normal(3, 4).requires_grad_()


@add(
    "autograd",
    "",
    lambda: [normal(3, 4)],
    fake=like,
    backward=lambda ctx, g: g * _weight.detach(),
    setup=save,
)
def captures_a_parameter(x: Tensor) -> Tensor:
    """A parameter that is closed over, and loses its gradient."""
    return x * _weight if x.shape == _weight.shape else x * 1


_calls = itertools.count()


@add("determinism", "two calls with equal arguments", matrix, fake=like)
def depends_on_the_count(x: Tensor) -> Tensor:
    """Counts its calls."""
    return x + next(_calls)


@add("schema", "of argument x changed", matrix, fake=lambda x: x.new_empty((x.shape[1], x.shape[0])))
def transposes_in_place(x: Tensor) -> Tensor:
    """Transposes its argument in place."""
    x.t_()
    return (x * 2).contiguous()


@add("schema", "of argument x changed", vector, fake=like)
def resizes_in_place(x: Tensor) -> Tensor:
    """Resizes its argument."""
    out = x * 2
    x.resize_(x.numel() + 1)
    return out


@add("schema", "of argument x changed", vector, mutates_args=("x",))
def swaps_the_storage(x: Tensor) -> None:
    """Gives its argument another storage."""
    x.set_(x * 2)


@add("schema", "requires_grad", vector, fake=like)
def sets_requires_grad(x: Tensor) -> Tensor:
    """Makes its argument require a gradient."""
    out = x * 2
    x.requires_grad_()
    return out.detach()


_shapes: dict[Any, Tensor] = {}


@add("determinism", "the first call", lambda: [normal(3)], fake=like)
def caches_by_shape(x: Tensor) -> Tensor:
    """Returns the result of the first call with this shape."""
    key = (tuple(x.shape), x.dtype)
    return _shapes.setdefault(key, x * 2).clone()
