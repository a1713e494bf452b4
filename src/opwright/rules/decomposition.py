"""The decomposition: a body of operators and kernels that a compiler understands, in the operator's place.

A ``triton_op`` has one: where a framework's compiler takes a program apart, it sees the launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Callable


def _no_kernels() -> list[Any]:
    return []


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, eq=False)
class DecompositionRule(Rule):
    """``fn``, the body, takes the operator's own parameters.

    Parameters
    ----------
    kernels
        Returns the kernels that the body may launch.
    interpreted
        Returns whether these kernels run in an interpreter, which no compiler sees into.
    """

    kind: ClassVar[str] = "decomposition"

    kernels: Callable[[], list[Any]] = _no_kernels
    interpreted: Callable[[], bool] = _never
