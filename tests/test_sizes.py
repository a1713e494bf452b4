"""Symbolic sizes: arithmetic in a normal form, questions that raise or are recorded with their line."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwright.errors import ArgumentError, ArgumentValueError, FakeError
from opwright.sizes import Size, as_size, bounds, evaluate, recording, symbol

n, m = symbol("n"), symbol("m")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (n, "n"),
        (n + 1, "n + 1"),
        (1 + n, "n + 1"),
        (n - 1, "n - 1"),
        (3 - n, "-n + 3"),
        (2 * n + m * 3, "3*m + 2*n"),
        (n * m, "m*n"),
        (m * n, "m*n"),
        ((n + 1) * (n - 1), "n*n - 1"),
        (n**3, "n*n*n"),
        (+n, "n"),
        (n // 2, "n//2"),
        ((n + 1) // 2, "(n + 1)//2"),
        (n % 3, "n%3"),
        (7 // n, "7//n"),
        (7 % n, "7%n"),
        (-(-n // 2), "-((-n)//2)"),
        (2 * (n // 2) + m, "m + 2*(n//2)"),
        (n - 2 * m, "-2*m + n"),
        (math.prod((n, 3, m)), "3*m*n"),
        (sum((n, 3, n)), "2*n + 3"),
        (n + np.int64(2), "n + 2"),
    ],
)
def test_arithmetic_prints(size, text):
    assert str(size) == text


@pytest.mark.parametrize(
    ("size", "known"),
    [
        (n - n, 0),
        (2 * n // n, 2),
        (n * m // m - n, 0),
        (6 * n % 3, 0),
        (n * 0, 0),
        (n**0, 1),
        ((n + 1) - n, 1),
        ((n + m) // (m + n), 1),
        ((n + m) % (m + n), 0),
    ],
)
def test_what_is_known_is_a_plain_int(size, known):
    assert type(size) is int
    assert size == known


def test_sizes_of_one_name_are_one_size():
    assert symbol("n") == n
    assert hash(2 * n + m) == hash(m + n + n)
    assert len({n, symbol("n"), n + 0, m}) == 2
    assert divmod(2 * n, 2) == (n, 0)
    assert (4 * n) // 2 == 2 * n


def test_a_size_is_frozen():
    with pytest.raises(AttributeError, match=r"^a size is frozen: 'terms' cannot be set$"):
        n.terms = {}


@given(
    st.lists(st.sampled_from(["+", "-", "*", "//", "%"]), min_size=1, max_size=6),
    st.lists(st.integers(1, 5), min_size=6, max_size=6),
    st.integers(0, 20),
    st.integers(1, 20),
)
def test_arithmetic_agrees_with_that_of_integers(signs, numbers, first, second):
    functions = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "//": operator.floordiv,
        "%": operator.mod,
    }
    size, value = n, first
    for index, (sign, number) in enumerate(zip(signs, numbers, strict=False)):
        other, known = (m, second) if index % 2 else (number, number)
        size, value = functions[sign](size, other), functions[sign](value, known)
    assert evaluate(size, {"n": first, "m": second}) == value


@given(st.integers(-3, 3), st.integers(-3, 3), st.integers(-5, 5), st.integers(0, 4), st.integers(2, 6))
def test_bounds_hold(a, b, c, first, second):
    x, y = symbol("x", low=0, high=4), symbol("y", low=2, high=6)
    low, high = bounds(a * x + b * y * x + c)
    assert low <= a * first + b * first * second + c <= high


def test_division_by_zero():
    with pytest.raises(ZeroDivisionError, match=r"^n // 0$"):
        n // 0
    with pytest.raises(ZeroDivisionError, match=r"^n % 0$"):
        n % 0


@pytest.mark.parametrize(("call", "text"), [(lambda: n / 2, "n / 2"), (lambda: 2 / n, "2 / n")])
def test_true_division_is_refused(call, text):
    with pytest.raises(FakeError) as caught:
        call()
    assert str(caught.value) == f"a size is an integer: {text} is not\n  to fix: divide with //"


@pytest.mark.parametrize("other", ["x", 1.5, None, [1]])
def test_other_types_are_not_sizes(other):
    with pytest.raises(TypeError):
        n + other
    assert n != other


# ------------------------------------------------------------------------------------------ questions


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda: n >= 0, True),
        (lambda: n < 0, False),
        (lambda: n == -1, False),
        (lambda: n != -1, True),
        (lambda: n + 1 > 0, True),
        (lambda: n <= -1, False),
        (lambda: n - n == 0, True),
        (lambda: symbol("k", low=2) == 1, False),
        (lambda: symbol("k", low=2) != 0, True),
        (lambda: bool(symbol("k", low=1)), True),
        (lambda: symbol("k", high=4) < 5, True),
        (lambda: symbol("k", low=3, high=3) == 3, True),
        (lambda: n % 4 < 4, True),
        (lambda: 3 * symbol("k", low=2) // 2 >= 3, True),
    ],
)
def test_bounds_answer(question, answer):
    assert question() is answer


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda: n > 2, "n > 2"),
        (lambda: n == 2, "n == 2"),
        (lambda: n == m, "n == m"),
        (lambda: n != 2, "n == 2"),
        (lambda: n <= m, "n <= m"),
        (lambda: m < n + 1, "m < n + 1"),
        (lambda: bool(n), "n == 0"),
        (lambda: int(2 * n), "int(2*n)"),
        (lambda: range(n), "int(n)"),
        (lambda: float(n), "float(n)"),
        (lambda: np.empty((n,)), "int(n)"),
        (lambda: max(n, m), "m > n"),
        (lambda: 1 in (n, 2), "n == 1"),
    ],
)
def test_a_question_raises_with_its_line(question, text):
    with pytest.raises(FakeError) as caught:
        question()
    line = question.__code__.co_firstlineno
    assert str(caught.value) == (
        f"{text} needs the value of a size that is not known\n"
        f"  got: asked at {__file__}:{line}\n"
        "  to fix: leave the size symbolic: compute shapes with arithmetic, and do not branch on them"
    )


def test_questions_are_recorded_and_answered_by_hints():
    k = symbol("k", 5)
    with recording() as asked:
        answers = [k > 2, int(k // 2), k == 4, bool(k), list(range(k - 3)), float(k)]
    assert answers == [True, 2, False, True, [0, 1], 5.0]
    assert [question.text for question in asked] == [
        "k > 2",
        "int(k//2)",
        "k == 4",
        "k == 0",
        "int(k - 3)",
        "float(k)",
    ]
    line = test_questions_are_recorded_and_answered_by_hints.__code__.co_firstlineno + 3
    assert {question.source for question in asked} == {f"{__file__}:{line}"}


def test_a_question_without_a_hint_is_recorded_and_raises():
    with recording() as asked, pytest.raises(FakeError, match="n > 2 needs the value"):
        n > 2  # noqa: B015
    assert [question.text for question in asked] == ["n > 2"]


def test_recording_ends():
    with recording():
        pass
    with pytest.raises(FakeError):
        int(symbol("k", 3))


# --------------------------------------------------------------------------------------------- values


def test_evaluate():
    assert evaluate(3) == 3
    assert evaluate(2 * n // 3 + m % 2, {"n": 5, "m": 3}) == 4
    assert evaluate(n, {"m": 3}) is None
    assert evaluate(n // 2) is None
    assert evaluate(symbol("k", 7) // 2) == 3


def test_as_size():
    assert as_size(3) == 3
    assert type(as_size(np.int64(3))) is int
    assert as_size("n") == n
    assert as_size(2 * n) == 2 * n


class Dimension:
    """As another library's symbolic dimension."""

    def __mul__(self, other):
        return self


def test_sizes_of_other_libraries_stand_as_they_are():
    dimension = Dimension()
    assert as_size(dimension) is dimension


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (2.5, "2.5 of type float"),
        (True, "True of type bool"),
        (None, "None of type NoneType"),
        (np.float64(2), "np.float64(2.0) of type float64"),
        ([1], "[1] of type list"),
    ],
)
def test_what_is_no_size(value, got):
    with pytest.raises(ArgumentError) as caught:
        as_size(value)
    assert str(caught.value) == (
        f"not a size\n  expected: an int, a symbolic size, or the name of one\n  got: {got}"
    )


def test_a_size_is_not_negative():
    with pytest.raises(ArgumentValueError) as caught:
        as_size(-1)
    assert str(caught.value) == "a size is not negative\n  got: -1"


def test_a_name_is_an_identifier():
    with pytest.raises(ArgumentValueError) as caught:
        symbol("2n")
    assert str(caught.value) == "'2n' is not a name for a size\n  expected: an identifier"


def test_sizes_are_made_by_symbol_alone():
    assert isinstance(n, Size)
    with pytest.raises(TypeError):
        Size()
