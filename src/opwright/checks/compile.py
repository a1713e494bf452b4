"""The law *compile*: what a framework's compiler makes of the operator does what the operator does.

Each call is compiled whole, with its gradient, and compared with the eager one; with symbolic sizes it is
then run on another size, which must not compile anything again. At level *thorough* the program is exported,
saved and loaded too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opwright.checks import derived
from opwright.checks.adapters.programs import Recompiled
from opwright.checks.adapters.results import Unsupported
from opwright.checks.attempts import attempt
from opwright.checks.backward import differing
from opwright.checks.base import Law, raised
from opwright.checks.blame import chain, culprit
from opwright.checks.points import Point, points, why_not
from opwright.errors import NoKernelError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.adapters.programs import Compiler, Program
    from opwright.checks.adapters.results import Called, Pullback
    from opwright.checks.base import Probe
    from opwright.checks.samples import Sample
    from opwright.report import Finding

SAMPLES = 2
"""How many samples are compiled where not everything is looked at."""

NEEDS_VALUES = (
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "ConcretizationTypeError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
    "TracerArrayConversionError",
)
"""The words in frameworks' errors for a value that is asked for while tracing."""

EXPLANATIONS: Mapping[str, str] = {
    "OW801": (
        "A rule raises, or breaks the graph, while a compiler traces the operator or its gradient. Usually "
        "it decides on a value: float(), int(), bool() or an if on an array, or NumPy on what the framework "
        "passes. While tracing there are no values; compute with the framework's own functions, or make that "
        "part an operator."
    ),
    "OW802": (
        "The compiled program returns something else than the eager call. What runs under the compiler is "
        "another function than what runs eagerly: a composite kernel beside one for the device, a rule that "
        "asks whether it is compiled, a Python value that was fixed at the first trace."
    ),
    "OW803": (
        "The compiled program gives other gradients than eager ones. A rule is run once, while tracing: what "
        "it reads from outside its arguments, such as a global or a counter, is fixed in the program."
    ),
    "OW804": (
        "Compiled with symbolic sizes, the operator is compiled again for another size. A rule makes a "
        "number of a size, or branches on one: int(), range(), an if, a loop over an array, as many parts as "
        "an axis has entries. Compute with the size itself."
    ),
    "OW805": (
        "A program that holds the operator cannot be exported, saved and loaded, or does something else then."
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A sample and a compiler; ``point`` where gradients are compared too."""

    probe: Probe
    sample: Sample
    compiler: Compiler
    point: Point | None

    def run(self, program: Program, sample: Sample, *, other_size: bool = False) -> Called | Pullback:
        """Run the program, with its gradient where that is compared."""
        values = self.probe.values(sample)
        if self.point is None:
            return program.call(values, other_size=other_size)
        return program.vjp(values, self.point.wanted(self.point.leaves), other_size=other_size)

    def finding(
        self, id_: str, what: str, worst: tuple[str, str], fix: str, *, rule: str = "kernel", source: str = ""
    ) -> Finding:
        """Return a finding about the program."""
        probe = self.probe
        positional, named = probe.schema.positional, probe.schema.keyword_only
        static = tuple(i for i, argument in enumerate(positional) if not argument.has_tensors)
        names = tuple(argument.name for argument in named if not argument.has_tensors)
        line = self.compiler.line.replace("{static}", repr(static)).replace("{named}", repr(names))
        plain = self.point is None or id_ == "OW802"
        lines = ("print({call})",) if plain else probe.adapter.gradient_lines(self.sample)
        return probe.finding(
            id_, what, sample=self.sample, rule=rule, source=source, expected=worst[0], got=worst[1], fix=fix,
            show=(line, *lines),
        )  # fmt: skip


def check(probe: Probe) -> Iterator[Finding]:
    """Yield where a compiled program is not the operator."""
    reason = _why_not(probe)
    compilers = probe.adapter.compilers(thorough=probe.thorough)
    if reason is not None:
        probe.skip(reason)
        return
    if isinstance(compilers, Unsupported):
        probe.skip(compilers.reason)
        return
    for number, (sample, point) in enumerate(_cases(probe)):
        for compiler in compilers:
            found = list(_compiled(Case(probe, sample, compiler, point), batch=probe.thorough or not number))
            yield from found
            if found:
                break
        else:
            if probe.thorough:
                yield from _exported(Case(probe, sample, compilers[0], None))


def _why_not(probe: Probe) -> str | None:
    """Return why nothing is compiled, or None where something is."""
    if probe.quick:
        return "level quick compiles nothing"
    missing = probe.adapter.supports(probe.record, "compile")
    if missing is not None:
        return missing.reason
    if probe.fake_misleads:
        return "compilers go by the fake: see fake"
    if not probe.schema.returns and not probe.schema.mutated:
        return "the operator has no outputs"
    return None


def _cases(probe: Probe) -> Iterator[tuple[Sample, Point | None]]:
    """Yield samples, and the point at each where its gradient is compiled too."""
    found: dict[str, Point] = {}
    no_gradient = (
        probe.adapter.supports(probe.record, "autograd") is not None
        or why_not(probe) is not None
        or "autograd" in probe.failed
    )
    if not no_gradient:
        skipped = dict(probe.skipped)
        found = {point.sample.title.removesuffix(", in double precision"): point for point in points(probe)}
        probe.skipped = skipped
    for sample in probe.samples if probe.thorough else probe.samples[:SAMPLES]:
        point = found.get(sample.title)
        yield (sample, None) if point is None else (point.sample, point)


def _compiled(case: Case, *, batch: bool) -> Iterator[Finding]:
    """Yield where the compiled program is not the operator; with ``batch``, under vmap too."""
    probe = case.probe
    program, error = attempt(case.compiler.program, probe.record, probe.values(case.sample))
    result = None
    if program is not None:
        result, error = attempt(case.run, program, case.sample)
    if program is None or result is None:
        yield from _raised(case, error, "the operator")
        return
    probe.compared()
    run = probe.run(case.sample) if case.point is None else case.point.run
    outputs = probe.outputs_of(result)
    same = probe.random_reason() is None
    for _, output, expected, got in probe.different(outputs, run.outputs, values=same):
        what = f"{output} differs under {case.compiler.name}"
        fix = (
            "let the same code run eagerly and compiled: one kernel, and rules that depend on arguments alone"
        )
        yield case.finding("OW802", what, (f"{expected}, as eagerly", got), fix)
        return
    found = list(_gradients(case, result))
    yield from found
    if found:
        return
    if case.compiler.dynamic:
        yield from _other_size(case, program)
    if batch:
        yield from _batched(case, program)


def _raised(case: Case, error: Exception | None, what: str) -> Iterator[Finding]:
    """Yield the finding for what cannot be compiled."""
    probe = case.probe
    assert error is not None  # noqa: S101  (there is no program, so something was raised)
    refused = next((one for one in chain(error) if isinstance(one, UnsupportedError | NoKernelError)), None)
    if refused is not None:
        probe.skip(str(refused).splitlines()[0])
        return
    rule, place, inner = culprit(probe.record, error)
    probe.compared()
    yield case.finding(
        "OW801",
        f"the {rule} cannot be compiled by {case.compiler.name}" if rule
        else f"{what} cannot be compiled by {case.compiler.name}",
        ("a program that does what the operator does", _said(error, inner)),
        f"keep the {rule or 'rules'} free of decisions on values: no int(), float() or if on an array, "
        "no NumPy",
        rule=rule or "kernel",
        source=place,
    )  # fmt: skip


def _said(error: Exception, inner: BaseException) -> str:
    """Return an error for a message; what stands for a decision on a value, in one word."""
    for one in chain(error):
        text = f"{type(one).__name__}: {one}"
        word = next((word for word in NEEDS_VALUES if word in text), None)
        if word is not None:
            return f"a value is asked for, and there is none while tracing ({word})"
    return raised(inner)


def _gradients(case: Case, result: Any) -> Iterator[Finding]:
    """Yield gradients of the compiled program that differ from the eager ones."""
    point = case.point
    if point is None:
        return
    eager = point.pulled(point.weights)
    compiled, error = attempt(point.gradients, result, point.weights)
    if compiled is None:
        yield from _raised(case, error, "the gradient")
        return
    for leaf, worst in differing(point, compiled, eager):
        yield case.finding(
            "OW803",
            f"the gradient for {leaf.label} differs under {case.compiler.name}",
            (f"{worst[0]}, as eagerly", worst[1]),
            "let the backward depend on ctx and its arguments alone",
            rule="backward",
        )
        return


def _other_size(case: Case, program: Program) -> Iterator[Finding]:
    """Yield where the program is compiled again for a size that it was not compiled with."""
    probe = case.probe
    for size in derived.sizes(case.sample):
        if size < 2:
            continue
        other = derived.doubled(case.sample, size)
        run = probe.run(other)
        if run.error is not None:
            continue
        probe.compared()
        result, error = attempt(case.run, program, other, other_size=True)
        if isinstance(error, Recompiled):
            rule = _fixing(case, program, other)
            yield case.finding(
                "OW804",
                f"with size {2 * size} in place of {size} the operator is compiled again",
                ("one program for every size", f"compiled again: {error}"),
                "compute with sizes: no int(), range(), loop or if on one, in the backward either",
                rule=rule,
            )
        elif result is None:
            yield from _raised(case, error, "the operator")
        elif probe.random_reason() is None:
            for _, output, expected, got in probe.different(probe.outputs_of(result), run.outputs):
                what = f"{output} differs under {case.compiler.name} with size {2 * size} in place of {size}"
                yield case.finding("OW802", what, (f"{expected}, as eagerly", got), "correct the fake")
                break
        return


def _fixing(case: Case, program: Program, other: Sample) -> str:
    """Return the rule that fixes a size: the fake where a program without the gradient is fixed too."""
    if case.point is not None:
        values = case.probe.values
        attempt(program.call, values(case.sample))
        _, error = attempt(program.call, values(other), other_size=True)
        if not isinstance(error, Recompiled):
            return "backward"
    return "fake"


def _batched(case: Case, program: Program) -> Iterator[Finding]:
    """Yield where the operator under vmap differs inside a compiled program."""
    import numpy as np

    probe = case.probe
    leaves = [leaf for leaf in case.sample.leaves() if not case.sample.argument(leaf).kwarg_only]
    if probe.adapter.supports(probe.record, "vmap") is not None or not leaves or "vmap" in probe.failed:
        return
    batch = case.sample.with_arrays(
        {leaf: np.stack([case.sample.array(leaf)] * 2) for leaf in leaves}, "a batch of two"
    )
    levels = [
        [0] * len(value) if argument.is_tensor_list and value is not None
        else 0 if argument.has_tensors and value is not None and not argument.kwarg_only else None
        for argument, value in zip(probe.schema.arguments, case.sample.values, strict=True)
    ]  # fmt: skip
    called, error = attempt(program.vmap, probe.values(batch), [levels])
    if called is None and error is None:
        return
    probe.compared()
    whole = Case(probe, batch, case.compiler, None)
    if called is None:
        yield from _raised(whole, error, "the operator under vmap")
        return
    eager = probe.adapter.vmap(probe.record, probe.values(batch), [levels])
    if probe.random_reason() is not None:
        return
    pairs = probe.to_numpy(called.outputs), probe.to_numpy(eager.outputs)
    for output, got, expected in zip(probe.output_names, *pairs, strict=False):
        for _, name, wanted, found in probe.difference_of(output, got, expected):
            what = f"{name} under vmap differs under {case.compiler.name}"
            worst = (f"{wanted}, as eagerly", found)
            yield whole.finding("OW802", what, worst, "let the vmap rule depend on its arguments alone")
            return


def _exported(case: Case) -> Iterator[Finding]:
    probe = case.probe
    called, error = attempt(probe.adapter.exported, probe.record, probe.values(case.sample))
    if isinstance(called, Unsupported):
        probe.skip(called.reason)
        return
    probe.compared()
    if called is None:
        rule, place, inner = culprit(probe.record, error or Exception())
        worst = ("a program that can be saved and loaded", raised(inner))
        fix = "see what is raised; arguments must be arrays, numbers, words, dtypes or devices"
        what = "the operator cannot be exported, saved and loaded"
        yield case.finding("OW805", what, worst, fix, rule=rule or "kernel", source=place)
        return
    same = probe.random_reason() is None
    expected = probe.run(case.sample).outputs
    for _, output, wanted, got in probe.different(probe.numpy_outputs(called), expected, values=same):
        what = f"{output} of an exported program differs"
        yield case.finding("OW805", what, (f"{wanted}, as eagerly", got), "let the same code run in both")
        return


CHECK = Law("compile", check, EXPLANATIONS)
