"""Tensors that stand for numbers: a number carries no gradient, no tangent and no batch of a transform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.errors import ArgumentError, layout
from opwright.frameworks.torch import private
from opwright.scalars import entries, expected, gradient_lost, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.schema import Argument

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class TakenOverError(Exception):
    """A number is an object that takes over torch's functions: only torch's dispatcher can be called."""


def takes_over(value: Any) -> bool:
    """Return whether a value is no tensor and takes over torch's functions, as what records a graph does."""
    return hasattr(type(value), "__torch_function__") and not isinstance(value, Tensor)


def refusing(qualname: str, argument: Argument, coerce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a coercion that refuses a tensor of which a number would lose something."""

    def checked(value: Any) -> Any:
        if _any_takes_over(value):
            raise TakenOverError
        _check(qualname, argument, value)
        return coerce(value)

    return checked


def unless_traced(qualname: str, argument: Argument, coerce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a coercion that leaves to torch what may stand for a number that is not known yet."""

    def symbolic(value: Any) -> Any:
        _check(qualname, argument, value)
        if _any_takes_over(value):
            return value
        for one in _each(value):
            if isinstance(one, _SYMBOLS) or (isinstance(one, Tensor) and _traced(argument, one)):
                return value
        return coerce(value)

    return symbolic


def _each(value: Any) -> Sequence[Any]:
    """Return the entries of a list, and of what stands in the place of one; else the value alone."""
    found = entries(value)
    return (value,) if found is None else found


def _any_takes_over(value: Any) -> bool:
    return any(map(takes_over, value if isinstance(value, list | tuple) else (value,)))


def _traced(argument: Argument, tensor: Tensor) -> bool:
    """Return whether a tensor may stand for the number, and has none yet or is read for a graph."""
    if argument.base in ("Scalar", "number") or tensor.ndim or private.is_wrapped(tensor):
        return False
    return private.traced() or isinstance(tensor, private.traced_tensors())


def _check(qualname: str, argument: Argument, value: Any) -> None:
    for one in _each(value):
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
        reason = None if one.ndim else _misfit(argument, one)
        if reason is not None:
            raise refused(qualname, argument, reason, value)


def _misfit(argument: Argument, tensor: Tensor) -> str | None:
    """Say why no number can be had from a tensor, whatever its value: torch would truncate what it has."""
    if argument.base in ("int", "SymInt", "bool") and (tensor.is_floating_point() or tensor.is_complex()):
        return "must be True or False" if argument.base == "bool" else "must be an integer"
    if argument.base == "float" and tensor.is_complex():
        return "must be real"
    if tensor.is_meta and argument.base not in ("Scalar", "number"):
        return "must be a number, which a tensor on the meta device has not"
    return None
