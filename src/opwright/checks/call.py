"""The law *call*: the operator accepts its own samples. It comes first; the others need what it lets pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opwright import catalogue
from opwright.checks.base import Law, facts, line_of, raised
from opwright.errors import AliasError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.base import Probe
    from opwright.report import Finding

EXPLANATIONS: Mapping[str, str] = {
    "OW001": (
        "The operator raises when it is called with a sample. Nothing else can be looked at with that "
        "sample: correct the kernel, or the sample."
    ),
    "OW002": (
        "The kernel returns something else than its schema says: another number of outputs, or outputs that "
        "are no arrays. Correct the kernel's return, or its annotations."
    ),
}


def is_schemas(probe: Probe, error: Exception) -> bool:
    """Return whether an error is what the law *schema* looks for: an alias, or a write to an argument."""
    writes = not probe.adapter.in_place and "read-only" in str(error)
    return isinstance(error, AliasError) or writes


def check(probe: Probe) -> Iterator[Finding]:
    """Yield the samples that the operator raises on."""
    for sample in probe.samples:
        error = probe.reference(sample).error
        probe.compared()
        if error is None or ("schema" in probe.laws and is_schemas(probe, error)):
            continue
        if isinstance(error, OutputError):
            known = facts(error)[1]
            yield probe.finding(
                "OW002",
                "the kernel returned something else than its schema says",
                sample=sample,
                expected=known.get("expected", str(probe.schema)),
                got=known.get("got", raised(error)),
                fix="correct what the kernel returns, or its return annotation",
            )
        else:
            source = probe.source("kernel")
            yield probe.finding(
                "OW001",
                "the operator raises on a sample",
                sample=sample,
                source=line_of(error, source),
                expected="a result",
                got=raised(error),
                fix=_fix(probe),
            )


def _fix(probe: Probe) -> str:
    """Return what to do about a kernel that raises; one without annotations may be for one framework only."""
    kernel = probe.record.select_kernel(probe.adapter.name, probe.adapter.device_type)
    fix = "correct the kernel, or the sample"
    if kernel is None or kernel.flavour != catalogue.ARRAY_API:
        return fix
    return f"{fix}; if the kernel is for one framework's arrays only, annotate it with them, or pass flavour="


CHECK = Law("call", check, EXPLANATIONS)
