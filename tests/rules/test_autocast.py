"""The autocast rule's contract."""

from __future__ import annotations

import numpy as np
import pytest

from opwright.errors import RegistrationTypeError, RegistrationValueError
from opwright.parse import parse_schema
from opwright.rules import autocast

SCHEMA = parse_schema("ns::f(Tensor x, int k, *, Tensor y) -> Tensor")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float16", "float16"),
        ("torch.bfloat16", "bfloat16"),
        (np.float32, "float32"),
        (np.dtype("f8"), "float64"),
    ],
)
def test_autocast_dtypes_of_any_framework(dtype, name):
    rule = autocast.describe(SCHEMA, "cuda", dtype, "a.py:1")
    assert (rule.kind, rule.slot, rule.dtype, rule.source) == ("autocast", "cuda", name, "a.py:1")
    assert rule.fn("anything") is None


def test_autocast_torchs_own_dtypes():
    torch = pytest.importorskip("torch", reason="its dtypes")
    assert autocast.dtype_name(torch.bfloat16) == "bfloat16"


@pytest.mark.parametrize(
    ("device", "dtype", "kind", "text"),
    [
        (
            "cuda",
            "int8",
            RegistrationValueError,
            "register_autocast of ns::f: cast_inputs must be a floating dtype\n"
            "  expected: float16, bfloat16, float32, float64\n"
            "  got: int8",
        ),
        (
            3,
            "float16",
            RegistrationTypeError,
            "register_autocast of ns::f: device_type must be a string such as 'cuda'\n  got: int",
        ),
        (
            "gpu",
            "float16",
            RegistrationValueError,
            "register_autocast of ns::f: 'gpu' is not a device type\n"
            "  expected: one of cpu, cuda, hip, hpu, ipu, lazy, maia, meta, mps, mtia, privateuseone, tpu, "
            "ve, xla, xpu",
        ),
    ],
)
def test_autocast_of_what_cannot_be(device, dtype, kind, text):
    with pytest.raises(kind) as e:
        autocast.describe(SCHEMA, device, dtype, "a.py:1")
    assert str(e.value) == text
