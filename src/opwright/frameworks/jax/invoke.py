"""A call of an operator with JAX arrays, tracers or references, on the path that is right for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from opwright import modes
from opwright.errors import UnsupportedError, layout
from opwright.frameworks.jax import private
from opwright.frameworks.jax.arguments import (
    ForeignError,
    Splitter,
    Template,
    as_user_output,
    has_other_returns,
    unflatten,
)
from opwright.frameworks.jax.avals import same_axes
from opwright.frameworks.jax.call import Call
from opwright.frameworks.jax.callbacks import Plan, in_whole_bytes, on_numpy
from opwright.frameworks.jax.execute import concrete, run_here
from opwright.frameworks.jax.kernels import apply
from opwright.frameworks.jax.primitive import default_device_type, device_type_of, device_type_of_call
from opwright.outputs import is_one, same_objects
from opwright.rules.autograd import new_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.overload import OpOverload


def invoker(record: OpOverload, convert: Callable[[str, Any], Any]) -> Callable[..., Any]:
    """Return the function that takes every argument of an operator by position, in schema order."""
    splitter = Splitter(record, convert)
    schema = record.schema
    silent = not schema.returns and not schema.mutated
    numbers = has_other_returns(schema)
    one, plain = is_one(record), not schema.mutated and all(str(r.type) == "Tensor" for r in schema.returns)

    def run(*values: Any) -> Any:
        try:
            arrays, template, refs = splitter.split(values)
        except ForeignError:
            return record.miss(*values)
        call = Call(record, template)
        if silent:
            return _run_silent(call, arrays)
        if numbers:
            return _run_untraced(call, arrays)
        arrays = same_axes(arrays)
        outs = call.bind(*arrays)
        if plain:
            return outs[0] if one else tuple(outs)
        avals = [jax.typeof(array) for array in arrays]
        if refs:
            _write(record, template, call.structure(avals, len(outs)), outs, refs)
        return call.user_output(avals, outs)

    def invoke(*values: Any) -> Any:
        if modes.ACTIVE[0]:
            return modes.run_under(record, run, values, device_type_of=device_type, cast=cast)
        return run(*values)

    return invoke


def device_type(array: Any) -> str:
    """Return the device type of an array, tracer or reference, in torch's words."""
    if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
        return device_type_of(array)
    return default_device_type()


def _device_type_of_call(arrays: Sequence[Any]) -> str:
    traced = any(not isinstance(one, jax.Array) or isinstance(one, jax.core.Tracer) for one in arrays)
    return default_device_type() if traced else device_type_of_call(arrays)


def cast(array: Any, dtype: str) -> Any:
    """Return a floating array as another dtype, any other as it is."""
    if not jax.dtypes.issubdtype(array.dtype, np.floating):
        return array
    return jax.numpy.asarray(array).astype(dtype)


def _write(
    record: OpOverload,
    template: Template,
    structure: tuple[Any, ...],
    outs: Sequence[Any],
    refs: Sequence[tuple[Any, int]],
) -> None:
    """Put the new values of mutated arguments into the references that were passed for them."""
    schema = record.schema
    returns, values = unflatten(schema, structure, template, outs)
    new = {argument.name: value for argument, value in zip(new_values(schema), values, strict=True)}
    new |= {name: returns[index] for index, name in same_objects(record)}
    places: dict[int, Any] = {}
    for argument, entry in zip(schema.arguments, template, strict=True):
        if argument.is_write and isinstance(entry, tuple):
            places |= {slot: v for slot, v in zip(entry, new[argument.name], strict=True) if slot is not None}
        elif argument.is_write and entry is not None:
            places[entry] = new[argument.name]
    for ref, slot in refs:
        ref[...] = places[slot]


def _all_concrete(arrays: Sequence[Any]) -> bool:
    clean = private.trace_state_clean
    return clean is not None and clean() and not any(isinstance(array, jax.core.Tracer) for array in arrays)


def _run_silent(call: Call, arrays: Sequence[Any]) -> None:
    """Run an operator without outputs, whose kernel is called for what it does."""
    plan = call.plan(_device_type_of_call(arrays))
    if plan.inline:
        plan.compute(arrays, None)
        return
    compute = on_numpy(plan)
    if _all_concrete(arrays):
        compute([np.asarray(array) for array in arrays], None)
        return

    passed, restored = in_whole_bytes(arrays)

    def body(*views: Any) -> None:
        compute(restored(views), None)

    body.__name__ = call.name
    jax.debug.callback(body, *passed)


def _run_untraced(call: Call, arrays: Sequence[Any]) -> Any:
    """Run an operator that returns numbers: JAX has no tracers for these."""
    record = call.record
    if not _all_concrete(arrays):
        raise UnsupportedError(
            layout(
                f"{record.qualname} returns something else than arrays, which JAX cannot trace",
                expected="returns of Tensor",
                got=str(record.schema),
                registered=record.source,
                fix="return a 0-d array, or call it outside of jax.jit and every other transform",
            )
        )
    kernel = call.kernel(_device_type_of_call(arrays))
    run = apply(record, kernel, call.template)
    found: list[tuple[Any, ...]] = []

    def compute(inputs: Sequence[Any], _outs: Sequence[Any] | None) -> list[Any]:
        leaves, structure = run(inputs)
        found.append(structure)
        return leaves

    arrays = concrete(arrays)
    leaves = run_here(Plan(record.qualname, kernel.flavour, compute, kernel.source), arrays)
    if leaves is None:
        raise UnsupportedError(
            layout(
                f"{record.qualname} returns something else than arrays "
                "and was called with arrays on several devices",
                expected="arrays on one device",
                registered=record.source,
            )
        )
    returns, values = unflatten(record.schema, found[0], call.template, leaves)
    return as_user_output(record.schema, [*returns, *values])
