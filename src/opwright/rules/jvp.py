"""The jvp rule: the tangents of the outputs from those of the inputs (forward mode).

``jvp(ctx, *tangents)`` gets one tangent for each argument, positional then keyword-only (None where the
argument has none, nested for lists), and returns one for each output, as one value or a tuple; an
operator with mutated arguments returns theirs after those of its outputs. ``setup_context`` fills ``ctx``
as for the backward; where none is given, that of the autograd rule does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.rules.autograd import check_setup_context
from opwright.rules.base import Rule, require_signature
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.schema import FunctionSchema


@dataclass(frozen=True, slots=True, eq=False)
class JvpRule(Rule):
    """``jvp(ctx, *tangents)`` as ``fn``, and ``setup_context`` where given."""

    kind: ClassVar[str] = "jvp"

    setup_context: Callable[..., None] | None = None


def describe(
    schema: FunctionSchema, fn: Callable[..., Any], setup_context: Callable[..., None] | None, flavour: str
) -> JvpRule:
    """Return the rule for ``fn``, its signatures compared with the schema."""
    tangents = [f"tangent_{argument.name}" for argument in schema.arguments]
    require_signature(f"jvp of {schema.qualname}", fn, ["ctx", *tangents])
    if setup_context is not None:
        check_setup_context(schema, setup_context)
    return JvpRule(fn, flavour, source_of(fn), setup_context)
