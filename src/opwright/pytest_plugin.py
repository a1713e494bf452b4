"""The pytest plugin: a test for each operator, sample and law of a module; a fixture; calls of a test suite.

* Nothing of Opwright is imported before one of the options or the fixture is used.
* ``--opwright MODULE`` adds tests with plain ids, the same in every worker of pytest-xdist. The laws of one
  operator and sample are looked at together, when the first of their tests runs.
* A test that is listed in the file of known failures must fail: one that passes is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from opwright.checks.samples import Sample
    from opwright.overload import OpOverload
    from opwright.report import Report

LEVELS = ("quick", "default", "thorough")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("opwright", "checks of array operators")
    group.addoption(
        "--opwright", action="append", default=[], metavar="MODULE",
        help="test the operators that a module or Python file defines: each with each sample and law",
    )  # fmt: skip
    group.addoption("--opwright-level", choices=LEVELS, default="default", help="how much to look at")
    group.addoption(
        "--opwright-framework", action="append", metavar="NAME", help="whose arrays to use; may be repeated"
    )
    group.addoption(
        "--opwright-law", action="append", metavar="NAME", help="which law to look at; may be repeated"
    )
    group.addoption(
        "--opwright-known-failures", type=Path, metavar="FILE",
        help="a file of test ids, one a line, of operators that are known to fail; each must fail",
    )  # fmt: skip
    group.addoption(
        "--opwright-calls", action="store_true",
        help="check the calls of operators that the tests make, each after the test that makes it first",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Collect operators alone where no path is named; record calls where that is asked for."""
    if config.option.opwright and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    if config.option.opwright_calls:
        try:
            _laws(config)
        except ValueError as error:
            raise pytest.UsageError(f"--opwright-calls: {error}") from error
        config.pluginmanager.register(_Calls(config), "opwright_calls")


@pytest.fixture(name="opcheck")
def fixture_opcheck(request: pytest.FixtureRequest) -> Any:
    """Return ``opwright.opcheck`` with the level and the frameworks of the command line."""
    from functools import partial

    from opwright.checks.runner import opcheck

    option = request.config.option
    return partial(opcheck, level=option.opwright_level, frameworks=option.opwright_framework)


# ------------------------------------------------------------------------------- the operators of a module


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of operators, before others choose among them by name or mark."""
    added: list[LawTest] = []
    for target in config.option.opwright:
        added += _collected(session, target)
    known = _known_failures(config.option.opwright_known_failures)
    names = {item.nodeid for item in added}
    for name, (_, where) in known.items():
        if added and name not in names:
            raise pytest.UsageError(f"{where}: there is no test {name!r}; take the line out")
    for item in added:
        item.known = known.get(item.nodeid)
    items += added


def _collected(session: pytest.Session, target: str) -> list[LawTest]:
    """Return the tests of the operators that a module, or one name in it, defines."""
    from opwright import modules
    from opwright.checks.runner import samples_of

    try:
        laws = _laws(session.config)
        module, name = modules.split_target(target)
        imported = modules.import_target(module)
    except (modules.UsageError, ValueError) as error:
        raise pytest.UsageError(f"--opwright {target}: {error}") from error
    if imported.failures:
        raise pytest.UsageError(f"--opwright {target}: " + "\n".join(imported.failures))
    records = modules.defined_in(imported.name)
    records = modules.named(records, name) if name else records
    if not records:
        raise pytest.UsageError(f"--opwright {target}: no operator is defined there")
    parent = Operators.from_parent(session, name=module, nodeid=module)
    tests = []
    for record in sorted(records, key=lambda record: record.qualname):
        samples = samples_of(record)
        for number, sample in enumerate(samples) if samples else [(None, None)]:
            group = Group(record, sample, parent.config.option)
            id_ = "no samples" if number is None else f"sample{number}"
            tests += [
                LawTest.from_parent(parent, name=f"{record.qualname}[{id_}-{law}]", group=group, law=law)
                for law in (laws if sample is not None else ["samples"])
            ]
    return tests


def _laws(config: pytest.Config) -> list[str]:
    """Return the laws that are asked for; a ValueError where one, or a framework, is not there."""
    from opwright.checks.adapters.base import adapter
    from opwright.checks.runner import laws_of

    for name in config.option.opwright_framework or ():
        adapter(name)
    return laws_of(config.option.opwright_law)


class Operators(pytest.Collector):
    """The operators of a module."""

    def collect(self) -> Iterable[LawTest]:
        """Return nothing: the tests are added to those that pytest collects."""
        return ()


class Group:
    """One operator with one sample: the laws are looked at together, once."""

    def __init__(self, record: OpOverload, sample: Sample | None, option: Any) -> None:
        self.record = record
        self.sample = sample
        self.option = option
        self.laws: list[str] = []
        self._report: Report | None = None

    @property
    def report(self) -> Report:
        """The report on the laws whose tests are to run."""
        from opwright.checks.runner import check

        if self._report is None:
            self._report = check(
                self.record,
                [] if self.sample is None else [self.sample],
                test_utils=self.laws,
                frameworks=self.option.opwright_framework,
                level=self.option.opwright_level,
            )
        return self._report


class LawTest(pytest.Item):
    """One operator, one sample, one law."""

    known: tuple[str, str] | None = None

    def __init__(self, *, group: Group, law: str, **options: Any) -> None:
        super().__init__(**options)
        self.group = group
        self.law = law

    def runtest(self) -> None:
        """Look at the law; what is known to fail must fail."""
        if self.group.sample is None:
            pytest.skip("no samples are registered: declare some with @op.register_samples")
        outcomes = [one for one in self.group.report.outcomes if one.law == self.law]
        bad = [one for one in outcomes if one.bad]
        if self.known is not None:
            reason, where = self.known
            if bad:
                pytest.xfail(reason or f"known failure, {where}")
            raise LawError(f"{self.nodeid} does not fail any more; take it out of {where}")
        if bad:
            raise LawError("\n\n".join(str(text) for one in bad for text in one.findings or (one,)))
        if all(one.status == "skipped" for one in outcomes):
            pytest.skip("; ".join(dict.fromkeys(f"{one.framework}: {one.reason}" for one in outcomes)))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the findings alone, without the traceback of the checker."""
        if isinstance(excinfo.value, LawError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the operator is defined."""
        path, _, line = self.group.record.source.rpartition(":")
        return Path(path or "."), int(line) - 1 if line.isdigit() else None, self.name


class LawError(AssertionError):
    """A law is broken."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell each operator and sample which of its laws are asked for."""
    for item in session.items:
        if isinstance(item, LawTest) and item.law not in item.group.laws:
            item.group.laws.append(item.law)


def _known_failures(path: Path | None) -> dict[str, tuple[str, str]]:
    """Return the reason and the place of each id in a file of known failures."""
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise pytest.UsageError(f"--opwright-known-failures: {error}") from error
    known = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, _, reason = line.partition("  #") if not line.startswith("#") else ("", "", "")
        if name.strip():
            known[name.strip()] = (reason.strip(), f"{path}:{number}")
    return known


# ------------------------------------------------------------------------------- the calls of a test suite


class _Calls:
    """Checks the calls of operators that tests make."""

    def __init__(self, config: pytest.Config) -> None:
        self.option = config.option
        self.recording: Any = None
        self.others: dict[str, int] = {}
        self.checked = 0
        self.operators: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        from opwright.recording import Recording, recording

        self.recording = self.recording or Recording()
        passed = False
        try:
            with recording(into=self.recording):
                result = yield
            passed = True
        finally:
            problems = self._problems(self.recording.take())
            if problems and not passed:  # the test's own error is raised; this is printed below it
                item.add_report_section("call", "opwright", problems)
        if problems:
            pytest.fail(problems, pytrace=False)
        return result

    def _problems(self, calls: Sequence[tuple[OpOverload, Sample]]) -> str:
        """Check calls and return the text of what is found."""
        from opwright.checks.runner import check

        found: list[str] = []
        for record, sample in calls:
            if record.stale is not None:
                continue
            self.checked += 1
            self.operators.add(record.qualname)
            report = check(
                record,
                [sample],
                test_utils=self.option.opwright_law,
                frameworks=self.option.opwright_framework,
                level=self.option.opwright_level,
            )
            found += report.problems()
        return "\n\n".join(found)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:  # a worker of pytest-xdist, whose counts the summary is made of
            output["opwright_calls"] = (self.checked, sorted(self.operators), self._left_out())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        checked, operators, left_out = getattr(node, "workeroutput", {}).get("opwright_calls", (0, (), {}))
        self.checked += checked
        self.operators.update(operators)
        for reason, count in left_out.items():
            self.others[reason] = self.others.get(reason, 0) + count

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_sep("-", "opwright")
        terminalreporter.write_line(f"{self.checked} calls of {len(self.operators)} operators were checked")
        for reason, count in sorted(self._left_out().items()):
            terminalreporter.write_line(f"{count} left out: {reason}")

    def _left_out(self) -> dict[str, int]:
        return self.others if self.recording is None else self.recording.left_out
