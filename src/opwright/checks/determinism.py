"""The law *determinism*: equal calls give equal results, whatever was called before or runs beside them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from opwright.checks import derived
from opwright.checks.base import RANDOM_TAGS, Law, Probe, Run, raised

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.report import Finding

CALLS = 4
THREADS = 4

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
    found = list(_repeated(probe))
    yield from found
    if found or probe.quick:
        return
    found = list(_in_other_order(probe))
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


def _in_threads(probe: Probe) -> Iterator[Finding]:
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
