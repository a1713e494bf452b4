"""Mutators of rules: of the backward, the fake, the batching rule and the tangent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from mutators import as_tuple, first_changed, mutator, takes_a_tensor, with_backward, with_fake
from torch import Tensor

if TYPE_CHECKING:
    from definitions import Definition


# ----------------------------------------------------------------------------------------------- autograd


@mutator("autograd", "differs from finite differences")
def wrong_factor(recipe: Definition) -> Definition | None:
    """Every gradient of the first argument three times too large."""
    return with_backward(recipe, lambda old, ctx, *g: first_changed(old(ctx, *g), lambda grad: 3 * grad))


@mutator("autograd", "differs from finite differences")
def wrong_sign(recipe: Definition) -> Definition | None:
    """The gradient of the first argument negated."""
    return with_backward(recipe, lambda old, ctx, *g: first_changed(old(ctx, *g), lambda grad: -grad))


@mutator("autograd", "differs from finite differences")
def ignores_its_gradient(recipe: Definition) -> Definition | None:
    """As if every incoming gradient were one."""
    return with_backward(recipe, lambda old, ctx, *g: old(ctx, *[torch.ones_like(one) for one in g]))


@mutator("autograd", "gives no gradient for")
def first_gradient_dropped(recipe: Definition) -> Definition | None:
    """None for the first argument."""
    return with_backward(recipe, lambda old, ctx, *g: first_changed(old(ctx, *g), lambda grad: None))


@mutator("autograd", "gives no gradient for")
def second_gradient_dropped(recipe: Definition) -> Definition | None:
    """None for the second argument."""
    args = recipe.args()
    if len(args) < 2 or not isinstance(args[1], Tensor):
        return None

    def make(old: Any, ctx: Any, *grads: Any) -> Any:
        first, _, *rest = old(ctx, *grads)
        return (first, None, *rest)

    return with_backward(recipe, make)


@mutator("autograd", "differs from finite differences")
def gradients_swapped(recipe: Definition) -> Definition | None:
    """The gradients of two arguments of one shape in the wrong order."""
    args = recipe.args()
    if len(args) < 2 or not isinstance(args[1], Tensor) or args[0].shape != args[1].shape:
        return None

    def make(old: Any, ctx: Any, *grads: Any) -> Any:
        first, second, *rest = old(ctx, *grads)
        return (second, first, *rest)

    return with_backward(recipe, make)


@mutator("autograd", "another shape")
def larger_gradient(recipe: Definition) -> Definition | None:
    """A gradient of a larger shape that broadcasts."""
    return with_backward(
        recipe, lambda old, ctx, *g: first_changed(old(ctx, *g), lambda grad: torch.stack([grad, grad]))
    )


@mutator("autograd", "another dtype")
def single_gradient(recipe: Definition) -> Definition | None:
    """A gradient in single precision."""
    return with_backward(recipe, lambda old, ctx, *g: first_changed(old(ctx, *g), lambda grad: grad.float()))


@mutator("autograd", "incorrect number of gradients")
def too_many_gradients(recipe: Definition) -> Definition | None:
    """One gradient more than there are arguments."""
    return with_backward(recipe, lambda old, ctx, *g: (*as_tuple(old(ctx, *g)), None))


@mutator("autograd", "changed its incoming gradient")
def changes_its_gradient(recipe: Definition) -> Definition | None:
    """The incoming gradient changed in place, after it was used."""

    def make(old: Any, ctx: Any, *grads: Any) -> Any:
        found = old(ctx, *grads)
        if grads[0].is_contiguous():
            grads[0].add_(1)
        return found

    return with_backward(recipe, make)


@mutator("autograd", "the backward changed")
def changes_a_saved_tensor(recipe: Definition) -> Definition | None:
    """A saved tensor changed in place, after it was used."""
    if recipe.name in ("cumulated", "rows"):  # these save nothing
        return None

    def make(old: Any, ctx: Any, *grads: Any) -> Any:
        found = old(ctx, *grads)
        ctx.saved_tensors[0].data.mul_(2)
        return found

    return with_backward(recipe, make)


@mutator("autograd", "where the incoming gradient is")
def reads_its_gradient_densely(recipe: Definition) -> Definition | None:
    """The incoming gradient read as if it were contiguous."""

    def dense(grad: Tensor) -> Tensor:
        steps = torch.empty(grad.shape, device="meta").stride()
        if grad.untyped_storage().nbytes() < grad.numel() * grad.element_size():
            return grad.new_zeros(grad.shape)
        return grad.as_strided(grad.shape, steps)

    return with_backward(recipe, lambda old, ctx, *g: old(ctx, *map(dense, g)))


@mutator("autograd", "where the incoming gradient is")
def refuses_expanded_gradients(recipe: Definition) -> Definition | None:
    """Raises where the incoming gradient is not contiguous."""

    def make(old: Any, ctx: Any, *grads: Any) -> Any:
        if any(0 in one.stride() and one.numel() > 1 for one in grads):
            raise RuntimeError("grad must be contiguous")
        return old(ctx, *grads)

    return with_backward(recipe, make)


@mutator("autograd", "is kept alive")
def keeps_its_output(recipe: Definition) -> Definition | None:
    """The output kept as a plain attribute of the context."""
    old = recipe.setup
    if recipe.backward is None or old is None:
        return None

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        old(ctx, inputs, output)
        ctx.result = output

    return replace(recipe, setup=setup)


@mutator("autograd")
def counts_its_calls(recipe: Definition) -> Definition | None:
    """The gradient grows with every backward of one context."""

    def make(old: Any, ctx: Any, *grads: Any) -> Any:
        ctx.calls = getattr(ctx, "calls", 0) + 1
        calls = ctx.calls
        return first_changed(old(ctx, *grads), lambda grad: grad * calls)

    return with_backward(recipe, make)


@mutator("autograd", "second")
def constant_in_the_second_order(recipe: Definition) -> Definition | None:
    """The backward computes with detached tensors, so that the second derivative is zero."""
    if recipe.name in ("cumulated", "rows"):  # these are linear
        return None

    class Detached:
        def __init__(self, ctx: Any) -> None:
            self.saved_tensors = [one.detach() for one in ctx.saved_tensors]
            self.dim = getattr(ctx, "dim", None)
            self.eps = getattr(ctx, "eps", None)

    return with_backward(recipe, lambda old, ctx, *g: old(Detached(ctx), *g))


# --------------------------------------------------------------------------------------------------- fake


@mutator("fake compile", "disagree on the shape")
def another_shape_in_the_fake(recipe: Definition) -> Definition | None:
    """One axis more."""
    return with_fake(recipe, lambda old, *args: first_changed(old(*args), lambda out: out.unsqueeze(-1)))


@mutator("fake compile", "disagree on the dtype")
def another_dtype_in_the_fake(recipe: Definition) -> Definition | None:
    """Single precision."""
    return with_fake(recipe, lambda old, *args: first_changed(old(*args), lambda out: out.float()))


@mutator("fake compile", "disagree on the strides")
def other_strides_in_the_fake(recipe: Definition) -> Definition | None:
    """The axes in another order in memory."""
    if recipe.name in ("log_sum", "moments", "accumulated"):  # their outputs have one axis
        return None
    return with_fake(
        recipe,
        lambda old, *args: first_changed(
            old(*args), lambda out: out.mT.clone(memory_format=torch.contiguous_format).mT
        ),
    )


@mutator("fake compile", "disagree on")
def sizes_of_the_sample_in_the_fake(recipe: Definition) -> Definition | None:
    """The shape of the sample's result for every sample."""
    if recipe.fake is None:
        return None
    out = as_tuple(recipe.kernel(*recipe.args()))[0]
    shape = tuple(out.shape)
    return with_fake(recipe, lambda old, *args: first_changed(old(*args), lambda fake: fake.new_empty(shape)))


@mutator("fake compile")
def number_of_a_size_in_the_fake(recipe: Definition) -> Definition | None:
    """A size made a number, so that every size compiles anew."""

    def fixed(out: Any) -> Any:
        return out.new_empty([int(size) for size in out.shape])

    return with_fake(recipe, lambda old, *args: first_changed(old(*args), fixed))


@mutator("fake compile")
def branch_on_a_size_in_the_fake(recipe: Definition) -> Definition | None:
    """A branch on a size, both sides of which say the same."""

    def branched(out: Any) -> Any:
        return out.new_empty(out.shape) if out.shape[0] > 3 else out.clone()

    return with_fake(recipe, lambda old, *args: first_changed(old(*args), branched))


@mutator("fake compile")
def argument_from_the_fake(recipe: Definition) -> Definition | None:
    """The fake returns the argument itself."""
    if recipe.name not in ("sine", "cumulated", "product", "normalised"):
        return None
    return with_fake(recipe, lambda old, *args: args[0])


@mutator("fake compile", "the fake returned something else")
def one_output_more_in_the_fake(recipe: Definition) -> Definition | None:
    """An output that the schema does not have."""

    def make(old: Any, *args: Any) -> Any:
        found = as_tuple(old(*args))
        return (*found, found[0])

    return with_fake(recipe, make)


@mutator("fake compile", "the fake raises")
def values_read_in_the_fake(recipe: Definition) -> Definition | None:
    """The fake looks at the values of an argument."""
    if not takes_a_tensor(recipe):
        return None

    def make(old: Any, *args: Any) -> Any:
        if args[0].sum().item() > 1e9:
            raise ValueError("too large")
        return old(*args)

    return with_fake(recipe, make)


# --------------------------------------------------------------------------------------------------- vmap


@mutator("vmap", "the batch axis is")
def vmap_without_in_dims(recipe: Definition) -> Definition | None:
    """The rule takes every batch axis to be the first."""
    old = recipe.vmap
    if old is None:
        return None

    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return old(info, [None if dim is None else 0 for dim in in_dims], *args)

    return replace(recipe, vmap=vmap)


@mutator("vmap", "impossible out_dim")
def vmap_with_an_impossible_axis(recipe: Definition) -> Definition | None:
    """An ``out_dims`` that no output has."""
    old = recipe.vmap
    if old is None:
        return None
    return replace(recipe, vmap=lambda *args: (old(*args)[0], 7))


@mutator("vmap", "axis")
def vmap_with_another_axis(recipe: Definition) -> Definition | None:
    """The last axis returned as the batch axis."""
    old = recipe.vmap
    if old is None:
        return None
    return replace(recipe, vmap=lambda *args: (old(*args)[0], -1))


@mutator("vmap", "raises where")
def vmap_of_batched_alone(recipe: Definition) -> Definition | None:
    """Raises where an argument is not batched."""
    old = recipe.vmap
    if old is None or recipe.name not in ("product", "matrix_product"):
        return None

    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        if None in in_dims:  # what computes with every axis raises so
            raise TypeError("an axis must be an integer, not None")
        return old(info, in_dims, *args)

    return replace(recipe, vmap=vmap)


@mutator("vmap", "something else than")
def vmap_without_out_dims(recipe: Definition) -> Definition | None:
    """The outputs alone."""
    old = recipe.vmap
    if old is None or recipe.name == "moments":
        return None
    return replace(recipe, vmap=lambda *args: old(*args)[0])


@mutator("vmap", "no elements")
def vmap_of_no_elements(recipe: Definition) -> Definition | None:
    """Raises for a batch without elements."""
    old = recipe.vmap
    if old is None:
        return None

    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        if info.batch_size == 0:
            raise ValueError("nothing to do")
        return old(info, in_dims, *args)

    return replace(recipe, vmap=vmap)


# ---------------------------------------------------------------------------------------------------- jvp


@mutator("jvp", "the tangent of")
def zero_tangent(recipe: Definition) -> Definition | None:
    """A tangent of zeros."""
    old = recipe.jvp
    return None if old is None else replace(recipe, jvp=lambda ctx, *t: 0 * old(ctx, *t))


@mutator("jvp", "the tangent of")
def double_tangent(recipe: Definition) -> Definition | None:
    """A tangent twice too large."""
    old = recipe.jvp
    return None if old is None else replace(recipe, jvp=lambda ctx, *t: 2 * old(ctx, *t))


@mutator("jvp", "incorrect number")
def one_tangent_more(recipe: Definition) -> Definition | None:
    """A tangent of an output that there is not."""
    old = recipe.jvp
    return None if old is None else replace(recipe, jvp=lambda ctx, *t: (old(ctx, *t), old(ctx, *t)))
