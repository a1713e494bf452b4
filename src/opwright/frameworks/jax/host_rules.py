"""Derivative rules that JAX cannot trace: of flavour ``torch``, ``numpy`` or ``cupy``, run as a whole.

``setup_context`` and the rule run in the flavour's own arrays, on the host or on a GPU's buffers, one order
deep and in one direction; any other use raises.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from opwright.arrays import class_name
from opwright.errors import MissingRuleError, UnsupportedError, layout
from opwright.frameworks.base import of_flavour
from opwright.frameworks.jax import vmap
from opwright.frameworks.jax.arguments import like_arguments, paths
from opwright.frameworks.jax.avals import is_complex, is_inexact, is_live, no_tangent
from opwright.frameworks.jax.callbacks import Plan
from opwright.frameworks.jax.gradients import Point, flat_gradients, misfit, needs, not_real
from opwright.frameworks.jax.inputs import inputs_of, watched
from opwright.frameworks.jax.primitive import Computation
from opwright.rules.autograd import Context, run_setup_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.rules.base import Rule

    Pair = tuple[list[Any], list[Any]]


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
        inputs = inputs_of(title, self.rule.source, self.rule.flavour, self._names(), "write to a copy of it")
        return Plan(title, self.rule.flavour, watched(inputs, self._compute), self.rule.source)

    def _names(self) -> list[str]:
        """Return what each of the arrays is that the rule gets."""
        point = self.point
        inputs, outputs = paths(point.call.schema, point.call.template), range(len(point.out_avals))
        given = [(f"output {i}", on) for i, on in zip(outputs, point.diff_out, strict=True)]
        if not self.backward:
            given = list(zip((f"argument {name}" for name in inputs), point.live, strict=True))
        return [
            *(f"argument {name}" for name in inputs),
            *(f"output {index}" for index in outputs),
            *(f"the {'gradient' if self.backward else 'tangent'} of {name}" for name, on in given if on),
        ]

    def _compute(self, arrays: Sequence[Any], _outs: Sequence[Any] | None) -> list[Any]:
        point, call = self.point, self.point.call
        ins, outs = len(point.in_avals), len(point.out_avals)
        primals, results, rest = arrays[:ins], arrays[ins : ins + outs], arrays[ins + outs :]
        context = Context(needs(call, point.live))
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
            found = [
                _zeros_like(one) if grad is None else grad for grad, one in zip(found, results, strict=True)
            ]
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
            next(rest) if on else _zeros_like(one) if is_inexact(aval) and context.materialize_grads else None
            for on, one, aval in zip(point.live, like, point.in_avals, strict=False)
        ]
        moves = like_arguments(point.call.schema, point.call.template, flat, None)
        returned = self.rule.fn(context, *[list(m) if isinstance(m, tuple) else m for m in moves])
        values = list(returned) if isinstance(returned, tuple) else [returned]
        outs = like[len(point.in_avals) :]
        if len(values) != len(outs):
            raise misfit(
                point,
                self.rule,
                "its outputs",
                kind="tangent",
                aval=point.out_avals[0],
                got=f"{len(values)} values",
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
            return _zeros_like(array)
        if not of_flavour(self.rule.flavour).accepts(value):
            raise misfit(self.point, self.rule, name, kind=kind, aval=aval, got=class_name(value))
        if tuple(value.shape) != tuple(aval.shape):
            raise misfit(self.point, self.rule, name, kind=kind, aval=aval, got=f"shape {tuple(value.shape)}")
        if value.dtype == array.dtype:
            return value
        if "complex" in str(value.dtype) and not is_complex(aval):
            raise not_real(self.point, self.rule, name, kind=kind, aval=aval, got=value.dtype)
        return value.to(array.dtype) if hasattr(value, "to") else value.astype(array.dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Pair:
        if not any(is_live(tangent) for tangent in tangents):
            outs = self.bind(*primals)
            return outs, [no_tangent(out) for out in outs]
        what = "backward" if self.backward else "jvp"
        raise MissingRuleError(
            layout(
                f"the {what} of {self.point.call.record.qualname} is of flavour {self.rule.flavour}: "
                "JAX runs it on the host as a whole and has no autograd formula of it",
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


def _zeros_like(array: Any) -> Any:
    if hasattr(array, "new_zeros"):
        return array.new_zeros(array.shape)
    made = np.array(array) if isinstance(array, np.generic | np.ndarray) else array.copy()
    made.fill(0)
    return made
