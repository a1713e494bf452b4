"""The one duplicate policy: registering again replaces, another source file is warned of, or it is refused.

What is replaced stays underneath, and is in force again when the replacement's handle is destroyed.
"""

from __future__ import annotations

import warnings

from opwright.errors import DuplicateError, layout
from opwright.source import caller, file_of


class OverrideWarning(UserWarning):
    """A registration replaces one that was made in another source file."""


def check_override(
    what: str,
    previous: str | None,
    source: str,
    *,
    allow_override: bool,
    fix: str = "destroy the first handle or Library, or pass allow_override=True",
) -> None:
    """Apply the one duplicate policy to a registration that would cover another.

    Raises
    ------
    DuplicateError
        If something is in force and ``allow_override`` is false.
    """
    if previous is None:
        return
    if not allow_override:
        raise DuplicateError(
            layout(
                f"{what} is already registered",
                registered=previous,
                got=f"a second one at {source}",
                fix=fix,
            )
        )
    if file_of(previous) != file_of(source):
        warnings.warn(
            OverrideWarning(f"{what} registered at {previous} is replaced by the one at {source}"),
            stacklevel=caller()[1],
        )
