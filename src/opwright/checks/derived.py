"""Samples derived from the author's: other values, layouts, dtypes, sizes and flags.

An operator need not accept a derived sample; where it raises on one, that sample is left out.
"""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opwright.checks.arrays import LAYOUTS, has_other_layout, is_floating
from opwright.checks.snippet import name_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from opwright.checks.samples import Leaf, Sample

NO_OP = {
    "int": (1,),
    "SymInt": (1,),
    "float": (1.0, 0.0),
    "number": (1, 0),
    "Scalar": (1, 0),
    "complex": (1.0,),
}
"""Numbers with which an operator may have nothing to do, by schema type."""


def variable(sample: Sample, leaf: Leaf) -> str:
    """Return the expression of an array in a snippet."""
    name = name_in(sample, leaf.argument)
    return name if leaf.element is None else f"{name}[{leaf.element}]"


def in_layout(sample: Sample, leaf: Leaf, layout: str) -> Sample:
    """Return the sample with one array laid out otherwise in memory."""
    lay_out, template, _ = LAYOUTS[layout]
    name = variable(sample, leaf)
    step = f"{name} = {template.format(name)}"
    return sample.with_array(leaf, lay_out(sample.array(leaf)), f"{leaf.label} {layout}", step)


def layouts(sample: Sample, names: Iterable[str]) -> Iterator[tuple[Leaf, str, Sample]]:
    """Yield the sample with one array at a time in each of the layouts that change anything."""
    names = tuple(names)
    for leaf in sample.leaves():
        written = sample.argument(leaf).is_write
        for layout in names:
            if written and layout in ("read-only", "expanded"):
                continue
            if has_other_layout(sample.array(leaf), layout):
                yield leaf, layout, in_layout(sample, leaf, layout)


def compact(sample: Sample) -> Sample:
    """Return the sample with every array contiguous, in memory of its own."""
    import numpy as np

    arrays = {leaf: np.array(sample.array(leaf), order="C") for leaf in sample.leaves()}
    return sample.with_arrays(arrays, "contiguous")


def flags(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with one flag flipped, one optional argument left out, or one choice changed."""
    for index, (argument, value) in enumerate(zip(sample.schema.arguments, sample.values, strict=True)):
        if isinstance(value, bool) and argument.base == "bool":
            yield sample.with_value(index, not value)
        elif argument.is_optional and value is not None:
            yield sample.with_value(index, None)
        if isinstance(argument.choices, tuple):
            yield from (sample.with_value(index, one) for one in argument.choices if one != value)


def no_ops(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with one number, or one dtype, with which there may be nothing to do."""
    arrays = [sample.array(leaf) for leaf in sample.leaves()]
    for index, (argument, value) in enumerate(zip(sample.schema.arguments, sample.values, strict=True)):
        if argument.is_list or argument.has_tensors:
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            kept = [one for one in NO_OP.get(argument.base, ()) if one != value]
            yield from (sample.with_value(index, one) for one in kept)
        elif (
            argument.base == "ScalarType" and value is not None and type(value).__module__.startswith("numpy")
        ):
            import numpy as np

            others = {array.dtype for array in arrays} - {np.dtype(value)}
            yield from (sample.with_value(index, one) for one in sorted(others, key=str))


def numbers(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with one other number: the same axis counted from the other end, or one near by."""
    ranks = sorted({sample.array(leaf).ndim for leaf in sample.leaves()})
    counts = {n for leaf in sample.leaves() for n in _extents(sample.array(leaf).shape)}
    for index, (argument, value) in enumerate(zip(sample.schema.arguments, sample.values, strict=True)):
        if argument.has_tensors or argument.base in ("ScalarType", "Device", "Layout", "MemoryFormat"):
            continue
        several = [*value] if isinstance(value, list | tuple) else [value]
        if several and all(type(one) is int for one in several):
            for rank in ranks:
                turned = [one - rank if one >= 0 else one + rank for one in several]
                if all(-rank <= one < rank for one in [*several, *turned]):
                    yield sample.with_value(index, turned if isinstance(value, list | tuple) else turned[0])
        if type(value) is int:
            # One more than there are elements would lead past their end.
            near = (value - 1,) if value in counts else (value + 1, value - 1)
            yield from (sample.with_value(index, one) for one in near if one > 0 or value < 0)
        elif type(value) is float and math.isfinite(value):
            yield sample.with_value(index, float(f"{0.7 * value + 0.1:.3g}"))  # from 0 to 1 it stays there


def longer_lists(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with the last array of one list twice."""
    for index, (argument, value) in enumerate(zip(sample.schema.arguments, sample.values, strict=True)):
        if argument.is_tensor_list and value and value[-1] is not None and not argument.is_write:
            values = (*sample.values[:index], [*value, value[-1].copy()], *sample.values[index + 1 :])
            title = f"{sample.title}, {argument.name} of {len(value) + 1} arrays"
            yield replace(sample, title=title, values=values, base=values, steps=(), origin="")


def other_dtypes(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with another floating dtype for one argument that is a dtype."""
    import numpy as np

    for index, (argument, value) in enumerate(zip(sample.schema.arguments, sample.values, strict=True)):
        if argument.base == "ScalarType" and type(value).__module__.startswith("numpy"):
            name = "float32" if np.dtype(value) == np.float64 else "float64"
            yield sample.with_value(index, np.dtype(name))


def unequal(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with one axis shorter in all arrays of one shape that has axes of equal sizes."""
    for shape in {sample.array(leaf).shape: None for leaf in sample.leaves()}:
        for axis, size in enumerate(shape):
            if size > 1 and shape.count(size) > 1:
                cut = (slice(None),) * axis + (slice(0, size - 1),)
                arrays = {leaf: sample.array(leaf)[cut].copy() for leaf in sample.leaves()
                          if sample.array(leaf).shape == shape}  # fmt: skip
                yield sample.with_arrays(arrays, f"axis {axis} of {shape} shorter")


def elsewhere(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with other floating values: each changed by up to a quarter, then negated too."""
    import numpy as np

    random = np.random.default_rng(3)
    arrays = {}
    for leaf in sample.leaves():
        array = sample.array(leaf)
        if is_floating(array):
            arrays[leaf] = np.asarray(array * random.uniform(0.75, 1.25, array.shape)).astype(array.dtype)
    if arrays:
        yield sample.with_arrays(arrays, "other values")
        yield sample.with_arrays({leaf: -array for leaf, array in arrays.items()}, "other values, negated")


def dtypes(sample: Sample, names: Iterable[str] = ("float32", "float64")) -> Iterator[Sample]:
    """Yield the sample with all its real floating arrays in another dtype."""
    real = [leaf for leaf in sample.leaves() if sample.array(leaf).dtype.kind == "f"]
    for name in names:
        arrays = {leaf: sample.array(leaf).astype(name) for leaf in real}
        if any(arrays[leaf].dtype != sample.array(leaf).dtype for leaf in real):
            yield sample.with_arrays(arrays, f"in {name}")


def in_double(sample: Sample) -> Sample:
    """Return the sample with all its floating arrays in double precision."""
    arrays = {}
    for leaf in sample.leaves():
        array = sample.array(leaf)
        if is_floating(array):
            arrays[leaf] = array.astype("complex128" if array.dtype.kind == "c" else "float64")
    same = all(arrays[leaf].dtype == sample.array(leaf).dtype for leaf in arrays)
    return sample if same else sample.with_arrays(arrays, "in double precision")


def other_values(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with other values of the same shapes: zeros, negated, reversed, some zeros."""
    import numpy as np

    def some_zeros(array: Any) -> Any:
        new = array.copy()
        new.reshape(-1)[::2] = 0
        return new

    def reverse(array: Any) -> Any:
        return np.flip(array.reshape(-1)).reshape(array.shape).copy()

    changes: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("zeros", np.zeros_like),
        ("negated", operator.neg),
        ("reversed", reverse),
        ("every second element zero", some_zeros),
    )
    for note, change in changes:
        leaves = [
            leaf
            for leaf in sample.leaves()
            if sample.array(leaf).dtype.kind in ("f", "c", "i") and sample.array(leaf).size
        ]
        arrays = {leaf: change(np.array(sample.array(leaf), order="C")) for leaf in leaves}
        if arrays:
            yield sample.with_arrays(arrays, note)


def sizes(sample: Sample) -> list[int]:
    """Return the sizes above 0 that occur in the shapes of a sample."""
    return sorted({size for leaf in sample.leaves() for size in sample.array(leaf).shape} - {0})


def resized(sample: Sample, size: int, new: int) -> Sample:
    """Return the sample with every axis of one size cut down to another."""
    arrays = {}
    for leaf in sample.leaves():
        array = sample.array(leaf)
        if size in array.shape:
            cut = tuple(slice(0, new) if n == size else slice(None) for n in array.shape)
            arrays[leaf] = array[cut].copy()
    return sample.with_arrays(arrays, f"size {size} made {new}")


def doubled(sample: Sample, size: int) -> Sample:
    """Return the sample with every axis of one size made twice as long."""
    import numpy as np

    arrays = {}
    for leaf in sample.leaves():
        array = sample.array(leaf)
        for axis, n in enumerate(array.shape):
            if n == size:
                array = np.concatenate([array, array], axis)
        if array.shape != sample.array(leaf).shape:
            arrays[leaf] = array
    return sample.with_arrays(arrays, f"size {size} made {2 * size}")


def empties(sample: Sample) -> Iterator[tuple[int, Sample]]:
    """Yield each size, and the sample with it made zero everywhere; see `told`."""
    yield from ((size, resized(sample, size, 0)) for size in sizes(sample) if not told(sample, size, 0))


def smaller(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with each of its sizes, one at a time, made one less everywhere; see `told`."""
    for size in sizes(sample):
        if size > 1 and not told(sample, size, size - 1):
            yield resized(sample, size, size - 1)


def told(sample: Sample, size: int, new: int) -> bool:
    """Return whether integers may tell a kernel how long the axes of a size are, or lead it to their end.

    With less there, a kernel that gets addresses and counts, or indices, would go past the end: an integer
    argument that is as large as neighbouring axes together, or an index that is no longer in range.
    """
    arrays = [sample.array(leaf) for leaf in sample.leaves()]
    counts = {n for array in arrays for n in _extents(array.shape, size)}
    indices = [array for array in arrays if array.dtype.kind in "iu" and size not in array.shape]
    return any(number in counts for value in sample.values for number in _integers(value)) or any(
        bool(((array >= new) & (array <= size)).any()) for array in indices
    )


def _integers(value: Any) -> Iterator[int]:
    several = value if isinstance(value, list | tuple) else [value]
    yield from (one for one in several if type(one) is int)


def _extents(shape: Sequence[int], size: int | None = None) -> Iterator[int]:
    """Yield how many elements neighbouring axes have together, where one of them has the size."""
    for first in range(len(shape)):
        for last in range(first + 1, len(shape) + 1):
            if size is None or size in shape[first:last]:
                yield math.prod(shape[first:last])


def misfits(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with one array that may not fit the others: dtype, number of axes, size."""
    import numpy as np

    for leaf in sample.leaves():
        array = sample.array(leaf)
        if array.dtype.kind == "f":
            other = "float32" if array.dtype == np.float64 else "float64"
            yield sample.with_array(leaf, array.astype(other), f"{leaf.label} in {other}")
            yield sample.with_array(leaf, array.astype("int64"), f"{leaf.label} in int64")
        yield sample.with_array(leaf, array[None].copy(), f"{leaf.label} with another axis")
        if array.ndim:
            longer = np.concatenate([array, array[..., :1]], axis=-1)
            yield sample.with_array(leaf, longer, f"{leaf.label} longer")
            fewer = array[0] if array.shape[0] else np.zeros(array.shape[1:], array.dtype)
            if not told(sample, array.shape[0], 0):
                yield sample.with_array(leaf, np.array(fewer), f"{leaf.label} with an axis less")


def with_zero_integers(sample: Sample) -> Sample:
    """Return the sample with every integer array made of zeros, which are in range of any axis."""
    integers = [leaf for leaf in sample.leaves() if sample.array(leaf).dtype.kind in "iu"]
    return sample.with_arrays({leaf: sample.array(leaf) * 0 for leaf in integers})


def special_values(sample: Sample) -> Iterator[tuple[Leaf, Sample]]:
    """Yield the sample with NaN, infinity and minus infinity among the values of one array."""
    import numpy as np

    for leaf in sample.leaves():
        array = sample.array(leaf)
        if array.dtype.kind == "f" and array.size >= 3 and not sample.argument(leaf).is_write:
            new = np.array(array, order="C")
            new.reshape(-1)[:3] = (np.nan, np.inf, -np.inf)
            yield leaf, sample.with_array(leaf, new, f"NaN and infinities in {leaf.label}")
