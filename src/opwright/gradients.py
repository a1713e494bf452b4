"""Gradients of a call's arguments from those of its outputs; what is wrong with those that a rule returned.

A gradient has the shape and dtype of its argument: NumPy has no tape that would sum or cast it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.arrays import describe
from opwright.calls import flat, is_array, mapped, named
from opwright.errors import ArgumentError, GradientError, layout
from opwright.forward import as_given, classed, counted, fits, leaves
from opwright.rules.autograd import of_another_dtype, split_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.forward import Forward
    from opwright.schema import Argument


def pull_back(forward: Forward, cotangents: Sequence[Any]) -> list[Any]:
    """Return the gradient of each argument in schema order, None for one that has none.

    Parameters
    ----------
    forward
        The call.
    cotangents
        One gradient for each output, None where it is not used; a list for a list.

    Raises
    ------
    ArgumentError
        If a gradient of an output does not fit it.
    GradientError
        If the backward returns gradients of the wrong number, shape or dtype.
    """
    grads = [
        _cotangents(forward, *each)
        for each in zip(forward.names, forward.outputs, forward.differentiable, cotangents, strict=True)
    ]
    schema = forward.call.record.schema
    returned: Sequence[Any] = [None] * len(schema.arguments)
    if any(grad is not None for grad in leaves(grads)):
        if forward.ctx.materialize_grads:
            pairs = zip(forward.outputs, grads, strict=True)
            grads = [mapped(_or_zeros(forward), output, grad) for output, grad in pairs]
        rule = forward.rule
        out = forward.back(rule.fn(forward.ctx, *map(forward.there, grads)))
        returned = split_gradients(rule, schema, out)
    kept = {id(array) for array in flat([*forward.values, *forward.ctx.saved_tensors, *grads])}
    each = zip(forward.values, forward.call.values, forward.needs, returned, strict=True)
    return [
        _of_argument(forward, argument, one, kept)
        for argument, one in zip(schema.arguments, each, strict=True)
    ]


def _cotangents(forward: Forward, name: str, output: Any, differentiable: Any, cotangent: Any) -> Any:
    """Return the gradient of one output as the backward gets it; None for one that is not used."""
    if not fits(output, cotangent):
        raise ArgumentError(
            layout(
                f"{forward.call.record.qualname}: the gradient of {name} must be a list",
                expected=f"a list of {len(output)}, or None",
                got=counted(cotangent),
            )
        )

    def take(array: Any, counts: bool, given: Any) -> Any:
        if given is None or not counts:
            return None
        return as_given(forward.call, "gradient", name, array, given)

    return mapped(take, output, differentiable, cotangent)


def _or_zeros(forward: Forward) -> Callable[[Any, Any], Any]:
    xp = forward.call.xp
    return lambda output, grad: xp.zeros_like(xp.asarray(output)) if grad is None else grad


def _of_argument(forward: Forward, argument: Argument, entry: Sequence[Any], kept: set[int]) -> Any:
    """Return the gradient of one argument, checked.

    ``entry`` has its value as it was called with and as it was given, whether it needs a gradient, and what
    the backward returned for it.
    """
    value, original, need, grad = entry
    if not argument.has_tensors and grad is not None:
        raise _wrong(forward, "a gradient", argument.name, "None: it is not an array", describe(grad))
    if value is None or not any(leaves(need)):
        return None
    if isinstance(value, list | tuple) and grad is not None:
        if not isinstance(grad, list | tuple):
            what = "a gradient that must be a list"
            raise _wrong(forward, what, argument.name, f"a list of {len(value)}", counted(grad))
        if len(grad) != len(value):
            what = f"an incorrect number of gradients (expected {len(value)}, got {len(grad)})"
            raise _wrong(forward, what, argument.name, f"a list of {len(value)}", counted(grad))
    labels = iter([label for label, _ in named(argument.name, value)])
    xp = forward.call.xp

    def take(array: Any, before: Any, needed: bool, gradient: Any) -> Any:
        label = next(labels)
        if not needed:
            return None
        if gradient is None:
            return xp.zeros_like(xp.asarray(before))
        checked = _checked(forward, label, xp.asarray(array), gradient)
        if checked.dtype != before.dtype:  # autocast changed the argument
            return xp.astype(checked, before.dtype)
        return _own(forward, checked, kept)

    return mapped(take, value, original, need, grad)


def _checked(forward: Forward, name: str, value: Any, grad: Any) -> Any:
    if not is_array(forward.call, grad):
        expected = f"an array of {forward.call.framework.name}, or None"
        raise _wrong(forward, "something else than a gradient", name, expected, classed(grad))
    if tuple(grad.shape) != tuple(value.shape):
        raise _wrong(
            forward,
            "a gradient of another shape",
            name,
            f"shape {tuple(value.shape)}, that of the argument",
            f"shape {tuple(grad.shape)}",
            fix="sum it over the axes along which the operator broadcasts the argument",
        )
    if grad.dtype != value.dtype:
        qualname = forward.call.record.qualname
        raise of_another_dtype(qualname, forward.rule, name, expected=value.dtype, got=grad.dtype)
    return forward.call.xp.asarray(grad)


def _own(forward: Forward, array: Any, kept: set[int]) -> Any:
    """Return a gradient that shares no memory with what the caller, the rule or another argument holds."""
    owns = getattr(getattr(array, "flags", None), "owndata", True)
    if id(array) in kept or not owns:
        array = forward.call.xp.asarray(array, copy=True)
    kept.add(id(array))
    return array


def _wrong(
    forward: Forward, what: str, name: str, expected: str, got: str, *, fix: str | None = None
) -> GradientError:
    return GradientError(
        layout(
            f"backward of {forward.call.record.qualname} returned {what} for argument {name}",
            expected=expected,
            got=got,
            registered=forward.rule.source,
            fix=fix,
        )
    )
