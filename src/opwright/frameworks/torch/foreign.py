"""Operators that torch's own dispatcher holds: records for them, so that every ``register_*`` works on them.

* A record is made when an operator is first named, and kept in a table here: the registry holds ours.
* A kernel is put into a torch Library of its own, so that handles are undone in any order: torch's
  dispatcher keeps what a kernel covers, whoever registered it.
* A rule is put into one that holds the newest of its kind; when that goes, the one before is put in again.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from opwright import registry
from opwright.alias_sets import with_named_sets
from opwright.errors import RegistrationError, StaleError, layout
from opwright.frameworks.torch import define, foreign_keys, foreign_rules, held, private
from opwright.frameworks.torch.installed import Installed, install, kernel_at
from opwright.frameworks.torch.lowered import Lowered
from opwright.overload import Kernel, OpOverload
from opwright.source import caller

if TYPE_CHECKING:
    from collections.abc import Hashable

    from opwright.rules.base import Rule

OWNER = "torch"

_records: dict[str, OpOverload] = {}
"""Records of operators of torch's own, by ``ns::name.overload``."""


class Foreign(Lowered):
    """An operator of torch's own, and what was put into its dispatcher for it.

    ``parts`` has an entry for each kernel, and for each kind and slot of a rule.
    """

    __slots__ = ("parts",)

    def __init__(self, record: OpOverload, native: Any) -> None:
        super().__init__(record)
        self.native = native
        self.parts: dict[Hashable, Installed] = {}


def lookup(target: Any) -> OpOverload | None:
    """Return the record of an operator that torch's dispatcher holds, by name or object; ours included.

    Raises
    ------
    RegistrationError
        If torch holds the operator, but not under the unnamed overload.
    """
    native = held.overload_of(target)
    if native is None:
        return None
    name, overload = private.schema_names(native)
    key = f"{name}.{overload or 'default'}"
    with registry.lock:
        ours = registry.records.get(key)
        if ours is not None:
            return ours
        record = _records.get(key)
        if record is not None and record.lowered[OWNER].native is not native:
            _retire(record)
            record = None
        return _make(key, native) if record is None else record


def _make(key: str, native: Any) -> OpOverload:
    from opwright.parse import parse_schema

    schema = with_named_sets(parse_schema(private.schema_text(native)))
    record = OpOverload(
        schema,
        flavour="torch",
        source=held.source_of(native.name()),
        tags=tuple(sorted(tag.name for tag in native.tags)),
        owner=OWNER,
    )
    record.lowered[OWNER] = Foreign(record, native)
    _records[key] = record
    registry.adopt(record)
    return record


def catch_up() -> None:
    """Make the registrations for operators of torch's own that were made before these were there."""
    with registry.lock:
        for key, waiting in list(registry.pending.items()):
            try:
                lookup(key.removesuffix(".default"))
            except RegistrationError as error:
                for entry in waiting:
                    text = f"{entry.what} registered at {entry.source} waits in vain: {error}"
                    warnings.warn(registry.PendingWarning(text), stacklevel=caller()[1])
        for namespace, key in list(registry.fallbacks):
            foreign_keys.sync_fallback(namespace, key)


def _retire(record: OpOverload) -> None:
    """Take back what was registered for an operator that its owner has destroyed or defined again."""
    state: Foreign = record.lowered[OWNER]
    record.stale = "was destroyed or redefined by the torch Library that defined it"
    for part in state.parts.values():
        part.destroy()
    state.parts.clear()
    for inner in state.inner:
        define.detach(inner)


def changed(event: str, record: OpOverload, item: Any) -> None:
    """Carry a change of a record over to torch's dispatcher."""
    state: Foreign = record.lowered[OWNER]
    if isinstance(item, Kernel):
        if event == "add":
            keys = held.concrete_keys(record.qualname, item.key)
            state.parts[item] = install(state, keys, kernel_at(state, item), with_keyset=item.with_keyset)
        elif event == "remove" and item in state.parts:
            state.parts.pop(item).destroy()
    elif event in ("add", "remove"):
        _sync_rule(state, item)


def _sync_rule(state: Foreign, changed_rule: Rule) -> None:
    """Put the rule in force of one kind and slot into torch's dispatcher, in place of another."""
    lower = foreign_rules.LOWER.get(changed_rule.kind)
    if lower is None:
        return
    slot = (changed_rule.kind, changed_rule.slot)
    before = state.parts.pop(slot, None)
    if before is not None:
        before.destroy()
    state.cache = {}
    rule = state.record.rule(*slot)
    if rule is not None:
        state.parts[slot] = lower(state, rule)


def held_at(record: OpOverload, slot: str) -> str | None:
    """Return where torch's dispatcher got what it holds itself at a dispatch key or for a fake; or None."""
    name = record.qualname
    if slot == "fake":
        return held.fake_source(name) or held_at(record, "Meta")
    return held.source_of(name, slot) if held.has_kernel(name, slot) else None


class HeldKernel:
    """A kernel in torch's dispatcher, taken out: it stays the same when another is registered over it."""

    def __init__(self, record: OpOverload, key: str, kernel: Any) -> None:
        self._record = record
        self._key = key
        self._kernel = kernel

    def __repr__(self) -> str:
        return f"<kernel of {self._record.qualname} for {self._key} (torch's own)>"

    def call_boxed(self, dispatch_keys: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel.

        Parameters
        ----------
        dispatch_keys
            The set of dispatch keys that a kernel registered with ``with_keyset=True`` was given; None
            stands for the kernel's own key.

        Raises
        ------
        StaleError
            If the registration that the kernel came from was undone.
        """
        keyset = torch.DispatchKeySet(self._key) if dispatch_keys is None else dispatch_keys
        try:
            return self._kernel.call_boxed(keyset, *args, **kwargs)
        except RuntimeError as error:
            if "has been invalidated" not in str(error):
                raise
            raise StaleError(
                layout(
                    f"the kernel of {self._record.qualname} for {self._key} was invalidated: "
                    "its registration is gone",
                    got=str(error).splitlines()[0],
                    fix="keep the handle or Library that registered it alive",
                )
            ) from None


def get_kernel(record: OpOverload, key: str) -> HeldKernel:
    """Return what torch's dispatcher calls for an operator at a key.

    Raises
    ------
    RegistrationError
        If it has no kernel for the key.
    """
    name = record.qualname
    held.require_key(key)
    try:
        kernel = torch.library.get_kernel(name, key)
        reason = f"a fallthrough: {key} is skipped" if held.is_fallthrough(name, key) else ""
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
    if reason:
        raise RegistrationError(
            layout(
                f"{name} has no kernel for {key} in torch's dispatcher",
                got=reason,
                registered=held.source_of(name),
            )
        )
    return HeldKernel(record, key, kernel)
