"""Calling a batching rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.batch_outputs import checked
from opwright.calls import split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.calls import Call
    from opwright.rules.base import Rule
    from opwright.rules.vmap import VmapInfo


def by_rule(call: Call, rule: Rule, axes: Sequence[Any], info: VmapInfo) -> tuple[list[Any], list[Any]]:
    """Return the outputs of a batching rule, and the batch axis of each, None for one without.

    Raises
    ------
    OutputError
        If the rule returns something that does not fit the operator, or the batch.
    """
    record = call.record
    args, kwargs = split(record, call.for_rule(rule.flavour, call.values))
    returned = rule.fn(info, tuple(axes[: len(args)]), *args, **kwargs)
    return checked(record, rule, returned, call.framework.name, info.batch_size)
