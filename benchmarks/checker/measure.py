"""What the two checkers say of one case, and how long each took."""

from __future__ import annotations

import contextlib
import io
import logging
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

import torch

import opwright as ow
from opwright.errors import OpwrightError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from definitions import Case

    from opwright.report import Finding, Report

SHARED = ("call", "schema", "fake", "autograd", "compile")
"""Our laws that torch's checker has too."""

RAISES = ("raises", "cannot be compiled")
"""Words of findings whose snippet raises."""


def measure(case: Case) -> Iterator[dict[str, Any]]:
    """Yield what each checker says of a case, as data."""
    with _quiet():
        ours = _ours(case)
    yield {"id": case.id, "ours": ours}
    with _quiet():
        theirs = _torch(case) if case.build_twin else None
    yield {"torch": theirs}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    text, level = io.StringIO(), logging.root.manager.disable
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)


def _ours(case: Case) -> dict[str, Any]:
    start = time.process_time()
    try:
        op, args, kwargs = case.build()
        start = time.process_time()
        report = ow.opcheck(op, args or (), kwargs, raise_exception=False, **case.options)
    except (OpwrightError, TypeError, ValueError, RuntimeError) as error:
        return {"refused": f"{type(error).__name__}: {error}", "seconds": time.process_time() - start}
    return _described(case, report, time.process_time() - start)


def _described(case: Case, report: Report, seconds: float) -> dict[str, Any]:
    outcomes = report.outcomes
    wall = sum(one.seconds for one in outcomes)
    shared = sum(one.seconds for one in outcomes if one.law in SHARED)
    return {
        "findings": [_finding(case, one) for one in report.findings],
        "errored": [
            f"{one.law}, {one.framework}: {one.reason}" for one in outcomes if one.status == "errored"
        ],
        "passed": sum(one.status == "passed" for one in outcomes),
        "laws": {
            f"{one.law}, {one.framework}": [one.status, one.reason, round(one.seconds, 4)] for one in outcomes
        },
        "seconds": seconds,
        "shared": seconds * shared / wall if wall else 0.0,
    }


def _finding(case: Case, finding: Finding) -> dict[str, Any]:
    names = ("id", "law", "framework", "what", "got", "sample", "snippet")
    found = {name: getattr(finding, name) for name in names}
    confirmed = case.confirm is not None and case.confirm(finding)
    return found | {"snippet_error": snippet_error(finding), "confirmed": confirmed}


def snippet_error(finding: Finding) -> str:
    """Return what is wrong with the snippet of a finding: it raises what is not the finding; else nothing."""
    if "torch.compile" in finding.snippet:
        torch.compiler.reset()  # as in a process of its own: recompilations are counted over all operators
    try:
        exec(compile(finding.snippet, finding.id, "exec"), {})
    except Exception as error:  # noqa: BLE001  (whatever the operator raises)
        told = type(error).__name__ in f"{finding.what} {finding.got} {finding.expected}"
        shown = told or any(word in finding.what for word in RAISES) or isinstance(error, OpwrightError)
        return "" if shown else f"{type(error).__name__}: {error}"
    return "" if finding.snippet else "there is none"


def _torch(case: Case) -> dict[str, Any]:
    start = time.process_time()
    try:
        op, args, kwargs = case.build_twin() if case.build_twin else case.build()
        start = time.process_time()
        found = torch.library.opcheck(op, args, kwargs, raise_exception=False)
    except Exception as error:  # noqa: BLE001  (whatever torch raises at the definition, or in its checker)
        place = traceback.extract_tb(error.__traceback__)[-1].name
        return {
            "refused": f"{type(error).__name__}: {error} ({place})",
            "seconds": time.process_time() - start,
        }
    seconds = time.process_time() - start
    failed = {name: f"{type(r).__name__}: {r}" for name, r in found.items() if r != "SUCCESS"}
    confirmed = bool(failed) and case.confirm is not None and case.confirm(None)
    return {"failed": failed, "seconds": seconds, "confirmed": confirmed}
