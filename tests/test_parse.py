from __future__ import annotations

import json
import subprocess
import sys

import pytest

from opwright.defaults import Default
from opwright.errors import SchemaError, SchemaSyntaxError
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
)
from opwright.typenames import BASE_TYPES


def argument_of(text):
    """The one argument of ``ns::f(text) -> ()``."""
    return parse_schema(f"ns::f({text}) -> ()").arguments[0]


def error_of(text, **options):
    with pytest.raises(SchemaSyntaxError) as caught:
        parse_schema(text, **options)
    assert isinstance(caught.value, SchemaError)
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


# ------------------------------------------------------------------------------------------- torch's schemas


SCHEMAS = """
import json
import torch
texts = {str(schema) for schema in torch._C._jit_get_all_schemas()}
for qualname in torch._C._dispatch_get_all_op_names():
    name, _, overload = qualname.partition(".")
    texts.add(str(torch._C._get_schema(name, overload)))
print(json.dumps(sorted(texts)))
"""


@pytest.fixture(scope="module")
def torch_schemas():
    pytest.importorskip("torch", reason="reads every schema that torch registers; torch is not installed")
    # In a process of its own: torch cannot list them while a kernel of another test waits for its definition.
    done = subprocess.run([sys.executable, "-c", SCHEMAS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_every_schema_of_torch_prints_back_unchanged(torch_schemas):
    assert len(torch_schemas) > 4000
    changed = [(text, str(schema)) for text in torch_schemas if str(schema := parse_schema(text)) != text]
    assert changed == []


def test_what_torch_reads_of_its_own_schemas_is_what_we_read(torch_schemas):
    torch = pytest.importorskip("torch", reason="compares with torch's own parser; torch is not installed")
    compared = 0
    for text in torch_schemas:
        if "PyObject" in text:  # torch prints it and does not read it
            continue
        theirs, ours = torch._C.parse_schema(text), parse_schema(text)
        assert [argument.name for argument in theirs.arguments] == [
            argument.name for argument in ours.arguments
        ]
        assert [a.kwarg_only for a in theirs.arguments] == [a.kwarg_only for a in ours.arguments]
        assert [a.has_default_value() for a in theirs.arguments] == [
            a.default is not None for a in ours.arguments
        ]
        assert [entry.name or "" for entry in theirs.returns] == [entry.name for entry in ours.returns]
        assert theirs.overload_name == ours.overload
        assert theirs.name == ours.name
        compared += 1
    assert compared > 4000


def test_defaults_of_torch_have_the_type_of_their_arguments(torch_schemas):
    plain = {"int": int, "SymInt": int, "float": float, "bool": bool, "str": str}
    seen = 0
    for text in torch_schemas:
        for argument in parse_schema(text).arguments:
            if argument.default is None or argument.default.value is None or argument.base not in plain:
                continue
            value = argument.default.value
            assert all(
                type(entry) is plain[argument.base] for entry in (value if argument.is_list else (value,))
            )
            seen += 1
    assert seen > 500


# -------------------------------------------------------------------------------------------------- grammar


@pytest.mark.parametrize(
    "text",
    [
        "ns::f() -> ()",
        "ns::f.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        "aten::__and__(bool a, bool b) -> bool",
        "aten::_foo(Tensor self, int from, int lambda) -> Tensor",
        "aten::and(bool a, bool b) -> bool",
        "prim::If(...) -> ...",
        "prim::f(Tensor x, *, int y, ...) -> (int, ...)",
        "ns::f(Tensor?[] x, int[]? y, int?[2]? z, Tensor[][] w) -> (Tensor?, Tensor[])",
        "ns::f(Tensor(a) a, Tensor(b!) b, Tensor(c -> *) c, Tensor(d|e) d, Tensor(*) f) -> Tensor(a)",
        "ns::f(Tensor(a!)[] x, Tensor[](b!) y, Tensor(c)[](d) z, Tensor(e! -> f|*)? w) -> ()",
        "ns::f(Tensor! x) -> ()",
        "ns::f(Dict(str, Tensor)(a!) x, Future(t) y, (int, Tensor)[] z) -> t",
        "ns::f(Union(int, Dict(str, (int, t[]))) x, RRef(t) y, Await(int) z, Tuple(int) w) -> ((int, t)[])",
        "ns::f(__torch__.torch.classes.a.B x) -> __torch__.torch.classes.a.B",
        "ns::f(tVal a, t1[] b) -> tVal",
        "ns::f(Tensor x) -> Tensor y",
        "ns::f(Tensor x) -> (Tensor y, int z)",
        "ns::f(Tensor x) -> (Tensor, int z)",
        "ns::f(Tensor x) -> ((Tensor))",
        "ns::f(int a=1, int b=-1, float c=1., float d=.5, float e=1e-05, float f=-1.5E+10) -> ()",
        "ns::f(float a=inf, float b=-inf, float c=nan, float d=-nan, float[] e=[inf, -inf]) -> ()",
        "ns::f(complex a=1j, complex b=0.+1.j, complex c=-1.5-2e3j) -> ()",
        'ns::f(bool a=True, bool? b=None, str c=\'a"b\', str d="a\'b", str e="\\"\\n\\101") -> ()',
        'ns::f(int[] a=[], int[2] b=1, int[2] c=[1,2], int[][] d=[[1], []], str[] e=["a, b]"]) -> ()',
        "ns::f(Layout a=strided, MemoryFormat b=contiguous_format, ScalarType c=long, int d=Mean) -> ()",
        'ns::f(Device a=cpu, Device b=cuda:0, Device c="cuda:1", ScalarType[] d=[float, half]) -> ()',
    ],
)
def test_a_text_prints_back_unchanged(text):
    assert str(parse_schema(text)) == text


def test_every_base_type_is_read_as_an_argument_and_as_a_return():
    for name in BASE_TYPES:
        text = f"ns::f({name} x, {name}[]? y) -> {name}"
        schema = parse_schema(text)
        assert str(schema) == text
        assert schema.returns[0].type == BaseType(name)


def test_blanks_line_breaks_and_comments_do_not_matter():
    text = "  ns::f( Tensor  x ,  # the input\n\tint [2] k = [1,\n 2] )->(Tensor y)  # done"
    assert str(parse_schema(text)) == "ns::f(Tensor x, int[2] k=[1, 2]) -> Tensor y"


def test_the_parts_of_a_schema():
    schema = parse_schema("ns::f.o(Tensor(a!)[]? x, int[2] k=1, *, float? eps=1) -> (Tensor y, int)")
    assert schema == FunctionSchema(
        name="ns::f",
        overload="o",
        arguments=(
            Argument("x", OptionalType(ListType(BaseType("Tensor", AliasInfo(("a",), is_write=True))))),
            Argument("k", ListType(BaseType("int"), 2), Default((1, 1), "1")),
            Argument("eps", OptionalType(BaseType("float")), Default(1.0, "1"), kwarg_only=True),
        ),
        returns=(Return(BaseType("Tensor"), "y"), Return(BaseType("int"))),
    )


def test_one_return_in_parentheses_is_bare_and_in_two_pairs_a_tuple_as_in_torch():
    bare, one, pair = (parse_schema(f"ns::f() -> {r}") for r in ("(Tensor)", "((Tensor))", "((int, str))"))
    assert (bare.is_tuple, bare.returns, str(bare)) == (
        False,
        (Return(BaseType("Tensor")),),
        "ns::f() -> Tensor",
    )
    assert (one.is_tuple, one.returns) == (True, (Return(BaseType("Tensor")),))
    assert (pair.is_tuple, pair.returns[0].type) == (
        False,
        GenericType("", (BaseType("int"), BaseType("str"))),
    )


def test_an_alias_set_behind_an_optional_belongs_to_what_is_optional():
    """torch prints ``Tensor(a!)?[]`` as ``Tensor?(a!)[]``."""
    assert str(argument_of("Tensor?(a!)[] x")) == "Tensor(a!)?[] x"


def test_the_name_can_be_left_out_where_that_is_allowed():
    schema = parse_schema("(Tensor x) -> Tensor", name_required=False)
    assert (schema.name, schema.overload, str(schema)) == ("", "", "(Tensor x) -> Tensor")
    assert parse_schema("ns::f() -> ()", name_required=False).name == "ns::f"


def test_a_namespace_is_put_before_a_name_that_has_none():
    assert parse_schema("f.o() -> ()", namespace="ns").qualname == "ns::f.o"
    assert parse_schema("ns::f() -> ()", namespace="ns").name == "ns::f"
    assert error_of("other::f() -> ()", namespace="ns") == (
        "schema, column 1: another namespace\n"
        "    other::f() -> ()\n"
        "    ^\n"
        "  expected: the namespace 'ns' of this library\n"
        "  got: 'other'"
    )


def test_a_class_that_no_framework_knows():
    assert error_of("ns::f(my.module.Config c) -> ()") == (
        "schema, column 7: unknown type specifier\n"
        "    ns::f(my.module.Config c) -> ()\n"
        "          ^\n"
        "  expected: a type of the schema language, such as Tensor, int, float, bool, Scalar or SymInt\n"
        "  got: 'my.module.Config'"
    )


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("float x=1", 1.0),
        ("bool x=1", True),
        ("int x=True", 1),
        ("int[3] x=2", (2, 2, 2)),
        ("bool[2] x=True", (True, True)),
        ("int[2]? x=1", (1, 1)),
        ("int[1] x=[-2, -1]", (-2, -1)),
        ("float[] x=[1, 2.5]", (1.0, 2.5)),
        ("int?[] x=[None, 1]", (None, 1)),
        ("complex x=1", 1 + 0j),
        ("Scalar x=1", 1),
        ("Scalar x=True", True),
        ("ScalarType x=long", "int64"),
        ("ScalarType x=float32", "float32"),
        ("ScalarType? x=4", "int64"),
        ("Layout x=0", "strided"),
        ("MemoryFormat x=contiguous_format", "contiguous_format"),
        ("Device x=cuda:1", "cuda:1"),
        ('Device x="cpu"', "cpu"),
        ("int x=Mean", 1),
        ("int x=contiguous_format", 0),
        ("int x=long", 4),
        (r"str x='a\'\"\\\n\101\0'", "a'\"\\\nA\0"),
        ("str x='é'", "é"),
        ("float x=-inf", float("-inf")),
        ("int x=-9223372036854775808", -(2**63)),
    ],
)
def test_a_default_has_the_value_that_its_type_makes_of_it(argument, value):
    got = argument_of(argument).default.value
    assert got == value
    assert type(got) is type(value)
    assert str(argument_of(argument)) == argument


def test_a_default_of_another_type_is_kept_for_validate_to_refuse():
    assert argument_of("int x=1.5").default.value == 1.5
    assert argument_of("Tensor x=None").default.value is None


# --------------------------------------------------------------------------------------------------- errors


def test_hostile_text_is_refused_where_it_starts():
    assert error_of("ns::f(Tensor x) -> Tensor\nimport os") == (
        "schema, column 27: syntax error\n"
        "    ns::f(Tensor x) -> Tensor\\nimport os\n"
        "                               ^\n"
        "  expected: the end of the text\n"
        "  got: 'import'"
    )


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("int64_t", "use `int` or `SymInt` instead of `int64_t`"),
        ("double", "use `float` instead of `double`"),
        ("long", "use `int` or `SymInt` instead of `long`"),
        ("string", "use `str` instead of `string`"),
        ("List[int]", "use `int[]` instead of `List[int]`"),
        ("Optional[Tensor]", "use `Tensor?` instead of `Optional[Tensor]`"),
        ("torch.Tensor", "use `Tensor` instead of `torch.Tensor`"),
        ("tensor", "use `Tensor` instead of `tensor`"),
        ("Tenser", "use `Tensor` instead of `Tenser`"),
        ("tuple[int, int]", "use `(int, int)`, or `int[2]` for elements of one type"),
        ("dict[str, int]", "use `Dict(str, Tensor)`, in parentheses"),
    ],
)
def test_an_unknown_type_says_what_to_write_instead(written, hint):
    got = written.partition("[")[0]
    assert error_of(f"ns::f({written} x) -> ()") == (
        "schema, column 7: unknown type specifier\n"
        f"    ns::f({written} x) -> ()\n"
        "          ^\n"
        "  expected: a type of the schema language, such as Tensor, int, float, bool, Scalar or SymInt\n"
        f"  got: '{got}'\n"
        f"  to fix: {hint}"
    )


@pytest.mark.parametrize(
    ("text", "column", "expected", "got"),
    [
        ("", 1, "an operator's name with its namespace: ns::name", "the end of the text"),
        ("f() -> ()", 1, "an operator's name with its namespace: ns::name", "'f'"),
        ("(Tensor x) -> ()", 1, "an operator's name with its namespace: ns::name", "'('"),
        ("a::b::c() -> ()", 5, "'(' and the arguments", "'::'"),
        ("n.s::f() -> ()", 1, "a namespace", "'n.s'"),
        ("n-s::f() -> ()", 1, "an operator's name with its namespace: ns::name", "'n'"),
        ("ns::1f() -> ()", 5, "the operator's name: name or name.overload", "'1'"),
        ("ns::é() -> ()", 5, "the operator's name: name or name.overload", "'\\xe9'"),
        ("ns::f.a.b() -> ()", 5, "the operator's name: name or name.overload", "'f.a.b'"),
        (
            "ns::f.default() -> ()",
            5,
            "an overload name other than 'default', which the unnamed overload has",
            "'f.default'",
        ),
        ("ns::f", 6, "'(' and the arguments", "the end of the text"),
        ("ns::f()", 8, "'->' and the returns", "the end of the text"),
        (
            "ns::f() ->",
            11,
            "a type, such as Tensor, int, float, bool, Scalar or SymInt",
            "the end of the text",
        ),
        ("ns::f() -> () x", 15, "the end of the text", "'x'"),
        ("ns::f() -> (int, int)[]", 22, "the end of the text", "'['"),
        ("ns::f() -> (int", 16, "',' or ')' after a return", "the end of the text"),
        ("ns::f() -> (int, )", 18, "a type, such as Tensor, int, float, bool, Scalar or SymInt", "')'"),
        ("ns::f(x) -> ()", 8, "the argument's name after its type", "')'"),
        ("ns::f(int x.y) -> ()", 11, "the argument's name after its type", "'x.y'"),
        ("ns::f(int é) -> ()", 11, "the argument's name after its type", "'\\xe9'"),
        ("ns::f(Tensor x", 15, "',' or ')' after an argument", "the end of the text"),
        ("ns::f(Tensor x,) -> ()", 16, "a type, such as Tensor, int, float, bool, Scalar or SymInt", "')'"),
        ("ns::f(Tensor x, *) -> ()", 18, "',' and keyword-only arguments after '*'", "')'"),
        (
            "ns::f(*, int x, *, int y) -> ()",
            17,
            "a type, such as Tensor, int, float, bool, Scalar or SymInt",
            "'*'",
        ),
        ("ns::f(..., int x) -> ()", 10, "')', since '...' stands last", "','"),
        ("ns::f() -> (..., int)", 16, "')', since '...' stands last", "','"),
        ("ns::f(int[x] y) -> ()", 11, "']' or the list's length", "'x'"),
        ("ns::f(int[-1] y) -> ()", 11, "']' or the list's length", "'-1'"),
        ("ns::f(int[2 y) -> ()", 13, "']' after the list's length", "'y'"),
        ("ns::f(Tensor(!) x) -> ()", 14, "the name of an alias set, or '*'", "'!'"),
        ("ns::f(Tensor(a x) -> ()", 16, "'!', '|', '->' or ')' after the alias set", "'x'"),
        ("ns::f(Tensor(a!|b) x) -> ()", 16, "')' after the alias set", "'|'"),
        ("ns::f(Dict(int) x) -> ()", 7, "Dict with 2 element types", "'Dict'"),
        ("ns::f(Future(int, int) x) -> ()", 7, "Future with 1 element type", "'Future'"),
        ("ns::f((int x) -> ()", 12, "',' or ')' after an element type", "'x'"),
        ("ns::f(int x=) -> ()", 13, "a default of type int", "')'"),
        ("ns::f(str x=abc) -> ()", 13, "a default of type str", "'abc'"),
        ('ns::f(str x="abc) -> ()', 13, "a default of type str", "'\"'"),
        ("ns::f(int[] x=[1, 2) -> ()", 20, "',' or ']' after an element", "')'"),
        ("ns::f(int[] x=[1,, 2]) -> ()", 18, "a default of type int[]", "','"),
        ("ns::f(int x=9223372036854775808) -> ()", 13, "an int of 64 bits", "'9223372036854775808'"),
        ("ns::f(int x=0x10) -> ()", 14, "',' or ')' after an argument", "'x10'"),
        ("ns::f(int x=1;2) -> ()", 14, "',' or ')' after an argument", "';'"),
    ],
)
def test_an_error_points_at_the_column_and_says_what_was_expected(text, column, expected, got):
    missing = expected.startswith("an operator's name with")
    assert error_of(text) == (
        f"schema, column {column}: {'the namespace is missing' if missing else 'syntax error'}\n"
        f"    {text}\n"
        f"    {' ' * (column - 1)}^\n"
        f"  expected: {expected}\n"
        f"  got: {got}"
    )


def test_python_brackets_after_a_parametrised_type():
    assert error_of("ns::f(Dict[str, int] x) -> ()") == (
        "schema, column 11: syntax error\n"
        "    ns::f(Dict[str, int] x) -> ()\n"
        "              ^\n"
        "  expected: '(' after Dict\n"
        "  got: '['\n"
        "  to fix: use `Dict(str, Tensor)`, in parentheses"
    )


def test_an_unknown_escape_in_a_string():
    assert error_of(r'ns::f(str x="a\x41") -> ()') == (
        "schema, column 13: unknown escape \\x in a string\n"
        '    ns::f(str x="a\\x41") -> ()\n'
        "                ^\n"
        "  expected: a string with the escapes \\n \\t \\r \\f \\v \\a \\b \\\\ \\\" \\' \\? and octal ones\n"
        "  got: '\"a\\\\x41\"'"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ns::f" + "(" * 100_000, "a type of at most 32 levels"),
        ("ns::f(int" + "[]" * 1000 + " x) -> ()", "a type of at most 32 levels"),
        ("ns::f(int x=" + "[" * 100_000, "a default of type int"),
        ("ns::f(int x=" + "9" * 10_000 + ") -> ()", "an int of 64 bits"),
    ],
)
def test_endless_text_is_refused_with_a_short_message(text, expected):
    message = error_of(text)
    assert f"  expected: {expected}\n" in message
    assert len(message) < 12_000


def test_control_characters_reach_no_terminal():
    assert error_of("ns::f(\x1b[31m x) -> ()").splitlines()[1] == "    ns::f(\\x1b[31m x) -> ()"
