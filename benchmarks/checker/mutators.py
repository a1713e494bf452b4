"""What mutators are: each plants one fault in a right operator, where the operator has what it changes.

A mutator takes a definition and returns the wrong one, or None; ``MUTATORS`` has for each the laws that may
find the fault, and words that name its cause.
"""

from __future__ import annotations

import importlib
import itertools
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from definitions import Definition


@dataclass(frozen=True, slots=True)
class Mutator:
    """A kind of fault.

    Parameters
    ----------
    name
        Its name.
    plant
        Returns the definition with the fault, or None where there is nothing to change.
    laws
        The laws that may find it.
    words
        Words of a finding that name the cause.
    level
        The level at which it is looked for.
    """

    name: str
    plant: Callable[[Definition], Definition | None]
    laws: tuple[str, ...]
    words: str
    level: str = "default"


MUTATORS: list[Mutator] = []


def mutator(laws: str, words: str = "", *, level: str = "default") -> Callable[..., Any]:
    """Add a mutator; laws are separated by spaces."""

    def add(plant: Callable[[Definition], Definition | None]) -> Any:
        MUTATORS.append(Mutator(plant.__name__, plant, tuple(laws.split()), words, level))
        return plant

    return add


def mutants(recipes: list[Definition]) -> Iterator[tuple[Mutator, Definition]]:
    """Yield every mutator with every recipe that it changes."""
    for module in ("mutators_rules", "mutators_kernels"):  # each adds its own when it is imported
        importlib.import_module(module)
    for one, recipe in itertools.product(MUTATORS, recipes):
        wrong = one.plant(recipe)
        if wrong is not None:
            yield one, replace(wrong, name=f"{recipe.name}_{one.name}")


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return one value as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


def first_changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return gradients or outputs with the first changed."""
    if isinstance(value, tuple):
        return (first_changed(value[0], change), *value[1:])
    if isinstance(value, list):
        return [change(value[0]), *value[1:]]
    return change(value)


def with_backward(recipe: Definition, make: Callable[..., Any], **changes: Any) -> Definition | None:
    """Return the recipe with ``make(backward, ctx, *grads)`` for its backward."""
    old = recipe.backward
    if old is None:
        return None

    def backward(ctx: Any, *grads: Any) -> Any:
        return make(old, ctx, *grads)

    return replace(recipe, backward=backward, **changes)


def with_kernel(recipe: Definition, make: Callable[..., Any], **changes: Any) -> Definition:
    """Return the recipe with ``make(kernel, *args)`` for its kernel."""
    old = recipe.kernel

    @wraps(old)
    def kernel(*args: Any) -> Any:
        return make(old, *args)

    return replace(recipe, kernel=kernel, **changes)


def with_fake(recipe: Definition, make: Callable[..., Any]) -> Definition | None:
    """Return the recipe with ``make(fake, *args)`` for its fake."""
    old = recipe.fake
    if old is None:
        return None

    @wraps(old)
    def fake(*args: Any) -> Any:
        return make(old, *args)

    return replace(recipe, fake=fake)


def is_functional(recipe: Definition) -> bool:
    """Return whether an operator mutates nothing."""
    return not recipe.mutates_args


def takes_a_tensor(recipe: Definition) -> bool:
    """Return whether the first argument is one tensor."""
    return isinstance(recipe.args()[0], Tensor)
