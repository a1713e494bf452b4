"""The dtype that torch's arithmetic gives, from metadata alone.

torch sorts operands by category: tensors with axes, tensors without, Python numbers. A lower category
changes the dtype only if its kind (boolean, integer, floating, complex) is above that of the higher ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opwright.frameworks.torch.convert import to_torch
from opwright.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBERS = ((bool, torch.SymBool), (int, torch.SymInt, Size), (float, torch.SymFloat), (complex,))


def result_type(operands: Sequence[Any]) -> torch.dtype:
    """Return the dtype for tensors, fakes, dtypes (as of tensors with axes) and Python numbers."""
    axes: torch.dtype | None = None
    scalar: torch.dtype | None = None
    number = -1
    for one in operands:
        kind = _kind_of_number(one)
        if kind >= 0:
            number = max(number, kind)
        elif getattr(one, "ndim", 1) == 0:
            scalar = _joined(scalar, one.dtype)
        else:
            axes = _joined(axes, getattr(one, "dtype", one))
    found = _below(axes, _below(scalar, _of_number(number)))
    if found is None:
        raise TypeError("result_type needs an operand")
    return found


def _kind_of_number(value: Any) -> int:
    """Return the kind of a Python number, or -1 for anything else."""
    found = (kind for kind, classes in enumerate(_NUMBERS) if type(value) in classes)
    return next(found, -1)


def _of_number(kind: int) -> torch.dtype | None:
    default = torch.get_default_dtype()
    return None if kind < 0 else (torch.bool, torch.int64, default, _complex(default))[kind]


def _joined(first: torch.dtype | None, second: Any) -> torch.dtype:
    """Return the dtype of two operands of one category."""
    own: torch.dtype = to_torch("ScalarType", second)
    return own if first is None else torch.promote_types(first, own)


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def _below(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of a category and a lower one."""
    if higher is None or lower is None:
        return higher or lower
    if _kind(lower) <= _kind(higher):
        return higher
    return _complex(higher) if higher.is_floating_point else torch.promote_types(higher, lower)


def _complex(dtype: torch.dtype) -> torch.dtype:
    """Return the complex dtype of a floating one; torch's tracer does not know ``dtype.to_complex``."""
    return torch.promote_types(dtype, torch.complex32)
