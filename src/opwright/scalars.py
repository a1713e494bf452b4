"""Arguments that are not arrays: one coercion for each schema type, the same on every path of a call.

It follows torch (3 becomes 3.0, True 1.0, a tuple, a range or a NumPy array of one axis a list, ``np.int64``
an int, a 0-d array a number; no tensor stands for a ``Scalar``, as there may be an overload that takes it),
and refuses what torch would change silently: 2.5 for an int, 2 for a bool, None for a bool, a string for a
list of strings. A list becomes a tuple where the parameter is annotated as one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from opwright import catalogue
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


class _GradientLost(Exception):  # noqa: N818  (a signal, as the next one)
    """A value carries a gradient, which a number cannot."""


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
    if argument.is_tuple:
        inner = _as_tuple(inner)

    def coerce(value: Any) -> Any:
        try:
            return inner(value)
        except _GradientLost:
            raise gradient_lost(qualname, argument) from None
        except _Refused as reason:
            raise refused(qualname, argument, str(reason), value) from None

    return coerce


def refused(qualname: str, argument: Argument, reason: str, value: Any) -> ArgumentError:
    """Return the error for a value that an argument cannot take; ``reason`` goes on after its name."""
    kind = ArgumentValueError if argument.choices is not None else ArgumentError
    return kind(
        layout(
            f"{qualname}: argument {argument.name} {reason}",
            expected=expected(argument),
            got=f"{_short(value)} of type {type(value).__name__}",
        )
    )


def gradient_lost(qualname: str, argument: Argument) -> ArgumentError:
    """Return the error for a value whose gradient a number would not carry."""
    name = argument.name
    return ArgumentError(
        layout(
            f"{qualname}: argument {name} is a number, and a tensor that requires a gradient was given: its "
            "gradient would be lost",
            expected=expected(argument),
            fix=f"declare argument {name} as a Tensor, or pass {name}.item() or {name}.detach()",
        )
    )


def coercion_lines(argument: Argument, coerce: str, add: Callable[[str, Any], str]) -> list[str]:
    """Return source lines that leave a value of the exact class as it is and hand any other to ``coerce``.

    Parameters
    ----------
    argument
        The argument; not one with Tensors.
    coerce
        The name that its ``coercion`` has in the code.
    add
        ``add(name, value)`` makes a value available to the code and returns its name there.
    """
    name = argument.name
    change = f"{name} = {coerce}({name})"
    optional = isinstance(argument.type, OptionalType)
    inner = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
    if argument.choices is not None:
        return [change]
    if isinstance(inner, ListType):
        classes = _exact(inner.element)
        if len(classes) != 1:
            return [change]
        kind = tuple if argument.is_tuple else list
        right = f"{name}.__class__ is {add(kind.__name__, kind)}"
        if inner.size is not None:
            right += f" and {add('len', len)}({name}) == {inner.size}"
        each, cls = add("each", None), add(classes[0].__name__, classes[0])
        loop = [f"if {each}.__class__ is not {cls}:", f"    {change}", "    break"]
        lines = [f"if {right}:", f"    for {each} in {name}:", *(f"        {line}" for line in loop)]
        return [*lines, f"elif {name} is not None:" if optional else "else:", f"    {change}"]
    tests = [f"{name}.__class__ is {add(cls.__name__, cls)}" for cls in _exact(inner)]
    if optional:
        tests.insert(0, f"{name} is None")
    return [f"if not ({' or '.join(tests)}): {change}"] if _exact(inner) else [change]


def _exact(type_: Type) -> tuple[type, ...]:
    return EXACT.get(type_.name, ()) if isinstance(type_, BaseType) else ()


def expected(argument: Argument) -> str:
    """Return what a value of an argument is to be, for a message."""
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
    opaque = catalogue.opaque_class(name) if "." in name else None
    return (lambda value: value) if opaque is None else _of_class(opaque[0])


def _of_class(cls: type) -> Coercion:
    def coerce(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        raise _Refused(f"must be a {cls.__name__}")

    return coerce


def _refusing(convert: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    try:
        return convert(name, value)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise _Refused(f"is not a {'dtype' if name == 'ScalarType' else 'device'} ({error})") from None


def entries(value: Any) -> Sequence[Any] | None:
    """Return what stands in the place of a list: a sequence that is no text, or a NumPy array of one axis."""
    if isinstance(value, Sequence):
        return None if isinstance(value, str | bytes | bytearray) else value
    info = catalogue.framework_of_class(value.__class__)
    if info is not None and info.name == "numpy" and value.ndim == 1:
        numbers: list[Any] = value.tolist()
        return numbers
    return None


def _of_list(type_: ListType, inner: Coercion) -> Coercion:
    size = type_.size
    one = () if size is None else _FOR_ALL.get(str(type_.element), ())

    def coerce(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            if size is not None and isinstance(value, one):
                return [inner(value)] * size
            value = entries(value)
            if value is None:
                raise _Refused("must be a list")
        if size is not None and len(value) != size:
            raise _Refused(f"must be a list of {size}, but has {len(value)} elements")
        return [inner(element) for element in value]

    return coerce


_FOR_ALL: dict[str, type] = {"int": int, "float": float}
"""Of what class one number stands for all of a list of known length, by the elements' type: torch's rule.

Torch has it for these two types alone: none for SymInt, nor for another library's numbers.
"""


def _as_tuple(inner: Coercion) -> Coercion:
    def coerce(value: Any) -> Any:
        found = inner(value)
        return None if found is None else tuple(found)

    return coerce


def _of_choices(choices: tuple[Any, ...] | type, inner: Coercion) -> Coercion:
    if isinstance(choices, tuple):

        def literal(value: Any) -> Any:
            # The value as it is, for a member of an Enum; then the plain value that it stands for.
            for candidate in (value, inner(value)):
                for choice in choices:
                    if candidate is choice or (type(candidate) is type(choice) and candidate == choice):
                        return choice
            if value is None:
                return None
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
    number: Any
    for number in (bool, int, float, complex):
        # A subclass, such as np.float64 or an IntEnum, becomes the plain number.
        if isinstance(value, number):
            return number(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        # Of what is computed from it: False where gradients are off.
        if getattr(value, "requires_grad", False) and (-value).requires_grad:
            raise _GradientLost
        number = value.item()
        if isinstance(number, bool | int | float | complex):
            return number
    if getattr(value, "ndim", 0) or isinstance(value, list | tuple):
        raise _Refused("must be a number, not several")
    if hasattr(value, "__index__"):
        return value.__index__()
    raise _Refused("must be a number")


def _scalar(value: Any) -> Any:
    """Return the Python number of an argument of type Scalar, which no tensor stands for in torch."""
    if hasattr(value, "requires_grad") and not getattr(value, "ndim", 0):
        if value.requires_grad and (-value).requires_grad:
            raise _GradientLost
        raise _Refused("must be a number, not a tensor: pass its item()")
    return _number(value)


def _int(value: Any) -> int:
    number = _number(value)
    if isinstance(number, int):
        return int(number)
    raise _Refused("must be an integer")


def _float(value: Any) -> float:
    number = _number(value)
    if isinstance(number, complex):
        raise _Refused("must be real")
    try:
        return float(number)
    except OverflowError:
        raise _Refused("is too large for a float") from None


def _complex(value: Any) -> complex:
    number = _number(value)
    return number if isinstance(number, complex) else complex(_float(number))


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
    "Scalar": _scalar,
    "number": _scalar,
}
