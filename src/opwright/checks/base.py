"""What a law is to the checker: the ``Check`` protocol, and the ``Probe`` that a law works with.

To add a law: a file here that holds ``CHECK``, a `Law` or any other `Check`, and its name in
``runner.LAWS``; or an entry point of the group ``opwright.checks`` that leads to one.

* A law yields findings. It counts every comparison with ``probe.compared()`` and says with
  ``probe.skip()`` why it left something out: a law that compared nothing is skipped, never passed.
* What a law calls an operator with are copies; whatever the operator does to them stays in the probe.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from opwright.catalogue import ARRAY_API
from opwright.checks.adapters.results import Called
from opwright.checks.arrays import copied, described, difference
from opwright.checks.attempts import attempt
from opwright.checks.samples import Sample, put
from opwright.checks.snippet import snippet
from opwright.report import Finding
from opwright.rules.autograd import new_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opwright.checks.adapters.base import Adapter
    from opwright.checks.adapters.results import Pullback
    from opwright.overload import OpOverload


LEVELS = ("quick", "default", "thorough")
"""How much is looked at: the given samples; derived ones too; everything."""

RANDOM_TAGS = ("nondeterministic_seeded",)
"""Tags that declare a random result."""


class Check(Protocol):
    """A law: yields what is wrong with an operator in one framework."""

    @property
    def name(self) -> str:
        """The law's name, such as ``"vmap"``."""

    @property
    def explanations(self) -> Mapping[str, str]:
        """One paragraph for each id of a finding."""

    def check(self, probe: Probe) -> Iterable[Finding]:
        """Yield the findings."""


@dataclass(frozen=True, slots=True)
class Law:
    """A law of a function.

    Parameters
    ----------
    name
        Its name.
    check
        ``check(probe)`` yields the findings.
    explanations
        One paragraph for each id of a finding.
    """

    name: str
    check: Callable[[Probe], Iterable[Finding]]
    explanations: Mapping[str, str]


@dataclass(slots=True)
class Run:
    """One call of an operator, everything in NumPy arrays.

    Parameters
    ----------
    sample
        What it was called with.
    values
        The framework's own values that were passed, after the call.
    called
        What it returned, in the framework's arrays; None where it raised.
    outputs
        What it returned, as NumPy arrays, one entry for each return, then the new values of mutated
        arguments that are not returned.
    error
        What it raised.
    not_compared
        Why its outputs cannot be made NumPy arrays: they are sparse, or of a dtype that NumPy does not have.
    """

    sample: Sample
    values: tuple[Any, ...]
    called: Called | None = None
    outputs: list[Any] = field(default_factory=list)
    error: Exception | None = None
    not_compared: Exception | None = None


class Probe:
    """What a law looks through at one operator in one framework.

    Parameters
    ----------
    record
        The overload.
    adapter
        How the framework is used.
    samples
        The samples that the operator accepts.
    level
        ``"quick"``, ``"default"`` or ``"thorough"``.
    rtol, atol
        Tolerances of comparisons, None for those of the dtype.
    laws
        The names of all laws that are looked at.
    others
        How the other frameworks are used that the operator is looked at in.

    Attributes
    ----------
    changed
        Labels of arguments that the kernel was found to change without saying so.
    failed
        Names of laws that have failed.
    found
        Ids of what was found.
    """

    def __init__(
        self,
        record: OpOverload,
        adapter: Adapter,
        samples: Sequence[Sample],
        *,
        level: str = "default",
        rtol: float | None = None,
        atol: float | None = None,
        laws: Sequence[str] = (),
        others: Sequence[Adapter] = (),
    ) -> None:
        self.record = record
        self.laws = tuple(laws)
        self.others = tuple(others)
        self.schema = record.schema
        self.adapter = adapter
        self.samples = tuple(samples)
        self.level = level
        self.rtol = rtol
        self.atol = atol
        self.law = ""
        self.comparisons = 0
        self.skipped: dict[str, None] = {}
        self.changed: set[str] = set()
        self.failed: set[str] = set()
        self.found: set[str] = set()
        self._references: dict[int, Run] = {}
        self._random: str | None = None

    def start(self, law: str) -> None:
        """Begin a law: nothing was compared or skipped yet."""
        self.law = law
        self.comparisons = 0
        self.skipped = {}

    @property
    def thorough(self) -> bool:
        """Whether everything is to be looked at."""
        return self.level == "thorough"

    @property
    def quick(self) -> bool:
        """Whether only the given samples are to be looked at."""
        return self.level == "quick"

    def looked_at_elsewhere(self, rule: str) -> bool:
        """Return whether another framework, where calls are cheap, runs this very rule in this check."""
        found = self.record.rule(rule)
        if self.thorough or not self.adapter.compiles_calls or found is None or found.flavour != ARRAY_API:
            return False
        return not all(other.compiles_calls for other in self.others)

    @property
    def fake_misleads(self) -> bool:
        """Whether the fake was found to be wrong for arguments that the kernel takes."""
        return any(id_.startswith("OW2") and id_ != "OW207" for id_ in self.found)

    def compared(self, number: int = 1) -> None:
        """Count comparisons that were made."""
        self.comparisons += number

    def skip(self, reason: str) -> None:
        """Say why something was left out."""
        self.skipped.setdefault(reason)

    def values(self, sample: Sample) -> tuple[Any, ...]:
        """Return copies of a sample's values, as the framework's arrays."""
        arrays = {leaf: self.adapter.array(copied(sample.array(leaf))) for leaf in sample.leaves()}
        return put(sample.values, arrays)

    def run(self, sample: Sample, values: tuple[Any, ...] | None = None) -> Run:
        """Call the operator on a sample; an exception of it is kept, not raised."""
        passed = self.values(sample) if values is None else values
        run = Run(sample, passed)
        run.called, run.error = attempt(self.adapter.call, self.record, passed)
        if run.called is not None:
            outputs, run.not_compared = attempt(self.numpy_outputs, run.called)
            run.outputs = outputs or []
        return run

    def numpy_outputs(self, called: Called) -> list[Any]:
        """Return the outputs, then the new values of mutated arguments that are not returned, as NumPy's."""
        after = [called.new_values.get(argument.name) for argument in new_values(self.schema)]
        return [self.to_numpy(value) for value in [*called.outputs, *after]]

    def outputs_of(self, result: Called | Pullback) -> list[Any]:
        """Return the outputs of a call or of a differentiable one, as NumPy's."""
        if isinstance(result, Called):
            return self.numpy_outputs(result)
        return [self.to_numpy(value) for value in result.outputs]

    def to_numpy(self, value: Any) -> Any:
        """Return NumPy arrays for the framework's, in lists too; everything else as it is."""
        if isinstance(value, list | tuple):
            return [self.to_numpy(one) for one in value]
        return self.adapter.numpy(value) if self.adapter.is_array(value) else value

    def reference(self, sample: Sample) -> Run:
        """Return what the operator does on a sample; called once, then kept."""
        key = id(sample)
        if key not in self._references:
            self._references[key] = self.run(sample)
        return self._references[key]

    @property
    def output_names(self) -> list[str]:
        """A name for each output that ``Run.outputs`` has."""
        returns = self.schema.returns
        named = [
            entry.name or (f"output {i}" if len(returns) > 1 else "the output")
            for i, entry in enumerate(returns)
        ]
        return named + [f"the new value of {argument.name}" for argument in new_values(self.schema)]

    def random_reason(self) -> str | None:
        """Return why values cannot be compared with those of another call, or None where they can."""
        if self._random is None:
            self._random = self._find_random()
        return self._random or None

    def _find_random(self) -> str:
        declared = [tag for tag in RANDOM_TAGS if tag in self.record.tags]
        if declared:
            return f"the operator is declared random (tag {declared[0]})"
        for sample in self.samples:
            if next(self.differences(self.run(sample), self.reference(sample)), None) is not None:
                return "two calls with equal arguments gave different results: see determinism"
        return ""

    def differences(
        self, got: Run, expected: Run, *, values: bool = True
    ) -> Iterator[tuple[str, str, str, str]]:
        """Yield where two runs differ: kind (shape, dtype, structure, value), output, expected, got."""
        yield from self.different(got.outputs, expected.outputs, values=values)

    def different(
        self, got: Sequence[Any], expected: Sequence[Any], *, values: bool = True
    ) -> Iterator[tuple[str, str, str, str]]:
        """Yield where two lists of outputs differ, as ``differences`` does."""
        for name, one, other in zip(self.output_names, got, expected, strict=True):
            yield from self.difference_of(name, one, other, values=values)

    def difference_of(
        self, name: str, got: Any, expected: Any, *, values: bool = True
    ) -> Iterator[tuple[str, str, str, str]]:
        """Yield where one output differs, as ``differences`` does."""
        if isinstance(expected, list) or isinstance(got, list):
            if not (isinstance(expected, list) and isinstance(got, list) and len(got) == len(expected)):
                yield "structure", name, _structure(expected), _structure(got)
                return
            for index, (one, other) in enumerate(zip(got, expected, strict=True)):
                yield from self.difference_of(f"{name}[{index}]", one, other, values=values)
            return
        arrays = [hasattr(one, "dtype") and hasattr(one, "shape") for one in (got, expected)]
        if not all(arrays):
            if any(arrays) or got != expected:
                yield "structure", name, _structure(expected), _structure(got)
            return
        if got.shape != expected.shape:
            yield "shape", name, f"shape {tuple(expected.shape)}", f"shape {tuple(got.shape)}"
        elif got.dtype != expected.dtype:
            yield "dtype", name, f"dtype {expected.dtype}", f"dtype {got.dtype}"
        elif values:
            worst = difference(got, expected, rtol=self.rtol, atol=self.atol)
            if worst is not None:
                yield "value", name, *worst

    def source(self, rule: str) -> str:
        """Return ``file:line`` of what is at fault."""
        kind = {"vmap rule": "vmap", "backward": "autograd", "setup_context": "autograd"}.get(rule, rule)
        found: Any = None
        if rule == "kernel":
            found = self.record.select_kernel(self.adapter.name, self.adapter.device_type)
        elif rule != "schema":
            found = self.record.rule(kind)
        return self.record.source if found is None else found.source

    def finding(
        self,
        id_: str,
        what: str,
        *,
        sample: Sample | None = None,
        rule: str = "kernel",
        source: str = "",
        expected: str = "",
        got: str = "",
        fix: str = "",
        show: Sequence[str] = ("print({call})",),
    ) -> Finding:
        """Return a finding; ``show`` are the lines of its snippet after the sample."""
        return Finding(
            id_,
            self.law,
            self.record.qualname,
            rule,
            source or self.source(rule),
            self.adapter.name,
            what,
            sample=str(sample) if sample is not None else "",
            expected=expected,
            got=got,
            fix=fix,
            snippet=snippet(self.record, self.adapter, sample, show) if sample is not None else "",
        )


def facts(error: BaseException | None) -> tuple[str, dict[str, str]]:
    """Return the first line of an error of ours, and its labelled lines by label."""
    head, *lines = str(error).splitlines() or [""]
    return head, dict(line.strip().split(": ", 1) for line in lines if ": " in line)


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, those that say the same of several samples as one."""
    found: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = (finding.id, finding.what)
        first = found.get(key)
        found[key] = finding if first is None else replace(first, more=first.more + 1)
    return tuple(found.values())


def raised(error: BaseException | None) -> str:
    """Return an exception for a message: its class, and its text in full where that is short."""
    text = str(error)
    lines = text.splitlines() or [""]
    if "Traceback" in lines[0]:  # of the other side of a callback: its end says what was raised
        text = f"... {lines[-1].strip()}"
    elif len(lines) > 1 and len(text) > 200:
        text = lines[0] + " ..."
    if len(text) > 300:
        text = text[:300] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def line_of(error: BaseException | None, source: str) -> str:
    """Return ``file:line`` of the last frame of an exception in the file of a rule, or the rule's own."""
    file = source.rpartition(":")[0]
    found = source
    trace = None if error is None else error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _structure(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if hasattr(value, "dtype"):
        return described(value)
    return repr(value)
