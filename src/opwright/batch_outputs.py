"""Outputs for a batch, and what is wrong with them, for any framework.

* A batching rule returns ``(outputs, out_dims)``: the outputs as the operator returns them, and for each the
  axis of the batch, None for an output without.
* Without a rule each output is stacked over the batch: arrays must have one shape and dtype, anything else
  must be the same for every element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.arrays import describe
from opwright.errors import OutputError, UnsupportedError, layout
from opwright.outputs import is_one
from opwright.schema import ListType, OptionalType
from opwright.shapes import is_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.overload import OpOverload
    from opwright.rules.base import Rule
    from opwright.schema import Type


def checked(
    record: OpOverload, rule: Rule, returned: Any, frameworks: Sequence[str], size: int
) -> tuple[list[Any], list[Any]]:
    """Return the outputs and axes of what a batching rule returned: a list for a list.

    Parameters
    ----------
    record, rule, returned
        The operator, its rule, and what that returned.
    frameworks
        Whose arrays the outputs may be; the first is the one that messages name.
    size
        That of the batch.

    Raises
    ------
    OutputError
        If it does not fit the operator, or a batch of that size.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise bad_batch(
            record,
            rule,
            "something else than (outputs, out_dims)",
            "a pair of the outputs and the batch axis of each",
            _tuple_text(returned),
            fix="return out, 0 for an output with the batch in front, out, None for one without",
        )
    outputs, dims = returned
    several = _outputs(record, rule, outputs)
    place = _Output(record, rule, tuple(frameworks), size)
    return several, _axes(place, several, _dims(record, rule, several, dims))


def _outputs(record: OpOverload, rule: Rule, outputs: Any) -> list[Any]:
    """Return one entry for each return of the schema, a list for a list."""
    schema = record.schema
    if not schema.returns:
        if outputs is not None and not (isinstance(outputs, tuple) and not outputs):
            raise bad_batch(record, rule, "outputs", f"None: {schema}", _tuple_text(outputs))
        return []
    several = [outputs] if is_one(record) else outputs
    if not isinstance(several, list | tuple) or len(several) != len(schema.returns):
        expected = f"{len(schema.returns)}: {schema}"
        raise bad_batch(record, rule, "a wrong number of outputs", expected, _tuple_text(outputs))
    found: list[Any] = []
    for index, (entry, output) in enumerate(zip(schema.returns, several, strict=True)):
        listed = isinstance(output, list | tuple)
        if output is not None and listed != isinstance(_inside(entry.type), ListType):
            what, expected = ("a list", "no list") if listed else ("no list", "a list")
            what, got = f"{what} as output {index}", _tuple_text(output)
            raise bad_batch(record, rule, what, f"{expected}: {schema}", got)
        found.append(list(output) if listed else output)
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
        raise bad_batch(
            record, rule, "a wrong number of out_dims", f"{len(outputs)}, one for each output", repr(dims)
        )
    out: list[Any] = []
    for output, dim in zip(outputs, several, strict=True):
        if not isinstance(output, list):
            out.append(dim)
            continue
        each = list(dim) if isinstance(dim, list | tuple) else [dim] * len(output)
        if len(each) != len(output):
            raise bad_batch(
                record, rule, "a wrong number of out_dims", f"{len(output)} for a list", repr(dims)
            )
        out.append(each)
    return out


def _axes(place: _Output, outputs: list[Any], dims: list[Any]) -> list[Any]:
    """Return a rule's out_dims, or raise where an output has no such axis of the batch's size."""
    found: list[Any] = []
    for index, (entry, output, dim) in enumerate(
        zip(place.record.schema.returns, outputs, dims, strict=True)
    ):
        type_ = _inside(entry.type)
        one = replace(
            place,
            name=f"output {index}",
            is_tensor=getattr(entry.type.leaf(), "name", "") == "Tensor",
            is_optional=isinstance(entry.type, OptionalType),
        )
        if isinstance(output, list) and isinstance(type_, ListType):
            each = replace(one, is_optional=isinstance(type_.element, OptionalType))
            parts = enumerate(zip(output, dim, strict=True))
            found.append([replace(each, name=f"output {index}[{at}]").axis(*pair) for at, pair in parts])
        else:
            found.append(one.axis(output, dim))
    return found


@dataclass(frozen=True, slots=True)
class _Output:
    """One output of a rule, for the check of its axis."""

    record: OpOverload
    rule: Rule
    frameworks: tuple[str, ...]
    size: int
    name: str = ""
    is_tensor: bool = False
    is_optional: bool = False

    def axis(self, output: Any, dim: Any) -> int | None:
        """Return the batch axis, not negative; None for an output without."""
        record, rule, name, size = self.record, self.rule, self.name, self.size
        if dim is not None and not is_axis(dim):
            what = f"something else than an axis as out_dim of {name}"
            raise bad_batch(
                record, rule, what, "an int, or None for an output that is not batched", describe(dim)
            )
        if not self.is_tensor and len(getattr(output, "shape", ())):
            raise bad_batch(
                record, rule, f"an array as {name}", f"what {record.schema} says", describe(output)
            )
        if not self.is_tensor or (output is None and self.is_optional):
            return None
        info = catalogue.framework_of_class(output.__class__)
        if info is None or info.name not in self.frameworks:
            expected = f"an array of {self.frameworks[0]}"
            raise bad_batch(record, rule, f"no array as {name}", expected, _tuple_text(output))
        if dim is None:
            return None
        shape = tuple(output.shape)
        count = len(shape)
        if not -count <= dim < count:
            expected = f"an axis of {name}, from {-count} to {count - 1}" if count else "None: it has no axis"
            raise bad_batch(
                record, rule, f"an impossible out_dim for {name}", expected, f"{dim} for shape {shape}"
            )
        if shape[dim] != size:
            what = f"an out_dim for {name} that is not the batch's axis"
            raise bad_batch(record, rule, what, f"an axis of size {size}", f"axis {dim} of shape {shape}")
        return int(dim) % count


def require_even(title: str, index: int, column: Sequence[Any]) -> None:
    """Raise where an output cannot be stacked: ``column`` has it for each element of the batch.

    Raises
    ------
    UnsupportedError
        If these are not arrays of one shape and dtype, lists of one length, or values that are the same; it
        names what ``title`` says.
    """
    first = column[0]
    if all(isinstance(one, list | tuple) for one in column):
        if any(len(one) != len(first) for one in column):
            lengths = sorted({len(one) for one in column})
            raise uneven(title, index, f"lists of {' and '.join(map(str, lengths))}")
    elif not all(_alike(first, one) for one in column):
        raise uneven(title, index, " and ".join(_texts(column)))


def _alike(one: Any, other: Any) -> bool:
    """Return whether two outputs are arrays of one shape and dtype, or one value of one type."""
    arrays = [hasattr(value, "shape") for value in (one, other)]
    if all(arrays):
        return tuple(one.shape) == tuple(other.shape) and one.dtype == other.dtype
    return not any(arrays) and _equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are one of one type; a NaN is the same as another."""
    if type(one) is not type(other):
        return False
    if isinstance(one, complex):
        return _equal(one.real, other.real) and _equal(one.imag, other.imag)
    return bool(one == other) or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def _texts(column: Sequence[Any]) -> list[str]:
    """Return what the outputs are that differ: shapes, with dtypes where these differ, or values."""
    dtypes = {str(one.dtype) for one in column if hasattr(one, "shape")}

    def text(one: Any) -> str:
        if not hasattr(one, "shape"):
            return repr(one)
        return str(tuple(one.shape)) if len(dtypes) == 1 else describe(one)

    return list(dict.fromkeys(map(text, column)))


def uneven(title: str, index: int, got: str) -> UnsupportedError:
    """Return the error for an output that cannot be stacked over the batch."""
    return UnsupportedError(
        layout(
            f"vmap of {title}: output {index} differs between the elements of the batch",
            expected="one shape and dtype, length or value for all of them",
            got=got,
            fix="pad it inside the operator, or call the operator in a loop of your own",
        )
    )


def _tuple_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)} ({', '.join(type(one).__name__ for one in value)})"
    return describe(value)


def bad_batch(
    record: OpOverload, rule: Rule, what: str, expected: str, got: str, *, fix: str | None = None
) -> OutputError:
    """Return the error for a batching rule that returned ``what``, which it must not."""
    return OutputError(
        layout(
            f"the vmap rule of {record.qualname} returned {what}",
            expected=expected,
            got=got,
            registered=rule.source,
            fix=fix,
        )
    )
