"""What the public tests of ``torch.library`` pin down about the in-place and out tags, and about schemas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.errors import OutputError

NS = "behaviours_tags"
TAGS = torch.Tag if hasattr(torch.Tag, "inplace") else ow.Tag
LIBRARIES = (torch.library, ow) if TAGS is torch.Tag else (ow,)
"""Torch 2.9 has neither tag: there operators have them all the same, and nothing to be compared with."""

_count = 0


@pytest.fixture
def name():
    """A name that no other test uses."""
    global _count
    _count += 1
    return f"{NS}::op_{_count}"


def native(op):
    namespace, _, base = op.name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), op.overload)


def inplace(name, body=lambda x, y: x.mul_(y)):
    @ow.custom_op(name, mutates_args={"x"}, tags="inplace")
    def op(x: Tensor, y: Tensor) -> Tensor:
        return body(x, y)

    return op


def out_of(name, body=lambda x, out: out.copy_(x.sin())):
    @ow.custom_op(name, mutates_args={"out"}, tags="out")
    def op(x: Tensor, *, out: Tensor) -> Tensor:
        return body(x, out)

    return op


def test_row_25_the_same_object_comes_back(name):
    op = inplace(name)
    assert str(native(op)._schema) == f"{name}(Tensor(a0!) x, Tensor y) -> Tensor(a0!)"
    for call in (op, native(op)):
        x = torch.full((2,), 3.0)
        assert call(x, x.clone()) is x
        assert torch.equal(x, torch.full((2,), 9.0))


def test_row_26_something_else_comes_back(name):
    op = inplace(name, lambda x, y: x * y)
    for call in (native(op), op):
        with pytest.raises(OutputError) as error:
            call(torch.ones(2), torch.ones(2))
        assert str(error.value) == (
            f"kernel of {name} must return its argument x itself as output 0\n"
            "  got: another object of type torch.Tensor\n"
            f"  registered at: {op._record.source}\n"
            "  to fix: return x"
        )


def no_positional_tensor(k: int, x: Tensor) -> Tensor: ...
def mutates_another(x: Tensor, y: Tensor) -> Tensor: ...
def returns_nothing(x: Tensor) -> None: ...
def returns_several(x: Tensor) -> tuple[Tensor, Tensor]: ...
def by_keyword(*, x: Tensor) -> Tensor: ...


@pytest.mark.parametrize(
    ("fn", "mutated", "rule"),
    [
        (no_positional_tensor, ("x",), "first"),
        (by_keyword, ("x",), "first|positional"),
        (mutates_another, ("y",), "first|mutated"),
        (mutates_another, ("x", "y"), "mutate"),
        (mutates_another, (), "mutate"),
        (returns_nothing, ("x",), "return"),
        (returns_several, ("x",), "return"),
    ],
)
def test_row_27_rules_of_the_inplace_tag(name, fn, mutated, rule):
    for library in LIBRARIES:
        with pytest.raises(ValueError, match=rule):
            library.custom_op(name, fn, mutates_args=mutated, tags=TAGS.inplace)
    with pytest.raises(ValueError, match=r"Tag\.inplace"):
        ow.infer_schema(fn, mutates_args=mutated, tags=TAGS.inplace)


def test_row_28_both_tags_together(name):
    def fn(x: Tensor) -> Tensor: ...

    for library in LIBRARIES:
        kind = ValueError if library is ow else AssertionError
        with pytest.raises(kind, match="inplace"):
            library.custom_op(name, fn, mutates_args=("x",), tags=(TAGS.inplace, TAGS.out))


def positional_out(x: Tensor, out: Tensor) -> Tensor: ...
def no_out(x: Tensor) -> Tensor: ...
def optional_out(x: Tensor, *, out: Tensor | None) -> Tensor: ...
def list_out(x: Tensor, *, out: list[Tensor]) -> Tensor: ...
def number_out(x: Tensor, *, out: Tensor) -> int: ...
def too_few(x: Tensor, *, a: Tensor, b: Tensor) -> Tensor: ...
def tuple_of_one(x: Tensor, *, out: Tensor) -> tuple[Tensor]: ...


@pytest.mark.parametrize(
    ("fn", "mutated"),
    [
        (positional_out, ("out",)),
        (no_out, ()),
        (optional_out, ("out",)),
        (list_out, ("out",)),
        (number_out, ("out",)),
        (too_few, ("a", "b")),
        (tuple_of_one, ("out",)),
    ],
)
def test_row_30_rules_of_the_out_tag(name, fn, mutated):
    for library in LIBRARIES:
        with pytest.raises(ValueError, match="out"):
            library.custom_op(name, fn, mutates_args=mutated, tags=TAGS.out)
    with pytest.raises(ValueError, match=r"Tag\.out"):
        ow.infer_schema(fn, mutates_args=mutated, tags=TAGS.out)


@pytest.mark.parametrize(
    ("tag", "right", "wrong"),
    [
        (
            TAGS.inplace,
            "(Tensor(a!) x, Tensor y) -> Tensor(a!)",
            [
                "(Tensor(a!) x, Tensor y) -> Tensor",
                "(Tensor x, Tensor(a!) y) -> Tensor(a!)",
                "(Tensor(a!) x, Tensor y) -> ()",
            ],
        ),
        (
            TAGS.out,
            "(Tensor x, *, Tensor(a!) y) -> Tensor(a!)",
            [
                "(Tensor x, *, Tensor(a!) y) -> Tensor",
                "(Tensor x, Tensor(a!) y) -> Tensor(a!)",
                "(Tensor x, *, Tensor(a!) y) -> ()",
            ],
        ),
    ],
)
def test_row_31_a_schema_by_hand_is_held_to_the_rules(name, tag, right, wrong):
    mutated = ("x",) if tag is TAGS.inplace else ("y",)

    def positional(x, y):
        return (x if tag is TAGS.inplace else y).add_(1)

    def by_keyword(x, *, y):
        return y.add_(1)

    for schema in wrong:
        fn = by_keyword if "*" in schema else positional
        given = ("y",) if "(a!) y" in schema else ("x",)
        for library in LIBRARIES:
            with pytest.raises(ValueError, match=tag.name):
                library.custom_op(name, fn, mutates_args=given, schema=schema, tags=tag)
    op = ow.custom_op(
        name, by_keyword if "*" in right else positional, mutates_args=mutated, schema=right, tags=tag
    )
    x, y = torch.zeros(2), torch.zeros(2)
    out = op(x, y=y)
    assert out is (x if tag is TAGS.inplace else y)
    assert torch.equal(out, torch.ones(2))


def test_row_29_out_arguments_are_returned(name):
    @ow.custom_op(name, mutates_args={"a", "b"}, tags="out")
    def op(x: Tensor, *, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.copy_(x), b.copy_(2 * x)

    x = torch.ones(2)
    for call in (op, native(op)):
        a, b = torch.zeros(2), torch.zeros(2)
        found = call(x, a=a, b=b)
        assert found[0] is a
        assert found[1] is b
        assert torch.equal(b, 2 * x)


def test_row_32_the_tags_give_a_fake(name):
    from torch._subclasses import FakeTensorMode

    inner, outer = inplace(name + "_"), out_of(name + "_out")
    with FakeTensorMode() as mode:
        x, y = mode.from_tensor(torch.ones(2)), mode.from_tensor(torch.ones(2))
        assert native(inner)(x, y) is x
        assert native(outer)(x, out=y) is y
    with pytest.warns(
        UserWarning, match="has a fake by its Tag.inplace; the one that is registered now covers it"
    ):
        inner.register_fake(lambda x, y: x)


def test_row_33_autograd_of_tagged_operators(name):
    op = inplace(name)
    x = torch.ones(2, requires_grad=True)
    out = native(op)(x.clone(), torch.ones(2))
    assert out.requires_grad
    with pytest.raises(RuntimeError, match="no autograd formula"):
        out.sum().backward()
    outer = out_of(name + "_out")
    for call in (native(outer), outer):
        for given in ((x, torch.zeros(2)), (torch.zeros(2), torch.zeros(2, requires_grad=True))):
            with pytest.raises(
                RuntimeError, match=r"functions with out=\.\.\. arguments don't support automatic"
            ):
                call(given[0], out=given[1])
        with torch.no_grad():
            found = call(x, out=torch.zeros(2))
        assert not found.requires_grad
        assert found.grad_fn is None


def test_row_34_no_gradient_for_an_out_operator(name):
    op = out_of(name)
    with pytest.raises(RuntimeError, match=r"has Tag\.out"):
        op.register_autograd(lambda ctx, g: g)
    with pytest.raises(RuntimeError, match=r"has Tag\.out"):
        ow.register_autograd(name, lambda ctx, g: g)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_row_35_tagged_operators_compile(name, backend):
    inner, outer = inplace(name + "_"), out_of(name + "_out")

    def f(x):
        y = x.clone()
        inner(y, x)
        out = torch.empty_like(x)
        return outer(y, out=out) + out

    x = torch.randn(3)
    assert torch.allclose(torch.compile(f, fullgraph=True, backend=backend)(x), f(x))


@pytest.mark.parametrize("lib", ["ours", "torch's names"])
def test_row_66_67_an_inplace_operator_by_define(lib, name):
    library = ow.Library(NS, "FRAGMENT")
    base = name.partition("::")[2] + "_"
    with pytest.raises(ValueError, match=r"Tag\.inplace"):
        library.define(f"{base}wrong(Tensor x) -> Tensor", tags="inplace")
    library.define(f"{base}(Tensor(a!) x, Tensor y) -> Tensor(a!)", tags="inplace")
    library.impl(base, lambda x, y: x.add_(y), "CompositeExplicitAutograd")
    op = getattr(torch.ops.behaviours_tags, base)

    def f(x):
        z = x.clone()
        op(z[:2], z[:2])
        op(z, z)
        return z

    x = torch.randn(4)
    assert torch.allclose(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))
    library.destroy()


def test_row_64_symbolic_ints_in_and_out(name):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor, size: int) -> Tensor:
        return x.new_ones(size)

    op.register_fake(lambda x, size: x.new_empty(size))

    def f(x):
        return op(x, x.shape[0] * 2)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (3, 5, 8):
        assert compiled(torch.zeros(size)).shape == (2 * size,)


def test_row_65_promises_of_the_schema_are_checked(name):
    from torch._subclasses.schema_check_mode import SchemaCheckMode

    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor) -> Tensor:
        x.add_(1)
        return x.clone()

    with pytest.raises(RuntimeError, match="mutable"), SchemaCheckMode():
        native(op)(torch.zeros(2))
