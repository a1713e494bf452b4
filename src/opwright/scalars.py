"""Arguments that are not arrays: one coercion for each schema type, the same on every path of a call.

It follows torch (3 becomes 3.0, True 1.0, a tuple a list, ``np.int64`` an int, a 0-d array a number), and
refuses what torch would change silently: 2.5 for an int, 2 for a bool, None for a bool, a string for a
list of strings.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from opwright.errors import ArgumentError, ArgumentValueError, layout
from opwright.schema import Argument, BaseType, ListType, OptionalType, Type

Coercion = Callable[[Any], Any]

EXACT: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "SymInt": (int,),
    "float": (float,),
    "bool": (bool,),
    "complex": (complex,),
    "str": (str,),
    "Scalar": (float, int, bool, complex),
    "number": (float, int, bool, complex),
}
"""The classes that need no coercion, by schema type."""


class _Refused(Exception):  # noqa: N818  (a signal inside this module, never an error of a caller)
    """A value does not fit; the reason is its text."""


def coercion(qualname: str, argument: Argument, convert: Callable[[str, Any], Any] | None = None) -> Coercion:
    """Return the function that turns a caller's value into the one a kernel gets.

    Parameters
    ----------
    qualname
        The operator, for messages.
    argument
        The argument; not one with Tensors.
    convert
        ``convert("ScalarType" | "Device", value)`` gives the flavour's own object; None keeps the value.

    Raises
    ------
    ArgumentError
        From the returned function, if the value does not fit; it names operator, argument and value.
    """
    inner = _of_type(argument.type, convert)
    if argument.choices is not None:
        inner = _of_choices(argument.choices, inner)

    def coerce(value: Any) -> Any:
        try:
            return inner(value)
        except _Refused as reason:
            kind = ArgumentValueError if argument.choices is not None else ArgumentError
            raise kind(
                layout(
                    f"{qualname}: argument {argument.name} {reason}",
                    expected=_expected(argument),
                    got=f"{_short(value)} of type {type(value).__name__}",
                )
            ) from None

    return coerce


def fast_test(argument: Argument, name: str) -> str | None:
    """Return a source expression that is true where ``name`` needs no coercion, or None.

    The expression uses only built-in classes by name.
    """
    if argument.choices is not None:
        return None
    inner = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
    if not isinstance(inner, BaseType) or inner.name not in EXACT:
        return None
    tests = [f"{name}.__class__ is {cls.__name__}" for cls in EXACT[inner.name]]
    if isinstance(argument.type, OptionalType):
        tests.insert(0, f"{name} is None")
    return " or ".join(tests)


def _expected(argument: Argument) -> str:
    choices = argument.choices
    if choices is None:
        return str(argument.type)
    if isinstance(choices, tuple):
        return "one of " + ", ".join(map(repr, choices))
    members = ", ".join(choices.__members__) if isinstance(choices, enum.EnumMeta) else choices.__name__
    return f"a member of {choices.__name__} ({members}) or its value"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _of_type(type_: Type, convert: Callable[[str, Any], Any] | None) -> Coercion:
    if isinstance(type_, OptionalType):
        inner = _of_type(type_.element, convert)
        return lambda value: None if value is None else inner(value)
    if isinstance(type_, ListType):
        return _of_list(type_, _of_type(type_.element, convert))
    name = type_.name if isinstance(type_, BaseType) else ""
    if name in _CONVERTERS:
        return _CONVERTERS[name]
    if name in ("ScalarType", "Device") and convert is not None:
        return lambda value: _refusing(convert, name, value)
    return lambda value: value


def _refusing(convert: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    try:
        return convert(name, value)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise _Refused(f"is not a {'dtype' if name == 'ScalarType' else 'device'} ({error})") from None


def _of_list(type_: ListType, inner: Coercion) -> Coercion:
    leaf = type_.element
    exact = EXACT.get(leaf.name) if isinstance(leaf, BaseType) else None
    size = type_.size

    def coerce(value: Any) -> Any:
        if value.__class__ is list and exact is not None and (size is None or len(value) == size):
            for element in value:
                if element.__class__ not in exact:
                    break
            else:
                return value
        if not isinstance(value, list | tuple):
            if size is None or isinstance(value, str):
                raise _Refused("must be a list")
            return [inner(value)] * size
        if size is not None and len(value) != size:
            raise _Refused(f"must be a list of {size}, but has {len(value)} elements")
        return [inner(element) for element in value]

    return coerce


def _of_choices(choices: tuple[Any, ...] | type, inner: Coercion) -> Coercion:
    if isinstance(choices, tuple):

        def literal(value: Any) -> Any:
            for choice in choices:
                if value is choice or (type(value) is type(choice) and value == choice):
                    return choice
            if value is None:
                return inner(value)
            raise _Refused("is not among its choices")

        return literal

    def member(value: Any) -> Any:
        if value is None:
            return inner(value)
        try:
            return choices(value)
        except ValueError:
            raise _Refused("is not among its choices") from None

    return member


def _number(value: Any) -> Any:
    """Return the Python number that a value of any library stands for."""
    if isinstance(value, bool | int | float | complex):
        # A subclass, such as np.float64 or an IntEnum, becomes the plain number.
        for cls in (bool, int, float, complex):
            if isinstance(value, cls):
                return cls(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        number = value.item()
        if isinstance(number, bool | int | float | complex):
            return number
    if hasattr(value, "__index__"):
        return value.__index__()
    if getattr(value, "ndim", 0) or isinstance(value, list | tuple):
        raise _Refused("must be a number, not several")
    raise _Refused("must be a number")


def _int(value: Any) -> int:
    number = _number(value)
    if isinstance(number, int):
        return int(number)
    raise _Refused("must be an integer")


def _float(value: Any) -> float:
    number = _number(value)
    if isinstance(number, complex):
        raise _Refused("must be real")
    return float(number)


def _complex(value: Any) -> complex:
    return complex(_number(value))


def _bool(value: Any) -> bool:
    number = _number(value)
    if isinstance(number, bool) or (isinstance(number, int) and number in (0, 1)):
        return bool(number)
    raise _Refused("must be True or False")


def _str(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    raise _Refused("must be a string")


_CONVERTERS: dict[str, Coercion] = {
    "int": _int,
    "SymInt": _int,
    "float": _float,
    "complex": _complex,
    "bool": _bool,
    "str": _str,
    "Scalar": _number,
    "number": _number,
}
