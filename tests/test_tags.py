"""Names of tags; what the in-place and out tags ask of a schema and do to it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from opwright.errors import SchemaError
from opwright.parse import parse_schema
from opwright.tags import Tag, alias_returns, check_tags, tag_names


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        (None, set()),
        ((), set()),
        ("inplace", {"inplace"}),
        (Tag.out, {"out"}),
        (SimpleNamespace(name="out"), {"out"}),
        ([Tag.out, "core"], {"out", "core"}),
    ],
)
def test_tags_go_by_name(tags, names):
    assert tag_names(tags) == names


def test_torch_tags_are_taken_and_ours_are_the_same():
    torch = pytest.importorskip("torch")
    assert tag_names(torch.Tag.inplace) == {"inplace"}
    assert tag_names((torch.Tag.out, torch.Tag.core)) == {"out", "core"}
    assert {tag.name for tag in Tag} <= set(torch.Tag.__members__)


@pytest.mark.parametrize(
    ("tag", "text", "aliased"),
    [
        ("inplace", "(Tensor(a0!) x, int k) -> Tensor", "(Tensor(a0!) x, int k) -> Tensor(a0!)"),
        ("out", "(Tensor x, *, Tensor(a1!) out) -> Tensor", "(Tensor x, *, Tensor(a1!) out) -> Tensor(a1!)"),
        (
            "out",
            "(*, Tensor(a0!) p, Tensor(a1!) q) -> (Tensor, Tensor)",
            "(*, Tensor(a0!) p, Tensor(a1!) q) -> (Tensor(a0!), Tensor(a1!))",
        ),
        ("core", "(Tensor x) -> Tensor", "(Tensor x) -> Tensor"),
    ],
)
def test_returns_are_aliased(tag, text, aliased):
    schema = parse_schema(text, name_required=False)
    result = alias_returns(schema, tag, label="ns::f")
    assert str(result) == aliased
    check_tags(result, tag)


@pytest.mark.parametrize(
    ("tag", "text", "rule"),
    [
        ("inplace", "() -> Tensor", "requires a positional Tensor argument."),
        ("inplace", "(*, Tensor(a0!) x) -> Tensor", "requires a positional Tensor argument."),
        ("inplace", "(int k) -> Tensor", "requires the first positional argument to be a Tensor."),
        ("inplace", "(Tensor(a0!)? x) -> Tensor", "requires the first positional argument to be a Tensor."),
        ("inplace", "(Tensor(a0!)[] x) -> Tensor", "requires the first positional argument to be a Tensor."),
        (
            "inplace",
            "(Tensor x) -> Tensor",
            "requires mutates_args to contain exactly the first positional argument, got ().",
        ),
        (
            "inplace",
            "(Tensor x, Tensor(a1!) y) -> Tensor",
            "requires mutates_args to contain exactly the first positional argument, got ('y',).",
        ),
        (
            "inplace",
            "(Tensor(a0!) x, Tensor(a1!) y) -> Tensor",
            "requires mutates_args to contain exactly the first positional argument, got ('x', 'y').",
        ),
        ("inplace", "(Tensor(a0!) x) -> ()", "requires the return annotation to be torch.Tensor."),
        ("inplace", "(Tensor(a0!) x) -> int", "requires the return annotation to be torch.Tensor."),
        ("inplace", "(Tensor(a0!) x) -> ((Tensor))", "requires the return annotation to be torch.Tensor."),
        (
            "inplace",
            "(Tensor(a0!) x) -> (Tensor, Tensor)",
            "requires the return annotation to be torch.Tensor.",
        ),
        ("out", "(Tensor(a0!) x) -> Tensor", "requires mutable arguments to be keyword-only."),
        ("out", "(Tensor x) -> Tensor", "requires at least one mutable keyword-only Tensor argument."),
        ("out", "(*, Tensor(a0!)? x) -> Tensor", "only supports mutable keyword-only Tensor arguments."),
        ("out", "(*, Tensor(a0!)[] x) -> Tensor", "only supports mutable keyword-only Tensor arguments."),
        (
            "out",
            "(*, Tensor(a0!) x) -> ()",
            "requires the return annotation to match the mutable keyword-only Tensor arguments x.",
        ),
        (
            "out",
            "(*, Tensor(a0!) x) -> ((Tensor))",
            "requires the return annotation to match the mutable keyword-only Tensor arguments x.",
        ),
        (
            "out",
            "(*, Tensor(a0!) x, Tensor(a1!) y) -> Tensor",
            "requires the return annotation to match the mutable keyword-only Tensor arguments x, y.",
        ),
    ],
)
def test_broken_rules_are_named(tag, text, rule):
    schema = parse_schema(text, name_required=False)
    for check in (
        lambda: alias_returns(schema, tag, label="ns::f"),
        lambda: check_tags(schema, tag, label="ns::f"),
    ):
        with pytest.raises(SchemaError) as caught:
            check()
        assert str(caught.value) == f"ns::f: torch.Tag.{tag} {rule}\n  got: {text}"


def test_in_place_and_out_exclude_each_other():
    schema = parse_schema("(Tensor(a0!) x) -> Tensor", name_required=False)
    with pytest.raises(SchemaError) as caught:
        alias_returns(schema, ("inplace", "out"), label="ns::f")
    assert str(caught.value) == (
        "ns::f: torch.Tag.inplace and torch.Tag.out are mutually exclusive\n"
        "  to fix: keep the tag that says where the result goes"
    )


@pytest.mark.parametrize(
    ("tag", "text", "expected"),
    [
        ("inplace", "ns::f(Tensor(a!) x) -> Tensor", "(Tensor(a!) x) -> Tensor(a!)"),
        ("inplace", "ns::f(Tensor(a!) x) -> Tensor(b!)", "(Tensor(a!) x) -> Tensor(a!)"),
        ("out", "ns::f(*, Tensor(a!) x) -> Tensor", "(*, Tensor(a!) x) -> Tensor(a!)"),
    ],
)
def test_a_schema_by_hand_must_have_the_aliases(tag, text, expected):
    with pytest.raises(SchemaError) as caught:
        check_tags(parse_schema(text), tag)
    assert str(caught.value) == (
        f"ns::f: torch.Tag.{tag} requires the returns to alias what is mutated\n"
        f"  expected: {expected}\n"
        f"  got: {text.removeprefix('ns::f')}"
    )
