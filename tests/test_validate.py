from __future__ import annotations

import enum

import pytest

from opwright.defaults import Default
from opwright.errors import SchemaError, SchemaSyntaxError
from opwright.parse import parse_schema
from opwright.schema import Argument, BaseType, FunctionSchema, OptionalType, Return
from opwright.validate import validate


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


def error_of(schema, kind=SchemaError):
    with pytest.raises(SchemaError) as caught:
        validate(parse_schema(schema) if isinstance(schema, str) else schema)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "ns::f() -> ()",
        "ns::f.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        "ns::f(Tensor(a) self, int[2] k=1, *, bool b=1, str s) -> Tensor(a)",
        "ns::f(Tensor(a!)[] x, Tensor[](b!) y, Tensor(c!)? z=None) -> (Tensor y, Tensor z)",
        "ns::f(Tensor x, ScalarType d=float32, Device c=cpu, Layout l=strided, Scalar s=1.5) -> Tensor(*)",
        "ns::f(Dict(str, int) d, __torch__.torch.classes.a.B o, Tensor?[] t) -> Tensor?",
        "ns::f(Tensor print, Tensor match, Tensor type) -> ((Tensor))",
    ],
)
def test_what_an_operator_may_have(text):
    assert validate(parse_schema(text)) is None


def test_a_bare_signature_is_checked_too():
    assert validate(parse_schema("(Tensor x) -> Tensor", name_required=False)) is None
    assert error_of(parse_schema("(int x=1.5) -> ()", name_required=False)) == (
        "schema: the default 1.5 of argument x is not of type int\n"
        "  expected: an int\n"
        "  got: (int x=1.5) -> ()"
    )


def test_what_torch_itself_has_and_an_operator_of_ours_may_not():
    torch = pytest.importorskip("torch", reason="validates torch's own operators; torch is not installed")
    refused = set()
    for qualname in torch._C._dispatch_get_all_op_names():
        name, _, overload = qualname.partition(".")
        namespace = name.partition("::")[0]
        if namespace not in ("aten", "prims", "quantized"):
            continue
        try:
            validate(parse_schema(str(torch._C._get_schema(name, overload))))
        except SchemaError as error:
            refused.add(str(error).partition(": ")[2].partition("\n")[0])
    assert refused == {
        "the argument name 'from' is a keyword of Python",
        "the overload 'from' is a keyword of Python",
        "return 0 of type Dict(Tensor, Tensor) holds Tensors where no call looks for them",
    }


@pytest.mark.parametrize(
    ("text", "what", "expected", "fix"),
    [
        (
            "ns::for() -> ()",
            "the name 'for' is a keyword of Python",
            "namespace::name.overload of Python identifiers",
            None,
        ),
        (
            "if::f() -> ()",
            "the namespace 'if' is a keyword of Python",
            "namespace::name.overload of Python identifiers",
            None,
        ),
        (
            "ns::f.in() -> ()",
            "the overload 'in' is a keyword of Python",
            "namespace::name.overload of Python identifiers",
            None,
        ),
        (
            "ns::f(int lambda) -> ()",
            "the argument name 'lambda' is a keyword of Python",
            "a Python identifier",
            "name it lambda_",
        ),
        (
            "ns::f(int __debug__) -> ()",
            "the argument name '__debug__' is a keyword of Python",
            "a Python identifier",
            "name it __debug___",
        ),
        ("ns::f(int x, Tensor x) -> ()", "two arguments are named x", "each name once", None),
        ("ns::f() -> (int x, int x)", "two returns are named x", "each name once", None),
        ("ns::f(int x=1.5) -> ()", "the default 1.5 of argument x is not of type int", "an int", None),
        (
            "ns::f(int? x='a') -> ()",
            "the default 'a' of argument x is not of type int?",
            "None or an int",
            None,
        ),
        ("ns::f(bool x=2) -> ()", "the default 2 of argument x is not of type bool", "True or False", None),
        ("ns::f(float x=1j) -> ()", "the default 1j of argument x is not of type float", "a float", None),
        ("ns::f(str x=1) -> ()", "the default 1 of argument x is not of type str", "a quoted string", None),
        ("ns::f(int[] x=1) -> ()", "the default 1 of argument x is not of type int[]", "a list", None),
        (
            "ns::f(ScalarType x=strided) -> ()",
            "the default strided of argument x is not of type ScalarType",
            "a dtype, such as float32",
            None,
        ),
        (
            "ns::f(Device x=1) -> ()",
            "the default 1 of argument x is not of type Device",
            'a device, such as "cpu"',
            None,
        ),
        (
            "ns::f(Tensor x=None) -> ()",
            "the default None of argument x is not of type Tensor",
            "no default, for a schema cannot write a Tensor",
            "write Tensor? x=None",
        ),
        (
            "ns::f(int(a!) x) -> ()",
            "argument x of type int(a!) is marked as mutated",
            "mutation of Tensors only",
            "remove the '!'; what a kernel returns is new",
        ),
        (
            "ns::f(Tensor(*!)[] x) -> ()",
            "argument x is mutated, but its alias set is the wildcard",
            "a set of its own",
            "write Tensor!, or name the set: Tensor(x!)",
        ),
        (
            "ns::f(Tensor x, int y=1, int z) -> ()",
            "argument z has no default but follows y, which has one",
            "arguments with defaults last",
            "give z a default, move it forward, or put '*' before it",
        ),
        (
            "ns::f(Tensor x, ...) -> ()",
            "'...' stands for any number of values",
            "a fixed list of arguments and returns",
            None,
        ),
        (
            "ns::f(Tensor x) -> Tensor(a)",
            "return 0 is in the alias set (a), which no argument has",
            "no alias set",
            None,
        ),
        (
            "ns::f(Tensor(a) x, Tensor(c!) y) -> (Tensor(c!), Tensor(b) out)",
            "return out is in the alias set (b), which no argument has",
            "one of the sets a, c",
            None,
        ),
        (
            "ns::f(Tensor(a) x, Tensor(b!) y) -> Tensor(a!)",
            "return 0 is marked (a!), but no argument of that set is mutated",
            "one of the sets b",
            None,
        ),
        (
            "ns::f() -> ((int, str))",
            "return 0 is a tuple inside the returns",
            "returns side by side",
            None,
        ),
    ],
)
def test_what_an_operator_may_not_have(text, what, expected, fix):
    qualname = text.partition("(")[0]
    assert error_of(text) == f"{qualname}: {what}\n  expected: {expected}\n  got: {parse_schema(text)}" + (
        f"\n  to fix: {fix}" if fix else ""
    )


def test_an_unknown_type_is_an_error_of_both_classes_and_comes_first():
    assert error_of("ns::f(int from, foo x) -> t", SchemaSyntaxError) == (
        "ns::f: argument x has the type foo, which is unknown (unknown type specifier)\n"
        "  expected: a type of the schema language, such as Tensor, int, float, bool, Scalar or SymInt\n"
        "  got: ns::f(int from, foo x) -> t\n"
        "  also: the argument name 'from' is a keyword of Python\n"
        "  also: return 0 has the type t, which is unknown (unknown type specifier)"
    )


def test_everything_that_is_wrong_is_said_at_once():
    assert error_of("ns::f(int in, int in=1.5) -> ()") == (
        "ns::f: the argument name 'in' is a keyword of Python\n"
        "  expected: a Python identifier\n"
        "  got: ns::f(int in, int in=1.5) -> ()\n"
        "  to fix: name it in_\n"
        "  also: two arguments are named in\n"
        "  also: the default 1.5 of argument in is not of type int"
    )


def test_a_schema_put_together_by_hand_cannot_bring_in_code():
    hostile = Argument("x): import os\nimport sys #", BaseType("Tensor"))
    schema = FunctionSchema("ns::f", "", (hostile,), (Return(BaseType("Tensor")),))
    assert error_of(schema) == (
        "ns::f: the argument name 'x): import os\\nimport sys #' is not an identifier (ASCII letters, digits "
        "and _, not starting with a digit)\n"
        "  expected: a Python identifier\n"
        "  got: ns::f(Tensor x): import os\\nimport sys #) -> Tensor"
    )


def test_names_that_python_would_make_equal_are_refused():
    schema = FunctionSchema(
        "ns::f", "", (Argument("ﬁ", BaseType("int")), Argument("fi", BaseType("int"))), ()
    )
    assert error_of(schema).startswith("ns::f: the argument name '\\ufb01' is not an identifier")


def test_the_name_of_a_schema_put_together_by_hand():
    assert error_of(FunctionSchema("f", "", (), ())) == (
        "f: the name has no namespace\n  expected: namespace::name\n  got: f() -> ()"
    )
    assert error_of(FunctionSchema("ns::f", "default", (), ())) == (
        "ns::f.default: an overload cannot be named 'default'\n"
        "  expected: no overload name, which means the same\n"
        "  got: ns::f.default() -> ()"
    )


def test_a_positional_argument_after_a_keyword_only_one():
    arguments = (Argument("x", BaseType("int"), kwarg_only=True), Argument("y", BaseType("int")))
    assert error_of(FunctionSchema("ns::f", "", arguments, ())) == (
        "ns::f: argument y is not keyword-only but follows x, which is\n"
        "  expected: keyword-only arguments last\n"
        "  got: ns::f(int y, *, int x) -> ()"
    )


@pytest.mark.parametrize(("choices", "words"), [(("fast", "slow"), "'fast', 'slow'"), (Mode, "FAST, SLOW")])
def test_a_default_is_among_the_choices(choices, words):
    def schema(value, type_):
        return FunctionSchema("ns::f", "", (Argument("m", type_, Default(value, "…"), choices=choices),), ())

    right = "fast" if isinstance(choices, tuple) else Mode.FAST
    assert validate(schema(right, BaseType("str"))) is None
    assert validate(schema(None, OptionalType(BaseType("str")))) is None
    assert error_of(schema(3, BaseType("str"))) == (
        "ns::f: the default … of argument m is not among its choices\n"
        f"  expected: one of {words}\n"
        "  got: ns::f(str m=…) -> ()"
    )


@pytest.mark.parametrize(
    "type_", ["Dict(str, Tensor)", "Tensor[][]", "(Tensor, int)", "Tensor?[]?[]", "Future(Tensor)"]
)
def test_tensors_where_no_call_looks_for_them(type_):
    for text in (f"ns::f({type_} x) -> ()", f"ns::f() -> (int, {type_})"):
        with pytest.raises(SchemaError, match="holds Tensors where no call looks for them") as e:
            validate(parse_schema(text))
        assert "to fix: use one flat list of Tensors" in str(e.value)


@pytest.mark.parametrize(
    "type_", ["Tensor", "Tensor?", "Tensor[]", "Tensor?[]", "Tensor[]?", "Tensor?[]?", "Tensor[2]"]
)
def test_tensors_where_calls_look_for_them(type_):
    assert validate(parse_schema(f"ns::f({type_} x, Dict(str, int) d, int[][] n) -> {type_}")) is None
