"""The array API namespace of `FakeArray`: constructors, shapes and dtypes; everything else raises.

``array_namespace(x)`` returns this module for a fake, so that a fake may be written in the array API's
words.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opwright.creation import broadcast_shapes, empty_like, result_type
from opwright.dtypes import as_dtype, is_inexact
from opwright.errors import ArgumentValueError, layout
from opwright.fakes import INSTEAD, FakeArray
from opwright.shapes import as_shape, broadcast, show
from opwright.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "asarray",
    "astype",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "concat",
    "empty",
    "empty_like",
    "expand_dims",
    "full",
    "full_like",
    "isdtype",
    "matrix_transpose",
    "moveaxis",
    "ones",
    "ones_like",
    "permute_dims",
    "reshape",
    "result_type",
    "squeeze",
    "stack",
    "zeros",
    "zeros_like",
]

_DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def __getattr__(name: str) -> Any:
    if name in _DTYPES:
        return as_dtype(name)
    raise AttributeError(
        layout(
            f"a FakeArray has no data, so its namespace has no {name!r}",
            expected=f"{INSTEAD}, and {_listed()}",
        )
    )


def _listed() -> str:
    return ", ".join(__all__)


def empty(shape: Any, *, dtype: Any = "float64", device: Any = "cpu") -> FakeArray:
    """Return a fake of a shape."""
    return FakeArray(shape, dtype or "float64", device or "cpu")


zeros = ones = empty
zeros_like = ones_like = empty_like


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = "cpu") -> FakeArray:
    """Return a fake of a shape, by default with the fill value's dtype."""
    return empty(shape, dtype=type(fill_value) if dtype is None else dtype, device=device)


def full_like(x: FakeArray, fill_value: Any, *, dtype: Any = None, device: Any = None) -> FakeArray:
    """Return a fake like another."""
    return x.new_empty(x.shape, dtype=dtype, device=device)


def asarray(x: FakeArray, *, dtype: Any = None, copy: bool | None = None) -> FakeArray:
    """Return the fake, with another dtype where one is given."""
    return x if dtype is None and not copy else x.new_empty(x.shape, dtype=dtype)


def astype(x: FakeArray, dtype: Any, *, copy: bool = True) -> FakeArray:
    """Return a fake of another dtype."""
    return x.astype(dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is of a kind of the array API, or equal to another dtype."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    own = as_dtype(dtype)
    inexact, letter = is_inexact(own), own.kind
    kinds = {
        "bool": letter == "b",
        "signed integer": letter == "i",
        "unsigned integer": letter == "u",
        "integral": letter in "iu",
        "real floating": inexact and letter != "c",
        "complex floating": letter == "c",
        "numeric": letter in "iuc" or inexact,
    }
    return kinds[kind] if isinstance(kind, str) and kind in kinds else bool(own == as_dtype(kind))


def broadcast_to(x: FakeArray, shape: Any) -> FakeArray:
    """Return a fake of the shape, which that of ``x`` must broadcast to."""
    wanted = as_shape(shape)
    broadcast([x.shape, wanted])
    return x.new_empty(wanted)


def broadcast_arrays(*arrays: FakeArray) -> list[FakeArray]:
    """Return fakes of the shape that all broadcast to."""
    shape = broadcast([x.shape for x in arrays])
    return [x.new_empty(shape) for x in arrays]


def reshape(x: FakeArray, shape: Any, *, copy: bool | None = None) -> FakeArray:
    """Return a fake of another shape; one size may be -1."""
    wanted = [shape] if isinstance(shape, int | str | Size) else list(shape)
    holes = [index for index, size in enumerate(wanted) if isinstance(size, int) and size == -1]
    if len(holes) == 1:
        rest = math.prod(size for index, size in enumerate(wanted) if index != holes[0])
        wanted[holes[0]] = x.numel() // rest
    found = x.new_empty(as_shape(wanted))
    if isinstance(found.numel(), int) and isinstance(x.numel(), int) and found.numel() != x.numel():
        raise ArgumentValueError(layout(f"{x} cannot be reshaped to {show(found.shape)}"))
    return found


def permute_dims(x: FakeArray, axes: Sequence[int]) -> FakeArray:
    """Return a fake with its axes in another order."""
    return x.new_empty(tuple(x.shape[axis] for axis in axes))


def matrix_transpose(x: FakeArray) -> FakeArray:
    """Return a fake with its last two axes swapped."""
    return x.mT


def moveaxis(x: FakeArray, source: int, destination: int) -> FakeArray:
    """Return a fake with one axis somewhere else."""
    shape = list(x.shape)
    size = shape.pop(source)
    shape.insert(destination % x.ndim, size)
    return x.new_empty(tuple(shape))


def expand_dims(x: FakeArray, *, axis: int = 0) -> FakeArray:
    """Return a fake with one more axis, of size 1."""
    shape = list(x.shape)
    shape.insert(axis % (x.ndim + 1), 1)
    return x.new_empty(tuple(shape))


def squeeze(x: FakeArray, axis: int | tuple[int, ...]) -> FakeArray:
    """Return a fake without these axes, which have size 1."""
    dropped = {one % x.ndim for one in ((axis,) if isinstance(axis, int) else axis)}
    return x.new_empty(tuple(size for index, size in enumerate(x.shape) if index not in dropped))


def concat(arrays: Sequence[FakeArray], *, axis: int = 0) -> FakeArray:
    """Return a fake of several ones after another."""
    first = arrays[0]
    shape = list(first.shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    return first.new_empty(tuple(shape), dtype=result_type(*arrays))


def stack(arrays: Sequence[FakeArray], *, axis: int = 0) -> FakeArray:
    """Return a fake of several ones along a new axis."""
    first = arrays[0]
    shape = list(first.shape)
    shape.insert(axis % (first.ndim + 1), len(arrays))
    return first.new_empty(tuple(shape), dtype=result_type(*arrays))
