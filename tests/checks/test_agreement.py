from __future__ import annotations

import re

import numpy as np
import pytest

import opwright as ow
from checks.cases import assert_caught, facts_of, outcome_of, wrong_operators
from opwright.checks.agreement import EPSILON, PRECISION, SAME
from opwright.checks.runner import opcheck

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "twice_for_other_devices",
        "OW1101",
        "the output of the kernel for any device (numpy) differs",
        "3.91200014 at index (1, 2), as the kernel for cpu (numpy, SOURCE) gives",
        "2.60800009; 12 of 12 elements differ, from the kernel for any device (numpy, SOURCE)",
        "make the kernels compute the same",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "other_than_its_reference",
        "OW1102",
        "the output differs from the reference",
        "3.91200014 at index (1, 2), as the reference at SOURCE gives",
        "2.60800009; 12 of 12 elements differ",
        "correct the kernel, or the reference",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "other_with_a_flag",
        "OW1102",
        "the output differs from the reference",
        "3 at index (0, 2), as the reference at SOURCE gives",
        "2; 7 of 12 elements differ",
        "correct the kernel, or the reference",
        "the given sample, flag=True: x float64 (3, 4), flag=True",
    ),
    (
        "coarse_in_single",
        "OW1104",
        "the output in float32 is far from that in double precision",
        "1.30400002 at index (1, 2), within 0.0001 of the largest value",
        "1.30530405; 9 of 12 elements differ",
        "compute in higher precision inside the kernel, or refuse float32",
        "the given sample, in float32: x float32 (3, 4)",
    ),
    (
        "sums_in_half",
        "OW1104",
        "the output in float16 is far from that in double precision",
        "5000 at index (0,), within 0.031 of the largest value",
        "4824; 2 of 2 elements differ",
        "compute in higher precision inside the kernel, or refuse float16",
        "the given sample, in float16: x float16 (2, 500)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(11))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    known = [re.sub(r"\S*wrong_operators\.py:\d+", "SOURCE", fact) for fact in facts_of(name)]
    assert known == facts


def test_frameworks_are_compared_with_the_first():
    pytest.importorskip("torch", reason="PyTorch is not installed")

    @ow.custom_op("agreement::length_of_the_class", mutates_args=(), flavour="array_api")
    def length_of_the_class(x: ow.Array) -> ow.Array:
        return x * len(type(x).__name__)

    length_of_the_class.register_fake(lambda x: ow.empty_like(x))
    report = opcheck(
        length_of_the_class, (np.ones(3),), frameworks=["torch", "numpy"], test_utils="agreement",
        raise_exception=False,
    )  # fmt: skip
    (finding,) = report.findings
    assert report.outcome("agreement", "numpy").status != "failed"
    assert [finding.id, finding.framework, finding.what, finding.expected, finding.got, finding.fix] == [
        "OW1103",
        "torch",
        "the output differs from that of numpy arrays",
        "7 at index (0,), as with numpy arrays",
        "6; 3 of 3 elements differ",
        "make kernels and rules for the frameworks agree",
    ]


def test_the_framework_of_the_definition_comes_first():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.__annotations__ = dict.fromkeys(("x", "return"), torch.Tensor)
    operator = ow.custom_op("agreement::double", double, mutates_args=())
    operator.register_kernel("cpu", lambda x: x * 3, flavour="numpy")
    report = opcheck(
        operator, (np.ones(3),), frameworks=["numpy", "torch"], test_utils="agreement", raise_exception=False
    )
    assert {(finding.id, finding.framework) for finding in report.findings} >= {("OW1103", "numpy")}


def test_a_reference_that_agrees_is_compared(ns):
    def double(x: np.ndarray) -> np.ndarray:
        return x * 2

    operator = ow.custom_op(f"{ns}::double", double, mutates_args=())
    before = outcome_of(operator, "agreement", np.ones(3), level="quick")
    operator.register_reference(lambda x: x + x)
    after = outcome_of(operator, "agreement", np.ones(3), level="quick")
    assert (before.status, after.status, after.comparisons) == ("skipped", "passed", 1)


def test_a_reference_that_raises_is_left_out(ns):
    def double(x: np.ndarray) -> np.ndarray:
        return x * 2

    def nothing(x):
        raise ValueError("not thought of")

    operator = ow.custom_op(f"{ns}::double", double, mutates_args=())
    operator.register_reference(nothing)
    outcome = outcome_of(operator, "agreement", np.ones(3), level="quick")
    assert (outcome.status, outcome.reason) == ("skipped", "the reference raises ValueError on a sample")


def test_a_reference_of_what_mutates_mutates_too(ns):
    def scale(x: np.ndarray) -> None:
        x *= 2

    operator = ow.custom_op(f"{ns}::scale", scale, mutates_args=("x",))
    operator.register_reference(lambda x: x.__imul__(3))
    report = opcheck(operator, (np.ones(3),), frameworks="numpy", raise_exception=False)
    assert {finding.id for finding in report.findings} == {"OW1102"}


def test_rounding_that_the_arguments_explain_is_no_finding(ns):
    def ill_conditioned(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.tan(x * x.dtype.type(1000)))

    operator = ow.custom_op(f"{ns}::tan", ill_conditioned, mutates_args=())
    assert outcome_of(operator, "agreement", np.array([0.5, 1.7, 2.9])).status == "passed"


def test_tolerances_are_stated_for_each_dtype():
    assert set(PRECISION) == set(EPSILON)
    assert set(PRECISION) < set(SAME)


def _raises(x: np.ndarray) -> np.ndarray:
    raise ValueError("no luck")


def test_a_kernel_that_no_call_on_this_device_runs_may_raise(ns):
    operator = ow.custom_op(f"{ns}::f", _raises, mutates_args=())
    operator.register_kernel("cpu", lambda x: x * 2)
    outcome = outcome_of(operator, "agreement", np.ones(3), level="quick")
    assert (outcome.status, outcome.reason) == (
        "passed",
        "the kernel for any device (numpy) does not run on cpu",
    )


def test_a_kernel_that_another_framework_runs_may_not_raise(ns):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def raises(x):
        raise ValueError("no luck")

    def double(x: np.ndarray) -> np.ndarray:
        return x * 2

    operator = ow.custom_op(f"{ns}::double", double, mutates_args=())
    operator.register_kernel("cpu", raises, flavour="torch")
    report = opcheck(
        operator, (np.ones(3),), frameworks="torch", test_utils="agreement", raise_exception=False
    )
    assert torch is not None
    assert [finding.id for finding in report.findings] == ["OW001"]
    operator.register_kernel("cpu", double)
    report = opcheck(
        operator, (np.ones(3),), frameworks="numpy", test_utils="agreement", raise_exception=False
    )
    (finding,) = report.findings
    line = raises.__code__.co_firstlineno
    assert [finding.id, finding.what, finding.source] == [
        "OW1101",
        "the kernel for cpu (torch) raises",
        f"{__file__}:{line}",
    ]
