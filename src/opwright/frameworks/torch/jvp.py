"""Tangents: the author's jvp rule, or one derived from the backward.

* The backward is a linear map from gradients of outputs to those of inputs. Differentiating it once more, in
  the direction of the tangents, gives the tangents of the outputs.
* What was saved carries tangents of this level: a rule sees it without, and keeps those of outer levels.
  Attributes of the context do too: arrays, and those in containers that torch's pytrees know.
* Forward-grad mode is off when torch calls a jvp; without turning it on, nested tangents are silently zero.
* The tangent of a mutated argument must change in place.
* Torch makes a zero of a tangent that is missing beside one that is there, so a rule may see either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from opwright.errors import GradientError, UnsupportedError, layout
from opwright.frameworks.torch import private
from opwright.frameworks.torch.gradients import checked, missing_formula
from opwright.frameworks.torch.nested import refused
from opwright.rules.autograd import AutogradRule, Context, of_another_dtype, run_setup_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.frameworks.torch.call import Call
    from opwright.rules.base import Rule


def primal(value: Any) -> Any:
    """Return tensors without their tangents of the current level, those in containers too."""
    leaves, spec = tree_flatten(value)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return value
    bare = [private.unpack_dual(one, level=0)[0] if isinstance(one, torch.Tensor) else one for one in leaves]
    return tree_unflatten(bare, spec)


class ForwardContext:
    """A context as a rule sees it under forward mode: without the tangents of this level.

    Parameters
    ----------
    ctx
        The context that ``setup_context`` filled.
    needs_input_grad
        Which arguments to compute for: torch's own is all False under forward mode.
    """

    def __init__(self, ctx: Any, needs_input_grad: tuple[Any, ...]) -> None:
        self._ctx = ctx
        self.needs_input_grad = needs_input_grad

    def __getattr__(self, name: str) -> Any:
        return primal(getattr(self._ctx, name))

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What ``save_for_backward`` kept."""
        return tuple(primal(tensor) for tensor in self._ctx.saved_tensors)


def keep(
    ctx: Any,
    call: Call,
    *,
    values: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    out: Any,
) -> None:
    """Keep, in the forward, what the tangent will need.

    ``values`` and ``outputs`` are flat; ``inputs`` and ``out`` are as the author has them.
    """
    call.differentiable = [isinstance(v, torch.Tensor) and _differentiable(v) for v in values]
    if call.plan.dirty:
        sources = {id(value): n for n, value in enumerate(values) if isinstance(value, torch.Tensor)}
        call.dirty_outputs = {n: sources[id(o)] for n, o in enumerate(outputs) if id(o) in sources}
    saved = getattr(ctx, "to_save", None)
    if saved:
        ctx.save_for_forward(*saved)
    plan = call.plan
    rule = plan.jvp_rule
    own = rule.setup_context if rule is not None else None
    if own is not None:
        call.context = Context(ctx.needs_input_grad)
        state = plan.state
        with refused(state.record, "setup_context", rule):
            run_setup_context(own, state.record.schema, call.context, state.authors(inputs), out)
    constant = {id(tensor) for tensor in getattr(ctx, "non_differentiable", None) or ()}
    call.templates = tuple(
        (tensor.detach(), id(tensor) not in constant and _differentiable(tensor))
        if isinstance(tensor, torch.Tensor)
        else None
        for tensor in outputs
    )


def _differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def tangents_of_outputs(ctx: Any, tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the tangents of the flat outputs from those of the flat values."""
    call = ctx._opwright  # noqa: SLF001
    plan = call.plan
    with private.forward_grad_on():
        # Computed on copies of those that change in place below: what is saved of them must not change.
        dirty = set(call.dirty_outputs.values())
        given = tangents
        tangents = tuple(t.clone() if n in dirty and t is not None else t for n, t in enumerate(given))
        rule = plan.jvp_rule or plan.rule
        if rule is None:
            raise missing_formula(plan.state, tangent=True)
        if isinstance(rule, AutogradRule):
            with refused(plan.state.record, "backward, of which the tangent is derived,", rule):
                found = _derived(ctx, call, rule, tangents)
        else:
            with refused(plan.state.record, "jvp rule", rule):
                found = _author(ctx, call, rule, tangents)
        if any(map(_has_tangent, found)):
            raise _out_of_sight(call, rule)
        pairs = enumerate(zip(found, call.templates, strict=True))
        return tuple(_in_place(call, i, _or_zero(*pair), given) for i, pair in pairs)


def _or_zero(tangent: Any, template: tuple[torch.Tensor, bool] | None) -> Any:
    """Return the tangent of an output; torch aborts on None, which stands for zero, where it counts."""
    if tangent is not None or template is None or not template[1]:
        return tangent
    return torch.zeros_like(template[0])


def _has_tangent(tangent: Any) -> bool:
    """Return whether a tangent has one of its own, where that can be asked."""
    known = isinstance(tangent, torch.Tensor) and not private.is_legacy_batched(tangent)
    return known and private.has_tangent(tangent)


def _out_of_sight(call: Call, rule: Rule) -> GradientError:
    qualname = call.plan.state.record.qualname
    return GradientError(
        layout(
            f"{rule.kind} rule of {qualname}: it read an array with a tangent of its own, which was neither "
            "saved nor an attribute of ctx",
            expected="arrays from ctx.save_for_backward, or in attributes of ctx: arrays, and lists, tuples "
            "and dicts of them, no other objects",
            registered=rule.source,
            fix="keep it with ctx.save_for_backward",
        )
    )


def _in_place(call: Call, index: int, tangent: Any, tangents: tuple[Any, ...]) -> Any:
    """Return an output's tangent; that of a mutated argument is its old one, changed in place."""
    source = call.dirty_outputs.get(index)
    old = None if source is None else tangents[source]
    if old is None:
        return tangent
    try:
        return old.zero_() if tangent is None else old.copy_(tangent)
    except RuntimeError as error:
        if "ZeroTensors" not in str(error):
            raise
        record = call.plan.state.record
        raise UnsupportedError(
            layout(
                f"{record.qualname} mutates an argument whose tangent is a constant zero of torch's, which "
                "cannot be changed in place",
                got="forward mode inside forward mode, through a mutated argument",
                registered=record.source,
                fix="call a functional operator here, or use torch.func.jacrev for one of the two",
            )
        ) from error


def _author(ctx: Any, call: Call, rule: Rule, tangents: tuple[Any, ...]) -> list[Any]:
    """Call the author's rule: one tangent for each argument, one for each output and new value."""
    nested = call.nest(tangents)
    needs = tuple(
        [t is not None for t in one] if one.__class__ is list else one is not None for one in nested
    )
    source = call.context if call.context is not None else ctx
    returned = rule.fn(ForwardContext(source, needs), *nested)
    wanted = len(call.outputs)
    several = returned if isinstance(returned, list | tuple) else (returned,)
    if wanted == 1 and call.outputs[0] is not None and isinstance(returned, list):
        several = (returned,)
    if len(several) != wanted:
        raise _bad_tangents(call, rule, f"{wanted}, one for each output", f"{len(several)}")
    flat: list[Any] = []
    for length, value in zip(call.outputs, several, strict=True):
        if length is None:
            flat.append(value)
        elif value is None:
            flat += [None] * length
        elif not isinstance(value, list | tuple) or len(value) != length:
            raise _bad_tangents(call, rule, f"a list of {length} tangents", repr(type(value).__name__))
        else:
            flat += value
    for index, (tangent, template) in enumerate(zip(flat, call.templates, strict=True)):
        if tangent is None:
            continue
        if not isinstance(tangent, torch.Tensor):
            got = f"{tangent!r} of type {type(tangent).__name__}"
            raise _bad_tangents(call, rule, f"a tensor, or None for zero, for output {index}", got)
        if template is None or tangent.shape != template[0].shape:
            expected = "None" if template is None else f"shape {tuple(template[0].shape)} for output {index}"
            raise _bad_tangents(call, rule, expected, f"shape {tuple(tangent.shape)}")
        if template[1] and not _differentiable(tangent):
            expected = f"a floating or complex tensor for output {index}"
            raise _bad_tangents(call, rule, expected, f"dtype {tangent.dtype}")
        if tangent.dtype.is_complex and not template[0].dtype.is_complex:
            raise of_another_dtype(
                call.plan.state.record.qualname,
                rule,
                str(index),
                expected=template[0].dtype,
                got=tangent.dtype,
                kind="tangent",
            )
    return flat


def _bad_tangents(call: Call, rule: Rule, expected: str, got: str) -> GradientError:
    qualname = call.plan.state.record.qualname
    return GradientError(
        layout(
            f"jvp of {qualname} returned an incorrect number, kind or shape of tangents",
            expected=expected,
            got=got,
            registered=rule.source,
        )
    )


def _derived(ctx: Any, call: Call, rule: AutogradRule, tangents: tuple[Any, ...]) -> list[Any]:
    """Return the tangents by differentiating the backward, which is linear in the gradients it gets."""
    # All are asked for: an output whose gradient no result depends on is then one that the backward detaches.
    needs = tuple(call.nest(call.differentiable, missing=False))
    with torch.enable_grad(), private.allow_inplace_requires_grad(True):
        seeds = [None if t is None else torch.zeros_like(primal(t[0])) for t in call.templates]
        pairs = zip(seeds, call.templates, strict=True)
        active = [seed.requires_grad_() for seed, t in pairs if seed is not None and t[1]]
        returned = rule.fn(ForwardContext(ctx, needs), *call.nest_outputs(seeds))
        grads, tangents_in = [], []
        # Torch makes zeros of tangents that are not there: which gradients count is not known.
        dtypes = [None] * len(tangents)
        for grad, tangent in zip(checked(call, rule, returned, dtypes), tangents, strict=True):
            if grad is None or (tangent is None and not grad.requires_grad):
                continue
            if not grad.requires_grad:
                raise _detached(call, rule)
            like = grad if tangent is None else _as_type(grad, tangent)
            grads.append(like)
            tangents_in.append(torch.zeros_like(like) if tangent is None else tangent)
        if not grads or not active:
            return [None] * len(seeds)
        found = iter(_differentiate(call, rule, grads, active, tangents_in))
    return [next(found) if t is not None and t[1] else None for t in call.templates]


def _as_type(grad: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    """Return a gradient in its argument's dtype, as torch's engine casts it."""
    if grad.is_complex() and not tangent.is_complex():
        grad = grad.real
    return grad if grad.dtype == tangent.dtype else grad.to(tangent.dtype)


def _differentiate(call: Call, rule: Rule, grads: Any, seeds: Any, tangents: Any) -> Any:
    # allow_unused stays off: with it, a backward that detaches would give zeros instead of an error.
    try:
        return torch.autograd.grad(grads, seeds, tangents, create_graph=True)
    except RuntimeError as error:
        if "not have been used in the graph" in str(error):
            raise _detached(call, rule) from error
        raise


def _detached(call: Call, rule: Rule) -> GradientError:
    qualname = call.plan.state.record.qualname
    return GradientError(
        layout(
            f"no tangent of {qualname} can be derived from its backward: a gradient that it returns does not "
            "depend on those that it got",
            expected="a backward of differentiable operations; None, not zeros, where there is no gradient; "
            "ctx.mark_non_differentiable for outputs that have none",
            registered=rule.source,
            fix=f"add the tangent: opwright.register_jvp({qualname!r}, ...)",
        )
    )
