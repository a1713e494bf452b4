from __future__ import annotations

import contextlib
import functools
import io
import time

import numpy as np
import pytest

import opwright as ow
from checks.cases import one, outcome_of, report_of
from checks.right_operators import OPERATORS
from checks.wrong_operators import WRONG
from opwright.checks import runner
from opwright.checks.attempts import attempt
from opwright.checks.base import Law
from opwright.checks.runner import explanations, opcheck
from opwright.errors import ArgumentValueError, OpCheckError, OpwrightError
from opwright.report import Report

TORCH_NAMES = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]


@pytest.fixture(name="sin")
def fixture_sin():
    return OPERATORS["sin"]


# ------------------------------------------------------------------------------------------ false alarms


@pytest.mark.parametrize("level", ["quick", "default", "thorough"])
@pytest.mark.parametrize("name", OPERATORS)
def test_right_operators_pass(name, level):
    report = opcheck(OPERATORS[name], frameworks="numpy", level=level)
    assert report.ok, str(report)
    assert any(outcome.status == "passed" for outcome in report.outcomes)


def test_there_are_enough_right_operators_of_each_sort():
    schemas = {name: operator.schema for name, operator in OPERATORS.items()}
    assert len(schemas) >= 25
    assert any(len(schema.returns) > 1 for schema in schemas.values())
    assert any(argument.is_list for schema in schemas.values() for argument in schema.arguments)
    assert any(argument.is_optional for schema in schemas.values() for argument in schema.arguments)
    assert any(schema.mutated for schema in schemas.values())
    assert any(not any(a.has_tensors for a in schema.arguments) for schema in schemas.values())


def test_every_law_is_looked_at_by_the_right_operators():
    passed = {
        "autocast",
        "compile",
        "device",
    }  # NumPy has neither a compiler nor GPUs, and casts by rules alone
    for name in ("sin", "mul", "accumulate"):
        report = opcheck(OPERATORS[name], frameworks="numpy")
        passed |= {outcome.law for outcome in report.outcomes if outcome.status == "passed"}
    assert passed == set(runner.LAWS)


# ----------------------------------------------------------------------------- every check can fail


NOT_IN_NUMPY = {
    "OW204",  # strides are no part of what a NumPy kernel promises
    *("OW314", "OW315", "OW316", "OW317"),  # second derivatives, and a graph that knows what was saved
    "OW605",  # functions of NumPy's own follow no autocast
    *("OW705", "OW801", "OW802", "OW803", "OW804", "OW805"),  # programs
    "OW1103",  # another framework
    *("OW1201", "OW1202", "OW1203", "OW1204", "OW1205", "OW1206"),  # GPUs
}
"""What has its wrong operators in the tests of other frameworks."""


def test_every_id_has_a_wrong_operator_and_an_explanation():
    found = {id_ for wrong in WRONG for id_ in wrong.ids}
    assert found == set(explanations()) - NOT_IN_NUMPY


@pytest.mark.parametrize("text", explanations().values(), ids=explanations().keys())
def test_explanations_are_paragraphs(text):
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) > 40


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_snippets_run(wrong):
    for finding in report_of(wrong).findings:
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            _, error = attempt(exec, compile(finding.snippet, finding.id, "exec"), {})
        shows_an_error = "raise" in finding.what or finding.id in {"OW306", "OW903"}
        assert error is None or shows_an_error or isinstance(error, OpwrightError), f"{finding}\n{error!r}"


# -------------------------------------------------------------------------------------------------- opcheck


def test_returns_a_mapping_with_torchs_names(sin):
    report = opcheck(sin, (np.ones(3),), frameworks="numpy")
    assert isinstance(report, Report)
    assert report == dict.fromkeys(TORCH_NAMES, "SUCCESS")
    assert list(report) == TORCH_NAMES
    assert {outcome.law for outcome in report.outcomes} == set(runner.LAWS)


def test_prints_nothing(sin, capsys):
    opcheck(sin, (np.ones(3),), frameworks="numpy")
    report_of(one("wrong_factor"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "laws"),
    [
        ("test_schema", ["call", "schema"]),
        ("test_autograd_registration", ["call", "autograd"]),
        ("test_faketensor", ["call", "fake"]),
        ("test_aot_dispatch_dynamic", ["call", "compile"]),
        ("layout", ["call", "layout"]),
        (["fake", "test_schema"], ["call", "schema", "fake"]),
    ],
)
def test_names_choose_laws(sin, name, laws):
    report = opcheck(sin, (np.ones(3),), test_utils=name, frameworks="numpy")
    assert [outcome.law for outcome in report.outcomes] == laws
    assert list(report) == ([name] if isinstance(name, str) else name)


def test_raises_with_the_report():
    with pytest.raises(OpCheckError) as raised:
        report_of(one("wrong_factor"), raise_exception=True)
    report = raised.value.report
    assert isinstance(raised.value, AssertionError)
    assert [finding.id for finding in report.findings] == ["OW301"]
    assert str(raised.value) == f"wrong::wrong_factor: 1 finding\n\n{report.findings[0]}"


def test_reports_without_raising_where_told_so():
    report = report_of(one("wrong_factor"))
    assert isinstance(report["test_autograd_registration"], OpCheckError)
    assert [report[name] for name in TORCH_NAMES if name != "test_autograd_registration"] == ["SUCCESS"] * 3


def test_a_law_that_is_not_asked_for_cannot_fail():
    assert report_of(one("wrong_factor"), test_utils="schema") == {"schema": "SUCCESS"}


def test_an_operator_that_raises_fails_whatever_is_asked_for():
    report = report_of(one("always_raises"), test_utils="vmap")
    assert str(report["vmap"]).splitlines()[2].startswith("OW001 wrong::always_raises")
    assert report.outcome("vmap", "numpy").reason == "the operator raises on every sample"


def test_an_alias_counts_where_the_law_schema_is_not_asked_for():
    report = report_of(one("returns_its_argument"), test_utils="fake")
    assert [finding.id for finding in report.findings] == ["OW001"]


def test_samples_are_used_without_arguments(sin):
    assert opcheck(sin, frameworks="numpy").samples == 3
    assert opcheck(sin, (np.ones(3),), frameworks="numpy").samples == 1


def test_keyword_arguments_are_given_as_kwargs():
    report = opcheck(OPERATORS["weighted"], (np.ones(3),), {"weight": np.ones(3)}, frameworks="numpy")
    assert report.ok


def test_arrays_of_the_caller_are_not_changed():
    x = np.ones((3, 4))
    opcheck(OPERATORS["scale_"], (x, 2.0), frameworks="numpy")
    report_of(one("adds_in_place"))
    assert (x == 1).all()


def test_tolerances_decide():
    assert report_of(one("wrong_factor"), test_utils="autograd", atol=10.0).ok
    assert not report_of(one("wrong_factor"), test_utils="autograd", rtol=1e-3).ok


def test_an_operator_without_arguments_needs_no_samples():
    @ow.custom_op("runner::constant", mutates_args=(), flavour="numpy")
    def constant() -> ow.Array:
        return np.ones(3)

    assert opcheck(constant, frameworks="numpy").samples == 1


def test_one_operator_takes_less_than_a_second(sin):
    opcheck(sin, frameworks="numpy")
    start = time.process_time()
    opcheck(sin, frameworks="numpy")
    assert time.process_time() - start < 1


# ------------------------------------------------------------------------------------------------ bad input


def plain(x):
    return x


@pytest.mark.parametrize(
    ("op", "got", "fix"),
    [
        (plain, f"{plain!r} of type function", "pass what custom_op returns"),
        ("right::sin", "'right::sin' of type str", "pass what custom_op returns"),
        (ow.ops.right.sin, "a packet of overloads", "pass one overload of it, such as its .default"),
    ],
    ids=["function", "name", "packet"],
)
def test_other_than_one_operator_is_a_value_error(op, got, fix):
    with pytest.raises(ValueError) as raised:
        opcheck(op, (np.ones(3),))
    assert str(raised.value) == (
        f"opcheck takes one operator\n  expected: an operator or an overload\n  got: {got}\n  to fix: {fix}"
    )


@pytest.mark.parametrize("names", ["nope", ["schema", "nope"]])
def test_an_unknown_name_is_a_value_error(sin, names):
    with pytest.raises(ValueError) as raised:
        opcheck(sin, (np.ones(3),), test_utils=names)
    assert str(raised.value) == (
        "opcheck knows no 'nope'\n  expected: one or several of "
        "call, schema, fake, autograd, jvp, vmap, autocast, functionalization, compile, layout, determinism, "
        "agreement, device, "
        "test_schema, test_autograd_registration, test_faketensor, test_aot_dispatch_dynamic, "
        "test_aot_dispatch_static"
    )


def test_no_name_is_a_value_error(sin):
    with pytest.raises(ArgumentValueError, match=r"\Aopcheck was asked for no law\n"):
        opcheck(sin, (np.ones(3),), test_utils=())


def test_an_unknown_level_is_a_value_error(sin):
    with pytest.raises(ValueError) as raised:
        opcheck(sin, (np.ones(3),), level="deep")
    assert str(raised.value) == "unknown level 'deep'\n  expected: quick, default, thorough"


def test_an_unknown_framework_is_a_value_error(sin):
    with pytest.raises(ValueError, match=r"\A'nope' is not a framework\n"):
        opcheck(sin, (np.ones(3),), frameworks="nope")


def test_nothing_to_call_with_is_a_value_error():
    @ow.custom_op("runner::no_samples", mutates_args=())
    def no_samples(x: np.ndarray) -> np.ndarray:
        return x + 1

    with pytest.raises(ValueError) as raised:
        opcheck(no_samples)
    assert str(raised.value) == (
        "opcheck of runner::no_samples: there is nothing to call it with\n"
        "  expected: arguments, or samples that are registered\n"
        "  to fix: pass them, opcheck(op, args, kwargs), or declare samples with @op.register_samples"
    )


def test_arguments_that_do_not_fit_are_a_type_error(sin):
    with pytest.raises(TypeError) as raised:
        opcheck(sin, (np.ones(3), 2, 3))
    assert str(raised.value) == (
        "opcheck of right::sin: a sample does not fit the schema\n"
        "  expected: right::sin(Tensor x) -> Tensor\n"
        "  got: too many positional arguments\n"
        "  to fix: give the arguments of one call: a tuple, or a tuple and a dict of keyword arguments"
    )


# ------------------------------------------------------------------------------------------- outcomes


def test_a_law_that_raises_has_errored(sin, monkeypatch):
    def broken(probe):
        probe.compared()
        raise RuntimeError("a fault in the checker")
        yield

    monkeypatch.setattr("opwright.checks.vmap.CHECK", Law("vmap", broken, {}))
    outcome = outcome_of(sin, "vmap")
    assert outcome.status == "errored"
    assert outcome.reason.startswith("the checker itself failed\nTraceback")
    assert outcome.reason.endswith("RuntimeError: a fault in the checker\n")
    with pytest.raises(OpCheckError, match="a fault in the checker"):
        opcheck(sin, frameworks="numpy", test_utils="vmap")


def test_a_law_that_compares_nothing_is_skipped(sin, monkeypatch):
    monkeypatch.setattr("opwright.checks.vmap.CHECK", Law("vmap", lambda probe: iter(()), {}))
    outcome = outcome_of(sin, "vmap")
    assert (outcome.status, outcome.reason) == ("skipped", "nothing was compared")


def test_an_operator_without_a_kernel_for_numpy_is_skipped():
    lib = ow.Library("runner", "FRAGMENT")
    lib.define("no_kernel(Tensor x) -> Tensor")
    report = opcheck(ow.ops.runner.no_kernel.default, (np.ones(3),), frameworks="numpy")
    assert {outcome.status for outcome in report.outcomes} == {"skipped"}
    assert report.outcomes[0].reason == "runner::no_kernel has no kernel for numpy arrays on cpu"


def test_findings_that_say_the_same_are_one():
    finding = next(f for f in report_of(one("argument_from_the_fake")).findings)
    assert finding.more > 0
    assert f"(and {finding.more} more)" in str(finding)


def test_a_missing_rule_is_skipped_with_its_reason():
    @ow.custom_op("runner::bare", mutates_args=())
    def bare(x: np.ndarray) -> np.ndarray:
        return x + 1

    report = opcheck(bare, (np.ones(3),), frameworks="numpy")
    assert {outcome.law: outcome.reason for outcome in report.outcomes if outcome.status == "skipped"} == {
        "fake": "no fake is registered",
        "autograd": "no autograd formula is registered, so differentiating raises",
        "jvp": "no jvp rule is registered, and no backward that tangents could come from",
        "vmap": "no vmap rule is registered, so the operator is called in a loop",
        "autocast": "no autocast rule is registered for cpu, so nothing is cast",
        "functionalization": "the operator mutates no argument",
        "compile": "no fake is registered",
        "device": "GPUs are looked at with torch's arrays",
    }


def test_a_random_operator_is_not_compared_with_itself():
    report = opcheck(OPERATORS["dropout"], frameworks="numpy")
    reason = "the operator is declared random (tag nondeterministic_seeded)"
    assert report.outcome("determinism", "numpy").reason == reason
    assert report.outcome("layout", "numpy").reason == reason


def test_a_law_of_another_distribution_is_found(sin, monkeypatch):
    def never_red(probe):
        probe.compared()
        yield probe.finding(
            "XX1", "it is red", sample=probe.samples[0], expected="blue", got="red", fix="paint it"
        )

    class Entry:
        name = "colour"

        @staticmethod
        def load():
            return Law("colour", never_red, {"XX1": "Operators are blue."})

    monkeypatch.setattr(runner, "entry_points", lambda group: [Entry] if group == "opwright.checks" else [])
    monkeypatch.setattr(runner, "_others", functools.cache(runner._others.__wrapped__))
    report = opcheck(sin, (np.ones(3),), frameworks="numpy", raise_exception=False)
    assert [finding.id for finding in report.findings] == ["XX1"]
    assert isinstance(report["test_aot_dispatch_dynamic"], OpCheckError)
    assert explanations()["XX1"] == "Operators are blue."
