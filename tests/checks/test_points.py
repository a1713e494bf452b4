from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.cases import outcome_of
from checks.right_operators import OPERATORS
from opwright.checks.base import Probe
from opwright.checks.points import points
from opwright.checks.samples import given

normal = np.random.default_rng(0).standard_normal((3, 4))


def differentiable(name, **options):
    """Define ``x * 2`` with its gradient, taking what ``options`` say."""

    def decorate(fn):
        operator = ow.custom_op(f"points::{name}", fn, mutates_args=(), **options)
        operator.register_autograd(lambda ctx, grad: 2 * grad)
        return operator

    return decorate


def point_of(operator, adapter, *args):
    record = operator._record
    return next(points(Probe(record, adapter, [given(record, args, {})])))


def test_derivatives_are_taken_in_double_precision(numpy_adapter):
    point = point_of(OPERATORS["sin"], numpy_adapter, normal.astype("float32"))
    assert point.dtype == "float64"
    assert point.sample.title == "the given sample, in double precision"


def test_derivatives_are_taken_in_single_precision_where_there_is_no_other(numpy_adapter):
    @differentiable("single")
    def single(x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float32:
            raise TypeError("float32 only")
        return x * np.float32(2)

    assert point_of(single, numpy_adapter, normal.astype("float32")).dtype == "float32"
    assert outcome_of(single, "autograd", normal.astype("float32")).status == "passed"


@pytest.mark.parametrize(
    ("dtype", "status", "reason"),
    [
        (
            "float16",
            "passed",
            "derivatives are not compared in half precision, and the operator takes no other",
        ),
        ("int64", "skipped", "no argument is a floating array"),
    ],
)
def test_what_has_no_derivative_to_compare_is_said(dtype, status, reason):
    @differentiable(f"only_{dtype}")
    def only(x: np.ndarray) -> np.ndarray:
        if x.dtype != dtype:
            raise TypeError(f"{dtype} only")
        return x * x.dtype.type(2)

    outcome = outcome_of(only, "autograd", np.arange(3).astype(dtype))
    assert (outcome.status, outcome.reason) == (status, reason)  # the dtype of the gradient is compared


def test_outputs_that_are_integers_have_no_derivative():
    @differentiable("rounding")
    def rounding(x: np.ndarray) -> np.ndarray:
        return np.rint(x).astype("int64")

    assert outcome_of(rounding, "autograd", normal).reason == "no output is a floating array"


def test_what_is_declared_non_differentiable_is_skipped():
    assert (
        outcome_of(OPERATORS["rounded"], "autograd").reason == "the operator is declared non-differentiable"
    )


def test_an_output_that_does_not_depend_on_an_argument_may_have_no_gradient_for_it():
    @ow.custom_op("points::first", mutates_args=())
    def first(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * 2

    first.register_autograd(lambda ctx, grad: (2 * grad, None))
    assert outcome_of(first, "autograd", normal, normal).status == "passed"


def test_a_slope_that_cannot_be_measured_is_told():
    @differentiable("steps")
    def steps(x: np.ndarray) -> np.ndarray:
        if (np.round(x) != x).any():
            raise ValueError("whole numbers only")
        return x * 2

    outcome = outcome_of(steps, "autograd", np.round(normal))
    assert outcome.status == "passed"
    assert outcome.reason.startswith("no slope along x can be measured; ")


@pytest.mark.parametrize("array", ["numpy", "torch"])
def test_outputs_that_are_marked_are_left_out(ns, array):
    arrays = pytest.importorskip(array, reason=f"{array} is not installed")
    kind = arrays.ndarray if array == "numpy" else arrays.Tensor

    def product(x, y):
        return x * y, x * 3

    product.__annotations__ = {"x": kind, "y": kind, "return": tuple[kind, kind]}
    operator = ow.custom_op(f"{ns}::product", product, mutates_args=())
    operator.register_fake(lambda x, y: (ow.empty_like(x), ow.empty_like(x)))

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    operator.register_autograd(
        lambda ctx, grad, _: (grad * ctx.saved_tensors[1], grad * ctx.saved_tensors[0]), setup_context=setup
    )
    sample = (arrays.arange(3.0), arrays.arange(1.0, 4.0))
    report = ow.opcheck(operator, sample, raise_exception=False)
    assert report.ok, str(report)
    assert {report.outcome("autograd", name).status for name in report.frameworks} == {"passed"}


def test_outputs_that_are_all_marked_leave_nothing(ns):
    @ow.custom_op(f"{ns}::constant", mutates_args=())
    def constant(x: np.ndarray) -> np.ndarray:
        return x * 3

    constant.register_autograd(
        lambda ctx, grad: None, setup_context=lambda ctx, inputs, output: ctx.mark_non_differentiable(output)
    )
    outcome = outcome_of(constant, "autograd", np.ones(3))
    assert (outcome.status, outcome.reason) == (
        "skipped",
        "every floating output is marked as non-differentiable",
    )
