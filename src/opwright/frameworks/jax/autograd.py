"""The derivative rules of an operator: backward, jvp, or neither, as a map linear in the tangents.

* ``setup_context`` is called once, on tracers or arrays; which inputs need a gradient is known then.
* A rule of flavour ``torch`` or ``numpy`` runs on the host as a whole, ``setup_context`` included: first
  order only, one direction each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.interpreters import ad

from opwright.errors import GradientError, MissingRuleError, UnsupportedError, layout
from opwright.frameworks.jax import vmap
from opwright.frameworks.jax.arguments import like_arguments, paths, unflatten
from opwright.frameworks.jax.avals import is_complex, is_inexact, is_live, no_tangent, zeros
from opwright.frameworks.jax.callbacks import Plan
from opwright.frameworks.jax.linear import Linear
from opwright.frameworks.jax.primitive import Computation
from opwright.frameworks.jax.saved import Saved
from opwright.frameworks.jax.tracing import naming
from opwright.rules.autograd import Context, new_values, run_setup_context, split_gradients
from opwright.rules.base import Rule

if TYPE_CHECKING:
    from opwright.frameworks.jax.call import Call

Pair = tuple[list[Any], list[Any]]


def jvp(call: Call, primals: Sequence[Any], tangents: Sequence[Any]) -> Pair:
    """Return the outputs of an operator and their tangents."""
    record = call.record
    outs = call.bind(*primals)
    live = tuple(is_live(tangent) for tangent in tangents)
    inexact = [is_inexact(out) for out in outs]
    if not any(live) or not any(inexact) or record.non_differentiable:
        return outs, [no_tangent(out) for out in outs]
    backward, forward = record.rule("autograd"), record.rule("jvp")
    if backward is None and forward is None:
        return _through_kernel(call, primals, tangents, live)
    rule, saved = _linear(call, primals, outs, live, backward, forward)
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
    backward: Rule | None,
    forward: Rule | None,
) -> tuple[Derivative, list[Any]]:
    """Return the linear map at a point, and the arrays that it keeps of it."""
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
            context = Context(_needs(call, live))
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
    places = [_index(saved, one) for one in (*primals, *outs)]
    point = Point(call, structure, live, diff_out, primals, outs, places)
    return Derivative(point, backward, for_backward, forward, for_forward), saved


def _index(saved: Sequence[Any], array: Any) -> int | None:
    return next((index for index, known in enumerate(saved) if known is array), None)


def _needs(call: Call, live: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(like_arguments(call.schema, call.template, live, False)[: len(call.schema.positional)])


def _is_traced(rule: Rule) -> bool:
    return rule.flavour in ("array_api", "jax")


class Point:
    """What is static of the point at which an operator is linearised."""

    __slots__ = ("call", "diff_out", "in_avals", "key", "live", "out_avals", "places", "structure")

    def __init__(
        self,
        call: Call,
        structure: tuple[Any, ...],
        live: tuple[bool, ...],
        diff_out: tuple[bool, ...],
        primals: Sequence[Any],
        outs: Sequence[Any],
        places: Sequence[int | None],
    ) -> None:
        self.call = call
        self.live = live
        self.diff_out = diff_out
        self.in_avals = tuple(jax.typeof(one) for one in primals)
        self.out_avals = tuple(jax.typeof(one) for one in outs)
        self.places = tuple(places)
        self.structure = structure
        self.key = (call, structure, live, diff_out, self.in_avals, self.out_avals, self.places)

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
        return _out_tangents(point, self.forward, returned)

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
            zeros(aval) if grad is None else _conj(_fitted(point, self.backward, name, grad, aval))
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


# ------------------------------------------------------------------------- what an author's rule returns


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


def _fitted(point: Point, rule: Rule, name: str, value: Any, aval: Any, kind: str = "gradient") -> Any:
    """Return a gradient or tangent of the shape and dtype it must have, cast; other shapes raise."""
    if not isinstance(value, jax.Array):
        if not isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
            raise _misfit(point, rule, name, kind, aval, type(value).__name__)
        value = jax.numpy.asarray(value)
    if value.shape != aval.shape:
        raise _misfit(point, rule, name, kind, aval, f"shape {value.shape}")
    if is_complex(value) and not is_complex(aval):
        value = jax.numpy.real(value)
    return jax.lax.convert_element_type(value, aval.dtype)


def _misfit(point: Point, rule: Rule, name: str, kind: str, aval: Any, got: str) -> GradientError:
    source = "backward" if kind == "gradient" else "jvp"
    return GradientError(
        layout(
            f"{source} of {point.call.record.qualname} returned a {kind} for {name} that does not fit",
            expected=f"an array of shape {aval.shape}",
            got=got,
            registered=rule.source,
        )
    )


def _out_tangents(point: Point, rule: Rule, returned: Any) -> list[Any]:
    """Return the tangents of the differentiable outputs from what a jvp rule returned."""
    schema = point.call.schema
    count = len(schema.returns) + len(new_values(schema))
    values = (
        list(returned)
        if isinstance(returned, tuple) or (count > 1 and isinstance(returned, list))
        else [returned]
    )
    if len(values) != count:
        raise GradientError(
            layout(
                f"jvp of {schema.qualname} returned an incorrect number of tangents "
                f"(expected {count}, got {len(values)})",
                expected="one for each output",
                registered=rule.source,
            )
        )
    template = [*point.structure, *(point.call.template_of(argument) for argument in new_values(schema))]
    flat: list[Any] = []
    for index, (value, entry) in enumerate(zip(values, template, strict=True)):
        size = (
            len(entry)
            if isinstance(entry, tuple)
            else entry
            if entry.__class__ is int and index < len(schema.returns)
            else None
        )
        if entry is None:
            continue
        if size is None:
            flat.append(value)
        else:
            flat += [None] * size if value is None else list(value)
    return [
        zeros(aval.to_tangent_aval())
        if value is None
        else _fitted(point, rule, f"output {index}", value, aval.to_tangent_aval(), "tangent")
        for index, (value, aval, on) in enumerate(zip(flat, point.out_avals, point.diff_out, strict=True))
        if on
    ]


# --------------------------------------------------------------------------- rules that JAX cannot trace


class OnHost(Computation):
    """A backward or jvp of flavour ``torch``, ``numpy`` or ``cupy``, run as a whole on the kernel's side."""

    __slots__ = ("backward", "point", "rule")

    def __init__(self, point: Point, rule: Rule, *, backward: bool) -> None:
        self.point = point
        self.rule = rule
        self.backward = backward
        name = f"{point.call.name}_{'backward' if backward else 'jvp'}"
        super().__init__(name, (point.key, rule, backward))

    def __repr__(self) -> str:
        return repr(self.point.call)

    def abstract(self, avals: Sequence[Any]) -> list[Any]:
        return self.point.in_tangents() if self.backward else self.point.out_tangents()

    def plan(self, device_type: str) -> Plan:
        what = "backward" if self.backward else "jvp"
        title = f"{what} of {self.point.call.record.qualname}"
        if device_type not in {"torch": ("cpu", "cuda"), "cupy": ("cuda",)}.get(self.rule.flavour, ("cpu",)):
            raise UnsupportedError(
                layout(
                    f"the {title} is of flavour {self.rule.flavour} and cannot run on {device_type}",
                    registered=self.rule.source,
                    fix="write it with opwright.array_namespace, for any framework",
                )
            )
        return Plan(title, self.rule.flavour, self._compute, self.rule.source)

    def _compute(self, arrays: Sequence[Any], _outs: Sequence[Any] | None) -> list[Any]:
        point, call = self.point, self.point.call
        ins, outs = len(point.in_avals), len(point.out_avals)
        primals, results, rest = arrays[:ins], arrays[ins : ins + outs], arrays[ins + outs :]
        context = Context(_needs(call, point.live))
        setup = getattr(self.rule, "setup_context", None)
        if setup is None and not self.backward:
            setup = getattr(call.record.rule("autograd"), "setup_context", None)
        like = [*primals, *results]
        with sys.modules["torch"].no_grad() if self.rule.flavour == "torch" else nullcontext():
            output = call.returns(point.structure, results)
            run_setup_context(setup, call.schema, context, call.values(primals), output)
            if self.backward:
                return self._gradients(context, rest, like)
            return self._tangents(context, rest, like)

    def _gradients(self, context: Context, grads: Sequence[Any], like: Sequence[Any]) -> list[Any]:
        point = self.point
        rest = iter(grads)
        results = like[len(point.in_avals) :]
        found = [next(rest) if on else None for on in point.diff_out]
        if context.materialize_grads:
            found = [0 * one if grad is None else grad for grad, one in zip(found, results, strict=True)]
        flat = flat_gradients(point, self.rule, self.rule.fn(context, *point.nested_outputs(found)))
        return [
            self._like(one, array, aval, name)
            for one, array, aval, on, name in zip(
                flat,
                like,
                point.in_avals,
                point.live,
                paths(point.call.schema, point.call.template),
                strict=False,
            )
            if on
        ]

    def _tangents(self, context: Context, tangents: Sequence[Any], like: Sequence[Any]) -> list[Any]:
        point = self.point
        rest = iter(tangents)
        flat = [
            next(rest) if on else 0 * one if is_inexact(aval) and context.materialize_grads else None
            for on, one, aval in zip(point.live, like, point.in_avals, strict=False)
        ]
        moves = like_arguments(point.call.schema, point.call.template, flat, None)
        returned = self.rule.fn(context, *[list(m) if isinstance(m, tuple) else m for m in moves])
        values = list(returned) if isinstance(returned, tuple) else [returned]
        outs = like[len(point.in_avals) :]
        if len(values) != len(outs):
            raise _misfit(
                point, self.rule, "its outputs", "tangent", point.out_avals[0], f"{len(values)} values"
            )
        rows = zip(values, outs, point.out_avals, point.diff_out, strict=True)
        return [
            self._like(value, array, aval, f"output {index}", "tangent")
            for index, (value, array, aval, on) in enumerate(rows)
            if on
        ]

    def _like(self, value: Any, array: Any, aval: Any, name: str, kind: str = "gradient") -> Any:
        """Return a gradient of the dtype that its input has; another shape raises."""
        if value is None:
            return 0 * array
        if tuple(value.shape) != tuple(aval.shape):
            raise _misfit(self.point, self.rule, name, kind, aval, f"shape {tuple(value.shape)}")
        if value.dtype == array.dtype:
            return value
        return value.to(array.dtype) if hasattr(value, "to") else value.astype(array.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Pair:
        if not any(is_live(tangent) for tangent in tangents):
            outs = self.bind(*primals)
            return outs, [no_tangent(out) for out in outs]
        what = "backward" if self.backward else "jvp"
        raise MissingRuleError(
            layout(
                f"the {what} of {self.point.call.record.qualname} is of flavour {self.rule.flavour}: JAX runs it on "
                "the host as a whole and has no autograd formula of it",
                expected="a first derivative" + (" in reverse mode" if self.backward else " in forward mode"),
                got="forward mode or a second derivative"
                if self.backward
                else "reverse mode or a second derivative",
                registered=self.rule.source,
                fix="write the rule with opwright.array_namespace, for any framework",
            )
        )

    def batch(self, axis: Any, args: Sequence[Any], dims: Sequence[Any]) -> Pair:
        return vmap.loop(self, args, dims)
