"""The law *schema*: the kernel does what its schema says to arguments and outputs, and nothing else.

Arguments are compared before and after each call, outputs with arguments, with each other and with those
of another call. Derived samples take the branches in which an operator has nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opwright.checks import derived
from opwright.checks.arrays import described, difference
from opwright.checks.base import RANDOM_TAGS, Law, line_of, raised
from opwright.checks.call import is_schemas
from opwright.errors import AliasError
from opwright.report import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.base import Probe, Run
    from opwright.checks.samples import Leaf, Sample
    from opwright.report import Finding

EXPLANATIONS: Mapping[str, str] = {
    "OW101": (
        "The kernel changed the data of an argument that the schema does not declare as mutated. Compilers "
        "and gradients rely on that declaration: they reorder calls, reuse buffers and keep inputs for the "
        "backward, and compute wrong results when it is missing. Work on a copy, or name the argument in "
        "mutates_args."
    ),
    "OW102": (
        "The kernel changed the shape, strides, dtype, address or flags of an argument. No declaration "
        "allows that: frameworks keep these beside the data and do not look again. Return a new array, or "
        "write into the argument as it is."
    ),
    "OW103": (
        "An argument is declared as mutated, but no call changed it. The declaration costs: frameworks copy "
        "the argument, give up its gradient and keep its calls in order. Take it out of mutates_args, or "
        "give a sample in which the operator changes it."
    ),
    "OW104": (
        "An output is an argument, or a view of its memory, and the schema does not say so. Writing to one "
        "then changes the other, and a framework that relies on the schema frees or reuses that memory. It "
        "often happens only when there is nothing to do: a cast to the same dtype, a reshape to the same "
        "shape. Return a copy, or declare the alias in the schema."
    ),
    "OW105": (
        "Two outputs are one array, or share memory; this counts for arrays without elements too. Return "
        "arrays of their own."
    ),
    "OW106": (
        "An output of one call shares memory with an output of another call: the kernel keeps a buffer, so "
        "the second call overwrites the first one's result. Allocate the output in each call."
    ),
    "OW107": (
        "The operator has no outputs and mutates nothing, so a compiler may remove its calls as dead code. "
        "Return something, declare what it mutates, or give it the tag nondeterministic_seeded, which keeps "
        "calls in place."
    ),
    "OW108": (
        "An array argument makes no difference: neither other values nor another shape of it changed the "
        "result or raised. An argument that is not used still costs a gradient, a guard and a conversion in "
        "each call. Remove it, or use it."
    ),
}


def check(probe: Probe) -> Iterator[Finding]:
    """Yield where arguments and outputs are not what the schema says."""
    if not probe.schema.returns and not probe.schema.mutated and not _declared_effect(probe):
        yield _no_effect(probe)
    changed: set[str] = set()
    possible: set[str] = set()
    for sample in _samples(probe):
        watched = _watched(probe, sample)
        run = watched.run
        if run.error is not None:
            if isinstance(run.error, AliasError):
                yield _refused(probe, run)
            elif is_schemas(probe, run.error):
                yield _wrote(probe, run)
            continue
        yield from _mutations(probe, watched, changed, possible)
        yield from _aliases(probe, run)
        yield from _kept(probe, run)
    yield from _never_changed(probe, possible - changed)
    if probe.thorough:
        yield from _unused(probe)


def _declared_effect(probe: Probe) -> bool:
    return any(tag in probe.record.tags for tag in RANDOM_TAGS)


def _samples(probe: Probe) -> Iterator[Sample]:
    for sample in probe.samples:
        yield sample
        if probe.quick:
            continue
        yield from derived.flags(sample)
        yield from derived.no_ops(sample)
        yield from derived.dtypes(sample)
        if probe.schema.mutated:
            yield from derived.other_values(sample)
        yield from (variant for _, layout, variant in derived.layouts(sample, probe.adapter.layouts[:1]))


@dataclass(frozen=True, slots=True)
class Watched:
    """A call, and the data and the metadata of every argument before it."""

    run: Run
    before: Mapping[Leaf, Any]
    metadata: Mapping[Leaf, Any]


def _watched(probe: Probe, sample: Sample) -> Watched:
    values = probe.values(sample)
    arrays = {leaf: _pick(values, leaf) for leaf in sample.leaves()}
    before = {leaf: sample.array(leaf).copy() for leaf in arrays}
    metadata = {leaf: probe.adapter.metadata(array) for leaf, array in arrays.items()}
    return Watched(probe.run(sample, values), before, metadata)


def _pick(values: tuple[Any, ...], leaf: Leaf) -> Any:
    value = values[leaf.argument]
    return value if leaf.element is None else value[leaf.element]


def _mutations(probe: Probe, watched: Watched, changed: set[str], possible: set[str]) -> Iterator[Finding]:
    """Yield what the kernel changed of an argument; note which declared mutations happened."""
    run = watched.run
    for leaf, old in watched.before.items():
        array = _pick(run.values, leaf)
        argument = run.sample.argument(leaf)
        probe.compared()
        now = probe.adapter.metadata(array)
        other = [
            (name, a, b) for (name, a), (_, b) in zip(watched.metadata[leaf], now, strict=True) if a != b
        ]
        if other:
            probe.changed.add(leaf.label)
            yield _metadata_changed(probe, run, leaf, other)
            continue
        if argument.is_write and not probe.adapter.in_place:
            array = _new_value(run, leaf)
        worst = difference(probe.adapter.numpy(array), old, rtol=0, atol=0)
        if argument.is_write:
            possible.update([argument.name] if old.size else [])
            changed.update([argument.name] if worst else [])
        elif worst:
            probe.changed.add(leaf.label)
            name = _name(run, leaf)
            yield probe.finding(
                "OW101",
                f"argument {leaf.label} was changed but is not declared as mutated",
                sample=run.sample,
                expected=f"{leaf.label} as it was: {worst[0]}",
                got=worst[1],
                fix=f"work on a copy, or declare it: mutates_args=({argument.name!r},)",
                show=(f"before = {probe.adapter.copy_code(name)}", "{call}", f"print({name} - before)"),
            )


def _new_value(run: Run, leaf: Leaf) -> Any:
    """Return the new value of a mutated argument in a framework whose arrays never change."""
    value = {} if run.called is None else run.called.new_values
    found = value[run.sample.argument(leaf).name]
    return found if leaf.element is None else found[leaf.element]


def _name(run: Run, leaf: Leaf) -> str:
    return derived.variable(run.sample, leaf)


def _metadata_changed(probe: Probe, run: Run, leaf: Leaf, other: list[tuple[str, Any, Any]]) -> Finding:
    name = _name(run, leaf)
    words = ", ".join(name for name, _, _ in other)
    layout = probe.adapter.layout_code(name)
    contiguous = run.sample.array(leaf).flags.c_contiguous
    own = (f"{name} = {probe.adapter.copy_code(name)}",) if contiguous else ()  # it may be resized
    return probe.finding(
        "OW102",
        f"the {words} of argument {leaf.label} changed",
        sample=run.sample,
        expected="; ".join(f"{name} {a}" for name, a, _ in other if name != "address") or "the same memory",
        got="; ".join(f"{name} {b}" for name, _, b in other if name != "address") or "other memory",
        fix="return a new array, and leave the argument's shape and layout alone",
        show=(*own, f"print({layout})", "{call}", f"print({layout})"),
    )


def _refused(probe: Probe, run: Run) -> Finding:
    """Return the finding for an aliasing that the operator itself refused."""
    what = str(run.error).splitlines()[0].partition(";")[0].replace(f" of {probe.schema.qualname}", "")
    return _alias(probe, run.sample, what)


def _wrote(probe: Probe, run: Run) -> Finding:
    """Return the finding for a write to an argument of a framework whose arrays never change."""
    return probe.finding(
        "OW101",
        "the kernel writes to an argument that is not declared as mutated",
        sample=run.sample,
        source=line_of(run.error, probe.source("kernel")),
        expected="arguments as they were",
        got=raised(run.error),
        fix="work on a copy, or name the argument in mutates_args",
    )


def _alias(probe: Probe, sample: Sample, what: str, note: str = "") -> Finding:
    """Return the finding for an output that is, or shares memory with, an argument or an output."""
    return probe.finding(
        "OW104" if " argument " in what else "OW105",
        what,
        sample=sample,
        expected="memory of its own: an output may not alias an argument or another output",
        got=("one object" if what.endswith("itself") else "a view of the same memory") + note,
        fix="return a copy, or declare the aliasing in the schema",
    )


def _arrays(probe: Probe, run: Run) -> list[tuple[int, str, Any]]:
    """Return the arrays among the outputs that may not alias anything, with their index and name."""
    found = []
    called = run.called
    outputs = called.outputs if called is not None else []
    for index, (entry, value) in enumerate(zip(probe.schema.returns, outputs, strict=True)):
        if any(True for _ in entry.type.aliases()):
            continue
        many = isinstance(value, list | tuple)
        for i, array in enumerate(value if many else [value]):
            if probe.adapter.is_array(array):
                found.append((index, f"output {index}[{i}]" if many else f"output {index}", array))
    return found


def _aliases(probe: Probe, run: Run) -> Iterator[Finding]:
    arguments = [(f"argument {leaf.label}", _pick(run.values, leaf)) for leaf in run.sample.leaves()]
    outputs = _arrays(probe, run)
    for position, (_, name, array) in enumerate(outputs):
        before = [(what, other) for _, what, other in outputs[:position]]
        for what, other in [*arguments, *before]:
            probe.compared()
            if array is other or probe.adapter.shares_memory(array, other):
                how = f"is {what} itself" if array is other else f"shares memory with {what}"
                note = "" if 0 not in array.shape else ", which has no elements"
                yield _alias(probe, run.sample, f"{name} {how}", note)
                break


def _kept(probe: Probe, run: Run) -> Iterator[Finding]:
    again = probe.run(run.sample)
    if again.error is not None:
        return
    for index, name, array in _arrays(probe, run):
        for other_index, other_name, other in _arrays(probe, again):
            if index != other_index or name != other_name:
                continue
            probe.compared()
            if array is other or probe.adapter.shares_memory(array, other):
                yield probe.finding(
                    "OW106",
                    f"{name} of two calls is in the same memory",
                    sample=run.sample,
                    expected="new memory for the output of each call",
                    got="the second call overwrites the result of the first",
                    fix="allocate the output in each call, or return a copy of the buffer that is kept",
                    show=("first = {call}", "second = {call}", "print(first is second)"),
                )


def _never_changed(probe: Probe, names: set[str]) -> Iterator[Finding]:
    for name in sorted(names):
        yield probe.finding(
            "OW103",
            f"argument {name} is declared as mutated, but no call changed it",
            sample=probe.samples[0],
            rule="schema",
            expected=f"{name} changed by at least one call",
            got=f"{name} unchanged in {counted(len(probe.samples), 'sample')} and what was derived from it",
            fix=f"take {name} out of mutates_args, or give a sample in which it changes",
        )


def _no_effect(probe: Probe) -> Finding:
    probe.compared()
    return probe.finding(
        "OW107",
        "the operator has no outputs and mutates nothing, so its calls may be removed as dead code",
        sample=probe.samples[0] if probe.samples else None,
        rule="schema",
        expected="a return, a mutated argument, or the tag nondeterministic_seeded",
        got=str(probe.schema),
        fix="return something, declare what is mutated, or pass tags='nondeterministic_seeded'",
    )


def _unused(probe: Probe) -> Iterator[Finding]:
    """Yield arguments whose values and shape make no difference in any sample."""
    used: set[str] = set()
    labels = {leaf.label: leaf for sample in probe.samples for leaf in sample.leaves()}
    for sample in probe.samples:
        for leaf in sample.leaves():
            if leaf.label in used or sample.argument(leaf).is_write:
                used.add(leaf.label)
                continue
            probe.compared()
            array = sample.array(leaf)
            for other in _others(array):
                run = probe.run(sample.with_array(leaf, other, f"{leaf.label} changed"))
                reference = probe.reference(sample)
                if run.error is not None or next(probe.differences(run, reference), None):
                    used.add(leaf.label)
                    break
    for label in labels.keys() - used:
        yield probe.finding(
            "OW108",
            f"argument {label} makes no difference",
            sample=probe.samples[0],
            expected="another result for other values or another shape",
            got=f"the same result whatever {described(probe.samples[0].array(labels[label]))} it is",
            fix=f"remove {label}, or use it",
        )


def _others(array: Any) -> Iterator[Any]:
    import numpy as np

    if array.dtype.kind in "fciu":
        yield array + np.ones((), array.dtype)
        yield np.zeros_like(array)
    if array.dtype.kind == "b":
        yield ~array
    yield np.zeros((*array.shape, 3), array.dtype)


CHECK = Law("schema", check, EXPLANATIONS)
