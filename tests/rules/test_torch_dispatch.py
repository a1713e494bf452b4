"""The dispatch rule's contract."""

from __future__ import annotations

import pytest

from opwright.errors import RegistrationTypeError
from opwright.parse import parse_schema
from opwright.rules import torch_dispatch

SCHEMA = parse_schema("ns::f(Tensor x, int k, *, Tensor y) -> Tensor")


class Mode:
    """A dispatch mode."""


def test_torch_dispatch_has_a_slot_for_each_class():
    for fn in (
        lambda mode, func, types, args, kwargs: None,
        lambda func, types, args, kwargs: None,
        lambda mode, func, types, args=(), kwargs=None: None,
    ):
        rule = torch_dispatch.describe(SCHEMA, Mode, fn, "torch")
        assert (rule.kind, rule.slot, rule.fn) == ("torch_dispatch", Mode, fn)
    with pytest.raises(RegistrationTypeError) as e:
        torch_dispatch.describe(SCHEMA, Mode(), lambda *args: None, "torch")
    assert str(e.value).startswith(
        "the dispatch rule of ns::f: torch_dispatch_class must be a class\n  got: <"
    )
    with pytest.raises(RegistrationTypeError) as e:
        torch_dispatch.describe(SCHEMA, Mode, 3, "torch")
    assert str(e.value) == "the dispatch rule of ns::f must be a function\n  got: int"
