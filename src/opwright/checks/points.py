"""What the laws *autograd* and *jvp* share: where derivatives are compared, losses, gradients, directions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opwright.checks import derived, numeric
from opwright.checks.arrays import copied, is_floating
from opwright.checks.marked import marked
from opwright.checks.samples import Leaf, Sample, put
from opwright.keys import IMPLICIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opwright.checks.adapters.results import Pullback
    from opwright.checks.base import Probe, Run


@dataclass(slots=True)
class Point:
    """A sample at which derivatives are compared.

    Parameters
    ----------
    probe, sample
        The sample, in double precision where the operator takes that.
    run
        The call there.
    leaves
        The arrays that have gradients.
    outputs
        Positions of the outputs that have gradients: index, and index in a list or None.
    weights
        A random weight for each of them; the loss is the weighted sum.
    """

    probe: Probe
    sample: Sample
    run: Run
    leaves: list[Leaf]
    outputs: list[tuple[int, int | None]]
    weights: list[Any] = field(default_factory=list)

    @property
    def dtype(self) -> str:
        """The lowest precision among the arrays: that of the finite differences."""
        arrays = [self.sample.array(leaf) for leaf in self.leaves] + self.flat(self.run.outputs)
        names = {str(array.dtype) for array in arrays}
        low = names - {"float64", "complex128"}
        return "float64" if not low else "float32" if low <= {"float32", "complex64"} else ""

    def flat(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the outputs that have gradients, in order."""
        return [outputs[i] if j is None else outputs[i][j] for i, j in self.outputs]

    def nested(self, flat: Sequence[Any], fill: Any = None) -> list[Any]:
        """Return one entry for each output from one for each that has a gradient."""
        nested: list[Any] = [
            [fill] * len(value) if isinstance(value, list) else fill for value in self.run.outputs
        ]
        for (i, j), value in zip(self.outputs, flat, strict=True):
            if j is None:
                nested[i] = value
            else:
                nested[i][j] = value
        return nested

    def wanted(self, leaves: Sequence[Leaf]) -> tuple[Any, ...]:
        """Return for each argument whether its gradient is asked for, nested for lists."""
        none = [[False] * len(v) if isinstance(v, list | tuple) else False for v in self.sample.values]
        return put(none, dict.fromkeys(leaves, True))

    def differentiable(self, leaves: Sequence[Leaf] | None = None) -> Pullback:
        """Call the operator so that gradients can be pulled back to some arrays, by default to all."""
        probe = self.probe
        wanted = self.wanted(self.leaves if leaves is None else leaves)
        return probe.adapter.vjp(probe.record, probe.values(self.sample), wanted)

    def pulled(self, weights: Sequence[Any], leaves: Sequence[Leaf] | None = None) -> dict[Leaf, Any]:
        """Return the gradient of each array of a new call, for incoming gradients as ``gradients`` takes."""
        return self.gradients(self.differentiable(leaves), weights)

    def gradients(self, pullback: Pullback, weights: Sequence[Any]) -> dict[Leaf, Any]:
        """Return the gradient of each array for incoming gradients, one for each output that has one."""
        array = self.probe.adapter.array
        returned = pullback.pull(self.nested([w if w is None else array(copied(w)) for w in weights]))
        found = {}
        for leaf in self.leaves:
            grad = returned[leaf.argument]
            if leaf.element is not None and grad is not None:
                grad = grad[leaf.element]
            found[leaf] = self.probe.to_numpy(grad)
        return found

    def allowed(self, slope: numeric.Slope, *arrays: Any) -> float:
        """Return how far a derivative may be from finite differences; arrays give the scale."""
        rtol, atol = numeric.TOLERANCE[self.dtype]
        rtol = rtol if self.probe.rtol is None else self.probe.rtol
        atol = atol if self.probe.atol is None else self.probe.atol
        return (
            rtol * abs(slope.value) + atol * max(map(numeric.largest, arrays), default=1.0) + 5 * slope.error
        )

    def loss(self, arrays: Mapping[Leaf, Any], weights: Sequence[Any] | None = None) -> float | None:
        """Return the loss with other arrays, or None where there is none."""
        run = self.probe.run(self.sample.with_arrays(arrays))
        if run.error is not None:
            return None
        try:
            outputs = self.flat(run.outputs)
        except IndexError:
            return None
        return numeric.total(outputs, self.weights if weights is None else weights)

    def slope(
        self, directions: Mapping[Leaf, Any], weights: Sequence[Any] | None = None
    ) -> numeric.Slope | None:
        """Return the derivative of the loss along a direction of some arrays."""
        import numpy as np

        def along(t: float) -> float | None:
            moved = {}
            for leaf, direction in directions.items():
                array = self.sample.array(leaf)
                moved[leaf] = np.asarray(array + t * direction).astype(array.dtype)
            return self.loss(moved, weights)

        sizes = [abs(self.sample.array(leaf)[direction != 0]) for leaf, direction in directions.items()]
        size = max((float(one.max()) for one in sizes if one.size), default=1.0)
        here = numeric.total(self.flat(self.run.outputs), self.weights if weights is None else weights)
        return numeric.slope(along, here, size, self.dtype)


def points(probe: Probe) -> Iterator[Point]:
    """Yield the samples at which derivatives are compared; why there is none is noted in the probe."""
    for sample in probe.samples:
        wide = derived.in_double(sample)
        run = probe.reference(sample) if wide is sample else probe.run(wide)
        if run.error is not None:
            wide, run = sample, probe.reference(sample)
        point = point_at(probe, wide, run)
        if point is not None and not point.dtype:
            probe.skip("derivatives are not compared in half precision, and the operator takes no other")
        elif point is not None:
            yield point


def other_points(probe: Probe) -> Iterator[Point]:
    """Yield calls with other flags, numbers, sizes or values that the kernel accepts, as points.

    A backward or jvp rule may refuse them: nobody said that it is for all that the kernel takes.
    """
    for sample in probe.samples:
        wide = derived.in_double(sample)
        others = derived.flags, derived.numbers, derived.longer_lists, derived.unequal, derived.elsewhere
        for derive in others:
            for variant in derive(wide):
                run = probe.run(variant)
                point = None if run.error is not None else point_at(probe, variant, run)
                if point is not None and point.dtype and all(map(_is_finite, point.flat(run.outputs))):
                    yield point


def _is_finite(array: Any) -> bool:
    import numpy as np

    return bool(np.isfinite(array).all())


def point_at(probe: Probe, sample: Sample, run: Run) -> Point | None:
    """Return a call as a point, in whatever precision it is; None, with a note, where it has no gradient."""
    leaves = [one for one in sample.leaves() if is_floating(sample.array(one)) and sample.array(one).size]
    if not leaves:
        probe.skip("no argument is a floating array")
        return None
    constant = marked(probe, sample)
    outputs = [place for place in _floating_outputs(run) if place not in constant]
    if not outputs:
        marks = "every floating output is marked as non-differentiable"
        probe.skip(marks if constant else "no output is a floating array")
        return None
    point = Point(probe, sample, run, leaves, outputs)
    point.weights = [numeric.random_like(array, 7 + i) for i, array in enumerate(point.flat(run.outputs))]
    return point


def _floating_outputs(run: Run) -> Iterator[tuple[int, int | None]]:
    for index, value in enumerate(run.outputs):
        if isinstance(value, list):
            yield from (
                (index, i) for i, one in enumerate(value) if hasattr(one, "dtype") and is_floating(one)
            )
        elif hasattr(value, "dtype") and is_floating(value):
            yield index, None


def why_not(probe: Probe) -> str | None:
    """Return why an operator's derivatives are not looked at, or None where they are."""
    if probe.record.non_differentiable:
        return "the operator is declared non-differentiable"
    if probe.record.kernel(IMPLICIT) is not None:
        return "gradients go through the kernel, which is composite"
    return probe.random_reason()
