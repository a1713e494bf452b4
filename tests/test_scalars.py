"""The one coercion of arguments that are not arrays, on the generated path and on the other one alike."""

from __future__ import annotations

import enum
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest

import opwright as ow
from opwright.errors import ArgumentError, ArgumentValueError
from opwright.frameworks.base import load
from opwright.parse import parse_schema
from opwright.scalars import coercion


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mode(enum.IntEnum):
    SLOW = 1
    FAST = 2


@pytest.fixture
def take(ns):
    """Return what a kernel gets for one argument, cold, warm and alone, which must agree."""

    def take(type_, value):
        with ow.Library(ns, "FRAGMENT") as lib:
            given = []

            def kernel(x, k):
                given.append(k)
                return x + 1

            lib.define(f"f(Tensor x, {type_} k) -> Tensor")
            lib.impl("f", kernel, "CPU")
            f = getattr(ow.ops, ns).f
            x = np.ones(1)
            for _ in range(5):
                f(x, value)
            alone = coercion(f"{ns}::f", f.default.schema.arguments[1])(value)
            for one in [*given, alone]:
                assert type(one) is type(given[0])
                assert repr(one) == repr(given[0])
            return given[0]

    return take


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("float", 3, 3.0),
        ("float", True, 1.0),
        ("float", 2.5, 2.5),
        ("float", np.float32(0.5), 0.5),
        ("float", np.float64(0.5), 0.5),
        ("float", np.int64(3), 3.0),
        ("float", np.bool_(True), 1.0),
        ("float", np.array(1.5), 1.5),
        ("float", Mode.FAST, 2.0),
        ("float", float("inf"), float("inf")),
        ("int", 3, 3),
        ("int", True, 1),
        ("int", np.int64(3), 3),
        ("int", np.uint8(3), 3),
        ("int", np.array(3), 3),
        ("int", Mode.FAST, 2),
        ("int", 10**30, 10**30),
        ("SymInt", np.int32(3), 3),
        ("bool", True, True),
        ("bool", 1, True),
        ("bool", 0, False),
        ("bool", np.bool_(False), False),
        ("bool", np.array(True), True),
        ("complex", 1, 1 + 0j),
        ("complex", np.complex64(1j), 1j),
        ("str", "a", "a"),
        ("str", np.str_("a"), "a"),
        ("Scalar", 1, 1),
        ("Scalar", True, True),
        ("Scalar", 1.0, 1.0),
        ("Scalar", 1j, 1j),
        ("Scalar", np.float32(0.5), 0.5),
        ("Scalar", np.int8(2), 2),
        ("float?", None, None),
        ("float?", 2, 2.0),
        ("int[]", [1, 2], [1, 2]),
        ("int[]", (1, np.int64(2)), [1, 2]),
        ("int[]", [True], [1]),
        ("int[]", (), []),
        ("int[2]", 3, [3, 3]),
        ("int[2]", [3, 4], [3, 4]),
        ("int[2]", (3, 4), [3, 4]),
        ("float[]", [1, 2.0, np.float32(3)], [1.0, 2.0, 3.0]),
        ("float[]?", None, None),
        ("float[]?", [1], [1.0]),
        ("int[]", range(3), [0, 1, 2]),
        ("int[]", np.array([1, 2], np.uint8), [1, 2]),
        ("int[]", np.array([], int), []),
        ("int[]", deque([1, np.int8(2)]), [1, 2]),
        ("int[2]", range(2), [0, 1]),
        ("int[]?", range(2), [0, 1]),
        ("float[]", range(2), [0.0, 1.0]),
        ("float[]", np.array([1, 2]), [1.0, 2.0]),
        ("float[2]", np.array([1.5, 2.0], np.float32), [1.5, 2.0]),
        ("bool[]", np.array([True, False]), [True, False]),
        ("str[]", np.array(["a", "b"]), ["a", "b"]),
        ("Scalar[]", np.array([1.5, 2.0]), [1.5, 2.0]),
        ("int[2]", True, [1, 1]),
        ("int[2]?", 3, [3, 3]),
        ("float[2]", 2.5, [2.5, 2.5]),
        ("float[2]", np.float64(2.5), [2.5, 2.5]),
        ("bool[3]", [True, 0, 1], [True, False, True]),
        ("str[]", ["a", "b"], ["a", "b"]),
        ("Scalar[]", [1, 2.0, True], [1, 2.0, True]),
        ("int?[]", [1, None, np.int8(3)], [1, None, 3]),
        ("ScalarType", np.float32, np.dtype("float32")),
        ("ScalarType", "float64", np.dtype("float64")),
        ("ScalarType", float, np.dtype("float64")),
        ("ScalarType?", None, None),
        ("ScalarType[]", [np.int8, "uint8"], [np.dtype("int8"), np.dtype("uint8")]),
        ("Device", "cpu", "cpu"),
        ("Device?", None, None),
        ("MemoryFormat?", None, None),
    ],
)
def test_values_become_what_the_schema_says(take, type_, value, expected):
    if type_.startswith(("ScalarType", "Device")):
        argument = parse_schema(f"ns::f({type_} k) -> ()").arguments[0]
        found = coercion("ns::f", argument, load("numpy").convert)(value)
    else:
        found = take(type_, value)
    assert repr(found) == repr(expected)
    assert type(found) is type(expected)


REFUSED = [
    ("int", 2.5, "must be an integer", "2.5 of type float"),
    ("int", 2.0, "must be an integer", "2.0 of type float"),
    ("int", None, "must be a number", "None of type NoneType"),
    ("int", "3", "must be a number", "'3' of type str"),
    ("int", [3], "must be a number, not several", "[3] of type list"),
    ("int", np.array([3]), "must be a number, not several", "array([3]) of type ndarray"),
    ("int", 1j, "must be an integer", "1j of type complex"),
    ("float", 1j, "must be real", "1j of type complex"),
    ("float", np.complex64(1), "must be real", None),
    ("float", None, "must be a number", "None of type NoneType"),
    ("float", Fraction(1, 2), "must be a number", "Fraction(1, 2) of type Fraction"),
    ("float", Decimal(1), "must be a number", "Decimal('1') of type Decimal"),
    ("float", 10**400, "is too large for a float", None),
    ("complex", 10**400, "is too large for a float", None),
    ("bool", 2, "must be True or False", "2 of type int"),
    ("bool", None, "must be a number", "None of type NoneType"),
    ("bool", 1.0, "must be True or False", "1.0 of type float"),
    ("str", 1, "must be a string", "1 of type int"),
    ("str", None, "must be a string", "None of type NoneType"),
    ("int[]", 3, "must be a list", "3 of type int"),
    ("int[]", np.array([1.0, 2.0]), "must be an integer", "array([1., 2.]) of type ndarray"),
    ("int[]", np.array([[1, 2]]), "must be a list", "array([[1, 2]]) of type ndarray"),
    ("int[]", np.array(1), "must be a list", "array(1) of type ndarray"),
    ("int[]", {1, 2}, "must be a list", "{1, 2} of type set"),
    ("int[]", {1: 2}, "must be a list", "{1: 2} of type dict"),
    ("int[]", b"ab", "must be a list", "b'ab' of type bytes"),
    ("int[2]", range(3), "must be a list of 2, but has 3 elements", "range(0, 3) of type range"),
    ("int[]", [1, 2.5], "must be an integer", "[1, 2.5] of type list"),
    ("int[]", None, "must be a list", "None of type NoneType"),
    ("str[]", "ab", "must be a list", "'ab' of type str"),
    ("int[2]", [1, 2, 3], "must be a list of 2, but has 3 elements", "[1, 2, 3] of type list"),
    ("str[2]", "ab", "must be a list", "'ab' of type str"),
    ("int[2]", 2.5, "must be a list", "2.5 of type float"),
    ("int[2]", np.int64(3), "must be a list", None),
    ("SymInt[2]", 3, "must be a list", "3 of type int"),
    ("float[2]", 3, "must be a list", "3 of type int"),
    ("bool[2]", True, "must be a list", "True of type bool"),
    ("float[]", [None], "must be a number", "[None] of type list"),
]


@pytest.mark.parametrize(("type_", "value", "reason", "got"), REFUSED)
def test_what_would_change_silently_is_refused(take, ns, *, type_, value, reason, got):
    with pytest.raises(ArgumentError) as e:
        take(type_, value)
    text = repr(value)
    got = got or (text if len(text) <= 60 else text[:57] + "...") + f" of type {type(value).__name__}"
    assert str(e.value) == f"{ns}::f: argument k {reason}\n  expected: {type_}\n  got: {got}"
    assert e.value.__suppress_context__ or e.value.__context__ is None


@pytest.mark.parametrize("warm", [False, True])
def test_the_warm_path_refuses_in_the_same_words(ns, warm):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray, k: float, n: list[int], b: bool = False) -> np.ndarray:
        return x + k

    x = np.ones(1)
    if warm:
        for _ in range(5):
            f(x, 1.0, [1])
    for args, name, reason in [
        ((x, "a", [1]), "k", "must be a number"),
        ((x, 1.0, [1.5]), "n", "must be an integer"),
        ((x, 1.0, [1], None), "b", "must be a number"),
    ]:
        with pytest.raises(ArgumentError) as e:
            f(*args)
        assert str(e.value).splitlines()[0] == f"{ns}::f: argument {name} {reason}"


def test_a_list_that_is_right_is_passed_as_it_is_and_a_default_is_new_each_time(ns):
    given = []

    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray, k: list[int] = [1, 2]) -> np.ndarray:  # noqa: B006
        given.append(k)
        return x + 1

    x, mine = np.ones(1), [5]
    f(x, mine)
    f(x)
    f(x)
    assert given[0] is mine
    assert given[1] == given[2] == [1, 2]
    given[1].append(3)
    f(x)
    assert given[3] == [1, 2]


# ------------------------------------------------------------------ Literal and Enum


@pytest.fixture
def choosy(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(
        x: np.ndarray,
        pad: Literal["same", "valid"] = "same",
        n: Literal[1, 2] | None = None,
        color: Color = Color.RED,
        mode: Mode = Mode.SLOW,
    ) -> np.ndarray:
        f.given = (pad, n, color, mode)
        return x + 1

    return f


def test_choices_reach_the_kernel_as_its_annotations_have_them(choosy):
    x = np.ones(1)
    choosy(x)
    assert choosy.given == ("same", None, Color.RED, Mode.SLOW)
    choosy(x, "valid", 2, Color.BLUE, Mode.FAST)
    assert choosy.given == ("valid", 2, Color.BLUE, Mode.FAST)
    choosy(x, np.str_("valid"), np.int64(1), "blue", 2)
    assert choosy.given == ("valid", 1, Color.BLUE, Mode.FAST)
    assert type(choosy.given[3]) is Mode


def test_a_value_outside_its_choices_names_them(choosy, ns):
    x = np.ones(1)
    for kwargs, expected, got in [
        ({"pad": "full"}, "one of 'same', 'valid'", "'full' of type str"),
        ({"n": 3}, "one of 1, 2", "3 of type int"),
        ({"n": True}, "one of 1, 2", "True of type bool"),
        ({"color": "green"}, "a member of Color (RED, BLUE) or its value", "'green' of type str"),
        ({"mode": 7}, "a member of Mode (SLOW, FAST) or its value", "7 of type int"),
    ]:
        (name,) = kwargs
        if kwargs == {"n": True}:
            choosy(x, n=True)  # True is the int 1 where an int is asked for, as everywhere
            assert choosy.given[1] == 1
            continue
        with pytest.raises(ArgumentValueError) as e:
            choosy(x, **kwargs)
        assert str(e.value) == (
            f"{ns}::f: argument {name} is not among its choices\n  expected: {expected}\n  got: {got}"
        )


def test_a_dtype_or_device_that_is_none_says_why(ns):
    @ow.custom_op(
        f"{ns}::f", mutates_args=(), schema="(Tensor x, ScalarType t, Device d) -> Tensor", flavour="numpy"
    )
    def f(x, t, d):
        return x.astype(t)

    x = np.ones(2)
    assert f(x, np.int8, "cpu").dtype == np.int8
    with pytest.raises(ArgumentError) as e:
        f(x, "float33", "cpu")
    assert str(e.value) == (
        f"{ns}::f: argument t is not a dtype (data type 'float33' not understood)\n"
        "  expected: ScalarType\n"
        "  got: 'float33' of type str"
    )
    with pytest.raises(ArgumentError) as e:
        f(x, np.int8, "cuda:0")
    assert str(e.value) == (
        f"{ns}::f: argument d is not a device (NumPy arrays are on the cpu, not on cuda:0)\n"
        "  expected: Device\n"
        "  got: 'cuda:0' of type str"
    )
