from __future__ import annotations

import dataclasses
import pickle

import pytest

from opwright.defaults import Default, Mismatch
from opwright.parse import parse_schema
from opwright.schema import (
    AliasInfo,
    Argument,
    BaseType,
    FunctionSchema,
    GenericType,
    ListType,
    OptionalType,
    Return,
    Type,
    signature_of,
)


def argument_of(text):
    return parse_schema(f"ns::f({text}) -> ()").arguments[0]


@pytest.mark.parametrize(
    ("alias", "text"),
    [
        (AliasInfo(("a",)), "(a)"),
        (AliasInfo(("a",), is_write=True), "(a!)"),
        (AliasInfo(("a", "b")), "(a|b)"),
        (AliasInfo(("a",), ("*",)), "(a -> *)"),
        (AliasInfo(("a",), ("b", "c"), is_write=True), "(a! -> b|c)"),
        (AliasInfo((), is_write=True), "!"),
    ],
)
def test_an_alias_annotation_prints_itself(alias, text):
    assert str(alias) == text


def test_types_print_themselves():
    tensor = BaseType("Tensor", AliasInfo(("a",), is_write=True))
    assert str(ListType(OptionalType(tensor), 2, AliasInfo(("b",)))) == "Tensor(a!)?[2](b)"
    assert (
        str(GenericType("Dict", (BaseType("str"), tensor), AliasInfo(("c",)))) == "Dict(str, Tensor(a!))(c)"
    )
    assert str(GenericType("", (BaseType("int"), BaseType("str")))) == "(int, str)"


def test_aliases_come_from_the_inside_out_and_bases_from_everywhere():
    type_ = argument_of("Dict(str, Tensor(a)[](b))(c!) x").type
    assert [str(alias) for alias in type_.aliases()] == ["(a)", "(b)", "(c!)"]
    assert [base.name for base in type_.bases()] == ["str", "Tensor"]
    assert type_.leaf() is type_
    assert argument_of("int?[2]? x").type.leaf() == BaseType("int")


def test_a_type_takes_no_default_unless_it_says_so():
    words = "no default, for a schema cannot write one of this type"
    assert Type().coerce(1) == Mismatch(words)
    assert GenericType("Dict", (BaseType("str"), BaseType("int"))).coerce({}) == Mismatch(words)


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("int[]", 1, "a list"),
        ("int[]", (1, 2.5), "a list, each element an int"),
        ("int[2]", "ab", "an int"),
        ("str[2]", "ab", "a list"),
        ("int[]?", 1, "None or a list"),
        ("bool?", 2, "None or True or False"),
        ("Tensor", None, "no default, for a schema cannot write a Tensor"),
    ],
)
def test_a_value_that_does_not_fit_says_what_does(type_, value, expected):
    assert argument_of(f"{type_} x").type.coerce(value) == Mismatch(expected)


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("Tensor x", {"has_tensors", "is_tensor"}),
        ("Tensor(a!)? x", {"has_tensors", "is_tensor", "is_optional", "is_write"}),
        ("Tensor(a!)[] x", {"has_tensors", "is_tensor_list", "is_list", "is_write"}),
        ("Tensor[](a!) x", {"has_tensors", "is_tensor_list", "is_list", "is_write"}),
        ("Tensor?[]? x", {"has_tensors", "is_tensor_list", "is_list", "is_optional"}),
        ("int[2]? x", {"is_list", "is_optional"}),
        ("Dict(str, Tensor) x", set()),
    ],
)
def test_what_an_argument_says_about_itself(text, true):
    argument = argument_of(text)
    facts = ("has_tensors", "is_tensor", "is_tensor_list", "is_list", "is_optional", "is_write")
    assert {fact for fact in facts if getattr(argument, fact)} == true


def test_the_base_of_an_argument():
    texts = ("Tensor?[] x", "int[2]? x", "Dict(str, int) x")
    assert [argument_of(text).base for text in texts] == ["Tensor", "int", "Dict"]


def test_the_groups_of_arguments():
    schema = parse_schema("ns::f.o(Tensor x, Tensor(a!) y, *, int k, Tensor(b!)? out=None) -> ()")
    assert [argument.name for argument in schema.positional] == ["x", "y"]
    assert [argument.name for argument in schema.keyword_only] == ["k", "out"]
    assert [argument.name for argument in schema.mutated] == ["y", "out"]
    assert (schema.qualname, schema.name, schema.overload) == ("ns::f.o", "ns::f", "o")
    assert parse_schema("ns::f() -> ()").qualname == "ns::f"


@pytest.mark.parametrize(
    ("returns", "options", "text"),
    [
        ((), {}, "()"),
        ((), {"is_varret": True}, "..."),
        ((Return(BaseType("Tensor")),), {}, "Tensor"),
        ((Return(BaseType("Tensor"), "y"),), {}, "Tensor y"),
        ((Return(BaseType("Tensor")),), {"is_tuple": True}, "((Tensor))"),
        ((Return(BaseType("Tensor")),), {"is_varret": True}, "(Tensor, ...)"),
        ((Return(GenericType("", (BaseType("int"), BaseType("str")))),), {}, "((int, str))"),
        ((Return(BaseType("Tensor")), Return(BaseType("int"), "n")), {}, "(Tensor, int n)"),
    ],
)
def test_how_returns_are_written(returns, options, text):
    assert FunctionSchema("", "", (), returns, **options).signature == f"() -> {text}"


def test_a_schema_is_frozen_hashable_and_pickles():
    schema = parse_schema("ns::f(Tensor(a!)[] x, int[2] k=1, *, float[] e=[1, 2.5]) -> Tensor")
    assert str(schema)  # fills the cached properties
    again = pickle.loads(pickle.dumps(schema))
    assert (again, hash(again), str(again)) == (schema, hash(schema), str(schema))
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'name'"):
        schema.name = "ns::g"


def test_two_defaults_are_equal_by_value_whatever_their_text():
    assert Default(1.0, "1") == Default(1.0, "1.")
    assert str(Default(1.0, "1.")) == "1."


def test_the_signature_has_the_real_parameters():
    schema = parse_schema("ns::f(Tensor x, int[2] k=1, *, str s, Device? d=cpu) -> ()")
    assert str(signature_of(schema)) == "(x, k=(1, 1), *, s, d='cpu')"
    assert signature_of(schema).bind(1, s="a").arguments == {"x": 1, "s": "a"}
    assert str(signature_of(parse_schema("ns::f() -> ()"))) == "()"


def test_choices_are_part_of_an_argument_but_not_of_its_text():
    argument = Argument("mode", BaseType("str"), Default("a", '"a"'), choices=("a", "b"))
    assert str(argument) == 'str mode="a"'
    assert argument != Argument("mode", BaseType("str"), Default("a", '"a"'))
