"""Rules for operators that torch's own dispatcher holds: each becomes what an operator of ours has for it.

A rule that torch would never call, or that would hide what the operator has, is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.errors import DuplicateError, RegistrationError, layout
from opwright.frameworks.torch import autocast, autograd, define, fake, held, private, torch_dispatch, vmap
from opwright.frameworks.torch.installed import Installed, install
from opwright.keys import IMPLICIT
from opwright.rules.autocast import AutocastRule
from opwright.rules.torch_dispatch import TorchDispatchRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.frameworks.torch.lowered import Lowered
    from opwright.rules.base import Rule


def _fake(state: Lowered, rule: Rule) -> Installed:
    part = _part(state)
    name = state.record.qualname
    part.handles.append(held.register_fake(part.library, name, fake.make_kernel(state), rule.source))
    return part


def _gradient(state: Lowered, rule: Rule) -> Installed:
    _require_no_formula(state, rule)
    _require_functional(state, rule)
    define.sync_opaque(state)
    keys = held.concrete_keys(state.record.qualname, held.AUTOGRAD)
    return install(state, keys, autograd.make_kernel(state), with_keyset=True)


def _vmap(state: Lowered, rule: Rule) -> Installed:
    return install(state, ["FuncTorchBatched"], vmap.make_kernel(state))


def _autocast(state: Lowered, rule: Rule) -> Installed:
    assert isinstance(rule, AutocastRule)  # noqa: S101  (the registry keeps kinds apart)
    return install(state, [autocast.key_for(rule)], autocast.make_kernel(state, rule.device_type))


def _torch_dispatch(state: Lowered, rule: Rule) -> Installed:
    assert isinstance(rule, TorchDispatchRule)  # noqa: S101
    name = state.record.qualname
    if held.dispatch_rule(name, rule.dispatch_class) is not None:
        raise DuplicateError(
            layout(
                f"torch_dispatch rule of {name} for {rule.dispatch_class.__name__} is already registered, "
                "through torch.library",
                got=f"a second one at {rule.source}",
                fix="destroy the torch Library that holds the first",
            )
        )
    part = _part(state)
    fn = torch_dispatch.make_rule(state, rule.dispatch_class)
    part.handles.append(held.register_dispatch_rule(name, rule.dispatch_class, fn))
    return part


def _part(state: Lowered) -> Installed:
    return Installed(state.record.name.partition("::")[0])


def _require_no_formula(state: Lowered, rule: Rule) -> None:
    """Raise where an operator has an autograd formula of torch's own that would be used, or hidden."""
    name = state.record.qualname
    if held.has_kernel(name, IMPLICIT):
        return  # its derivative is that of what it calls; a formula of its own goes before that
    own = private.custom_op_of(state.native)
    if own is not None:
        place = held.formula_source(own)
    else:
        keys = (held.AUTOGRAD, *held.runtime_keys(held.AUTOGRAD))
        taken = next((key for key in keys if held.has_kernel(name, key)), None)
        place = held.source_of(name, taken) if taken else None
    if place is not None:
        raise DuplicateError(
            layout(
                f"{rule.kind} rule of {name} was refused: torch holds an autograd formula for it",
                registered=place,
                got=f"a second one at {rule.source}",
                fix=f"Library({name.partition('::')[0]!r}, 'IMPL').impl(..., 'Autograd') replaces it",
            )
        )


def _require_functional(state: Lowered, rule: Rule) -> None:
    """Raise where an operator of torch's own mutates, or returns views: torch tracks neither for us."""
    schema = state.record.schema
    aliases = [alias for entry in schema.returns for alias in entry.type.aliases()]
    if schema.mutated or aliases:
        raise RegistrationError(
            layout(
                f"Cannot register autograd formula for non-functional operator {state.record.qualname}",
                expected="an operator that neither mutates its arguments nor returns views of them",
                got=str(schema),
                registered=rule.source,
                fix="define a functional operator and register the formula for that",
            )
        )


LOWER: dict[str, Callable[[Any, Any], Installed]] = {
    "fake": _fake,
    "autograd": _gradient,
    "jvp": _gradient,
    "vmap": _vmap,
    "autocast": _autocast,
    "torch_dispatch": _torch_dispatch,
}
"""By kind of rule; what is not here needs nothing of torch."""
