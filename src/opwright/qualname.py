"""Qualified names of operators, ``ns::name.overload``, and which names may reach generated source."""

from __future__ import annotations

import re
from keyword import iskeyword
from types import ModuleType

from opwright.errors import RegistrationTypeError, RegistrationValueError, layout

_RESERVED = ("prim", "_")
"""Torch's own operators of the language, and what stands for every namespace."""


class _Module(ModuleType):
    """A subclass of a module's class, as torch's namespaces are: with what this Python gives every one."""


_OF_MODULES = {*dir(_Module), *vars(_Module("")), "__file__", "__getattr__", "__iter__", "_dir"}

# Torch finds an operator through ``__getattr__``, which is asked for what is no attribute yet.
# Constants, as an operator may be defined before torch is imported; a test compares them with torch's.
_TAKEN = {
    "namespace": frozenset(
        _OF_MODULES | {"higher_order", "import_module", "load_library", "loaded_libraries"}
    ),
    "name": frozenset(_OF_MODULES | {"__origin__", "__self__", "name"}),
    "overload": frozenset(
        {
            "_dir",
            "_has_torchbind_op_overload",
            "_is_protocol",
            "_op",
            "_overload_names",
            "_qualified_op_name",
            "_schemas",
            "op",
            "op_overloads",
            "overloads",
        }
    ),
}

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def parse_qualname(text: str) -> tuple[str, str, str]:
    """Split ``ns::name.overload`` into its parts; the overload is ``""`` where none or ``default`` is named.

    Raises
    ------
    RegistrationTypeError
        If it is not a string.
    RegistrationValueError
        If a part is missing, not an identifier or a keyword of Python.

    Examples
    --------
    >>> parse_qualname("mylib::sin.out"), parse_qualname("mylib::sin.default")
    (('mylib', 'sin', 'out'), ('mylib', 'sin', ''))
    """
    form = "namespace::name or namespace::name.overload"
    if not isinstance(text, str):
        raise RegistrationTypeError(
            layout(
                "an operator's name must be a string",
                expected=form,
                got=f"{text!r} of type {type(text).__name__}",
            )
        )
    namespace, separator, rest = text.partition("::")
    if not separator:
        fix = f"put a namespace of your own in front: 'mylib::{text}'" if _NAME.match(text) else None
        raise RegistrationValueError(
            layout("an operator's name needs a namespace", expected=form, got=repr(text), fix=fix)
        )
    name, dot, overload = rest.partition(".")
    parts = [("namespace", namespace), ("name", name), *([("overload", overload)] if dot else [])]
    for what, part in parts:
        problem = name_problem(part)
        if problem is not None:
            raise RegistrationValueError(
                layout(f"{text!r}: the {what} {part!r} {problem}", expected=form + " of Python identifiers")
            )
    return namespace, name, "" if overload == "default" else overload


def require_definable(namespace: str, name: str = "", overload: str = "") -> None:
    """Raise where no operator can be defined in a namespace, or under a name.

    Raises
    ------
    RegistrationValueError
        If the namespace is reserved, or torch's namespaces would give an attribute of theirs for a part.
    """
    if namespace in _RESERVED:
        raise RegistrationValueError(
            layout(f"{namespace!r} is a reserved namespace", fix="choose one of your own")
        )
    for what, part in (("namespace", namespace), ("name", name), ("overload", overload)):
        if part in _TAKEN[what] or (what == "overload" and part.startswith("__")):
            whole = f"{namespace}::{name}{'.' + overload if overload else ''}" if name else namespace
            place = {"namespace": "ops", "name": f"ops.{namespace}", "overload": f"ops.{namespace}.{name}"}
            raise RegistrationValueError(
                layout(
                    f"{whole!r}: the {what} {part!r} is an attribute that torch.{place[what]} has already, "
                    "and would give for the operator",
                    fix=f"choose another {what}",
                )
            )


def name_problem(name: str) -> str | None:
    """Say why a name cannot reach generated source, or return None where it can."""
    if not _NAME.fullmatch(name):
        return "is not an identifier (ASCII letters, digits and _, not starting with a digit)"
    if iskeyword(name) or name == "__debug__":
        return "is a keyword of Python"
    return None
