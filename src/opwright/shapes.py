"""Shapes with symbolic sizes: reading, broadcasting, printing them."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from opwright.errors import ArgumentValueError, layout
from opwright.sizes import Size, as_size

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_shape(shape: Any) -> tuple[Any, ...]:
    """Return a shape of sizes; one size stands for one axis."""
    # Dynamo traces this, and in torch 2.9 knows no unions of types.
    several = shape if isinstance(shape, (list, tuple)) else getattr(shape, "__iter__", None)
    if several is None or isinstance(shape, (str, Size)):
        return (as_size(shape),)
    return tuple(map(as_size, shape))


def broadcast(shapes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Return the shape that arrays of these shapes broadcast to.

    A size that is not known is taken to fit a known one other than 1.

    Raises
    ------
    ArgumentValueError
        If known sizes do not fit each other.
    FakeError
        If it depends on sizes that are not known.
    """
    out: list[Any] = []
    for column in range(1, max((0, *map(len, shapes))) + 1):
        size: Any = 1
        for shape in shapes:
            if column <= len(shape):
                size = _fit(size, shape[-column], shapes)
        out.insert(0, size)
    return tuple(out)


def _fit(a: Any, b: Any, shapes: Sequence[Sequence[Any]]) -> Any:
    plain_a, plain_b = isinstance(a, int), isinstance(b, int)
    if (plain_a and a == 1) or (plain_b and not plain_a and b != 1):
        return b
    if (plain_b and b == 1) or (plain_a and not plain_b) or a == b:
        return a
    raise ArgumentValueError(
        layout(
            "shapes do not broadcast",
            got=" and ".join(show(shape) for shape in shapes),
            expected="sizes that are equal or 1, counted from the last axis",
        )
    )


def show(shape: Sequence[Any]) -> str:
    """Return a shape as text."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def is_axis(value: Any) -> bool:
    """Return whether a value is an integer, a plain one or NumPy's."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
