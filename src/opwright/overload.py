"""The one record of an overload that the engine and every framework share.

* Kernels and rules are tuples that are replaced whole under the registry's lock: readers need no lock.
* The newest registration of a slot is in force; what it covers comes back when it is removed.
* ``table`` maps the class of the first array of a call to its specialised callable.
"""

from __future__ import annotations

from typing import Any

from opwright import catalogue
from opwright.keys import DEFAULT, IMPLICIT, device_of, key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from opwright.rules.base import Rule
    from opwright.schema import FunctionSchema


class Kernel:
    """A function that computes, registered for one dispatch key.

    Parameters
    ----------
    fn
        The author's function, or the engine's fallthrough marker.
    key
        Its dispatch key; ``CompositeExplicitAutograd`` stands for every device.
    flavour
        The arrays that its body takes.
    source
        ``file:line`` of the function.
    with_keyset
        Whether torch hands it the dispatch key set as its first argument.
    """

    __slots__ = ("alive", "enabled", "flavour", "fn", "key", "source", "with_keyset")

    def __init__(
        self, fn: Callable[..., Any], key: str, flavour: str, source: str, *, with_keyset: bool = False
    ) -> None:
        self.fn = fn
        self.key = key
        self.flavour = flavour
        self.source = source
        self.with_keyset = with_keyset
        self.enabled = True
        self.alive = True

    def __repr__(self) -> str:
        return f"<Kernel {self.key} ({self.flavour}, {self.source})>"

    @property
    def slot(self) -> tuple[str, str]:
        """Kernels of one key and flavour cover each other."""
        return self.key, self.flavour

    @property
    def where(self) -> str:
        """The device type it is for, or ``"any device"``, or the key's own name."""
        return device_of(self.key) or ("any device" if self.key in (DEFAULT, IMPLICIT) else self.key)


class OpOverload:
    """The record of one overload: schema, kernels, rules, and what frameworks made of it.

    Parameters
    ----------
    schema
        Its schema, with the qualified name.
    flavour
        The flavour of its definition, which kernels and rules without annotations take.
    tags
        Names of its tags.
    source
        ``file:line`` of its definition.
    owner
        Name of the framework in whose own dispatcher it lives; empty for an operator of ours.
    """

    __slots__ = (
        "__weakref__",
        "fallbacks",
        "flavour",
        "kernels",
        "key",
        "lowered",
        "name",
        "non_differentiable",
        "operator",
        "overload",
        "owner",
        "qualname",
        "rules",
        "schema",
        "source",
        "stale",
        "table",
        "tags",
        "version",
    )

    def __init__(
        self,
        schema: FunctionSchema,
        *,
        flavour: str,
        source: str,
        tags: tuple[str, ...] = (),
        owner: str = "",
        non_differentiable: bool = False,
    ) -> None:
        self.schema = schema
        self.name = schema.name
        self.overload = schema.overload
        self.qualname = schema.qualname
        self.key = f"{schema.name}.{schema.overload or 'default'}"
        self.flavour = flavour
        self.tags = tags
        self.source = source
        self.owner = owner
        self.non_differentiable = non_differentiable
        self.kernels: tuple[Kernel, ...] = ()
        self.rules: tuple[Rule, ...] = ()
        self.fallbacks: dict[str, Kernel] = {}
        self.table: dict[type, Callable[..., Any]] = {}
        self.lowered: dict[str, Any] = {}
        self.operator: Any = None
        self.stale: str | None = None
        self.version = 0

    def __repr__(self) -> str:
        return f"<OpOverload {self.qualname}{self.schema.signature}>"

    def rule(self, kind: str, slot: Hashable = None) -> Rule | None:
        """Return the rule in force of a kind and slot, or None."""
        for rule in reversed(self.rules):
            if rule.kind == kind and rule.slot == slot:
                return rule
        return None

    def rules_of(self, kind: str) -> list[Rule]:
        """Return the rules in force of a kind, one a slot, newest first."""
        found: dict[Hashable, Rule] = {}
        for rule in reversed(self.rules):
            if rule.kind == kind:
                found.setdefault(rule.slot, rule)
        return list(found.values())

    def kernel(self, key: str, flavour: str | None = None) -> Kernel | None:
        """Return the newest kernel registered at a key, enabled or not, or None."""
        for kernel in reversed(self.kernels):
            if kernel.key == key and flavour in (None, kernel.flavour):
                return kernel
        return None

    def enabled_kernels(self) -> Iterator[Kernel]:
        """Yield the enabled kernels in force, newest first; one that another covers is left out."""
        seen: set[tuple[str, str]] = set()
        for kernel in reversed(self.kernels):
            if kernel.slot not in seen:
                seen.add(kernel.slot)
                if kernel.enabled:
                    yield kernel

    def select_kernel(self, flavour: str, device_type: str) -> Kernel | None:
        """Return the kernel for arrays of a framework's flavour on a device type, or None.

        In order: that flavour for the device, ``array_api`` for it, that flavour for any device,
        ``array_api`` for any, then a flavour that shares the device's memory, for it, then for any.
        """
        kernels = list(self.enabled_kernels())
        shared = catalogue.sharing(device_type)
        keys = ((key_of(device_type),), (DEFAULT, IMPLICIT))
        order = [(where, (one,)) for where in keys for one in (flavour, catalogue.ARRAY_API)]
        if flavour in shared:
            order += [(where, shared) for where in keys]
        for where, flavours in order:
            for kernel in kernels:
                if kernel.key in where and kernel.flavour in flavours:
                    return kernel
        return None

    def kernels_text(self) -> str:
        """Return the kernels in force for a message: ``cpu (numpy, file:line)``, one after another."""
        rows = [f"{k.where} ({k.flavour}, {k.source})" for k in self.enabled_kernels()]
        return ", ".join(rows) or "none"
