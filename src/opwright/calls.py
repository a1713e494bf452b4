"""One call of one operator, as the transforms see it: its record, framework, arguments and namespace.

* Arguments are bound once, in schema order, defaults filled in; scalars are what a kernel would get.
* Arrays of a framework with transforms of its own are refused: the message names that framework's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from opwright import catalogue, modes, registry
from opwright.arrays import class_name, refused_array
from opwright.catalogue import ARRAY_API
from opwright.dispatch import framework_of_call
from opwright.dtypes import is_inexact
from opwright.errors import ArgumentError, UnsupportedError, layout
from opwright.frameworks.base import load, of_flavour
from opwright.frameworks.bridges import crossing
from opwright.namespaces import array_namespace
from opwright.scalars import coercion
from opwright.schema import signature_of
from opwright.targets import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opwright.frameworks.base import Framework
    from opwright.overload import OpOverload


@final
@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator.

    Parameters
    ----------
    record
        The operator's record.
    framework
        The framework of its arrays.
    xp
        Their array API namespace.
    values
        Every argument in schema order, as the caller gave it; defaults filled in.
    given
        How many positional arguments were given by position.
    """

    record: OpOverload
    framework: Framework
    xp: Any
    values: tuple[Any, ...]
    given: int

    @property
    def device_type(self) -> str:
        """The device type of its arrays."""
        found = [array for value in self.arrays() for array in flat(value)]
        return self.framework.device_type(found[0] if found else None)

    def arrays(self) -> list[Any]:
        """Return the values of the array arguments, lists among them."""
        pairs = zip(self.record.schema.arguments, self.values, strict=True)
        return [value for argument, value in pairs if argument.has_tensors]

    def run(self, values: Sequence[Any]) -> Any:
        """Call the operator on values in schema order."""
        args, kwargs = split(self.record, values)
        return self.record.operator(*args, **kwargs)

    def for_rule(self, flavour: str, values: Sequence[Any]) -> list[Any]:
        """Return values in schema order as a rule of a flavour gets them."""
        there, _ = crossings(self.framework, flavour)
        own = self.framework if flavour == ARRAY_API else of_flavour(flavour)
        out = []
        for argument, value in zip(self.record.schema.arguments, values, strict=True):
            if argument.has_tensors:
                out.append(there(mapped(self.xp.asarray, value)))
            else:
                out.append(coercion(self.record.qualname, argument, own.convert)(value))
        return list(self.record.schema.with_tuples(out))

    def cast(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the values as autocast leaves them, and the modes to run under."""
        found = modes.cast_inputs(self.record, self.values, self.device_type, self.framework.cast)
        if found is None:
            return self.values, modes.MODES.get()
        return found, modes.without_autocast(self.device_type)


def crossings(framework: Framework, flavour: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return what turns a framework's arrays into those of a rule's flavour, and back."""
    if flavour in (ARRAY_API, framework.flavour):
        return (lambda value: value), (lambda value: value)
    other = of_flavour(flavour)
    return crossing(framework, other), crossing(other, framework)


def bind(transform: str, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return the call of an operator with these arguments.

    Raises
    ------
    ArgumentError
        If ``op`` is no operator, or does not take the arguments.
    UnsupportedError
        If the arrays' framework has a transform of its own, or the operator is that framework's own.
    """
    record, values = _resolve(transform, op, args, kwargs)
    info = framework_of_call(record, values)
    own = dict(info.transforms).get(transform)
    if own is not None:
        raise UnsupportedError(
            layout(
                f"opwright.{transform} is for arrays whose library has no transforms, unlike {info.name}",
                expected="NumPy or CuPy arrays",
                got=f"{record.qualname} with arrays of {info.name}",
                fix=f"use {own}, which takes the operator as it is",
            )
        )
    framework = load(info.name)
    kind = {"vjp": "autograd"}.get(transform, transform)
    if kind in framework.unsupported:
        raise UnsupportedError(
            layout(
                f"opwright.{transform} is not for {info.name} arrays: {framework.unsupported[kind]}",
                got=record.qualname,
            )
        )
    if record.operator is None:
        raise UnsupportedError(
            layout(f"{record.qualname} is an operator of {record.owner}, not for arrays of {info.name}")
        )
    pairs = zip(record.schema.arguments, values, strict=True)
    arguments = [(argument.name, value) for argument, value in pairs if argument.has_tensors]
    found = [entry for argument in arguments for entry in named(*argument)]
    if not found:
        raise ArgumentError(layout(f"opwright.{transform} of {record.qualname} was given no array"))
    for name, array in found:
        if not framework.accepts(array):
            plain = f"a plain array of {info.name}"
            raise refused_array(record, name, class_name(array), plain, "take its plain array first")
    return Call(record, framework, array_namespace(*(array for _, array in found)), values, len(args))


def require_operator(transform: str, op: Any) -> OpOverload:
    """Return the record of an operator, or the first of several overloads.

    Raises
    ------
    ArgumentError
        If ``op`` is no operator.
    """
    try:
        return require(op)
    except TypeError:
        raise ArgumentError(
            layout(
                f"opwright.{transform} takes one operator",
                expected="an operator, or its qualified name",
                got=f"{op!r} of type {type(op).__name__}",
                fix="make it an operator with opwright.custom_op; for whole programs use torch.func or jax",
            )
        ) from None


def _resolve(
    transform: str, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[OpOverload, tuple[Any, ...]]:
    """Return the overload that takes the arguments, and their values in schema order."""
    first = require_operator(transform, op)
    several = hasattr(op, "overloads") or (isinstance(op, str) and "." not in op)
    reasons: list[str] = []
    for record in (registry.overloads_of(first.name) if several else ()) or [first]:
        try:
            bound = signature_of(record.schema).bind(*args, **kwargs)
        except TypeError as error:
            reasons.append(f"{record.schema}: {error}")
            continue
        bound.apply_defaults()
        return record, tuple(bound.arguments[argument.name] for argument in record.schema.arguments)
    raise ArgumentError(layout(f"{first.name} does not take these arguments", got="; ".join(reasons)))


def split(record: OpOverload, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional values, and the keyword-only ones by name."""
    count = len(record.schema.positional)
    named = zip(record.schema.keyword_only, values[count:], strict=True)
    return tuple(values[:count]), {argument.name: value for argument, value in named}


def outputs_of(record: OpOverload, out: Any) -> list[Any]:
    """Return one entry for each return."""
    schema = record.schema
    if not schema.returns:
        return []
    return [out] if len(schema.returns) == 1 and not schema.is_tuple else list(out)


def flat(value: Any) -> list[Any]:
    """Return the arrays of an argument: itself, or the elements of a list; None is left out."""
    if isinstance(value, list | tuple):
        return [array for element in value for array in flat(element)]
    return [] if value is None else [value]


def mapped(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Apply a function to an argument's arrays, and to what ``others`` have in the same places.

    None stays None. Another value that is no list stands for each element.
    """
    if isinstance(value, list | tuple):
        beside = [other if isinstance(other, list | tuple) else [other] * len(value) for other in others]
        return [mapped(function, *each) for each in zip(value, *beside, strict=True)]
    return None if value is None else function(value, *others)


def named(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return the arrays of an argument with the names that messages give them: ``x``, ``xs[1]``."""
    if isinstance(value, list | tuple):
        return [(f"{name}[{index}]", array) for index, array in enumerate(value) if array is not None]
    return [] if value is None else [(name, value)]


def is_array(call: Call, value: Any) -> bool:
    """Return whether a value is an array of the call's framework, of a class that operators take."""
    info = catalogue.framework_of_class(value.__class__)
    return info is not None and info.name == call.framework.name and call.framework.accepts(value)


def is_differentiable(array: Any) -> bool:
    """Return whether an array has a floating or complex dtype."""
    return hasattr(array, "dtype") and is_inexact(array.dtype)
