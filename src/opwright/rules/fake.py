"""The fake rule: from the metadata of the inputs to the metadata of the outputs, without computing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.own_defaults import with_own_defaults
from opwright.rules.base import Rule, names, require_signature
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.schema import FunctionSchema


@dataclass(frozen=True, slots=True, eq=False)
class FakeRule(Rule):
    """``fn(*args, **kwargs)`` with the operator's own parameters returns outputs without data."""

    kind: ClassVar[str] = "fake"


def describe(schema: FunctionSchema, fn: Callable[..., Any], flavour: str) -> FakeRule:
    """Return the rule for ``fn``, its signature compared with the schema."""
    positional, keyword_only = names(schema)
    require_signature(f"the fake of {schema.qualname}", fn, positional, keyword_only)
    return FakeRule(with_own_defaults(fn, schema, none_counts=False), flavour, source_of(fn))
