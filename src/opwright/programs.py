"""What a function that allocates arrays and launches kernels does, as data.

A compiler that cannot trace such a function can hold what is found here: buffers, copies between them, and
launches of compiled kernels. A framework records it by running the function on arrays without data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class NotAProgram(Exception):  # noqa: N818  (it never reaches a user: another way is taken)
    """A function does something else than allocate and launch, or what it launches cannot be held."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for one contiguous array.

    Parameters
    ----------
    shape, dtype
        Its shape, and the standard name of its dtype.
    fill
        The number that all its elements are at first; None for an argument, or where it does not matter.
    """

    shape: tuple[int, ...]
    dtype: str
    fill: Any = None


@dataclass(frozen=True, slots=True)
class Copy:
    """A step: one buffer gets the elements of another."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A step: a compiled kernel runs on a grid.

    Parameters
    ----------
    kernel
        Triton's compiled kernel.
    grid
        Three sizes.
    parameters
        What the compiled kernel takes, in order: ``("*", buffer)``, or a scalar's type and value.
    written
        The buffers that it writes to.
    """

    kernel: Any
    grid: tuple[int, int, int]
    parameters: tuple[tuple[str, Any], ...]
    written: frozenset[int]


@dataclass(slots=True)
class Program:
    """The steps of a function, in order.

    Parameters
    ----------
    inputs
        How many of the first buffers are its arguments.
    """

    inputs: int
    buffers: list[Buffer] = field(default_factory=list)
    steps: list[Copy | Launch] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
