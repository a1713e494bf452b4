"""Mutators of kernels: of what they do to arguments, of layouts and of determinism."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from mutators import first_changed, is_functional, mutator, takes_a_tensor, with_kernel
from torch import Tensor

if TYPE_CHECKING:
    from definitions import Definition


# ------------------------------------------------------------------------------------------------- schema


@mutator("schema", "was changed")
def changes_an_argument(recipe: Definition) -> Definition | None:
    """The first argument changed in place, undeclared."""
    if not is_functional(recipe) or not takes_a_tensor(recipe):
        return None

    def make(old: Any, x: Tensor, *rest: Any) -> Any:
        out = old(x, *rest)
        x.add_(1)
        return out

    return with_kernel(recipe, make)


@mutator("schema", "was changed")
def changes_another_argument(recipe: Definition) -> Definition | None:
    """An argument beside the declared one changed in place."""
    if recipe.name != "accumulated":
        return None

    def make(old: Any, total: Tensor, x: Tensor) -> Any:
        out = old(total, x)
        x.zero_()
        return out

    return with_kernel(recipe, make)


@mutator("schema")
def transposes_an_argument(recipe: Definition) -> Definition | None:
    """The first argument transposed in place."""
    if not is_functional(recipe) or not takes_a_tensor(recipe):
        return None

    def make(old: Any, x: Tensor, *rest: Any) -> Any:
        out = old(x, *rest)
        if x.dim() > 1:
            x.t_()
        return out

    return with_kernel(recipe, make)


@mutator("schema", "declared as mutated, but no call changed it")
def declares_too_much(recipe: Definition) -> Definition | None:
    """The first argument declared as mutated, which it is not."""
    if not is_functional(recipe) or not takes_a_tensor(recipe):
        return None
    return replace(recipe, mutates_args=("x",), backward=None, setup=None, vmap=None, jvp=None)


@mutator("schema", "argument")
def returns_a_view_of_an_argument(recipe: Definition) -> Definition | None:
    """The result written into the argument's memory, of which a view is returned."""
    if recipe.name not in ("sine", "cumulated", "product"):
        return None
    return with_kernel(recipe, lambda old, x, *rest: x.view(x.shape))


@mutator("schema", "argument")
def may_return_its_argument(recipe: Definition) -> Definition | None:
    """The argument itself where there is nothing to convert."""
    if recipe.name not in ("sine", "cumulated"):
        return None
    return with_kernel(
        recipe, lambda old, x: x.to(torch.float32), fake=lambda x: torch.empty_like(x, dtype=torch.float32),
        backward=None, setup=None, vmap=None, jvp=None,
    )  # fmt: skip


@mutator("schema determinism", "of two calls is in the same memory")
def returns_a_kept_buffer(recipe: Definition) -> Definition | None:
    """The result written into a buffer that is kept between calls."""
    if not is_functional(recipe):
        return None
    buffers: dict[Any, Tensor] = {}

    def make(old: Any, *args: Any) -> Any:
        def kept(out: Tensor) -> Tensor:
            buffer = buffers.setdefault((out.shape, out.dtype), torch.empty_like(out))
            return buffer.copy_(out)

        return first_changed(old(*args), kept)

    return with_kernel(recipe, make)


# ------------------------------------------------------------------------------------------------- layout


def _read_densely(x: Tensor) -> Tensor:
    """Return what a kernel sees that takes a tensor's memory to be contiguous."""
    steps = torch.empty(x.shape, device="meta").stride()
    needed = (x.storage_offset() + x.numel()) * x.element_size()
    if x.untyped_storage().nbytes() < needed:
        return torch.zeros_like(x)
    return x.as_strided(x.shape, steps)


@mutator("layout", "differs where")
def reads_an_argument_densely(recipe: Definition) -> Definition | None:
    """The first argument read as if it were contiguous."""
    if not is_functional(recipe) or not takes_a_tensor(recipe):
        return None
    return with_kernel(recipe, lambda old, x, *rest: old(_read_densely(x), *rest))


@mutator("layout", "differs where")
def reads_from_the_start_of_the_storage(recipe: Definition) -> Definition | None:
    """The storage offset of the first argument ignored."""
    if not is_functional(recipe) or not takes_a_tensor(recipe):
        return None
    return with_kernel(recipe, lambda old, x, *rest: old(x.as_strided(x.shape, x.stride(), 0), *rest))


@mutator("layout", "raises where")
def refuses_what_is_not_contiguous(recipe: Definition) -> Definition | None:
    """Raises for a first argument that is not contiguous."""
    if not is_functional(recipe) or not takes_a_tensor(recipe):
        return None

    def make(old: Any, x: Tensor, *rest: Any) -> Any:
        if not x.is_contiguous():
            raise RuntimeError("x must be contiguous")
        return old(x, *rest)

    return with_kernel(recipe, make)


@mutator("layout", "without elements")
def raises_without_elements(recipe: Definition) -> Definition | None:
    """Raises where the first argument has no elements."""
    if recipe.fake is None or not takes_a_tensor(recipe):
        return None

    def make(old: Any, x: Tensor, *rest: Any) -> Any:
        if x.numel() == 0:
            raise ZeroDivisionError("division by zero")
        return old(x, *rest)

    return with_kernel(recipe, make)


@mutator("layout schema functionalization", "")
def writes_into_a_contiguous_copy(recipe: Definition) -> Definition | None:
    """What is mutated is a contiguous copy, so that other layouts stay as they were."""
    if is_functional(recipe):
        return None
    return with_kernel(recipe, lambda old, x, *rest: old(x.contiguous(), *rest))


@mutator("layout schema functionalization", "")
def writes_densely(recipe: Definition) -> Definition | None:
    """What is mutated is the memory as if it were contiguous."""
    if is_functional(recipe):
        return None
    return with_kernel(recipe, lambda old, x, *rest: old(_read_densely(x), *rest))


# -------------------------------------------------------------------------------------------- determinism


@mutator("determinism", "two calls with equal arguments")
def adds_noise(recipe: Definition) -> Definition | None:
    """A random part that is not declared."""
    if not is_functional(recipe):
        return None

    def make(old: Any, *args: Any) -> Any:
        return first_changed(old(*args), lambda out: out + torch.rand_like(out))

    return with_kernel(recipe, make, backward=None, setup=None, vmap=None, jvp=None)


@mutator("determinism", "two calls with equal arguments")
def counts_calls(recipe: Definition) -> Definition | None:
    """The number of calls in the result."""
    if not is_functional(recipe):
        return None
    calls = itertools.count()

    def make(old: Any, *args: Any) -> Any:
        return first_changed(old(*args), lambda out: out + next(calls))

    return with_kernel(recipe, make, backward=None, setup=None, vmap=None, jvp=None)


@mutator("schema", "no outputs and mutates nothing")
def only_side_effects(recipe: Definition) -> Definition | None:
    """Nothing returned and nothing mutated."""
    if recipe.name != "sine":
        return None
    log: list[float] = []

    def kernel(x: Tensor) -> None:
        log.append(float(x.sum()))

    return replace(recipe, kernel=kernel, fake=lambda x: None, backward=None, setup=None, vmap=None, jvp=None)
