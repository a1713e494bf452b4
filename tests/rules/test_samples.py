"""The contract of samples."""

from __future__ import annotations

import pytest

from opwright.errors import RegistrationTypeError
from opwright.parse import parse_schema
from opwright.rules import samples

SCHEMA = parse_schema("ns::f(Tensor x, int k, *, Tensor y) -> Tensor")


def test_samples_take_nothing():
    rule = samples.describe(SCHEMA, list, "array_api")
    assert (rule.kind, rule.fn) == ("samples", list)
    with pytest.raises(RegistrationTypeError, match=r"the samples of ns::f has another signature"):
        samples.describe(SCHEMA, lambda x: [], "array_api")
