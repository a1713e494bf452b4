"""``get_ctx``: what the fake that is running may ask for.

Whoever runs a fake enters its own context: a ``FakeContextBase`` with ``new_dynamic_size`` and
``empty(shape, *, dtype, device)``, which ``opwright.empty`` calls where there is no array to be like.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opwright.errors import ArgumentValueError, ContextError, layout
from opwright.lock import Lock, held_over_fork

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTERED: list[int] = [0]
"""How many fakes are running in this process, in all threads together: a tracer reads this, no ContextVar."""

_count_lock = held_over_fork(Lock())
_ctx: ContextVar[Any] = ContextVar("opwright_fake_ctx", default=None)
_computing: ContextVar[str] = ContextVar("opwright_fake_computing", default="")


def current_ctx() -> Any:
    """Return the context of the fake that is running, or None."""
    return _ctx.get() if ENTERED[0] else None


def computing() -> str:
    """Return the framework that the kernel computes with whose fake is running, or an empty string."""
    return _computing.get() if ENTERED[0] else ""


def check_bounds(low: Any, high: Any) -> None:
    """Check the bounds of a size that depends on data.

    Raises
    ------
    ArgumentValueError
        If one is symbolic or negative, or they are in the wrong order.
    """
    for name, bound in (("min", low), ("max", high)):
        if bound is not None and not isinstance(bound, int):
            raise ArgumentValueError(
                layout(
                    f"new_dynamic_size: {name} must be a plain int, not a symbolic size",
                    got=f"{bound} of type {type(bound).__name__}",
                )
            )
    if low is not None and low < 0:
        raise ArgumentValueError(layout("new_dynamic_size: min must not be negative", got=str(low)))
    if high is not None and high < (low or 0):
        raise ArgumentValueError(
            layout("new_dynamic_size: max must not be below min", got=f"min={low}, max={high}")
        )


class FakeContextBase:
    """What every context has beside the sizes that it makes."""

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:  # noqa: A002  (torch's names)
        """Return a size that depends on data."""
        raise NotImplementedError

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> Any:  # noqa: A002  (the same)
        """Return a size that depends on data, of two at least. The name that torch had before."""
        import warnings

        warnings.warn(
            "create_unbacked_symint is deprecated; use new_dynamic_size, whose min is 0 where none is given",
            FutureWarning,
            stacklevel=2,
        )
        return self.new_dynamic_size(min=min, max=max)


@contextmanager
def entered_ctx(ctx: Any, framework: str = "") -> Iterator[None]:
    """Let ``get_ctx()`` return ``ctx`` for the duration of a fake, whose kernel computes with a framework."""
    token, other = _ctx.set(ctx), _computing.set(framework)
    with _count_lock:
        ENTERED[0] += 1
    try:
        yield
    finally:
        with _count_lock:
            ENTERED[0] -= 1
        _ctx.reset(token)
        _computing.reset(other)


def get_ctx() -> Any:
    """Return the context of the fake that is running; its ``new_dynamic_size()`` depends on data.

    Raises
    ------
    ContextError
        If no fake is running.
    """
    ctx = current_ctx()
    if ctx is None:
        raise ContextError(
            layout(
                "get_ctx() can only be called inside a fake",
                got="a call while no fake is running",
                fix="call it in the function that register_fake was given",
            )
        )
    return ctx
