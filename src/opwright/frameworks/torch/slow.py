"""The call through torch's dispatcher: what every call that has no faster way takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opwright.frameworks.torch.lowered import lowered_of
from opwright.overload import OpOverload


def slow_call(record: OpOverload) -> Callable[..., Any]:
    """Return the function that takes all values by position and calls ``torch.ops.ns.op.overload``."""
    state = lowered_of(record)
    if not state.names:
        native: Callable[..., Any] = state.native
        return native

    def call(*values: Any) -> Any:
        return state.call(values)

    return call
