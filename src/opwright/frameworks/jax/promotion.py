"""The dtype that JAX's arithmetic gives, from metadata alone: its own lattice, with weak types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from opwright.dtypes import as_dtype
from opwright.fakes import FakeArray
from opwright.frameworks.jax.avals import canonical
from opwright.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Operand:
    """What ``jax.numpy.result_type`` reads of an array."""

    def __init__(self, fake: FakeArray) -> None:
        self.dtype = canonical(fake.dtype)
        self.aval = jax.core.ShapedArray((), self.dtype, weak_type=fake.weak_type)


def result_type(operands: Sequence[Any]) -> Any:
    """Return the dtype for arrays, tracers, fakes, dtypes and Python numbers."""
    return jax.numpy.result_type(*map(_operand, operands))


def _operand(value: Any) -> Any:
    if isinstance(value, FakeArray):
        return _Operand(value)
    if isinstance(value, Size):
        return 0
    if hasattr(value, "shape") and not isinstance(value, type):
        return value
    numbers = (bool, int, float, complex)
    return value if value in numbers or type(value) in numbers else canonical(as_dtype(value))
