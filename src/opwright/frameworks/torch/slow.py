"""The call through torch's dispatcher: what every call that has no faster way takes.

Generated for each overload; scalars are coerced by its caller. Where nothing is to be done it is torch's
overload itself, and Dynamo folds the class tests that remain.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from opwright import catalogue
from opwright.entry import Names, compile_function, flat_names, kernel_call
from opwright.frameworks.torch import mutation, private
from opwright.frameworks.torch.convert import NAMED, to_torch
from opwright.frameworks.torch.lowered import Lowered, lowered_of
from opwright.frameworks.torch.scalars import takes_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.overload import OpOverload


def slow_call(record: OpOverload) -> Callable[..., Any]:
    """Return the function that takes all values by position and calls ``torch.ops.ns.op.overload``."""
    state = lowered_of(record)
    if state.slow is None:
        state.slow = _generate(state)
    return state.slow


def _generate(state: Lowered) -> Callable[..., Any]:
    schema = state.record.schema
    names, flat = Names(schema), flat_names(schema)
    tensor, is_instance = names.add("Tensor", torch.Tensor), names.add("isinstance", isinstance)
    miss = f"return {names.prefix}miss({flat})"
    body: list[str] = []
    known = True  # the class of a first plain tensor is the table's key
    for argument in schema.arguments:
        name = argument.name
        if argument.is_tensor:
            if known and not argument.is_optional:
                known = False
                continue
            known = False
            optional = f"{name} is not None and " if argument.is_optional else ""
            not_one = f"{name}.__class__ is not {tensor} and not {is_instance}({name}, {tensor})"
            not_one += f" and not {names.add('takes_over', takes_over)}({name})"
            body.append(f"if {optional}{not_one}: {miss}")
        elif argument.has_tensors:
            known = False
            missing = "" if argument.is_optional else f"{name} is None or "
            body.append(f"if {missing}not {names.add('are_tensors', _are_tensors)}({name}): {miss}")
        elif argument.base in NAMED and not argument.is_list:  # a default is held as a name
            named = names.add("named_" + name, partial(to_torch, argument.base))
            body.append(f"if {is_instance}({name}, {names.add('str', str)}): {name} = {named}({name})")
        elif isinstance(argument.choices, type):
            body.append(f"if {is_instance}({name}, {names.add('Enum', Enum)}): {name} = {name}.value")
    if state.mutated and mutation.FRONT not in state.installed:
        check = names.add("refuse_captured", lambda *values: mutation.refuse_captured(state, values))
        compiling = names.add("compiling", torch.compiler.is_dynamo_compiling)  # folded: no more is traced
        functorch = names.add("functorch", private.functorch_active)
        body.append(f"if not {compiling}() and {functorch}(): {check}({flat})")
    if not body and not state.names:
        return state.native
    names.add("miss", _stopping(state.record))  # what is no tensor raises there, with the reason
    body.append(f"return {names.add('native', state.native)}({kernel_call(schema)})")
    return compile_function(f"{schema.qualname} through torch", "call", flat, body, names)


def _stopping(record: OpOverload) -> Callable[..., Any]:
    """Return what is called for wrong arguments: Dynamo stops there, and says why where it may not."""

    def wrong(*values: Any) -> Any:
        # What misses takes it for a call that is traced, even after Dynamo has stopped.
        return record.take(*values)

    catalogue.stop_tracers(
        wrong,
        f"{record.qualname} got something else for a tensor: outside of torch.compile the call says what",
    )
    return wrong


def _are_tensors(value: Any) -> bool:
    """Return whether a value is None, or a list whose elements may all be in a list of tensors."""
    if value is None or takes_over(value):
        return True
    return isinstance(value, (list, tuple)) and all(  # Dynamo traces this, and in torch 2.9 knows no unions
        one is None or isinstance(one, torch.Tensor) or takes_over(one) for one in value
    )
