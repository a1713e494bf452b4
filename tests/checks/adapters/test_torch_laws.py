"""The laws on operators of PyTorch's arrays: right ones pass, wrong ones fail the law that they break."""

from __future__ import annotations

import re
import time

import pytest

from checks.test_runner import NOT_IN_NUMPY
from checks.torch_operators import RIGHT, WRONG, torch
from opwright.checks.attempts import attempt
from opwright.checks.runner import opcheck

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "branch_in_the_fake",
        "OW209",
        "the fake branches on a size: x.shape[0] > 2",
        "one expression for every size",
        "x.shape[0] > 2 decides, and the fake goes on either way",
        "write the shape as one expression of the sizes; a check that raises is fine",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "int_in_the_fake",
        "OW208",
        "the fake makes a number of a size: int(x.shape[0])",
        "a size that stays symbolic",
        "int(x.shape[0]), so every new size compiles anew",
        "compute with the size itself, without int(), range() or math",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "broadcast_gradient",
        "OW302",
        "the gradient for x has another shape than x",
        "shape (3, 4)",
        "shape (2, 3, 4)",
        "sum the gradient over the axes that were broadcast, or reshape it",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "single_gradient",
        "OW303",
        "the gradient for x has another dtype than x",
        "dtype float64",
        "dtype float32",
        "convert it to the dtype of x in the backward",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "constant_intermediate",
        "OW314",
        "the second derivative along x differs from finite differences of the gradients",
        "1.87168434, by finite differences",
        "0, 1.87168434 away",
        "keep what the backward needs in ctx.save_for_backward, and compute with arrays that the framework "
        "differentiates; or mark it once_differentiable",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "detaches_what_it_saved",
        "OW314",
        "the second derivative along x differs from finite differences of the gradients",
        "1.87168434, by finite differences",
        "0, 1.87168434 away",
        "keep what the backward needs in ctx.save_for_backward, and compute with arrays that the framework "
        "differentiates; or mark it once_differentiable",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "raises_when_differentiated",
        "OW315",
        "the backward raises when it is differentiated",
        "second derivatives, or a refusal (once_differentiable)",
        "ValueError: not thought of",
        "compute with functions that the framework differentiates, or mark it once_differentiable",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "keeps_its_input_as_an_attribute",
        "OW316",
        "the gradient for x is silently wrong where x changes after the call",
        "an error, or 0.25063117 at index (0, 1)",
        "-1.64658263; 12 of 12 elements differ",
        "keep arrays with ctx.save_for_backward, not as attributes of ctx",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "closes_over_a_parameter",
        "OW317",
        "the kernel takes weight from outside, which requires a gradient and gets none",
        "weight among the arguments, so that it gets its gradient",
        "weight captured by the kernel",
        "make weight an argument of the operator, or detach it",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "closes_over_a_module",
        "OW317",
        "the kernel takes layer.factor from outside, which requires a gradient and gets none",
        "layer among the arguments, so that it gets its gradient",
        "layer captured by the kernel",
        "make layer.factor an argument of the operator, or detach it",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "follows_autocast",
        "OW605",
        "the dtype of the output changes under autocast, for which the operator has no rule",
        "dtype float32, as without autocast",
        "dtype bfloat16",
        "turn autocast off inside the kernel, or register_autocast with the dtype that it returns",
        "the given sample, in float32: x float32 (3, 4), w float32 (4, 3)",
    ),
    (
        "raises_under_autocast",
        "OW605",
        "the kernel raises under autocast, for which the operator has no rule",
        "what it does without autocast",
        "RuntimeError: dot : expected both vectors to have same dtype, but found BFloat16 and Float",
        "turn autocast off inside the kernel, or register_autocast with the dtype that it takes",
        "the given sample, in float32: x float32 (3, 4)",
    ),
    (
        "no_half_in_the_backward",
        "OW604",
        "the gradient raises under autocast, which casts to float16",
        "a gradient, computed in float16",
        "RuntimeError: linalg.inv: Low precision dtypes not supported. Got Half",
        "let the backward take float16",
        "the given sample, in float32: x float32 (3, 4)",
    ),
    (
        "adds_only_eagerly",
        "OW705",
        "the caller's array differs in a program without mutation",
        "1.12573022 at index (0,), as after the eager call",
        "0.125730221; 12 of 12 elements differ",
        "let the same kernel run eagerly and compiled, and change the argument in each call",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "decides_on_a_value",
        "OW801",
        "the backward cannot be compiled by torch.compile(backend='aot_eager', dynamic=True)",
        "a program that does what the operator does",
        "a value is asked for, and there is none while tracing (GuardOnDataDependentSymNode)",
        "keep the backward free of decisions on values: no int(), float() or if on an array, no NumPy",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "float_in_setup_context",
        "OW801",
        "the setup_context cannot be compiled by torch.compile(backend='aot_eager', dynamic=True)",
        "a program that does what the operator does",
        "a value is asked for, and there is none while tracing (GuardOnDataDependentSymNode)",
        "keep the setup_context free of decisions on values: no int(), float() or if on an array, no NumPy",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "twice_or_thrice",
        "OW802",
        "the output differs under torch.compile(backend='aot_eager', dynamic=True)",
        "2.60800009 at index (1, 2), as eagerly",
        "3.91200014; 12 of 12 elements differ",
        "let the same code run eagerly and compiled: one kernel, and rules that depend on arguments alone",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "refuses_export",
        "OW805",
        "the operator cannot be exported, saved and loaded",
        "a program that can be saved and loaded",
        "ValueError: not for export",
        "see what is raised; arguments must be arrays, numbers, words, dtypes or devices",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "another_gradient_when_compiled",
        "OW803",
        "the gradient for x differs under torch.compile(backend='aot_eager', dynamic=True)",
        "-1.85755641 at index (2, 1), as eagerly",
        "-2.78633461; 12 of 12 elements differ",
        "let the backward depend on ctx and its arguments alone",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "number_of_a_size_in_the_backward",
        "OW804",
        "with size 6 in place of 3 the operator is compiled again",
        "one program for every size",
        "compiled again: tensor 'x' size mismatch at index 0. expected 3, actual 6",
        "compute with sizes: no int(), range(), loop or if on one, in the backward either",
        "the given sample: x float64 (3, 4)",
    ),
]


@pytest.fixture(name="report_of", scope="module")
def fixture_report_of():
    reports = {}

    def report_of(name):
        if name not in reports:
            operator, args, _, _, level = WRONG[name]
            options = {"frameworks": "torch", "level": level, "raise_exception": False}
            reports[name] = opcheck(operator, args, **options)
        return reports[name]

    return report_of


@pytest.mark.parametrize("level", ["quick", "default"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_operators_pass(name, level):
    operator, args = RIGHT[name]
    report = opcheck(operator, args, level=level)
    assert report.ok, str(report)
    assert report.frameworks == ["torch"]
    assert (report.outcome("compile", "torch").status == "passed") == (level == "default")


@pytest.mark.parametrize("name", ["matmul", "add_to_both"])
def test_right_operators_pass_whatever_is_looked_at(name):
    operator, args = RIGHT[name]
    assert opcheck(operator, args, level="thorough").ok


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operators_are_caught_and_the_cause_is_named(name, report_of):
    report = report_of(name)
    _, _, ids, words, _ = WRONG[name]
    assert {finding.id for finding in report.findings} == ids, str(report)
    assert [outcome for outcome in report.outcomes if outcome.status == "errored"] == []
    assert any(words in finding.what for finding in report.findings), str(report)
    for finding in report.findings:
        assert re.fullmatch(r".*torch_operators\.py:\d+", finding.source)
        assert all([finding.expected, finding.got, finding.fix, finding.sample, finding.snippet])


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text, report_of):
    name, id_, *facts = text
    finding = next(finding for finding in report_of(name).findings if finding.id == id_)
    assert [finding.what, finding.expected, finding.got, finding.fix, finding.sample] == facts


@pytest.mark.parametrize("name", WRONG)
def test_snippets_run(name, report_of, capsys):
    for finding in report_of(name).findings:
        _, error = attempt(exec, compile(finding.snippet, finding.id, "exec"), {})
        raises = "raise" in finding.what or finding.id in ("OW302", "OW801")
        assert error is None or raises, f"{finding}\n{error!r}"


def test_every_id_that_numpy_cannot_have_has_a_wrong_operator_here():
    found = {id_ for _, _, ids, _, _ in WRONG.values() for id_ in ids}
    elsewhere = {"OW204", "OW1103", "OW1201", "OW1202", "OW1203", "OW1204", "OW1205", "OW1206"}
    assert found | elsewhere >= NOT_IN_NUMPY


def test_nothing_is_printed(capfd):
    for name in ("decides_on_a_value", "refuses_export", "raises_when_differentiated"):
        operator, args, _, _, level = WRONG[name]
        opcheck(operator, args, level=level, frameworks="torch", raise_exception=False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["saved", "add_to_both"])
def test_level_quick_compiles_nothing(name, monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("compiled at level quick")

    monkeypatch.setattr(torch, "compile", never)
    operator, args = RIGHT[name]
    assert opcheck(operator, args, level="quick").ok
    reports = opcheck(operator, args, raise_exception=False)
    assert {finding.id for finding in reports.findings} <= {"OW705", "OW801"}
    assert not reports.ok


@pytest.mark.parametrize("level", ["quick", "default"])
def test_an_operator_takes_no_longer_than_its_level_says(level):
    operator, args = RIGHT["matmul"]
    opcheck(operator, args, level=level)
    start = time.process_time()
    opcheck(operator, args, level=level)
    assert time.process_time() - start < {"quick": 1, "default": 5}[level]
