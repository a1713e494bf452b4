from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.portable_operators import RIGHT, WRONG
from opwright.checks.adapters.base import adapter, installed
from opwright.checks.runner import opcheck
from opwright.errors import MissingRuleError, RegistrationValueError


@pytest.mark.parametrize("name", RIGHT)
def test_right_operators_pass(name):
    assert opcheck(RIGHT[name], frameworks="numpy").ok


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operators_are_caught(name):
    operator, ids = WRONG[name]
    report = opcheck(operator, frameworks="numpy", raise_exception=False)
    assert {finding.id for finding in report.findings} == ids, str(report)


def test_fakes_give_shapes_dtypes_and_aliases(numpy_adapter):
    faked = numpy_adapter.fake(RIGHT["sort"]._record, (np.ones((3, 4), "float32"),))
    assert [(meta.shape, meta.dtype, meta.same) for meta in faked.outputs] == [
        ((3, 4), "float32", ()),
        ((3, 4), "int64", ()),
    ]
    assert faked.asked == []


def test_open_sizes_have_bounds(numpy_adapter):
    (meta,) = numpy_adapter.fake(RIGHT["nonzero"]._record, (np.ones((3, 4)),)).outputs
    assert meta.shape == (None, 2)
    assert meta.bounds[0] == (0, float("inf"))


def test_questions_about_sizes_are_named_after_the_argument():
    @ow.custom_op("adapters::asks", mutates_args=())
    def asks(xs: list[np.ndarray], y: np.ndarray) -> np.ndarray:
        return y + 1

    @asks.register_fake
    def _(xs, y):
        if xs[1].shape[0] > y.shape[0] + 2:
            raise ValueError("too many")
        return ow.empty_like(y)

    asked = adapter("numpy").fake(asks._record, ([np.ones(2), np.ones(3)], np.ones(4)), {}).asked
    assert [(one.text, one.answer) for one in asked] == [("xs[1].shape[0] > y.shape[0] + 2", False)]
    assert asked[0].source.startswith(f"{__file__}:")


def test_a_pullback_gives_what_the_backward_returns(numpy_adapter):
    record = RIGHT["product_and_sum"]._record
    x, y = np.ones(3), np.full(3, 2.0)
    pullback = numpy_adapter.vjp(record, (x, y), (True, True))
    assert [out.tolist() for out in pullback.outputs] == [[2.0] * 3, [3.0] * 3]
    assert [grad.tolist() for grad in pullback.pull([np.ones(3), None])] == [[2.0] * 3, [1.0] * 3]
    assert pullback.context.needs_input_grad == (True, True)


def test_without_a_formula_there_is_no_pullback(numpy_adapter):
    with pytest.raises(MissingRuleError):
        numpy_adapter.vjp(RIGHT["sort"]._record, (np.ones(3),), (True,))


def test_frameworks_without_an_adapter_are_refused():
    assert installed("numpy")
    assert not installed("fake")
    with pytest.raises(
        RegistrationValueError, match=r"\Athe checker cannot use fake yet\n  expected: one of numpy"
    ):
        adapter("fake")
