"""The law *vmap*: the operator on a batch is the operator on each element of it.

Every argument is batched alone and with the others, along each kind of axis (first, last, inner), nested,
with one element and with none, and compared with a loop over the elements.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opwright.checks import derived
from opwright.checks.attempts import attempt
from opwright.checks.base import Law, facts, line_of, raised
from opwright.errors import OutputError
from opwright.rules.autograd import new_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opwright.checks.adapters.results import Called
    from opwright.checks.base import Probe, Run
    from opwright.checks.samples import Leaf, Sample
    from opwright.report import Finding

BATCH = 3

EXPLANATIONS: Mapping[str, str] = {
    "OW501": (
        "The operator under vmap gives other values than a loop over the batch. Usually the rule ignores "
        "in_dims and takes the batch axis to be the first, or mixes the batch with an axis of its own."
    ),
    "OW502": (
        "An output under vmap has another shape or dtype than the outputs of a loop, stacked. Look at the "
        "out_dims that the rule returns, and at arguments that are not batched."
    ),
    "OW503": (
        "The vmap rule returned something that does not fit: not a pair (outputs, out_dims), another number "
        "of outputs, or an axis that an output does not have."
    ),
    "OW504": "The vmap rule raises for a batch although the operator accepts each of its elements.",
    "OW505": "The vmap rule raises, or gives another shape, for a batch without elements.",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One way to batch the arguments.

    Parameters
    ----------
    name
        What messages call it.
    sizes
        The size of the batch at each level, outermost first.
    axes
        For each level the batch axis of each array that is batched there.
    out_dim
        The batch axis of the outputs.
    """

    name: str
    sizes: tuple[int, ...]
    axes: tuple[Mapping[Leaf, int], ...]
    out_dim: int = 0

    @property
    def empty(self) -> bool:
        """Whether there are no elements."""
        return 0 in self.sizes


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of arguments: a sample whose arrays have the batch's axes."""

    probe: Probe
    sample: Sample
    case: Case

    def levels(self) -> list[list[Any]]:
        """Return ``in_dims`` for each level, one for each argument."""
        levels = []
        for axes in self.case.axes:
            pairs = zip(self.sample.schema.arguments, self.sample.values, strict=True)
            dims: list[Any] = [
                [None] * len(value) if argument.is_tensor_list and value is not None else None
                for argument, value in pairs
            ]
            for leaf, axis in axes.items():
                if leaf.element is None:
                    dims[leaf.argument] = axis
                else:
                    dims[leaf.argument][leaf.element] = axis
            levels.append(dims)
        return levels

    def call(self) -> Called:
        """Call the operator under vmap."""
        probe = self.probe
        return probe.adapter.vmap(probe.record, probe.values(self.sample), self.levels(), self.case.out_dim)


def check(probe: Probe) -> Iterator[Finding]:
    """Yield where the operator under vmap is not a loop."""
    missing = probe.adapter.supports(probe.record, "vmap")
    if missing is not None:
        probe.skip(missing.reason)
        return
    reason = probe.random_reason()
    if reason is not None:
        probe.skip(reason)
        return
    largest = max(probe.samples, key=_axes_of, default=None)
    for sample in probe.samples:
        leaves = [leaf for leaf in sample.leaves() if not sample.argument(leaf).kwarg_only]
        if not leaves:
            probe.skip("no positional argument is an array")
            continue
        for case in _cases(probe, sample, leaves, sizes=probe.thorough or sample is largest):
            found = list(_compared(probe, sample, case))
            yield from found
            if found and not probe.thorough:
                break
        else:
            yield from _other_arguments(probe, sample, leaves)


def _other_arguments(probe: Probe, sample: Sample, leaves: Sequence[Leaf]) -> Iterator[Finding]:
    """Yield where another number or flag makes the operator under vmap another one than in a loop.

    A rule may refuse what the kernel accepts by chance.
    """
    if probe.quick or probe.record.rule("vmap") is None:
        return
    for variant in (*derived.flags(sample), *derived.numbers(sample)):
        left = [leaf for leaf in leaves if variant.values[leaf.argument] is not None]
        case = Case("the batch axis is the first", (BATCH,), (dict.fromkeys(left, 0),))
        if left and probe.run(variant).error is None:
            found = list(_compared(probe, variant, case))
            yield from (one for one in found if one.id != "OW504")
            if found:
                return


def _axes_of(sample: Sample) -> int:
    """Return how many axes the arrays of a sample have."""
    return sum(sample.array(leaf).ndim for leaf in sample.leaves())


def _cases(probe: Probe, sample: Sample, leaves: Sequence[Leaf], *, sizes: bool) -> Iterator[Case]:
    """Yield the ways to batch a sample; nested batches and unusual sizes are for one sample of several.

    Where calls are compiled and another framework runs the same rule, only what lies with the framework.
    """

    def every(axis: int) -> dict[Leaf, int]:
        return {leaf: axis if axis <= sample.array(leaf).ndim else 0 for leaf in leaves}

    def one(axes: Mapping[Leaf, int], name: str, size: int = BATCH, out_dim: int = 0) -> Case:
        return Case(name, (size,), (axes,), out_dim)

    has_axes = any(sample.array(leaf).ndim for leaf in leaves)
    differ = one({leaf: -(i % 2) for i, leaf in enumerate(leaves)}, "the batch axes differ", out_dim=-1)
    nested = Case("vmap is nested", (2, BATCH), (every(0), every(-1)))
    yield one(every(0), "the batch axis is the first")
    if probe.quick:
        return
    if probe.looked_at_elsewhere("vmap"):
        yield from [differ, nested] if has_axes else [nested]
        return
    yield one(every(-1), "the batch axis is the last")
    if has_axes:
        yield one(every(1), "the batch axis is the second")
        yield differ
    written = [leaf for leaf in leaves if sample.argument(leaf).is_write]
    if len(leaves) > 1:
        for leaf in leaves:
            alone = dict.fromkeys([leaf, *written], 0)
            yield one(alone, f"only {leaf.label} is batched")
            yield one(dict.fromkeys(alone, -1), f"only {leaf.label} is batched, along its last axis")
    if len(leaves) > 2:
        for left in leaves:
            if left not in written:
                rest = {leaf: 0 for leaf in leaves if leaf is not left}
                yield one(rest, f"all but {left.label} are batched")
    if not sizes:
        return
    yield nested
    if len(leaves) > 1 and not written:
        outer, inner = {leaves[0]: 0}, dict.fromkeys(leaves[1:], 0)
        yield Case("vmap is nested, each level over other arguments", (2, BATCH), (outer, inner))
    yield one(every(0), "the batch has one element", size=1)
    yield one(every(0), "the batch has no elements", size=0)


def _elements(sample: Sample, case: Case, spread: str) -> dict[tuple[int, ...], Sample]:
    """Return the sample of each element of the batch: the author's, varied in values."""
    import numpy as np

    found = {}
    for place in itertools.product(*map(range, case.sizes)):
        arrays = {}
        for leaf in sample.leaves():
            own = [i for axes, i in zip(case.axes, place, strict=True) if leaf in axes]
            number = int(np.ravel_multi_index(own, (8,) * len(own))) if own else 0
            arrays[leaf] = _varied(sample.array(leaf), number, spread)
        found[place] = sample.with_arrays(arrays)
    return found


def _varied(array: Any, number: int, spread: str) -> Any:
    """Return another array for each element: scaled by an exact factor, integers moved along."""
    import numpy as np

    compact = np.array(array, order="C")
    if number and array.dtype.kind in "fc" and spread != "equal":
        return (compact * (1 - number / 64)).astype(array.dtype)
    if number and array.dtype.kind in "iub" and spread == "all":
        return np.roll(compact.reshape(-1), number).reshape(array.shape)
    return compact


def _looped(
    probe: Probe, sample: Sample, case: Case
) -> tuple[dict[tuple[int, ...], Sample], dict[Any, Run]] | None:
    """Return the elements of a batch that the operator accepts, and what it does on each."""
    for spread in ("all", "scaled", "equal"):
        elements = _elements(sample, case, spread)
        runs = {place: probe.run(one) for place, one in elements.items()}
        if all(run.error is None for run in runs.values()):
            return elements, runs
    return None


def _stacked(case: Case, rows: Mapping[tuple[int, ...], Any], axes: Sequence[int | None]) -> Any:
    """Return arrays by place stacked along the axes of the levels; a level without one takes the first."""
    import numpy as np

    def level(depth: int, prefix: tuple[int, ...]) -> Any:
        if depth == len(case.sizes):
            return rows[prefix]
        axis = axes[depth]
        if axis is None:
            return level(depth + 1, (*prefix, 0))
        return np.stack([level(depth + 1, (*prefix, i)) for i in range(case.sizes[depth])], axis=axis)

    return level(0, ())


def _compared(probe: Probe, sample: Sample, case: Case) -> Iterator[Finding]:
    empty = case.empty
    whole = Case(case.name, (1,), case.axes) if empty else case
    looped = _looped(probe, sample, whole)
    if looped is None:
        probe.skip("the operator does not accept varied elements of a batch")
        return
    elements, runs = looped
    arrays = {}
    for leaf in sample.leaves():
        rows = {place: element.array(leaf) for place, element in elements.items()}
        arrays[leaf] = _emptied(_stacked(whole, rows, _axes(case, leaf)), _axes(case, leaf), empty=empty)
    try:
        expected = _expected(probe, sample, whole, runs, empty=empty)
    except ValueError:
        probe.skip("outputs whose shapes depend on the data cannot be stacked")
        return
    batch = Batch(probe, sample.with_arrays(arrays, case.name), case)
    if probe.adapter.compiles_calls and _is_right(batch, expected):
        probe.compared()
        return
    called, error = attempt(batch.call)
    if isinstance(error, NotImplementedError):  # a rule may refuse too
        probe.skip((str(error) or "the vmap rule is not implemented").splitlines()[0])
        return
    probe.compared()
    if called is None:
        yield _raised(batch, error)
        return
    for kind, output, wanted, got in probe.different(probe.numpy_outputs(called), expected):
        id_ = "OW505" if case.empty else "OW501" if kind == "value" else "OW502"
        yield _wrong(batch, id_, f"{output} differs from a loop where {case.name}", (wanted, got))
        return


def _is_right(batch: Batch, expected: Sequence[Any]) -> bool:
    """Return whether a batch, run the cheapest way, is what the loop gave."""
    probe = batch.probe
    with probe.adapter.cheaply():
        called, _ = attempt(batch.call)
    return called is not None and not any(probe.different(probe.numpy_outputs(called), expected))


def _axes(case: Case, leaf: Leaf) -> list[int | None]:
    return [axes.get(leaf) for axes in case.axes]


def _emptied(array: Any, axes: Sequence[int | None], *, empty: bool) -> Any:
    """Return the array without the elements of the batch."""
    if not empty or axes[0] is None:
        return array
    return array.take([], axis=axes[0])


def _expected(
    probe: Probe, sample: Sample, case: Case, runs: Mapping[tuple[int, ...], Run], *, empty: bool
) -> list[Any]:
    """Return the outputs of the loop, stacked as vmap returns them."""
    returns = len(probe.schema.returns)
    out_dims: list[int | None] = [case.out_dim] * len(case.sizes)

    def stack(rows: Mapping[tuple[int, ...], Any], axes: Sequence[int | None]) -> Any:
        first = next(iter(rows.values()))
        if isinstance(first, list):
            if len({len(row) for row in rows.values()}) > 1:
                raise ValueError("lists of different lengths")
            return [stack({place: row[i] for place, row in rows.items()}, axes) for i in range(len(first))]
        if not hasattr(first, "dtype"):
            return first
        return _emptied(_stacked(case, rows, axes), axes, empty=empty)

    expected = []
    written = {argument.name: index for index, argument in enumerate(probe.schema.arguments)}
    fresh = [argument.name for argument in new_values(probe.schema)]
    for index in range(len(next(iter(runs.values())).outputs)):
        rows = {place: run.outputs[index] for place, run in runs.items()}
        if index < returns:
            expected.append(stack(rows, out_dims))
        else:  # the new value of an argument has its batch axis where the argument has it
            argument = written[fresh[index - returns]]
            leaves = [leaf for leaf in sample.leaves() if leaf.argument == argument]
            many = [stack({p: row if leaf.element is None else row[leaf.element] for p, row in rows.items()},
                          _axes(case, leaf)) for leaf in leaves]  # fmt: skip
            expected.append(many if probe.schema.arguments[argument].is_list else many[0])
    return expected


def _wrong(
    batch: Batch,
    id_: str,
    what: str,
    worst: tuple[str, str],
    *,
    fix: str = "correct the vmap rule: it must look at in_dims",
    source: str = "",
) -> Finding:
    probe = batch.probe
    count = len(batch.sample.schema.positional)
    dims = [repr(tuple(level[:count])) for level in batch.levels()]
    return probe.finding(
        id_,
        what,
        sample=batch.sample,
        rule="vmap rule",
        source=source,
        expected=worst[0],
        got=worst[1],
        fix=fix,
        show=probe.adapter.batch_lines(dims, batch.case.out_dim),
    )


def _raised(batch: Batch, error: Exception | None) -> Finding:
    probe = batch.probe
    if isinstance(error, OutputError):
        head, known = facts(error)
        what = head.replace(f" of {probe.schema.qualname}", "")
        fix = known.get("to fix", "return the outputs and the batch axis of each")
        return _wrong(batch, "OW503", what, (known.get("expected", ""), known.get("got", "")), fix=fix)
    source = line_of(error, probe.source("vmap rule"))
    id_ = "OW505" if batch.case.empty else "OW504"
    what = f"the vmap rule raises where {batch.case.name}"
    worst = "the result of a loop", raised(error)
    return _wrong(batch, id_, what, worst, fix="correct the vmap rule", source=source)


CHECK = Law("vmap", check, EXPLANATIONS)
