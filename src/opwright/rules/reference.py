"""The reference of an operator: a plain function that the checker compares its results with.

It takes the operator's own parameters, arrays as NumPy's where its annotations do not say otherwise, and
returns what the operator does; what the operator mutates, it mutates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.rules.base import Rule, names, require_signature
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.schema import FunctionSchema


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceRule(Rule):
    """``fn``, called as a kernel is."""

    kind: ClassVar[str] = "reference"


def describe(schema: FunctionSchema, fn: Callable[..., Any], flavour: str) -> ReferenceRule:
    """Return the rule for ``fn``, its signature compared with the schema."""
    require_signature(f"the reference of {schema.qualname}", fn, *names(schema))
    return ReferenceRule(fn, flavour, source_of(fn))
