"""The law *fake*: the fake says of every output what the kernel makes of it, and leaves sizes symbolic.

On each sample and on derived ones (other values, dtypes, sizes, flags, numbers) shape, dtype, number and
aliasing are compared with the kernel's. With symbolic sizes, what the fake asks of them is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.checks import derived
from opwright.checks.adapters.results import Asked, Faked, Meta
from opwright.checks.attempts import attempt
from opwright.checks.base import Law, facts, line_of, raised
from opwright.errors import OutputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from opwright.checks.base import Probe, Run
    from opwright.checks.samples import Sample
    from opwright.report import Finding

OTHER_SIZES = (2, 3, 7, 16, 64)
"""Values that stand for each symbolic size, to see both sides of a branch."""

EXPLANATIONS: Mapping[str, str] = {
    "OW201": (
        "The fake gives another shape than the kernel returns. Compilers plan memory and the next operators "
        "by the fake, and then read the kernel's output with the wrong shape."
    ),
    "OW202": "The fake gives another dtype than the kernel returns.",
    "OW203": (
        "The fake returns another number of outputs than the schema and the kernel, or something that is no "
        "array where an array belongs."
    ),
    "OW204": (
        "The fake gives other strides than the kernel's output has. Compiled code asserts strides, or reads "
        "with the wrong ones. Allocate the kernel's output as the fake describes it."
    ),
    "OW205": (
        "The fake returns one of its arguments, or one array twice, while the kernel returns new arrays. A "
        "tracer then believes that they share memory. Return opwright.empty_like(x), or x.new_empty(shape)."
    ),
    "OW206": "The fake raises on arguments that the kernel accepts.",
    "OW207": (
        "The kernel raises on arguments that the fake accepts. Tracing then succeeds, and the program fails "
        "when it runs, or is wrong. Check in both, best in a function that both call."
    ),
    "OW208": (
        "The fake makes a number of a symbolic size, with int(), range() or the like. The shape is then "
        "fixed to that of the first call, and each new size compiles anew. Compute with the size itself."
    ),
    "OW209": (
        "The fake branches on a symbolic size, and goes on either way. Each side is compiled separately. "
        "Write one expression for both; a check that raises on one side is fine."
    ),
    "OW210": (
        "The size of an output depends on the data, but the fake gives a fixed one. Use "
        "opwright.get_ctx().new_dynamic_size(min=, max=) for it."
    ),
    "OW211": "The dtype of an output depends on the data; no fake can say it in advance. Fix the dtype.",
    "OW212": "An output is smaller or larger than the bounds that the fake gave to new_dynamic_size.",
}


def check(probe: Probe) -> Iterator[Finding]:
    """Yield where the fake and the kernel disagree."""
    missing = probe.adapter.supports(probe.record, "fake")
    if missing is not None:
        probe.skip(missing.reason)
        return
    if not probe.schema.returns:
        probe.skip("the operator has no outputs")
        return
    for sample in probe.samples:
        faked = yield from _compared(probe, sample, probe.reference(sample))
        if faked is None:
            continue
        yield from _symbolic(probe, sample)
        if probe.quick:
            continue
        strided = any(meta.strides is not None for meta in faked.arrays())
        for variant in _variants(sample, probe.adapter.layouts[:2] if strided else ()):
            yield from _as_kernel(probe, variant)
        for derive in (derived.numbers, derived.unequal, derived.longer_lists, derived.other_dtypes):
            for variant in derive(sample):  # the kernel may accept by chance what the fake rejects
                yield from _as_kernel(probe, variant, may_raise=True)
        yield from _other_data(probe, sample, faked)
        if probe.thorough:
            yield from _parity(probe, sample)


def _variants(sample: Sample, layouts: Sequence[str]) -> Iterator[Sample]:
    """Yield other flags, dtypes and sizes; other layouts too where strides are part of the contract."""
    yield from derived.flags(sample)
    yield from derived.dtypes(sample)
    yield from derived.smaller(sample)
    yield from (variant for _, _, variant in derived.layouts(sample, layouts))


def _as_kernel(probe: Probe, sample: Sample, *, may_raise: bool = False) -> Iterator[Finding]:
    """Yield how fake and kernel differ on a derived sample that the kernel accepts."""
    if probe.adapter.lowers(probe.record, sample.values):
        probe.compared(len(probe.schema.returns))
        return
    run = probe.run(sample)
    if run.error is None:
        yield from _compared(probe, sample, run, may_raise=may_raise)


def _compared(
    probe: Probe, sample: Sample, run: Run, *, may_raise: bool = False
) -> Generator[Finding, None, Faked | None]:
    """Yield how fake and kernel differ on a sample; return what the fake gave, None where it raised."""
    faked, error = attempt(probe.adapter.fake, probe.record, sample.values)
    if isinstance(error, UnsupportedError):
        probe.skip(str(error).splitlines()[0])
        return None
    if faked is None:
        if not may_raise:
            yield _fake_raised(probe, sample, error)
        return None
    outputs = run.outputs[: len(probe.schema.returns)]
    pairs = zip(faked.outputs, outputs, strict=False)
    for index, (name, pair) in enumerate(zip(probe.output_names, pairs, strict=False)):
        declared = any(True for _ in probe.schema.returns[index].type.aliases())
        yield from _one(probe, sample, name, pair, declared=declared)
    return faked


def _fake_raised(probe: Probe, sample: Sample, error: Exception | None) -> Finding:
    source = probe.source("fake")
    probe.compared()
    if isinstance(error, OutputError):
        known = facts(error)[1]
        return probe.finding(
            "OW203",
            "the fake returned something else than the schema says",
            sample=sample,
            rule="fake",
            expected=known.get("expected", str(probe.schema)),
            got=known.get("got", raised(error)),
            fix="return an array without data for each output: opwright.empty_like(x), x.new_empty(shape)",
            show=FAKE,
        )
    return probe.finding(
        "OW206",
        "the fake raises on arguments that the kernel accepts",
        sample=sample,
        rule="fake",
        source=line_of(error, source),
        expected="outputs without data",
        got=raised(error),
        fix="make the fake accept what the kernel accepts, with shape, dtype and new_empty alone",
        show=FAKE,
    )


FAKE = ("from opwright.testing import fake", "print(fake(op, {args}))")


def _one(
    probe: Probe, sample: Sample, name: str, pair: tuple[Any, Any], *, declared: bool
) -> Iterator[Finding]:
    """Yield how what the fake gives for an output differs from the kernel's."""
    fake, real = pair
    if isinstance(fake, list) and isinstance(real, list):
        probe.compared()
        if len(fake) != len(real):
            what = f"the number of arrays in {name}"
            yield _differs(probe, sample, "OW203", what, (f"{len(real)}", f"{len(fake)}"))
            return
        for index, one in enumerate(zip(fake, real, strict=True)):
            yield from _one(probe, sample, f"{name}[{index}]", one, declared=declared)
    elif isinstance(fake, Meta) and hasattr(real, "dtype"):
        yield from _array(probe, sample, name, fake, real)
        if fake.same and not declared:
            yield probe.finding(
                "OW205",
                f"in the fake, {name} is {fake.same[0]} itself",
                sample=sample,
                rule="fake",
                expected="an array of its own for each output, as the kernel returns",
                got=f"{name} is {', '.join(fake.same)}",
                fix="return opwright.empty_like(x) instead of x",
                show=FAKE,
            )
    elif isinstance(fake, Meta) or hasattr(real, "dtype"):
        texts = [_text_of(one) for one in (real, fake)]
        yield _differs(probe, sample, "OW203", name, (texts[0], texts[1]))


def _text_of(value: Any) -> str:
    """Return an array as its class, anything else as it is written."""
    if isinstance(value, Meta):
        return "an array without data"
    return f"an array of class {type(value).__name__}" if hasattr(value, "dtype") else repr(value)


def _array(probe: Probe, sample: Sample, name: str, fake: Meta, real: Any) -> Iterator[Finding]:
    probe.compared()
    if not fits(fake.shape, real.shape):
        shapes = f"{tuple(real.shape)}", _shape_text(fake.shape)
        yield _differs(probe, sample, "OW201", f"the shape of {name}", shapes)
    else:
        yield from _bounds(probe, sample, name, fake, real.shape)
    if fake.dtype != real.dtype.name:
        yield _differs(probe, sample, "OW202", f"the dtype of {name}", (real.dtype.name, fake.dtype))
    if fake.strides is not None and fits(fake.shape, real.shape) and real.size:
        strides = tuple(step // real.itemsize for step in real.strides)
        if _significant(strides, real.shape) != _significant(fake.strides, real.shape):
            yield _differs(
                probe, sample, "OW204", f"the strides of {name}", (f"{strides}", f"{fake.strides}")
            )


def fits(fake: Sequence[int | None], real: Sequence[int]) -> bool:
    """Return whether a fake's shape is that of a real array; open sizes fit any."""
    return len(fake) == len(real) and all(a is None or a == b for a, b in zip(fake, real, strict=True))


def _significant(strides: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the strides that matter: those of axes with more than one element."""
    return [stride for stride, size in zip(strides, shape, strict=True) if size > 1]


def _shape_text(shape: Sequence[int | None]) -> str:
    text = ", ".join("?" if size is None else str(size) for size in shape)
    return f"({text}{',' if len(shape) == 1 else ''})"


def _differs(probe: Probe, sample: Sample, id_: str, what: str, worst: tuple[str, str]) -> Finding:
    return probe.finding(
        id_,
        f"fake and kernel disagree on {what}",
        sample=sample,
        rule="fake",
        expected=f"{worst[0]}, as the kernel returns",
        got=worst[1],
        fix="correct the fake, or the kernel",
        show=("print({call})", *FAKE),
    )


def _bounds(probe: Probe, sample: Sample, name: str, fake: Meta, shape: Sequence[int]) -> Iterator[Finding]:
    for axis, (size, bound, real) in enumerate(zip(fake.shape, fake.bounds, shape, strict=False)):
        if size is None and not bound[0] <= real <= bound[1]:
            yield probe.finding(
                "OW212",
                f"axis {axis} of {name} is outside the bounds that the fake gives",
                sample=sample,
                rule="fake",
                expected=f"a size from {bound[0]} to {bound[1]}",
                got=f"{real}, as the kernel returns",
                fix="correct min= and max= of new_dynamic_size",
                show=FAKE,
            )


def _other_data(probe: Probe, sample: Sample, faked: Faked) -> Iterator[Finding]:
    """Yield outputs whose shape or dtype follows the data although the fake fixes it."""
    names, count = probe.output_names, len(probe.schema.returns)
    first = _pairs(names, faked.outputs, probe.reference(sample).outputs[:count])
    right = {
        name: fake
        for name, fake, real in first
        if fits(fake.shape, real.shape) and fake.dtype == real.dtype.name
    }
    for variant in derived.other_values(sample):
        run = probe.run(variant)
        if run.error is not None:
            continue
        for name, fake, real in _pairs(names, faked.outputs, run.outputs[:count]):
            probe.compared()
            if name not in right:
                continue
            if not fits(fake.shape, real.shape):
                yield probe.finding(
                    "OW210",
                    f"the shape of {name} depends on the data, but the fake gives a fixed one",
                    sample=variant,
                    rule="fake",
                    expected=f"{tuple(real.shape)}, as the kernel returns for these values",
                    got=_shape_text(fake.shape),
                    fix="use opwright.get_ctx().new_dynamic_size(min=, max=) for that size",
                    show=("print({call})", *FAKE),
                )
            elif fake.dtype != real.dtype.name:
                yield probe.finding(
                    "OW211",
                    f"the dtype of {name} depends on the data",
                    sample=variant,
                    expected=f"{fake.dtype} for every value, as the fake says",
                    got=f"{real.dtype.name} for these values",
                    fix="convert the output to one dtype",
                )


def _pairs(
    names: Sequence[str], fakes: Sequence[Any], reals: Sequence[Any]
) -> Iterator[tuple[str, Meta, Any]]:
    for name, fake, real in zip(names, fakes, reals, strict=False):
        if isinstance(fake, list) and isinstance(real, list):
            yield from _pairs([f"{name}[{i}]" for i in range(len(fake))], fake, real)
        elif isinstance(fake, Meta) and hasattr(real, "dtype"):
            yield name, fake, real


def _symbolic(probe: Probe, sample: Sample) -> Iterator[Finding]:
    """Yield what the fake asks of symbolic sizes."""
    answers: dict[tuple[str, str], set[Any]] = {}
    known = derived.sizes(sample)
    hints: list[Mapping[int, int]] = [{}]
    hints += [{size: other} for size in known if size > 1 for other in OTHER_SIZES if other != size]
    for hint in hints if any(size > 1 for size in known) else ():
        faked, _ = attempt(probe.adapter.fake, probe.record, sample.values, hint)
        if faked is None:  # with other sizes a fake may well refuse: that is its check
            continue
        asked = faked.asked
        probe.compared()
        for one in asked:
            answers.setdefault((one.text, one.source), set()).add(one.answer)
        if not hint:
            yield from _fixed(probe, sample, asked)
            if not asked:
                return
    for (text, source), given in answers.items():
        if {True, False} <= given and not text.startswith(("int(", "float(")):
            yield probe.finding(
                "OW209",
                f"the fake branches on a size: {text}",
                sample=sample,
                rule="fake",
                source=source,
                expected="one expression for every size",
                got=f"{text} decides, and the fake goes on either way",
                fix="write the shape as one expression of the sizes; a check that raises is fine",
                show=FAKE,
            )


def _fixed(probe: Probe, sample: Sample, asked: Sequence[Asked]) -> Iterator[Finding]:
    for one in asked:
        if one.text.startswith(("int(", "float(")):
            yield probe.finding(
                "OW208",
                f"the fake makes a number of a size: {one.text}",
                sample=sample,
                rule="fake",
                source=one.source,
                expected="a size that stays symbolic",
                got=f"{one.text}, so every new size compiles anew",
                fix="compute with the size itself, without int(), range() or math",
                show=FAKE,
            )


def _parity(probe: Probe, sample: Sample) -> Iterator[Finding]:
    """Yield arguments that the kernel rejects and the fake accepts.

    What the kernel accepts beside its samples is its own affair: nobody said that it is for that.
    """
    for variant in derived.misfits(sample):
        run = probe.run(variant)
        if run.error is None:
            continue
        if probe.run(derived.with_zero_integers(variant)).error is None:
            continue  # the values are rejected, which no fake can know
        probe.compared()
        faked, _ = attempt(probe.adapter.fake, probe.record, variant.values)
        if faked is None:  # both reject it, as they should
            continue
        yield probe.finding(
            "OW207",
            "the kernel raises on arguments that the fake accepts",
            sample=variant,
            rule="fake",
            expected="the fake raises too",
            got=f"the kernel: {raised(run.error)}; the fake: returns",
            fix="check the arguments in the fake as in the kernel",
            show=FAKE,
        )


CHECK = Law("fake", check, EXPLANATIONS)
