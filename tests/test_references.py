from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.errors import RegistrationTypeError


@pytest.fixture(name="op")
def fixture_op(ns):
    def double(x: np.ndarray) -> np.ndarray:
        return x * 2

    return ow.custom_op(f"{ns}::double", double, mutates_args=())


def plain(x):
    return x + x


def annotated(x: ow.Array) -> ow.Array:
    return x + x


def test_as_a_decorator_the_function_is_returned(op):
    assert op.register_reference(plain) is not plain
    assert ow.register_reference(op.name)(plain) is plain
    assert op._record.rule("reference").fn is plain


def test_a_handle_undoes_it(op):
    handle = ow.register_reference(op, plain)
    assert op._record.rule("reference").fn is plain
    handle.destroy()
    assert op._record.rule("reference") is None


@pytest.mark.parametrize(
    ("fn", "flavour", "expected"),
    [(plain, None, "numpy"), (annotated, None, "array_api"), (plain, "array_api", "array_api")],
)
def test_it_takes_numpy_arrays_where_nothing_else_is_said(op, fn, flavour, expected):
    op.register_reference(fn, flavour=flavour)
    assert op._record.rule("reference").flavour == expected


def test_a_library_owns_it(op, ns):
    lib = ow.Library(ns, "FRAGMENT")
    ow.register_reference(op, plain, lib=lib)
    lib._destroy()
    assert op._record.rule("reference") is None


def test_calls_are_as_before(op):
    op.register_reference(lambda x: x * 100)
    assert op(np.ones(1)).tolist() == [2.0]


def test_another_signature_changes_nothing(op):
    with pytest.raises(RegistrationTypeError, match=r"\Athe reference of \S+::double has another signature"):
        op.register_reference(lambda: None)
    assert op._record.rule("reference") is None
