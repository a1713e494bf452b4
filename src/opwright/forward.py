"""The forward half of a differentiated call: the operator is run, and its rule's context filled.

* Outputs for differentiation are the returns, then the new value of each mutated argument that is not
  returned. ``setup_context`` sees mutated arguments as they were before the call.
* A rule of another flavour sees that flavour's arrays; what it returns is turned back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from opwright import modes
from opwright.arrays import class_name, describe
from opwright.calls import Call, crossings, is_array, is_differentiable, mapped, outputs_of
from opwright.errors import ArgumentError, MissingRuleError, layout
from opwright.rules.autograd import AutogradRule, Context, new_values, output_names, run_setup_context
from opwright.sharing import Extent, have_common, refuse_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.rules.base import Rule

KINDS = "biufc"  # NumPy's kinds of dtype, in the order in which one can stand for the next


@final
class Forward:
    """A call that was run, with what its gradient or tangent rule needs.

    Parameters
    ----------
    call
        The call.
    rule
        The rule whose context is filled: autograd or jvp.
    setup_context
        What fills it, or None.
    needs
        For each argument in schema order whether its gradient is asked for; nested for lists.
    """

    def __init__(
        self, call: Call, rule: Rule, setup_context: Callable[..., None] | None, needs: Sequence[Any]
    ) -> None:
        schema = call.record.schema
        self.call, self.rule, self.needs = call, rule, tuple(needs)
        self.there, self.back = crossings(call.framework, rule.flavour)
        self.values, stack = call.cast()
        pairs = list(zip(schema.arguments, self.values, strict=True))
        refuse_shared(call.record, self.values, _share_memory)
        before = [mapped(call.xp.copy, value) if argument.is_write else value for argument, value in pairs]
        with modes.stacked(stack):
            self.out = call.run(self.values)
        fresh = {argument.name for argument in new_values(schema)}
        changed = [value for argument, value in pairs if argument.name in fresh]
        self.outputs = [*outputs_of(call.record, self.out), *changed]
        self.names = output_names(schema)
        self.ctx = Context(self.needs)
        seen = self.there(self.out)
        run_setup_context(setup_context, schema, self.ctx, call.for_rule(rule.flavour, before), seen)
        marked = {id(array) for array in self.ctx.non_differentiable}
        shown = [*outputs_of(call.record, seen), *changed]
        self.differentiable = [
            mapped(lambda array, other: is_differentiable(array) and id(other) not in marked, *pair)
            for pair in zip(self.outputs, shown, strict=True)
        ]


def _share_memory(one: Any, other: Any) -> bool:
    first, second = _extent(one), _extent(other)
    return first is not None and second is not None and have_common(first, second)


def _extent(array: Any) -> Extent | None:
    """Return where an array's elements are, or None where it does not say."""
    for name in ("__array_interface__", "__cuda_array_interface__"):
        described = getattr(array, name, None)
        if described is not None:
            strides = described["strides"] or array.strides
            return Extent(described["data"][0], described["shape"], strides, array.dtype.itemsize)
    return None


def autograd_rule(call: Call) -> AutogradRule | None:
    """Return the autograd rule in force, or None."""
    rule = call.record.rule("autograd")
    return rule if isinstance(rule, AutogradRule) and not call.record.non_differentiable else None


def no_formula(call: Call, transform: str, wanted: str) -> MissingRuleError:
    """Return the error for an operator that cannot be differentiated."""
    record = call.record
    if record.non_differentiable:
        what = f"{record.qualname} has no autograd formula: it is declared non_differentiable"
        fix = "do not differentiate it, or define it without non_differentiable and register a backward"
    else:
        what = f"{record.qualname} has no autograd formula, which opwright.{transform} needs"
        fix = f"register {wanted}: @opwright.register_autograd({record.qualname!r}, setup_context=...)"
    return MissingRuleError(layout(what, registered=record.source, fix=fix))


def as_given(call: Call, what: str, where: str, value: Any, given: Any) -> Any:
    """Return a gradient or tangent that the caller gave, as a copy with the dtype of ``value``.

    Raises
    ------
    ArgumentError
        If its shape is another, or its dtype cannot stand for that of ``value``.
    """
    value = call.xp.asarray(value)
    if not is_array(call, given) and not isinstance(given, bool | int | float | complex):
        raise _bad_given(call, what, where, f"an array of {call.framework.name}", classed(given))
    array = call.xp.asarray(given)
    if tuple(array.shape) != tuple(value.shape):
        raise _bad_given(call, what, where, f"shape {tuple(value.shape)}", f"shape {tuple(array.shape)}")
    if array.dtype != value.dtype and _rank(array.dtype) > _rank(value.dtype):
        raise _bad_given(call, what, where, f"dtype {value.dtype}", f"dtype {array.dtype}")
    return call.xp.asarray(array, dtype=value.dtype, copy=True)


def _rank(dtype: Any) -> int:
    return KINDS.index(dtype.kind) if dtype.kind in KINDS else KINDS.index("f")


def _bad_given(call: Call, what: str, where: str, expected: str, got: str) -> ArgumentError:
    return ArgumentError(
        layout(f"{call.record.qualname}: the {what} of {where} does not fit it", expected=expected, got=got)
    )


def fits(value: Any, other: Any) -> bool:
    """Return whether what stands beside a list is None or a list as long."""
    if not isinstance(value, list | tuple):
        return True
    return other is None or (isinstance(other, list | tuple) and len(other) == len(value))


def leaves(value: Any) -> list[Any]:
    """Return the elements of a list, None among them, or the value itself."""
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list | tuple) else [value]


def classed(value: Any) -> str:
    """Return what a value is that is no array of the call's framework, with its class if it is like one."""
    return f"{class_name(value)}, {describe(value)}" if hasattr(value, "shape") else counted(value)


def counted(value: Any) -> str:
    """Return what a value is, with its length where it is a list."""
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, list | tuple) else describe(value)
