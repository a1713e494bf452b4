"""The backend kernel: which of the overload's kernels runs, on which arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opwright.entry import first_array
from opwright.frameworks.base import bridge, load
from opwright.frameworks.torch.lowered import Lowered


def make_kernel(state: Lowered) -> Callable[..., Any]:
    """Return the kernel for every device."""
    record = state.record

    def kernel(*args: Any, **kwargs: Any) -> Any:
        flat = state.flat(args, kwargs)
        array = first_array(v for a, v in zip(record.schema.arguments, flat, strict=True) if a.has_tensors)
        chosen = record.select_kernel("torch", array.device.type)
        assert chosen is not None
        return bridge(chosen, load("torch"))(*flat[: state.count], **state.keywords(flat))

    return kernel
