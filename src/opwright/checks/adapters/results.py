"""What adapters return: calls, fakes, gradients, and why there is none of these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Meta:
    """The metadata of one array that a fake returned.

    Parameters
    ----------
    shape
        Its sizes; None where the fake leaves one open (``new_dynamic_size``).
    dtype
        The standard name.
    same
        Labels of what it is or shares memory with: an argument's array, or an output before it.
    strides
        In elements, where they are part of the framework's contract, else None.
    bounds
        For each size the least and the largest value that it can have.
    """

    shape: tuple[int | None, ...]
    dtype: str
    same: tuple[str, ...] = ()
    strides: tuple[int, ...] | None = None
    bounds: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a fake asked of a size: the question, the line that asked, and what it was answered."""

    text: str
    source: str
    answer: Any


@dataclass(slots=True)
class Faked:
    """What a fake returned, one entry for each return, and what it asked of symbolic sizes."""

    outputs: list[Any]
    asked: list[Asked] = field(default_factory=list)

    def arrays(self) -> list[Meta]:
        """Return the arrays among the outputs, those in lists too."""
        many = [one for out in self.outputs for one in (out if isinstance(out, list) else [out])]
        return [one for one in many if isinstance(one, Meta)]


@dataclass(slots=True)
class Pullback:
    """A differentiable call: its outputs, what pulls gradients back, and the rule's context.

    Parameters
    ----------
    outputs
        What the call returned, one entry for each return; then the new values of mutated arguments.
    pull
        From one gradient for each of ``outputs`` (None for an unused one) to one entry for each argument.
    context
        The ``ctx`` that ``setup_context`` filled, where the framework lets it be seen, else None.
    """

    outputs: list[Any]
    pull: Callable[[Sequence[Any]], list[Any]]
    context: Any = None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why a framework, or an operator in it, does not have what a law needs."""

    reason: str


@dataclass(slots=True)
class Called:
    """What a call returned: outputs one for each return, and the new value of each mutated argument."""

    outputs: list[Any]
    new_values: dict[str, Any] = field(default_factory=dict)
