"""Second derivatives, and what PyTorch's graph adds: part of the law *autograd*.

The gradients are differentiated along a random direction of the arguments and of the incoming gradients,
and compared with finite differences of the gradients themselves.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from opwright.checks import numeric
from opwright.checks.adapters.results import Unsupported
from opwright.checks.arrays import shown
from opwright.checks.attempts import attempt
from opwright.checks.backward import differing, wrong
from opwright.checks.base import line_of, raised
from opwright.checks.blame import chain
from opwright.errors import ArgumentError, MissingRuleError, UnsupportedError
from opwright.frameworks.base import load, of_flavour
from opwright.frameworks.bridges import crossing
from opwright.rules.autograd import Context, new_values, run_setup_context, split_gradients

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.points import Point
    from opwright.checks.samples import Leaf
    from opwright.report import Finding

ONCE = "once_differentiable"
"""The word in torch's own error for a backward that cannot be differentiated."""


def second_order(point: Point, grads: Mapping[Leaf, Any]) -> Iterator[Finding]:
    """Yield where the derivative of the gradients differs from finite differences."""
    probe = point.probe
    own = [point.sample.array(leaf) for leaf in point.leaves]
    if any(array.dtype.kind == "c" for array in [*own, *point.flat(point.run.outputs)]):
        probe.skip("second derivatives of complex arrays are not compared")
        return
    used = [leaf for leaf in point.leaves if grads[leaf] is not None]
    if not used:
        return
    inner = {leaf: numeric.random_like(point.sample.array(leaf), 200 + i) for i, leaf in enumerate(used)}
    moves = dict(zip(point.leaves, [numeric.random_like(a, 300 + i) for i, a in enumerate(own)], strict=True))
    shifts = [numeric.random_like(weight, 400 + i) for i, weight in enumerate(point.weights)]
    along = moves, shifts  # everything at once
    if probe.adapter.compiles_calls and _right(point, _cheaply(point, inner), inner, along):
        probe.compared(2)
        return
    found, error = attempt(_second, point, inner)
    if isinstance(found, Unsupported):
        probe.skip(found.reason)
        return
    probe.compared()
    if found is None:
        yield from _refused(point, error)
        return
    if _right(point, found, inner, along):
        probe.compared()
        return
    cases: list[tuple[str, dict[Leaf, Any], list[Any] | None]] = [
        (f"along {leaf.label}", {leaf: move}, None) for leaf, move in moves.items()
    ]
    for where, directions, shift in [*cases, ("along the incoming gradients", {}, shifts)]:
        ours, known = _along(point, found, directions, shift)
        slope = _slope(point, inner, directions, shift)
        if slope is None:
            probe.skip(f"no second derivative {where} can be measured")
            continue
        probe.compared()
        error_size = slope.distance(ours)
        if not error_size <= 10 * point.allowed(slope, *known):
            yield wrong(
                point,
                "OW314",
                f"the second derivative {where} differs from finite differences of the gradients",
                (f"{shown(slope.value)}, by finite differences", f"{shown(ours)}, {shown(error_size)} away"),
                fix="keep what the backward needs in ctx.save_for_backward, and compute with arrays that the "
                "framework differentiates; or mark it once_differentiable",
            )
            return


def _cheaply(point: Point, inner: Mapping[Leaf, Any]) -> Any:
    """Return the second derivatives as the cheapest way gives them, or None."""
    with point.probe.adapter.cheaply():
        return attempt(_second, point, inner)[0]


def _right(
    point: Point,
    found: Any,
    inner: Mapping[Leaf, Any],
    along: tuple[Mapping[Leaf, Any], list[Any]],
) -> bool:
    """Return whether the second derivative along a direction can be measured, and is right."""
    if found is None or isinstance(found, Unsupported):
        return False
    ours, known = _along(point, found, *along)
    slope = _slope(point, inner, *along)
    return slope is not None and slope.distance(ours) <= 10 * point.allowed(slope, *known)


def _second(point: Point, inner: Mapping[Leaf, Any]) -> tuple[list[Any], list[Any]] | Unsupported:
    probe = point.probe
    array = probe.adapter.array
    wanted = point.wanted(list(inner))
    directions: list[Any] = [
        [None] * len(value) if isinstance(value, list | tuple) else None for value in point.sample.values
    ]
    for leaf, direction in inner.items():
        if leaf.element is None:
            directions[leaf.argument] = array(direction.copy())
        else:
            directions[leaf.argument][leaf.element] = array(direction.copy())
    cotangents = point.nested([array(weight.copy()) for weight in point.weights])
    return probe.adapter.second(probe.record, probe.values(point.sample), wanted, cotangents, directions)


def _along(
    point: Point, found: tuple[list[Any], list[Any]], directions: Mapping[Leaf, Any], shift: list[Any] | None
) -> tuple[float, list[Any]]:
    """Return the derivative along a direction of arrays, or of incoming gradients, and its parts."""
    by_argument, by_weight = found
    pairs = []
    for leaf, direction in directions.items():
        entry = by_argument[leaf.argument]
        pairs.append((entry if leaf.element is None or entry is None else entry[leaf.element], direction))
    if shift is not None:
        pairs += list(zip(by_weight, shift, strict=True))
    numpy = [(point.probe.to_numpy(one), other) for one, other in pairs if one is not None]
    return sum(numeric.inner(other, one) for one, other in numpy), [one for one, _ in numpy]


def _slope(
    point: Point, inner: Mapping[Leaf, Any], directions: Mapping[Leaf, Any], shift: list[Any] | None
) -> numeric.Slope | None:
    """Return the derivative of the inner product of the gradients with ``inner``, by finite differences."""
    import numpy as np

    probe = point.probe

    def along(t: float) -> float | None:
        moved = {
            leaf: np.asarray(point.sample.array(leaf) + t * direction).astype(point.sample.array(leaf).dtype)
            for leaf, direction in directions.items()
        }
        weights = (
            point.weights if shift is None else [w + t * s for w, s in zip(point.weights, shift, strict=True)]
        )
        values = probe.values(point.sample.with_arrays(moved))
        pullback, _ = attempt(probe.adapter.vjp, probe.record, values, point.wanted(point.leaves))
        grads, _ = (None, None) if pullback is None else attempt(point.gradients, pullback, weights)
        if grads is None:
            return None
        total = sum(numeric.inner(one, grads[leaf]) for leaf, one in inner.items() if grads[leaf] is not None)
        return total if np.isfinite(total) else None

    sizes = [abs(point.sample.array(leaf)) for leaf in directions]
    size = max((float(one.max()) for one in sizes if one.size), default=1.0)
    return numeric.slope(along, along(0.0), size, point.dtype)


def _refused(point: Point, error: Exception | None) -> Iterator[Finding]:
    """Yield the finding for a backward that raises when it is differentiated, unless it refuses openly."""
    probe = point.probe
    for one in chain(error or Exception()):
        if isinstance(one, MissingRuleError | UnsupportedError | ArgumentError) or ONCE in str(one):
            probe.skip(f"the backward cannot be differentiated, and says so: {str(one).splitlines()[0]}")
            return
    yield wrong(
        point,
        "OW315",
        "the backward raises when it is differentiated",
        ("second derivatives, or a refusal (once_differentiable)", raised(error)),
        fix="compute with functions that the framework differentiates, or mark it once_differentiable",
        source=line_of(error, probe.source("backward")),
    )


# ------------------------------------------------------------------------------------------- PyTorch's graph


def changed_afterwards(point: Point, grads: Mapping[Leaf, Any]) -> Iterator[Finding]:
    """Yield where an argument that changes after the call leads to wrong gradients without an error."""
    probe = point.probe
    cotangents = point.nested([probe.adapter.array(weight.copy()) for weight in point.weights])
    for leaf in point.leaves:
        if point.sample.argument(leaf).is_write:
            continue
        pulled, _ = attempt(
            probe.adapter.pulled_after, probe.record, probe.values(point.sample), point.wanted(point.leaves),
            cotangents, (leaf.argument, leaf.element),
        )  # fmt: skip
        if isinstance(pulled, Unsupported):
            return
        probe.compared()
        if pulled is None:  # torch noticed
            continue
        got = {one: _entry(probe.to_numpy(pulled[one.argument]), one) for one in point.leaves}
        for other, worst in differing(point, got, grads):
            yield wrong(
                point,
                "OW316",
                f"the gradient for {other.label} is silently wrong where {leaf.label} changes after the call",
                (f"an error, or {worst[0]}", worst[1]),
                fix="keep arrays with ctx.save_for_backward, not as attributes of ctx",
                source=probe.adapter.setup_source(probe.record),
            )
            return


def _entry(value: Any, leaf: Leaf) -> Any:
    return value if leaf.element is None or value is None else value[leaf.element]


def captured(point: Point) -> Iterator[Finding]:
    """Yield tensors that the kernel takes from outside its arguments although they require a gradient."""
    probe = point.probe
    kernel = probe.record.select_kernel(probe.adapter.name, probe.adapter.device_type)
    if kernel is None or kernel.flavour not in (probe.adapter.name, "array_api"):
        return
    probe.compared()
    names, _ = attempt(inspect.getclosurevars, inspect.unwrap(kernel.fn))
    found = {} if names is None else {**names.globals, **names.nonlocals}
    for name, value in found.items():
        for what in _require_gradients(value):
            yield probe.finding(
                "OW317",
                f"the kernel takes {name}{what} from outside, which requires a gradient and gets none",
                sample=point.sample,
                expected=f"{name} among the arguments, so that it gets its gradient",
                got=f"{name} captured by the kernel",
                fix=f"make {name}{what} an argument of the operator, or detach it",
                show=probe.adapter.gradient_lines(point.sample),
            )
            return


def _require_gradients(value: Any) -> Iterator[str]:
    """Yield how what requires a gradient is reached from a value."""
    if getattr(value, "requires_grad", False) is True and hasattr(value, "shape"):
        yield ""
    elif isinstance(value, list | tuple):
        yield from (f"[{index}]{what}" for index, one in enumerate(value) for what in _require_gradients(one))
    elif hasattr(value, "named_parameters") and not inspect.isclass(value):
        yield from (f".{name}" for name, one in value.named_parameters() if one.requires_grad)


# ------------------------------------------------------------------------------- what the backward returned


def returned(point: Point) -> dict[Leaf, Any] | None:
    """Return the gradients as the backward itself returns them, before a framework makes them fit.

    Arrays in it have a shape and a dtype, and perhaps no data. None where the rule could not be called by
    itself; what is wrong with it then shows elsewhere.
    """
    if not point.probe.adapter.coerces:
        return attempt(point.pulled, point.weights)[0]
    found, _ = attempt(point.probe.adapter.outlined, lambda: _returned(point))
    return None if found is None else dict(zip(point.leaves, map(point.probe.to_numpy, found), strict=True))


def _returned(point: Point) -> list[Any]:
    probe = point.probe
    rule: Any = probe.record.rule("autograd")
    framework = load(probe.adapter.name)
    flavour = framework.flavour if rule.flavour == "array_api" else rule.flavour
    other = of_flavour(flavour)
    there, back = crossing(framework, other), crossing(other, framework)
    if flavour == framework.flavour:
        there = back = _same
    with probe.adapter.scope():
        before, values = probe.values(point.sample), probe.values(point.sample)
        called = probe.adapter.call(probe.record, values)
        ctx = Context(point.wanted(point.leaves))
        single = len(probe.schema.returns) == 1 and not probe.schema.is_tuple
        outputs = called.outputs[0] if single else tuple(called.outputs) if called.outputs else None
        run_setup_context(rule.setup_context, probe.schema, ctx, there(list(before)), there(outputs))
        weights = point.nested([probe.adapter.array(weight.copy()) for weight in point.weights])
        after = [called.new_values[argument.name] for argument in new_values(probe.schema)]
        filled = [
            _zeros(probe.adapter, out) if grad is None else grad
            for out, grad in zip([*called.outputs, *after], weights, strict=True)
        ]
        entries = split_gradients(rule, probe.schema, rule.fn(ctx, *map(there, filled)))
        return [back(_entry(entries[leaf.argument], leaf)) for leaf in point.leaves]


def _same(value: Any) -> Any:
    return value


def _zeros(adapter: Any, out: Any) -> Any:
    """Return a gradient of zeros for an output that has none."""
    if isinstance(out, list | tuple):
        return [_zeros(adapter, one) for one in out]
    return adapter.zeros_like(out) if adapter.is_array(out) else None
