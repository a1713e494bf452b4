"""Tensors that stand for numbers: a number carries no gradient, no tangent and no batch of a transform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.errors import ArgumentError, layout
from opwright.frameworks.torch import private
from opwright.scalars import expected, gradient_lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.schema import Argument

_TRACED = (torch.SymInt, torch.SymFloat, torch.SymBool, Tensor)


def refusing(qualname: str, argument: Argument, coerce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a coercion that refuses a tensor of which a number would lose something."""

    def checked(value: Any) -> Any:
        _check(qualname, argument, value)
        return coerce(value)

    return checked


def unless_traced(qualname: str, argument: Argument, coerce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a coercion that leaves to torch what may stand for a number that is not known yet."""

    def symbolic(value: Any) -> Any:
        _check(qualname, argument, value)
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, _TRACED) and not (isinstance(one, Tensor) and private.is_wrapped(one)):
                return value
        return coerce(value)

    return symbolic


def _check(qualname: str, argument: Argument, value: Any) -> None:
    for one in value if isinstance(value, list | tuple) else (value,):
        if not isinstance(one, Tensor):
            continue
        if private.is_batched(one):
            raise ArgumentError(
                layout(
                    f"{qualname}: argument {argument.name} is a number, and a tensor that vmap maps over was "
                    "given",
                    expected=expected(argument),
                    got="one number for each entry",
                    fix=f"declare argument {argument.name} as a Tensor",
                )
            )
        if (one.requires_grad and torch.is_grad_enabled()) or private.has_tangent(one):
            raise gradient_lost(qualname, argument)
