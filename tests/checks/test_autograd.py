from __future__ import annotations

import pytest

from checks.cases import assert_caught, wrong_operators


@pytest.mark.parametrize("wrong", wrong_operators(3))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)
