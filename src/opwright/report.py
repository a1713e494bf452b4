"""What the checker found: a finding, the outcome of a law, and the report that holds all outcomes.

* An outcome is passed, failed, skipped or errored; one that compared nothing is skipped, with the reason.
* A report is a mapping from the names that were asked for to ``"SUCCESS"`` or an exception, as
  ``torch.library.opcheck`` returns it; everything else is in ``outcomes``.
* Text only: what is printed in colour is up to the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.errors import MissingRuleError, OpCheckError, layout

SUCCESS = "SUCCESS"
"""The value of a name in a report under which nothing failed."""

PASSED, FAILED, SKIPPED, ERRORED = "passed", "failed", "skipped", "errored"


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which an operator breaks a law.

    Parameters
    ----------
    id
        Such as ``"OW301"``; ``opwright explain OW301`` prints a paragraph on it.
    law
        The law, such as ``"autograd"``.
    operator
        The qualified name.
    rule
        What is at fault: ``"kernel"``, ``"fake"``, ``"backward"``, ``"setup_context"``, ``"jvp"``,
        ``"vmap rule"`` or ``"schema"``.
    source
        ``file:line`` of it.
    framework
        The framework whose arrays it was called with.
    what
        What is wrong, without the sample.
    sample
        The sample that shows it: shapes, dtypes, strides.
    expected, got, fix
        What should be, what is, and what to do.
    snippet
        A few lines of Python that show it.
    more
        On how many other samples the same was found.
    """

    id: str
    law: str
    operator: str
    rule: str
    source: str
    framework: str
    what: str
    sample: str = ""
    expected: str = ""
    got: str = ""
    fix: str = ""
    snippet: str = ""
    more: int = 0

    def __str__(self) -> str:
        text = layout(
            f"{self.id} {self.operator}, {self.rule}, {self.framework}: {self.what}",
            expected=self.expected,
            got=self.got,
            registered=self.source,
            fix=self.fix,
        )
        if self.sample:
            others = f" (and {self.more} more)" if self.more else ""
            text += f"\n  sample: {self.sample}{others}"
        if self.snippet:
            text += "\n  to see it:" + "".join(f"\n    {line}" for line in self.snippet.splitlines())
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a law ended in one framework.

    Parameters
    ----------
    law, framework
        The law, and the framework whose arrays were used.
    status
        ``"passed"``, ``"failed"``, ``"skipped"`` or ``"errored"``.
    reason
        Why it was skipped, or the traceback of the error in the checker.
    findings
        What is wrong.
    comparisons
        How many comparisons were made; none in a law that was skipped.
    seconds
        How long it took.
    """

    law: str
    framework: str
    status: str
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    comparisons: int = 0
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        """Whether it failed or errored."""
        return self.status in (FAILED, ERRORED)

    def __str__(self) -> str:
        head = f"{self.law} on {self.framework}: {self.status}"
        if self.status == FAILED:
            return "\n".join([head, *map(str, self.findings)])
        if self.status == PASSED:
            return f"{head}, {counted(self.comparisons, 'comparison')}"
        return f"{head}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as data."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {"findings": [finding.to_dict() for finding in self.findings]}


class Report(Mapping[str, str | Exception]):
    """What the checker found about one operator.

    A mapping from each name that was asked for, a law's or one of ``torch.library.opcheck``'s, to
    ``"SUCCESS"`` or an `OpCheckError`; to a `MissingRuleError` for torch's tests of the fake, where there is
    none. Printed, it is a table with all findings.

    Parameters
    ----------
    operator
        The qualified name.
    outcomes
        One for each law and framework.
    names
        The laws that each name stands for.
    samples
        How many samples there were.
    error
        The class of the exceptions.
    lacking
        By name, what the operator has not and a law of that name needs: where nothing else is wrong, this is
        the text of the name's error.
    """

    def __init__(
        self,
        operator: str,
        outcomes: Iterable[Outcome],
        names: Mapping[str, Sequence[str]],
        *,
        samples: int = 0,
        error: type[OpCheckError] = OpCheckError,
        lacking: Mapping[str, str] | None = None,
    ) -> None:
        self.operator = operator
        self.outcomes = tuple(outcomes)
        self.samples = samples
        self._error = error
        self._names = {name: tuple(laws) for name, laws in names.items()}
        self._lacking = {name: text for name, text in (lacking or {}).items() if name in self._names}
        self._values = {name: self._value(name) for name in self._names}

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.operator, self.outcomes, self._names, self.samples, self._lacking)

    def __getitem__(self, name: str) -> str | Exception:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        counts = dict.fromkeys((PASSED, FAILED, ERRORED, SKIPPED), 0)
        for outcome in self.outcomes:
            counts[outcome.status] += 1
        return f"<Report {self.operator}: {', '.join(f'{n} {s}' for s, n in counts.items() if n)}>"

    def __str__(self) -> str:
        samples = counted(self.samples, "sample")
        lines = [f"{self.operator}, {samples}", *self.table(), *self.reasons()]
        text = "\n".join(lines)
        return text + "".join(f"\n\n{entry}" for entry in self.problems())

    @property
    def ok(self) -> bool:
        """Whether nothing failed or errored."""
        return not any(outcome.bad for outcome in self.outcomes)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding, law by law."""
        return tuple(finding for outcome in self.outcomes for finding in outcome.findings)

    @property
    def laws(self) -> list[str]:
        """The laws that were looked at, in order."""
        return list(dict.fromkeys(outcome.law for outcome in self.outcomes))

    @property
    def frameworks(self) -> list[str]:
        """The frameworks whose arrays were used, in order."""
        return list(dict.fromkeys(outcome.framework for outcome in self.outcomes))

    def outcome(self, law: str, framework: str) -> Outcome | None:
        """Return how a law ended in a framework, or None where it was not looked at."""
        for outcome in self.outcomes:
            if (outcome.law, outcome.framework) == (law, framework):
                return outcome
        return None

    def exception(self) -> OpCheckError | None:
        """Return the exception that holds everything that failed, or None."""
        return self._exception(self.outcomes)

    def table(self) -> list[str]:
        """Return the lines of the table: a row for each law, a column for each framework."""
        frameworks = self.frameworks
        rows = [[law, *(cell(self.outcome(law, name)) for name in frameworks)] for law in self.laws]
        return aligned([["", *frameworks], *rows])

    def reasons(self) -> list[str]:
        """Return a line for each reason why laws were skipped."""
        found: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.status == SKIPPED:
                found.setdefault(outcome.reason, []).append(outcome)
        lines = []
        for reason, outcomes in found.items():
            laws = list(dict.fromkeys(outcome.law for outcome in outcomes))
            what = "everything" if laws == self.laws else ", ".join(laws)
            on = ", ".join(dict.fromkeys(outcome.framework for outcome in outcomes))
            lines.append(f"  {what} skipped on {on}: {reason}")
        return lines

    def problems(self) -> list[str]:
        """Return the text of each finding, and of each law that ended in an error."""
        errors = [str(outcome) for outcome in self.outcomes if outcome.status == ERRORED]
        return [*map(str, self.findings), *errors]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as data."""
        return {
            "operator": self.operator,
            "ok": self.ok,
            "samples": self.samples,
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
        }

    def _value(self, name: str) -> str | Exception:
        found = self._exception([outcome for outcome in self.outcomes if outcome.law in self._names[name]])
        if found is None and name in self._lacking:
            return MissingRuleError(self._lacking[name])
        return SUCCESS if found is None else found

    def _exception(self, outcomes: Iterable[Outcome]) -> OpCheckError | None:
        bad = [outcome for outcome in outcomes if outcome.bad]
        if not bad:
            return None
        texts = [str(one) for outcome in bad for one in outcome.findings or (outcome,)]
        head = f"{self.operator}: {counted(len(texts), 'finding')}"
        return self._error("\n\n".join([head, *texts]), self)


def _unpickle(operator: str, outcomes: Any, names: Any, samples: int, lacking: Any) -> Report:
    """Make a report again; the errors in it are made from the outcomes."""
    return Report(operator, outcomes, names, samples=samples, lacking=lacking)


def summary(reports: Sequence[Report]) -> list[list[str]]:
    """Return the table of several reports: a row for each operator and framework, a column for each law."""
    laws = list(dict.fromkeys(law for report in reports for law in report.laws))
    several = len({name for report in reports for name in report.frameworks}) > 1
    rows = [["operator", *(["arrays of"] if several else []), *laws]]
    for report in reports:
        for framework in report.frameworks:
            cells = [cell(report.outcome(law, framework)) for law in laws]
            rows.append([report.operator, *([framework] if several else []), *cells])
    return rows


def cell(outcome: Outcome | None) -> str:
    """Return the text of an outcome in a table."""
    if outcome is None:
        return ""
    if outcome.status == FAILED:
        return ", ".join(dict.fromkeys(finding.id for finding in outcome.findings))
    return outcome.status


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [("  " + "  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True))).rstrip() for row in rows]


def counted(number: int, noun: str) -> str:
    """Return ``1 sample``, ``2 samples``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
