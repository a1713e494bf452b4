"""What torch's dispatcher holds: its operators, their kernels and where these were registered, by name.

Torch has no public way to ask, nor to register a fake or a rule for a mode so that it can be taken back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from opwright.errors import RegistrationError, layout
from opwright.frameworks.torch import private
from opwright.keys import IMPLICIT

if TYPE_CHECKING:
    from collections.abc import Callable

AUTOCAST = "Autocast"
AUTOGRAD = "Autograd"

_PACKET: Any = type(torch.ops.aten.sin)
_OVERLOAD: Any = type(torch.ops.aten.sin.default)
_REGISTERED = re.compile(r"registered at (.*?:\d+)")


def overload_of(target: Any) -> Any:
    """Return the overload of a packet, overload, ``CustomOpDef`` or name; None where torch holds none.

    Raises
    ------
    RegistrationError
        If torch holds the operator, but only under other overloads than the unnamed one.
    """
    if isinstance(target, _OVERLOAD):
        return target
    if isinstance(target, _PACKET):
        return _of_packet(target, "default")
    inner = getattr(target, "_opoverload", None)
    if isinstance(inner, _OVERLOAD):
        return inner
    if not isinstance(target, str):
        return None
    namespace, _, rest = target.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return None if packet is None else _of_packet(packet, overload or "default")


def _of_packet(packet: Any, overload: str) -> Any:
    qualname = private.packet_name(packet)
    # Overloads of TorchScript alone, such as those for two numbers, have no place in the dispatcher.
    found = {name: holds(f"{qualname}.{name}".removesuffix(".default")) for name in packet.overloads()}
    if found.get(overload):
        return getattr(packet, overload)
    names = [name for name, there in found.items() if there]
    if overload != "default" or not names:
        return None
    raise RegistrationError(
        layout(
            f"{qualname} has no overload without a name",
            expected="one of " + ", ".join(f"{qualname}.{name}" for name in sorted(names)),
            got=qualname,
        )
    )


def holds(qualname: str) -> bool:
    """Return whether torch's dispatcher holds an operator of this name."""
    name, _, overload = qualname.partition(".")
    try:
        private.dispatcher("_dispatch_find_schema_or_throw")(name, overload)
    except RuntimeError:
        return False
    return True


def names_in(namespace: str) -> list[str]:
    """Return the qualified names of the operators in a namespace, ``_`` for all."""
    names = private.dispatcher("_dispatch_get_all_op_names")()
    return [name for name in names if namespace in ("_", name.partition("::")[0])]


def require_key(key: str) -> None:
    """Raise where this torch has no such dispatch key; ``Autocast`` is read as all of its keys.

    Raises
    ------
    RegistrationError
        Naming the release and the key.
    """
    if key != AUTOCAST and _parse(key) is None:
        raise RegistrationError(layout(f"torch {torch.__version__} has no dispatch key {key}"))


def _parse(key: str) -> Any:
    return private.dispatcher("_parse_dispatch_key")(key)


def is_fallthrough(qualname: str, key: str) -> bool:
    """Return whether the dispatcher goes past a key for an operator."""
    return bool(private.dispatcher("_dispatch_kernel_for_dispatch_key_is_fallthrough")(qualname, key))


def has_kernel(qualname: str, key: str) -> bool:
    """Return whether an operator has a kernel at this very key; false for a key torch does not have."""
    try:
        return bool(private.has_kernel(qualname, key))
    except RuntimeError:
        return False


def runtime_keys(alias: str) -> list[str]:
    """Return the keys that ``Autocast`` or ``Autograd`` stands for."""
    skipped = (alias, f"{alias}Functionality", f"{alias}NestedTensor")
    found = [key for key in private.dispatch_keys() if key.startswith(alias) and key not in skipped]
    return [key for key in found if _parse(key) is not None]


def concrete_keys(qualname: str, key: str) -> list[str]:
    """Return the keys to register at for an operator, so that torch does not pass a kernel over.

    Torch cannot read ``Autocast``. A kernel at ``Autograd`` is never called where the operator has one at
    ``CompositeImplicitAutograd`` and none for the backend.
    """
    require_key(key)
    if key == AUTOCAST or (key == AUTOGRAD and has_kernel(qualname, IMPLICIT)):
        return runtime_keys(key)
    return [key]


def source_of(qualname: str, key: str = "") -> str:
    """Return where torch says that an operator, or its kernel at a key, was registered."""
    for line in str(private.dispatcher("_dispatch_dump")(qualname)).splitlines():
        label, _, rest = line.partition(": ")
        if label.removesuffix("[alias]") == (key or "debug"):
            found = _REGISTERED.search(rest)
            return found[1] if found else rest.strip()
    return "an unknown place in torch"


def fake_source(qualname: str) -> str | None:
    """Return where the fake of an operator in force was registered, or None where torch has none."""
    kernel = private.entry_of(qualname).fake_impl.kernel
    return None if kernel is None else str(kernel.source)


def register_fake(library: Any, qualname: str, fn: Callable[..., Any], source: str) -> Any:
    """Register a fake, and the kernel for meta tensors that torch makes of it; return torch's handle.

    Not by ``torch.library.register_fake``: what it registers for a ``CustomOpDef`` stays for ever, and for
    an operator of a C++ library it wants to be called from the module that this names.
    """
    return private.entry_of(qualname).fake_impl.register(fn, source, lib=library, allow_override=True)


def register_dispatch_rule(qualname: str, cls: type, fn: Callable[..., Any]) -> Any:
    """Register what runs for a mode or tensor subclass; return torch's handle."""
    return private.entry_of(qualname).torch_dispatch_rules.register(cls, fn)


def dispatch_rule(qualname: str, cls: type) -> Any:
    """Return what torch runs for a mode or tensor subclass, or None."""
    return private.entry_of(qualname).torch_dispatch_rules.find(cls)


def formula_source(custom_op: Any) -> str | None:
    """Return where the backward of a ``CustomOpDef`` is, or None where it has none."""
    backward = private.backward_of(custom_op)
    code = getattr(backward, "__code__", None)
    if code is None:
        return None if backward is None else repr(backward)
    return f"{code.co_filename}:{code.co_firstlineno}"
