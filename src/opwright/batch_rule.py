"""Calling a batching rule, and what is wrong with what it returned.

A rule returns ``(outputs, out_dims)``: the outputs as the operator returns them, and for each the axis of
the batch, None for an output without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.axes import is_axis
from opwright.calls import describe, is_array, split
from opwright.errors import OutputError, layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.calls import Call
    from opwright.overload import OpOverload
    from opwright.rules.base import Rule
    from opwright.rules.vmap import VmapInfo


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
    count = len(record.schema.returns)
    if count == 0:
        if outputs is not None and outputs != ():
            raise _wrong(record, rule, "outputs", f"None: {record.schema}", _tuple_text(outputs))
        return []
    several = [outputs] if count == 1 and not record.schema.is_tuple else outputs
    if not isinstance(several, list | tuple) or len(several) != count:
        raise _wrong(
            record, rule, "a wrong number of outputs", f"{count}: {record.schema}", _tuple_text(outputs)
        )
    return [list(one) if isinstance(one, tuple) else one for one in several]


def _dims(record: OpOverload, rule: Rule, outputs: list[Any], dims: Any) -> list[Any]:
    """Return the out_dims of a rule, one for each output, a list for a list."""
    bare = len(record.schema.returns) == 1 and not record.schema.is_tuple
    if (
        dims is None
        or is_axis(dims)
        or (bare and isinstance(outputs[0], list) and len(dims) == len(outputs[0]))
    ):
        several = [dims] * len(outputs)
    else:
        several = list(dims) if isinstance(dims, list | tuple) else [dims]
    if len(several) != len(outputs):
        raise _wrong(
            record, rule, "a wrong number of out_dims", f"{len(outputs)}, one for each output", repr(dims)
        )
    out: list[Any] = []
    for output, dim in zip(outputs, several, strict=True):
        if isinstance(output, list) and not isinstance(dim, list | tuple):
            out.append([dim] * len(output))
        elif isinstance(output, list) and len(dim) != len(output):
            raise _wrong(record, rule, "a wrong number of out_dims", f"{len(output)} for a list", repr(dims))
        else:
            out.append(list(dim) if isinstance(output, list) else dim)
    return out


def _checked(
    call: Call, rule: Rule, outputs: list[Any], dims: list[Any], size: int
) -> tuple[list[Any], list[Any]]:
    """Return a rule's outputs and out_dims, or raise where an output has no such axis of the batch's size."""
    record = call.record

    def one(output: Any, dim: Any, name: str) -> Any:
        if dim is not None and not is_axis(dim):
            raise _wrong(
                record,
                rule,
                f"something else than an axis as out_dim of {name}",
                "an int, or None for an output that is not batched",
                describe(dim),
            )
        if output is None or dim is None:
            return None
        if not is_array(call, output):
            raise _wrong(
                record, rule, f"no array as {name}", f"an array of {call.framework.name}", describe(output)
            )
        count = output.ndim
        if not -count <= dim < count:
            expected = f"an axis of {name}, from {-count} to {count - 1}" if count else "None: it has no axis"
            got = f"{dim} for shape {tuple(output.shape)}"
            raise _wrong(record, rule, f"an impossible out_dim for {name}", expected, got)
        if output.shape[dim] != size:
            raise _wrong(
                record,
                rule,
                f"an out_dim for {name} that is not the batch's axis",
                f"an axis of size {size}",
                f"axis {dim} of shape {tuple(output.shape)}",
            )
        return dim % count

    found: list[Any] = []
    for index, (output, dim) in enumerate(zip(outputs, dims, strict=True)):
        if isinstance(output, list):
            parts = enumerate(zip(output, dim, strict=True))
            found.append([one(*pair, f"output {index}[{at}]") for at, pair in parts])
        else:
            found.append(one(output, dim, f"output {index}"))
    return outputs, found


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
