from __future__ import annotations

import numpy as np
import pytest

from opwright.checks.arrays import LAYOUTS, copied, difference, has_other_layout, is_floating, written

x = np.arange(12.0).reshape(3, 4)
LAID_OUT = [x, x.T, x[:, ::2], x[::-1], x[1:], np.broadcast_to(x[0], (2, 4)), np.ones(())]


@pytest.mark.parametrize("array", LAID_OUT, ids=range(len(LAID_OUT)))
def test_copies_keep_values_strides_and_flags(array):
    new = copied(array)
    assert np.array_equal(new, array)
    assert new.strides == array.strides
    assert new.flags.writeable == array.flags.writeable
    assert not np.may_share_memory(new, x)


def test_copies_of_arrays_without_elements_keep_the_shape():
    assert copied(x[:0]).shape == copied(x.T[:, :0]).T.shape == (0, 4)


def test_copies_keep_an_offset():
    new = copied(x[1:])
    assert new.__array_interface__["data"][0] > new.base.__array_interface__["data"][0]


def test_memory_between_the_elements_of_a_copy_is_not_theirs():
    new = copied(np.ones((2, 4))[:, ::2])
    assert not (np.frombuffer(new.base.tobytes(), "float64") == 1).all()


def test_copies_of_objects_are_plain():
    array = np.array([{}, 1], dtype=object)
    assert copied(array) is not array
    assert copied(array).tolist() == [{}, 1]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_as_a_snippet_writes_them(name):
    lay_out, template, _ = LAYOUTS[name]
    made, said = lay_out(x), eval(template.format("x"), {"np": np, "x": x})  # noqa: S307  (our own text)
    assert has_other_layout(x, name)
    assert np.array_equal(made, said)
    assert made.strides == said.strides
    assert made.flags.writeable == said.flags.writeable
    if name != "expanded":
        assert np.array_equal(made, x)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_a_single_element_are_few(name):
    assert has_other_layout(np.zeros(()), name) == (name == "read-only")
    assert not has_other_layout(np.ones((0, 3)), name)


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, np.nan, -np.inf]),
        np.array([[0.1]], "float32"),
        np.array([1 + 2j, complex(0, np.nan)]),
        np.array([True, False]),
        np.array([[1, -2]], "int8"),
        np.array(3.0),
        np.empty((0, 2), "float32"),
    ],
    ids=str,
)
def test_written_arrays_read_back(array):
    made = eval(written(array, 12), {"np": np})  # noqa: S307  (our own text)
    assert made.dtype == array.dtype
    assert np.array_equal(made, array, equal_nan=True)


def test_large_and_odd_arrays_are_not_written():
    assert written(x, 11) is None
    assert written(np.array([{}], dtype=object), 12) is None


@pytest.mark.parametrize(
    ("got", "expected", "text"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-12], None),
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], None),
        ([1.0, 3.0], [1.0, 2.0], ("2 at index (1,)", "3; 1 of 2 elements differ")),
        ([1.0, np.nan], [1.0, 2.0], ("2 at index (1,)", "nan; 1 of 2 elements differ")),
        ([1.0, -np.inf], [1.0, np.inf], ("inf at index (1,)", "-inf; 1 of 2 elements differ")),
        ([1, 2], [1, 3], ("3 at index (1,)", "2; 1 of 2 elements differ")),
        ([True], [False], ("False at index (0,)", "True")),
        (2.0, 1.0, ("1", "2")),
        ([1 + 1j], [1 + 2j], ("1+2j at index (0,)", "1+1j")),
        ([1e-9, 1e6], [0.0, 1e6], None),
        ([], [], None),
    ],
)
def test_the_worst_difference_is_named(got, expected, text):
    assert difference(np.array(got), np.array(expected)) == text


def test_tolerance_follows_the_dtype_or_is_given():
    one, other = np.array([1.0]), np.array([1.001])
    assert difference(one.astype("float16"), other.astype("float16")) is None
    assert difference(one, other) is not None
    assert difference(one, other, rtol=1e-2) is None
    assert difference(one, other, atol=1e-2) is None


@pytest.mark.parametrize(
    ("dtype", "answer"), [("float16", True), ("complex64", True), ("int32", False), ("bool", False)]
)
def test_floating_arrays_have_derivatives(dtype, answer):
    assert is_floating(np.zeros(1, dtype)) is answer
