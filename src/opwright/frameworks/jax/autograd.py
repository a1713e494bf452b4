"""The derivative of an operator: its backward and jvp rules as a map that is linear in the tangents.

``setup_context`` is called once, on tracers or arrays; which inputs need a gradient is known then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax.interpreters import ad

from opwright.errors import MissingRuleError, layout
from opwright.frameworks.jax.arguments import like_arguments, paths
from opwright.frameworks.jax.avals import arrays, is_complex, is_inexact, is_live, no_tangent, zeros
from opwright.frameworks.jax.gradients import Point, fitted, flat_gradients, needs, out_tangents_of
from opwright.frameworks.jax.host_rules import OnHost
from opwright.frameworks.jax.linear import Linear
from opwright.frameworks.jax.saved import Saved
from opwright.frameworks.jax.tracing import naming
from opwright.rules.autograd import Context, run_setup_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.frameworks.jax.call import Call
    from opwright.rules.base import Rule

    Pair = tuple[list[Any], list[Any]]


def jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> Pair:
    """Return the outputs of an operator and their tangents."""
    record = call.record
    primals, tangents = arrays(primals), arrays(tangents)
    outs = call.bind(*primals)
    live = tuple(is_live(tangent) for tangent in tangents)
    inexact = [is_inexact(out) for out in outs]
    if not any(live) or not any(inexact) or record.non_differentiable:
        return outs, [no_tangent(out) for out in outs]
    backward, forward = record.rule("autograd"), record.rule("jvp")
    if backward is None and forward is None:
        return _through_kernel(call, primals, tangents, live)
    rule, saved = _linear(call, primals, outs, live, (backward, forward))
    if not any(rule.diff_out):
        return outs, [no_tangent(out) for out in outs]
    moving = iter(rule.bind(saved, [tangent for tangent, on in zip(tangents, live, strict=True) if on]))
    return outs, [
        next(moving) if on else no_tangent(out) for out, on in zip(outs, rule.diff_out, strict=True)
    ]


def _through_kernel(
    call: Call, primals: Sequence[Any], tangents: Sequence[Any], live: Sequence[bool]
) -> Pair:
    """Differentiate the kernel itself where it is CompositeImplicitAutograd, else raise."""
    compute = call.implicit()
    if compute is None:
        raise MissingRuleError(
            layout(
                f"{call.record.qualname}: no autograd formula is registered, and JAX differentiates it",
                expected="a backward or a jvp rule",
                got="a kernel, which is never differentiated through",
                registered=call.record.source,
                fix=f"register one: @opwright.register_autograd({call.record.qualname!r}, setup_context=…); "
                "or stop the gradient with jax.lax.stop_gradient",
            )
        )

    def of_live(*varied: Any) -> list[Any]:
        rest = iter(varied)
        return compute([next(rest) if on else one for one, on in zip(primals, live, strict=True)], None)

    points = [one for one, on in zip(primals, live, strict=True) if on]
    moves = [one for one, on in zip(tangents, live, strict=True) if on]
    outs, out_tangents = jax.jvp(of_live, points, moves)
    return list(outs), [
        one if is_inexact(out) else no_tangent(out) for out, one in zip(outs, out_tangents, strict=True)
    ]


def _linear(
    call: Call,
    primals: Sequence[Any],
    outs: Sequence[Any],
    live: tuple[bool, ...],
    rules: tuple[Rule | None, Rule | None],
) -> tuple[Derivative, list[Any]]:
    """Return the linear map at a point, and the arrays that it keeps of it."""
    backward, forward = rules
    structure = call.structure([jax.typeof(one) for one in primals], len(outs))
    saved: list[Any] = []
    marked: list[Any] = []
    kept: dict[int, Saved] = {}

    def keep(rule: Rule | None, setup: Any) -> Saved | None:
        if rule is None:
            return None
        if not _is_traced(rule):
            for one in (*primals, *outs):
                if not any(one is known for known in saved):
                    saved.append(one)
            return None
        if id(setup) not in kept:
            context = Context(needs(call, live))
            output = call.returns(structure, outs)
            with naming(f"setup_context of {call.record.qualname}", rule.source):
                run_setup_context(setup, call.schema, context, call.values(primals), output)
            marked.extend(context.non_differentiable)
            kept[id(setup)] = Saved(context, saved)
        return kept[id(setup)]

    setup = getattr(backward, "setup_context", None)
    for_backward = keep(backward, setup)
    for_forward = keep(forward, getattr(forward, "setup_context", None) or setup)
    diff_out = tuple(is_inexact(out) and not any(out is one for one in marked) for out in outs)
    point = Point(
        call=call,
        structure=structure,
        live=live,
        diff_out=diff_out,
        in_avals=tuple(map(jax.typeof, primals)),
        out_avals=tuple(map(jax.typeof, outs)),
        places=tuple(_index(saved, one) for one in (*primals, *outs)),
    )
    return Derivative(point, backward, for_backward, forward, for_forward), saved


def _index(saved: Sequence[Any], array: Any) -> int | None:
    return next((index for index, known in enumerate(saved) if known is array), None)


def _is_traced(rule: Rule) -> bool:
    return rule.flavour in ("array_api", "jax")


class Derivative(Linear):
    """The derivative of an operator at a point, by its rules."""

    __slots__ = ("backward", "diff_out", "for_backward", "for_forward", "forward", "point")

    def __init__(
        self,
        point: Point,
        backward: Rule | None,
        for_backward: Saved | None,
        forward: Rule | None,
        for_forward: Saved | None,
    ) -> None:
        self.point = point
        self.diff_out = point.diff_out
        self.backward = backward
        self.forward = forward
        self.for_backward = for_backward
        self.for_forward = for_forward
        contexts = [one for one in (for_backward, for_forward) if one is not None]
        key = (point.key, backward, forward, tuple(one.key for one in contexts))
        title = f"derivative of {point.call.record.qualname}"
        super().__init__(title, key, opaque=any(one.opaque for one in contexts))

    def out_avals(self) -> list[Any]:
        return self.point.out_tangents()

    def apply(self, saved: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        point = self.point
        if self.forward is None:
            return self.apply_by_transposing(saved, tangents)
        if self.for_forward is None:
            return OnHost(point, self.forward, backward=False).bind(*_of_point(point, saved), *tangents)
        context = self.for_forward.context(saved)
        rest = iter(tangents)
        flat = [
            next(rest) if on else (zeros(aval) if context.materialize_grads and is_inexact(aval) else None)
            for on, aval in zip(point.live, point.in_avals, strict=True)
        ]
        moves = like_arguments(point.call.schema, point.call.template, flat, None)
        with naming(f"jvp of {point.call.record.qualname}", self.forward.source):
            returned = self.forward.fn(context, *[list(m) if isinstance(m, tuple) else m for m in moves])
        return out_tangents_of(point, self.forward, returned)

    def transpose(self, saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        point = self.point
        every = [None if type(one) is ad.Zero else _conj(one) for one in cotangents]
        if self.backward is None:
            return self._transpose_of_forward(saved, cotangents)
        if self.for_backward is None:
            full = [zeros(a) if one is None else one for one, a in zip(every, self.out_avals(), strict=True)]
            host = OnHost(point, self.backward, backward=True)
            return [_conj(one) for one in host.bind(*_of_point(point, saved), *full)]
        context = self.for_backward.context(saved)
        grads = point.of_outputs(every, materialize=context.materialize_grads)
        with naming(f"backward of {point.call.record.qualname}", self.backward.source):
            returned = self.backward.fn(context, *point.nested_outputs(grads))
        flat = flat_gradients(point, self.backward, returned)
        return [
            zeros(aval) if grad is None else _conj(fitted(point, self.backward, name, grad, aval=aval))
            for name, grad, aval, on in zip(self._names(), flat, point.in_avals, point.live, strict=True)
            if on
        ]

    def _names(self) -> list[str]:
        return paths(self.point.call.schema, self.point.call.template)

    def _transpose_of_forward(self, saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        at = [zeros(aval) for aval in self.point.in_tangents()]
        _, pull = jax.vjp(lambda *tangents: self.apply(saved, tangents), *at)
        avals = self.out_avals()
        full = [zeros(a) if type(one) is ad.Zero else one for one, a in zip(cotangents, avals, strict=True)]
        return list(pull(full))


def _conj(array: Any) -> Any:
    return jax.numpy.conj(array) if is_complex(array) else array


def _of_point(point: Point, saved: Sequence[Any]) -> list[Any]:
    return [saved[index] for index in point.places if index is not None]
