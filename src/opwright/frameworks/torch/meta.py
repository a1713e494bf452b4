"""A fake written with torch, called with another framework's fakes: it runs on meta tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opwright.errors import UnsupportedError, layout
from opwright.fakes import FakeArray
from opwright.frameworks.torch.convert import to_torch
from opwright.shapes import show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opwright.rules.base import Rule


def run_fake(rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what the fake returns, with a `FakeArray` for each meta tensor.

    Raises
    ------
    UnsupportedError
        If a size is symbolic: a meta tensor has plain ones.
    """
    given = {name: _meta(rule, value) for name, value in kwargs.items()}
    return _fake(rule.fn(*(_meta(rule, value) for value in args), **given))


def _meta(rule: Rule, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_meta(rule, one) for one in value)
    if not isinstance(value, FakeArray):
        return value
    if not all(isinstance(size, int) for size in value.shape):
        raise UnsupportedError(
            layout(
                "a fake of flavour torch runs on meta tensors, which have no symbolic sizes",
                got=f"shape {show(value.shape)}",
                registered=rule.source,
                fix="write it with opwright.empty_like and opwright.empty, for any framework",
            )
        )
    return torch.empty(value.shape, dtype=to_torch("ScalarType", value.dtype), device="meta")


def _fake(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_fake, value))
    if isinstance(value, torch.Tensor):
        return FakeArray(tuple(value.shape), value.dtype)
    return value
