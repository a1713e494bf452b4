"""Arguments that share memory with a mutated one: no gradient of such a call can be right.

* A backward is written for arguments of their own memory: with others, what the kernel read and what was kept
  of the call are not what the formula means.
* Two views of one array that have no element in common are apart, interleaved ones too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opwright.errors import GradientError, layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opwright.overload import OpOverload
    from opwright.schema import Argument

MOST_WORK = 100_000
"""How many steps may be spent to find that two views are apart; beyond, they count as sharing."""


class Extent(NamedTuple):
    """Where the elements of an array are: address and strides in bytes, and the bytes of an element."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_size: int

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's description of it, for one that compares addresses and never reads."""
        return {
            "version": 3,
            "data": (self.address + 1, True),  # zero would be no array
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"|V{self.item_size}",
        }


def have_common(one: Extent, other: Extent) -> bool:
    """Return whether two arrays have a byte in common."""
    import numpy as np

    try:
        # NumPy's stub knows two values of max_work; it takes any number.
        return np.shares_memory(np.asarray(one), np.asarray(other), max_work=MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def refuse_shared(record: OpOverload, values: Sequence[Any], shared: Callable[[Any, Any], bool]) -> None:
    """Raise where a mutated argument shares memory with another one, in a call that is differentiated.

    Parameters
    ----------
    record
        The overload.
    values
        Every argument in schema order.
    shared
        ``shared(array, other)`` says whether two arrays have memory in common.
    """
    arrays = list(_named(record.schema.arguments, values))
    for index, (argument, label, array) in enumerate(arrays):
        if not argument.is_write:
            continue
        for at, (other_argument, other_label, other) in enumerate(arrays):
            seen = at == index or (other_argument.is_write and at < index)
            if not seen and (array is other or shared(array, other)):
                raise _shared(record, label, other_label, array is other)


def _named(arguments: Sequence[Argument], values: Sequence[Any]) -> Iterator[tuple[Argument, str, Any]]:
    for argument, value in zip(arguments, values, strict=True):
        if not argument.has_tensors or value is None:
            continue
        if isinstance(value, list | tuple):
            for index, array in enumerate(value):
                if array is not None:
                    yield argument, f"{argument.name}[{index}]", array
        else:
            yield argument, argument.name, value


def _shared(record: OpOverload, mutated: str, other: str, same: bool) -> GradientError:
    what = "are one array" if same else "share memory"
    return GradientError(
        layout(
            f"{record.qualname}: arguments {mutated} and {other} {what}, and {mutated} is mutated; such a "
            "call has no gradient",
            expected="arguments with memory of their own where a gradient or tangent is needed",
            registered=record.source,
            fix=f"pass a copy as {other}, or call it without gradients",
        )
    )
