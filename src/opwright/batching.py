"""``vmap`` of one operator: the author's batching rule, or a loop.

* Nested ``vmap`` needs no wrapped arrays: the batches are folded into one, so that the rule is called once.
* Batched arguments go to the rule where they are, with their axis; a mutated one is mutated in place.
* What a rule returns is checked: outputs, their number, and the axis of each.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final
from weakref import WeakSet

from opwright.axes import Level, axes_of, batch_size, check_mutated, in_range, level, out_axes
from opwright.batch_loop import by_loop
from opwright.batch_outputs import checked
from opwright.calls import bind, mapped, require_operator, split
from opwright.catalogue import ARRAY_API
from opwright.errors import ArgumentValueError, UnsupportedError, layout
from opwright.outputs import same_objects
from opwright.rules.vmap import VmapInfo
from opwright.source import caller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.calls import Call
    from opwright.overload import OpOverload
    from opwright.rules.base import Rule


class LoopWarning(UserWarning):
    """An operator is called once for each element of a batch, for want of a batching rule."""


_warned: WeakSet[OpOverload] = WeakSet()


@final
class Batched:
    """An operator on a batch of arguments; made by ``opwright.vmap``."""

    def __init__(self, op: Any, levels: tuple[Level, ...]) -> None:
        self.op = op
        self.levels = levels

    def __repr__(self) -> str:
        record = require_operator("vmap", self.op)
        return f"{'vmap(' * len(self.levels)}{record.qualname}{')' * len(self.levels)}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator on each element of the batch; arguments given by name are not batched.

        Raises
        ------
        ArgumentError, ArgumentValueError
            If ``in_dims`` or ``out_dims`` do not fit.
        OutputError
            If the batching rule returns something that does not fit.
        """
        call = bind("vmap", self.op, args, kwargs)
        _check_randomness(call, self.levels)
        record = call.record
        outputs, dims, sizes = (
            _one_level(call, self.levels[0]) if len(self.levels) == 1 else _folded(call, self.levels)
        )
        placed = _placed(call, self.levels, sizes, outputs, dims)
        if not record.schema.returns:
            return None
        return placed[0] if len(placed) == 1 and not record.schema.is_tuple else tuple(placed)


def vmap(op: Any, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error") -> Batched:
    """Return an operator that takes a batch of arguments.

    Parameters
    ----------
    op
        An operator, its qualified name, or what ``vmap`` returned.
    in_dims
        The batch axis of every array, or one for each positional argument: an int (also a negative one), None
        where it is not batched, nested for lists. Arguments given by name are not batched.
    out_dims
        The batch axis of the outputs, or one for each.
    randomness
        For operators tagged ``nondeterministic_seeded``: ``"error"``, ``"different"`` (one draw for each
        element) or ``"same"`` (one for all).

    Returns
    -------
    callable
        It runs the operator's batching rule; without one it calls the operator once for each element, and
        warns so once.

    Raises
    ------
    ArgumentError
        If ``op`` is no operator. When called: if dims do not fit the arguments.
    UnsupportedError
        When called with arrays whose own library has vmap; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::norm", mutates_args=())
    ... def norm(x: np.ndarray) -> np.ndarray:
    ...     return np.asarray(np.sqrt((x * x).sum(-1)))
    >>> @norm.register_vmap
    ... def rule(info, in_dims, x):
    ...     return norm(np.moveaxis(x, in_dims[0], 0)), 0
    >>> ow.vmap(norm, in_dims=1)(np.array([[3.0, 0.0], [4.0, 2.0]]))
    array([5., 2.])
    """
    outer = level(in_dims, out_dims, randomness)
    if isinstance(op, Batched):
        return Batched(op.op, (outer, *op.levels))
    require_operator("vmap", op)
    return Batched(op, (outer,))


def _check_randomness(call: Call, levels: Sequence[Level]) -> None:
    record = call.record
    if "nondeterministic_seeded" not in record.tags:
        return
    modes = list(dict.fromkeys(one.randomness for one in levels))
    if "error" in modes:
        raise UnsupportedError(
            layout(
                f"vmap of {record.qualname}: it is random, and randomness is 'error'",
                registered=record.source,
                fix="say randomness='different' (one draw for each element) or randomness='same'",
            )
        )
    if len(modes) > 1:
        raise UnsupportedError(
            layout(
                f"nested vmap of {record.qualname}: its levels have different randomness",
                got=", ".join(modes),
            )
        )


def _shapes(call: Call) -> list[Any]:
    """Return the shape of each array argument, a list for a list, None for what is no array."""

    def one(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [one(element) for element in value]
        return None if value is None else tuple(value.shape)

    pairs = zip(call.record.schema.arguments, call.values, strict=True)
    return [one(value) if argument.has_tensors else None for argument, value in pairs]


def _one_level(call: Call, one: Level) -> tuple[list[Any], list[Any], list[int]]:
    """Return outputs, their batch axes (None for one that is not batched) and the size of the batch."""
    shapes = _shapes(call)
    axes = axes_of(call, one.in_dims, shapes)
    size = batch_size(call, axes, shapes)
    check_mutated(call, axes)
    return *_run(call, axes, VmapInfo(size, one.randomness)), [size]


def _run(call: Call, axes: Sequence[Any], info: VmapInfo) -> tuple[list[Any], list[Any]]:
    rule = call.record.rule("vmap")
    if rule is not None and rule.flavour in (ARRAY_API, call.framework.flavour):
        return _by_rule(call, rule, axes, info)
    if info.randomness == "same" and "nondeterministic_seeded" in call.record.tags:
        raise UnsupportedError(
            layout(
                f"vmap of {call.record.qualname}: one draw for all elements needs a batching rule",
                registered=call.record.source,
                fix=f"register one: @opwright.register_vmap({call.record.qualname!r})",
            )
        )
    _warn(call, rule)
    return by_loop(call, axes, info.batch_size)


def _by_rule(call: Call, rule: Rule, axes: Sequence[Any], info: VmapInfo) -> tuple[list[Any], list[Any]]:
    """Return the outputs of a batching rule, and the batch axis of each, None for one without."""
    record = call.record
    args, kwargs = split(record, call.for_rule(rule.flavour, call.values))
    returned = rule.fn(info, tuple(axes[: len(args)]), *args, **kwargs)
    return checked(record, rule, returned, (call.framework.name,), info.batch_size)


def _warn(call: Call, rule: Rule | None) -> None:
    record = call.record
    if record in _warned:
        return
    _warned.add(record)
    why = "has no vmap rule"
    if rule is not None:
        why = f"has a vmap rule of flavour {rule.flavour} ({rule.source}), not {call.framework.flavour}"
    warnings.warn(
        LoopWarning(
            f"{record.qualname} {why}: opwright.vmap calls it once for each element of the batch; "
            f"register one with opwright.register_vmap({record.qualname!r}, ...)"
        ),
        stacklevel=caller()[1],
    )


# ----------------------------------------------------------------------------------- several batches in one


@dataclass(frozen=True, slots=True)
class _Part:
    """An array in front of whose axes stand those of the batches of some levels, in the levels' order."""

    array: Any
    levels: tuple[int, ...] = ()

    @property
    def rest(self) -> tuple[int, ...]:
        """The shape of one element."""
        return tuple(self.array.shape[len(self.levels) :])

    def batched(self, xp: Any, level: int, axis: int | None) -> _Part:
        """Return the part with one of the element's axes as the batch of one more level."""
        if axis is None:
            return self
        count = len(self.levels)
        return _Part(xp.moveaxis(self.array, count + axis, count), (*self.levels, level))

    def folded(self, xp: Any, sizes: Sequence[int]) -> Any:
        """Return the array with one batch axis for all levels; itself where it is not batched."""
        if not self.levels:
            return self.array
        spread = self.array
        if len(self.levels) < len(sizes):
            where = tuple(slice(None) if level in self.levels else None for level in range(len(sizes)))
            spread = xp.broadcast_to(spread[(*where, Ellipsis)], (*sizes, *self.rest))
        return xp.reshape(spread, (math.prod(sizes), *self.rest))


def _folded(call: Call, levels: tuple[Level, ...]) -> tuple[list[Any], list[Any], list[int]]:
    """Run nested levels as one: all batch axes of an argument become a single one in front."""
    record, xp = call.record, call.xp
    parts = [
        mapped(lambda array: _Part(xp.asarray(array)), value) if argument.has_tensors else None
        for argument, value in zip(record.schema.arguments, call.values, strict=True)
    ]
    sizes: list[int] = []
    for at, one in enumerate(levels):
        shapes = [mapped(lambda part: part.rest, part) for part in parts]
        axes = axes_of(call, one.in_dims, shapes)
        sizes.append(batch_size(call, axes, shapes))
        check_mutated(call, axes)
        pairs = zip(parts, axes, strict=True)
        parts = [mapped(lambda part, axis: part.batched(xp, at, axis), *pair) for pair in pairs]  # noqa: B023
    values = [
        mapped(lambda part: part.folded(xp, sizes), part) if argument.has_tensors else value
        for argument, part, value in zip(record.schema.arguments, parts, call.values, strict=True)
    ]
    axes = [mapped(lambda part: 0 if part.levels else None, part) for part in parts]
    info = VmapInfo(math.prod(sizes), levels[0].randomness)
    outputs, dims = _run(replace(call, values=tuple(values), given=len(record.schema.positional)), axes, info)
    for argument, part, value in zip(record.schema.arguments, parts, values, strict=True):
        if argument.is_write:
            mapped(_write_back, part, value)
    names = [argument.name for argument in record.schema.arguments]
    for index, name in same_objects(record):
        outputs[index] = parts[names.index(name)]  # the argument itself, as a view
    return outputs, dims, sizes


def _write_back(part: _Part, value: Any) -> None:
    """Give a mutated argument what the operator wrote to its folded copy."""
    part.array[...] = value.reshape(part.array.shape)


def _placed(
    call: Call, levels: Sequence[Level], sizes: Sequence[int], outputs: list[Any], dims: list[Any]
) -> list[Any]:
    """Return the outputs with the axis of each level where its ``out_dims`` says."""
    wanted = [out_axes(call, one.out_dims, outputs) for one in levels]
    placed: list[Any] = []
    for index, (output, dim) in enumerate(zip(outputs, dims, strict=True)):
        place = _Place(call, f"output {index}", tuple(sizes))
        if isinstance(output, list):
            each = enumerate(zip(output, dim, *(one[index] for one in wanted), strict=True))
            parts = [
                (replace(place, name=f"{place.name}[{at}]"), out, d, axes) for at, (out, d, *axes) in each
            ]
            placed.append([part.of(out, d, axes) for part, out, d, axes in parts])
        else:
            placed.append(place.of(output, dim, [one[index] for one in wanted]))
    return placed


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the batch axes of one output go."""

    call: Call
    name: str
    sizes: tuple[int, ...]

    def of(self, output: Any, dim: int | None, axes: Sequence[int | None]) -> Any:
        """Return the output with each level's axis in its place, from the innermost level out."""
        xp = self.call.xp
        kept = [(size, axis) for size, axis in zip(self.sizes, axes, strict=True) if axis is not None]
        if isinstance(output, _Part):
            front = output.array
        elif not hasattr(output, "shape") or (dim is None and not kept):
            return output
        elif dim is None:
            shape = (*(size for size, _ in kept), *output.shape)
            front = xp.asarray(xp.broadcast_to(output, shape), copy=True)
        else:
            front = xp.moveaxis(output, dim, 0) if dim else output
            front = xp.reshape(front, (*self.sizes, *front.shape[1:])) if len(self.sizes) > 1 else front
        what = f"vmap of {self.call.record.qualname}: out_dims for {self.name}"
        if len(kept) < len(self.sizes) and (dim is not None or isinstance(output, _Part)):
            raise ArgumentValueError(
                layout(
                    f"{what} is None, but it is batched",
                    expected="the axis that its batch is to have",
                )
            )
        for place in range(len(kept) - 1, -1, -1):
            to = in_range(what, kept[place][1], front.ndim - place, front.shape[place:])
            front = xp.moveaxis(front, place, place + to) if to else front
        return front
