"""Names, the lock, registrations and their handles, the duplicate policy, and what waits for its operator.

* Describe, validate, commit: ``commit`` changes a record and tells the listeners under one lock; where a
  listener raises, the change is undone.
* Readers take no lock: records are looked up in dictionaries that only grow or shrink by single steps.
* The lock is held across ``fork`` by the forking thread alone, and is new in the child.
"""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any

from opwright.errors import DuplicateError, RegistrationError, StaleError, layout
from opwright.source import caller, file_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opwright.overload import Kernel, OpOverload
    from opwright.rules.base import Rule


class OverrideWarning(UserWarning):
    """A registration replaces one that was made in another source file."""


class PendingWarning(UserWarning):
    """A registration that waited for its operator does not fit it and was dropped."""


lock = threading.RLock()

records: dict[str, OpOverload] = {}
"""Every live record by ``ns::name.overload``, ``default`` spelled out; in definition order."""

pending: dict[str, list[Pending]] = {}
"""Registrations that wait for their operator, by ``ns::name.overload``."""

fallbacks: dict[tuple[str, str], tuple[Kernel, ...]] = {}
"""Fallback kernels by namespace (``_`` for all) and dispatch key, newest last."""

listeners: list[Callable[[str, OpOverload, Any], None]] = []
"""Called with an event (``define``, ``undefine``, ``add``, ``remove``, ``enable``), the record, the item."""


def _hold() -> None:
    lock.acquire()


def _release() -> None:
    lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)


class Pending:
    """A registration that waits for its operator: ``apply`` makes it, once the record exists."""

    __slots__ = ("apply", "handle", "source", "what")

    def __init__(self, what: str, source: str, apply: Callable[[OpOverload], Handle]) -> None:
        self.what = what
        self.source = source
        self.apply = apply
        self.handle: Handle | None = None


class Handle:
    """A registration: call it as the function that was registered, ``destroy()`` it to undo it.

    Parameters
    ----------
    fn
        The registered function.
    undo
        Undoes the registration; called at most once.
    source
        ``file:line`` of the registration.
    """

    def __init__(self, fn: Any, undo: Callable[[], None], source: str) -> None:
        self._fn = fn
        self._undo: Callable[[], None] | None = undo
        self.source = source
        if callable(fn) and hasattr(fn, "__dict__"):
            update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the registered function."""
        return self._fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Handle of {getattr(self._fn, '__name__', self._fn)!s} ({self.source})>"

    @property
    def alive(self) -> bool:
        """Whether the registration is still in place."""
        return self._undo is not None

    def destroy(self) -> None:
        """Undo the registration; what it covered is in force again. A second call does nothing."""
        with lock:
            undo, self._undo = self._undo, None
            if undo is not None:
                undo()


def notify(event: str, record: OpOverload, item: Any = None) -> None:
    """Empty the record's table and tell every listener."""
    record.version += 1
    record.table.clear()
    for listener in listeners:
        listener(event, record, item)


@contextmanager
def _undone_on_error(undo: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        undo()
        raise


def define(record: OpOverload, *, replace: bool) -> None:
    """Commit a new record, and what waited for it.

    Raises
    ------
    DuplicateError
        If the name is taken and ``replace`` is false.
    """
    with lock:
        previous = records.get(record.key)
        if previous is not None and not replace:
            raise DuplicateError(
                layout(
                    f"operator {record.qualname} is already registered",
                    registered=previous.source,
                    got=f"a second definition at {record.source}",
                    fix="destroy the Library that holds the first, or choose another name or overload",
                )
            )
        if previous is not None:
            _retire(previous, f"was redefined at {record.source}")

        def undo() -> None:
            records.pop(record.key, None)
            record.stale = "was not defined: its definition failed"
            if previous is not None:
                previous.stale = None
                records[record.key] = previous
                notify("define", previous)

        records.pop(record.key, None)
        records[record.key] = record
        _find_fallbacks(record)
        with _undone_on_error(undo):
            notify("define", record)
        _resolve_pending(record)


def undefine(record: OpOverload, source: str) -> None:
    """Remove a record; handles of it say where it was unregistered. A second call does nothing."""
    with lock:
        if records.get(record.key) is record:
            del records[record.key]
            _retire(record, f"was unregistered at {source}")


def _retire(record: OpOverload, reason: str) -> None:
    record.stale = reason
    notify("undefine", record)


def _resolve_pending(record: OpOverload) -> None:
    for entry in pending.pop(record.key, ()):
        try:
            entry.handle = entry.apply(record)
        except RegistrationError as error:
            warnings.warn(
                PendingWarning(f"{entry.what} registered at {entry.source} was dropped: {error}"),
                stacklevel=caller()[1],
            )


def wait(key: str, entry: Pending, fn: Any) -> Handle:
    """Let a registration wait for its operator."""
    with lock:
        pending.setdefault(key, []).append(entry)

    def undo() -> None:
        if entry.handle is not None:
            entry.handle.destroy()
        elif entry in pending.get(key, ()):
            pending[key].remove(entry)
            if not pending[key]:
                del pending[key]

    return Handle(fn, undo, entry.source)


def require_live(record: OpOverload) -> None:
    """Raise where the record was redefined or removed.

    Raises
    ------
    StaleError
        If it is stale; the message says since where.
    """
    if record.stale is not None:
        raise StaleError(
            layout(
                f"operator {record.qualname} {record.stale}; this handle is stale",
                registered=record.source,
                fix=f"take the operator anew, from opwright.ops.{record.name.replace('::', '.')} or its module",
            )
        )


def check_override(what: str, previous: str | None, source: str, *, allow_override: bool) -> None:
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
                fix="destroy the first handle or Library, or pass allow_override=True",
            )
        )
    if file_of(previous) != file_of(source):
        warnings.warn(
            OverrideWarning(f"{what} registered at {previous} is replaced by the one at {source}"),
            stacklevel=caller()[1],
        )


def _undo_all(undos: list[Callable[[], None]]) -> Callable[[], None]:
    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo


def group(fn: Any, handles: list[Handle], source: str) -> Handle:
    """Return one handle for several registrations of one function."""
    return Handle(fn, _undo_all([handle.destroy for handle in handles]), source)


def add_kernel(record: OpOverload, kernel: Kernel, *, allow_override: bool = True) -> Handle:
    """Commit a kernel; the handle removes it again."""
    with lock:
        require_live(record)
        previous = record.kernel(kernel.key, kernel.flavour)
        what = f"kernel of {record.qualname} for {kernel.key}"
        check_override(what, previous and previous.source, kernel.source, allow_override=allow_override)

        def undo() -> None:
            kernel.alive = False
            if kernel in record.kernels:
                record.kernels = tuple(k for k in record.kernels if k is not kernel)
                notify("remove", record, kernel)

        record.kernels = (*record.kernels, kernel)
        with _undone_on_error(undo):
            notify("add", record, kernel)
        return Handle(kernel.fn, undo, kernel.source)


def add_rule(record: OpOverload, rule: Rule, fn: Any, *, allow_override: bool = True) -> Handle:
    """Commit a rule; the handle removes it again."""
    with lock:
        require_live(record)
        previous = record.rule(rule.kind, rule.slot)
        what = f"{rule.kind} rule of {record.qualname}"
        check_override(what, previous and previous.source, rule.source, allow_override=allow_override)

        def undo() -> None:
            if rule in record.rules:
                record.rules = tuple(r for r in record.rules if r is not rule)
                notify("remove", record, rule)

        record.rules = (*record.rules, rule)
        with _undone_on_error(undo):
            notify("add", record, rule)
        return Handle(fn, undo, rule.source)


def add_fallback(namespace: str, kernel: Kernel) -> Handle:
    """Commit a fallback kernel for a namespace (``_`` for all) and key; the handle removes it again."""
    slot = (namespace, kernel.key)

    def tell(event: str) -> None:
        for record in list(records.values()):
            if namespace in ("_", record.name.partition("::")[0]):
                _find_fallbacks(record)
                notify(event, record, kernel)

    def undo() -> None:
        kernel.alive = False
        fallbacks[slot] = tuple(k for k in fallbacks.get(slot, ()) if k is not kernel)
        if not fallbacks[slot]:
            del fallbacks[slot]
        tell("remove")

    with lock:
        fallbacks[slot] = (*fallbacks.get(slot, ()), kernel)
        with _undone_on_error(undo):
            tell("add")
        return Handle(kernel.fn, undo, kernel.source)


def _find_fallbacks(record: OpOverload) -> None:
    """Give a record the fallback kernels in force; one for its namespace goes before one for all."""
    namespace = record.name.partition("::")[0]
    found = {key: kernels[-1] for (ns, key), kernels in fallbacks.items() if ns == "_"}
    found |= {key: kernels[-1] for (ns, key), kernels in fallbacks.items() if ns == namespace}
    record.fallbacks = found


def set_enabled(record: OpOverload, kernels: list[Kernel], *, enabled: bool) -> None:
    """Turn kernels on or off."""
    with lock:
        for kernel in kernels:
            kernel.enabled = enabled
        notify("enable", record)


def overloads_of(name: str) -> list[OpOverload]:
    """Return the live overloads of ``ns::name``, in definition order."""
    return [record for record in list(records.values()) if record.name == name]
