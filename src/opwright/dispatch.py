"""On a table miss: which framework the arrays belong to, its specialised callable, stored for the next call.

Says why where it cannot. Also tells frameworks of changes to records, as the registry's listener.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from opwright import catalogue, registry
from opwright.arrays import arrays_of, as_list, not_an_array
from opwright.entry import deciding, key_arguments, table_key
from opwright.errors import ArgumentError, MixedFrameworksError, layout
from opwright.frameworks.base import Framework, ensure_attached, load, loaded
from opwright.registry import Handle
from opwright.source import caller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.catalogue import FrameworkInfo
    from opwright.overload import Kernel, OpOverload


class FrameworkWarning(UserWarning):
    """A framework that is loaded cannot be used, for the reason that the text gives."""


_unusable: set[str] = set()


def unattached() -> None:
    """Do nothing: a call attaches its operator. A framework's tracer runs what attaches all instead."""


def make_miss(record: OpOverload) -> Callable[..., Any]:
    """Return what the generated call function calls where the table has nothing."""
    lists = [index for index, argument in enumerate(record.schema.arguments) if argument.is_tensor_list]

    def take(*values: Any) -> Any:
        if lists:
            values = tuple(as_list(value) if index in lists else value for index, value in enumerate(values))
        return resolve(record, values)(*values)

    def miss(*values: Any) -> Any:
        traced = record.traced  # a framework's tracer reads this too, and goes no further
        if traced is None:
            unattached()
        elif traced[0]():
            return traced[1](*values)
        return take(*values)

    record.miss, record.take = miss, take
    return miss


def resolve(record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
    """Return the specialised callable for a call, and store it in the record's table.

    Raises
    ------
    StaleError, ArgumentError, MixedFrameworksError, NoKernelError
        If the operator is stale, a value is no array, arrays are of two frameworks, or none takes them.
    """
    registry.require_live(record)
    version = record.version
    info = framework_of_call(record, values)
    key = table_key(record.schema, values)
    if isinstance(key, type) and catalogue.framework_of_class(key) not in (info, None):
        # The first array is a constant to the framework of a later one: its class does not tell.
        key = (key, info.name)
        found = record.table.get(key)
        if found is not None:
            return found
    framework = load(info.name)
    ensure_attached(framework, record)
    call = framework.specialise(record, values)
    takes_arrays = any(argument.has_tensors for argument in record.schema.arguments)
    if not takes_arrays or deciding(record.schema, values) is None:
        call = _unless_traced(record, call)
    with registry.lock:
        # A registration meanwhile has emptied the table: what was found is only good for this call.
        if record.version == version and record.stale is None:
            record.table[key] = call
    return call


def _unless_traced(record: OpOverload, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call without arrays, which while a framework's tracer runs is a call in that framework."""

    def untraced(*values: Any) -> Any:
        traced = record.traced
        if traced is not None and traced[0]():
            return traced[1](*values)
        return call(*values)

    return untraced


def framework_of_call(record: OpOverload, values: Sequence[Any]) -> FrameworkInfo:
    """Return the framework that a call's arrays, or else its device or dtype object, belong to."""
    found: dict[str, tuple[FrameworkInfo, str]] = {}
    for argument, value in zip(record.schema.arguments, values, strict=True):
        if argument.has_tensors:
            for name, array in arrays_of(record, argument, value):
                cls = array.__class__
                info = catalogue.framework_of_class(cls) or catalogue.taken_over(cls)
                if info is None:
                    raise not_an_array(record, name, array)
                found.setdefault(info.name, (info, name))
    if len(found) == 1:
        return next(iter(found.values()))[0]
    if found:
        return _one_of(record, found)
    return _without_arrays(record, values)


def _one_of(record: OpOverload, found: dict[str, tuple[FrameworkInfo, str]]) -> FrameworkInfo:
    """Return the framework that takes all the others' arrays as constants, or raise."""
    for name, (info, _) in found.items():
        if set(found) - {name} <= set(info.constants):
            return info
    rows = ", ".join(f"{argument} of {info.name}" for info, argument in found.values())
    raise MixedFrameworksError(
        layout(
            f"{record.qualname} was called with arrays of {len(found)} frameworks",
            expected="arrays of one framework",
            got=rows,
            fix="convert them to one framework first; data is never moved without being asked",
        )
    )


def _without_arrays(record: OpOverload, values: Sequence[Any]) -> FrameworkInfo:
    value = deciding(record.schema, values)
    info = None if value is None else catalogue.framework_of_value(value)
    if info is not None:
        return info
    if record.flavour != catalogue.ARRAY_API:
        for info in catalogue.frameworks():
            if record.flavour in info.flavours:
                return info
    chosen = {argument.name for argument in key_arguments(record.schema)}
    names = (argument.name for argument in record.schema.arguments)
    given = [(n, v) for n, v in zip(names, values, strict=True) if n in chosen and v is not None]
    raise ArgumentError(
        layout(
            f"{record.qualname} was called without arrays, so the framework is not known",
            expected="an array, or a device or dtype object of a framework",
            got=", ".join(f"{name}={value!r}" for name, value in given),
            registered=record.source,
            fix="pass a device or dtype, or annotate the definition with one framework's arrays",
        )
    )


def heard(event: str, record: OpOverload, item: Any) -> None:
    """Tell the frameworks of a change: attach a new record to those in use, pass on all else."""
    if event == "define":
        for framework in in_use():
            ensure_attached(framework, record)
        return
    attached = [framework for framework in loaded() if framework.name in record.lowered]
    try:
        registry.run_all([partial(framework.changed, event, record, item) for framework in attached])
    finally:
        if event == "undefine":
            record.lowered.clear()


def in_use() -> list[Framework]:
    """Return the frameworks whose package is loaded; warn, once, of one that cannot be used."""
    found = []
    for info in catalogue.known():
        if catalogue.loaded(info) and info.name not in _unusable:
            try:
                found.append(load(info.name))
            except Exception as error:  # noqa: BLE001  (its own calls raise; those of other frameworks work)
                _unusable.add(info.name)
                reason = f"{type(error).__name__}: {error}"
                warnings.warn(
                    FrameworkWarning(f"operators cannot be used with {info.name}: {reason}"),
                    stacklevel=caller()[1],
                )
    return found


registry.listeners.append(heard)


def add_fallback(namespace: str, kernel: Kernel) -> Handle:
    """Commit a fallback and tell the frameworks, whose own operators may want it."""

    def tell() -> None:
        tellers = [partial(one.fallback_changed, namespace, kernel.key) for one in loaded()]
        registry.run_all(tellers)

    with registry.lock:
        handle = registry.add_fallback(namespace, kernel)

        def undo() -> None:
            registry.run_all([handle.destroy, tell])

        with registry.undone_on_error(undo):
            tell()
    return Handle(kernel.fn, undo, kernel.source)


def attach(name: str) -> None:
    """Define every operator in a framework's own machinery now, rather than at its first call.

    What waits for an operator that the framework itself has come to hold is registered too.

    Parameters
    ----------
    name
        The framework, such as ``"torch"``.

    Raises
    ------
    RegistrationError
        If the framework is not known or not installed; the message has the line that installs it.
    """
    framework = load(name)
    framework.started()
    with registry.lock:
        for record in list(registry.records.values()):
            ensure_attached(framework, record)


def _tell_tracer(info: FrameworkInfo) -> None:
    """Let a framework's tracer attach operators that were defined before the framework was imported.

    Done by attributes of functions, which a tracer reads: nothing is imported for it. Where one does not
    know them, it stops at ``resolve`` and says what to write.
    """
    instead, constant, stop, why = info.tracer

    def attach_and_trace_again() -> None:
        attach(info.name)
        load(info.name).trace_again()

    setattr(attach_and_trace_again, constant, True)
    setattr(unattached, instead, attach_and_trace_again)
    setattr(resolve, stop, True)
    setattr(
        resolve,
        why,
        f"an operator that was defined before {info.name} was imported is attached by its first call, which "
        f'cannot be traced; write opwright.attach("{info.name}") once, before compiling',
    )


for _info in catalogue.known():
    if _info.tracer:
        _tell_tracer(_info)
