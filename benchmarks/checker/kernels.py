"""Wrong operators that have several kernels, of several flavours: what the law *agreement* is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from definitions import Case

import opwright as ow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CASES: list[Case] = []
_normal = np.random.default_rng(0).standard_normal((3, 4))


def _add(name: str, other: Callable[[Any], Any], words: str = "", sample: Any = _normal) -> None:
    """Add an operator of a NumPy kernel that doubles, and of another kernel for tensors."""

    def build() -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        def double(x: np.ndarray) -> np.ndarray:
            return x * x.dtype.type(2)

        def for_tensors(x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = other(x)
            return found

        op = ow.custom_op(f"agreement::{name}", double, mutates_args=())
        op.register_kernel("cpu", for_tensors)
        op.register_fake(lambda x: x.new_empty(x.shape))
        return op, (sample,), {}

    CASES.append(Case("zoo", name, build, None, ("agreement",), words))


_add("kernel_of_another_factor", lambda x: (x * 3).contiguous())
_add("kernel_of_another_sign", lambda x: (x * -2).contiguous())
_add("kernel_of_low_precision", lambda x: (x.to(torch.bfloat16) * 2).to(x.dtype).contiguous())
_add(
    "kernel_without_the_last_row", lambda x: torch.cat([x[:-1] * 2, x[-1:]]) if x.dim() and len(x) else x * 2
)
_add("kernel_wrong_for_single", lambda x: (x * (2 if x.dtype != torch.float32 else 2.5)).contiguous())
_add(
    "kernel_wrong_for_nan",
    lambda x: torch.nan_to_num(x * 2, nan=0.0).contiguous(),
    sample=np.array([1.0, np.nan, 3.0]),
)
