from __future__ import annotations

import json

import pytest

from opwright.errors import OpCheckError
from opwright.report import Finding, Outcome, Report, aligned, cell, counted, summary

FINDING = Finding(
    "OW301",
    "autograd",
    "mylib::sin",
    "backward",
    "mylib.py:12",
    "numpy",
    "the gradient for x differs from finite differences",
    sample="sample 0: x float64 (3,)",
    expected="1 at index (0,), by finite differences",
    got="3, 2 away",
    fix="correct the formula in the backward",
    snippet="import numpy as np\nprint(1)",
    more=2,
)
TEXT = """\
OW301 mylib::sin, backward, numpy: the gradient for x differs from finite differences
  expected: 1 at index (0,), by finite differences
  got: 3, 2 away
  registered at: mylib.py:12
  to fix: correct the formula in the backward
  sample: sample 0: x float64 (3,) (and 2 more)
  to see it:
    import numpy as np
    print(1)"""

PASSED = Outcome("schema", "numpy", "passed", comparisons=4)
FAILED = Outcome("autograd", "numpy", "failed", findings=(FINDING,), comparisons=2)
SKIPPED = Outcome("vmap", "numpy", "skipped", "no vmap rule is registered")
ERRORED = Outcome("fake", "torch", "errored", "Traceback")
NAMES = {"test_schema": ["schema"], "autograd": ["autograd", "fake"], "vmap": ["vmap"]}


def report(*outcomes, **options):
    return Report("mylib::sin", outcomes, NAMES, samples=3, **options)


def test_a_finding_prints_all_it_holds():
    assert str(FINDING) == TEXT


def test_a_finding_prints_no_more_than_it_holds():
    assert str(Finding("OW107", "schema", "m::f", "schema", "m.py:1", "numpy", "no outputs")) == (
        "OW107 m::f, schema, numpy: no outputs\n  registered at: m.py:1"
    )


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (PASSED, "schema on numpy: passed, 4 comparisons"),
        (FAILED, f"autograd on numpy: failed\n{TEXT}"),
        (SKIPPED, "vmap on numpy: skipped: no vmap rule is registered"),
        (ERRORED, "fake on torch: errored: Traceback"),
    ],
)
def test_an_outcome_says_how_it_ended(outcome, text):
    assert str(outcome) == text


def test_a_report_is_a_mapping():
    found = report(PASSED, FAILED, SKIPPED)
    assert list(found) == ["test_schema", "autograd", "vmap"]
    assert len(found) == 3
    assert (found["test_schema"], found["vmap"]) == ("SUCCESS", "SUCCESS")
    assert isinstance(found["autograd"], OpCheckError)
    assert str(found["autograd"]) == f"mylib::sin: 1 finding\n\n{TEXT}"
    assert found["autograd"].report is found
    with pytest.raises(KeyError):
        found["nope"]


def test_a_report_without_findings_equals_a_dict():
    assert report(PASSED, SKIPPED) == {"test_schema": "SUCCESS", "autograd": "SUCCESS", "vmap": "SUCCESS"}


def test_a_report_prints_a_table_reasons_and_findings():
    assert str(report(PASSED, FAILED, SKIPPED)) == (
        "mylib::sin, 3 samples\n"
        "            numpy\n"
        "  schema    passed\n"
        "  autograd  OW301\n"
        "  vmap      skipped\n"
        "  vmap skipped on numpy: no vmap rule is registered\n"
        f"\n{TEXT}"
    )


def test_a_table_has_a_column_for_each_framework():
    assert report(PASSED, ERRORED).table() == [
        "          numpy   torch",
        "  schema  passed",
        "  fake            errored",
    ]


def test_reasons_are_told_once():
    reason = "no samples"
    outcomes = [
        Outcome(law, name, "skipped", reason) for name in ("numpy", "jax") for law in ("fake", "vmap")
    ]
    assert report(*outcomes).reasons() == ["  everything skipped on numpy, jax: no samples"]
    assert report(PASSED, *outcomes[:2]).reasons() == ["  fake, vmap skipped on numpy: no samples"]


def test_what_is_bad_decides():
    assert report(PASSED, SKIPPED).ok
    assert report(PASSED, SKIPPED).exception() is None
    assert not report(PASSED, FAILED).ok
    assert not report(ERRORED).ok
    assert str(report(FAILED, ERRORED).exception()) == (
        f"mylib::sin: 2 findings\n\n{TEXT}\n\nfake on torch: errored: Traceback"
    )


def test_the_class_of_its_exceptions_is_given():
    class Own(OpCheckError):
        pass

    found = report(FAILED, error=Own)
    assert type(found["autograd"]) is Own
    assert type(found.exception()) is Own


def test_repr_counts():
    assert repr(report(PASSED, PASSED, FAILED, SKIPPED, ERRORED)) == (
        "<Report mylib::sin: 2 passed, 1 failed, 1 errored, 1 skipped>"
    )


def test_findings_laws_frameworks_and_outcomes_are_listed():
    found = report(PASSED, FAILED, ERRORED)
    assert found.findings == (FINDING,)
    assert found.laws == ["schema", "autograd", "fake"]
    assert found.frameworks == ["numpy", "torch"]
    assert found.outcome("fake", "torch") is ERRORED
    assert found.outcome("fake", "numpy") is None


def test_data_can_be_written_as_json():
    data = json.loads(json.dumps(report(PASSED, FAILED).to_dict()))
    assert (data["operator"], data["ok"], data["samples"]) == ("mylib::sin", False, 3)
    assert [outcome["status"] for outcome in data["outcomes"]] == ["passed", "failed"]
    assert data["outcomes"][1]["findings"][0]["id"] == "OW301"
    assert data["outcomes"][0]["comparisons"] == 4


def test_summary_has_a_row_for_each_operator_and_framework():
    reports = [report(PASSED, FAILED), Report("mylib::cos", [PASSED, ERRORED], NAMES)]
    assert summary(reports) == [
        ["operator", "arrays of", "schema", "autograd", "fake"],
        ["mylib::sin", "numpy", "passed", "OW301", ""],
        ["mylib::cos", "numpy", "passed", "", ""],
        ["mylib::cos", "torch", "", "", "errored"],
    ]
    assert summary(reports[:1])[0] == ["operator", "schema", "autograd"]


def test_a_cell_has_each_id_once():
    assert cell(Outcome("a", "b", "failed", findings=(FINDING, FINDING))) == "OW301"
    assert cell(None) == ""


def test_texts_are_aligned_and_counted():
    assert aligned([["a", "bb"], ["ccc", "d"]]) == ["  a    bb", "  ccc  d"]
    assert [counted(n, "law") for n in (0, 1, 2)] == ["0 laws", "1 law", "2 laws"]
