"""From what a registration names to a record, a dispatch key and a flavour; one kernel, validated."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opwright import catalogue, registry
from opwright.duplicates import check_override
from opwright.errors import (
    RegistrationError,
    RegistrationTypeError,
    RegistrationValueError,
    TargetError,
    layout,
)
from opwright.frameworks.base import load
from opwright.keys import DEFAULT, DEVICE_TYPES, IMPLICIT, device_of, key_of
from opwright.overload import Kernel, OpOverload, fallthrough_kernel
from opwright.own_defaults import with_own_defaults
from opwright.placement import check_copies, check_lives_on
from opwright.registry import Handle, Pending
from opwright.rules.base import names, require_signature
from opwright.source import caller, code_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opwright.schema import FunctionSchema


_SUSPENDED = 0x20 | 0x80 | 0x200
"""Bits of ``co_flags``: generator, coroutine, asynchronous generator."""


def key_of_name(name: str) -> str:
    """Return ``ns::name.overload`` with ``default`` spelled out, the name checked."""
    from opwright.qualname import parse_qualname

    namespace, base, overload = parse_qualname(name)
    return f"{namespace}::{base}.{overload or 'default'}"


def find(target: Any) -> OpOverload | None:
    """Return the record of a name, an operator, a packet, or a framework's own operator; None if unknown.

    Raises
    ------
    TargetError
        If ``target`` is none of these.
    """
    record = getattr(target, "_record", None)
    if isinstance(record, OpOverload):
        registry.require_live(record)
        return record
    if isinstance(target, str):
        record = registry.records.get(key_of_name(target))
        if record is not None:
            return record
    for info in catalogue.known():
        if catalogue.loaded(info):
            record = load(info.name).lookup(target)
            if record is not None:
                return record
    if isinstance(target, str):
        return None
    raise TargetError(
        layout(
            "not an operator",
            expected="a name such as 'mylib::op', an operator, or an operator of a framework's own",
            got=f"{target!r} of type {type(target).__name__}",
        )
    )


def require(target: Any) -> OpOverload:
    """Return the record of a target.

    Raises
    ------
    RegistrationError
        If there is no such operator; the message lists registrations that wait for it.
    """
    record = find(target)
    if record is not None:
        return record
    waiting = registry.pending.get(key_of_name(target), ())
    raise RegistrationError(
        layout(
            f"operator {target} does not exist",
            got="; ".join(f"{entry.what} waits for it ({entry.source})" for entry in waiting) or None,
            fix="define it first, with opwright.custom_op or Library.define, or import the module that does",
        )
    )


def known_flavour(flavour: str) -> str:
    """Return a flavour that was given by name, or raise where there is none of that name."""
    if flavour not in catalogue.flavours():
        expected = ", ".join(catalogue.flavours())
        raise RegistrationValueError(layout(f"{flavour!r} is not a flavour", expected=expected))
    return flavour


def annotated_flavour_of(fn: Any) -> str | None:
    """Return the flavour that a function's annotations name, or None; most rules have no annotations."""
    if not getattr(fn, "__annotations__", None):
        return None
    from opwright.infer import annotated_flavour

    return annotated_flavour(fn)


def flavour_of(fn: Any, record: OpOverload, explicit: str | None, *, kernel: bool) -> str:
    """Return the flavour of a kernel or rule: given, annotated, or that of the definition.

    Rules of a ``numpy`` definition are ``array_api``: they run on the caller's own arrays.
    """
    if explicit is not None:
        return known_flavour(explicit)
    annotated = annotated_flavour_of(fn)
    if annotated is not None:
        return annotated
    if kernel or record.flavour in ("torch", "jax", "cupy"):
        return record.flavour
    return catalogue.ARRAY_API


def or_wait(target: Any, what: str, fn: Any, apply: Callable[[OpOverload], Handle]) -> Handle:
    """Register now, or once the operator of that name is defined."""
    record = find(target)
    if record is not None:
        return apply(record)
    entry = Pending(f"{what} of {target}", source_of(fn), apply)
    return registry.add_or_wait(key_of_name(target), entry, fn)


def require_library(lib: Any) -> None:
    """Raise where what should own a registration is no Library, or one that was destroyed.

    Raises
    ------
    RegistrationTypeError
        If it is neither a ``Library`` nor None.
    StaleError
        If it was destroyed.
    """
    if lib is None:
        return
    if not hasattr(lib, "require_open"):
        raise RegistrationTypeError(
            layout("lib must be an opwright.Library", got=f"{lib!r} of type {type(lib).__name__}")
        )
    lib.require_open()


def owned_by(lib: Any, register: Callable[[], Handle]) -> Handle:
    """Register, and let a Library own the handle, if one is given."""
    require_library(lib)
    handle = register()
    if lib is not None:
        lib.own(handle)
    return handle


def require_text(what: str, text: Any) -> None:
    """Raise a TypeError where a schema or name is no string."""
    if not isinstance(text, str):
        raise RegistrationTypeError(
            layout(f"{what} must be a string", got=f"{text!r} of type {type(text).__name__}")
        )


def require_callable(what: str, fn: Any) -> None:
    """Raise a TypeError where a registration is given something that cannot be called, or does not return.

    Raises
    ------
    RegistrationTypeError
        If it is no function, or a generator or coroutine function, which returns before it has computed.
    """
    if not callable(fn):
        raise RegistrationTypeError(
            layout(f"{what} must be a function", got=f"{fn!r} of type {type(fn).__name__}")
        )
    code = code_of(fn)
    if code is not None and code.co_flags & _SUSPENDED:
        raise RegistrationTypeError(
            layout(
                f"{what} must be a function that returns",
                got="a generator or coroutine function",
                registered=source_of(fn),
            )
        )


def add_kernel(
    record: OpOverload,
    key: str,
    fn: Callable[..., Any],
    *,
    flavour: str | None = None,
    with_keyset: bool = False,
    allow_override: bool = True,
    copy: bool = False,
) -> Handle:
    """Validate and commit one kernel at a dispatch key."""
    what = f"kernel of {record.qualname} for {key}"
    require_callable(what, fn)
    positional, keyword_only = names(record.schema)
    leading = ["keyset"] if with_keyset else []
    skips = is_fallthrough(fn)
    source = caller()[0] if skips else source_of(fn)
    fn, own = compiled_kernel(fn, record.schema)
    if not skips:
        require_signature(what, fn, [*leading, *positional], keyword_only)
    if key == "Meta":
        _require_not_implicit(record, what, source, "a kernel for meta tensors")
    chosen = flavour_of(fn, record, flavour or own, kernel=True) if _computes(key) else flavour or "torch"
    if copy:
        check_copies(record.schema, what, chosen, key, source)
    else:
        check_lives_on(what, chosen, key, source)
    if not allow_override:
        check_held(record, what, key, source)
    fn = fallthrough_kernel if skips else with_own_defaults(fn, record.schema, leading=len(leading))
    kernel = Kernel(fn, key, chosen, source, with_keyset=with_keyset, copies=copy)
    return registry.add_kernel(record, kernel, allow_override=allow_override)


def compiled_kernel(fn: Any, schema: FunctionSchema) -> tuple[Any, str | None]:
    """Return what runs a kernel, and the flavour that it has by its class, such as a function of numba."""
    if type(fn).__module__.partition(".")[0] not in ("numba", "numpy"):
        return fn, None
    from opwright.kernels.numba import adapt

    return adapt(fn, schema) or (fn, None)


def _computes(key: str) -> bool:
    """Return whether kernels at a key take arrays of any flavour; those at all others are for torch alone."""
    return key in (DEFAULT, IMPLICIT) or device_of(key) is not None


def check_held(record: OpOverload, what: str, slot: str, source: str) -> None:
    """Raise where a registration that may not cover another meets one in the owner's own dispatcher."""
    previous = load(record.owner).held_at(record, slot) if record.owner else None
    check_override(what, previous, source, allow_override=False)


def check_fake(record: OpOverload, source: str, *, allow_override: bool) -> None:
    """Raise where a fake would be passed over, or covers what it may not.

    Raises
    ------
    RegistrationError
        If the operator has a kernel for ``CompositeImplicitAutograd``: it is traced through, so its fake
        would never run. ``DuplicateError`` if overriding was not allowed and there is one, or a kernel for
        meta tensors.
    """
    what = f"fake rule of {record.qualname}"
    _require_not_implicit(record, what, source, "a fake")
    if not allow_override:
        meta = record.kernel("Meta")
        place = None if meta is None else meta.source
        check_override(what, place, source, allow_override=False)
        check_held(record, what, "fake", source)


def _require_not_implicit(record: OpOverload, what: str, source: str, thing: str) -> None:
    """Raise where an operator is traced through, so that what it has for meta tensors would never run."""
    implicit = record.kernel(IMPLICIT)
    place = implicit.source if implicit else None
    if record.owner and place is None:
        place = load(record.owner).held_at(record, IMPLICIT)
    if place is not None:
        raise RegistrationError(
            layout(
                f"{what} was refused: the operator has a kernel for {IMPLICIT} and runs as what that calls, "
                f"so {thing} would never run",
                registered=place,
                got=f"{thing} at {source}",
                fix="register fakes for the operators that it calls",
            )
        )


def is_fallthrough(fn: Any) -> bool:
    """Return whether a kernel is the fallthrough marker, ours or torch's."""
    if fn is fallthrough_kernel:
        return True
    return getattr(fn, "__name__", "") == "fallthrough_kernel" and fn.__module__ == "torch.library"


def warn_of_own_fake(record: OpOverload) -> None:
    """Warn where a fake is registered for an operator whose tag gives it one already."""
    for tag in ("inplace", "out"):
        if tag in record.tags:
            warnings.warn(
                f"{record.qualname} has a fake by its Tag.{tag}; the one that is registered now covers it",
                UserWarning,
                stacklevel=caller()[1],
            )


def require_differentiable(record: OpOverload, fn: Callable[..., Any], what: str) -> None:
    """Raise where an operator's definition rules out a gradient or tangent, which ``fn`` would give.

    Raises
    ------
    RegistrationError
        If the operator is declared non_differentiable, or has the ``out`` tag and ``fn`` is a backward.
    """
    if record.non_differentiable:
        raise RegistrationError(
            layout(
                f"{record.qualname} is declared non_differentiable, so its {what} would never be called",
                got=f"a {what} at {source_of(fn)}",
                registered=record.source,
                fix=f"define it without non_differentiable=True, or register no {what}",
            )
        )
    if "out" in record.tags and what == "backward":
        raise RegistrationError(
            layout(
                f"{record.qualname} has Tag.out: its out arguments are overwritten, so it has no gradient",
                registered=record.source,
                fix="define a functional operator, register its gradient, and let this one call it",
            )
        )


def device_keys(device_types: Any) -> list[str]:
    """Return the dispatch keys of ``None`` (every device), one device type, or several."""
    if device_types is None:
        return [DEFAULT]
    return list(dict.fromkeys(map(_device_key, several("device_types", device_types))))


def several(what: str, names: Any) -> list[Any]:
    """Return one name, or several, as a list; raise where there is none.

    Raises
    ------
    RegistrationTypeError, RegistrationValueError
        If it is no string and no iterable, or empty.
    """
    if not isinstance(names, str | Iterable):
        raise RegistrationTypeError(layout(f"{what} must be a name or several", got=repr(names)))
    found = [names] if isinstance(names, str) else list(names)
    if not found:
        raise RegistrationValueError(layout(f"{what} is empty, so there is nothing to register for"))
    return found


def _device_key(device_type: Any) -> str:
    if not isinstance(device_type, str):
        raise RegistrationTypeError(layout("a device type must be a string", got=repr(device_type)))
    key = key_of(device_type)
    if key is None:
        base = device_type.lower().partition(":")[0]
        raise RegistrationValueError(
            layout(
                f"{device_type!r} is not a device type",
                expected=f"one of {', '.join(DEVICE_TYPES)}",
                fix=f"write {base!r}" if key_of(base) is not None else None,
            )
        )
    return key


@contextmanager
def all_or_none() -> Iterator[list[Handle]]:
    """Collect handles; where the block raises, destroy those made so far."""
    handles: list[Handle] = []

    def undo() -> None:
        registry.run_all([handle.destroy for handle in reversed(handles)])

    with registry.lock, registry.undone_on_error(undo):
        yield handles
