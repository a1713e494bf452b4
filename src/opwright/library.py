"""``Library``: definitions, kernels and fallbacks that are undone together; ``define`` and ``impl``.

A Library owns the handles of what it registered; destroying it, by hand, at the end of a ``with`` block or
with its last reference, undoes exactly that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from opwright import catalogue, registry
from opwright.errors import (
    DuplicateError,
    RegistrationError,
    RegistrationValueError,
    SchemaError,
    layout,
)
from opwright.frameworks.base import loaded
from opwright.keys import IMPLICIT, resolve_key
from opwright.operator import make_operator, module_of_caller
from opwright.overload import Kernel, OpOverload
from opwright.parse import parse_schema
from opwright.qualname import parse_qualname
from opwright.registry import Handle, Pending
from opwright.source import caller, source_of
from opwright.tags import check_tags, tag_names
from opwright.targets import add_kernel, all_or_none, fallthrough_kernel, find, require_callable
from opwright.validate import validate

if TYPE_CHECKING:
    from opwright.schema import FunctionSchema

__all__ = ["Library", "define", "fallthrough_kernel", "impl"]

F = TypeVar("F", bound=Callable[..., Any])

_RESERVED = ("prim",)
_definers: dict[str, str] = {}
"""Where the DEF library of a namespace was made."""


class _Owned:
    """What a Library has registered; outlives it until its finalizer has run."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.records: list[OpOverload] = []
        self.definer: str | None = None

    def destroy(self, source: str) -> None:
        with registry.lock:
            while self.handles:
                self.handles.pop().destroy()
            while self.records:
                registry.undefine(self.records.pop(), source)
            if self.definer is not None:
                _definers.pop(self.definer, None)
                self.definer = None


def commit_definition(
    schema: FunctionSchema,
    *,
    flavour: str,
    source: str,
    module: str,
    tags: tuple[str, ...] = (),
    fn: Callable[..., Any] | None = None,
    kernels: tuple[Kernel, ...] = (),
    non_differentiable: bool = False,
    replace_: bool = False,
) -> OpOverload:
    """Make the record and operator of a validated schema and commit them in one step."""
    record = OpOverload(
        schema, flavour=flavour, source=source, tags=tags, non_differentiable=non_differentiable
    )
    record.kernels = kernels
    make_operator(record, fn, module)
    registry.define(record, replace=replace_)
    return record


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
        if ns in _RESERVED and kind != "IMPL":
            raise RegistrationValueError(
                layout(f"{ns!r} is a reserved namespace", fix="choose one of your own")
            )
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
            self, self._owned.destroy, f"the end of the Library made at {self.source}"
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
        parsed = parse_schema(schema, namespace=self.ns)
        if parsed.name.partition("::")[0] != self.ns:
            raise RegistrationError(
                layout(f"{parsed.qualname} is not in the namespace of this Library", expected=self.ns)
            )
        label = parsed.qualname
        validate(parsed)
        check_tags(parsed, tags, label=label)
        record = commit_definition(
            parsed,
            flavour=flavour,
            source=caller()[0],
            module=module_of_caller(),
            tags=tuple(sorted(tag_names(tags))),
            non_differentiable=non_differentiable,
        )
        self._owned.records.append(record)
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

    def impl(
        self,
        op: Any,
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
        op
            A name in this namespace, with or without it, or an overload object.
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
        require_callable(f"the kernel of {op}", fn)
        key = self._key(dispatch_key, IMPLICIT)
        target = self._target(op)
        options = {"with_keyset": with_keyset, "allow_override": allow_override, "flavour": flavour}

        def apply(record: OpOverload) -> Handle:
            return add_kernel(record, key, fn, **options)  # type: ignore[arg-type]

        record = find(target)
        if record is not None:
            handle = apply(record)
        else:
            name = target if "." in target.partition("::")[2] else f"{target}.default"
            handle = registry.wait(name, Pending(f"kernel of {target} for {key}", source_of(fn), apply), fn)
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
        require_callable("a fallback", fn)
        key = self._key(dispatch_key, "")
        if not key:
            raise RegistrationError(
                layout(f"{self!r}.fallback needs a dispatch key", expected="such as 'CPU'")
            )
        kernel = Kernel(fn, key, catalogue.ARRAY_API, source_of(fn), with_keyset=with_keyset)
        handle = add_fallback(self.ns, kernel)
        self.own(handle)
        return handle


def add_fallback(namespace: str, kernel: Kernel) -> Handle:
    """Commit a fallback and tell the frameworks, whose own operators may want it."""

    def tell() -> None:
        for framework in loaded():
            framework.fallback_changed(namespace, kernel.key)

    handle = registry.add_fallback(namespace, kernel)

    def undo() -> None:
        handle.destroy()
        tell()

    with registry.lock:
        try:
            tell()
        except BaseException:
            undo()
            raise
    return Handle(kernel.fn, undo, kernel.source)


_lasting: dict[str, Library] = {}
"""The libraries of definitions and kernels that were given none; they live as long as the process."""


def _library_for(namespace: str, lib: Library | None) -> Library:
    if lib is not None:
        return lib
    with registry.lock:
        if namespace not in _lasting:
            _lasting[namespace] = Library(namespace, "FRAGMENT")
        return _lasting[namespace]


def define(
    qualname: str | Library,
    schema: str,
    *rest: str,
    lib: Library | None = None,
    tags: Any = (),
    alias_analysis: str = "",
) -> Any:
    """Define an operator: ``define("ns::name", "(Tensor x) -> Tensor")``.

    With a ``Library`` first, as older code has it, this is a decorator that also registers the body for
    every device.

    Parameters
    ----------
    qualname
        The qualified name, or a ``Library``.
    schema
        The schema from its opening parenthesis; with a ``Library`` first, the name too.
    lib
        A ``Library`` that owns the definition; otherwise it lasts as long as the process.
    tags
        One tag or several.

    Raises
    ------
    ValueError
        If the name has no namespace or the schema does not start with a parenthesis.
    """
    if isinstance(qualname, Library):
        library, analysis = qualname, rest[0] if rest else alias_analysis

        def decorate(fn: F) -> F:
            name = library.define(schema, analysis, tags=tags)
            library.impl(name, fn)
            return fn

        return decorate
    if not isinstance(qualname, str):
        raise RegistrationValueError(
            layout(
                "define needs a qualified name", expected="a string 'ns::name'", got=type(qualname).__name__
            )
        )
    namespace, name, overload = parse_qualname(qualname)
    if not schema.lstrip().startswith("("):
        raise SchemaError(
            layout(
                f"define({qualname!r}): the schema must start with a parenthesis",
                expected="such as '(Tensor x) -> Tensor'",
                got=repr(schema),
            )
        )
    suffix = f".{overload}" if overload else ""
    _library_for(namespace, lib).define(f"{name}{suffix}{schema}", alias_analysis, tags=tags)
    return None


def impl(
    qualname: Any,
    types: str | Sequence[str],
    func: Any = None,
    *,
    lib: Library | None = None,
) -> Any:
    """Register a kernel: ``impl("ns::name", "cpu", fn)``, or a decorator without ``fn``.

    With a ``Library`` first, as older code has it: ``impl(lib, "name", "CPU")`` is a decorator.

    Parameters
    ----------
    qualname
        A qualified name or an operator.
    types
        A device type, several, ``"default"`` (every device), or a dispatch key.
    func
        The kernel.
    lib
        A ``Library`` that owns the registration; otherwise it lasts as long as the process.

    Raises
    ------
    RegistrationError
        If a type is unknown; the message lists those there are.
    """
    if isinstance(qualname, Library):
        library, key = qualname, func or ""

        def decorate_legacy(fn: F) -> F:
            library.impl(types, fn, key)
            return fn

        return decorate_legacy
    several = [types] if isinstance(types, str) else list(types)
    keys = list(dict.fromkeys(resolve_key(one) for one in several))

    def register(fn: Callable[..., Any]) -> Handle:
        record = None if isinstance(qualname, str) else find(qualname)
        name = qualname if record is None else record.key
        library = _library_for(parse_qualname(name)[0], lib)
        with all_or_none() as handles:
            handles += [library.impl(name, fn, key) for key in keys]
        return registry.group(fn, handles, source_of(fn))

    if func is not None:
        return register(func)

    def decorate(fn: F) -> F:
        register(fn)
        return fn

    return decorate
