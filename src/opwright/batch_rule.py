"""Calling a batching rule, and what is wrong with what it returned.

A rule returns ``(outputs, out_dims)``: the outputs as the operator returns them, and for each the axis of
the batch, None for an output without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opwright.axes import is_axis
from opwright.calls import describe, is_array, split
from opwright.errors import OutputError, layout
from opwright.outputs import is_one
from opwright.schema import ListType, OptionalType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.calls import Call
    from opwright.overload import OpOverload
    from opwright.rules.base import Rule
    from opwright.rules.vmap import VmapInfo
    from opwright.schema import Type


def by_rule(call: Call, rule: Rule, axes: Sequence[Any], info: VmapInfo) -> tuple[list[Any], list[Any]]:
    """Return the outputs of a batching rule, and the batch axis of each, None for one without.

    Raises
    ------
    OutputError
        If the rule returns something that does not fit the operator, or the batch.
    """
    record = call.record
    args, kwargs = split(record, call.for_rule(rule.flavour, call.values))
    returned = rule.fn(info, tuple(axes[: len(args)]), *args, **kwargs)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise _wrong(
            record,
            rule,
            "something else than (outputs, out_dims)",
            "a pair of the outputs and the batch axis of each",
            _tuple_text(returned),
            fix="return out, 0 for an output with the batch in front, out, None for one without",
        )
    outputs, dims = returned
    several = _outputs(record, rule, outputs)
    return _checked(call, rule, several, _dims(record, rule, several, dims), info.batch_size)


def _outputs(record: OpOverload, rule: Rule, outputs: Any) -> list[Any]:
    """Return one entry for each return of the schema, a list for a list."""
    schema = record.schema
    if not schema.returns:
        if outputs is not None and not (isinstance(outputs, tuple) and not outputs):
            raise _wrong(record, rule, "outputs", f"None: {schema}", _tuple_text(outputs))
        return []
    several = [outputs] if is_one(record) else outputs
    if not isinstance(several, list | tuple) or len(several) != len(schema.returns):
        expected = f"{len(schema.returns)}: {schema}"
        raise _wrong(record, rule, "a wrong number of outputs", expected, _tuple_text(outputs))
    found: list[Any] = []
    for index, (entry, output) in enumerate(zip(schema.returns, several, strict=True)):
        if not isinstance(_inside(entry.type), ListType) or output is None:
            found.append(output)
        elif isinstance(output, list | tuple):
            found.append(list(output))
        else:
            raise _wrong(record, rule, f"no list as output {index}", f"a list: {schema}", describe(output))
    return found


def _inside(type_: Type) -> Type:
    return type_.element if isinstance(type_, OptionalType) else type_


def _dims(record: OpOverload, rule: Rule, outputs: list[Any], dims: Any) -> list[Any]:
    """Return the out_dims of a rule, one for each output, a list for a list."""
    if not isinstance(dims, list | tuple):
        several = [dims] * len(outputs)
    elif is_one(record) and isinstance(outputs[0], list) and not (dims and isinstance(dims[0], list | tuple)):
        several = [dims]
    else:
        several = list(dims)
    if len(several) != len(outputs):
        raise _wrong(
            record, rule, "a wrong number of out_dims", f"{len(outputs)}, one for each output", repr(dims)
        )
    out: list[Any] = []
    for output, dim in zip(outputs, several, strict=True):
        if not isinstance(output, list):
            out.append(dim)
            continue
        each = list(dim) if isinstance(dim, list | tuple) else [dim] * len(output)
        if len(each) != len(output):
            raise _wrong(record, rule, "a wrong number of out_dims", f"{len(output)} for a list", repr(dims))
        out.append(each)
    return out


def _checked(
    call: Call, rule: Rule, outputs: list[Any], dims: list[Any], size: int
) -> tuple[list[Any], list[Any]]:
    """Return a rule's outputs and out_dims, or raise where an output has no such axis of the batch's size."""
    found: list[Any] = []
    for index, (entry, output, dim) in enumerate(zip(call.record.schema.returns, outputs, dims, strict=True)):
        type_ = _inside(entry.type)
        optional = isinstance(entry.type, OptionalType)
        if isinstance(output, list) and isinstance(type_, ListType):
            optional = isinstance(type_.element, OptionalType)
            parts = enumerate(zip(output, dim, strict=True))
            place = _Output(call, rule, "", getattr(type_.leaf(), "name", "") == "Tensor", optional)
            found.append(
                [replace(place, name=f"output {index}[{at}]").axis(*pair, size) for at, pair in parts]
            )
        else:
            is_tensor = getattr(entry.type.leaf(), "name", "") == "Tensor"
            found.append(_Output(call, rule, f"output {index}", is_tensor, optional).axis(output, dim, size))
    return outputs, found


@dataclass(frozen=True, slots=True)
class _Output:
    """One output of a rule, for the check of its axis."""

    call: Call
    rule: Rule
    name: str
    is_tensor: bool
    is_optional: bool

    def axis(self, output: Any, dim: Any, size: int) -> int | None:
        """Return the batch axis, not negative; None for an output without."""
        record, rule, name = self.call.record, self.rule, self.name
        if dim is not None and not is_axis(dim):
            what = f"something else than an axis as out_dim of {name}"
            raise _wrong(
                record, rule, what, "an int, or None for an output that is not batched", describe(dim)
            )
        if not self.is_tensor or (output is None and self.is_optional):
            return None
        if not is_array(self.call, output):
            expected = f"an array of {self.call.framework.name}"
            raise _wrong(record, rule, f"no array as {name}", expected, describe(output))
        if dim is None:
            return None
        shape = tuple(output.shape)
        count = len(shape)
        if not -count <= dim < count:
            expected = f"an axis of {name}, from {-count} to {count - 1}" if count else "None: it has no axis"
            raise _wrong(
                record, rule, f"an impossible out_dim for {name}", expected, f"{dim} for shape {shape}"
            )
        if shape[dim] != size:
            what = f"an out_dim for {name} that is not the batch's axis"
            raise _wrong(record, rule, what, f"an axis of size {size}", f"axis {dim} of shape {shape}")
        return int(dim) % count


def _tuple_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)} ({', '.join(type(one).__name__ for one in value)})"
    return describe(value)


def _wrong(
    record: OpOverload, rule: Rule, what: str, expected: str, got: str, *, fix: str | None = None
) -> OutputError:
    return OutputError(
        layout(
            f"the vmap rule of {record.qualname} returned {what}",
            expected=expected,
            got=got,
            registered=rule.source,
            fix=fix,
        )
    )
