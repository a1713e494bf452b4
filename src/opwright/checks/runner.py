"""``opcheck``: every law, in every framework, on the samples of one operator.

* A law that yields findings has failed; one that compared nothing is skipped; one that raises has errored.
* The names of ``torch.library.opcheck``'s tests are accepted and kept in the report.
"""

from __future__ import annotations

import functools
import importlib
import time
import traceback
import warnings
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from opwright.checks import samples as sampling
from opwright.checks.base import LEVELS, Check, Probe, merged
from opwright.checks.used import frameworks as used_frameworks
from opwright.errors import (
    ArgumentValueError,
    NoKernelError,
    OpCheckError,
    RegistrationTypeError,
    RegistrationValueError,
    layout,
)
from opwright.report import ERRORED, FAILED, PASSED, SKIPPED, Finding, Outcome, Report
from opwright.targets import find

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from importlib.metadata import EntryPoint

    from opwright.checks.adapters.base import Adapter
    from opwright.overload import OpOverload

GROUP = "opwright.checks"
"""The entry point group through which other distributions add laws."""

LAWS = (
    "call",
    "schema",
    "fake",
    "autograd",
    "jvp",
    "vmap",
    "autocast",
    "functionalization",
    "compile",
    "layout",
    "determinism",
    "agreement",
    "device",
)
"""The laws, in the order in which they are looked at; each is a module here."""

TORCH_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "test_schema": ("schema", "layout", "determinism", "agreement", "device"),
        "test_autograd_registration": ("autograd", "jvp"),
        "test_faketensor": ("fake",),
        "test_aot_dispatch_dynamic": ("compile", "functionalization", "vmap", "autocast"),
    }
)
"""The tests of ``torch.library.opcheck``, and the laws that are reported under each when all are run.

Asked for by name, a test stands for the first of its laws.
"""

TESTS: Mapping[str, str] = MappingProxyType(
    {**{name: laws[0] for name, laws in TORCH_NAMES.items()}, "test_aot_dispatch_static": "compile"}
)
"""The law that each test stands for which torch's ``opcheck`` can be asked for; the last runs only then."""


def opcheck(
    op: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    test_utils: str | Iterable[str] | None = None,
    raise_exception: bool = True,
    atol: float | None = None,
    rtol: float | None = None,
    frameworks: str | Iterable[str] | None = None,
    level: str = "default",
) -> Report:
    """Check an operator: its schema, its fake, its gradients, its batching, its layouts.

    Parameters
    ----------
    op
        An operator, an overload, or one that a framework's dispatcher holds.
    args, kwargs
        The arguments of one call. Left out, the samples that ``register_samples`` declares are used.
    test_utils
        Which laws to look at: names of laws, or of ``torch.library.opcheck``'s tests; all by default.
    raise_exception
        Whether to raise for what is found, rather than only report it.
    atol, rtol
        Tolerances of comparisons, instead of those of the dtype.
    frameworks
        Whose arrays to call the operator with. By default every installed framework's for kernels that
        take NumPy's or any arrays, else those of the operator's own framework. Where an operator made with
        ``define`` or ``schema=`` says nowhere what its kernels take, those of ``args``.
    level
        ``"quick"`` looks at the given samples only, ``"default"`` at derived ones too, ``"thorough"`` at
        everything.

    Returns
    -------
    Report
        A mapping from the names asked for to ``"SUCCESS"`` or an exception; with ``outcomes`` and
        ``findings``. Printed, it is a table.

    Raises
    ------
    OpCheckError
        If anything is found; ``report`` is the whole report.
    MissingRuleError
        If one of torch's tests that are about the fake is asked for by name, and the operator has no fake.
    ValueError
        If ``op`` is no single operator, or a name, framework or level is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::double", mutates_args=())
    ... def double(x: np.ndarray) -> np.ndarray:
    ...     return x + x
    >>> ow.opcheck(double, (np.ones(3),), test_utils="schema", frameworks="numpy")["schema"]
    'SUCCESS'
    """
    record = _record(op)
    given = [sampling.given(record, args, kwargs or {})] if args or kwargs else samples_of(record)
    if not given:
        raise ArgumentValueError(
            layout(
                f"opcheck of {record.qualname}: there is nothing to call it with",
                expected="arguments, or samples that are registered",
                fix="pass them, opcheck(op, args, kwargs), or declare samples with @op.register_samples",
            )
        )
    report = check(
        record, given, test_utils=test_utils, atol=atol, rtol=rtol, frameworks=frameworks, level=level,
        arguments=(*args, *(kwargs or {}).values()),
    )  # fmt: skip
    found: Exception | None = report.exception()
    if found is None and test_utils is not None:  # what a test lacks that was asked for by name
        found = next((one for one in report.values() if isinstance(one, Exception)), None)
    if raise_exception and found is not None:
        raise found
    return report


def samples_of(record: OpOverload) -> list[sampling.Sample]:
    """Return the registered samples; the one call there is where the operator has no arguments."""
    found = sampling.registered(record)
    return found or ([] if record.schema.arguments else [sampling.given(record, (), {})])


def check(
    record: OpOverload,
    given: Sequence[sampling.Sample],
    *,
    test_utils: str | Iterable[str] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    frameworks: str | Iterable[str] | None = None,
    level: str = "default",
    arguments: Iterable[Any] = (),
) -> Report:
    """Return the report on an operator; without samples, every law is skipped.

    ``arguments`` are the values that a caller gave for this check.
    """
    names = _names(test_utils)
    if level not in LEVELS:
        raise ArgumentValueError(layout(f"unknown level {level!r}", expected=", ".join(LEVELS)))
    used = used_frameworks(record, frameworks, arguments)
    laws = _of_names(names)
    outcomes: list[Outcome] = []
    for one in used:
        others = [other for other in used if other is not one]
        outcomes += _in_framework(
            Probe(record, one, given, level=level, atol=atol, rtol=rtol, laws=laws, others=others)
        )
    classes = [one.error_class() for one in used]
    error = next((cls for cls in classes if cls is not OpCheckError), OpCheckError)
    groups = {name: ("call", *group) for name, group in names.items()}
    lacking = _without_fake(record, names, used, outcomes)
    return Report(record.qualname, outcomes, groups, samples=len(given), error=error, lacking=lacking)


def _without_fake(
    record: OpOverload, names: Iterable[str], used: Sequence[Adapter], outcomes: Sequence[Outcome]
) -> dict[str, str]:
    """Return the error of each of torch's tests that is about the fake, where the operator has none."""
    skipped = {(one.law, one.framework) for one in outcomes if one.status == SKIPPED}
    called = {one.framework for one in outcomes if one.law == "call" and one.status == PASSED}
    lacking = {}
    for name in names:
        law = TESTS.get(name, "")
        if (
            law in ("fake", "compile")
            and record.schema.returns
            and any(
                (law, one.name) in skipped and one.name in called and one.supports(record, law) is not None
                for one in used
                if one.name == "torch"
            )
        ):
            lacking[name] = layout(
                f"{record.qualname}: no fake impl is registered, which torch.compile and torch.export need",
                expected=f"a fake for {name} to look at",
                registered=record.source,
                fix=f"register one: @opwright.register_fake({record.qualname!r})",
            )
    return lacking


def load_law(name: str) -> Check:
    """Return a law of ours, or of another distribution, by name."""
    if name in LAWS:
        law: Check = importlib.import_module(f"opwright.checks.{name}").CHECK
        return law
    for entry in _others():
        if entry.name == name:
            other: Check = entry.load()
            return other
    raise RegistrationValueError(layout(f"unknown law {name!r}", expected=", ".join(_known_laws())))


def explanations() -> dict[str, str]:
    """Return one paragraph for each id of a finding."""
    return {key: text for name in _known_laws() for key, text in load_law(name).explanations.items()}


def laws_of(test_utils: str | Iterable[str] | None) -> list[str]:
    """Return the laws that names stand for, in the order in which they are looked at; None stands for all."""
    return _of_names(_names(test_utils))


def _of_names(names: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [law for law in _known_laws() if law == "call" or any(law in group for group in names.values())]


def _known_laws() -> list[str]:
    return list(dict.fromkeys([*LAWS, *(entry.name for entry in _others())]))


@functools.cache
def _others() -> tuple[EntryPoint, ...]:
    """Return the laws of other distributions; read once, because that reads a file of every distribution."""
    return tuple(entry_points(group=GROUP))


def _record(op: Any) -> OpOverload:
    """Return the record of one operator; a plain function, a packet or a name is a ValueError."""
    packet = hasattr(op, "overloads")
    if not packet and not isinstance(op, str):
        try:
            record = find(op)
        except RegistrationTypeError:
            record = None
        if record is not None:
            return record
    raise ArgumentValueError(
        layout(
            "opcheck takes one operator",
            expected="an operator or an overload",
            got="a packet of overloads" if packet else f"{op!r} of type {type(op).__name__}",
            fix="pass one overload of it, such as its .default" if packet else "pass what custom_op returns",
        )
    )


def _names(test_utils: str | Iterable[str] | None) -> dict[str, tuple[str, ...]]:
    """Return the names that were asked for, and the laws that each stands for."""
    if test_utils is None:
        own = [law for law in _known_laws() if law not in LAWS]
        last = list(TORCH_NAMES)[-1]
        return {name: (*laws, *(own if name == last else ())) for name, laws in TORCH_NAMES.items()}
    asked = [test_utils] if isinstance(test_utils, str) else list(test_utils)
    laws = _known_laws()
    unknown = [name for name in asked if name not in TESTS and name not in laws]
    if unknown or not asked:
        raise ArgumentValueError(
            layout(
                f"opcheck knows no {', '.join(map(repr, unknown))}"
                if unknown
                else "opcheck was asked for no law",
                expected=f"one or several of {', '.join([*laws, *TESTS])}",
            )
        )
    return {name: (TESTS.get(name, name),) for name in asked}


def _in_framework(probe: Probe) -> list[Outcome]:
    """Return the outcome of each law in one framework."""
    used, given, laws = probe.adapter, probe.samples, probe.laws
    if not given:
        reason = "no samples are registered: declare some with @op.register_samples"
        return [Outcome(law, used.name, SKIPPED, reason) for law in laws]
    runs = [probe.reference(sample) for sample in given]
    errors = [run.error for run in runs]
    for run in runs:
        without = run.error if isinstance(run.error, NoKernelError) else run.not_compared
        if without is not None:
            reason = str(without).splitlines()[0]
            return [Outcome(law, used.name, SKIPPED, reason) for law in laws]
    outcomes = []
    for name in laws:
        if name not in ("call", "schema"):
            accepted = [s for s, error in zip(given, errors, strict=True) if error is None]
            if not accepted:
                outcomes.append(Outcome(name, used.name, SKIPPED, "the operator raises on every sample"))
                continue
            probe.samples = tuple(accepted)
        outcomes.append(_one_law(load_law(name), probe))
    return outcomes


def _one_law(law: Check, probe: Probe) -> Outcome:
    """Return how one law ended."""
    probe.start(law.name)
    start = time.perf_counter()
    found: list[Finding] = []
    try:
        with warnings.catch_warnings(), probe.adapter.silence():
            warnings.simplefilter("ignore")
            found += law.check(probe)
    except Exception:  # noqa: BLE001  (a law that raises is an outcome, with its traceback)
        took = time.perf_counter() - start
        text = f"the checker itself failed\n{traceback.format_exc()}"
        return Outcome(law.name, probe.adapter.name, ERRORED, text, (), probe.comparisons, took)
    took = time.perf_counter() - start
    findings = merged(found)
    probe.failed.update([law.name] if findings else [])
    probe.found.update(finding.id for finding in findings)
    status = FAILED if findings else PASSED if probe.comparisons else SKIPPED
    reason = "; ".join(probe.skipped) or ("nothing was compared" if status == SKIPPED else "")
    return Outcome(law.name, probe.adapter.name, status, reason, findings, probe.comparisons, took)
