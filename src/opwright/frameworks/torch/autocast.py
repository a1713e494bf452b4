"""The autocast rule: a kernel at ``AutocastCPU``, ``AutocastCUDA``, … that casts and calls the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opwright.frameworks.torch import private
from opwright.keys import key_of
from opwright.rules.autocast import AutocastRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.frameworks.torch.lowered import Lowered


def key_for(rule: AutocastRule) -> str:
    """Return the dispatch key of a rule's device type."""
    return f"Autocast{key_of(rule.device_type)}"


def make_kernel(state: Lowered, device_type: str) -> Callable[..., Any]:
    """Return the kernel for a device type's autocast key."""
    key = torch.DispatchKeySet(getattr(torch.DispatchKey, f"Autocast{key_of(device_type)}"))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        rule = state.record.rule("autocast", device_type)
        assert isinstance(rule, AutocastRule)  # noqa: S101  (the kernel stands only while there is one)
        dtype = getattr(torch, rule.dtype)
        with private.exclude_keys(key):
            return state.call(tuple(_cast(value, device_type, dtype) for value in state.flat(args, kwargs)))

    return private.never_traced(kernel)


def _cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    """Cast what autocast casts: floating tensors on the device, but for float64; lists too."""
    if isinstance(value, torch.Tensor):
        eligible = value.is_floating_point() and value.dtype is not torch.float64
        return value.to(dtype) if eligible and value.device.type == device_type else value
    if value.__class__ in (list, tuple):
        return [_cast(one, device_type, dtype) for one in value]
    return value
