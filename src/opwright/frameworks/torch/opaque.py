"""A backward that cannot be differentiated, or takes another framework's arrays, as an operator of its own.

* ``setup_context`` and backward run together in its kernel, on the operator's own arguments, outputs and
  gradients: they are plain arrays there, also under compiled code and functorch.
* It has no autograd rule, so a second derivative raises instead of being wrong.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from opwright.frameworks.base import Framework, load, of_flavour
from opwright.frameworks.torch import aliases, legacy_batches
from opwright.frameworks.torch.convert import from_numpy, to_numpy, to_share
from opwright.frameworks.torch.gradients import one_gradient
from opwright.frameworks.torch.lowered import OPAQUE, Lowered, tensors_in
from opwright.keys import DEFAULT
from opwright.overload import Kernel, OpOverload
from opwright.rules.autograd import AutogradRule, Context, new_values, run_setup_context, split_gradients
from opwright.rules.fake import FakeRule
from opwright.schema import Argument, BaseType, FunctionSchema, ListType, OptionalType, Return, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ONCE = once_differentiable(lambda ctx: None).__code__
_TENSOR = BaseType("Tensor")


class _Saved:
    """Stands for the saved tensor of an index."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def is_opaque(rule: AutogradRule) -> bool:
    """Return whether a backward must run as an operator of its own."""
    return rule.flavour not in ("torch", "array_api") or getattr(rule.fn, "__code__", None) is _ONCE


def opaque_rule(state: Lowered, rule: AutogradRule, attach: Callable[[OpOverload], Lowered]) -> AutogradRule:
    """Return a rule that stands in for an opaque one, its operator defined with ``attach``."""
    record = state.record
    schema = _schema(record.schema, len(state.opaque))
    inner = OpOverload(schema, flavour="torch", source=rule.source)
    inner.kernels = (Kernel(_kernel(state, rule), DEFAULT, "torch", rule.source),)
    inner.rules = (FakeRule(_fake(state), "torch", rule.source),)
    lowered = attach(inner)
    lowered.backward_of = rule
    state.inner.append(lowered)
    setup_context, backward = _contract(state, lowered)
    return replace(rule, fn=backward, flavour="torch", setup_context=setup_context)


def _schema(schema: FunctionSchema, number: int) -> FunctionSchema:
    """Return the schema of the operator: arguments, outputs, gradients, which are asked for."""
    namespace, _, name = schema.name.partition("::")
    own = [Argument(f"argument_{i}", _plain(a.type)) for i, a in enumerate(schema.arguments)]
    outputs = [Argument(f"output_{i}", _plain(r.type)) for i, r in enumerate(schema.returns)]
    kinds = [r.type for r in schema.returns] + [a.type for a in new_values(schema)]
    grads = [Argument(f"gradient_{i}", _gradient(kind)) for i, kind in enumerate(kinds)]
    needs = Argument("needs", ListType(BaseType("bool")))
    overload = f"{schema.overload or 'default'}_{number}"
    arguments = (*own, *outputs, *grads, needs)
    return FunctionSchema(f"{namespace}::{OPAQUE}{name}", overload, arguments, (Return(ListType(_TENSOR)),))


def _plain(type_: Type) -> Type:
    """Return a type without alias annotations."""
    if isinstance(type_, OptionalType):
        return OptionalType(_plain(type_.element))
    if isinstance(type_, ListType):
        return ListType(_plain(type_.element), type_.size)
    return BaseType(type_.name) if isinstance(type_, BaseType) else type_


def _gradient(type_: Type) -> Type:
    """Return the type of the gradient of an output."""
    if isinstance(type_, OptionalType):
        return _gradient(type_.element)
    if isinstance(type_, ListType):
        return ListType(OptionalType(_TENSOR))
    return OptionalType(_TENSOR)


def _contract(state: Lowered, lowered: Lowered) -> tuple[Callable[..., None], Callable[..., Any]]:
    """Return the ``setup_context`` and the backward that call the operator."""
    schema = state.record.schema

    def setup_context(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        saved: list[torch.Tensor] = []
        outs = (output,) if len(schema.returns) == 1 and not schema.is_tuple else output or ()
        values = (*inputs, *(keyword_only_inputs or {}).values(), *outs)
        ctx.opaque_values = [_keep(value, saved) for value in values]
        ctx.save_for_backward(*saved)

    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        values = [_restore(value, saved) for value in ctx.opaque_values]
        needed = [ctx.needs_input_grad[i] for i in state.tensors]
        needs = [bool(one) for entry in needed for one in (entry if entry.__class__ is list else [entry])]
        found = iter(legacy_batches.each(lowered, (*values, *grads, needs)))
        entries: list[Any] = [None] * state.total
        for index, entry in zip(state.tensors, needed, strict=True):
            if entry.__class__ is list:
                entries[index] = [next(found) if need else None for need in entry]
            elif entry:
                entries[index] = next(found)
        return tuple(entries)

    return setup_context, backward


def _keep(value: Any, saved: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        saved.append(value)
        return _Saved(len(saved) - 1)
    if isinstance(value, Enum):
        return value.value
    return [_keep(one, saved) for one in value] if value.__class__ in (list, tuple) else value


def _restore(value: Any, saved: Sequence[Any]) -> Any:
    if value.__class__ is _Saved:
        return saved[value.index]
    return [_restore(one, saved) for one in value] if value.__class__ in (list, tuple) else value


def _needed(state: Lowered, values: Sequence[Any], needs: Sequence[bool]) -> list[list[bool]]:
    """Return for each tensor argument which of its tensors a gradient is asked for."""
    nested, at = [], 0
    for index in state.tensors:
        value = values[index]
        length = len(value) if value.__class__ in (list, tuple) else 1
        nested.append(list(needs[at : at + length]))
        at += length
    return nested


def _fake(state: Lowered) -> Callable[..., Any]:
    def fake(*flat: Any) -> Any:
        found = []
        for index, needs in zip(state.tensors, _needed(state, flat, flat[-1]), strict=True):
            value = flat[index]
            several = value if value.__class__ in (list, tuple) else [value]
            found += [torch.empty_like(one) for one, need in zip(several, needs, strict=True) if need]
        return found

    return fake


def _kernel(state: Lowered, rule: AutogradRule) -> Callable[..., Any]:
    """Return the kernel: ``setup_context``, the backward, then one tensor for each gradient asked for."""
    schema = state.record.schema
    total, returned = len(schema.arguments), len(schema.returns)
    other = _flavour_of(rule)
    once = getattr(rule.fn, "__code__", None) is _ONCE
    fn: Any = rule.fn.__dict__["__wrapped__"] if once else rule.fn

    def kernel(*flat: Any) -> Any:
        needs = _needed(state, flat, flat[-1])
        crossed = [_cross(value, other) for value in flat[:-1]]
        values, outs = crossed[:total], tuple(crossed[total : total + returned])
        for i, argument in enumerate(schema.arguments):
            if other is not None and argument.base in ("ScalarType", "Device") and values[i] is not None:
                values[i] = other.convert(argument.base, values[i])
        asked: list[Any] = [False] * total
        for index, entry in zip(state.tensors, needs, strict=True):
            asked[index] = entry if state.record.schema.arguments[index].is_tensor_list else entry[0]
        ctx = Context(tuple(asked))
        output = None if not outs else outs[0] if returned == 1 and not schema.is_tuple else outs
        run_setup_context(rule.setup_context, schema, ctx, state.authors(values), output)
        entries = split_gradients(rule, schema, fn(ctx, *crossed[total + returned :]))
        return _results(state, rule, flat, needs, entries)

    return kernel


def _flavour_of(rule: AutogradRule) -> Framework | None:
    """Return the framework of a backward's arrays, None for torch's own."""
    return None if rule.flavour in ("torch", "array_api") else of_flavour(rule.flavour)


def _cross(value: Any, other: Framework | None) -> Any:
    """Return an argument as the backward takes it."""
    if other is None:
        return value
    if isinstance(value, torch.Tensor):
        return to_numpy(value) if other.name == "numpy" else other.from_dlpack(to_share(value))
    return [_cross(one, other) for one in value] if value.__class__ in (list, tuple) else value


def _back(value: Any, other: Framework | None) -> Any:
    """Return a gradient as a tensor; what its framework would not take is left as it is."""
    if other is None or value is None or not other.accepts(value):
        return value
    return from_numpy(value) if other.name == "numpy" else load("torch").from_dlpack(value)


def _results(
    state: Lowered, rule: AutogradRule, flat: Sequence[Any], needs: list[list[bool]], entries: list[Any]
) -> list[torch.Tensor]:
    """Return the gradients that are asked for, each with memory and layout of its own, as the fake says."""
    found, other = [], _flavour_of(rule)
    schema = state.record.schema
    for index, asked in zip(state.tensors, needs, strict=True):
        argument = schema.arguments[index]
        inputs = flat[index] if flat[index].__class__ in (list, tuple) else [flat[index]]
        entry = entries[index]
        grads = entry if entry.__class__ in (list, tuple) else [entry] * len(inputs)
        for number, (like, grad, need) in enumerate(zip(inputs, grads, asked, strict=True)):
            if need:
                name = f"{argument.name}[{number}]" if argument.is_tensor_list else argument.name
                checked = one_gradient(schema, rule, name, _back(grad, other), (like.shape, like.dtype))
                found.append(_laid_out(like, checked, tensors_in(list(flat))))
    return found


def _laid_out(like: torch.Tensor, grad: Any, given: list[torch.Tensor]) -> torch.Tensor:
    if grad is None:
        return torch.zeros_like(like)
    out = torch.empty_like(like)
    if (
        out.dtype == grad.dtype
        and out.stride() == grad.stride()
        and not aliases.any_alias(tuple(given), {}, (grad,))
    ):
        return grad
    return out.copy_(grad)
