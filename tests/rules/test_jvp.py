"""The jvp rule's contract."""

from __future__ import annotations

import pytest

from opwright.errors import RegistrationTypeError
from opwright.parse import parse_schema
from opwright.rules import jvp

SCHEMA = parse_schema("ns::f(Tensor x, int k, *, Tensor y) -> Tensor")


def test_a_jvp_gets_a_tangent_for_each_argument():
    fn = lambda ctx, dx, dk, dy: dx  # noqa: E731
    setup = lambda ctx, inputs, output, keyword_only_inputs: None  # noqa: E731
    rule = jvp.describe(SCHEMA, fn, setup, "array_api")
    assert (rule.kind, rule.fn, rule.setup_context) == ("jvp", fn, setup)
    with pytest.raises(RegistrationTypeError, match=r"expected: \(ctx, tangent_x, tangent_k, tangent_y\)"):
        jvp.describe(SCHEMA, lambda ctx, dx: dx, None, "array_api")
    with pytest.raises(RegistrationTypeError, match=r"setup_context of ns::f has another signature"):
        jvp.describe(SCHEMA, fn, lambda ctx: None, "array_api")
