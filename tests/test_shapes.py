"""Shapes with symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwright.errors import ArgumentValueError, FakeError
from opwright.shapes import as_shape, broadcast, is_axis, show
from opwright.sizes import recording, symbol

n, m = symbol("n"), symbol("m")


@pytest.mark.parametrize(
    ("given_shape", "shape"),
    [
        ((2, 3), (2, 3)),
        ([2, "n"], (2, n)),
        (4, (4,)),
        ("n", (n,)),
        (2 * n, (2 * n,)),
        ((), ()),
        (np.array([2, 3]), (2, 3)),
        ((size for size in (2, 3)), (2, 3)),
    ],
)
def test_as_shape(given_shape, shape):
    assert as_shape(given_shape) == shape


@pytest.mark.parametrize(
    ("shapes", "shape"),
    [
        ([], ()),
        ([()], ()),
        ([(2, 3), (3,)], (2, 3)),
        ([(2, 1), (1, 3)], (2, 3)),
        ([(n, 1), (m,)], (n, m)),
        ([(n,), (n,)], (n,)),
        ([(n,), (1,)], (n,)),
        ([(n,), (4,)], (4,)),
        ([(4,), (n,)], (4,)),
        ([(0,), (n,)], (0,)),
        ([(n, 3), ()], (n, 3)),
        ([(2 * n,), (n + n,)], (2 * n,)),
    ],
)
def test_broadcast(shapes, shape):
    assert broadcast(shapes) == shape


@given(st.lists(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3), max_size=3))
def test_known_shapes_broadcast_as_numpy_does(shapes):
    try:
        expected = np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        with pytest.raises(ArgumentValueError, match="do not broadcast"):
            broadcast(shapes)
    else:
        assert broadcast(shapes) == expected


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ArgumentValueError) as caught:
        broadcast([(n, 3), (2,)])
    assert str(caught.value) == (
        "shapes do not broadcast\n"
        "  expected: sizes that are equal or 1, counted from the last axis\n"
        "  got: (n, 3) and (2,)"
    )


def test_sizes_that_may_or_may_not_be_equal():
    with pytest.raises(FakeError, match=r"^n == m needs the value of a size that is not known"):
        broadcast([(n,), (m,)])
    with recording() as asked:
        assert broadcast([(symbol("a", 3),), (symbol("b", 3),)]) == (symbol("a"),)
    assert [question.text for question in asked] == ["a == b"]


def test_show():
    assert [show(shape) for shape in ((), (2,), (2 * n, 3))] == ["()", "(2,)", "(2*n, 3)"]


def test_axes():
    values = (0, np.int64(1), -1, True, 1.0, None, "0")
    assert [is_axis(one) for one in values] == [True] * 3 + [False] * 4
