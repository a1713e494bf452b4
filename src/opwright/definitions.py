"""Definitions and kernels by function, without a Library of one's own: ``define`` and ``impl``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from opwright import registry
from opwright.errors import RegistrationValueError, SchemaError, layout
from opwright.keys import resolve_key
from opwright.library import Library
from opwright.qualname import parse_qualname
from opwright.source import source_of
from opwright.targets import all_or_none, find, require, require_library, require_text, several

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.registry import Handle

F = TypeVar("F", bound="Callable[..., Any]")

_lasting: dict[str, Library] = {}
"""The libraries of definitions and kernels that were given none; they live as long as the process."""


def _library_for(namespace: str, lib: Library | None) -> Library:
    require_library(lib)
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
            with registry.lock:
                name = library.define(schema, analysis, tags=tags)
                record = require(f"{library.ns}::{name}")
                with registry.undone_on_error(lambda: library.undefine(record)):
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
    require_text(f"define({qualname!r}): the schema", schema)
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
    types: str | Sequence[str] = (),
    func: Any = None,
    *,
    lib: Library | None = None,
    name: Any = None,
    dispatch_key: str = "",
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
    name, dispatch_key
        What stands second and third where a ``Library`` stands first.

    Raises
    ------
    RegistrationError
        If a type is unknown; the message lists those there are.
    """
    if isinstance(qualname, Library):
        library, op_name, key = qualname, types or name, func or dispatch_key

        def decorate_legacy(fn: F) -> F:
            library.impl(op_name, fn, key)
            return fn

        return decorate_legacy
    keys = list(dict.fromkeys(map(resolve_key, several("types", types))))

    def register(fn: Callable[..., Any]) -> Handle:
        record = None if isinstance(qualname, str) else find(qualname)
        name = qualname if record is None else record.key
        library = _library_for(parse_qualname(name)[0], lib)
        with all_or_none() as handles:
            for key in keys:
                handles.append(library.impl(name, fn, key))
        return registry.group(fn, handles, source_of(fn))

    if func is not None:
        return register(func)

    def decorate(fn: F) -> F:
        register(fn)
        return fn

    return decorate
