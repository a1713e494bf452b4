"""On a table miss: which framework the arrays belong to, its specialised callable, stored for the next call.

Says why where it cannot. Also tells frameworks of changes to records, as the registry's listener.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import catalogue, registry
from opwright.entry import first_array, forget, key_arguments
from opwright.errors import ArgumentError, MixedFrameworksError, layout
from opwright.frameworks.base import ensure_attached, load, loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.catalogue import FrameworkInfo
    from opwright.overload import OpOverload
    from opwright.schema import Argument


def make_miss(record: OpOverload) -> Callable[..., Any]:
    """Return what the generated call function calls where the table has nothing."""

    def miss(*values: Any) -> Any:
        return resolve(record, values)(*values)

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
    framework = load(framework_of_call(record, values).name)
    ensure_attached(framework, record)
    call = framework.specialise(record, values)
    chosen = {argument.name for argument in key_arguments(record.schema)}
    pairs = zip(record.schema.arguments, values, strict=True)
    key = first_array(value for argument, value in pairs if argument.name in chosen).__class__
    with registry.lock:
        # A registration meanwhile has emptied the table: what was found is only good for this call.
        if record.version == version and record.stale is None:
            record.table[key] = call
    return call


def framework_of_call(record: OpOverload, values: Sequence[Any]) -> FrameworkInfo:
    """Return the framework that a call's arrays, or else its device or dtype object, belong to."""
    found: dict[str, tuple[FrameworkInfo, str]] = {}
    for argument, value in zip(record.schema.arguments, values, strict=True):
        if argument.has_tensors:
            for name, array in _arrays(record, argument, value):
                info = catalogue.framework_of_class(array.__class__)
                if info is None:
                    raise _not_an_array(record, name, array)
                found.setdefault(info.name, (info, name))
    if len(found) == 1:
        return next(iter(found.values()))[0]
    if found:
        return _one_of(record, found)
    return _without_arrays(record, values)


def _arrays(record: OpOverload, argument: Argument, value: Any) -> list[tuple[str, Any]]:
    """Return the arrays of an argument with the names that messages give them."""
    if not argument.is_list:
        if value is None and not argument.is_optional:
            raise _not_an_array(record, argument.name, value)
        return [] if value is None else [(argument.name, value)]
    if value is None and argument.is_optional:
        return []
    if not isinstance(value, list | tuple):
        raise ArgumentError(
            layout(
                f"{record.qualname}: argument {argument.name} must be a list of arrays",
                expected=str(argument.type),
                got=_class_name(value),
            )
        )
    return [(f"{argument.name}[{i}]", array) for i, array in enumerate(value) if array is not None]


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
    for argument, value in zip(record.schema.arguments, values, strict=True):
        if argument.base in ("Device", "ScalarType", "Layout") and value is not None:
            info = catalogue.framework_of_value(value)
            if info is not None:
                return info
    if record.flavour != catalogue.ARRAY_API:
        for info in catalogue.frameworks():
            if record.flavour in info.flavours:
                return info
    raise ArgumentError(
        layout(
            f"{record.qualname} was called without arrays, so the framework is not known",
            expected="an array, or a device or dtype object of a framework",
            registered=record.source,
            fix="pass a device or dtype, or annotate the definition with one framework's arrays",
        )
    )


def _class_name(value: Any) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _not_an_array(record: OpOverload, name: str, value: Any) -> ArgumentError:
    return ArgumentError(
        layout(
            f"{record.qualname}: argument {name} must be an array",
            expected="an array of NumPy, PyTorch, JAX or CuPy",
            got=_class_name(value),
            fix=f"make it one first, for example numpy.asarray({name.partition('[')[0]})",
        )
    )


def heard(event: str, record: OpOverload, item: Any) -> None:
    """Tell the frameworks of a change: attach a new record to those in use, pass on all else."""
    if event == "undefine":
        forget(record.qualname)
    if event == "define":
        for info in catalogue.known():
            if catalogue.loaded(info):
                ensure_attached(load(info.name), record)
        return
    for framework in loaded():
        if framework.name in record.lowered:
            framework.changed(event, record, item)


registry.listeners.append(heard)


def attach(name: str) -> None:
    """Define every operator in a framework's own machinery now, rather than at its first call.

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
    with registry.lock:
        for record in list(registry.records.values()):
            ensure_attached(framework, record)
