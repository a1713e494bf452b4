"""What the tests of the laws share: wrong operators by law, and what the checker says of an operator."""

from __future__ import annotations

import functools
import re

import pytest

from checks.wrong_operators import WRONG
from opwright.checks.runner import opcheck


def law_number(id_):
    """Return the number of an id's law: 3 for ``OW301``."""
    return int(id_[2:]) // 100


def wrong_operators(number):
    """Return the wrong operators whose findings are those of one law, as parameters."""
    rows = [one for one in WRONG if min(map(law_number, one.ids)) == number]
    assert len(rows) >= 2
    return [pytest.param(one, id=one.name) for one in rows]


@functools.cache
def _plain_report(name):
    return _report(one(name))


def report_of(wrong, **options):
    """Return the report on a wrong operator; without options, that of its first check."""
    return _report(wrong, **options) if options else _plain_report(wrong.name)


def _report(wrong, **options):
    options = {"frameworks": "numpy", "level": wrong.level, "raise_exception": False} | options
    return opcheck(wrong.operator, wrong.args, wrong.kwargs, **options)


def assert_caught(wrong):
    """The operator is caught, by its law alone, and the cause is named."""
    report = report_of(wrong)
    assert {finding.id for finding in report.findings} == wrong.ids, str(report)
    assert [outcome for outcome in report.outcomes if outcome.status == "errored"] == []
    assert any(wrong.words in finding.what for finding in report.findings), str(report)
    for finding in report.findings:
        assert finding.operator == wrong.operator.name
        assert finding.framework == "numpy"
        assert re.fullmatch(r".*wrong_operators\.py:\d+", finding.source)
        assert all([finding.expected, finding.got, finding.fix, finding.sample, finding.snippet])


def one(name):
    """Return the wrong operator of that name."""
    return next(one for one in WRONG if one.name == name)


def finding_of(name, **options):
    """Return the first finding in a wrong operator."""
    return report_of(one(name), **options).findings[0]


def outcome_of(operator, law, *args, **options):
    """Return how a law ends for an operator on NumPy."""
    options = {"frameworks": "numpy", "raise_exception": False, "test_utils": law} | options
    return opcheck(operator, args, **options).outcome(law, "numpy")


def facts_of(name):
    """Return what the first finding in a wrong operator says, field by field."""
    finding = finding_of(name)
    return [finding.id, finding.what, finding.expected, finding.got, finding.fix, finding.sample]


def text_of(name):
    """Return the first finding in a wrong operator as it prints, its place and its arrays left out."""
    finding = finding_of(name)
    return re.sub(r"np\.array\(\[.*\], ", "np.array(ARRAY, ", str(finding).replace(finding.source, "SOURCE"))
