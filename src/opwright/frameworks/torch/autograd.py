"""The Autograd kernel: a single-level autograd function, right under every transform.

* It is applied at the innermost level only, and restores the caller's grad mode and forward-grad mode
  before it goes on below autograd: without either, nested transforms lose derivatives silently.
* Its arguments are one description of the call, then the operator's own with lists flattened.
  ``setup_context`` sees copies of mutated ones, from before the call.
* Outside functorch and forward-mode AD a leaner variant saves nothing for the tangent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from opwright.errors import AliasError, GradientError, StaleError, UnsupportedError, layout
from opwright.frameworks.torch import jvp, mutation, private
from opwright.frameworks.torch.call import Call
from opwright.frameworks.torch.gradients import checked, missing_formula
from opwright.frameworks.torch.lowered import Lowered, tensors_in
from opwright.frameworks.torch.nested import refused
from opwright.outputs import same_objects
from opwright.rules.autograd import AutogradRule, new_values, run_setup_context
from opwright.rules.jvp import JvpRule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Plan:
    """What the present rules of an overload make of a call.

    ``dirty`` has the positions of mutated arguments; ``fresh`` those whose new value is an output of its own;
    ``returned`` the position of the argument that a return stands for.
    """

    __slots__ = ("apply", "dirty", "fresh", "jvp_rule", "needs_old", "returned", "rule", "single", "state")

    def __init__(self, state: Lowered) -> None:
        record = state.record
        schema = record.schema
        rule = record.rule("autograd")
        assert rule is None or isinstance(rule, AutogradRule)  # noqa: S101  (the registry keeps kinds apart)
        jvp_rule = record.rule("jvp")
        assert jvp_rule is None or isinstance(jvp_rule, JvpRule)  # noqa: S101
        self.state = state
        self.rule: AutogradRule | None = state.opaque.get(rule, rule)
        self.jvp_rule = jvp_rule
        self.dirty = state.mutated
        fresh = {argument.name for argument in new_values(schema)}
        self.fresh = tuple(i for i in state.mutated if schema.arguments[i].name in fresh)
        positions = {argument.name: i for i, argument in enumerate(schema.arguments)}
        self.returned = {index: positions[name] for index, name in same_objects(record)}
        self.needs_old = bool(state.mutated) and self.setup_context is not None
        self.single = len(schema.returns) == 1 and not schema.is_tuple
        name = f"{record.name.partition('::')[2]}{'_' + record.overload if record.overload else ''}"
        self.apply = private.single_level_apply(type(name, (Dispatch,), {"__module__": "opwright.generated"}))

    @property
    def setup_context(self) -> Callable[..., None] | None:
        """The author's ``setup_context``: that of the backward, else that of the tangent."""
        if self.rule is not None and self.rule.setup_context is not None:
            return self.rule.setup_context
        return None if self.jvp_rule is None else self.jvp_rule.setup_context


class Dispatch(private.SingleLevelFunction):
    """What is applied; each overload has a subclass that carries its name."""

    @staticmethod
    def forward(ctx: Any, call: Call, *values: Any) -> Any:
        plan, state = call.plan, call.plan.state
        inputs = call.nest(values)
        keyset = call.keyset & private.after_autograd
        redispatch = state.native.redispatch
        if call.full:
            with private.modes_restored(*call.modes):
                out = state.apply(redispatch, tuple(inputs), keyset)
        elif plan.dirty:
            # Where a program is traced, a write without grad mode is taken for one that has no gradient.
            with private.below_autograd(), torch.enable_grad():
                out = state.apply(redispatch, tuple(inputs), keyset)
        else:
            with private.below_autograd():
                out = state.apply(redispatch, tuple(inputs), keyset)
        if state.record.stale is not None:
            raise _redefined(state)
        outputs = call.spread_outputs(inputs, out)
        call.shapes = [v.shape if isinstance(v, torch.Tensor) else None for v in values]
        call.dtypes = [
            v.dtype if need else None for v, need in zip(values, ctx.needs_input_grad[1:], strict=True)
        ]
        _refuse_inputs(call, values, outputs)
        ctx._opwright = call  # noqa: SLF001
        ctx.needs_input_grad = tuple(call.nest(ctx.needs_input_grad[1:], missing=False))
        if plan.dirty:
            ctx.mark_dirty(*[tensor for i in plan.dirty for tensor in tensors_in(inputs[i])])
            for position, old in enumerate(call.flat):
                if old is not None:
                    inputs[position] = old
        if plan.rule is not None:
            with refused(state.record, "setup_context", plan.rule):
                run_setup_context(
                    plan.rule.setup_context, state.record.schema, ctx, state.authors(inputs), out
                )
        if call.full:
            jvp.keep(ctx, call, values=values, inputs=inputs, outputs=outputs, out=out)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        call: Call = ctx._opwright  # noqa: SLF001
        rule = call.plan.rule
        if rule is None:
            raise missing_formula(call.plan.state)
        returned = rule.fn(ctx, *call.nest_outputs(grads))
        return (None, *checked(call, rule, returned))

    @staticmethod
    def jvp(ctx: Any, _call: Any, *tangents: Any) -> Any:
        return jvp.tangents_of_outputs(ctx, tangents)


def _refuse_inputs(call: Call, values: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise where an output is an input that the schema does not say is returned."""
    for index, output in enumerate(outputs):
        sources = [n for n, value in enumerate(values) if value is output and isinstance(value, torch.Tensor)]
        # The new value of a mutated argument, given a second time where no gradient is needed, is none.
        if sources and not any(map(call.is_dirty, sources)):
            record = call.plan.state.record
            raise AliasError(
                layout(
                    f"output {index} of {record.qualname} is an argument itself; an output may not alias "
                    "an argument or another output",
                    registered=record.kernels_text(),
                    fix="return a copy, or declare the aliasing in the schema",
                )
            )


# What every kernel calls: globals are as fast as cells, and the collector has no cells of each to walk.
_below, _after = private.below_autograd, private.after_autograd
_grad_enabled, _any_requires_grad = torch.is_grad_enabled, private.any_requires_grad
_functorch_active, _dispatch_modes = private.functorch_active, private.dispatch_mode_count


def make_kernel(state: Lowered, make_lean: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return the kernel for the dispatch key ``Autograd``.

    ``make_lean(state, kernel, output)`` makes the function that records a gradient outside functorch and
    forward-mode AD, of a kernel that goes on below autograd.
    """
    native, redispatch, record = state.native, state.native.redispatch, state.record
    plain = not state.mutated and all(str(entry.type) == "Tensor" for entry in state.record.schema.returns)
    # The kernel that comes next for what is mutated: called here, it costs no way through the dispatcher.
    counting = mutation.make_kernel(state) if state.mutated else None

    def go_on(*args: Any, **kwargs: Any) -> Any:
        with _below():
            out = native(*args, **kwargs)
        if record.stale is not None:
            raise _redefined(state)
        return out

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        full = _functorch_active() or forward_ad._current_level >= 0  # noqa: SLF001
        if full:
            # Compiled code enters levels of forward mode without telling Python, but for when it is traced.
            state.dual = state.dual or bool(_dispatch_modes() and not _functorch_active())
        elif state.dual:
            full = _has_tangents(args, kwargs)
        if not full and not (_grad_enabled() and _any_requires_grad(*args, **kwargs)):
            if counting is not None and mutation.is_next(state, keyset):
                return counting(keyset, *args, **kwargs)
            with _below():
                return redispatch(keyset & _after, *args, **kwargs)
        flat = state.flat(args, kwargs)
        if not full and plain and make_lean is not None and not state.classes:  # it goes on with plain values
            lean = state.cache.get("lean") or state.derive(
                "lean", lambda: make_lean(state, go_on, _unchanged)
            )
            return lean(*flat)
        return apply(state, keyset, flat, full=full)

    return private.never_traced(kernel)


def _redefined(state: Lowered) -> StaleError:
    """Return the error for a call during which the operator was redefined: another kernel may have run."""
    return StaleError(
        layout(
            f"operator {state.record.qualname} {state.record.stale}, during a call that records a gradient",
            registered=state.record.source,
            fix="call it again",
        )
    )


def _has_tangents(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return any(map(private.has_tangent, tensors_in([*args, *kwargs.values()])))


def _unchanged(_flat: tuple[Any, ...], out: Any) -> Any:
    """Take what the operator returned: the backend kernel has looked at it."""
    return out


def make_constant_kernel(state: Lowered) -> Callable[..., Any]:
    """Return the kernel for ``Autograd`` of an operator that was declared to have no gradient.

    Without one, torch would put a node there that warns.
    """
    redispatch = state.native.redispatch

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        with _below():
            return redispatch(keyset & _after, *args, **kwargs)

    return private.never_traced(kernel)


def _refuse_traced_tangent(plan: Plan, flat: Sequence[Any]) -> None:
    """Raise where torch's tracer would lose a mutation: ``torch.func.linearize`` folds constants.

    It follows the mutated argument of an operator whose name ends in ``_`` and that returns it.
    """
    record = plan.state.record
    followed = set(plan.dirty) == set(plan.returned.values()) and record.name.endswith("_")
    if followed or not private.forward_level() or private.functorch_active() or not private.traced():
        return
    if any(private.has_tangent(tensor) for value in flat for tensor in tensors_in(value)):
        raise UnsupportedError(
            layout(
                f"{record.qualname} mutates an argument while a tangent of it is traced, as "
                "torch.func.linearize does; torch would lose the mutation",
                registered=record.source,
                fix="use torch.func.jvp, or a functional operator",
            )
        )


def make_out_kernel(state: Lowered) -> Callable[..., Any]:
    """Return the kernel for ``Autograd`` of an operator that overwrites its out arguments."""
    redispatch = state.native.redispatch

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and private.any_requires_grad(*args, **kwargs):
            raise _no_gradient_of_out(state, "grad")
        if (private.forward_level() or state.dual) and _has_tangents(args, kwargs):
            raise _no_gradient_of_out(state, "a tangent")
        with _below():
            return redispatch(keyset & _after, *args, **kwargs)

    return private.never_traced(kernel)


def _no_gradient_of_out(state: Lowered, what: str) -> GradientError:
    record = state.record
    return GradientError(
        layout(
            f"{record.qualname}: functions with out=... arguments don't support automatic differentiation, "
            f"but one of the arguments requires {what}",
            registered=record.source,
            fix="call it under torch.no_grad(), or call a functional operator",
        )
    )


def apply(state: Lowered, keyset: Any, flat: tuple[Any, ...], *, full: bool) -> Any:
    """Apply the autograd function to one value for each argument, and return what the schema says."""
    plan: Plan = state.derive("autograd", lambda: Plan(state))
    if plan.dirty:
        refuse_leaves(state, flat)
        mutation.refuse_memory_in_common(state, flat)
        _refuse_traced_tangent(plan, flat)
    call = Call(plan, keyset, flat, full=full)
    values = call.flatten(flat)
    call.flat = ()
    if plan.needs_old:
        # Not arguments of the function: compiled autograd cannot add their missing gradients. Derivatives go
        # through their own history, for which they are made here rather than in the forward.
        call.flat = tuple(_copy(value) if i in plan.dirty else None for i, value in enumerate(flat))
    if full:
        before = private.get_single_level()
        private.set_single_level(True)
        try:
            out = plan.apply(call, *values)
        finally:
            private.set_single_level(before)
    else:
        out = plan.apply(call, *values)
    nested = call.nest_outputs(out)[: len(state.record.schema.returns)]
    if not nested:
        return None
    return nested[0] if plan.single else tuple(nested)


def _copy(value: Any) -> Any:
    """Return copies of a mutated argument's tensors, made where derivatives can go through them."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [_copy(one) for one in value] if value.__class__ in (list, tuple) else value


def refuse_leaves(state: Lowered, flat: Sequence[Any]) -> None:
    """Raise where a mutated argument is a leaf that requires grad, or a view of one, as built-ins do."""
    if not torch.is_grad_enabled():
        return
    for index in state.mutated:
        for tensor in tensors_in(flat[index]):
            if not tensor.requires_grad:
                continue
            base = tensor._base  # noqa: SLF001
            leaf = tensor.is_leaf or (base is not None and base.is_leaf and base.requires_grad)
            if leaf and private.level_of(tensor) < 0:
                argument = state.record.schema.arguments[index].name
                what = "a leaf Variable" if tensor.is_leaf else "a view of a leaf Variable"
                raise GradientError(
                    layout(
                        f"{state.record.qualname}, argument {argument}: {what} that requires grad "
                        "is being used in an in-place operation",
                        expected="a tensor without grad, or one computed from others",
                        fix=f"pass {argument}.clone(), or call it under torch.no_grad()",
                    )
                )
