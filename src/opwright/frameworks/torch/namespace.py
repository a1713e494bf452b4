"""The array API namespace of torch tensors: array_api_compat's, with what ``torch.vmap`` can batch.

* ``torch.moveaxis`` has no batching rule, ``torch.movedim`` has one: what is built on the first is built
  here on the second.
* array_api_compat's ``sign`` assigns through a mask, which no batch can.
"""

from __future__ import annotations

from typing import Any

import array_api_compat.torch as compat
import torch


def moveaxis(x: Any, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Any:
    """Move axes of an array to new positions."""
    return torch.movedim(x, source, destination)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """Split an array into its parts along an axis."""
    return torch.unbind(x, axis)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Compute the dot products of two stacks of vectors; the first is conjugated."""
    dtype = torch.result_type(x1, x2)
    return torch.linalg.vecdot(x1.to(dtype), x2.to(dtype), dim=axis)


def sign(x: Any, /) -> Any:
    """Compute the sign of each element; NaN stays NaN, a complex element is divided by its modulus."""
    if x.is_complex():
        return torch.sgn(x)
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def __getattr__(name: str) -> Any:
    return getattr(compat, name)


def __dir__() -> list[str]:
    return sorted({*dir(compat), *globals()})
