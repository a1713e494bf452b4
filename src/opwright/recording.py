"""Recording the calls of operators in a program, such as an existing test suite, to check them afterwards.

* Calls of operators are seen, of whatever framework; those that a framework makes itself, in compiled code or
  through its own handle of the operator, and those that the checker makes, are not.
* Arguments are copied at the call. Calls whose arguments have no values (tracers, fakes) are left out, and
  counted; of calls that differ in values alone the first is kept.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from opwright import registry
from opwright.checks.arrays import copied
from opwright.checks.runner import check
from opwright.checks.samples import Sample, bound, given
from opwright.lock import Lock
from opwright.source import caller, is_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opwright.overload import OpOverload
    from opwright.report import Report

DISTINCT = 20
"""How many calls of one operator are kept."""


class Recording:
    """The calls that were made.

    Attributes
    ----------
    calls
        The operator's record and the sample of each call that is kept.
    left_out
        How many calls were left out, by reason.
    """

    def __init__(self, distinct: int = DISTINCT) -> None:
        self.calls: list[tuple[OpOverload, Sample]] = []
        self.left_out: dict[str, int] = {}
        self._distinct = distinct
        self._seen: dict[str, set[Any]] = {}
        self._lock = Lock()

    def note(self, record: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a call, unless one like it is kept."""
        try:
            values = bound(record, args, kwargs)
            sample = given(record, args, kwargs)
            key = tuple(_shape_of(value) for value in [*values, *sample.values])
        except Exception as error:  # noqa: BLE001  (whatever a tracer raises that is asked for its values)
            self._leave_out(f"arguments that cannot be copied ({type(error).__name__})")
            return
        with self._lock:
            seen = self._seen.setdefault(record.key, set())
            if key in seen:
                return
            full = len(seen) >= self._distinct
            if not full:
                seen.add(key)
        if full:
            self._leave_out(f"more than {self._distinct} different calls of one operator")
            return
        own = sample.mapped(lambda _, array: copied(array))
        self.calls.append((record, replace(own, title=f"the call at {caller()[0]}")))

    def take(self) -> list[tuple[OpOverload, Sample]]:
        """Return the calls kept since the last time; calls like them are not kept again."""
        taken, self.calls = self.calls, []
        return taken

    def check(self, **options: Any) -> list[Report]:
        """Check every call that was kept, and return a report for each.

        Parameters
        ----------
        options
            ``level``, ``frameworks``, ``test_utils``, ``rtol`` and ``atol``, as ``opcheck`` takes them.
        """
        reports = []
        for record, sample in self.calls:
            if record.stale is not None:
                self._leave_out("operators that are gone")
            else:
                reports.append(check(record, [sample], **({"test_utils": None} | options)))
        return reports

    def _leave_out(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


@contextmanager
def recording(distinct: int = DISTINCT, *, into: Recording | None = None) -> Iterator[Recording]:
    """Record the calls of operators made inside a ``with`` block.

    Parameters
    ----------
    distinct
        How many different calls of one operator to keep; calls that differ in values alone are one.
    into
        A recording to go on with.

    Yields
    ------
    Recording
        The calls, with ``check()``.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::fourfold", mutates_args=())
    ... def fourfold(x: np.ndarray) -> np.ndarray:
    ...     return 4 * x
    >>> with recording() as calls:
    ...     _ = fourfold(np.ones(3))
    >>> [report.ok for report in calls.check(frameworks="numpy")]
    [True]
    """
    made = into or Recording(distinct)
    patched: list[tuple[type, Any]] = []

    def patch(record: OpOverload) -> None:
        if record.operator is not None:
            cls = type(record.operator)
            patched.append((cls, cls.__call__))
            cls.__call__ = _noted(record, cls.__call__, made)

    def defined(event: str, record: OpOverload, item: Any) -> None:
        if event == "define":
            patch(record)

    with registry.lock:
        for record in list(registry.records.values()):
            patch(record)
        registry.listeners.append(defined)
    try:
        yield made
    finally:
        with registry.lock:
            registry.listeners.remove(defined)
            for cls, call in reversed(patched):
                cls.__call__ = call


def _noted(record: OpOverload, call: Callable[..., Any], made: Recording) -> Any:
    """Return the call function of an operator that notes each call first."""

    @wraps(call)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _compiling() and not is_own(sys._getframe(1)):  # noqa: SLF001  (the documented way to a frame)
            made.note(record, args, kwargs)
        return call(self, *args, **kwargs)

    return noting


def _compiling() -> bool:
    """Return whether torch's compiler is reading this, which would read the notes too."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def _shape_of(value: Any) -> Any:
    """Return what makes a call another one: everything but the values of arrays."""
    if isinstance(value, list | tuple):
        return tuple(map(_shape_of, value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        strides = getattr(value, "strides", None)
        kind = f"{type(value).__module__}.{type(value).__name__}"
        grad = bool(getattr(value, "requires_grad", False))
        return kind, str(value.dtype), tuple(value.shape), strides, grad
    return type(value).__name__, repr(value)
