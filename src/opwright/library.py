"""``Library``: definitions, kernels and fallbacks that are undone together.

A Library owns the handles of what it registered; destroying it, by hand, at the end of a ``with`` block or
with its last reference, undoes exactly that.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from opwright import catalogue, register, registry
from opwright.alias_sets import with_named_sets
from opwright.dispatch import add_fallback
from opwright.errors import (
    DuplicateError,
    RegistrationError,
    RegistrationValueError,
    StaleError,
    layout,
)
from opwright.keys import IMPLICIT, resolve_key
from opwright.operator import commit_definition, module_of_caller
from opwright.overload import Kernel, OpOverload, fallthrough_kernel
from opwright.parse import parse_schema
from opwright.qualname import parse_qualname, require_definable
from opwright.source import caller, source_of
from opwright.tags import check_tags, tag_names
from opwright.targets import (
    add_kernel,
    find,
    is_fallthrough,
    known_flavour,
    or_wait,
    require_callable,
    require_text,
)
from opwright.validate import validate

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.registry import Handle

_definers: dict[str, str] = {}
"""Where the DEF library of a namespace was made."""


class _Owned:
    """What a Library has registered; outlives it until its finalizer has run."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.records: list[OpOverload] = []
        self.definer: str | None = None
        self.destroyed: str | None = None

    def destroy(self, source: str) -> None:
        with registry.lock:
            self.destroyed = self.destroyed or source
            undos = [handle.destroy for handle in reversed(self.handles)]
            undos += [partial(registry.undefine, record, source) for record in reversed(self.records)]
            self.handles, self.records = [], []
            if self.definer is not None:
                _definers.pop(self.definer, None)
                self.definer = None
            registry.run_all(undos)


def _scoped_library(ns: str, kind: str, dispatch_key: str = "") -> Library:
    """Return a Library for a ``with`` block: the name that torch.library has for it."""
    return Library(ns, kind, dispatch_key)


def _finalize(owned: _Owned, source: str) -> None:
    registry.lock.when_free(partial(owned.destroy, source))


class Library:
    """Definitions and kernels of one namespace that live and go together.

    Parameters
    ----------
    ns
        The namespace.
    kind
        ``"DEF"`` (defines; one per namespace), ``"FRAGMENT"`` (defines; any number) or ``"IMPL"``
        (kernels only).
    dispatch_key
        The dispatch key of ``impl`` and ``fallback`` where they name none.

    Raises
    ------
    ValueError
        If the kind is none of these or the namespace is reserved.
    RuntimeError
        If the namespace has a ``DEF`` library already; the message names both lines.
    """

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if kind not in ("IMPL", "DEF", "FRAGMENT"):
            raise RegistrationValueError(
                layout(f"Library({ns!r}, {kind!r}): unsupported kind", expected="'DEF', 'FRAGMENT' or 'IMPL'")
            )
        if kind != "IMPL":
            require_definable(ns)
        if ns != "_":
            parse_qualname(f"{ns}::name")
        self.ns = ns
        self.kind = kind
        self.dispatch_key = resolve_key(dispatch_key, allow_default=False) if dispatch_key else ""
        self.source = caller()[0]
        self._owned = _Owned()
        if kind == "DEF":
            self._claim()
        self._finalizer = weakref.finalize(
            self, _finalize, self._owned, f"the end of the Library made at {self.source}"
        )
        self._finalizer.atexit = False

    def _claim(self) -> None:
        with registry.lock:
            first = _definers.setdefault(self.ns, self.source)
            if first is not self.source:
                raise DuplicateError(
                    layout(
                        f"namespace {self.ns} has a DEF library already; only one may define a namespace",
                        registered=first,
                        got=f"a second one at {self.source}",
                        fix="make the second one a FRAGMENT",
                    )
                )
            self._owned.definer = self.ns

    def __repr__(self) -> str:
        return f"<Library {self.kind} {self.ns}{' ' + self.dispatch_key if self.dispatch_key else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.destroy(caller()[0])

    def own(self, handle: Handle) -> None:
        """Let this library own a registration: it is undone with it."""
        self._owned.handles.append(handle)

    def own_record(self, record: OpOverload) -> None:
        """Let this library own a definition: the operator is removed with it."""
        self._owned.records.append(record)
        record.operator._library = weakref.ref(self)  # noqa: SLF001  (what its ``_lib`` gives)

    def undefine(self, record: OpOverload) -> None:
        """Remove an operator that this library defined."""
        self._owned.records.remove(record)
        registry.undefine(record, caller()[0])

    def require_open(self) -> None:
        """Raise where the library was destroyed: what it registered now would never be undone.

        Raises
        ------
        StaleError
            If it was.
        """
        if self._owned.destroyed is not None:
            raise StaleError(
                layout(
                    f"{self!r} was destroyed at {self._owned.destroyed}",
                    registered=self.source,
                    fix="make another Library",
                )
            )

    def destroy(self) -> None:
        """Undo everything that was registered through this library. A second call does nothing."""
        self._owned.destroy(caller()[0])

    _destroy = destroy

    @property
    def m(self) -> Library:
        """The library itself; torch has its C++ half here."""
        return self

    @property
    def _op_defs(self) -> set[str]:
        return {record.qualname for record in self._owned.records}

    def define(
        self,
        schema: str,
        alias_analysis: str = "",
        *,
        tags: Any = (),
        flavour: str = catalogue.ARRAY_API,
        non_differentiable: bool = False,
    ) -> str:
        """Define an operator in this namespace.

        Parameters
        ----------
        schema
            ``"name(Tensor x) -> Tensor"``, with or without an overload.
        alias_analysis
            ``""``, ``"FROM_SCHEMA"`` or ``"CONSERVATIVE"``; kept for torch.
        tags
            One tag or several, of Opwright, of torch, or by name.
        flavour
            The arrays that kernels and rules without annotations take.
        non_differentiable
            Declares that no output has a gradient.

        Returns
        -------
        str
            The operator's name with its overload, without the namespace.

        Raises
        ------
        SchemaError
            If the schema is not valid.
        RegistrationError
            If this is an ``IMPL`` library or the name is taken.
        """
        self.require_open()
        if self.kind == "IMPL":
            raise RegistrationError(
                layout(
                    f"{self!r} cannot define operators", fix="make the Library with kind 'DEF' or 'FRAGMENT'"
                )
            )
        if alias_analysis not in ("", "FROM_SCHEMA", "CONSERVATIVE"):
            raise RegistrationError(
                layout(
                    f"invalid alias_analysis {alias_analysis!r}", expected="'FROM_SCHEMA' or 'CONSERVATIVE'"
                )
            )
        require_text(f"{self!r}.define: the schema", schema)
        parsed = parse_schema(schema, namespace=self.ns)
        label = parsed.qualname
        validate(parsed)
        require_definable(self.ns, parsed.name.partition("::")[2], parsed.overload)
        parsed = with_named_sets(parsed)
        check_tags(parsed, tags, label=label)
        record = commit_definition(
            parsed,
            flavour=known_flavour(flavour),
            source=caller()[0],
            module=module_of_caller(),
            tags=tuple(sorted(tag_names(tags))),
            non_differentiable=non_differentiable,
        )
        self.own_record(record)
        return parsed.qualname.partition("::")[2]

    def _key(self, dispatch_key: str, default: str) -> str:
        if not dispatch_key:
            return self.dispatch_key or default
        key = resolve_key(dispatch_key, allow_default=False)
        if self.dispatch_key and key != self.dispatch_key:
            raise RegistrationError(
                layout(f"{self!r} was made for one dispatch key", expected=self.dispatch_key, got=key)
            )
        return key

    def _target(self, op: Any) -> Any:
        """Return what ``find`` takes, in this library's namespace."""
        if isinstance(op, str):
            name = op if "::" in op else f"{self.ns}::{op}"
            if name.partition("::")[0] != self.ns:
                raise RegistrationError(
                    layout(
                        f"{op} is not in the namespace of {self!r}",
                        expected=self.ns,
                        got=op.partition("::")[0],
                    )
                )
            return name
        record = find(op)
        if record is not None and record.name.partition("::")[0] != self.ns:
            raise RegistrationError(
                layout(f"{record.qualname} is not in the namespace of {self!r}", expected=self.ns)
            )
        return op

    def _register_fake(
        self, op_name: str, fn: Callable[..., Any], _stacklevel: int = 1, *, allow_override: bool = True
    ) -> None:
        """Register a fake that this library owns; many packages call torch's own method of this name."""
        register.register_fake(self._target(op_name), fn, lib=self, allow_override=allow_override)

    def _register_torch_dispatch_rule(
        self, op_name: str, torch_dispatch_class: type, fn: Callable[..., Any]
    ) -> None:
        """Register a dispatch rule that this library owns, as torch's own method of this name."""
        register.register_torch_dispatch(self._target(op_name), torch_dispatch_class, fn, lib=self)

    def impl(
        self,
        op_name: Any,
        fn: Callable[..., Any],
        dispatch_key: str = "",
        *,
        with_keyset: bool = False,
        allow_override: bool = True,
        flavour: str | None = None,
    ) -> Handle:
        """Register a kernel for a dispatch key.

        Parameters
        ----------
        op_name
            A name in this namespace, with or without it, or an overload object. A name that is not defined
            yet waits until it is.
        fn
            The kernel, or ``fallthrough_kernel``.
        dispatch_key
            The library's own where it has one, else ``CompositeImplicitAutograd``.
        with_keyset
            Whether the kernel gets the dispatch key set as its first argument.
        allow_override
            Whether a kernel that is registered already may be covered.
        flavour
            The arrays that the body takes, where its annotations do not say.

        Raises
        ------
        TypeError
            If ``fn`` is not callable.
        RegistrationError
            If the name is of another namespace, the key is unknown, or the signature does not fit.
        """
        self.require_open()
        require_callable(f"the kernel of {op_name}", fn)
        key = self._key(dispatch_key, IMPLICIT)
        target = self._target(op_name)
        options = {"with_keyset": with_keyset, "allow_override": allow_override, "flavour": flavour}

        def apply(record: OpOverload) -> Handle:
            return add_kernel(record, key, fn, **options)  # type: ignore[arg-type]

        handle = or_wait(target, f"kernel for {key}", fn, apply)
        self.own(handle)
        return handle

    def fallback(
        self, fn: Callable[..., Any], dispatch_key: str = "", *, with_keyset: bool = False
    ) -> Handle:
        """Register what runs at a dispatch key for operators that have nothing there.

        It gets the operator, then the arguments (after the key set, with ``with_keyset``). In the namespace
        ``_`` it is for every operator. ``"Autocast"`` stands for autocast on any device; called again by
        such a fallback, the operator goes on without autocast. Operators that a framework defines in its
        own dispatcher later do not get it, unless the framework itself has taken it for every operator.

        Raises
        ------
        RegistrationError
            If the key is missing or unknown.
        """
        self.require_open()
        require_callable("a fallback", fn)
        key = self._key(dispatch_key, "")
        if not key:
            raise RegistrationError(
                layout(f"{self!r}.fallback needs a dispatch key", expected="such as 'CPU'")
            )
        skips = is_fallthrough(fn)
        source = caller()[0] if skips else source_of(fn)
        fn = fallthrough_kernel if skips else fn
        kernel = Kernel(fn, key, catalogue.ARRAY_API, source, with_keyset=with_keyset)
        handle = add_fallback(self.ns, kernel)
        self.own(handle)
        return handle
