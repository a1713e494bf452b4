"""The contract of a reference."""

from __future__ import annotations

import pytest

from opwright.errors import RegistrationTypeError
from opwright.parse import parse_schema
from opwright.rules import reference

SCHEMA = parse_schema("ns::f(Tensor x, int k, *, Tensor y) -> Tensor")


def test_a_reference_takes_what_the_operator_takes():
    def fn(x, k, *, y):
        return x

    rule = reference.describe(SCHEMA, fn, "numpy")
    assert (rule.kind, rule.fn, rule.flavour) == ("reference", fn, "numpy")
    assert rule.source == f"{__file__}:{fn.__code__.co_firstlineno}"
    with pytest.raises(RegistrationTypeError) as raised:
        reference.describe(SCHEMA, lambda x: x, "numpy")
    assert str(raised.value).splitlines()[:2] == [
        "the reference of ns::f has another signature than the operator calls it with",
        "  expected: (x, k, *, y)",
    ]
