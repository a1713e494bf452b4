"""A transform of ``torch.func`` inside a rule that another transform runs: torch has no answer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from opwright.errors import UnsupportedError, layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opwright.overload import OpOverload
    from opwright.rules.base import Rule

_SIGNS = ("savedLocalDispatchKeySet_", "already has a forward gradient at the same level")
"""What torch says of it: an assertion of its own, and the level of forward mode being in use."""


@contextmanager
def refused(record: OpOverload, what: str, rule: Rule) -> Iterator[None]:
    """Say clearly that a rule, called ``what``, may not call transforms while it is run by one."""
    try:
        yield
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _SIGNS):
            raise
        raise UnsupportedError(
            layout(
                f"the {what} of {record.qualname} calls a transform of torch.func while it is run by one, "
                "which torch does not support",
                expected="a rule of tensor operations; torch.autograd.grad is one",
                registered=rule.source,
                fix="write the formula out, or make the part that is transformed an operator of its own",
            )
        ) from error
