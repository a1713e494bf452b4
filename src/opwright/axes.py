"""The axes of a batch: ``in_dims`` and ``out_dims``, brought into one form and checked."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opwright.arrays import describe
from opwright.calls import flat
from opwright.errors import ArgumentError, ArgumentValueError, layout
from opwright.shapes import is_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.calls import Call
    from opwright.schema import Argument

RANDOMNESS = ("error", "different", "same")


@dataclass(frozen=True, slots=True)
class Level:
    """One ``vmap`` around an operator: its ``in_dims``, ``out_dims`` and ``randomness``."""

    in_dims: Any
    out_dims: Any
    randomness: str


def level(in_dims: Any, out_dims: Any, randomness: Any) -> Level:
    """Return a level, its parts of the right types.

    Raises
    ------
    ArgumentError, ArgumentValueError
        If one is of another type, or ``randomness`` is not a mode.
    """
    for name, dims in (("in_dims", in_dims), ("out_dims", out_dims)):
        if not (isinstance(dims, list | tuple) or is_axis(dims) or (dims is None and name == "out_dims")):
            raise ArgumentError(
                layout(
                    f"vmap: {name} must be an int or a tuple",
                    expected=f"an int, or a tuple with one entry for each {name.removesuffix('_dims')}put",
                    got=f"{dims!r} of type {type(dims).__name__}",
                )
            )
    if randomness not in RANDOMNESS:
        raise ArgumentValueError(
            layout("vmap: not a randomness mode", expected=", ".join(RANDOMNESS), got=repr(randomness))
        )
    return Level(in_dims, out_dims, randomness)


def axes_of(call: Call, in_dims: Any, shapes: Sequence[Any]) -> list[Any]:
    """Return the batch axis of each argument in schema order, not negative; None where it is not batched.

    Parameters
    ----------
    call
        The call.
    in_dims
        An int, or one entry for each argument that was given by position, nested for lists.
    shapes
        The shape of each array argument, a list of them for a list; None for what is no array.

    Raises
    ------
    ArgumentError, ArgumentValueError
        If they do not fit the arguments; the message names the argument.
    """
    schema, given = call.record.schema, call.given
    if isinstance(in_dims, list | tuple) and len(in_dims) != given:
        raise ArgumentValueError(
            layout(
                f"vmap of {call.record.qualname}: in_dims has another length than there are arguments",
                expected=f"{given}, one for each argument given by position",
                got=f"{len(in_dims)}: {in_dims!r}",
            )
        )
    out: list[Any] = []
    for index, (argument, shape) in enumerate(zip(schema.arguments, shapes, strict=True)):
        if index >= given:
            out.append(_whole(shape, None))
        elif isinstance(in_dims, list | tuple):
            out.append(_axes(call, argument, in_dims[index], shape, call.values[index]))
        else:
            out.append(None if shape is None else _axes(call, argument, in_dims, shape, call.values[index]))
    return out


def _whole(shape: Any, axis: Any) -> Any:
    return [None if one is None else axis for one in shape] if isinstance(shape, list) else axis


def _axes(call: Call, argument: Argument, dims: Any, shape: Any, value: Any) -> Any:
    """Return the batch axis of one argument, nested for a list."""
    what = f"vmap of {call.record.qualname}"
    if isinstance(shape, list):
        several = dims if isinstance(dims, list | tuple) else _whole(shape, dims)
        if len(several) != len(shape):
            raise ArgumentValueError(
                layout(
                    f"{what}: in_dims for argument {argument.name} has another length than the list",
                    expected=str(len(shape)),
                    got=f"{len(several)}: {dims!r}",
                )
            )
        names = [f"{argument.name}[{index}]" for index in range(len(shape))]
        return [_axis(what, *each) for each in zip(names, several, shape, value, strict=True)]
    return _axis(what, argument.name, dims, shape, value)


def _axis(what: str, name: str, dim: Any, shape: Any, value: Any) -> int | None:
    if dim is None:
        return None
    if not is_axis(dim):
        raise ArgumentError(
            layout(
                f"{what}: in_dims for argument {name} must be an int or None",
                got=f"{dim!r} of type {type(dim).__name__}",
            )
        )
    if shape is None:
        raise ArgumentError(
            layout(
                f"{what}: argument {name} is not an array and cannot be batched",
                expected="None for it in in_dims",
                got=f"{dim} for {describe(value)}",
            )
        )
    return in_range(f"{what}: in_dims for argument {name}", operator.index(dim), len(shape), shape)


def in_range(what: str, axis: int, count: int, shape: Any) -> int:
    """Return an axis, not negative.

    Raises
    ------
    ArgumentValueError
        If the array has no such axis.
    """
    if not -count <= axis < count:
        expected = f"from {-count} to {count - 1}" if count else "None: the array has no axis"
        raise ArgumentValueError(
            layout(f"{what} is out of range", expected=expected, got=f"{axis} for shape {tuple(shape)}")
        )
    return axis % count


def batch_size(call: Call, axes: Sequence[Any], shapes: Sequence[Any]) -> int:
    """Return the size of the batch, which all batched arguments agree on.

    Raises
    ------
    ArgumentValueError
        If they do not agree, or nothing is batched.
    """
    found: list[tuple[str, int, int]] = []
    for argument, axis, shape in zip(call.record.schema.arguments, axes, shapes, strict=True):
        if isinstance(axis, list):
            parts = enumerate(zip(axis, shape, strict=True))
            found += [(f"{argument.name}[{i}]", a, s[a]) for i, (a, s) in parts if a is not None]
        elif axis is not None:
            found.append((argument.name, axis, shape[axis]))
    if not found:
        raise ArgumentValueError(
            layout(
                f"vmap of {call.record.qualname}: no argument is batched",
                expected="an axis in in_dims for one array at least",
                fix="call the operator itself",
            )
        )
    if len({size for _, _, size in found}) > 1:
        raise ArgumentValueError(
            layout(
                f"vmap of {call.record.qualname}: the arguments' batches have different sizes",
                expected="one size for all batched arguments",
                got=", ".join(f"{name} has {size} along axis {axis}" for name, axis, size in found),
            )
        )
    return found[0][2]


def out_axes(call: Call, out_dims: Any, outputs: Sequence[Any]) -> list[Any]:
    """Return the entry of ``out_dims`` for each output, a list for a list.

    Raises
    ------
    ArgumentValueError
        If there are more or fewer than outputs.
    """
    what = f"vmap of {call.record.qualname}"
    if not isinstance(out_dims, list | tuple):
        return [_whole(output, out_dims) if isinstance(output, list) else out_dims for output in outputs]
    if len(out_dims) != len(outputs):
        raise ArgumentValueError(
            layout(
                f"{what}: out_dims has another length than there are outputs",
                expected=str(len(outputs)),
                got=f"{len(out_dims)}: {out_dims!r}",
            )
        )
    out: list[Any] = []
    for dims, output in zip(out_dims, outputs, strict=True):
        if isinstance(output, list) and not isinstance(dims, list | tuple):
            out.append([dims] * len(output))
        elif isinstance(output, list) and len(dims) == len(output):
            out.append(list(dims))
        elif isinstance(output, list) or isinstance(dims, list | tuple):
            raise ArgumentValueError(
                layout(f"{what}: out_dims does not have the structure of the outputs", got=repr(out_dims))
            )
        else:
            out.append(dims)
    return out


def check_mutated(call: Call, axes: Sequence[Any]) -> None:
    """Raise where a mutated argument is not batched while others are.

    Raises
    ------
    ArgumentError
        Naming the argument.
    """
    for argument, axis, value in zip(call.record.schema.arguments, axes, call.values, strict=True):
        several = axis if isinstance(axis, list) else [axis]
        if argument.is_write and flat(value) and None in several:
            raise ArgumentError(
                layout(
                    f"vmap of {call.record.qualname}: argument {argument.name} is mutated and not batched",
                    expected="an axis for it in in_dims",
                    got="None: each element of the batch would write to the same array",
                    fix=f"give it a batch axis: a copy of {argument.name} for each element",
                )
            )
