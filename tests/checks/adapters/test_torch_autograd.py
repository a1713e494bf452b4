from __future__ import annotations

import pytest

from checks.torch_operators import RIGHT, WRONG, torch
from opwright.checks.adapters.base import adapter

X = torch.tensor([1.0, 2.0], dtype=torch.float64)
ONES = torch.ones(2, dtype=torch.float64)


@pytest.fixture(name="torch_adapter")
def fixture_torch_adapter():
    return adapter("torch")


def test_gradients_are_differentiated(torch_adapter):
    record = RIGHT["saved"][0]._record
    by_argument, by_weight = torch_adapter.second(record, (X.clone(),), (True,), [ONES], [ONES])
    assert by_argument[0].tolist() == [2.0, 2.0]  # of sum(2 x w)
    assert by_weight[0].tolist() == [2.0, 4.0]


def test_gradients_that_are_constant_have_no_derivative(torch_adapter):
    record = WRONG["closes_over_a_parameter"][0]._record
    by_argument, by_weight = torch_adapter.second(record, (X.clone(),), (True,), [ONES], [ONES])
    assert by_argument == [None]
    assert by_weight[0].tolist() == [2.0, 2.0]


def test_torch_notices_that_what_was_saved_has_changed(torch_adapter):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch_adapter.pulled_after(RIGHT["saved"][0]._record, (X.clone(),), (True,), [ONES], (0, None))


def test_torch_cannot_notice_for_an_attribute(torch_adapter):
    record = WRONG["keeps_its_input_as_an_attribute"][0]._record
    grads = torch_adapter.pulled_after(record, (X.clone(),), (True,), [ONES], (0, None))
    assert grads[0].tolist() == [4.0, 6.0]


def test_outputs_without_a_gradient_are_left_out(torch_adapter):
    pullback = torch_adapter.vjp(RIGHT["saved"][0]._record, (X.clone(),), (False,))
    assert pullback.pull([ONES]) == [None]
