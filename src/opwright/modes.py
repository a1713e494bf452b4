"""Modes for frameworks that have none: context variables, and one process-wide count of those entered.

* A warm call reads ``ACTIVE[0]`` only; the context variables are read once it is not zero.
* Modes are per context: a new thread starts clean, though it takes the slower path meanwhile.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ACTIVE: list[int] = [0]
"""How many modes are entered in this process, in all threads together."""

_count_lock = threading.Lock()

MODES: ContextVar[tuple[Any, ...]] = ContextVar("opwright_modes", default=())
"""The modes of this context, outermost first."""


@contextmanager
def entered(mode: Any) -> Iterator[None]:
    """Put ``mode`` on this context's stack for the duration of the block."""
    token = MODES.set((*MODES.get(), mode))
    with _count_lock:
        ACTIVE[0] += 1
    try:
        yield
    finally:
        with _count_lock:
            ACTIVE[0] -= 1
        MODES.reset(token)


@contextmanager
def without(mode: Any) -> Iterator[None]:
    """Hide ``mode`` and what was entered inside it for the duration of the block."""
    stack = MODES.get()
    token = MODES.set(stack[: stack.index(mode)])
    try:
        yield
    finally:
        MODES.reset(token)
