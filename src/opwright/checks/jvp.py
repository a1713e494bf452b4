"""The law *jvp*: tangents are the derivatives of the outputs, and adjoint to the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.checks import numeric
from opwright.checks.arrays import shown
from opwright.checks.attempts import attempt
from opwright.checks.base import Law, facts, line_of, raised
from opwright.checks.points import Point, other_points, points, why_not
from opwright.errors import ArgumentError, GradientError, MissingRuleError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from opwright.checks.base import Probe
    from opwright.checks.samples import Leaf
    from opwright.report import Finding

ELEMENTS = 4
"""In how many elements of each output finite differences are taken."""

DERIVED = 64
"""Up to how many output elements a tangent that is derived from the backward is looked at."""

EXPLANATIONS: Mapping[str, str] = {
    "OW401": (
        "The tangent of an output is not its derivative along the tangents of the arguments, as finite "
        "differences show it. Correct the jvp rule; where there is none, the tangent comes from the backward."
    ),
    "OW402": (
        "The tangents and the gradients do not belong to one linear map: the inner product of the tangent "
        "with a weight differs from that of the pulled-back weight with the direction. One of jvp and "
        "backward is wrong."
    ),
    "OW403": (
        "The jvp rule raised, or returned something that does not fit the outputs. A tangent is None for "
        "arguments that have none; there is one tangent for each output, of its shape and dtype."
    ),
    "OW404": "For tangents that are zero, the tangent of an output is not zero.",
}


def check(probe: Probe) -> Iterator[Finding]:
    """Yield what is wrong with the tangents."""
    reason = why_not(probe)
    if reason is not None:
        probe.skip(reason)
        return
    missing = probe.adapter.supports(probe.record, "jvp")
    if missing is not None:
        probe.skip(missing.reason)
        return
    given = probe.record.rule("jvp") is not None
    if not given and "autograd" in probe.failed:
        probe.skip("tangents come from the backward: see autograd")
        return
    found = False
    for point in points(probe):
        point.leaves = [leaf for leaf in point.leaves if not point.sample.argument(leaf).kwarg_only]
        if not point.leaves:
            probe.skip("only keyword-only arguments are floating arrays, and these are constants in jvp")
        elif not given and sum(output.size for output in point.flat(point.run.outputs)) > DERIVED:
            probe.skip(
                f"the tangent is derived from the backward, and the outputs have over {DERIVED} elements"
            )
        else:
            for finding in _at(point):
                found = True
                yield finding
    if given and not found and not probe.quick:
        yield from _elsewhere(probe)


def _elsewhere(probe: Probe) -> Iterator[Finding]:
    """Yield the first tangents that are wrong with other flags, numbers, sizes or values."""
    for point in other_points(probe):
        point.leaves = [leaf for leaf in point.leaves if not point.sample.argument(leaf).kwarg_only]
        directions = {
            leaf: numeric.random_like(point.sample.array(leaf), 250 + i)
            for i, leaf in enumerate(point.leaves)
        }
        returned, _ = attempt(_jvp, point, directions)
        tangents = None if returned is None else point.flat([probe.to_numpy(one) for one in returned[1]])
        pairs = zip(point.flat(point.run.outputs), tangents or (), strict=False)
        if directions and tangents and all(t is None or t.shape == out.shape for out, t in pairs):
            found = list(_total(point, directions, tangents, "arguments have tangents"))
            yield from found
            if found:
                return


def _jvp(point: Point, directions: Mapping[Leaf, Any]) -> Any:
    """Return the outputs and their tangents, for tangents of some arrays."""
    probe = point.probe
    tangents: list[Any] = [
        [None] * len(v) if isinstance(v, list | tuple) else None for v in point.sample.values
    ]
    for leaf, direction in directions.items():
        array = probe.adapter.array(direction.copy())
        if leaf.element is None:
            tangents[leaf.argument] = array
        else:
            tangents[leaf.argument][leaf.element] = array
    return probe.adapter.jvp(probe.record, probe.values(point.sample), tangents)


def _at(point: Point) -> Iterator[Finding]:
    directions = {
        leaf: numeric.random_like(point.sample.array(leaf), 50 + i) for i, leaf in enumerate(point.leaves)
    }
    tangents = yield from _tangents(point, directions, "all arguments have a tangent")
    if tangents is None:
        return
    found = [*_values(point, directions, tangents), *_adjoint(point, directions, tangents)]
    yield from found[:1]
    if found or point.probe.quick:
        return
    if len(point.leaves) > 1:
        for leaf in point.leaves:
            alone = {leaf: directions[leaf]}
            case = f"only {leaf.label} has a tangent"
            tangents = yield from _tangents(point, alone, case)
            if tangents is not None:
                yield from _total(point, alone, tangents, case)
    zeros = {leaf: direction * 0 for leaf, direction in directions.items()}
    tangents = yield from _tangents(point, zeros, "the tangents are zero")
    for (index, _), tangent in zip(point.outputs, tangents or (), strict=False):
        point.probe.compared()
        if tangent is not None and tangent.size and abs(tangent).max() > 0:
            what = f"the tangent of {point.probe.output_names[index]} for zero tangents is not zero"
            worst = shown(tangent.reshape(-1)[int(abs(tangent).argmax())])
            yield _wrong(point, "OW404", what, ("zeros", worst))


def _wrong(point: Point, id_: str, what: str, worst: tuple[str, str], source: str = "") -> Finding:
    rule = "jvp" if point.probe.record.rule("jvp") is not None else "backward"
    return point.probe.finding(
        id_, what, sample=point.sample, rule=rule, source=source, expected=worst[0], got=worst[1],
        fix=f"correct the {rule}", show=point.probe.adapter.tangent_lines(point.sample),
    )  # fmt: skip


def _tangents(
    point: Point, directions: Mapping[Leaf, Any], case: str
) -> Generator[Finding, None, list[Any] | None]:
    """Yield what is wrong with a jvp; return the tangents of the outputs, or None where it raised."""
    probe = point.probe
    probe.compared()
    returned, error = attempt(_jvp, point, directions)
    if returned is None:
        refused = isinstance(error, UnsupportedError) or (
            isinstance(error, MissingRuleError | ArgumentError) and probe.record.rule("jvp") is None
        )
        if refused:  # a tangent that comes from the backward needs one that can be differentiated
            probe.skip(str(error).splitlines()[0])
        elif probe.record.rule("jvp") is None and _zero(point):
            probe.skip("a gradient is zero, and no tangent can be derived from a backward that returns zeros")
        elif isinstance(error, GradientError):
            head, known = facts(error)
            what = f"the {head}".replace(f" of {probe.schema.qualname}", "")
            yield _wrong(point, "OW403", what, (known.get("expected", ""), known.get("got", "")))
        else:
            source = line_of(error, probe.source("jvp"))
            yield _wrong(point, "OW403", f"jvp raises where {case}", ("tangents", raised(error)), source)
        return None
    _, found = returned
    flat = point.flat([probe.to_numpy(one) for one in found])
    for (index, _), output, tangent in zip(point.outputs, point.flat(point.run.outputs), flat, strict=True):
        if tangent is not None and tangent.dtype != output.dtype:
            name = probe.output_names[index]
            what = f"the tangent of {name} has another dtype than {name}"
            yield _wrong(point, "OW403", what, (f"dtype {output.dtype}", f"dtype {tangent.dtype}"))
            return None
    return flat


def _zero(point: Point) -> bool:
    """Return whether a gradient is all zeros, which a backward may well return as they are."""
    grads, _ = attempt(point.pulled, point.weights)
    return grads is not None and any(grad is not None and not grad.any() for grad in grads.values())


def _values(point: Point, directions: Mapping[Leaf, Any], tangents: Sequence[Any]) -> Iterator[Finding]:
    """Yield tangents that differ from finite differences, element by element."""
    import numpy as np

    outputs = point.flat(point.run.outputs)
    for number, ((index, _), output, tangent) in enumerate(
        zip(point.outputs, outputs, tangents, strict=True)
    ):
        known = np.zeros_like(output) if tangent is None else tangent
        name = point.probe.output_names[index]
        for where in numeric.chosen_indices(output, ELEMENTS, number):
            for unit in (1.0, 1j) if output.dtype.kind == "c" else (1.0,):
                weights = [np.zeros_like(one) for one in outputs]
                weights[number][where] = unit
                slope = point.slope(directions, weights)
                if slope is None:
                    continue
                point.probe.compared()
                ours = numeric.inner(weights[number], known)
                error = slope.distance(ours)
                if not error <= point.allowed(slope, known):
                    expected = f"{shown(slope.value)} at index {where}, by finite differences"
                    what = f"the tangent of {name} differs from finite differences"
                    yield _wrong(point, "OW401", what, (expected, f"{shown(ours)}, {shown(error)} away"))
                    return


def _total(
    point: Point, directions: Mapping[Leaf, Any], tangents: Sequence[Any], case: str
) -> Iterator[Finding]:
    """Yield where the weighted tangents differ from finite differences along a direction."""
    slope = point.slope(directions)
    if slope is None or slope.low != slope.high:  # several elements may be at a kink, each on its own side
        return
    point.probe.compared()
    ours = sum(numeric.inner(w, t) for w, t in zip(point.weights, tangents, strict=True) if t is not None)
    error = slope.distance(ours)
    if not error <= point.allowed(slope, *(t for t in tangents if t is not None)):
        expected = f"{shown(slope.value)}, by finite differences of the weighted outputs"
        what = f"the tangents differ from finite differences where {case}"
        yield _wrong(point, "OW401", what, (expected, f"{shown(ours)}, {shown(error)} away"))


def _adjoint(point: Point, directions: Mapping[Leaf, Any], tangents: Sequence[Any]) -> Iterator[Finding]:
    """Yield where the tangents are not adjoint to the gradients."""
    probe = point.probe
    if probe.adapter.supports(probe.record, "autograd") is not None or probe.record.rule("jvp") is None:
        return
    grads, error = attempt(point.pulled, point.weights)
    if grads is None:
        probe.skip(f"the adjoint was not looked at: the backward raises {type(error).__name__}")
        return
    probe.compared()
    forward = sum(numeric.inner(w, t) for w, t in zip(point.weights, tangents, strict=True) if t is not None)
    back = sum(numeric.inner(d, grads[leaf]) for leaf, d in directions.items() if grads[leaf] is not None)
    rtol, atol = numeric.TOLERANCE[point.dtype]
    scale = max(map(numeric.largest, [*(t for t in tangents if t is not None), *point.weights]))
    if not abs(forward - back) <= 10 * (rtol * max(abs(forward), abs(back)) + atol * scale):
        what = "the tangents are not adjoint to the gradients"
        expected = f"{shown(back)}, the weights pulled back, along the direction"
        yield _wrong(point, "OW402", what, (expected, f"{shown(forward)}, the tangents weighted"))


CHECK = Law("jvp", check, EXPLANATIONS)
