"""Taking libraries out of torch's dispatcher while other threads may be calling what they hold.

* A call holds no reference to what it enters: it may be waiting for the interpreter's lock inside torch, in
  front of a kernel of Python's. So kernels that are taken out live on for a while where there are threads.
* Torch frees an operator with its last registration, though overload objects of it may still be called. So
  one registration stays for each name that was taken out, at a key where it stands for nothing, until the
  name is defined again.
* A call looks its kernel up without any lock. So a new definition covers the kernels of the old one before
  these go, and has the old one's schema where they are alike: nothing is ever half there.
* A call that waits reads the schema once more when it goes on. So a name that gets another schema gets it
  only after such calls have had the time to go on; kernels are gone by then, and no further one comes.
* Without other threads nothing is kept, and nothing waits.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from opwright.frameworks.torch import private, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 60.0
"""How long a kernel lives on: by far more than a thread waits for the interpreter's lock."""

_NOWHERE = "AutocastXLA"
"""A key at which torch skips every operator anyhow."""

_SEEN_AT = {
    "CompositeExplicitAutograd": ("CPU", "CUDA", "PrivateUse3"),
    "CompositeImplicitAutograd": ("CPU", "CUDA", "AutogradCPU", "PrivateUse3"),
    "Autograd": ("AutogradCPU", "AutogradCUDA", "AutogradPrivateUse3"),
}
"""Where kernels of keys that stand for several are found."""

_TURNS = 4
"""How often each thread could have had the interpreter's lock before a name gets another schema."""

_kept: deque[tuple[float, list[Any]]] = deque()
_names: dict[str, torch.library.Library] = {}
_schemas: dict[str, str] = {}
"""The last schema of a name that was taken out."""


class Parked(NamedTuple):
    """What there is in torch of an operator that is being redefined."""

    definition: tuple[str, tuple[Any, ...]]
    fragment: torch.library.Library
    kernels: list[torch.library.Library]


_parked: dict[str, Parked] = {}


def park(
    qualname: str,
    definition: tuple[str, tuple[Any, ...]],
    fragment: torch.library.Library,
    kernels: list[torch.library.Library],
) -> bool:
    """Leave an operator in torch until it is taken over; return whether there are threads to do so for."""
    if threading.active_count() == 1:
        return False
    _parked[qualname] = Parked(definition, fragment, kernels)
    return True


def take_over(qualname: str, definition: tuple[str, tuple[Any, ...]]) -> Parked | None:
    """Return what was parked under a name with the same definition; destroy what had another."""
    parked = _parked.pop(qualname, None)
    if parked is None or parked.definition == definition:
        return parked
    undefine(qualname, parked.definition[0], parked.fragment)
    for library in parked.kernels:
        destroy(library)
    return None


@contextmanager
def covered(parked: Parked | None) -> Iterator[None]:
    """Cover the kernels of a parked operator in a block; they go after it."""
    if parked is None:
        yield
        return
    try:
        with warnings.catch_warnings():
            # Torch warns once a process of any kernel that covers another.
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            yield
    finally:
        for library in parked.kernels:
            destroy(library)


def undefine(qualname: str, signature: str, fragment: torch.library.Library) -> None:
    """Take a definition out, so that no further call comes, and let those that run go on a little."""
    destroy(fragment)
    if threading.active_count() > 1:
        _schemas[qualname] = signature
        time.sleep(0.001)


def destroy(library: torch.library.Library) -> None:
    """Destroy a library: its kernels and operators are gone from the dispatcher."""
    now = time.monotonic()
    if threading.active_count() == 1:
        _kept.clear()
    else:
        while _kept and now - _kept[0][0] > _SECONDS:
            _kept.popleft()
        slots = list(_slots(library))
        _kept.append((now, [_kernel_at(name, key) for name, key in slots]))
        for name in {name for name, _ in slots}:
            _keep_name(name)
    private.destroy(library)


def wait_for_calls(qualname: str, signature: str) -> None:
    """Let calls of an operator that had this name before go on, and torch forget what it kept of it.

    Modes are called with the overload object that torch keeps with its entry: with an entry that stays, they
    would get the old one, with the old schema.
    """
    kept = _names.pop(qualname, None)
    changes = _schemas.pop(qualname, signature) != signature or kept is not None
    if changes and threading.active_count() > 1:
        time.sleep(_TURNS * threading.active_count() * sys.getswitchinterval())
    if kept is not None:
        private.destroy(kept)


def _slots(library: torch.library.Library) -> Iterator[tuple[str, str]]:
    """Yield the qualified name and a runtime key of each kernel of a library."""
    for entry in private.registrations(library):
        namespace, name, key = entry.split("/")
        for one in _SEEN_AT.get(key, (key,)):
            yield f"{namespace}::{name}", one


def _kernel_at(qualname: str, key: str) -> Any:
    """Return the kernel that torch calls at a runtime key, alive while it is held; None for none."""
    try:
        return private.computed_kernel(qualname, key)
    except RuntimeError:
        return None


def _keep_name(qualname: str) -> None:
    """Let torch keep its entry of an operator from now on, whether it is defined or not."""
    if qualname not in _names:
        namespace, _, name = qualname.partition("::")
        library = _names[qualname] = torch.library.Library(namespace, "IMPL")
        watched.impl(library, name, torch.library.fallthrough_kernel, _NOWHERE)
