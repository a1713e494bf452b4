"""What a framework's compiler is to the laws: it makes a program of a call, which is run like the call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.checks.adapters.results import Called, Pullback
    from opwright.overload import OpOverload


class Program(ABC):
    """A call of an operator that a framework's compiler took; it may be made again with other arrays."""

    @abstractmethod
    def call(self, values: Sequence[Any], *, other_size: bool = False) -> Called:
        """Run it; with ``other_size``, raise `Recompiled` where it is compiled anew for it."""

    @abstractmethod
    def vjp(self, values: Sequence[Any], wanted: Sequence[Any], *, other_size: bool = False) -> Pullback:
        """Run it so that gradients can be pulled back."""

    def vmap(self, values: Sequence[Any], levels: Sequence[Sequence[Any]]) -> Called | None:
        """Run it under vmap inside the compiled program; None where vmap is not compiled."""
        return None


class Recompiled(Exception):  # noqa: N818  (a fact about the operator, not a fault of the checker)
    """A program was compiled again for another size."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A way to compile an operator.

    Parameters
    ----------
    name
        What messages call it.
    program
        ``program(record, values)`` returns the program of calls with such arguments.
    line
        Rebinds ``op`` to the compiled operator in a snippet.
    dynamic
        Whether sizes are symbols, so that other sizes need no other program.
    differentiable
        Whether gradients go through it.
    """

    name: str
    program: Callable[[OpOverload, Sequence[Any]], Program]
    line: str
    dynamic: bool = False
    differentiable: bool = True
