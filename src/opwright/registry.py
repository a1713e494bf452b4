"""Names, registrations and their handles, and what waits for its operator.

* Describe, validate, commit: a commit changes a record and tells the listeners under one lock; where a
  listener raises, the change is undone.
* Readers take no lock: what they look up is replaced whole, in single steps.
"""

from __future__ import annotations

import warnings
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from opwright.duplicates import check_override
from opwright.errors import RegistrationError, StaleError, layout
from opwright.lock import Lock, held_over_fork
from opwright.source import caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opwright.overload import Kernel, OpOverload
    from opwright.rules.base import Rule


class PendingWarning(UserWarning):
    """A registration that waited for its operator does not fit it and was dropped."""


lock = held_over_fork(Lock())

records: dict[str, OpOverload] = {}
"""Every live record by ``ns::name.overload``, ``default`` spelled out."""

_packets: dict[str, tuple[OpOverload, ...]] = {}
"""The live records by ``ns::name``, in definition order; one that is redefined keeps its place."""

pending: dict[str, tuple[Pending, ...]] = {}
"""Registrations that wait for their operator, by ``ns::name.overload``."""

fallbacks: dict[tuple[str, str], tuple[Kernel, ...]] = {}
"""Fallback kernels by namespace (``_`` for all) and dispatch key, newest last."""

listeners: list[Callable[[str, OpOverload, Any], None]] = []
"""Called with an event (``define``, ``undefine``, ``add``, ``remove``, ``enable``), the record, the item."""


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
        if callable(fn) and hasattr(fn, "__dict__"):
            update_wrapper(self, fn, updated=())
        self._fn = fn
        self._undo: Callable[[], None] | None = undo
        self.source = source

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
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


def run_all(actions: Iterable[Callable[[], None]]) -> None:
    """Run every action, whichever of them raise; then raise the first error, with the others as notes."""
    first: BaseException | None = None
    for action in actions:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  (raised below, once the rest is done)
            if first is None:
                first = error
            else:
                first.add_note(f"then, while undoing the rest: {type(error).__name__}: {error}")
    if first is not None:
        raise first


class undone_on_error:  # noqa: N801  (a context manager, as contextlib's own are named)
    """Call ``undo`` where the block raises; what ``undo`` itself raises becomes a note of that error."""

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            return
        try:
            self._undo()
        except Exception as second:  # noqa: BLE001  (the caller needs the first)
            error.add_note(f"undoing it raised too: {type(second).__name__}: {second}")


def overloads_of(name: str) -> tuple[OpOverload, ...]:
    """Return the live overloads of ``ns::name``, in definition order."""
    return _packets.get(name, ())


def _enter(record: OpOverload) -> None:
    """Put a record under its names, in the place of one that has them."""
    previous = records.get(record.key)
    siblings = _packets.get(record.name, ())
    if previous in siblings:
        _packets[record.name] = tuple(record if one is previous else one for one in siblings)
    else:
        _packets[record.name] = (*siblings, record)
    records[record.key] = record


def _leave(record: OpOverload) -> None:
    """Take a record from under its names."""
    del records[record.key]
    left = tuple(one for one in _packets[record.name] if one is not record)
    if left:
        _packets[record.name] = left
    else:
        del _packets[record.name]


def define(record: OpOverload, *, replace: bool) -> None:
    """Commit a new record, and what waited for it.

    Raises
    ------
    DuplicateError
        If the name is taken and ``replace`` is false.
    """
    with lock:
        previous = records.get(record.key)
        if previous is not None:
            check_override(
                f"operator {record.qualname}",
                previous.source,
                record.source,
                allow_override=replace,
                fix="destroy the Library that holds the first, or choose another name or overload",
            )
        waiting = pending.pop(record.key, ())

        def undo() -> None:
            if waiting:
                pending[record.key] = waiting
            for entry in waiting:
                entry.handle = None
            record.stale = "was never defined: its definition failed"
            steps = [lambda: notify("undefine", record)]
            if previous is None:
                _leave(record)
            else:
                previous.stale = None
                _enter(previous)
                steps.append(lambda: notify("define", previous))
            run_all(steps)

        _enter(record)
        with undone_on_error(undo):
            if previous is not None:
                _retire(previous, f"was redefined at {record.source}")
            _find_fallbacks(record)
            notify("define", record)
            _resolve(waiting, record)


def undefine(record: OpOverload, source: str) -> None:
    """Remove a record; handles of it say where it was unregistered. A second call does nothing."""
    with lock:
        if records.get(record.key) is record:
            _leave(record)
            _retire(record, f"was unregistered at {source}")


def _retire(record: OpOverload, reason: str) -> None:
    record.stale = reason
    notify("undefine", record)


def _resolve(waiting: Iterable[Pending], record: OpOverload) -> None:
    """Make the registrations that waited for a record; warn of those that do not fit it."""
    for entry in waiting:
        try:
            entry.handle = entry.apply(record)
        except RegistrationError as error:
            warnings.warn(
                PendingWarning(f"{entry.what} registered at {entry.source} was dropped: {error}"),
                stacklevel=caller()[1],
            )


def adopt(record: OpOverload) -> None:
    """Make what waited for a record that a framework's own dispatcher holds."""
    with lock:
        _resolve(pending.pop(record.key, ()), record)


def add_or_wait(key: str, entry: Pending, fn: Any) -> Handle:
    """Make a registration now, or once its operator is defined."""
    with lock:
        record = records.get(key)
        if record is not None:
            return entry.apply(record)
        pending[key] = (*pending.get(key, ()), entry)

    def undo() -> None:
        if entry.handle is not None:
            entry.handle.destroy()
            return
        left = tuple(one for one in pending.get(key, ()) if one is not entry)
        if left:
            pending[key] = left
        else:
            pending.pop(key, None)

    return Handle(fn, undo, entry.source)


def require_live(record: OpOverload) -> None:
    """Raise where the record was redefined or removed.

    Raises
    ------
    StaleError
        If it is stale; the message says since where.
    """
    if record.stale is not None:
        place = record.name.replace("::", ".")
        raise StaleError(
            layout(
                f"operator {record.qualname} {record.stale}; this handle is stale",
                registered=record.source,
                fix=f"take the operator anew, from opwright.ops.{place} or its module",
            )
        )


def group(fn: Any, handles: list[Handle], source: str) -> Handle:
    """Return one handle for several registrations of one function."""
    return Handle(fn, lambda: run_all([handle.destroy for handle in reversed(handles)]), source)


def _add(record: OpOverload, field: str, item: Any, fn: Any) -> Handle:
    """Put a kernel or rule on top of a record's; the handle takes it away again."""

    def undo() -> None:
        items = getattr(record, field)
        if item in items:
            setattr(record, field, tuple(one for one in items if one is not item))
            notify("remove", record, item)

    setattr(record, field, (*getattr(record, field), item))
    with undone_on_error(undo):
        notify("add", record, item)
    return Handle(fn, undo, item.source)


def add_kernel(record: OpOverload, kernel: Kernel, *, allow_override: bool = True) -> Handle:
    """Commit a kernel; the handle removes it again."""
    with lock:
        require_live(record)
        previous = record.kernel(kernel.key, kernel.flavour)
        what = f"kernel of {record.qualname} for {kernel.key}"
        source = None if previous is None else previous.source
        check_override(what, source, kernel.source, allow_override=allow_override)
        return _add(record, "kernels", kernel, kernel.fn)


def add_rule(record: OpOverload, rule: Rule, fn: Any, *, allow_override: bool = True) -> Handle:
    """Commit a rule; the handle removes it again."""
    with lock:
        require_live(record)
        previous = record.rule(rule.kind, rule.slot)
        what = f"{rule.kind} rule of {record.qualname}"
        source = None if previous is None else previous.source
        check_override(what, source, rule.source, allow_override=allow_override)
        return _add(record, "rules", rule, fn)


def add_fallback(namespace: str, kernel: Kernel) -> Handle:
    """Commit a fallback kernel for a namespace (``_`` for all) and key; the handle removes it again."""
    slot = (namespace, kernel.key)

    def tell(event: str) -> None:
        for record in list(records.values()):
            if namespace in ("_", record.name.partition("::")[0]):
                _find_fallbacks(record)
                notify(event, record, kernel)

    def undo() -> None:
        left = tuple(one for one in fallbacks.get(slot, ()) if one is not kernel)
        if left:
            fallbacks[slot] = left
        else:
            fallbacks.pop(slot, None)
        tell("remove")

    with lock:
        fallbacks[slot] = (*fallbacks.get(slot, ()), kernel)
        with undone_on_error(undo):
            tell("add")
        return Handle(kernel.fn, undo, kernel.source)


def _find_fallbacks(record: OpOverload) -> None:
    """Give a record the fallback kernels in force; one for its namespace goes before one for all."""
    namespace = record.name.partition("::")[0]
    found = {key: kernels[-1] for (ns, key), kernels in fallbacks.items() if ns == "_"}
    found |= {key: kernels[-1] for (ns, key), kernels in fallbacks.items() if ns == namespace}
    record.fallbacks = found


def set_enabled(record: OpOverload, kernels: list[Kernel], enabled: list[bool]) -> None:
    """Turn each kernel on or off."""

    def put(states: list[bool]) -> None:
        for kernel, state in zip(kernels, states, strict=True):
            kernel.enabled = state
        notify("enable", record)

    with lock:
        before = [kernel.enabled for kernel in kernels]
        with undone_on_error(lambda: put(before)):
            put(enabled)
