"""Dtypes of any framework in NumPy's words."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from opwright.dtypes import as_dtype, is_floating, is_inexact
from opwright.errors import ArgumentError


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float32, "float32"),
        (np.dtype("int8"), "int8"),
        ("float64", "float64"),
        ("torch.int32", "int32"),
        (float, "float64"),
        (bool, "bool"),
        (int, np.dtype(int).name),
        (complex, "complex128"),
        (np.dtype(">f4"), "float32"),
    ],
)
def test_as_dtype(dtype, name):
    assert isinstance(as_dtype(dtype), np.dtype)
    assert as_dtype(dtype).name == name


def test_dtypes_of_torch():
    torch = pytest.importorskip("torch")
    assert as_dtype(torch.float16) == np.float16
    pytest.importorskip("ml_dtypes")
    assert as_dtype(torch.bfloat16).name == "bfloat16"


def test_dtypes_of_jax():
    jnp = pytest.importorskip("jax.numpy")
    assert as_dtype(jnp.float32) == np.float32
    assert as_dtype(jnp.bfloat16).name == "bfloat16"


@pytest.mark.parametrize("dtype", ["nope", object(), None])
def test_what_is_no_dtype(dtype):
    with pytest.raises(ArgumentError, match="is not a dtype"):
        as_dtype(dtype)


def test_the_whole_text():
    with pytest.raises(ArgumentError) as caught:
        as_dtype("float13")
    assert str(caught.value) == (
        "'float13' is not a dtype\n"
        "  expected: a dtype of any framework, or its name\n"
        "  to fix: pip install ml_dtypes, for bfloat16 and its like"
    )


def test_bfloat16_without_ml_dtypes():
    script = """
import sys
sys.modules["ml_dtypes"] = None
from opwright.dtypes import as_dtype
try:
    as_dtype("bfloat16")
except TypeError as error:
    print(str(error).splitlines()[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "'bfloat16' is not a dtype"


@pytest.mark.parametrize(
    ("dtype", "floating", "inexact"),
    [
        (np.float64, True, True),
        ("bfloat16", True, True),
        (np.longdouble, True, True),
        (np.complex64, False, True),
        (np.int64, False, False),
        (np.bool_, False, False),
        ("object", False, False),
    ],
)
def test_kinds(dtype, floating, inexact):
    assert is_floating(dtype) is floating
    assert is_inexact(dtype) is inexact
