"""The vmap rule's contract."""

from __future__ import annotations

import pytest

from opwright.errors import RegistrationTypeError
from opwright.parse import parse_schema
from opwright.rules import vmap

SCHEMA = parse_schema("ns::f(Tensor x, int k, *, Tensor y) -> Tensor")


def test_a_vmap_rule_gets_info_and_in_dims_first():
    fn = lambda info, in_dims, x, k, *, y: (x, 0)  # noqa: E731
    rule = vmap.describe(SCHEMA, fn, "array_api")
    assert (rule.kind, rule.fn) == ("vmap", fn)
    info = vmap.VmapInfo(3, "error")
    assert (info.batch_size, info.randomness) == (3, "error")
    with pytest.raises(RegistrationTypeError, match=r"expected: \(info, in_dims, x, k, \*, y\)"):
        vmap.describe(SCHEMA, lambda info, x, k, y: None, "array_api")
