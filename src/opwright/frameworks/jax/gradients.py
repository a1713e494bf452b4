"""What an author's derivative rule is given and what it returned, compared with the operator at a point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from opwright.errors import GradientError, layout
from opwright.frameworks.jax.arguments import like_arguments, unflatten
from opwright.frameworks.jax.avals import CONSTANTS, is_complex, sharded_like, zeros
from opwright.rules.autograd import new_values, of_another_dtype, split_gradients

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from opwright.frameworks.jax.call import Call
    from opwright.rules.base import Rule


def needs(call: Call, live: Sequence[bool]) -> tuple[Any, ...]:
    """Return ``needs_input_grad``: one entry for each argument in schema order, nested for lists."""
    return tuple(like_arguments(call.schema, call.template, live, False))


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """What is static of the point at which an operator is linearised.

    Parameters
    ----------
    call
        The operator and its static arguments.
    structure
        That of its returns.
    live
        Which of its arrays have a tangent.
    diff_out
        Which of its flat outputs have a gradient.
    in_avals, out_avals
        Abstract values of arrays and outputs.
    places
        Where arrays and then outputs are among the saved ones; None for one that is not.
    """

    call: Call
    structure: tuple[Any, ...]
    live: tuple[bool, ...]
    diff_out: tuple[bool, ...]
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    places: tuple[int | None, ...]

    @property
    def key(self) -> Hashable:
        """Equal exactly for points that are the same."""
        return (
            self.call,
            self.structure,
            self.live,
            self.diff_out,
            self.in_avals,
            self.out_avals,
            self.places,
        )

    def in_tangents(self) -> list[Any]:
        """Return the abstract values of the tangents that go in."""
        return [aval.to_tangent_aval() for aval, on in zip(self.in_avals, self.live, strict=True) if on]

    def out_tangents(self) -> list[Any]:
        """Return the abstract values of the tangents that come out."""
        return [aval.to_tangent_aval() for aval, on in zip(self.out_avals, self.diff_out, strict=True) if on]

    def of_outputs(self, cotangents: Sequence[Any], *, materialize: bool) -> list[Any]:
        """Return one gradient for each flat output, zeros or None where there is none."""
        rest = iter(cotangents)
        found = [next(rest) if on else None for on in self.diff_out]
        if not materialize:
            return found
        return [zeros(aval) if one is None else one for one, aval in zip(found, self.out_avals, strict=True)]

    def nested_outputs(self, flat: Sequence[Any]) -> list[Any]:
        """Return one entry for each return, then for each new value, lists built again."""
        returns, values = unflatten(self.call.schema, self.structure, self.call.template, flat)
        return [*returns, *values]


def flat_gradients(point: Point, rule: Rule, returned: Any) -> list[Any]:
    """Return one gradient, or None, for each flat array from what a backward returned."""
    schema, template = point.call.schema, point.call.template
    flat: list[Any] = []
    for argument, entry, grad in zip(
        schema.arguments, template, split_gradients(rule, schema, returned), strict=True
    ):
        if not argument.has_tensors:
            if grad is not None:
                raise _bad_gradient(rule, schema.qualname, argument.name, "None, for it is no array", grad)
        elif isinstance(entry, tuple):
            flat += _of_list(rule, schema.qualname, argument.name, entry, grad)
        elif entry is not None:
            flat.append(grad)
    return flat


def _of_list(rule: Rule, qualname: str, name: str, entry: tuple[Any, ...], grad: Any) -> list[Any]:
    if grad is None:
        return [None for one in entry if one is not None]
    if not isinstance(grad, list | tuple):
        raise _bad_gradient(rule, qualname, name, "a list, for the argument is one: it must be a list", grad)
    if len(grad) != len(entry):
        raise _bad_gradient(rule, qualname, name, f"a list of {len(entry)}", grad)
    return [one for one, slot in zip(grad, entry, strict=True) if slot is not None]


def _bad_gradient(rule: Rule, qualname: str, name: str, expected: str, grad: Any) -> GradientError:
    got = type(grad).__name__ + (f" of {len(grad)}" if isinstance(grad, list | tuple) else "")
    return GradientError(
        layout(
            f"backward of {qualname} returned a wrong gradient for {name}",
            expected=expected,
            got=got,
            registered=rule.source,
        )
    )


def fitted(point: Point, rule: Rule, name: str, value: Any, *, aval: Any, kind: str = "gradient") -> Any:
    """Return a gradient or tangent of the shape and dtype it must have, cast; other shapes raise.

    So does a complex one of what is real: its imaginary part would be lost.
    """
    if not isinstance(value, jax.Array):
        if not isinstance(value, CONSTANTS):
            raise misfit(point, rule, name, kind=kind, aval=aval, got=type(value).__name__)
        value = jax.numpy.asarray(value)
    if value.shape != aval.shape:
        raise misfit(point, rule, name, kind=kind, aval=aval, got=f"shape {value.shape}")
    if is_complex(value) and not is_complex(aval):
        raise not_real(point, rule, name, kind=kind, aval=aval, got=value.dtype)
    return sharded_like(jax.lax.convert_element_type(value, aval.dtype), aval)


def not_real(point: Point, rule: Rule, name: str, *, kind: str, aval: Any, got: Any) -> GradientError:
    """Return the error for a complex gradient or tangent of what is real: a part of it would be lost."""
    place = name.removeprefix("output ")
    return of_another_dtype(point.call.record.qualname, rule, place, expected=aval.dtype, got=got, kind=kind)


def misfit(point: Point, rule: Rule, name: str, *, kind: str, aval: Any, got: str) -> GradientError:
    """Return the error for a gradient or tangent of another shape or type than it must have."""
    source = "backward" if kind == "gradient" else "jvp"
    return GradientError(
        layout(
            f"{source} of {point.call.record.qualname} returned a {kind} for {name} that does not fit",
            expected=f"an array of shape {aval.shape}",
            got=got,
            registered=rule.source,
        )
    )


def out_tangents_of(point: Point, rule: Rule, returned: Any) -> list[Any]:
    """Return the tangents of the differentiable outputs from what a jvp rule returned."""
    schema = point.call.schema
    count = len(schema.returns) + len(new_values(schema))
    several = isinstance(returned, tuple) or (count > 1 and isinstance(returned, list))
    values = list(returned) if several else [returned]
    if len(values) != count:
        raise GradientError(
            layout(
                f"jvp of {schema.qualname} returned an incorrect number of tangents "
                f"(expected {count}, got {len(values)})",
                expected="one for each output",
                registered=rule.source,
            )
        )
    flat: list[Any] = []
    entries = [*point.structure, *(point.call.template_of(argument) for argument in new_values(schema))]
    for index, (value, entry) in enumerate(zip(values, entries, strict=True)):
        if entry is None:
            continue
        if isinstance(entry, tuple) or (index < len(schema.returns) and entry is not True):
            size = len(entry) if isinstance(entry, tuple) else entry
            flat += [None] * size if value is None else list(value)
        else:
            flat.append(value)
    return [
        zeros(aval.to_tangent_aval())
        if value is None
        else fitted(point, rule, f"output {index}", value, aval=aval.to_tangent_aval(), kind="tangent")
        for index, (value, aval, on) in enumerate(zip(flat, point.out_avals, point.diff_out, strict=True))
        if on
    ]
