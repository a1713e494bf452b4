"""The autograd rule: whose gradients a backward gets, what it may return, and its context."""

from __future__ import annotations

import pytest

from opwright.errors import GradientError, RegistrationTypeError
from opwright.parse import parse_schema
from opwright.rules.autograd import (
    AutogradRule,
    Context,
    call_setup_context,
    describe,
    new_values,
    output_names,
    returned_mutations,
    split_gradients,
)
from opwright.source import source_of


def _schema(text):
    return parse_schema("ns::f" + text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("(Tensor x) -> Tensor", ["output_0"]),
        ("(Tensor x) -> (Tensor values, Tensor)", ["values", "output_1"]),
        ("(Tensor(a!) x, Tensor y) -> ()", ["x"]),
        ("(Tensor(a!) x, Tensor(b!) y) -> Tensor(a!)", ["output_0", "y"]),
        ("(Tensor(a!) x) -> Tensor", ["output_0", "x"]),
        ("(Tensor(a!)[] xs) -> ()", ["xs"]),
    ],
)
def test_a_gradient_for_each_output_and_each_new_value(text, names):
    schema = _schema(text)
    assert output_names(schema) == names
    assert returned_mutations(schema) | {a.name for a in new_values(schema)} == {
        a.name for a in schema.mutated
    }


@pytest.mark.parametrize(
    "backward",
    [lambda ctx, a, b: None, lambda ctx, *grads: None, lambda ctx, a, b, c=3: None],
)
def test_a_backward_that_fits(backward):
    rule = describe(_schema("(Tensor x) -> (Tensor, Tensor)"), backward, None, "array_api")
    assert isinstance(rule, AutogradRule)
    assert (rule.kind, rule.fn, rule.source, rule.setup_context) == (
        "autograd",
        backward,
        source_of(backward),
        None,
    )


def test_a_backward_that_does_not():
    with pytest.raises(RegistrationTypeError, match=r"expected: \(ctx, output_0, output_1\)"):
        describe(_schema("(Tensor x) -> (Tensor, Tensor)"), lambda ctx, grad: None, None, "array_api")


def test_85_86_setup_context_gets_all_values_by_keyword():
    schema = _schema("(Tensor x, int k=3, *, Tensor y, bool b=True) -> Tensor")
    got = {}

    def setup_context(ctx, inputs, keyword_only_inputs, output):
        got.update(ctx=ctx, inputs=inputs, named=keyword_only_inputs, output=output)

    rule = describe(schema, lambda ctx, g: None, setup_context, "array_api")
    call_setup_context(rule, schema, "ctx", ["x", 3, "y", True], "out")
    assert got == {"ctx": "ctx", "inputs": ("x", 3), "named": {"y": "y", "b": True}, "output": "out"}

    def plain(ctx, inputs, output):
        got.update(inputs=inputs, output=output)

    schema = _schema("(Tensor x, int k=3) -> Tensor")
    call_setup_context(describe(schema, lambda ctx, g: None, plain, "array_api"), schema, None, ["x", 4], "o")
    assert got["inputs"] == ("x", 4)
    call_setup_context(describe(schema, lambda ctx, g: None, None, "array_api"), schema, None, ["x", 4], "o")


SCHEMA = "(Tensor x, Tensor y, float k=1.0, *, Tensor z, bool b=True) -> Tensor"


@pytest.mark.parametrize(
    ("text", "returned", "expected"),
    [
        (SCHEMA, ("gx", "gy", None), ["gx", "gy", None, None, None]),
        (SCHEMA, ("gx", "gy", None, "gz", None), ["gx", "gy", None, "gz", None]),
        (SCHEMA, ("gx", "gy"), ["gx", "gy", None, None, None]),  # 88: those with a default may be left out
        (SCHEMA, {"z": "gz"}, [None, None, None, "gz", None]),
        (SCHEMA, {}, [None] * 5),
        ("(Tensor x) -> Tensor", "gx", ["gx"]),
        ("(Tensor x) -> Tensor", ("gx",), ["gx"]),
        ("(Tensor x, float k=1.0, int n=2) -> Tensor", "gx", ["gx", None, None]),
        ("(Tensor[] xs) -> Tensor", ["g0", "g1"], [["g0", "g1"]]),
        ("(Tensor[] xs, int k=1) -> Tensor", (["g0", None], None), [["g0", None], None]),
    ],
)
def test_what_a_backward_may_return(text, returned, expected):
    schema = _schema(text)
    rule = describe(schema, lambda ctx, g: None, None, "array_api")
    assert split_gradients(rule, schema, returned) == expected


@pytest.mark.parametrize(
    ("returned", "got"),
    [
        ("gx", "1, none for y, k"),
        (("gx",), "1, none for y, k"),
        (("gx", "gy", None, "gz"), "4, more than there are arguments"),
        (("g",) * 6, "6, more than there are arguments"),
    ],
)
def test_89_a_wrong_number(returned, got):
    schema = _schema(SCHEMA)
    backward = lambda ctx, g: None  # noqa: E731
    rule = describe(schema, backward, None, "array_api")
    with pytest.raises(GradientError) as e:
        split_gradients(rule, schema, returned)
    count = len(returned) if isinstance(returned, tuple) else 1
    assert str(e.value) == (
        f"backward of ns::f returned an incorrect number of gradients (expected 3, got {count})\n"
        "  expected: one for each of x, y, k\n"
        f"  got: {got}\n"
        f"  registered at: {source_of(backward)}\n"
        "  to fix: return None for an argument without a gradient, or a dict by argument name"
    )


def test_gradients_of_unknown_arguments():
    schema = _schema("(Tensor x, *, Tensor y) -> Tensor")
    backward = lambda ctx, g: None  # noqa: E731
    rule = describe(schema, backward, None, "array_api")
    with pytest.raises(GradientError) as e:
        split_gradients(rule, schema, {"x": 1, "z": 2})
    assert str(e.value) == (
        "backward of ns::f returned gradients for unknown arguments\n"
        "  expected: names among x, y\n"
        "  got: 'z'\n"
        f"  registered at: {source_of(backward)}"
    )


def test_87_the_context():
    ctx = Context((True, False))
    assert ctx.needs_input_grad == (True, False)
    assert ctx.saved_tensors == ()
    assert ctx.materialize_grads
    ctx.save_for_backward(1, None)
    ctx.save_for_forward(2)  # one store serves both directions
    assert ctx.saved_tensors == (1, None)
    ctx.anything = 3
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(4)
    ctx.mark_dirty(5)
    assert (ctx.anything, ctx.materialize_grads, ctx.non_differentiable, ctx.dirty_tensors) == (
        3,
        False,
        (4,),
        (5,),
    )
    other = Context(())
    other.save_for_forward(2)
    assert other.saved_tensors == (2,)
