"""Calls of an author's code, in which whatever is raised is a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def attempt(function: Callable[..., T], *args: Any, **kwargs: Any) -> tuple[T | None, Exception | None]:
    """Run an author's code, and return what it returned and what it raised."""
    try:
        return function(*args, **kwargs), None
    except Exception as error:  # noqa: BLE001  (whatever it raises is a result here)
        return None, error
