"""One annotation -> the schema type that it means, the flavour of arrays it names, the values it allows.

* Frameworks' classes are looked up in the catalogue, so that nothing is imported for an annotation.
* What is refused says why in one line, and which supported annotation comes nearest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum, EnumMeta
from numbers import Complex, Integral, Number, Real
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, NamedTuple, TypeVar, Union, get_args, get_origin
from weakref import WeakKeyDictionary

from opwright import catalogue
from opwright.defaults import Default, Mismatch, Word, coerce_base, default_text
from opwright.schema import BaseType, ListType, OptionalType, Type
from opwright.signature import Refused, Scope


class Meaning(NamedTuple):
    """What an annotation means.

    Parameters
    ----------
    type
        The schema type.
    flavour
        The flavour of its arrays; ``None`` where it has none.
    choices
        The values that a ``Literal`` allows, or the ``Enum`` class; ``None`` where any value goes.
    is_tuple
        Whether its values are tuples, not lists.
    """

    type: Type
    flavour: str | None = None
    choices: tuple[Any, ...] | EnumMeta | None = None
    is_tuple: bool = False


_SCALAR = BaseType("Scalar")
_STR, _INT, _FLOAT, _BOOL, _COMPLEX = map(BaseType, ("str", "SymInt", "float", "bool", "complex"))
_PLAIN: dict[Any, Meaning] = {
    int: Meaning(_INT),
    float: Meaning(_FLOAT),
    bool: Meaning(_BOOL),
    str: Meaning(_STR),
    complex: Meaning(_COMPLEX),
    Number: Meaning(_SCALAR),
}
_FOUND: WeakKeyDictionary[type, Meaning] = WeakKeyDictionary()
_NUMBERS = {_INT, _FLOAT, _BOOL, _COMPLEX, _SCALAR}
_EXACT = {"float": float, "bool": bool}
_NAMED = frozenset({"ScalarType", "Layout", "MemoryFormat"})
_ONE_EACH = "use one parameter for each of its values"
_ANY_OTHER = (
    "use arrays, int, float, bool, str, complex, a dtype, a device, or lists of them (or pass schema=)"
)
_NEAREST: tuple[tuple[Any, str], ...] = (
    (Integral, "use int"),
    (Real, "use float"),
    (Complex, "use complex"),
    ((str, PathLike), "use str"),
    ((bytes, bytearray, memoryview), "use an array of uint8, or str"),
)


def meaning_of(annotation: Any, scope: Scope) -> Meaning:
    """Return what the annotation of a parameter, or of one return, means.

    Raises
    ------
    Refused
        If it is not supported.
    """
    while not isinstance(annotation, type):
        origin = get_origin(annotation)
        reader = _READERS.get(origin)
        if reader is not None:
            return reader(get_args(annotation), scope)
        if isinstance(origin, type):
            meaning = _from_catalogue(origin)
            if meaning is not None:
                return meaning
        inner = _unwrap_once(annotation, scope)
        if inner is annotation:
            raise Refused(_nearest(annotation, scope))
        annotation = inner
    return _PLAIN.get(annotation) or _of_class(annotation, scope)


def unwrap(annotation: Any, scope: Scope) -> Any:
    """Strip what only names another: strings, ``Annotated``, ``NewType``, type variables, aliases."""
    while not isinstance(annotation, type):
        inner = _unwrap_once(annotation, scope)
        if inner is annotation:
            break
        annotation = inner
    return annotation


def _unwrap_once(annotation: Any, scope: Scope) -> Any:
    if isinstance(annotation, str):
        return scope.evaluate(annotation)
    if isinstance(annotation, ForwardRef):
        return scope.evaluate(annotation.__forward_arg__)
    if isinstance(annotation, TypeVar):
        return _bound(annotation)
    origin = get_origin(annotation)
    if origin is Annotated:
        return annotation.__origin__
    if hasattr(annotation, "__supertype__"):
        return annotation.__supertype__
    if hasattr(origin, "__value__"):
        return origin.__value__[get_args(annotation)]
    return getattr(annotation, "__value__", annotation)


def flavours_in(annotation: Any, scope: Scope) -> list[str]:
    """Return the flavours of the arrays that an annotation names anywhere inside it."""
    try:
        annotation = unwrap(annotation, scope)
    except Refused:
        return []
    origin = get_origin(annotation)
    cls = annotation if isinstance(annotation, type) else origin
    meaning = _from_catalogue(cls) if isinstance(cls, type) else None
    if meaning is not None:
        return [] if meaning.flavour is None else [meaning.flavour]
    if origin is Literal:
        return []
    return [flavour for argument in get_args(annotation) for flavour in flavours_in(argument, scope)]


def show(annotation: Any) -> str:
    """Return an annotation as its author would write it."""
    if isinstance(annotation, type):
        name = annotation.__qualname__.rpartition("<locals>.")[2]
        return (
            name if annotation.__module__ in ("builtins", "__main__") else f"{annotation.__module__}.{name}"
        )
    if isinstance(annotation, str | ForwardRef):
        return annotation if isinstance(annotation, str) else annotation.__forward_arg__
    return repr(annotation).replace("typing.", "").replace("collections.abc.", "").replace("NoneType", "None")


def _bound(variable: TypeVar) -> Any:
    if variable.__bound__ is not None:
        return variable.__bound__
    if variable.__constraints__:
        return Union[variable.__constraints__]  # noqa: UP007  (built from values)
    raise Refused(f"give {variable.__name__} a bound", f"type variable {variable.__name__} has no bound")


def _from_catalogue(cls: type) -> Meaning | None:
    meaning = _FOUND.get(cls)
    if meaning is None:
        found = catalogue.schema_type_of_class(cls)
        if found is not None:
            meaning = _FOUND[cls] = Meaning(BaseType(found[0]), found[1])
    return meaning


def _of_class(cls: type, scope: Scope) -> Meaning:
    if issubclass(cls, Enum):
        return Meaning(_type_of_values(member.value for member in cls), None, cls)
    meaning = _from_catalogue(cls)
    if meaning is None:
        raise Refused(_nearest(cls, scope))
    return meaning


def _of_literal(values: tuple[Any, ...], scope: Scope) -> Meaning:
    choices = tuple(value for value in values if value is not None)
    element = _type_of_values(value.value if isinstance(value, Enum) else value for value in choices)
    return Meaning(OptionalType(element) if len(choices) < len(values) else element, None, choices)


def _type_of_values(values: Iterable[Any]) -> Type:
    # An IntEnum's value may be of a subclass of int, a str-Enum's of one of str.
    kinds = {
        next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None) for value in values
    }
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        raise Refused("use values of one type: all str, all int, all float or all bool", None)
    return _PLAIN[kind].type


def _of_union(members: tuple[Any, ...], scope: Scope) -> Meaning:
    found = [meaning_of(member, scope) for member in members if member is not NoneType and member is not None]
    optional = len(found) < len(members) or any(isinstance(each.type, OptionalType) for each in found)
    bare = [each.type.element if isinstance(each.type, OptionalType) else each.type for each in found]
    flavours = tuple(dict.fromkeys(each.flavour for each in found if each.flavour is not None))
    if len(flavours) > 1:
        raise Refused(None, None, flavours)
    if len(found) > 1 and any(each.choices is not None for each in found):
        raise Refused("use one Literal or Enum that lists every value")
    element = bare[0]
    if any(each != element for each in bare):
        if not _NUMBERS.issuperset(bare):
            options = " or ".join(show(member) for member in members if member is not NoneType)
            raise Refused(f"choose one: {options}, with '| None' where it may be missing")
        element = _SCALAR
    flavour = flavours[0] if flavours else None
    is_tuple = all(each.is_tuple for each in found)
    return Meaning(OptionalType(element) if optional else element, flavour, found[0].choices, is_tuple)


def _element(annotation: Any, scope: Scope) -> Meaning:
    meaning = meaning_of(annotation, scope)
    inner = meaning.type.element if isinstance(meaning.type, OptionalType) else meaning.type
    if isinstance(inner, ListType):
        raise Refused(f"use one flat list: {show(unwrap(annotation, scope))}")
    if meaning.choices is not None:
        plain = str(inner).replace("SymInt", "int")
        raise Refused(f"use list[{plain}], or one Literal or Enum parameter for each element")
    return meaning


def _of_list(arguments: tuple[Any, ...], scope: Scope) -> Meaning:
    if not arguments:
        raise Refused("name the elements' type, such as list[int]")
    element = _element(arguments[0], scope)
    return Meaning(ListType(element.type), element.flavour)


def _of_tuple(arguments: tuple[Any, ...], scope: Scope) -> Meaning:
    if not arguments:
        raise Refused("name the elements' types, such as tuple[int, int] or list[int]")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _of_list(arguments, scope)._replace(is_tuple=True)
    elements = [_element(argument, scope) for argument in arguments]
    flavours = tuple(dict.fromkeys(each.flavour for each in elements if each.flavour is not None))
    if len(flavours) > 1:
        raise Refused(None, None, flavours)
    if any(each.type != elements[0].type for each in elements):
        raise Refused(_ONE_EACH + " (a tuple must hold values of one type)")
    return Meaning(ListType(elements[0].type, len(elements)), elements[0].flavour, is_tuple=True)


_READERS: dict[Any, Callable[[tuple[Any, ...], Scope], Meaning]] = {
    Union: _of_union,
    UnionType: _of_union,
    Literal: _of_literal,
    list: _of_list,
    Sequence: _of_list,
    tuple: _of_tuple,
}


def _nearest(annotation: Any, scope: Scope) -> str:
    """What to write instead of an unsupported annotation."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if annotation is None or annotation is NoneType:
        return "leave it out, or name the type beside None: int | None"
    if origin is Callable:
        return "call it outside the operator, or choose among known functions by a Literal"
    if not isinstance(origin, type):
        return _ANY_OTHER
    if dataclasses.is_dataclass(origin) or hasattr(origin, "_fields"):
        fields = getattr(origin, "__annotations__", {})
        return f"{_ONE_EACH}: {', '.join(f'{name}: {show(each)}' for name, each in fields.items())}"
    for bases, nearest in _NEAREST:
        if issubclass(origin, bases):
            return nearest
    info = catalogue.framework_of_class(origin)
    if info is not None and info.annotations:
        return f"annotate it {'.'.join(info.annotations[0][:2])}, which takes subclasses too"
    if issubclass(origin, Mapping):
        return f"use {_list_of(arguments[1:], scope)} for its values, or one parameter for each"
    if issubclass(origin, Iterable) and (arguments or issubclass(origin, list | tuple | AbstractSet)):
        return f"use {_list_of(arguments[:1], scope)}"
    return _ANY_OTHER


def _list_of(arguments: tuple[Any, ...], scope: Scope) -> str:
    """The list that comes nearest to a collection with elements of this type."""
    if arguments:
        try:
            _element(arguments[0], scope)
        except Refused:
            return "a list of a supported type, such as list[int]"
        return f"list[{show(arguments[0])}]"
    return "a list, such as list[int]"


def default_of(meaning: Meaning, value: Any) -> Default | Mismatch:
    """Return the default of a parameter as its schema holds it, or what it should be."""
    type_ = meaning.type
    if value is None:  # `bias: Tensor = None` too, as in torch
        return Default(None, "None")
    if isinstance(type_, OptionalType):
        type_ = type_.element
    if meaning.choices is not None:
        return _choice(meaning.choices, value)
    if not isinstance(type_, ListType):
        return _plain_default(type_, value)
    if not isinstance(value, list | tuple) or (type_.size is not None and len(value) != type_.size):
        return Mismatch(f"a list or tuple{f' of {type_.size} values' if type_.size is not None else ''}")
    elements = []
    for element in value:
        optional = isinstance(type_.element, OptionalType)
        found = (
            default_of(Meaning(type_.element), element)
            if optional or element is not None
            else Mismatch("no None")
        )
        if isinstance(found, Mismatch):
            return found
        elements.append(found)
    return Default(tuple(each.value for each in elements), f"[{', '.join(map(str, elements))}]")


def _choice(choices: tuple[Any, ...] | EnumMeta, value: Any) -> Default | Mismatch:
    allowed = choices if isinstance(choices, tuple) else tuple(choices)
    for choice in allowed:
        # By type as well: Literal[1] does not allow True.
        if type(choice) is type(value) and choice == value:
            return Default(choice, default_text(choice.value if isinstance(choice, Enum) else choice))
    names = (
        f"{type(each).__name__}.{each.name}" if isinstance(each, Enum) else repr(each) for each in allowed
    )
    return Mismatch(f"one of {', '.join(names)}")


def _plain_default(type_: Type, value: Any) -> Default | Mismatch:
    base = type_.name if isinstance(type_, BaseType) else ""
    if base in _EXACT and type(value) is _EXACT[base]:
        return Default(value, str(value))
    if base == "Device":
        value = str(value) if _means(value, base) else value
    elif base in _NAMED:
        value = _name(base, value)
    elif getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # a NumPy scalar
    else:
        value = _exact(value)
    held = coerce_base(base, value)
    if isinstance(held, Mismatch):
        return held
    # A dtype is written by its one standard name, a number as its author wrote it.
    return Default(held, str(held) if base in _NAMED else default_text(value))


def _exact(value: Any) -> Any:
    """A value of a subclass, such as a member of an IntEnum, as the plain value that it is."""
    plain: Any
    for plain in (bool, int, float, complex):
        if isinstance(value, plain):
            return plain(value)
    return str.__str__(value) if isinstance(value, str) else value


def _means(value: Any, base: str) -> bool:
    return catalogue.schema_type_of_class(type(value)) == (base, None)


def _name(base: str, value: Any) -> Word | None:
    """The standard name of a dtype, layout or memory format of any framework."""
    if isinstance(value, str):
        return Word(value)
    if isinstance(value, type) and hasattr(value, "dtype"):  # np.float32 is a class
        return Word(value.__name__)
    if _means(value, base) and getattr(value, "isnative", True):
        return Word(getattr(value, "name", None) or str(value).rpartition(".")[2])
    return None
