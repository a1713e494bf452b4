"""Sample inputs of an operator: what the checker calls it with.

``fn()`` returns or yields samples. Each is a tuple of positional arguments, or a pair of such a tuple and
a dict of keyword arguments; arrays are NumPy's, and each framework gets its own from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.rules.base import Rule, require_signature
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.schema import FunctionSchema


@dataclass(frozen=True, slots=True, eq=False)
class SamplesRule(Rule):
    """``fn()`` returns or yields ``args`` or ``(args, kwargs)``."""

    kind: ClassVar[str] = "samples"


def describe(schema: FunctionSchema, fn: Callable[..., Any], flavour: str) -> SamplesRule:
    """Return the rule for ``fn``, which takes no parameters."""
    require_signature(f"the samples of {schema.qualname}", fn, [])
    return SamplesRule(fn, flavour, source_of(fn))
