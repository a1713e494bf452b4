"""A batch without a batching rule: the operator is called once for each element.

Elements are views of their arguments, so that a mutated argument is mutated in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.batch_outputs import require_even, uneven
from opwright.calls import mapped, outputs_of
from opwright.errors import MissingRuleError, layout
from opwright.fakes import FakeArray, fake_like
from opwright.faking import run_fake
from opwright.frameworks.base import run_elsewhere
from opwright.outputs import same_objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.calls import Call


def _slice(array: Any, axis: int | None, index: int) -> Any:
    """Return one element of a batch, as a view; an Ellipsis keeps a 0-d array an array."""
    return array if axis is None else array[(*(slice(None),) * axis, index, Ellipsis)]


def by_loop(call: Call, axes: Sequence[Any], size: int) -> tuple[list[Any], list[Any]]:
    """Return the outputs of a loop over the batch, and the batch axis of each."""
    record = call.record
    values = [mapped(call.xp.asarray, v) if a.has_tensors else v for a, v in _pairs(call)]
    if size == 0:
        outputs = _empty_batch(call, values, axes)
    else:
        rows = []
        for index in range(size):
            row = [
                mapped(lambda array, axis: _slice(array, axis, index), value, axis)  # noqa: B023
                if argument.has_tensors
                else value
                for (argument, value), axis in zip(
                    zip(record.schema.arguments, values, strict=True), axes, strict=True
                )
            ]
            rows.append(outputs_of(record, call.run(row)))
        outputs = [_stacked(call, index, [row[index] for row in rows]) for index in range(len(rows[0]))]
    dims: list[Any] = [mapped(lambda one: 0 if hasattr(one, "shape") else None, output) for output in outputs]
    names = [argument.name for argument in record.schema.arguments]
    for index, name in same_objects(record):
        # The output is the argument itself: its elements were mutated in place.
        outputs[index], dims[index] = values[names.index(name)], axes[names.index(name)]
    return outputs, dims


def _pairs(call: Call) -> Any:
    return zip(call.record.schema.arguments, call.values, strict=True)


def _stacked(call: Call, index: int, column: list[Any]) -> Any:
    """Return what one return was for each element, stacked in front."""
    require_even(call.record.qualname, index, column)
    if isinstance(column[0], list | tuple):
        return [_stacked(call, index, list(each)) for each in zip(*column, strict=True)]
    if hasattr(column[0], "shape"):
        return call.xp.stack([call.xp.asarray(one) for one in column])
    return column[0]


def _empty_batch(call: Call, values: Sequence[Any], axes: Sequence[Any]) -> list[Any]:
    """Return the outputs for a batch without elements: their shapes come from the fake."""
    record = call.record

    def fake(array: Any, axis: int | None) -> FakeArray:
        shape = [size for at, size in enumerate(array.shape) if at != axis]
        return fake_like(array, shape, call.device_type)

    row = [
        mapped(fake, value, axis) if argument.has_tensors else value
        for (argument, value), axis in zip(
            zip(record.schema.arguments, values, strict=True), axes, strict=True
        )
    ]
    if not record.schema.returns or len(same_objects(record)) == len(record.schema.returns):
        return [None] * len(record.schema.returns)
    if record.rule("fake") is None:
        raise MissingRuleError(
            layout(
                f"vmap of {record.qualname} over an empty batch: no fake impl is registered, so that the "
                "shapes of its outputs are not known",
                registered=record.source,
                fix=f"register one: @opwright.register_fake({record.qualname!r})",
            )
        )
    out = run_fake(record, row, elsewhere=run_elsewhere)

    def empty(one: Any) -> Any:
        if not isinstance(one, FakeArray):
            return one
        if not all(isinstance(size, int) for size in one.shape):
            raise uneven(record.qualname, 0, f"shape {one.shape}, which depends on data")
        return call.xp.empty((0, *one.shape), dtype=one.dtype)

    return [mapped(empty, output) for output in outputs_of(record, out)]
