"""The law *determinism*: equal calls give equal results, whatever was called before or runs beside them."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

from opwright.checks import derived, random_state
from opwright.checks.arrays import difference
from opwright.checks.base import RANDOM_TAGS, Law, Probe, Run, raised

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opwright.checks.samples import Leaf, Sample
    from opwright.report import Finding

CALLS = 4
THREADS = 4

DTYPES = ("float32", "float64")
"""In which dtypes a shape is called for the first time, the first with zeros before."""

PRECISION = 1e-4
"""How far results in these dtypes may be apart, relative to the element and to the largest value."""

EXPLANATIONS: Mapping[str, str] = {
    "OW1001": (
        "Two calls with equal arguments gave different results: the kernel is random, reads memory that it "
        "did not write, or keeps a state such as a counter or a cache. Compilers merge equal calls, and "
        "checkpointing repeats them for the backward. Take the state or the random generator as an argument, "
        "or declare the operator random with the tag nondeterministic_seeded."
    ),
    "OW1002": (
        "The result depends on which calls went before: the kernel keeps something of another call, such as "
        "a buffer or a cache with too coarse a key."
    ),
    "OW1003": (
        "Calls from several threads at once gave other results than one after another, or raised. The kernel "
        "shares a buffer or another state between calls; keep it local, or take a lock."
    ),
    "OW1004": (
        "The kernel draws from a global random generator, or seeds one, and is not declared random. Seeding "
        "makes all later draws of the program repeat; drawing makes them depend on whether the operator was "
        "called. Use a generator of its own: np.random.default_rng(seed), torch.Generator()."
    ),
}


def check(probe: Probe) -> Iterator[Finding]:
    """Yield where equal calls differ."""
    declared = [tag for tag in RANDOM_TAGS if tag in probe.record.tags]
    if declared:
        probe.skip(f"the operator is declared random (tag {declared[0]})")
        return
    if not probe.schema.returns and not probe.schema.mutated:
        probe.skip("the operator has no outputs")
        return
    found = list(_repeated(probe)) or list(_global_state(probe))
    yield from found
    if found or probe.quick:
        return
    found = list(_in_other_order(probe)) or list(_first_values(probe))
    yield from found
    if not found:
        yield from _in_threads(probe)


def _repeated(probe: Probe) -> Iterator[Finding]:
    for sample in probe.samples:
        reference = probe.run(sample)
        for number in range(2, CALLS + 1):
            run = probe.run(sample)
            probe.compared()
            worst = _worst(probe, run, reference)
            if worst is not None:
                yield probe.finding(
                    "OW1001",
                    "two calls with equal arguments give different results",
                    sample=sample,
                    expected=worst[0],
                    got=f"{worst[1]}, in call {number}",
                    fix="take the state or generator as an argument, or tags='nondeterministic_seeded'",
                    show=("print({call})", "print({call})"),
                )
                break


def _global_state(probe: Probe) -> Iterator[Finding]:
    """Yield where a call changes the state of a global random generator."""
    for sample in probe.samples:
        changed = random_state.changed(partial(probe.run, sample))
        probe.compared()
        if changed:
            yield probe.finding(
                "OW1004",
                f"a call changes {' and '.join(changed)} global random generator",
                sample=sample,
                expected="the state that it had before the call",
                got="another one",
                fix="use a generator of its own, or declare the operator random: "
                "tags='nondeterministic_seeded'",
            )
            return


def _in_other_order(probe: Probe) -> Iterator[Finding]:
    for sample in reversed(probe.samples):
        run = probe.run(sample)
        probe.compared()
        worst = _worst(probe, run, probe.reference(sample))
        if worst is not None:
            yield probe.finding(
                "OW1002",
                "the result depends on the calls before",
                sample=sample,
                expected=worst[0],
                got=f"{worst[1]}, after calls with the other samples",
                fix="keep nothing from one call to the next, or key it by everything that it depends on",
            )


def _first_values(probe: Probe) -> Iterator[Finding]:
    """Yield where calls with a shape give what its first call gave, whatever their values.

    Where values make no difference, a kernel may well go by shapes alone. Then what it gives for a shape that
    it has not seen does not depend on the values in one dtype either, and is the same in another dtype.
    """
    for sample in probe.samples:
        real = [leaf for leaf in sample.leaves() if sample.array(leaf).dtype.kind == "f"]
        sizes = derived.sizes(sample)
        others = derived.other_values(sample) if real and sizes else iter(())
        differ = [_worst(probe, probe.run(one), probe.reference(sample)) is not None for one in others]
        if not differ or any(differ):
            continue
        new = derived.doubled(derived.doubled(sample, sizes[-1]), 2 * sizes[-1])
        low, high = (new.with_arrays({one: new.array(one).astype(name) for one in real}) for name in DTYPES)
        zeros = low.with_arrays({leaf: 0 * low.array(leaf) for leaf in real})
        _, got, expected = runs = [probe.run(one) for one in (zeros, low, high)]
        if any(run.error is not None for run in runs):
            continue
        probe.compared()
        for name, one, other in zip(probe.output_names, got.outputs, expected.outputs, strict=True):
            if getattr(one, "shape", ()) != getattr(other, "shape", None):
                continue
            worst = difference(one, other, rtol=PRECISION, atol=PRECISION)
            if worst is not None:
                yield _of_first_values(probe, low, real, name, worst)
                return


def _of_first_values(
    probe: Probe, sample: Sample, leaves: Sequence[Leaf], name: str, worst: tuple[str, str]
) -> Finding:
    names = [derived.variable(sample, leaf) for leaf in leaves]
    return probe.finding(
        "OW1002",
        "the result depends on the values of the first call with a shape",
        sample=sample,
        expected=f"{name}: {worst[0]}, as in {DTYPES[1]}, in which this was the first call",
        got=f"{worst[1]}, after a call with zeros",
        fix="keep nothing from one call to the next, or key it by everything that it depends on",
        show=(*[f"{x} *= 0" for x in names], "print({call})", *[f"{x} += 1" for x in names], "print({call})"),
    )


def _interpreted(probe: Probe) -> bool:
    """Return whether a kernel of the operator launches what Triton interprets."""
    if "triton" not in sys.modules:
        return False
    from opwright.kernels.triton_reach import runs_interpreted

    return any(runs_interpreted(kernel.fn) for kernel in probe.record.enabled_kernels())


def _in_threads(probe: Probe) -> Iterator[Finding]:
    if _interpreted(probe):
        probe.skip("Triton's interpreter cannot run in several threads at once")
        return
    samples = [*probe.samples[:2]]
    if len(samples) == 1:
        accepted = (one for one in derived.other_values(samples[0]) if probe.reference(one).error is None)
        samples += [one for one, _ in zip(accepted, range(1), strict=False)]
    runs: list[tuple[int, Run]] = []
    barrier = threading.Barrier(THREADS)

    def work(number: int) -> None:
        index = number % len(samples)
        barrier.wait()
        runs.extend((index, probe.run(samples[index])) for _ in range(CALLS))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, run in runs:
        probe.compared()
        worst = _worst(probe, run, probe.reference(samples[index]))
        if worst is not None:
            yield probe.finding(
                "OW1003",
                "calls from several threads at once give other results",
                sample=samples[index],
                expected=worst[0],
                got=f"{worst[1]}, from {THREADS} threads",
                fix="keep buffers and other state local to the call, or take a lock",
            )
            return


def _worst(probe: Probe, run: Run, reference: Run) -> tuple[str, str] | None:
    """Return the first difference as (expected, got), or None; an exception counts."""
    if run.error is not None:
        return "the result of the first call", raised(run.error)
    for _, output, expected, got in probe.differences(run, reference):
        return f"{output}: {expected}", got
    return None


CHECK = Law("determinism", check, EXPLANATIONS)
