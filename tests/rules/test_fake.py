"""The fake rule's contract."""

from __future__ import annotations

import pytest

from opwright.errors import RegistrationTypeError
from opwright.parse import parse_schema
from opwright.rules import fake

SCHEMA = parse_schema("ns::f(Tensor x, int k, *, Tensor y) -> Tensor")


def test_a_fake_has_the_operators_parameters():
    fn = lambda x, k, *, y: x  # noqa: E731
    rule = fake.describe(SCHEMA, fn, "numpy")
    assert (rule.kind, rule.fn, rule.flavour, rule.slot) == ("fake", fn, "numpy", None)
    with pytest.raises(RegistrationTypeError, match=r"the fake of ns::f has another signature"):
        fake.describe(SCHEMA, lambda x, k, y2: x, "numpy")
