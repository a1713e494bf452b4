"""Row 51: classes that are registered with torch as opaque types, in schemas and annotations."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.errors import ArgumentError, SchemaError, SchemaSyntaxError

registered = pytest.importorskip("torch._library.opaque_object", reason="this torch has no opaque types")
base = pytest.importorskip("torch._opaque_base", reason="this torch has another base of opaque types")


class Counter(base.OpaqueBase):
    def __init__(self, n):
        self.n = n


class Config:
    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return isinstance(other, Config) and self.k == other.k

    def __hash__(self):
        return hash(self.k)

    def __fx_repr__(self):
        return f"Config({self.k!r})", {"Config": Config}


registered.register_opaque_type(Counter, typ="reference")
registered.register_opaque_type(Config, typ="value")
COUNTER, CONFIG = (registered.get_opaque_type_name(cls) for cls in (Counter, Config))


def native(op):
    namespace, _, name = op.name.partition("::")
    return getattr(getattr(torch.ops, namespace), name).default


@pytest.fixture
def count(ns):
    @ow.custom_op(f"{ns}::count", mutates_args=())
    def count(x: Tensor, c: Counter) -> Tensor:
        c.n += 1
        return x * c.n

    count.register_fake(lambda x, c: torch.empty_like(x))
    return count


@pytest.fixture
def scale(ns):
    @ow.custom_op(f"{ns}::scale", mutates_args=())
    def scale(x: Tensor, c: Config) -> Tensor:
        return x * c.k

    scale.register_fake(lambda x, c: torch.empty_like(x))
    scale.register_autograd(
        lambda ctx, g: (g * ctx.k, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1].k),
    )
    return scale


def test_row_51_an_opaque_type_in_an_annotation_is_written_as_torch_writes_it():
    def fn(x: Tensor, c: Counter, d: Config) -> tuple[Tensor, Counter]: ...

    found = ow.infer_schema(fn, mutates_args=())
    assert found == torch.library.infer_schema(fn, mutates_args=())
    assert found == f"(Tensor x, {COUNTER} c, {CONFIG} d) -> (Tensor, {COUNTER})"


@pytest.mark.parametrize("call", [lambda op: op, native], ids=["operator", "torch.ops"])
def test_row_51_the_object_itself_reaches_the_kernel(count, call):
    counter, x = Counter(0), torch.ones(2)
    for n in range(1, 4):
        assert torch.equal(call(count)(x, counter), x * n)
    assert counter.n == 3


def test_row_51_define_takes_an_opaque_type(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define(f"f(Tensor x, {COUNTER} c) -> Tensor")
        ow.define(f"{ns}::g", f"(Tensor x, *, {CONFIG}? c=None) -> Tensor", lib=lib)
        lib.impl("f", lambda x, c: x * c.n, "CPU")
        lib.impl("g", lambda x, *, c: x * (1 if c is None else c.k), "CompositeExplicitAutograd")
        x = torch.ones(2)
        for namespace in (getattr(torch.ops, ns), getattr(ow.ops, ns)):
            assert torch.equal(namespace.f(x, Counter(3)), x * 3)
            assert torch.equal(namespace.g(x), x)
            assert torch.equal(namespace.g(x, c=Config(2)), x * 2)
        with pytest.raises(SchemaSyntaxError, match="unknown type specifier"):
            lib.define("h(no.such.Class c) -> ()")


def test_row_51_optional_ones_and_lists(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor, cs: list[Config], c: Optional[Config] = None) -> Tensor:
        return x * ((0 if c is None else c.k) + sum(one.k for one in cs))

    x = torch.ones(2)
    for call in (f, native(f)):
        assert torch.equal(call(x, []), x * 0)
        assert torch.equal(call(x, [Config(3), Config(4)], Config(2)), x * 9)


def test_row_51_one_is_returned(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor) -> Counter:
        return Counter(x.numel())

    @ow.custom_op(f"{ns}::both", mutates_args=())
    def both(x: Tensor) -> tuple[Tensor, Counter]:
        return x + 1, Counter(x.numel())

    x = torch.ones(2)
    for call in (f, native(f)):
        assert call(x).n == 2
    for call in (both, native(both)):
        out, counter = call(x)
        assert torch.equal(out, x + 1)
        assert counter.n == 2


def test_row_51_a_constant_is_not_returned(ns):
    def f(x: Tensor) -> Config: ...

    with pytest.raises(ValueError, match="unsupported type"):
        torch.library.infer_schema(f, mutates_args=())
    with pytest.raises(SchemaError) as error:
        ow.custom_op(f"{ns}::f", f, mutates_args=())
    assert str(error.value) == (
        f"{ns}::f: Return has unsupported type Config.\n"
        '  to fix: return what it is made from; only a class registered with typ="reference" can be returned'
    )


def test_row_51_an_object_of_another_class(count, ns):
    with pytest.raises(ArgumentError) as error:
        count(torch.ones(2), 3)
    assert str(error.value) == (
        f"{ns}::count: argument c must be a Counter\n  expected: {COUNTER}\n  got: 3 of type int"
    )


def test_row_51_a_subclass(count):
    class Other(Counter):
        pass

    assert torch.equal(count(torch.ones(2), Other(1)), torch.full((2,), 2.0))


@pytest.mark.parametrize("call", [lambda op: op, native], ids=["operator", "torch.ops"])
def test_row_51_compiled(count, scale, call):
    x, counter = torch.ones(2), Counter(0)
    twice = torch.compile(
        lambda x, c: call(count)(x, c) + call(count)(x, c), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(twice(x, counter), x * 3)
    assert torch.equal(twice(x, counter), x * 7)
    once = torch.compile(lambda x, c: call(scale)(x, c), fullgraph=True, backend="aot_eager")
    for k in (2, 5):
        y = torch.ones(2, requires_grad=True)
        once(y, Config(k)).sum().backward()
        assert torch.equal(y.grad, torch.full((2,), float(k)))


def test_row_51_gradients_and_numpy_arrays(scale):
    y = torch.ones(2, requires_grad=True)
    scale(y, Config(4)).sum().backward()
    assert torch.equal(y.grad, torch.full((2,), 4.0))
    assert scale(np.ones(2), Config(3)).tolist() == [3.0, 3.0]


def test_row_51_no_tensor_at_all(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(c: Config) -> Tensor:
        return torch.ones(c.k)

    f.register_fake(lambda c: torch.empty(c.k))
    assert f(Config(3)).shape == native(f)(Config(3)).shape == (3,)
    compiled = torch.compile(lambda c: f(c), fullgraph=True, backend="aot_eager")
    assert [compiled(Config(k)).shape[0] for k in (2, 4)] == [2, 4]
