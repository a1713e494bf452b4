"""What authors put at torch's dispatch keys by hand, and fallbacks for operators that have nothing there.

* A kernel of ours for a device runs behind the one kernel for every device; what is named here goes into
  torch's dispatcher as it is: a kernel for any other key, and ``fallthrough_kernel`` for any key.
* Torch takes one fallback a key, for every operator, and holds most keys' itself. A fallback for a
  namespace, or for a key that torch holds, is put at that key of each operator that has nothing there.
* Operators that something else defines after such a fallback do not get it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from opwright import registry
from opwright.frameworks.torch import held, private
from opwright.frameworks.torch.installed import Installed, install, kernel_at
from opwright.keys import DEFAULT, IMPLICIT, device_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.frameworks.torch.lowered import Lowered
    from opwright.overload import Kernel

    Make = Callable[[], Any]
    """Puts something into torch's dispatcher and returns the torch Library that holds it."""

_installed: dict[tuple[str, str], tuple[Kernel, list[Installed]]] = {}
"""The fallback in torch's dispatcher for a namespace and key."""

_global: set[Kernel] = set()
"""Those that torch has taken for every operator."""


def is_backend(kernel: Kernel) -> bool:
    """Return whether a kernel runs behind the one kernel for every device."""
    device = kernel.key in (DEFAULT, IMPLICIT) or device_of(kernel.key) is not None
    return device and not kernel.with_keyset and not kernel.falls_through


def with_authors(state: Lowered, wanted: dict[Any, Make]) -> dict[Any, Make]:
    """Return what must be installed for an operator of ours, with what authors put at its dispatch keys.

    ``wanted`` has what its kernels and rules ask for, by dispatch key, or by a tuple that begins with one; it
    gives way where an author has put something.
    """
    own: dict[Any, Make] = {}
    taken: set[str] = set()
    for kernel in state.record.enabled_kernels():
        if not is_backend(kernel):
            for key in _keys(kernel.key):
                if key not in taken:
                    taken.add(key)
                    own[key, kernel] = partial(_put_kernel, state, key, kernel)
    found = {slot: make for slot, make in wanted.items() if _key_of(slot) not in taken}
    taken |= {_key_of(slot) for slot in found if isinstance(_key_of(slot), str)}
    for kernel in state.record.fallbacks.values():
        if kernel in _global or is_backend(kernel):
            continue
        for key in _keys(kernel.key):
            if key not in taken:
                own[key, kernel] = partial(_put_fallback, state, key, kernel)
    return found | own


def _key_of(slot: Any) -> Any:
    """Return the dispatch key of a slot that may say more, or what else it is for."""
    return slot[0] if isinstance(slot, tuple) else slot


def _keys(key: str) -> list[str]:
    held.require_key(key)
    return held.runtime_keys(key) if key == held.AUTOCAST else [key]


def _put_kernel(state: Lowered, key: str, kernel: Kernel) -> Any:
    return install(state, [key], kernel_at(state, kernel), with_keyset=kernel.with_keyset).library


def _put_fallback(state: Lowered, key: str, kernel: Kernel) -> Any:
    fn = fallback_at(state.record.qualname, kernel, key)
    return install(state, [key], fn, with_keyset=not kernel.falls_through).library


def fallback_at(qualname: str, kernel: Kernel, key: str) -> Callable[..., Any]:
    """Return the function for torch's dispatcher of a fallback at one key of one operator.

    Autocast is off for the operator while its fallback runs: called again, it goes on below.
    """
    if kernel.falls_through:
        fallthrough: Callable[..., Any] = torch.library.fallthrough_kernel
        return fallthrough
    namespace, _, rest = qualname.partition("::")
    name, _, overload = rest.partition(".")
    packets, overload = getattr(torch.ops, namespace), overload or "default"
    excluded = torch.DispatchKeySet(key) if key.startswith(held.AUTOCAST) else None

    def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        leading = (keyset,) if kernel.with_keyset else ()
        op = getattr(getattr(packets, name), overload)
        if excluded is None:
            return kernel.fn(*leading, op, *args, **kwargs)
        with private.exclude_keys(excluded):
            return kernel.fn(*leading, op, *args, **kwargs)

    return call


def sync_fallback(namespace: str, key: str) -> None:
    """Make torch's dispatcher hold the fallback in force for a namespace and key, for operators not ours.

    Raises
    ------
    RegistrationError
        If torch refuses it.
    """
    slot = (namespace, key)
    stack = registry.fallbacks.get(slot, ())
    before = _installed.get(slot)
    if before is not None and before[0] not in stack[-1:]:
        del _installed[slot]
        _global.discard(before[0])
        for part in before[1]:
            part.destroy()
    if stack and slot not in _installed:
        _installed[slot] = (stack[-1], _install(namespace, stack[-1]))


def _install(namespace: str, kernel: Kernel) -> list[Installed]:
    held.require_key(kernel.key)
    if namespace == "_" and kernel.key != held.AUTOCAST:
        part = Installed("_")
        if part.fallback(torch.library.fallthrough_kernel if kernel.falls_through else kernel.fn, kernel):
            _global.add(kernel)
            return [part]
        part.destroy()
    parts: dict[str, Installed] = {}
    try:
        for name in held.names_in(namespace):
            if f"{name}{'' if '.' in name else '.default'}" not in registry.records:
                _install_one(parts, name, kernel)
    except BaseException:
        for part in parts.values():
            part.destroy()
        raise
    return list(parts.values())


def _install_one(parts: dict[str, Installed], qualname: str, kernel: Kernel) -> None:
    """Put a fallback at the keys of an operator of torch's own that have nothing there."""
    namespace, _, name = qualname.partition("::")
    keys = [kernel.key] if kernel.key != held.AUTOCAST else held.runtime_keys(held.AUTOCAST)
    for key in keys:
        if not held.has_kernel(qualname, key):
            part = parts.get(namespace)
            if part is None:
                part = parts[namespace] = Installed(namespace)
            part.impl(name, fallback_at(qualname, kernel, key), [key], with_keyset=not kernel.falls_through)
