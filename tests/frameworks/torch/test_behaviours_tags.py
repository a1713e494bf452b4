"""What the public tests of ``torch.library`` pin down about the in-place and out tags, and about schemas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.errors import OutputError

NS = "behaviours_tags"
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
