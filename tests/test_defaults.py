from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwright.defaults import Default, Mismatch, Word, coerce_base, default_text, repeats, takes_word, unquote


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (-3, "-3"),
        (1e-05, "1e-05"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (1 - 2j, "1.0-2.0j"),
        (2j, "0.0+2.0j"),
        ("a\"b'c\\\n\x00\x7fé", '"a\\"b\'c\\\\\\n\\000\\177é"'),
        (Word("strided"), "strided"),
        ([1, (2.5, None)], "[1, [2.5, None]]"),
        ((), "[]"),
    ],
)
def test_how_a_value_is_written(value, text):
    assert default_text(value) == text


def test_a_value_that_a_schema_cannot_write():
    with pytest.raises(TypeError) as caught:
        default_text({})
    assert str(caught.value) == "a schema cannot hold a default of type dict"


@given(st.text())
def test_any_string_is_written_and_read_back(value):
    text = default_text(value)
    assert unquote(text) == value
    assert "\n" not in text


def test_an_escape_that_is_not_one():
    with pytest.raises(KeyError) as caught:
        unquote(r'"a\x41"')
    assert caught.value.args == ("x",)


@pytest.mark.parametrize(
    ("base", "value", "held"),
    [
        ("int", True, 1),
        ("SymInt", 3, 3),
        ("float", True, 1.0),
        ("float", 3, 3.0),
        ("bool", 0, False),
        ("complex", 1.5, 1.5 + 0j),
        ("Scalar", 1j, 1j),
        ("number", 1, 1),
        ("str", "a", "a"),
        ("ScalarType", "double", "float64"),
        ("dtype", Word("half"), "float16"),
        ("ScalarType", 15, "bfloat16"),
        ("Layout", 7, "jagged"),
        ("MemoryFormat", 2, "channels_last"),
        ("Device", Word("cpu"), "cpu"),
        ("NoneType", None, None),
        ("t", [1], [1]),
        ("Any", 1, 1),
    ],
)
def test_what_an_argument_of_a_base_type_holds(base, value, held):
    got = coerce_base(base, value)
    assert got == held
    assert type(got) is type(held)


@pytest.mark.parametrize("base", ["ScalarType", "Layout", "MemoryFormat", "Device"])
def test_an_object_of_a_framework_is_kept(base):
    thing = object()
    assert coerce_base(base, thing) is thing


@pytest.mark.parametrize(
    ("base", "value", "expected"),
    [
        ("int", 1.0, "an int"),
        ("int", 2**63, "an int of 64 bits"),
        ("int", Word("foo"), "an int"),
        ("float", "1", "a float"),
        ("float", 1j, "a float"),
        ("bool", 2, "True or False"),
        ("bool", 0.0, "True or False"),
        ("complex", "1", "a complex number"),
        ("Scalar", "a", "a number"),
        ("str", Word("a"), "a quoted string"),
        ("ScalarType", "foo", "a dtype, such as float32"),
        ("ScalarType", 99, "a dtype, such as float32"),
        ("ScalarType", True, "a dtype, such as float32"),
        ("Layout", None, "a layout, such as strided"),
        ("MemoryFormat", -1, "a memory format, such as contiguous_format"),
        ("Device", 1, 'a device, such as "cpu"'),
        ("None", 1, "None"),
        ("Generator", 1, "no default, for a schema cannot write a Generator"),
    ],
)
def test_what_it_does_not_take(base, value, expected):
    assert coerce_base(base, value) == Mismatch(expected)


def test_which_types_take_a_word_and_which_repeat_a_value():
    assert [base for base in ("int", "Layout", "Device", "str", "float", "Tensor") if takes_word(base)] == [
        "int",
        "Layout",
        "Device",
    ]
    assert [base for base in ("int", "SymInt", "bool", "float", "str", "Tensor") if repeats(base)] == [
        "int",
        "SymInt",
        "bool",
        "float",
    ]


def test_the_numbers_of_enumerations_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="compares with torch's own numbers; torch is not installed")
    words = ["long", "float", "half", "double", "int", "short", "bool", "float32", "int64"]
    for word in words:
        number = (
            str(torch._C.parse_schema(f"ns::f(ScalarType x={word}) -> ()"))
            .partition("=")[2]
            .partition(")")[0]
        )
        assert coerce_base("ScalarType", int(number)) == coerce_base("ScalarType", Word(word))
        assert coerce_base("int", Word(word)) == int(number)


def test_a_default_compares_by_value():
    assert Default((1, 2), "[1,2]") == Default((1, 2), "[1, 2]")
