from __future__ import annotations

import keyword

import pytest

from opwright import parse
from opwright.errors import RegistrationTypeError, RegistrationValueError
from opwright.qualname import name_problem, parse_qualname

FORM = "namespace::name or namespace::name.overload"
NO_IDENTIFIER = "is not an identifier (ASCII letters, digits and _, not starting with a digit)"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ns::f", ("ns", "f", "")),
        ("ns::f.out", ("ns", "f", "out")),
        ("ns::f.default", ("ns", "f", "")),
        ("aten::__and__.Tensor", ("aten", "__and__", "Tensor")),
        ("_ns1::_f2", ("_ns1", "_f2", "")),
    ],
)
def test_a_name_has_three_parts(text, parts):
    assert parse_qualname(text) == parts


def test_the_parser_offers_it_too():
    assert parse.parse_qualname is parse_qualname


def test_a_name_without_a_namespace():
    with pytest.raises(RegistrationValueError) as caught:
        parse_qualname("sin")
    assert str(caught.value) == (
        "an operator's name needs a namespace\n"
        f"  expected: {FORM}\n"
        "  got: 'sin'\n"
        "  to fix: put a namespace of your own in front: 'mylib::sin'"
    )
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RuntimeError)


def test_no_fix_is_proposed_for_what_no_namespace_would_help():
    with pytest.raises(RegistrationValueError) as caught:
        parse_qualname("")
    assert str(caught.value) == f"an operator's name needs a namespace\n  expected: {FORM}\n  got: ''"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ns::class", "the name 'class' is a keyword of Python"),
        ("in::f", "the namespace 'in' is a keyword of Python"),
        ("ns::f.is", "the overload 'is' is a keyword of Python"),
        ("ns::1f", f"the name '1f' {NO_IDENTIFIER}"),
        ("ns::f g", f"the name 'f g' {NO_IDENTIFIER}"),
        ("::f", f"the namespace '' {NO_IDENTIFIER}"),
        ("ns::", f"the name '' {NO_IDENTIFIER}"),
        ("ns::f.", f"the overload '' {NO_IDENTIFIER}"),
        ("ns::f.a.b", f"the overload 'a.b' {NO_IDENTIFIER}"),
        ("a::b::c", f"the name 'b::c' {NO_IDENTIFIER}"),
        ("n.s::f", f"the namespace 'n.s' {NO_IDENTIFIER}"),
        ("ns::f\nimport os", f"the name 'f\\nimport os' {NO_IDENTIFIER}"),
        ("ns::f\n", f"the name 'f\\n' {NO_IDENTIFIER}"),
        ("ns::é", f"the name 'é' {NO_IDENTIFIER}"),
    ],
)
def test_a_part_that_is_no_name(text, problem):
    with pytest.raises(RegistrationValueError) as caught:
        parse_qualname(text)
    assert str(caught.value) == f"{text!r}: {problem}\n  expected: {FORM} of Python identifiers"


def test_a_name_that_is_no_string():
    with pytest.raises(RegistrationTypeError) as caught:
        parse_qualname(3)
    assert str(caught.value) == (
        f"an operator's name must be a string\n  expected: {FORM}\n  got: 3 of type int"
    )


def test_every_keyword_is_refused_and_soft_keywords_are_not():
    assert {name_problem(word) for word in keyword.kwlist} == {"is a keyword of Python"}
    assert name_problem("__debug__") == "is a keyword of Python"
    assert {name_problem(word) for word in ("match", "case", "type", "self", "print")} == {None}
