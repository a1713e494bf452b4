"""Tangents of a call's outputs from those of its arguments: by the jvp rule, or from the backward.

The backward is linear, and its real inner product with a tangent is the tangent of the output whose
gradient was a unit: exact, at the cost of one backward for each element of the outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from opwright.arrays import describe
from opwright.calls import is_array, mapped
from opwright.errors import GradientError, layout
from opwright.forward import classed, counted, fits, leaves
from opwright.gradients import pull_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.forward import Forward


def by_rule(forward: Forward, tangents: Sequence[Any]) -> list[Any]:
    """Return the tangent of each output by the jvp rule, None for one that has none.

    Raises
    ------
    GradientError
        If the rule returns tangents of the wrong number, shape or dtype.
    """
    names = forward.names
    returned = forward.back(forward.rule.fn(forward.ctx, *map(forward.there, tangents)))
    several = [returned] if len(names) == 1 and not isinstance(returned, tuple) else returned
    if not names and several is None:
        several = []
    if not isinstance(several, list | tuple) or len(several) != len(names):
        got = len(several) if isinstance(several, list | tuple) else 1
        raise GradientError(
            layout(
                f"jvp of {forward.call.record.qualname} returned an incorrect number of tangents "
                f"(expected {len(names)}, got {got})",
                expected=f"one for each of {', '.join(names) or 'no outputs'}",
                got=counted(returned),
                registered=forward.rule.source,
            )
        )
    return [
        _checked(forward, *each)
        for each in zip(names, forward.outputs, forward.differentiable, several, strict=True)
    ]


def _checked(forward: Forward, name: str, output: Any, differentiable: Any, tangent: Any) -> Any:
    """Return the tangent of one output that a rule returned, or raise where it does not fit it."""
    call = forward.call
    if not fits(output, tangent):
        _wrong(forward, name, f"a list of {len(output)}", counted(tangent))

    def take(value: Any, counts: bool, given: Any) -> Any:
        if not counts:
            return None
        array = call.xp.asarray(value)
        if given is None:
            return call.xp.zeros_like(array)
        if not is_array(call, given):
            _wrong(forward, name, f"an array of {call.framework.name}, or None", classed(given))
        if tuple(given.shape) != tuple(array.shape) or given.dtype != array.dtype:
            _wrong(forward, name, f"{describe(array)}, those of the output", describe(given))
        return call.xp.asarray(given)

    return mapped(take, output, differentiable, tangent)


def _wrong(forward: Forward, name: str, expected: str, got: str) -> NoReturn:
    raise GradientError(
        layout(
            f"jvp of {forward.call.record.qualname} returned a tangent that does not fit {name}",
            expected=expected,
            got=got,
            registered=forward.rule.source,
        )
    )


def by_backward(forward: Forward, tangents: Sequence[Any]) -> list[Any]:
    """Return the tangent of each output from the backward, None for one that has none."""
    found: list[Any] = []
    for index, (output, differentiable) in enumerate(
        zip(forward.outputs, forward.differentiable, strict=True)
    ):
        if isinstance(output, list | tuple):
            pairs = enumerate(zip(output, differentiable, strict=True))
            found.append([_tangent(forward, (index, at), *pair, tangents) for at, pair in pairs])
        else:
            found.append(_tangent(forward, (index, None), output, differentiable, tangents))
    return found


def _tangent(
    forward: Forward, place: tuple[int, int | None], output: Any, differentiable: Any, tangents: Sequence[Any]
) -> Any:
    """Return the tangent of one output array, element by element."""
    if not differentiable:
        return None
    xp = forward.call.xp
    array = xp.asarray(output)
    unit = xp.zeros(array.size, dtype=array.dtype)
    rows = []
    for element in range(array.size):
        row: Any = 0
        for direction in (1, 1j) if xp.isdtype(array.dtype, "complex floating") else (1,):
            unit[element] = direction
            cotangent = xp.reshape(unit, array.shape)
            row = row + direction * _inner(forward, _only(forward, place, cotangent), tangents)
        unit[element] = 0
        rows.append(xp.asarray(row, dtype=array.dtype))
    return xp.reshape(xp.stack(rows), array.shape) if rows else xp.zeros_like(array)


def _only(forward: Forward, place: tuple[int, int | None], cotangent: Any) -> list[Any]:
    """Return gradients of the outputs that are None but for one array."""
    index, at = place
    cotangents: list[Any] = [None] * len(forward.outputs)
    cotangents[index] = cotangent
    if at is not None:
        cotangents[index] = [None] * len(forward.outputs[index])
        cotangents[index][at] = cotangent
    return cotangents


def _inner(forward: Forward, cotangents: list[Any], tangents: Sequence[Any]) -> Any:
    """Return the real inner product of the gradients that the backward gives with the tangents."""
    xp = forward.call.xp
    total: Any = 0
    for gradient, tangent in zip(pull_back(forward, cotangents), tangents, strict=True):
        for one, other in zip(leaves(gradient), leaves(tangent), strict=False):
            if one is not None and other is not None:
                product = xp.conj(one) * other if xp.isdtype(one.dtype, "complex floating") else one * other
                total = total + xp.sum(xp.real(product) if product.dtype.kind == "c" else product)
    return total
