"""An annotated function -> the schema that it describes, and the flavour of arrays that its body takes.

* The text is that of ``torch.library.infer_schema`` for all that it accepts, save where that depends on
  the release of torch (``Generator``) or cannot be read back (a quote in a default).
* A thousand operators are defined at start-up: annotations and defaults are read from the function
  itself; ``inspect`` is only asked about callables that are not plain functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, get_args, get_origin

from opwright import catalogue
from opwright.defaults import Default, Mismatch
from opwright.errors import RegistrationTypeError, SchemaError, layout
from opwright.hints import Meaning, default_of, flavours_in, meaning_of, show, unwrap
from opwright.schema import (
    AliasInfo,
    Argument,
    BaseType,
    FunctionSchema,
    ListType,
    OptionalType,
    Return,
    Type,
)
from opwright.signature import EMPTY, Parameter, Refused, annotations_of, read_signature
from opwright.tags import alias_returns

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Inferred:
    """What an annotated function says.

    Parameters
    ----------
    schema
        The schema, with the choices of ``Literal`` and ``Enum`` parameters, and which are tuples.
    flavour
        The flavour that its array annotations name; ``None`` where it has none.
    """

    schema: FunctionSchema
    flavour: str | None


def infer_schema(
    fn: Any,
    /,
    *,
    mutates_args: str | Iterable[str],
    op_name: str | None = None,
    tags: Any = (),
) -> str:
    """Return the schema text that an annotated function describes.

    Parameters
    ----------
    fn
        The function. Arrays are annotated ``torch.Tensor``, ``np.ndarray``, ``jax.Array``,
        ``cupy.ndarray`` or ``opwright.Array``.
    mutates_args
        The names of the arguments that it writes to, or ``"unknown"`` for every array.
    op_name
        What the text starts with; without it, the text starts at the parenthesis.
    tags
        One tag or several; ``inplace`` and ``out`` alias the returns with the mutated arguments.

    Raises
    ------
    SchemaError
        If an annotation, a default, ``mutates_args`` or a tag's rule does not hold.
    RegistrationTypeError
        If the annotations name arrays of two frameworks.

    Examples
    --------
    >>> import opwright
    >>> def scale(x: opwright.Array, factor: float = 2.0) -> opwright.Array:
    ...     return x * factor
    >>> opwright.infer_schema(scale, mutates_args=())
    '(Tensor x, float factor=2.0) -> Tensor'
    """
    inferred = infer_function_schema(
        fn, mutates_args=mutates_args, op_name=op_name, tags=tags, implicit_optional=False
    )
    return str(inferred.schema)


def infer_function_schema(
    fn: Any,
    /,
    *,
    mutates_args: str | Iterable[str],
    op_name: str | None = None,
    tags: Any = (),
    implicit_optional: bool = True,
) -> Inferred:
    """Return the schema and the flavour that an annotated function describes; see ``infer_schema``.

    ``bias: Tensor = None`` becomes ``Tensor? bias=None``, which is what it means; torch's text, which
    ``infer_schema`` gives, is ``Tensor bias=None``.
    """
    reader = _Reader(fn, op_name, implicit_optional=implicit_optional)
    mutated = mutated_names(mutates_args)
    arguments = tuple(
        reader.argument(index, parameter, mutated) for index, parameter in enumerate(reader.parameters)
    )
    reader.check_mutated(arguments, mutated)
    returns, is_tuple = reader.returns()
    name, _, overload = (op_name or "").partition(".")
    schema = FunctionSchema(name, overload, arguments, returns, is_tuple=is_tuple)
    schema = alias_returns(schema, tags, label=reader.label)
    return Inferred(schema, _one_flavour(reader.label, reader.flavours))


def annotated_flavour(fn: Any) -> str | None:
    """Return the flavour that the array annotations of a kernel or rule name, or None where there are none.

    An annotation that cannot be evaluated, such as a name that only type checkers import, names none.

    Raises
    ------
    RegistrationTypeError
        If they name arrays of two frameworks.
    """
    annotations, scope = annotations_of(fn)
    found: dict[str, str] = {}
    for name, annotation in annotations.items():
        for flavour in flavours_in(annotation, scope):
            found.setdefault(flavour, "the return" if name == "return" else f"parameter {name}")
    return _one_flavour(getattr(fn, "__qualname__", repr(fn)), found)


class _Reader:
    """Reads one function; remembers the flavours that it meets, for the error that names two."""

    def __init__(self, fn: Any, op_name: str | None, *, implicit_optional: bool) -> None:
        self.implicit_optional = implicit_optional
        self.label = op_name or f"infer_schema({getattr(fn, '__qualname__', None) or type(fn).__qualname__})"
        self.flavours: dict[str, str] = {}
        try:
            self.parameters, self.returned, self.scope = read_signature(fn)
        except Refused as refused:
            self.refuse(str(refused.reason), refused.fix, refused)

    def refuse(self, what: str, fix: str | None = None, cause: BaseException | None = None) -> NoReturn:
        raise SchemaError(layout(f"{self.label}: {what}", fix=fix)) from cause

    def argument(self, index: int, parameter: Parameter, mutated: tuple[str, ...] | None) -> Argument:
        """Return the argument that a parameter describes."""
        name, annotation, default, kwarg_only = parameter
        if annotation is EMPTY:
            self.refuse(
                f"Parameter {name} must have a type annotation.", f"write {name}: float, or what else it is"
            )
        meaning = self.meaning(annotation, f"Parameter {name}", f"Parameter {name} has")
        if meaning.flavour is not None:
            self.flavours.setdefault(meaning.flavour, f"parameter {name}")
        type_ = meaning.type
        if mutated is None or name in mutated:
            type_ = _with_alias(type_, f"a{index}") if meaning.flavour is not None else type_
        written = None if default is EMPTY else self.default(name, meaning, default)
        if (
            written is not None
            and default is None
            and self.implicit_optional
            and not isinstance(type_, OptionalType)
        ):
            type_ = OptionalType(type_)
        return Argument(name, type_, written, kwarg_only, meaning.choices, meaning.is_tuple)

    def meaning(self, annotation: Any, what: str, has: str) -> Meaning:
        """Return what an annotation means, or raise for what it annotates."""
        try:
            return meaning_of(annotation, self.scope)
        except Refused as refused:
            if refused.flavours:
                _mixed(self.label, f"{what} is annotated with both {' and '.join(refused.flavours)} arrays")
            reason = (
                f"{what}: {refused.reason}"
                if refused.reason
                else f"{has} unsupported type {show(annotation)}."
            )
            self.refuse(reason, refused.fix, refused)

    def default(self, name: str, meaning: Meaning, value: Any) -> Default:
        """Return the default of a parameter as its schema holds it."""
        found = default_of(meaning, value)
        if isinstance(found, Mismatch):
            what = f"Parameter {name} has an unsupported default value type {show(type(value))}: {value!r}."
            raise SchemaError(layout(f"{self.label}: {what}", expected=found.expected))
        return found

    def check_mutated(self, arguments: tuple[Argument, ...], mutated: tuple[str, ...] | None) -> None:
        """Check that every name in ``mutates_args`` is an argument with Tensors."""
        if not mutated:
            return
        by_name = {argument.name: argument for argument in arguments}
        tensors = [argument.name for argument in arguments if argument.has_tensors]
        fix = f"the array parameters are {', '.join(tensors)}" if tensors else "leave mutates_args empty: ()"
        unknown = [name for name in mutated if name not in by_name]
        if unknown:
            listed = ", ".join(sorted(map(repr, unknown)))
            self.refuse(f"{listed} in mutates_args were not found in the custom op's signature.", fix)
        for name in mutated:
            if not by_name[name].has_tensors:
                self.refuse(
                    f"Parameter {name} is in mutable_args but only Tensors or collections of Tensors can be "
                    f"mutated; its type is {by_name[name].type}.",
                    fix,
                )

    def returns(self) -> tuple[tuple[Return, ...], bool]:
        """Return the returns, and whether they are a 1-tuple."""
        annotation = self.returned
        if annotation is EMPTY:
            self.refuse(
                "No return type annotation was provided. Please add one.", "write '-> None' for no return"
            )
        try:
            bare = unwrap(annotation, self.scope)
        except Refused as refused:
            self.refuse(f"Return: {refused.reason}", refused.fix, refused)
        if bare is None or bare is NoneType:
            return (), False
        if get_origin(bare) is not tuple:
            return (self._return(bare, annotation),), False
        elements = get_args(bare)
        if len(elements) == 2 and elements[1] is Ellipsis:
            self.refuse(
                f"Return has unsupported type {show(annotation)}.",
                f"use list[{show(elements[0])}], or a tuple of fixed length",
            )
        return tuple(self._return(element, annotation) for element in elements), len(elements) == 1

    def _return(self, annotation: Any, whole: Any) -> Return:
        meaning = self.meaning(annotation, "Return", "Return has")
        if meaning.flavour is not None:
            self.flavours.setdefault(meaning.flavour, "the return")
        inner = meaning.type.element if isinstance(meaning.type, OptionalType) else meaning.type
        if meaning.choices is not None or (isinstance(inner, ListType) and inner.size is not None):
            self.refuse(
                f"Return has unsupported type {show(whole)}.", "return plain values, one for each element"
            )
        name = str(meaning.type.leaf())
        opaque = catalogue.opaque_class(name) if "." in name else None
        if opaque is not None and opaque[1]:
            self.refuse(
                f"Return has unsupported type {show(whole)}.",
                'return what it is made from; only a class registered with typ="reference" can be returned',
            )
        return Return(meaning.type)


def _one_flavour(label: str, found: dict[str, str]) -> str | None:
    """The only flavour among those found, each with where it was found first."""
    if len(found) > 1:
        (one, first), (two, second) = list(found.items())[:2]
        _mixed(label, f"{first} is annotated with {one} arrays and {second} with {two} arrays")
    return next(iter(found), None)


def _mixed(label: str, what: str) -> NoReturn:
    raise RegistrationTypeError(
        layout(
            f"{label}: {what}", fix="annotate all alike, or all with opwright.Array where the body takes any"
        )
    )


def mutated_names(mutates_args: str | Iterable[str]) -> tuple[str, ...] | None:
    """The names, or None where any array may be mutated."""
    if isinstance(mutates_args, str):
        if mutates_args == _UNKNOWN:
            return None
        raise SchemaError(
            layout(
                "mutates_args must either be a sequence of the names of the arguments that are mutated or "
                "the string 'unknown'",
                got=f"the string {mutates_args!r}",
                fix=f"mutates_args=({mutates_args!r},)",
            )
        )
    try:
        return tuple(mutates_args)
    except TypeError as error:
        raise RegistrationTypeError(
            layout("mutates_args must be a sequence of names", got=repr(mutates_args), fix="mutates_args=()")
        ) from error


def _with_alias(type_: Type, name: str) -> Type:
    if isinstance(type_, BaseType):
        return replace(type_, alias=AliasInfo((name,), (), is_write=True))
    if isinstance(type_, ListType | OptionalType):
        return replace(type_, element=_with_alias(type_.element, name))
    return type_
