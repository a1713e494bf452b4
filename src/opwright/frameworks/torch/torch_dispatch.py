"""The dispatch rule: what runs instead of the operator under a dispatch mode, or for a tensor subclass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opwright.frameworks.torch import fingerprint
from opwright.rules.base import mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.frameworks.torch.lowered import Lowered
    from opwright.schema import FunctionSchema


def make_rule(state: Lowered, dispatch_class: type) -> Callable[..., Any]:
    """Return the function that torch calls for a class: the rule in force, with torch's own overload."""
    record = state.record

    schema = record.schema

    def dispatch(mode: Any, func: Any, types: Any, given: Any, kwargs: Any = None) -> Any:
        fingerprint.publish()  # as where a fake runs: the rule may stand for it
        rule = record.rule("torch_dispatch", dispatch_class)
        if rule is None:
            return NotImplemented
        # A subclass's rule may be written without the class, which torch passes in front.
        without = mismatch(rule.fn, ["mode", "func", "types", "args", "kwargs"]) is not None
        named = kwargs or {}
        if schema.tuples:
            named = dict(named)
            given = _with_tuples(schema, given, named)
        leading = () if without else (mode,)
        return rule.fn(*leading, func, types, given, named)

    return dispatch


def _with_tuples(schema: FunctionSchema, given: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
    """Return positional values as authors get them; change those by name."""
    values = list(given)
    for index in schema.tuples:
        name = schema.arguments[index].name
        if index < len(values) and isinstance(values[index], list):
            values[index] = tuple(values[index])
        elif isinstance(named.get(name), list):
            named[name] = tuple(named[name])
    return tuple(values)


def install(state: Lowered, dispatch_class: type) -> torch.library.Library:
    """Register the rule of a class with torch; destroying the library removes it."""
    library = torch.library.Library(state.record.name.partition("::")[0], "IMPL")
    qualname = f"{state.record.name.partition('::')[0]}::{state.op_name}"
    torch.library.register_torch_dispatch(
        qualname, dispatch_class, make_rule(state, dispatch_class), lib=library
    )
    return library
