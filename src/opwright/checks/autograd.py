"""The law *autograd*: the backward gives the gradients of the kernel, whatever the incoming ones look like.

Values are compared with finite differences, shapes and dtypes strictly. The backward is then run with
incoming gradients that are zero, left out, expanded, transposed and read-only, and with each subset of
arguments that need a gradient; it must change nothing that it was given, and keep nothing alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.checks import backward, derived, numeric, second
from opwright.checks.arrays import described, shown
from opwright.checks.attempts import attempt
from opwright.checks.base import Law
from opwright.checks.points import Point, other_points, point_at, points, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.base import Probe, Run
    from opwright.checks.samples import Leaf, Sample
    from opwright.report import Finding

ELEMENTS = 6
"""In how many elements of each array finite differences are taken, beside one random direction."""

ELEMENTS_OF_RIGHT = 2
"""In how many where the gradient along that direction is right."""

EXPLANATIONS: Mapping[str, str] = {
    "OW301": (
        "The gradient that the backward returns is not the derivative of the kernel, as finite differences "
        "show it. Compare the formula with the kernel; constant factors, a transposed matrix, a clamp or a "
        "broadcast that the backward forgot are the usual causes."
    ),
    "OW302": (
        "A gradient has another shape than the argument. A larger one that broadcasts is summed silently by "
        "some frameworks and refused by others. Sum the gradient over the axes that were broadcast."
    ),
    "OW303": "A gradient has another dtype than the argument. Convert it in the backward.",
    "OW304": (
        "The backward returns None for an argument on which the outputs depend, so training goes on without "
        "its gradient. Return the gradient, or declare the operator non_differentiable=True if none is meant."
    ),
    "OW305": (
        "An argument requires a gradient, but the operator has no autograd formula: differentiating raises. "
        "Register one with register_autograd, or declare non_differentiable=True."
    ),
    "OW306": (
        "The backward raised, or returned something that does not fit the arguments: the wrong number of "
        "gradients, a name that is no argument, a value that is no array."
    ),
    "OW307": (
        "The gradient depends on how the incoming gradient lies in memory. Gradients of sums arrive "
        "expanded, with stride zero, those of transposes transposed. Make the incoming gradient contiguous, "
        "or use its strides."
    ),
    "OW308": (
        "The backward changed its incoming gradient. Other branches of the graph use the same array, and get "
        "wrong gradients. Work on a copy."
    ),
    "OW309": (
        "The backward changed an argument, an output or a saved array. A second backward, or another user of "
        "that array, then sees the changed values."
    ),
    "OW310": (
        "With needs_input_grad false for some arguments, the backward raises or gives other gradients for "
        "the rest."
    ),
    "OW311": (
        "For incoming gradients that are zero, or None for outputs that were not used, the backward raises "
        "or returns something else than zero."
    ),
    "OW312": (
        "The context keeps an output alive after the result was released: as a plain attribute of ctx, which "
        "makes a reference cycle in PyTorch, or in a global. Keep arrays with ctx.save_for_backward."
    ),
    "OW313": "Pulling the same gradient back a second time gives another result: the backward keeps a state.",
    "OW314": (
        "The derivative of the gradient is wrong, though the gradient is right. The backward computes with "
        "something that the framework takes for a constant: an intermediate kept as an attribute of ctx, a "
        "detached or NumPy array. Save arguments and outputs with ctx.save_for_backward and compute from "
        "them, or mark the backward once_differentiable, so that a second derivative raises."
    ),
    "OW315": (
        "Differentiating the backward raises, with an error that does not say that it cannot be "
        "differentiated. Compute with functions that the framework differentiates, or mark it "
        "once_differentiable."
    ),
    "OW316": (
        "An argument was changed in place between the call and the backward, as an optimiser or an in-place "
        "operator does, and the gradient is silently wrong. PyTorch raises for what is kept with "
        "ctx.save_for_backward; what is kept as an attribute of ctx, it cannot see."
    ),
    "OW317": (
        "The kernel uses a tensor that requires a gradient but is no argument: a closed-over parameter, a "
        "global, a module. Operators are opaque, so it never gets a gradient and training goes on without. "
        "Pass it as an argument."
    ),
}


def check(probe: Probe) -> Iterator[Finding]:
    """Yield what is wrong with the gradients."""
    reason = why_not(probe)
    if reason is not None:
        probe.skip(reason)
        return
    missing = probe.adapter.supports(probe.record, "autograd")
    if missing is not None:
        if not probe.record.owner:
            yield from _not_registered(probe)
        probe.skip(missing.reason)
        return
    shared = probe.looked_at_elsewhere("autograd")
    if shared and probe.quick:
        yield from _outlines(probe)
        return
    found = [finding for point in points(probe) for finding in _at(point)]
    yield from found or _other_dtypes(probe)
    if not found and not probe.quick and not shared:
        yield from _elsewhere(probe)


def _elsewhere(probe: Probe) -> Iterator[Finding]:
    """Yield the first gradient that is wrong with other flags, numbers, sizes or values."""
    for point in other_points(probe):
        grads, _ = attempt(point.pulled, point.weights)
        for number, (leaf, grad) in enumerate((grads or {}).items()):
            array = point.sample.array(leaf)
            known = array * 0 if grad is None else grad
            if getattr(known, "shape", None) != array.shape:
                continue  # which the framework refuses
            worst = _along_all(point, leaf, known, 200 + number)
            if worst is not None and worst[0]:
                yield _wrong_value(point, leaf, grad, worst)
                return


def _other_dtypes(probe: Probe) -> Iterator[Finding]:
    """Yield gradients of another shape or dtype than their argument, outside of double precision."""
    for sample in probe.samples:
        for variant in (sample, *(() if probe.quick else derived.dtypes(sample))):
            if derived.in_double(variant) is not variant:  # else it is a point
                yield from _outline(probe, variant, probe.run(variant)) or ()


def _outlines(probe: Probe) -> Iterator[Finding]:
    """Yield gradients of another shape or dtype than their argument, and why there are none."""
    for sample in probe.samples:
        found = _outline(probe, sample, probe.reference(sample))
        if found is not None:
            yield from found
            continue
        for point in points(probe):
            yield from _at(point)
        return


def _outline(probe: Probe, sample: Sample, run: Run) -> list[Finding] | None:
    """Return gradients of another shape or dtype than their argument in one call, or None without any."""
    point = None if run.error is not None else point_at(probe, sample, run)
    if point is None:
        return []
    raw = second.returned(point)
    return None if raw is None else list(_strict(point, raw))


def _not_registered(probe: Probe) -> Iterator[Finding]:
    for sample in probe.samples:
        for label in sorted(sample.requires_grad):
            probe.compared()
            yield probe.finding(
                "OW305",
                f"argument {label} requires a gradient, but no autograd formula is registered",
                sample=sample,
                expected="an autograd formula, or non_differentiable=True",
                got="neither",
                fix=f"@opwright.register_autograd({probe.record.name!r}), or declare non_differentiable=True",
            )


def _at(point: Point) -> Iterator[Finding]:
    """Yield what is wrong at one sample; the rest is not looked at where the values are wrong."""
    yield from second.captured(point)
    raw = second.returned(point) if point.probe.adapter.coerces else None
    found = [] if raw is None else list(_strict(point, raw))
    yield from found
    if found:
        return
    grads, error = attempt(point.pulled, point.weights)
    if grads is None:
        yield backward.refused(point, error, "the backward raises", "OW306")
        return
    found = list(_strict(point, grads)) or list(_values(point, grads)) or list(_accepted(point))
    yield from found
    yield from backward.kept_whole(point)
    if found:
        return
    yield from backward.kept_alive(point)
    yield from backward.again(point, grads)
    yield from backward.incoming(point)
    yield from backward.zero_and_none(point)
    yield from second.changed_afterwards(point, grads)
    if not point.probe.quick:
        yield from backward.subsets(point, grads)
        yield from second.second_order(point, grads)


def _accepted(point: Point) -> Iterator[Finding]:
    """Yield what the framework itself refuses of what the backward returned."""
    reason = point.probe.adapter.refuses(
        point.probe.record,
        point.probe.values(point.sample),
        point.nested([point.probe.adapter.array(w) for w in point.weights]),
    )
    point.probe.compared()
    if reason is not None:
        yield backward.refused(point, reason, "the backward's result is refused", "OW306")


def _strict(point: Point, grads: Mapping[Leaf, Any]) -> Iterator[Finding]:
    """Yield gradients of another shape or dtype than their argument."""
    for leaf, grad in grads.items():
        array, name = point.sample.array(leaf), leaf.label
        point.probe.compared()
        if grad is None:
            continue
        if not hasattr(grad, "dtype"):
            got = f"{grad!r} of type {type(grad).__name__}"
            what = f"the gradient for {name} is no array"
            yield backward.wrong(point, "OW306", what, (described(array), got), fix="return an array")
        elif grad.shape != array.shape:
            what = f"the gradient for {name} has another shape than {name}"
            shapes = f"shape {tuple(array.shape)}", f"shape {tuple(grad.shape)}"
            fix = "sum the gradient over the axes that were broadcast, or reshape it"
            yield backward.wrong(point, "OW302", what, shapes, fix=fix)
        elif grad.dtype != array.dtype:
            what = f"the gradient for {name} has another dtype than {name}"
            fix = f"convert it to the dtype of {name} in the backward"
            dtypes = f"dtype {array.dtype}", f"dtype {grad.dtype}"
            yield backward.wrong(point, "OW303", what, dtypes, fix=fix)


def _values(point: Point, grads: Mapping[Leaf, Any]) -> Iterator[Finding]:
    """Yield gradients that differ from finite differences."""
    import numpy as np

    for number, leaf in enumerate(point.leaves):
        array = point.sample.array(leaf)
        grad = grads[leaf]
        known = np.zeros_like(array) if grad is None else grad
        whole = None
        if array.size > 1:
            whole = _along_all(point, leaf, known, 100 + number)
        right = whole is not None and whole[0] == 0
        errors = [
            _error(point, leaf, known, where, direction)
            for where, direction in _units(array, number, ELEMENTS_OF_RIGHT if right else ELEMENTS)
        ]
        measured = [error for error in errors if error is not None] or ([] if whole is None else [whole])
        if not measured:
            point.probe.skip(f"no slope along {leaf.label} can be measured")
            continue
        worst = max(measured, key=lambda error: error[0])
        if not worst[0] and whole is not None:
            worst = whole
        if worst[0]:
            yield _wrong_value(point, leaf, grad, worst)


def _along_all(point: Point, leaf: Leaf, known: Any, seed: int) -> tuple[float, str, str] | None:
    """Return how far a gradient is from the slope along a random direction, as ``_error`` does.

    None at a kink too: several elements may be at one, each on a side of its own.
    """
    direction = numeric.random_like(point.sample.array(leaf), seed)
    return _error(point, leaf, known, " along a random direction", direction, smooth=True)


def _error(
    point: Point, leaf: Leaf, known: Any, where: str, direction: Any, *, smooth: bool = False
) -> tuple[float, str, str] | None:
    """Return how far a gradient is from the slope along a direction, 0 where that is allowed, in words too.

    None where the slope cannot be measured.
    """
    slope = point.slope({leaf: direction})
    if slope is None or (smooth and slope.low != slope.high):
        return None
    point.probe.compared()
    ours = numeric.inner(direction, known)
    error = slope.distance(ours)
    far = 0.0 if error <= point.allowed(slope, known) else error
    return far, f"{shown(slope.value)}{where}, by finite differences", f"{shown(ours)}, {shown(error)} away"


def _units(array: Any, seed: int, number: int) -> Iterator[tuple[str, Any]]:
    """Yield some directions of one element each, and where it is."""
    import numpy as np

    units = (1.0, 1j) if array.dtype.kind == "c" else (1.0,)
    for index in numeric.chosen_indices(array, number, seed):
        for unit in units:
            direction = np.zeros(array.shape, array.dtype)
            direction[index] = unit
            imaginary = " (imaginary part)" if unit == 1j else ""
            yield f" at index {index}{imaginary}" if array.ndim else imaginary, direction


def _wrong_value(point: Point, leaf: Leaf, grad: Any, worst: tuple[float, str, str]) -> Finding:
    if grad is None:
        what = f"the backward gives no gradient for {leaf.label}, on which the outputs depend"
        fix = f"return the gradient for {leaf.label}, or declare non_differentiable=True if none is meant"
        return backward.wrong(point, "OW304", what, (worst[1], "None"), fix=fix)
    what = f"the gradient for {leaf.label} differs from finite differences"
    return backward.wrong(point, "OW301", what, worst[1:], fix="correct the formula in the backward")


CHECK = Law("autograd", check, EXPLANATIONS)
