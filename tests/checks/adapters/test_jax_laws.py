"""The laws on operators of JAX's arrays: right ones pass, wrong ones fail the law that they break."""

from __future__ import annotations

import re

import numpy as np
import pytest

from checks.jax_operators import RIGHT, WRONG, jax
from checks.right_operators import OPERATORS
from opwright.checks.attempts import attempt
from opwright.checks.runner import opcheck

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
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
        "stops_gradients",
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
        "decides_on_a_value",
        "OW801",
        "the kernel cannot be compiled by jax.jit",
        "a program that does what the operator does",
        "a value is asked for, and there is none while tracing (ConcretizationTypeError)",
        "keep the kernel free of decisions on values: no int(), float() or if on an array, no NumPy",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "twice_or_thrice",
        "OW802",
        "the output differs under jax.jit",
        "2.60800009 at index (1, 2), as eagerly",
        "3.91200014; 12 of 12 elements differ",
        "let the same code run eagerly and compiled: one kernel, and rules that depend on arguments alone",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "twice_in_a_batch",
        "OW802",
        "the output under vmap differs under jax.jit",
        "2.60800009 at index (0, 1, 2), as eagerly",
        "5.21600018; 24 of 24 elements differ",
        "let the vmap rule depend on its arguments alone",
        "the given sample, a batch of two: x float64 (2, 3, 4)",
    ),
]


@pytest.fixture(name="report_of", scope="module")
def fixture_report_of():
    reports = {}

    def report_of(name):
        if name not in reports:
            reports[name] = opcheck(*WRONG[name][:2], raise_exception=False)
        return reports[name]

    return report_of


@pytest.mark.parametrize("level", ["quick", "default", "thorough"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_operators_pass(name, level):
    operator, args = RIGHT[name]
    report = opcheck(operator, args, level=level)
    assert report.ok, str(report)
    assert report.frameworks == ["jax"]
    assert (report.outcome("compile", "jax").status == "passed") == (level != "quick")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operators_are_caught_and_the_cause_is_named(name, report_of):
    report = report_of(name)
    _, _, ids, words = WRONG[name]
    assert {finding.id for finding in report.findings} == ids, str(report)
    assert [outcome for outcome in report.outcomes if outcome.status == "errored"] == []
    assert any(words in finding.what for finding in report.findings), str(report)
    for finding in report.findings:
        assert re.fullmatch(r".*jax_operators\.py:\d+", finding.source)
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


@pytest.mark.parametrize("name", ["square_complex", "magnitude", "fourier"])
def test_complex_gradients_follow_torch(name):
    outcome = opcheck(
        OPERATORS[name], frameworks="jax", test_utils="autograd", raise_exception=False
    ).outcome("autograd", "jax")
    assert outcome.status == "passed", str(outcome)


@pytest.mark.parametrize("before", [False, True])
def test_64_bit_types_are_left_as_they_were(before):
    was = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", before)
    try:
        for name in ("decides_on_a_value", "raises_when_differentiated"):
            opcheck(*WRONG[name][:2], level="thorough", raise_exception=False)
            assert jax.config.jax_enable_x64 == before
    finally:
        jax.config.update("jax_enable_x64", was)


def test_mutation_is_seen_in_new_values():
    report = opcheck(OPERATORS["scale_"], frameworks="jax")
    assert report.outcome("schema", "jax").status == "passed"
    functionalization = report.outcome("functionalization", "jax")
    assert (functionalization.status, functionalization.comparisons) == ("passed", 1)


def test_a_mutation_that_never_happens_is_found_in_jax_too():
    import opwright as ow

    @ow.custom_op("jax_laws::idle", mutates_args=("x",))
    def idle(x: np.ndarray) -> np.ndarray:
        return x * 2

    idle.register_fake(lambda x: ow.empty_like(x))
    report = opcheck(idle, (np.ones(3),), frameworks="jax", test_utils="schema", raise_exception=False)
    assert [finding.id for finding in report.findings] == ["OW103"]
