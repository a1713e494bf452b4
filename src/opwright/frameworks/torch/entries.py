"""The guards that an overload has collected, and what a call that one of them takes runs.

* A call leaves a guard behind only where all its tensors are plain and on one device, the thread is in a
  state that is known, and nothing that it mutates is passed twice.
* There are few: newest first, one list for each pattern of list lengths and missing tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from opwright.frameworks.torch import backend, bridged, eager, guards
from opwright.frameworks.torch.bodies import meets_no_gradient
from opwright.keys import IMPLICIT
from opwright.outputs import CHECKED_CALLS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.frameworks.torch.lowered import Lowered
    from opwright.overload import Kernel, OpOverload

MOST_ENTRIES = 8
"""How many guards an overload keeps for one pattern."""

MOST_PATTERNS = 8
"""How many patterns it keeps."""

ADDED_WHEN_FULL = 32
"""Once full, one miss in this many replaces the oldest guard: endless signatures cost little each."""


STRAIGHT, GRAD_OFF, DIFFERENTIATE = 0, 1, 2
"""What a call does where grad mode is on: nothing, turn it off around the kernel, or record the gradient."""


class Entry(NamedTuple):
    """One guard, and what a call that it takes runs."""

    check: guards.Check
    grad: int
    kernel: Callable[..., Any]
    differentiate: Callable[..., Any]
    output: eager.Output


class Entries:
    """The guards of one version of a record.

    Parameters
    ----------
    state
        What torch made of the overload.
    slow
        Gives its call through torch's dispatcher.
    changed
        Called with all entries of the one pattern of an overload whose calls have no other.

    Notes
    -----
    Generated code unpacks an entry at each call, which is faster for a plain tuple than for an ``Entry``.
    """

    def __init__(
        self,
        state: Lowered,
        slow: Callable[[], Callable[..., Any]],
        changed: Callable[[tuple[tuple[Any, ...], ...]], None],
    ) -> None:
        self._state = state
        self._record = record = state.record
        self._version = record.version
        self._slow = slow
        self._changed = changed
        self._autocast = not _has_autocast(record)
        self._reached = False
        self._misses = 0
        self._unchecked = CHECKED_CALLS if record.schema.returns else 0
        self.found: dict[Any, tuple[tuple[Any, ...], ...]] = {}

    def renew(self) -> bool:
        """Belong to the record's present version from now on; return False where a call came first."""
        if self._reached:
            return False
        self._autocast = not _has_autocast(self._record)
        self._version = self._record.version
        return True

    def miss(self, *values: Any) -> Any:
        """Take a call that no guard took, and leave a guard behind where that is safe."""
        self._reached = True
        version = self._version  # read first: a change meanwhile leaves no guard behind
        tensors, pattern = self._look(values)
        if self._may_add(tensors, pattern):
            self._add(tensors, pattern, version)
        return self._slow()(*values)

    def _look(self, values: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the tensors of a call and its pattern of list lengths and missing tensors."""
        tensors: list[Any] = []
        parts: list[Any] = []
        for argument, value in zip(self._record.schema.arguments, values, strict=True):
            if argument.is_tensor_list:
                tensors += value or ()
                parts.append(-1 if value is None else len(value))
            elif argument.has_tensors:
                if argument.is_optional:
                    parts.append(value is None)
                if value is not None:
                    tensors.append(value)
        return tensors, parts[0] if len(parts) == 1 else tuple(parts)

    def _may_add(self, tensors: list[Any], pattern: Any) -> bool:
        """Return whether a guard of these tensors, made now, takes like calls only."""
        mutated = bool(self._record.schema.mutated)
        if not tensors or (mutated and len({id(tensor) for tensor in tensors}) < len(tensors)):
            return False
        known = self.found.get(pattern)
        if len(known) >= MOST_ENTRIES if known else len(self.found) >= MOST_PATTERNS:
            self._misses += 1
            if self._misses % ADDED_WHEN_FULL:
                return False
        device = tensors[0].device
        written = mutated and not torch.is_inference_mode_enabled()
        return (
            guards.thread_is_known(autocast=self._autocast)
            and all(guards.is_plain(tensor) and tensor.device == device for tensor in tensors)
            and not (written and any(tensor.is_inference() for tensor in tensors))
        )

    def _add(self, tensors: list[Any], pattern: Any, version: int) -> None:
        record, device = self._record, tensors[0].device
        kernel = record.select_kernel("torch", device.type)
        if kernel is None or record.version != version:
            return
        grad = self._grad(kernel, any(tensor.requires_grad for tensor in tensors))
        output = backend.output_check(self._state, kernel)
        fn = self._function_of(kernel, tensors)
        if self._unchecked > 0:
            fn = self._checked(fn, output)
        differentiate = self._slow()
        if grad == DIFFERENTIATE and eager.possible(self._state):
            differentiate = eager.make(self._state, fn, output)
        entry = Entry(guards.make_check(tensors), grad, fn, differentiate, output)
        self._store(pattern, (tuple(entry), *self.found.get(pattern, ())[: MOST_ENTRIES - 1]))

    def _store(self, pattern: Any, entries: tuple[tuple[Any, ...], ...]) -> None:
        if pattern not in self.found and len(self.found) >= MOST_PATTERNS:
            self.found.pop(list(self.found)[0], None)  # noqa: RUF015  (other threads may add while an iterator runs)
        self.found[pattern] = entries
        if pattern == ():
            self._changed(entries)

    def _grad(self, kernel: Kernel, needed: bool) -> int:
        """Return what a call does where grad mode is on; ``needed``: a tensor requires a gradient."""
        own = kernel.flavour in eager.OWN_FLAVOURS
        if own and kernel.key == IMPLICIT:
            return STRAIGHT
        if needed:
            return GRAD_OFF if self._record.non_differentiable else DIFFERENTIATE
        # A body that takes other arrays has no use for grad mode.
        return GRAD_OFF if own and not meets_no_gradient(kernel.fn) else STRAIGHT

    def _function_of(self, kernel: Kernel, tensors: list[Any]) -> Callable[..., Any]:
        """Return the function that runs a kernel on tensors like these, called as the author's is."""
        device = tensors[0].device
        if kernel.flavour in eager.OWN_FLAVOURS:
            return _on_device(kernel.fn, device)
        on_host = kernel.flavour == "numpy" and device.type == "cpu"
        direct = bridged.make(self._state, kernel, tensors) if on_host else None
        if direct is not None:
            return direct
        run = backend.make_runner(self._state, device.type)
        names = self._state.names
        if not names:
            return lambda *flat: run(flat)
        return lambda *args, **kwargs: run((*args, *(kwargs[name] for name in names)))

    def _checked(self, fn: Callable[..., Any], output: eager.Output) -> Callable[..., Any]:
        """Return ``fn`` with all that it returns looked at, aliasing too, for the first few calls."""
        names = self._state.names

        def checked(*args: Any, **kwargs: Any) -> Any:
            out = output((*args, *(kwargs[name] for name in names)), fn(*args, **kwargs))
            self._unchecked -= 1
            if self._unchecked <= 0:
                for pattern, entries in list(self.found.items()):
                    self._store(pattern, tuple(self._without_check(Entry(*entry)) for entry in entries))
            return out

        checked.__wrapped__ = fn  # type: ignore[attr-defined]
        return checked

    def _without_check(self, entry: Entry) -> tuple[Any, ...]:
        fn = getattr(entry.kernel, "__wrapped__", entry.kernel)
        differentiate = entry.differentiate
        if differentiate is not self._slow():
            differentiate = eager.make(self._state, fn, entry.output)
        return tuple(entry._replace(kernel=fn, differentiate=differentiate))


def _has_autocast(record: OpOverload) -> bool:
    """Return whether autocast changes what a call of the overload does."""
    keys = [*(kernel.key for kernel in record.kernels), *record.fallbacks]
    return bool(record.rules_of("autocast")) or any(key.startswith("Autocast") for key in keys)


def _on_device(fn: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return ``fn`` with a device made current around it, where there are several of its type."""
    module = getattr(torch, device.type)
    if device.index is None or module.device_count() <= 1:
        return fn
    index = device.index

    def on_device(*args: Any, **kwargs: Any) -> Any:
        if module.current_device() == index:
            return fn(*args, **kwargs)
        with module.device(index):
            return fn(*args, **kwargs)

    return on_device
