"""Kernels that others put at operators of ours with torch.library: direct calls must not miss them.

* Torch notes every kernel that Python registers in one set, by ``namespace/name/key``. A set that tells of
  what is entered stands in its place, so calls pay nothing.
* Once told of, such an operator is called through torch's dispatcher for good: torch does not say when the
  last kernel of several under one key is gone.
* Kernels of C++ libraries are not noted there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from opwright import registry
from opwright.frameworks.torch import private

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.overload import OpOverload

_UNSEEN = frozenset({"Meta", "Functionalize", "Conjugate", "Negative", "ZeroTensor", "Python", "Tracer"})
_UNSEEN_PREFIXES = ("FuncTorch", "Sparse", "Quantized", "NestedTensor", "AutogradNestedTensor")

covered: dict[str, str] = {}
"""The dispatch key of such a kernel, by the key of a record."""

listeners: list[Callable[[OpOverload], None]] = []
"""Called with the record of an operator that has got the first one."""

_thread = threading.local()


def is_unseen(key: str) -> bool:
    """Return whether a plain call of plain tensors never reaches a kernel at a key, which is no device's."""
    return key in _UNSEEN or key.startswith(_UNSEEN_PREFIXES)


def impl(library: Any, name: str, fn: Any, key: str, *, with_keyset: bool = False) -> None:
    """Put a kernel of our own at a dispatch key of an operator."""
    _thread.own = True
    try:
        library.impl(name, fn, key, with_keyset=with_keyset, allow_override=True)
    finally:
        _thread.own = False


class Registrations(set[str]):
    """Torch's set of kernels, which tells of what is entered.

    Libraries that were made before go on taking their entries out of the set that was there then.
    """

    def __init__(self, before: set[str]) -> None:
        super().__init__(before)
        self._before = before
        self._old = set(before)
        for entry in before:
            told(entry)

    def add(self, entry: str) -> None:
        """Enter a kernel."""
        super().add(entry)
        self._old.discard(entry)
        if not getattr(_thread, "own", False):
            told(entry)

    def __contains__(self, entry: object) -> bool:
        return super().__contains__(entry) and (entry not in self._old or entry in self._before)


def told(entry: str) -> None:
    """Note a kernel that something else has registered, and tell of an operator of ours that has it."""
    namespace, _, rest = entry.partition("/")
    name, _, key = rest.rpartition("/")
    if is_unseen(key):
        return
    place = f"{namespace}::{name}{'' if '.' in name else '.default'}"
    with registry.lock:
        if place in covered:
            return
        covered[place] = key
        record = registry.records.get(place)
        if record is not None and "torch" in record.lowered:
            for listener in listeners:
                listener(record)


def _start() -> str | None:
    """Put the set in its place; return why nothing can be told of in this torch, or None."""
    if not private.watch_registrations(Registrations):
        return "this torch does not say which kernels others register"
    library = torch.library.Library("opwright", "IMPL")
    library.impl("watched", torch.library.fallthrough_kernel, "AutocastXLA")
    private.destroy(library)
    if covered.pop("opwright::watched.default", None) is None:
        return "this torch does not note kernels where it did"
    return None


UNAVAILABLE: str | None = _start()
"""Why every call takes torch's dispatcher in this torch, or None where direct calls are possible."""
