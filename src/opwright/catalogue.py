"""Frameworks as data: packages, array classes, annotations, device types, flavours, install lines.

* Nothing here imports a framework: a class is recognised through the modules that are loaded already.
* Classes are compared by identity with what a public path leads to, so that neither a private module
  name (``jax.Array`` calls itself ``jaxlib._jax.Array``) nor a lookalike decides.
* Loaded with the engine, so built on the bare language: no dataclasses, no typing.
* Other distributions add theirs through the entry point group ``opwright.frameworks``, which is read
  once, when something is not known without it.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from weakref import WeakKeyDictionary

from opwright.errors import (
    DuplicateError,
    RegistrationError,
    RegistrationTypeError,
    RegistrationValueError,
    layout,
)
from opwright.framework_info import BUILT_IN as _BUILT_IN
from opwright.framework_info import FrameworkInfo as FrameworkInfo  # noqa: PLC0414  (its public home is here)
from opwright.keys import DEVICE_TYPES
from opwright.lock import Lock, held_over_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from typing import Any, NoReturn

GROUP = "opwright.frameworks"  # entry points that lead to a FrameworkInfo
ARRAY_API = "array_api"  # the flavour of a body that takes any framework's arrays
DLPACK = "dlpack"  # the flavour of a function that takes any array which exports DLPack
_SHARING = ("cpu", "cuda")  # the device types whose memory goes over by DLPack

if TYPE_CHECKING:
    Array = Any
else:

    class Array:
        """Any framework's array, in an annotation: the kernel's flavour is then ``array_api``.

        Type checkers see ``Any``, so that bodies and calls check with every framework's arrays. It has
        no instances and no subclasses.

        Examples
        --------
        >>> def scale(x: Array, factor: float) -> Array:
        ...     return x * factor
        """

        __slots__ = ()
        __module__ = "opwright"

        def __new__(cls) -> NoReturn:
            """Refuse: there are no instances."""
            raise TypeError(
                "opwright.Array stands for any framework's array in an annotation and has no instances; "
                "make an array with the framework itself"
            )

        def __init_subclass__(cls) -> NoReturn:
            raise TypeError(f"opwright.Array is final; annotate with it instead of making {cls.__name__}")


_infos: tuple[FrameworkInfo, ...] = _BUILT_IN  # replaced whole under the lock: readers need none
_lock = held_over_fork(Lock())
_entry_points_read = False
_readers: set[int] = set()
_framework_of: WeakKeyDictionary[type, FrameworkInfo] = WeakKeyDictionary()
_schema_type_of: WeakKeyDictionary[type, tuple[str, str | None]] = WeakKeyDictionary()


def known() -> tuple[FrameworkInfo, ...]:
    """Return the frameworks known so far: the entry points are not read for this."""
    return _infos


def frameworks() -> tuple[FrameworkInfo, ...]:
    """Return every framework: the built-in ones, those of entry points, those registered by hand."""
    _read_entry_points()
    return _infos


def get(name: str) -> FrameworkInfo:
    """Return the framework of a name; a `RegistrationValueError` lists those there are."""
    if not any(info.name == name for info in _infos):
        _read_entry_points()
    for info in _infos:
        if info.name == name:
            return info
    names = ", ".join(info.name for info in _infos)
    raise RegistrationValueError(
        layout(
            f"{name!r} is not a framework",
            expected=f"one of {names}",
            fix=f"install the distribution that adds it through the entry point group {GROUP!r}",
        )
    )


def loaded(info: FrameworkInfo) -> bool:
    """Return whether the framework's package was imported by anyone, to its end."""
    module = sys.modules.get(info.package)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def stop_tracers(function: Any, reason: str) -> None:
    """Let the tracers of Python code that frameworks have stop at a function, and say why."""
    for info in known():
        if info.tracer:
            _, _, stop, why = info.tracer
            setattr(function, stop, True)
            setattr(function, why, reason)


def flavours() -> tuple[str, ...]:
    """Return every flavour that a kernel can have."""
    return ARRAY_API, DLPACK, *(flavour for info in frameworks() for flavour in info.flavours)


def device_types() -> frozenset[str]:
    """Return the device types that frameworks say they live on."""
    return frozenset(device for info in _infos for device in info.device_types or ())


def known_device_types() -> tuple[str, ...]:
    """Return the device types that torch has a dispatch key for, and those that frameworks live on."""
    return tuple(sorted(device_types().union(DEVICE_TYPES)))


def sharing(device_type: str) -> tuple[str, ...]:
    """Return the flavours that take each other's arrays on a device type without a copy, best first."""
    found = [flavour for info in _infos if device_type in info.shares for flavour in info.flavours]
    return (*found, DLPACK) if device_type in _SHARING else tuple(found)


def lives_on(flavour: str, device_type: str) -> bool:
    """Return whether arrays of a flavour can be on a device type; those of no framework always can."""
    if flavour in (ARRAY_API, DLPACK):
        return True
    for info in frameworks():
        if flavour in info.flavours:
            return info.device_types is None or device_type in info.device_types
    return False


def framework_of_class(cls: type) -> FrameworkInfo | None:
    """Return the framework whose array class, or a subclass of it, this is, or None. Imports no framework."""
    info = _framework_of.get(cls)
    if info is None:
        known = _infos
        info = _find_framework(cls)
        if info is None and cls.__module__ != "builtins":
            _read_entry_points()
            info = None if _infos is known else _find_framework(cls)
        if info is not None:
            _framework_of[cls] = info
    return info


def taken_over(cls: type) -> FrameworkInfo | None:
    """Return the framework whose functions instances of a class that is no array take over, or None."""
    for info in _infos:
        if info.protocol and loaded(info) and hasattr(cls, info.protocol):
            return info
    return None


def framework_of_value(value: object) -> FrameworkInfo | None:
    """Return the framework of an array, or of a dtype, device or layout object, or None."""
    # A dtype may be a class: numpy.float32 is one of its scalars', jax.numpy.float32 an object of another's.
    classes = (value, type(value)) if isinstance(value, type) else (type(value),)
    for info in _infos:
        if loaded(info) and any(_descends(cls, *path[:2]) for cls in classes for path in info.types):
            return info
    return framework_of_class(classes[0])


def schema_type_of_class(cls: type) -> tuple[str, str | None] | None:
    """Return the schema type that an annotation's class means, and its flavour where that is ``Tensor``.

    None where it means nothing to any framework. Imports no framework.
    """
    meaning = _schema_type_of.get(cls)
    if meaning is None:
        known = _infos
        meaning = _find_schema_type(cls)
        if meaning is None and cls.__module__ != "builtins":
            _read_entry_points()
            meaning = None if _infos is known else _find_schema_type(cls)
        if meaning is not None:
            _schema_type_of[cls] = meaning
    return meaning


def opaque_class(name: str) -> tuple[type, bool] | None:
    """Return the class that a loaded framework knows by a dotted schema type, and whether it is constant.

    None where none has one of that name.
    """
    for cls, entry in _opaque_classes():
        if entry.class_name == name:
            return cls, entry.opaque_typ in ("value", "constant")  # so called from torch 2.14 on
    return None


def _opaque_classes() -> list[tuple[type, Any]]:
    """Return the opaque classes that loaded frameworks know, each with what is known of it."""
    tables = [_lookup(*info.opaque) for info in _infos if info.opaque[0] and loaded(info)]
    pairs = [pair for table in tables for pair in list(getattr(table, "items", tuple)())]
    return [(cls, entry) for cls, entry in pairs if hasattr(entry, "opaque_typ")]


def register(info: FrameworkInfo) -> None:
    """Add a framework; a `DuplicateError` where another one has its name or one of its flavours."""
    global _infos
    if not isinstance(info, FrameworkInfo):
        raise RegistrationTypeError(
            layout(
                "a framework is described by a FrameworkInfo", got=f"{info!r} of type {type(info).__name__}"
            )
        )
    with _lock:
        if info in _infos:
            return
        for other in _infos:
            taken = {other.name, *other.flavours} & {info.name, *info.flavours}
            if taken:
                raise DuplicateError(
                    layout(
                        f"a framework named {min(taken)!r} is already registered",
                        got=f"{other.module} and {info.module}",
                        fix="give the new one a name and flavours of its own",
                    )
                )
        _infos = (*_infos, info)


def _lookup(module: str, qualname: str) -> object:
    """What a public path leads to in the modules that are loaded, or None."""
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        # vars() where possible: a lazy module's __getattr__ may import.
        found = getattr(found, "__dict__", {}).get(part)
    return found


def _find_framework(cls: type) -> FrameworkInfo | None:
    # The nearest base decides: JAX has arrays of its own that are a subclass of NumPy's.
    for base in cls.__mro__:
        for info in _infos:
            if loaded(info) and any(base is _lookup(*path) for path in info.array_classes):
                return info
    return None


def _find_schema_type(cls: type) -> tuple[str, str | None] | None:
    if cls is Array:
        return "Tensor", ARRAY_API
    for info in _infos:
        if loaded(info):
            for module, qualname, flavour in info.annotations:
                if cls is _lookup(module, qualname):
                    return "Tensor", flavour
            for module, qualname, name in info.types:
                if _descends(cls, module, qualname):
                    return name, None
    opaque = dict(_opaque_classes())
    for base in cls.__mro__:
        if base in opaque:
            return opaque[base].class_name, None
    return None


def _descends(cls: type, module: str, qualname: str) -> bool:
    """Whether a class is, or inherits from, the one that a public path leads to."""
    target = _lookup(module, qualname)
    # Identity along the MRO, not issubclass: an abstract class would run code of its own.
    return any(base is target for base in cls.__mro__)


def _read_entry_points() -> None:
    """Register what other distributions offer."""
    global _entry_points_read
    thread = get_ident()
    if _entry_points_read or thread in _readers:
        return
    # No lock is held while they load: another thread may be importing the same module. A second thread
    # that comes here meanwhile loads the same objects, which is harmless; the same thread, coming back
    # because a distribution defines operators while it loads, does not.
    _readers.add(thread)
    try:
        from importlib.metadata import entry_points

        for entry_point in entry_points(group=GROUP):
            _register_entry_point(entry_point)
        _entry_points_read = True
    finally:
        _readers.discard(thread)


def _register_entry_point(entry_point: EntryPoint) -> None:
    try:
        register(entry_point.load())
    except Exception as error:
        distribution = entry_point.dist.name if entry_point.dist is not None else "an unknown distribution"
        raise RegistrationError(
            layout(
                f"the framework {entry_point.name!r} of distribution {distribution!r} cannot be added",
                expected=f"entry point {entry_point.value!r} of group {GROUP!r} leads to a FrameworkInfo",
                got=f"{type(error).__name__}: {error}",
                fix=f"update or uninstall {distribution!r}",
            )
        ) from error
