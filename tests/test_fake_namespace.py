"""The array API's functions on metadata: as NumPy's give it, with symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright import fake_namespace as xp
from opwright.errors import ArgumentValueError, FakeError

x = ow.FakeArray(("n", 1, 3), "float32", "cuda:0")


@pytest.mark.parametrize(
    ("fake", "text"),
    [
        (xp.empty((2, "n")), "FakeArray((2, n), float64, cpu)"),
        (xp.zeros(3, dtype=xp.int8, device="cuda"), "FakeArray((3,), int8, cuda)"),
        (xp.ones((), dtype=None, device=None), "FakeArray((), float64, cpu)"),
        (xp.full((2,), 1), f"FakeArray((2,), {np.dtype(int).name}, cpu)"),
        (xp.full((2,), 1, dtype="float32"), "FakeArray((2,), float32, cpu)"),
        (xp.empty_like(x), "FakeArray((n, 1, 3), float32, cuda:0)"),
        (xp.zeros_like(x, dtype=xp.int64), "FakeArray((n, 1, 3), int64, cuda:0)"),
        (xp.ones_like(x), "FakeArray((n, 1, 3), float32, cuda:0)"),
        (xp.full_like(x, 2.0, device="cpu"), "FakeArray((n, 1, 3), float32, cpu)"),
        (xp.asarray(x), "FakeArray((n, 1, 3), float32, cuda:0)"),
        (xp.asarray(x, dtype=xp.bool), "FakeArray((n, 1, 3), bool, cuda:0)"),
        (xp.astype(x, xp.complex64), "FakeArray((n, 1, 3), complex64, cuda:0)"),
        (xp.broadcast_to(x, ("n", 4, 3)), "FakeArray((n, 4, 3), float32, cuda:0)"),
        (xp.broadcast_arrays(x, xp.empty((5, 1)))[1], "FakeArray((n, 5, 3), float64, cpu)"),
        (xp.reshape(x, (-1,)), "FakeArray((3*n,), float32, cuda:0)"),
        (xp.reshape(x, (3, -1)), "FakeArray((3, n), float32, cuda:0)"),
        (xp.reshape(xp.empty((2, 6)), -1), "FakeArray((12,), float64, cpu)"),
        (xp.reshape(x, ("n", 3)), "FakeArray((n, 3), float32, cuda:0)"),
        (xp.permute_dims(x, (2, 0, 1)), "FakeArray((3, n, 1), float32, cuda:0)"),
        (xp.matrix_transpose(x), "FakeArray((n, 3, 1), float32, cuda:0)"),
        (xp.moveaxis(x, 0, -1), "FakeArray((1, 3, n), float32, cuda:0)"),
        (xp.moveaxis(x, -1, 0), "FakeArray((3, n, 1), float32, cuda:0)"),
        (xp.expand_dims(x, axis=-1), "FakeArray((n, 1, 3, 1), float32, cuda:0)"),
        (xp.expand_dims(x), "FakeArray((1, n, 1, 3), float32, cuda:0)"),
        (xp.squeeze(x, 1), "FakeArray((n, 3), float32, cuda:0)"),
        (xp.squeeze(xp.empty((1, 2, 1)), (0, -1)), "FakeArray((2,), float64, cpu)"),
        (xp.concat([x, x]), "FakeArray((2*n, 1, 3), float32, cuda:0)"),
        (xp.concat([x, xp.empty(("n", 4, 3))], axis=1), "FakeArray((n, 5, 3), float64, cuda:0)"),
        (xp.stack([x, x], axis=-1), "FakeArray((n, 1, 3, 2), float32, cuda:0)"),
    ],
)
def test_metadata(fake, text):
    assert repr(fake) == text


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("bool", "bool"),
        ("signed integer", "int8"),
        ("unsigned integer", "uint8"),
        ("integral", "int8 uint8"),
        ("real floating", "float32 bfloat16"),
        ("complex floating", "complex64"),
        ("numeric", "int8 uint8 float32 bfloat16 complex64"),
    ],
)
def test_isdtype(kind, names):
    pytest.importorskip("ml_dtypes")
    every = ["bool", "int8", "uint8", "float32", "bfloat16", "complex64"]
    assert [name for name in every if xp.isdtype(getattr(xp, name), kind)] == names.split()


def test_isdtype_of_several_and_of_a_dtype():
    assert xp.isdtype(xp.float32, ("integral", "real floating"))
    assert xp.isdtype(xp.float32, xp.float32)
    assert not xp.isdtype(xp.float32, xp.float64)


def test_result_type_and_broadcast_shapes():
    assert xp.result_type(x, xp.float64) == np.float64
    assert str(xp.broadcast_shapes(x.shape, (4, 1))) == "(n, 4, 3)"


def test_what_needs_data():
    with pytest.raises(AttributeError) as caught:
        xp.sin(x)
    assert str(caught.value).startswith(
        "a FakeArray has no data, so its namespace has no 'sin'\n  expected: shape, ndim, dtype"
    )
    assert str(caught.value).endswith("stack, zeros, zeros_like")


@pytest.mark.parametrize("name", xp.__all__)
def test_what_it_lists_is_there(name):
    assert callable(getattr(xp, name))


def test_shapes_that_do_not_fit():
    with pytest.raises(ArgumentValueError) as caught:
        xp.reshape(xp.empty((2, 3)), (5,))
    assert str(caught.value) == "FakeArray((2, 3), float64, cpu) cannot be reshaped to (5,)"
    with pytest.raises(ArgumentValueError, match=r"^shapes do not broadcast"):
        xp.broadcast_to(xp.empty((2, 3)), (2, 4))
    with pytest.raises(FakeError, match=r"^n == m needs"):
        xp.broadcast_arrays(xp.empty("n"), xp.empty("m"))
