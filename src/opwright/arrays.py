"""Array arguments: which arrays an argument holds, and what is wrong with one that cannot be taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.errors import ArgumentError, layout
from opwright.schema import ListType, OptionalType

if TYPE_CHECKING:
    from opwright.overload import OpOverload
    from opwright.schema import Argument


def arrays_of(record: OpOverload, argument: Argument, value: Any) -> list[tuple[str, Any]]:
    """Return the arrays of an argument with the names that messages give them: ``x``, ``xs[0]``.

    Raises
    ------
    ArgumentError
        If the value is None or no list where the schema does not allow that.
    """
    if value is None and argument.is_optional:
        return []
    if not argument.is_list:
        if value is None:
            raise not_an_array(record, argument.name, value)
        return [(argument.name, value)]
    inner = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
    size = inner.size if isinstance(inner, ListType) else None
    if not isinstance(value, list | tuple) or size not in (None, len(value)):
        raise not_a_list(record, argument, value)
    holes = any(isinstance(part, OptionalType) for part in inner.parts())
    return [
        (f"{argument.name}[{index}]", array)
        for index, array in enumerate(value)
        if array is not None or not holes
    ]


def as_list(value: Any) -> Any:
    """Return a list for what stands in its place, such as a deque or a ``ParameterList``; else the value.

    Neither an array of some library nor a mapping or text is one.
    """
    cls = value.__class__
    if issubclass(cls, list | tuple | str | bytes | bytearray) or hasattr(cls, "keys"):
        return value
    holds = all(hasattr(cls, name) for name in ("__len__", "__getitem__", "__iter__"))
    return list(value) if holds and not hasattr(cls, "dtype") and not hasattr(cls, "shape") else value


def class_name(value: Any) -> str:
    """Return the class of a value as a message names it."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def not_a_list(record: OpOverload, argument: Argument, value: Any) -> ArgumentError:
    """Return the error for an argument that is no list of arrays."""
    return ArgumentError(
        layout(
            f"{record.qualname}: argument {argument.name} must be a list of arrays",
            expected=str(argument.type),
            got=class_name(value) + (f" of {len(value)}" if isinstance(value, list | tuple) else ""),
        )
    )


def not_an_array(record: OpOverload, name: str, value: Any) -> ArgumentError:
    """Return the error for an argument that no framework knows as its array."""
    fix = None if value is None else f"make it one first, for example numpy.asarray({name})"
    return ArgumentError(
        layout(
            f"{record.qualname}: argument {name} must be an array",
            expected="an array of a framework, such as numpy.ndarray, torch.Tensor or jax.Array",
            got=class_name(value),
            fix=fix,
        )
    )


def refused_array(record: OpOverload, name: str, got: str, expected: str, fix: str | None) -> ArgumentError:
    """Return the error for an array that its framework knows and an operator cannot take."""
    return ArgumentError(
        layout(
            f"{record.qualname}: argument {name} cannot be taken",
            expected=expected,
            got=got,
            fix=fix,
        )
    )


def read_only(record: OpOverload, name: str, value: Any) -> ArgumentError:
    """Return the error for a mutated argument that cannot be written to."""
    return ArgumentError(
        layout(
            f"{record.qualname} mutates argument {name}, which is read-only",
            expected="an array that can be written to",
            got=class_name(value),
            fix="pass a copy, and use the copy afterwards",
        )
    )


def describe(value: Any) -> str:
    """Return what a value is, for a message."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"shape {tuple(value.shape)}, dtype {value.dtype}"
    return f"{value!r} of type {type(value).__name__}"
