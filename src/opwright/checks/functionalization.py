"""The law *functionalization*: what is mutated is the caller's own array, however it lies in memory.

Each mutated argument is given transposed, sliced and at an offset, and together with the others as views
of one array; the caller's whole buffer is compared. The same is then run as a program without mutation,
which is how compilers see it: by PyTorch's functionalization, and in JAX with mutable references.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.checks import derived
from opwright.checks.adapters.results import Unsupported
from opwright.checks.arrays import copied
from opwright.checks.attempts import attempt
from opwright.checks.base import Law, raised
from opwright.checks.blame import culprit
from opwright.checks.samples import put

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.base import Probe
    from opwright.checks.samples import Leaf, Sample
    from opwright.report import Finding

EXPLANATIONS: Mapping[str, str] = {
    "OW701": (
        "The kernel leaves another value in a mutated argument that is transposed, sliced or at an offset. "
        "Usually it makes the argument contiguous and writes to the copy, so that the caller's array stays "
        "as it was, or it writes as if the memory were dense. Write through the array that was passed."
    ),
    "OW702": (
        "The kernel raises for a mutated argument in another memory layout, though it accepts a contiguous "
        "one. Compilers pass slices and transposed views; compute on a copy and write it back with x[...] = "
        "y."
    ),
    "OW703": (
        "The kernel wrote to memory beside a mutated argument: between the elements of a slice, or before or "
        "after it. That memory belongs to other arrays of the caller."
    ),
    "OW704": (
        "Where the arguments are views of one array, side by side, the operator gives another result than "
        "for arrays of their own. The kernel writes over the end of one, or takes the base of a view."
    ),
    "OW705": (
        "As a program without mutation, which is what compilers make of it, the operator leaves another "
        "value in the caller's array than an eager call. What runs there is another kernel, or one that "
        "changes its argument only where it is called eagerly."
    ),
}


def check(probe: Probe) -> Iterator[Finding]:
    """Yield where a mutation does not reach the caller's array, or reaches more than that."""
    if not probe.schema.mutated:
        probe.skip("the operator mutates no argument")
        return
    if probe.quick:
        probe.skip("level quick looks at the samples as they are")
        return
    reason = probe.random_reason()
    if reason is not None:
        probe.skip(reason)
        return
    for sample in probe.samples:
        if not any(sample.argument(leaf).is_write for leaf in sample.leaves()):
            probe.skip("no mutated argument is given in a sample")
            continue
        found = list(_layouts(probe, sample)) if probe.adapter.in_place else []
        found += _views(probe, sample) if probe.adapter.in_place and not found else []
        yield from found or _functionalised(probe, sample)


def _layouts(probe: Probe, sample: Sample) -> Iterator[Finding]:
    """Yield where a mutated argument in another layout ends up with another value."""
    reference = probe.run(derived.compact(sample))
    if reference.error is not None:
        return
    names = [name for name in probe.adapter.layouts if name not in ("read-only", "expanded")]
    for leaf, layout, variant in derived.layouts(sample, names):
        if not sample.argument(leaf).is_write:
            continue
        own = {one: copied(variant.array(one)) for one in variant.leaves()}
        buffer, outside = _surroundings(own[leaf])
        values = put(variant.values, {one: probe.adapter.over(array) for one, array in own.items()})
        before = buffer[outside].copy()
        run = probe.run(variant, values)
        probe.compared()
        if run.error is not None:
            what = f"the kernel raises where {leaf.label} is {layout}"
            worst = f"the result that it gives for a contiguous {leaf.label}", raised(run.error)
            yield _wrong(probe, variant, "OW702", what, worst, fix="write the result back with x[...] = y")
            continue
        for _, output, expected, got in probe.differences(run, reference):
            what = f"{output} differs where {leaf.label} is {layout}"
            fix = f"write through {leaf.label} as it was passed, not through a contiguous copy of it"
            yield _wrong(
                probe, variant, "OW701", what, (f"{expected}, as for a contiguous {leaf.label}", got), fix=fix
            )
            break
        changed = int((buffer[outside] != before).sum())
        if changed:
            what = f"the kernel writes beside {leaf.label} where that is {layout}"
            worst = f"memory that is not part of {leaf.label} as it was", f"{changed} other bytes changed"
            yield _wrong(
                probe, variant, "OW703", what, worst, fix=f"use the strides and the offset of {leaf.label}"
            )


def _surroundings(array: Any) -> tuple[Any, Any]:
    """Return the bytes of the memory that an array lies in, and a mask of those that are not the array's."""
    import numpy as np

    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    raw = np.lib.stride_tricks.as_strided(owner.reshape(-1, order="A"), (owner.size,)).view(np.uint8)
    start = array.__array_interface__["data"][0] - raw.__array_interface__["data"][0]
    outside = np.ones(raw.size, bool)
    offsets = np.full(array.shape, start, np.int64)
    for axis, (size, step) in enumerate(zip(array.shape, array.strides, strict=True)):
        offsets += (np.arange(size) * step).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    outside[(offsets.reshape(-1, 1) + np.arange(array.itemsize)).reshape(-1)] = False
    return raw, outside


def _views(probe: Probe, sample: Sample) -> Iterator[Finding]:
    """Yield where arguments that are views of one array give another result."""
    import numpy as np

    written = [leaf for leaf in sample.leaves() if sample.argument(leaf).is_write]
    dtype = sample.array(written[0]).dtype
    leaves = [leaf for leaf in sample.leaves() if sample.array(leaf).dtype == dtype]
    if len(leaves) < 2:
        return
    base = probe.adapter.array(
        np.concatenate([np.array(sample.array(leaf), order="C").reshape(-1) for leaf in leaves])
    )
    views: dict[Leaf, Any] = {}
    at = 0
    for leaf in leaves:
        array = sample.array(leaf)
        views[leaf] = base[at : at + array.size].reshape(array.shape)
        at += array.size
    run = probe.run(sample, put(probe.values(sample), views))
    names = ", ".join(leaf.label for leaf in leaves)
    probe.compared()
    if run.error is not None:
        what = f"the kernel raises where {names} are views of one array"
        worst = "the result that it gives for arrays of their own", raised(run.error)
        yield _wrong(probe, sample, "OW704", what, worst, fix="use nothing but the elements of each argument")
        return
    for _, output, expected, got in probe.differences(run, probe.reference(sample)):
        what = f"{output} differs where {names} are views of one array"
        worst = f"{expected}, as for arrays of their own", got
        yield _wrong(probe, sample, "OW704", what, worst, fix="use nothing but the elements of each argument")
        return


def _functionalised(probe: Probe, sample: Sample) -> Iterator[Finding]:
    """Yield where a program without mutation differs from the eager call."""
    missing = probe.adapter.supports(probe.record, "compile")
    if missing is not None or probe.fake_misleads:
        probe.skip(f"no program was made: {missing.reason if missing else 'see fake'}")
        return
    pairs, error = attempt(probe.adapter.functionalised, probe.record, probe.values(sample))
    if isinstance(pairs, Unsupported):
        probe.skip(pairs.reason)
        return
    probe.compared()
    fix = "let the same kernel run eagerly and compiled, and change the argument in each call"
    if pairs is None:
        rule, place, inner = culprit(probe.record, error or Exception())
        what = f"the {rule or 'operator'} raises in a program without mutation"
        worst = "what the eager call leaves in the caller's array", raised(inner)
        yield _wrong(probe, sample, "OW705", what, worst, fix=fix, rule=rule or "kernel", source=place)
        return
    for name, eager, got in pairs:
        for _, _, expected, found in probe.difference_of(name, probe.to_numpy(got), probe.to_numpy(eager)):
            what = f"{name} differs in a program without mutation"
            yield _wrong(
                probe, sample, "OW705", what, (f"{expected}, as after the eager call", found), fix=fix
            )
            return


def _wrong(
    probe: Probe,
    sample: Sample,
    id_: str,
    what: str,
    worst: tuple[str, str],
    *,
    fix: str,
    rule: str = "kernel",
    source: str = "",
) -> Finding:
    leaves = [leaf for leaf in sample.leaves() if sample.argument(leaf).is_write]
    names = [derived.variable(sample, leaf) for leaf in leaves]
    return probe.finding(
        id_, what, sample=sample, rule=rule, source=source, expected=worst[0], got=worst[1], fix=fix,
        show=("{call}", f"print({', '.join(names)})"),
    )  # fmt: skip


CHECK = Law("functionalization", check, EXPLANATIONS)
