from __future__ import annotations

import keyword

import pytest

import opwright as ow
from opwright import parse, registry
from opwright.errors import RegistrationTypeError, RegistrationValueError
from opwright.qualname import _TAKEN, name_problem, parse_qualname, require_definable

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


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (
            ("higher_order", "f"),
            "'higher_order::f': the namespace 'higher_order' is an attribute that torch.ops",
        ),
        (("load_library",), "'load_library': the namespace 'load_library' is an attribute that torch.ops"),
        (("ns", "name"), "'ns::name': the name 'name' is an attribute that torch.ops.ns"),
        (
            ("ns", "__init__", "out"),
            "'ns::__init__.out': the name '__init__' is an attribute that torch.ops.ns",
        ),
        (("ns", "f", "op"), "'ns::f.op': the overload 'op' is an attribute that torch.ops.ns.f"),
        (("ns", "f", "__x"), "'ns::f.__x': the overload '__x' is an attribute that torch.ops.ns.f"),
    ],
)
def test_what_torchs_namespaces_have_already_is_not_definable(parts, what):
    with pytest.raises(RegistrationValueError) as caught:
        require_definable(*parts)
    kind = what.partition(": the ")[2].partition(" ")[0]
    assert str(caught.value) == (
        f"{what} has already, and would give for the operator\n  to fix: choose another {kind}"
    )


@pytest.mark.parametrize("parts", [("ns", "names", "name"), ("name", "__and__"), ("ops", "load_library")])
def test_other_names_are_definable(parts):
    require_definable(*parts)


def test_every_way_to_define_refuses_them():
    kernel = "(Tensor x) -> Tensor"
    for define in (
        lambda name: ow.custom_op(name, lambda x: x, mutates_args=(), schema=kernel),
        lambda name: ow.define(name, kernel),
        lambda name: ow.Library(name.partition("::")[0], "FRAGMENT").define(name.partition("::")[2] + kernel),
    ):
        for name in ("qualname_taken::name", "qualname_taken::f.overloads", "import_module::f"):
            with pytest.raises(RegistrationValueError, match=r"is an attribute that torch\.ops"):
                define(name)
            assert name not in {record.qualname for record in registry.records.values()}


def _found(holder):
    """Return what is an attribute of an object without its ``__getattr__``, but for what that has cached."""
    return {name for cls in type(holder).__mro__ for name in vars(cls)} | set(vars(holder))


def test_the_names_are_those_of_the_installed_torch():
    torch = pytest.importorskip("torch")
    torch.library.define("qualname_torch::f", "(Tensor x) -> Tensor")
    namespace = torch.ops.qualname_torch
    packet = namespace.f
    cached = {"f"}
    names = _TAKEN["name"]
    assert names == _found(namespace) - cached | {"__origin__", "__self__"}
    for refused in ("__origin__", "__self__"):
        with pytest.raises(AttributeError, match="Invalid attribute"):
            getattr(namespace, refused)
    cached = {name for name, value in vars(torch.ops).items() if name in torch.ops._dir}
    assert _TAKEN["namespace"] == _found(torch.ops) - cached
    overloads = {name for name in _found(packet) if not name.startswith("__")}
    assert _TAKEN["overload"] == overloads - set(packet.overloads())


@pytest.mark.parametrize("name", ["names", "__and__", "_dirs", "names.name", "f._dirs"])
def test_torch_reaches_the_others(name):
    torch = pytest.importorskip("torch")
    op = ow.custom_op(
        f"qualname_reached::{name}", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    found = torch.ops.qualname_reached
    for part in name.split("."):
        found = getattr(found, part)
    assert found(torch.ones(1)).tolist() == [2]
    assert op(torch.ones(1)).tolist() == [2]
