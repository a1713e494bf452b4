"""The one record of an overload that the engine and every framework share.

* Kernels and rules are tuples that are replaced whole under the registry's lock: readers need no lock.
* The newest registration of a slot is in force; what it covers comes back when it is removed.
* ``table`` maps the class of the first array of a call to its specialised callable; ``miss`` takes what the
  table does not know, and what a specialised callable finds is not for it.
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


_ANY_DEVICE = (DEFAULT, IMPLICIT)


def fallthrough_kernel() -> None:
    """Stand for "skip this dispatch key"; register it as a kernel or fallback, it is never called."""
    raise NotImplementedError("fallthrough_kernel is a marker to register, not a function to call")


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
    copies
        Whether its author allowed that arrays are copied to the host for it, and results back.
    """

    __slots__ = ("copies", "enabled", "flavour", "fn", "key", "source", "with_keyset")

    def __init__(
        self,
        fn: Callable[..., Any],
        key: str,
        flavour: str,
        source: str,
        *,
        with_keyset: bool = False,
        copies: bool = False,
    ) -> None:
        self.fn = fn
        self.key = key
        self.flavour = flavour
        self.source = source
        self.with_keyset = with_keyset
        self.copies = copies
        self.enabled = True

    def __repr__(self) -> str:
        return f"<Kernel {self.key} ({self.flavour}, {self.source})>"

    @property
    def slot(self) -> tuple[str, str]:
        """Kernels of one key and flavour cover each other."""
        return self.key, self.flavour

    @property
    def falls_through(self) -> bool:
        """Whether it stands for skipping its key."""
        return self.fn is fallthrough_kernel

    @property
    def where(self) -> str:
        """The device type it is for, or ``"any device"``, or the key's own name."""
        return device_of(self.key) or ("any device" if self.key in _ANY_DEVICE else self.key)


def _not_callable(*_: Any) -> Any:
    """Stand for ``miss`` in a record that has no operator."""
    raise NotImplementedError("this record has no operator to call")


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

    Notes
    -----
    ``decorated`` says that a decorator defined it of a function: a kernel is then no fake, as in torch.
    """

    __slots__ = (
        "__weakref__",
        "decorated",
        "fallbacks",
        "flavour",
        "kernels",
        "key",
        "lowered",
        "miss",
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
        "take",
        "traced",
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
        self.decorated = False
        self.kernels: tuple[Kernel, ...] = ()
        self.rules: tuple[Rule, ...] = ()
        self.fallbacks: dict[str, Kernel] = {}
        self.table: dict[Hashable, Callable[..., Any]] = {}
        self.miss: Callable[..., Any] = _not_callable
        self.take: Callable[..., Any] = _not_callable
        self.traced: tuple[Callable[[], bool], Callable[..., Any]] | None = None
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
        ``array_api`` for any, then a flavour that shares the device's memory, for it, then for any; last one
        that arrays are copied for. Of those for any device, composite ones that gradients go through are
        last, as in torch.
        """
        kernels = [kernel for kernel in self.enabled_kernels() if not kernel.falls_through]
        shared = catalogue.sharing(device_type)
        keys = (key_of(device_type) or "", *_ANY_DEVICE)
        order: list[tuple[str, tuple[str, ...]]] = [
            (key, (one,)) for key in keys for one in (flavour, catalogue.ARRAY_API)
        ]
        if flavour in shared:
            order += [(key, shared) for key in keys]
        for key, flavours in order:
            for kernel in kernels:
                if kernel.key == key and kernel.flavour in flavours:
                    return kernel
        copying = (kernel for key in keys for kernel in kernels if kernel.key == key)
        return next((kernel for kernel in copying if kernel.copies), None)

    def kernels_text(self) -> str:
        """Return the kernels in force for a message: ``cpu (numpy, file:line)``, one after another."""
        rows = [f"{k.where} ({k.flavour}, {k.source})" for k in self.enabled_kernels()]
        return ", ".join(rows) or "none"
