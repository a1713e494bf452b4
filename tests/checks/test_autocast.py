from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.cases import assert_caught, facts_of, outcome_of, wrong_operators
from checks.right_operators import OPERATORS
from opwright.checks.runner import opcheck

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "no_half",
        "OW601",
        "the operator raises under autocast, which casts to float16",
        "a result, computed in float16",
        "TypeError: array type float16 is unsupported in linalg",
        "let the kernel take float16, or choose another dtype in register_autocast",
        "the given sample, in float32: x float32 (3, 3)",
    ),
    (
        "overflows_in_half",
        "OW602",
        "the output under autocast is far from float32's",
        "153037.453 at index (1, 2), within 0.02 of the largest value",
        "inf; 3 of 12 elements differ",
        "compute in float32 inside the kernel, or choose another dtype in register_autocast",
        "the given sample, in float32: x float32 (3, 4)",
    ),
    (
        "half_forgotten_in_the_fake",
        "OW603",
        "fake and kernel disagree on the dtype of the output for inputs of autocast's float16",
        "float16, as the kernel returns",
        "float32",
        "correct the fake, or the kernel",
        "the given sample, in float32, in float16: x float16 (3, 4)",
    ),
    (
        "no_half_in_the_backward",
        "OW604",
        "the gradient raises under autocast, which casts to float16",
        "a gradient, computed in float16",
        "TypeError: array type float16 is unsupported in linalg",
        "let the backward take float16",
        "the given sample, in float32: x float32 (3, 4)",
    ),
    (
        "gradient_overflows_in_half",
        "OW604",
        "the gradient for x under autocast is far from float32's",
        "0.812547743 at index (0, 0), within 0.02 of the largest value",
        "inf; 7 of 12 elements differ",
        "compute in float32 inside the backward, or choose another dtype in register_autocast",
        "the given sample, in float32: x float32 (3, 4)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(6))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    assert facts_of(name) == facts


def test_without_a_rule_nothing_is_cast():
    outcome = outcome_of(OPERATORS["sin"], "autocast", np.ones(3))
    assert (outcome.status, outcome.reason) == (
        "skipped",
        "no autocast rule is registered for cpu, so nothing is cast",
    )


@pytest.mark.parametrize(
    ("dtype", "args", "status", "reason"),
    [
        ("float16", (np.ones(3),), "passed", ""),
        ("float32", (np.arange(3),), "skipped", "no argument is a real floating array"),
        ("float64", (np.ones(3, "float32"),), "passed", ""),
    ],
)
def test_right_rules_pass(ns, dtype, args, status, reason):
    operator = ow.custom_op(f"{ns}::double", _double, mutates_args=())
    operator.register_autocast("cpu", dtype)
    outcome = outcome_of(operator, "autocast", *args)
    assert (outcome.status, outcome.reason) == (status, reason)


def test_gradients_under_autocast_are_compared(ns):
    operator = ow.custom_op(f"{ns}::double", _double, mutates_args=())
    operator.register_autocast("cpu", "float16")
    before = outcome_of(operator, "autocast", np.ones(3)).comparisons
    operator.register_autograd(lambda ctx, grad: grad * 2)
    assert outcome_of(operator, "autocast", np.ones(3)).comparisons > before


def test_a_mutated_argument_that_would_be_cast_is_refused(ns):
    operator = ow.custom_op(f"{ns}::scale", _scale, mutates_args=("x",))
    operator.register_autocast("cpu", "float16")
    outcome = outcome_of(operator, "autocast", np.ones(3))
    assert outcome.reason == f"{ns}::scale mutates argument x, which autocast would cast"


def _double(x: np.ndarray) -> np.ndarray:
    return x * 2


def _scale(x: np.ndarray) -> None:
    x *= 2


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_rule_for_a_gpu_is_looked_at_there(ns, framework):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    operator = ow.custom_op(f"{ns}::double", _double, mutates_args=())
    operator.register_autocast("cuda", "float16")
    report = opcheck(operator, (np.ones(3),), frameworks=framework, test_utils="autocast")
    reasons = {
        "numpy": "no autocast rule is registered for cpu, so nothing is cast; "
        "autocast on cuda was not looked at: GPUs are looked at with torch's arrays",
        "torch": "autocast on cuda was not looked at: needs a CUDA device, and torch finds none",
    }
    if framework == "numpy" or not torch.cuda.is_available():
        assert report.outcome("autocast", framework).reason == reasons[framework]


@pytest.mark.cuda
@pytest.mark.parametrize(("factor", "ids"), [(2.0, []), (3e4, ["OW602"])])
def test_rules_for_a_gpu_are_held_against_it(ns, factor, ids):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def scale(x):
        return x * factor * factor

    scale.__annotations__ = dict.fromkeys(("x", "return"), torch.Tensor)
    operator = ow.custom_op(f"{ns}::scale", scale, mutates_args=())
    operator.register_autocast("cuda", torch.float16)
    report = opcheck(operator, (torch.ones(3),), test_utils="autocast", raise_exception=False)
    assert [finding.id for finding in report.findings] == ids
    assert all("with torch.autocast('cuda', " in finding.snippet for finding in report.findings)
