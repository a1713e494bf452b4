"""A call as a function of the arrays that count, which frameworks' transforms take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.rules.autograd import new_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.checks.adapters.base import Adapter
    from opwright.overload import OpOverload
    from opwright.schema import Return


def differentiable_wrapper(
    adapter: Adapter, record: OpOverload, values: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Callable[..., Any], list[Any], list[Any], Callable[[Any], list[Any]]]:
    """Return a function of the arrays that have a tangent, these arrays, their tangents, and ``rebuild``.

    The function returns the outputs that are arrays, flat; ``rebuild`` puts them, or their tangents, back
    in place, with None for everything else.
    """
    places: list[tuple[int, int | None]] = []
    primals: list[Any] = []
    directions: list[Any] = []
    for index, (value, tangent) in enumerate(zip(values, tangents, strict=True)):
        for element, one in enumerate(tangent) if isinstance(tangent, list) else [(None, tangent)]:
            if one is not None:
                places.append((index, element))
                primals.append(value if element is None else value[element])
                directions.append(one)
    written = new_values(record.schema)
    constant = [not holds_arrays(entry) for entry in record.schema.returns] + [False] * len(written)
    shape: list[Any] = []

    def function(*arrays: Any) -> tuple[Any, ...]:
        passed = [list(value) if isinstance(value, list | tuple) else value for value in values]
        for (index, element), array in zip(places, arrays, strict=True):
            if element is None:
                passed[index] = array
            else:
                passed[index][element] = array
        called = adapter.call(record, passed)
        outputs = [*called.outputs, *(called.new_values[one.name] for one in written)]
        outputs = [None if one else out for one, out in zip(constant, outputs, strict=True)]
        shape[:] = [len(out) if isinstance(out, list | tuple) else None for out in outputs]
        several = [out if isinstance(out, list | tuple) else [out] for out in outputs]
        return tuple(one for out, left in zip(several, constant, strict=True) if not left for one in out)

    def rebuild(flat: Any) -> list[Any]:
        left = iter(flat)
        return [
            None if one else next(left) if count is None else [next(left) for _ in range(count)]
            for one, count in zip(constant, shape, strict=True)
        ]

    return function, primals, directions, rebuild


def holds_arrays(entry: Return) -> bool:
    """Return whether a return is an array, or a list of them."""
    return getattr(entry.type.leaf(), "name", "") == "Tensor"
