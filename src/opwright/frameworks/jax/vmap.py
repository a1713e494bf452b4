"""Batching: the vmap rule, and, where there is none, a computation that loops over the batch.

* The rule runs one level down, so that the operators it calls are batched again where vmap is nested.
* A loop runs inside the host body, or is vectorised where the kernel is traced; its derivative is the batch
  of the operator's own, never that of its kernel. An outer batch is folded into the loop's axis.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from opwright.arrays import describe
from opwright.batch_outputs import bad_batch, checked, require_even
from opwright.errors import layout
from opwright.frameworks.base import of_flavour
from opwright.frameworks.jax.arguments import flatten_outputs
from opwright.frameworks.jax.avals import canonical, is_live, no_tangent, shaped, without_axis
from opwright.frameworks.jax.callbacks import Compute, Plan, fill
from opwright.frameworks.jax.ffi import Target, text
from opwright.frameworks.jax.primitive import Computation
from opwright.namespaces import array_namespace
from opwright.outputs import is_one
from opwright.rules.vmap import VmapInfo
from opwright.source import caller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.overload import OpOverload
    from opwright.rules.base import Rule


class NoVmapRuleWarning(UserWarning):
    """An operator without a vmap rule is looped over the batch."""


def by_rule(
    record: OpOverload, rule: Rule, size: int, values: Sequence[Any], in_dims: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return flat outputs and their batch axes, as the author's rule gives them.

    Arrays of NumPy among them are constants, as they are everywhere beside JAX's.
    """
    count = len(record.schema.positional)
    named = dict(zip((a.name for a in record.schema.keyword_only), values[count:], strict=True))
    returned = rule.fn(VmapInfo(size, "different"), tuple(in_dims[:count]), *values[:count], **named)
    outputs, dims = checked(record, rule, returned, ("jax", "numpy"), size)
    out = outputs[0] if is_one(record) else outputs
    leaves, _ = flatten_outputs(record, out, "jax", f"vmap rule at {rule.source}")
    flat: list[Any] = []
    for output, dim in zip(outputs, dims, strict=True):
        flat += dim if isinstance(output, list) else [] if output is None else [dim]
    return leaves, flat


def without_axes(arrays: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Return the abstract values of one element of a batch."""
    return [_without(jax.typeof(array), dim) for array, dim in zip(arrays, dims, strict=True)]


def compare(
    record: OpOverload, rule: Rule, expected: Sequence[Any], outs: Sequence[Any], dims: Sequence[int | None]
) -> None:
    """Raise where a rule's outputs are not those that the fake says, with a batch axis at most."""
    if len(outs) != len(expected):
        what = "a wrong number of arrays"
        raise bad_batch(record, rule, what, f"{len(expected)} (the fake)", str(len(outs)))
    for index, (out, dim, aval) in enumerate(zip(outs, dims, expected, strict=True)):
        got = _without(jax.typeof(out), dim)
        if got.shape != aval.shape or canonical(got.dtype) != aval.dtype:
            what = f"output {index} unlike the fake's, its batch axis {dim} left out"
            raise bad_batch(record, rule, what, describe(aval), describe(got))


def _without(aval: Any, dim: int | None) -> Any:
    if dim is None:
        return aval
    shape = (*aval.shape[:dim], *aval.shape[dim + 1 :])
    return shaped(shape, aval.dtype, [aval], weak_type=aval.weak_type)


def warn_of_loop(qualname: str, reason: str) -> None:
    """Warn that an operator is looped over the batch."""
    warnings.warn(
        NoVmapRuleWarning(
            layout(
                f"vmap of {qualname}: {reason}, so its kernel is called once for each element of the batch",
                fix=f"register one: @opwright.register_vmap({qualname!r})",
            )
        ),
        stacklevel=caller()[1],
    )


class Loop(Computation):
    """A computation for each element along the first axis of the mapped operands.

    Parameters
    ----------
    inner
        What is computed for each.
    mapped
        Which operands have the axis.
    """

    __slots__ = ("inner", "mapped")

    def __init__(self, inner: Computation, mapped: Sequence[bool]) -> None:
        self.inner = inner
        self.mapped = tuple(mapped)
        super().__init__(f"{inner.name}_loop", (inner, self.mapped))

    def __repr__(self) -> str:
        return f"{self.inner!r} over {''.join('b' if one else '-' for one in self.mapped)}"

    def _size(self, arrays: Sequence[Any]) -> Any:
        return next(array.shape[0] for array, one in zip(arrays, self.mapped, strict=True) if one)

    def abstract(self, avals: Sequence[Any]) -> list[Any]:
        size = self._size(avals)
        inside = [without_axis(aval) if one else aval for aval, one in zip(avals, self.mapped, strict=True)]
        return [shaped((size, *out.shape), out.dtype, avals) for out in self.inner.abstract(inside)]

    def plan(self, device_type: str) -> Plan:
        plan = self.inner.plan(device_type)
        if plan.inline:
            return Plan(plan.title, plan.flavour, self._vectorised(plan.compute), plan.source, plan.impure)
        inner = plan.lean
        lean = None if inner is None else lambda whole, view: inner(whole, view, self.mapped)
        return Plan(plan.title, plan.flavour, self._one_by_one(plan), plan.source, plan.impure, lean)

    def target(self) -> Target | None:
        inner = self.inner.target()
        if inner is None:
            return None
        written = text([list(self.mapped), inner.call])
        return None if written is None else Target(inner.name, written, inner.resolve)

    def _vectorised(self, compute: Compute) -> Compute:
        axes = [0 if one else None for one in self.mapped]

        def run(arrays: Sequence[Any], _outs: Sequence[Any] | None) -> list[Any]:
            mapped = jax.vmap(lambda *rows: compute(rows, None), axes, axis_size=self._size(arrays))
            return list(mapped(*arrays))

        return run

    def _one_by_one(self, plan: Plan) -> Compute:
        def run(arrays: Sequence[Any], outs: Sequence[Any] | None) -> list[Any]:
            if outs is None:
                return self._collected(plan, arrays)
            for i in range(self._size(arrays)):
                given = [out[i, ...] for out in outs]
                fill(plan, given, plan.compute(self._row(arrays, i), given))
            return list(outs)

        return run

    def _row(self, arrays: Sequence[Any], i: int) -> list[Any]:
        return [array[i, ...] if one else array for array, one in zip(arrays, self.mapped, strict=True)]

    def _collected(self, plan: Plan, arrays: Sequence[Any]) -> list[Any]:
        """Return the stacked results of every element, for shapes that nothing tells beforehand."""
        size = self._size(arrays)
        if not size:
            return self._empty(plan, arrays)
        rows = [plan.compute(self._row(arrays, i), None) for i in range(size)]
        columns = list(zip(*rows, strict=True))
        for index, column in enumerate(columns):
            require_even(plan.title, index, column)
        return [array_namespace(*column).stack(column) for column in columns]

    def _empty(self, plan: Plan, arrays: Sequence[Any]) -> list[Any]:
        """Return the results of no element, whose shapes the fake tells."""
        dtypes = [jax.numpy.dtype(str(array.dtype).removeprefix("torch.")) for array in arrays]
        pairs = zip(arrays, dtypes, strict=True)
        outs = self.abstract([jax.core.ShapedArray(tuple(array.shape), dtype) for array, dtype in pairs])
        from_numpy = of_flavour(plan.flavour).from_numpy
        return [from_numpy(np.zeros(out.shape, out.dtype)) for out in outs]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        live = [is_live(tangent) for tangent in tangents]
        if not any(live):
            outs = self.bind(*primals)
            return outs, [no_tangent(out) for out in outs]

        def one(rows: Sequence[Any], moves: Sequence[Any]) -> Any:
            def inside(*varied: Any) -> list[Any]:
                rest = iter(varied)
                return self.inner.bind(
                    *[next(rest) if on else row for row, on in zip(rows, live, strict=True)]
                )

            return jax.jvp(inside, [row for row, on in zip(rows, live, strict=True) if on], list(moves))

        axes = [0 if on else None for on in self.mapped]
        moving = [axis for axis, on in zip(axes, live, strict=True) if on]
        moves = [tangent for tangent, on in zip(tangents, live, strict=True) if on]
        batched = jax.vmap(one, (axes, moving), axis_size=self._size(primals))
        outs, out_tangents = batched(list(primals), moves)
        return list(outs), [
            no_tangent(out) if tangent.dtype == jax.dtypes.float0 else tangent
            for out, tangent in zip(outs, out_tangents, strict=True)
        ]

    def batch(self, axis: Any, args: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        size = self._size(
            [
                arg
                if dim is None
                else jax.core.ShapedArray((*arg.shape[:dim], *arg.shape[dim + 1 :]), arg.dtype)
                for arg, dim in zip(args, dims, strict=True)
            ]
        )
        folded, mapped = [], []
        for arg, dim, own in zip(args, dims, self.mapped, strict=True):
            one, on = _fold(arg, dim, own, axis.size, size)
            folded.append(one)
            mapped.append(on)
        outs = Loop(self.inner, mapped).bind(*folded)
        return [out.reshape(axis.size, size, *out.shape[1:]) for out in outs], [0] * len(outs)


def _fold(arg: Any, dim: int | None, own: bool, outer: int, inner: int) -> tuple[Any, bool]:
    """Return an operand with an outer batch folded into the loop's axis, and whether it has that axis."""
    xp = jax.numpy
    if dim is None and not own:
        return arg, False
    if dim is None:
        whole = xp.broadcast_to(arg[None], (outer, *arg.shape))
    else:
        whole = xp.moveaxis(arg, dim, 0)
        if not own:
            whole = xp.broadcast_to(whole[:, None], (outer, inner, *whole.shape[1:]))
    return whole.reshape(outer * inner, *whole.shape[2:]), True


def loop(inner: Computation, args: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Apply a computation to each element of a batch."""
    front = [
        arg if dim is None else jax.numpy.moveaxis(arg, dim, 0) for arg, dim in zip(args, dims, strict=True)
    ]
    outs = Loop(inner, [dim is not None for dim in dims]).bind(*front)
    return outs, [0] * len(outs)
