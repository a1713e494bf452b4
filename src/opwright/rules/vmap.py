"""The vmap rule: the operator on a batch of inputs.

``fn(info, in_dims, *args, **kwargs)`` returns ``(outputs, out_dims)``. ``in_dims`` has the non-negative
batch axis of each positional argument, None where it is not batched, nested for lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.rules.base import Rule, names, require_signature
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.schema import FunctionSchema


@dataclass(frozen=True, slots=True)
class VmapInfo:
    """What a vmap rule is told of the transform.

    Parameters
    ----------
    batch_size
        The length of the batch axis.
    randomness
        ``"error"``, ``"different"`` or ``"same"``.
    """

    batch_size: int
    randomness: str


@dataclass(frozen=True, slots=True, eq=False)
class VmapRule(Rule):
    """``fn(info, in_dims, *args, **kwargs)`` returns ``(outputs, out_dims)``."""

    kind: ClassVar[str] = "vmap"


def describe(schema: FunctionSchema, fn: Callable[..., Any], flavour: str) -> VmapRule:
    """Return the rule for ``fn``, its signature compared with the schema."""
    positional, keyword_only = names(schema)
    require_signature(
        f"the vmap rule of {schema.qualname}", fn, ["info", "in_dims", *positional], keyword_only
    )
    return VmapRule(fn, flavour, source_of(fn))
