"""The law *layout*: the result depends on the values of the arguments, not on how they lie in memory.

Each array is given transposed, sliced, flipped, expanded, at an offset and read-only, one at a time, and
the result compared with that of contiguous copies. Arrays without elements are compared with the fake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opwright.checks import derived
from opwright.checks.attempts import attempt
from opwright.checks.base import Law, raised

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.base import Probe, Run
    from opwright.checks.samples import Leaf, Sample
    from opwright.report import Finding

EXPLANATIONS: Mapping[str, str] = {
    "OW901": (
        "The kernel gives another result for the same values in another memory layout. Usually it reads the "
        "buffer as if it were contiguous, or writes densely into an output that took over odd strides. Make "
        "the array contiguous first (numpy.ascontiguousarray), or use its strides."
    ),
    "OW902": (
        "The kernel raises for an argument in another memory layout, though it accepts a contiguous copy. "
        "Callers transpose, slice and expand arrays without knowing; make the array contiguous in the kernel."
    ),
    "OW903": (
        "The kernel raises for arrays without elements although the fake returns a shape for them, or the "
        "other way round. A compiled program follows the fake and fails later, or refuses what would work. "
        "Return early where there are no elements, or raise in both."
    ),
    "OW904": (
        "NaN or infinity in an argument leads to another result when the argument lies otherwise in memory. "
        "The kernel reads elements that are not the argument's, or leaves some out."
    ),
}


def check(probe: Probe) -> Iterator[Finding]:
    """Yield where the layout of an argument changes the result."""
    if probe.quick:
        probe.skip("level quick looks at the samples as they are")
        return
    reason = probe.random_reason()
    if reason is not None:
        probe.skip(reason)
        return
    if not any(sample.leaves() for sample in probe.samples):
        probe.skip("no sample has an array")
        return
    if not probe.adapter.layouts:
        probe.skip(f"{probe.adapter.name} decides how arrays lie in memory")
    for sample in probe.samples:
        reference = probe.run(derived.compact(sample))
        if reference.error is not None:
            continue
        wrong: set[Leaf] = set()
        for leaf, layout, variant in derived.layouts(sample, probe.adapter.layouts):
            if sample.argument(leaf).is_write and "functionalization" in probe.laws:
                continue  # the caller's buffer is compared there
            if leaf.label in probe.changed:
                probe.skip(f"the kernel changes {leaf.label}: see schema")
                continue
            found = list(_one_layout(probe, leaf, layout, variant, reference))
            wrong.update([leaf] if found else [])
            yield from found
        for leaf, special in derived.special_values(sample):
            if leaf not in wrong and leaf.label not in probe.changed:
                yield from _special(probe, leaf, special)
    yield from _empty(probe)


def _one_layout(probe: Probe, leaf: Leaf, layout: str, variant: Sample, reference: Run) -> Iterator[Finding]:
    if layout == "expanded":  # has other values than the sample itself
        reference = probe.run(derived.compact(variant))
        if reference.error is not None:
            return
    run = probe.run(variant)
    probe.compared()
    name = derived.variable(variant, leaf)
    if run.error is not None:
        yield probe.finding(
            "OW902",
            f"the kernel raises where {leaf.label} is {layout}",
            sample=variant,
            expected=f"the result that it returns for a contiguous copy of {leaf.label}",
            got=raised(run.error),
            fix=f"make {leaf.label} contiguous in the kernel, with numpy.asarray({leaf.label}, order='C')",
        )
        return
    for _, output, expected, got in probe.differences(run, reference):
        yield probe.finding(
            "OW901",
            f"{output} differs where {leaf.label} is {layout}",
            sample=variant,
            expected=f"{expected}, as for a contiguous copy",
            got=got,
            fix=f"make {leaf.label} contiguous in the kernel, or use its strides",
            show=("print({call})", f"{name} = {probe.adapter.copy_code(name)}", "print({call})"),
        )


def _special(probe: Probe, leaf: Leaf, special: Sample) -> Iterator[Finding]:
    reference = probe.run(special)
    for layout in probe.adapter.layouts[:2]:
        variants = [one for other, name, one in derived.layouts(special, (layout,)) if other == leaf]
        for variant in variants:
            run = probe.run(variant)
            if run.error is not None or reference.error is not None:
                continue
            probe.compared()
            for _, output, expected, got in probe.differences(run, reference):
                yield probe.finding(
                    "OW904",
                    f"{output} differs where {leaf.label} is {layout} and holds NaN and infinities",
                    sample=variant,
                    expected=f"{expected}, as for a contiguous copy",
                    got=got,
                    fix="read the elements of the argument, and those only",
                )


def _empty(probe: Probe) -> Iterator[Finding]:
    missing = probe.adapter.supports(probe.record, "fake")
    if missing is not None:
        probe.skip(f"arrays without elements were not looked at: {missing.reason}")
        return
    for sample in probe.samples:
        faked, _ = attempt(probe.adapter.fake, probe.record, sample.values)
        if faked is None:
            probe.skip("arrays without elements were not looked at: the fake raises on the sample itself")
            continue
        if any(None in meta.shape for meta in faked.arrays()):
            probe.skip("arrays without elements were not looked at: the fake leaves sizes open")
            continue
        for size, empty in derived.empties(sample):
            run = probe.run(empty)
            _, error = attempt(probe.adapter.fake, probe.record, empty.values)
            probe.compared()
            if (
                run.error is not None
                and error is None
                and (_has_integers(empty) or _tied(probe, sample, size))
            ):
                continue  # the values or sizes may be rejected, such as an index, which no fake need know
            if (run.error is None) != (error is None):
                kernel = "returns" if run.error is None else raised(run.error)
                fake = "returns" if error is None else raised(error)
                yield probe.finding(
                    "OW903",
                    "kernel and fake disagree on arrays without elements",
                    sample=empty,
                    rule="kernel" if error is None else "fake",
                    expected="both return, or both raise",
                    got=f"the kernel: {kernel}; the fake: {fake}",
                    fix="return early where there are no elements, or raise in both",
                    show=("from opwright.testing import fake", "print(fake(op, {args}))", "print({call})"),
                )


def _tied(probe: Probe, sample: Sample, size: int) -> bool:
    """Return whether the kernel raises for a size that is one less, too: it must go with another one."""
    return size > 1 and probe.run(derived.resized(sample, size, size - 1)).error is not None


def _has_integers(sample: Sample) -> bool:
    """Return whether there is an integer array with elements."""
    arrays = [sample.array(leaf) for leaf in sample.leaves()]
    return any(array.dtype.kind in "iu" and array.size for array in arrays)


CHECK = Law("layout", check, EXPLANATIONS)
