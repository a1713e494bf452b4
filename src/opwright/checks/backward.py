"""How a backward treats what it is given: part of the law *autograd*.

Incoming gradients that are zero, left out, expanded, transposed and read-only; each subset of arguments
that need a gradient; what it changes, and what its context keeps alive.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

from opwright.checks.arrays import LAYOUTS, difference, has_other_layout
from opwright.checks.attempts import attempt
from opwright.checks.base import facts, line_of, raised
from opwright.checks.marked import filled
from opwright.errors import GradientError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.points import Point
    from opwright.checks.samples import Leaf
    from opwright.report import Finding

OWN_ATTRIBUTES = frozenset(
    {"saved_tensors", "needs_input_grad", "non_differentiable", "dirty_tensors", "materialize_grads"}
)
"""Attributes of ``ctx`` that are Opwright's."""


def wrong(
    point: Point,
    id_: str,
    what: str,
    worst: tuple[str, str],
    *,
    fix: str = "correct the backward",
    source: str = "",
) -> Finding:
    """Return a finding about the backward at a sample; ``worst`` is what was expected, and what there is."""
    probe = point.probe
    return probe.finding(
        id_,
        what,
        sample=point.sample,
        rule="backward",
        source=source,
        expected=worst[0],
        got=worst[1],
        fix=fix,
        show=probe.adapter.gradient_lines(point.sample),
    )


def refused(point: Point, error: Exception | None, what: str, id_: str) -> Finding:
    """Return the finding for a backward that raised, or whose result was refused."""
    source = line_of(error, point.probe.source("backward"))
    if isinstance(error, GradientError):
        head, known = facts(error)
        named = head.replace(f" of {point.probe.schema.qualname}", "")
        fix = known.get("to fix", "correct the backward")
        worst = known.get("expected", ""), known.get("got", "")
        return wrong(point, id_, f"the {named}", worst, fix=fix, source=source)
    worst = "one gradient for each argument, or None", raised(error)
    return wrong(point, id_, what, worst, source=source)


def kept_whole(point: Point) -> Iterator[Finding]:
    """Yield what the backward changed of what it was given."""
    probe = point.probe
    values = probe.values(point.sample)
    pullback = probe.adapter.vjp(probe.record, values, point.wanted(point.leaves))
    weights = [probe.adapter.array(weight.copy()) for weight in point.weights]
    named = [
        (f"its incoming gradient {i}" if len(weights) > 1 else "its incoming gradient", weight, "OW308")
        for i, weight in enumerate(weights)
    ]
    for leaf in point.sample.leaves():
        value = values[leaf.argument]
        array = value if leaf.element is None else value[leaf.element]
        named.append((f"argument {leaf.label}", array, "OW309"))
    saved = getattr(pullback.context, "saved_tensors", ())
    named += [
        (f"saved array {i}", one, "OW309") for i, one in enumerate(saved) if probe.adapter.is_array(one)
    ]
    before = [probe.adapter.numpy(array).copy() for _, array, _ in named]
    pullback.pull(point.nested(weights))
    told: set[str] = set()
    for (name, array, id_), old in zip(named, before, strict=True):
        probe.compared()
        worst = difference(probe.adapter.numpy(array), old, rtol=0, atol=0)
        if worst is not None and id_ not in told:
            told.add(id_)
            worst = f"{name} as it was: {worst[0]}", worst[1]
            yield wrong(
                point, id_, f"the backward changed {name}", worst, fix="work on a copy in the backward"
            )


def kept_alive(point: Point) -> Iterator[Finding]:
    """Yield the first output that is still alive after the result and its pullback were released."""
    probe = point.probe
    references = {}
    for name, output, attribute in _held(point):
        probe.compared()
        if attribute:
            yield _alive(point, name, f"ctx.{attribute} holds it, which makes a reference cycle in PyTorch")
            return
        references[name] = weakref.ref(output)
        del output
    if any(reference() is not None for reference in references.values()):
        gc.collect()  # takes long beside a large framework; a cycle of the pullback's own is no leak
    for name, reference in references.items():
        probe.compared()
        if reference() is not None:
            yield _alive(point, name, "something outside the call holds it")
            return


def _held(point: Point) -> Iterator[tuple[str, Any, str]]:
    """Yield each output of a differentiable call with its name, and the attribute of ctx that holds it."""
    pullback = point.differentiable()
    point.gradients(pullback, point.weights)
    context: Any = pullback.context
    kept_outputs: dict[Any, Any] = {}
    if context is None:
        context, kept_outputs = filled(point.probe, point.sample)
    attributes = vars(context) if hasattr(context, "__dict__") else {}
    own = {name: value for name, value in attributes.items() if name not in OWN_ATTRIBUTES}
    returns = len(point.probe.schema.returns)
    for index, element in point.outputs:
        if index < returns:  # new values of arguments are the caller's own arrays
            value = pullback.outputs[index]
            output = value if element is None else value[element]
            given = kept_outputs.get((index, element), output)
            name = point.probe.output_names[index]
            holder = next((attribute for attribute, kept in own.items() if _keeps(kept, given)), "")
            if hasattr(output, "__array_interface__") and output.ndim == 0 and not hasattr(output, "flags"):
                continue
            yield name, output, holder


def _keeps(kept: Any, output: Any) -> bool:
    """Return whether an attribute is an output, or a list or tuple with it."""
    return kept is output or (isinstance(kept, list | tuple) and any(one is output for one in kept))


def _alive(point: Point, name: str, why: str) -> Finding:
    probe = point.probe
    return probe.finding(
        "OW312",
        f"{name} is kept alive after it was released",
        sample=point.sample,
        rule="setup_context",
        source=probe.adapter.setup_source(probe.record),
        expected="memory that is free once nothing uses the result",
        got=why,
        fix="keep arrays with ctx.save_for_backward, not as attributes of ctx or in a global",
        show=probe.adapter.gradient_lines(point.sample),
    )


def again(point: Point, grads: Mapping[Leaf, Any]) -> Iterator[Finding]:
    """Yield where a second pull of the same gradients gives something else."""
    pullback = point.differentiable()
    _, error = attempt(point.gradients, pullback, point.weights)
    second = None
    if error is None:
        second, error = attempt(point.gradients, pullback, point.weights)
    if second is None:
        yield refused(point, error, "the backward raises when it is run a second time", "OW313")
        return
    for leaf, worst in differing(point, second, grads):
        yield wrong(
            point,
            "OW313",
            f"the gradient for {leaf.label} is another when it is pulled back again",
            worst,
        )


def differing(
    point: Point, got: Mapping[Leaf, Any], expected: Mapping[Leaf, Any]
) -> Iterator[tuple[Leaf, tuple[str, str]]]:
    """Yield the arrays whose gradients differ, with the worst element; None counts as zero."""
    import numpy as np

    for leaf, other in expected.items():
        zero = np.zeros_like(point.sample.array(leaf))
        a, b = (zero if grad is None else np.asarray(grad) for grad in (got[leaf], other))
        point.probe.compared()
        if a.shape != b.shape:
            yield leaf, (f"shape {b.shape}", f"shape {a.shape}")
            continue
        worst = difference(a, b, rtol=point.probe.rtol, atol=point.probe.atol)
        if worst is not None:
            yield leaf, worst


def incoming(point: Point) -> Iterator[Finding]:
    """Yield where the gradient depends on how the incoming one lies in memory."""
    import numpy as np

    ones = [np.ones_like(weight) for weight in point.weights]
    plain = point.pulled(ones)
    layouts = [name for name in ("transposed", "sliced", "read-only") if name in point.probe.adapter.layouts]
    cases: list[tuple[str, list[Any], Mapping[Leaf, Any]]] = []
    if "expanded" in point.probe.adapter.layouts and any(weight.ndim for weight in ones):
        whole = [np.broadcast_to(np.ones((), one.dtype), one.shape) for one in ones]
        cases.append(("expanded, with stride 0", whole, plain))
    weighted = point.pulled(point.weights) if layouts else {}
    for layout in layouts:
        if any(has_other_layout(weight, layout) for weight in point.weights):
            laid = [LAYOUTS[layout][0](w) if has_other_layout(w, layout) else w for w in point.weights]
            cases.append((layout, laid, weighted))
    for name, weights, expected in cases:
        got, error = attempt(point.pulled, weights)
        if got is None:
            yield refused(point, error, f"the backward raises where the incoming gradient is {name}", "OW307")
            continue
        for leaf, worst in differing(point, got, expected):
            what = f"the gradient for {leaf.label} differs where the incoming gradient is {name}"
            yield wrong(
                point, "OW307", what, worst, fix="make the incoming gradient contiguous, or use its strides"
            )


def zero_and_none(point: Point) -> Iterator[Finding]:
    """Yield where zero gradients do not give zero, or an output that is not used is not counted as zero."""
    import numpy as np

    zeros = [np.zeros_like(weight) for weight in point.weights]
    nothing = {leaf: np.zeros_like(point.sample.array(leaf)) for leaf in point.leaves}
    got, error = attempt(point.pulled, zeros)
    if got is None:
        yield refused(point, error, "the backward raises where the incoming gradient is zero", "OW311")
        return
    for leaf, worst in differing(point, got, nothing):
        if "nan" not in worst[1]:  # zero times an infinite slope, as any framework's own gradient has it
            yield wrong(
                point, "OW311", f"the gradient for {leaf.label} of a zero gradient is not zero", worst
            )
    if len(point.outputs) < 2:
        return
    for used in range(len(point.outputs)):
        alone = [weight if i == used else None for i, weight in enumerate(point.weights)]
        with_zeros = [weight if i == used else zeros[i] for i, weight in enumerate(point.weights)]
        name = point.probe.output_names[point.outputs[used][0]]
        got, error = attempt(point.pulled, alone)
        if got is None:
            yield refused(point, error, f"the backward raises where only {name} is used", "OW311")
            return
        for leaf, worst in differing(point, got, point.pulled(with_zeros)):
            what = f"the gradient for {leaf.label} differs where only {name} is used"
            yield wrong(point, "OW311", what, worst)


def subsets(point: Point, grads: Mapping[Leaf, Any]) -> Iterator[Finding]:
    """Yield where the gradient of some arguments depends on which others need one."""
    leaves = point.leaves
    chosen = [[leaf] for leaf in leaves] if len(leaves) > 1 else []
    chosen += [[leaf for leaf in leaves if leaf is not left] for left in leaves] if len(leaves) > 2 else []
    for subset in chosen:
        names = ", ".join(leaf.label for leaf in subset)
        got, error = attempt(point.pulled, point.weights, subset)
        if got is None:
            yield refused(point, error, f"the backward raises where only {names} needs a gradient", "OW310")
            continue
        asked = {leaf: grads[leaf] for leaf in subset}
        for leaf, worst in differing(point, got, asked):
            what = f"the gradient for {leaf.label} differs where only {names} needs a gradient"
            yield wrong(point, "OW310", what, worst)
