"""A tensor that stands for a number is refused where its gradient, tangent or batch would be lost."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import opwright as ow
from opwright.errors import ArgumentError

X = torch.ones(3)


@pytest.fixture
def scale(ns):
    def kernel(x: torch.Tensor, a: float, more: list[float] = [1.0]) -> torch.Tensor:  # noqa: B006
        return x * a * more[0]

    op = ow.custom_op(f"{ns}::scale", kernel, mutates_args=())
    op.register_autograd(
        lambda ctx, grad: (grad * ctx.a, None, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "a", inputs[1]),
    )
    return op


def _number(requires_grad=False):
    return torch.tensor(2.0, requires_grad=requires_grad)


def test_a_tensor_that_requires_a_gradient_is_refused_cold_and_warm(scale):
    for _ in range(4):
        with pytest.raises(ArgumentError) as e:
            scale(X, _number(requires_grad=True))
        assert str(e.value) == (
            f"{scale._qualname}: argument a is a number, and a tensor that requires a gradient was given: "
            "its gradient would be lost\n"
            "  expected: float\n"
            "  to fix: declare argument a as a Tensor, or pass a.item() or a.detach()"
        )
        with pytest.raises(ArgumentError, match="argument more is a number"):
            scale(X, 2.0, [_number(requires_grad=True)])
        torch.testing.assert_close(scale(X, 2.0), X * 2)


def test_without_a_gradient_it_is_a_number(scale):
    for _ in range(3):
        torch.testing.assert_close(scale(X, _number()), X * 2)
        with torch.no_grad():
            torch.testing.assert_close(scale(X, _number(requires_grad=True)), X * 2)
        torch.testing.assert_close(scale(X, _number(requires_grad=True).detach()), X * 2)


def test_under_transforms(scale):
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        with pytest.raises(ArgumentError, match=r"argument a .* its gradient would be lost"):
            transform(lambda a: scale(X, a).sum())(_number())
    with pytest.raises(ArgumentError, match="argument a is a number, and a tensor that vmap maps over"):
        torch.vmap(lambda a: scale(X, a))(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(_number(), torch.tensor(1.0))
        with pytest.raises(ArgumentError, match="its gradient would be lost"):
            scale(X, dual)
    # What is detached inside is a wrapper still, and a number.
    grad = torch.func.grad(lambda x, a: scale(x, a.detach()).sum(), argnums=(0, 1))
    torch.testing.assert_close(grad(X, _number()), (torch.full((3,), 2.0), torch.tensor(0.0)))


def test_a_numpy_operator_loses_it_too(ns):
    def kernel(x: np.ndarray, a: float) -> np.ndarray:
        return x * a

    op = ow.custom_op(f"{ns}::f", kernel, mutates_args=())
    x = np.ones(2)
    np.testing.assert_array_equal(op(x, _number()), x * 2)
    with pytest.raises(ArgumentError, match="its gradient would be lost"):
        op(x, _number(requires_grad=True))
    with torch.no_grad():
        np.testing.assert_array_equal(op(x, _number(requires_grad=True)), x * 2)


def test_an_overload_with_a_tensor_takes_it(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x, float a) -> Tensor")
        lib.define("f.Tensor(Tensor x, Tensor a) -> Tensor")
        for name in ("f", "f.Tensor"):
            lib.impl(name, lambda x, a: x * a, "CompositeImplicitAutograd")
        a = _number(requires_grad=True)
        getattr(ow.ops, ns).f(X, a).sum().backward()
        assert a.grad.item() == 3.0


TYPES = (
    "Scalar",
    "Scalar?",
    "Scalar[]",
    "float",
    "float?",
    "float[2]",
    "int",
    "SymInt",
    "int[]",
    "bool",
    "complex",
)
TENSORS = {
    "float32": torch.tensor(2.0),
    "a fraction": torch.tensor(2.5),
    "float64": torch.tensor(1.0, dtype=torch.double),
    "bfloat16": torch.tensor(2.0, dtype=torch.bfloat16),
    "int64": torch.tensor(2),
    "one": torch.tensor(1),
    "uint8": torch.tensor(3, dtype=torch.uint8),
    "bool": torch.tensor(True),
    "complex64": torch.tensor(2 + 1j),
    "parameter": torch.nn.Parameter(torch.tensor(2.0), requires_grad=False),
    "meta": torch.tensor(2.0, device="meta"),
    "one element": torch.tensor([2.0]),
    "several": torch.tensor([1.0, 2.0]),
}


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _outcome(run):
    try:
        return run()
    except (ArgumentError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def _fits(type_, name):
    tensor = TENSORS[name]
    if tensor.ndim or tensor.is_meta or type_.startswith("Scalar"):
        return False
    if type_.startswith(("int", "SymInt")):
        return not tensor.is_floating_point() and not tensor.is_complex()
    if type_ == "bool":
        return name in ("bool", "one")
    return type_ == "complex" or not tensor.is_complex()


@pytest.mark.parametrize("type_", TYPES)
def test_every_path_takes_and_refuses_the_same_tensors(ns, type_):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define(f"f(Tensor x, {type_} a) -> Tensor")
        lib.impl("f", lambda x, a: x * torch.tensor(a).sum(), "CPU")
        op, native = getattr(ow.ops, ns).f.default, getattr(torch.ops, ns).f
        for name, tensor in TENSORS.items():
            given = [tensor, tensor] if "[" in type_ else tensor
            plain = [1, 1] if "[" in type_ else True if type_ == "bool" else 1
            found = {"first": _outcome(lambda: op(X, given))}  # noqa: B023  (run at once)
            for _ in range(4):
                op(X, plain)
            found["warm"] = _outcome(lambda: op(X, given))  # noqa: B023
            found["by name"] = _outcome(lambda: op(X, a=given))  # noqa: B023
            found["packet"] = _outcome(lambda: getattr(ow.ops, ns).f(X, given))  # noqa: B023
            with _Mode():
                found["mode"] = _outcome(lambda: op(X, given))  # noqa: B023
            found["a subclass"] = _outcome(lambda: op(torch.nn.Parameter(X, False), given))  # noqa: B023
            fits = _fits(type_, name)
            for path, outcome in found.items():
                if fits:
                    number = [tensor.item()] * 2 if "[" in type_ else tensor.item()
                    torch.testing.assert_close(outcome, native(X, number), msg=f"{path} {name}")
                else:
                    assert outcome == found["first"], (path, name)
                    assert outcome.startswith(f"ArgumentError: {ns}::f: argument a must be "), (path, name)
            through_torch = _outcome(lambda: native(X, given))  # noqa: B023
            if type_.startswith("Scalar"):
                assert "Expected a value of type" in through_torch
            elif fits:
                torch.testing.assert_close(through_torch, found["first"])


def test_the_error_for_a_scalar(ns):
    op = ow.custom_op(
        f"{ns}::f", lambda x, a: x * a, mutates_args=(), schema="(Tensor x, Scalar a) -> Tensor"
    )
    for x in (X, np.ones(3)):
        with pytest.raises(ArgumentError) as e:
            op(x, torch.tensor(2.0))
        assert str(e.value) == (
            f"{ns}::f: argument a must be a number, not a tensor: pass its item()\n"
            "  expected: Scalar\n"
            "  got: tensor(2.) of type Tensor"
        )
        with pytest.raises(ArgumentError, match="its gradient would be lost"):
            op(x, _number(requires_grad=True))


def test_an_overload_with_a_tensor_goes_before_one_with_a_scalar(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x, Scalar a) -> Tensor")
        lib.define("f.Tensor(Tensor x, Tensor a) -> Tensor")
        lib.impl("f", lambda x, a: x + a, "CPU")
        lib.impl("f.Tensor", lambda x, a: x * a, "CPU")
        for call in (getattr(ow.ops, ns).f, getattr(torch.ops, ns).f):
            assert call(X, _number()).tolist() == [2.0] * 3
            assert call(X, 2.0).tolist() == [3.0] * 3


def test_a_tensor_that_is_traced_is_left_to_torch(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: torch.Tensor, a: float) -> torch.Tensor:
        return x * a

    f.register_fake(lambda x, a: torch.empty_like(x))
    with pytest.raises(RuntimeError, match="Expected a value of type 'float'"):  # a constant would be wrong
        make_fx(lambda x, a: f(x, a))(X, _number())

    @ow.custom_op(f"{ns}::g", mutates_args=())
    def g(x: torch.Tensor, a: int) -> torch.Tensor:
        return x * a

    g.register_fake(lambda x, a: torch.empty_like(x))
    with FakeTensorMode() as mode:
        x, whole, part = (mode.from_tensor(t) for t in (X, torch.tensor(2), torch.tensor(2.5)))
        with pytest.raises(ArgumentError, match="argument a must be an integer"):
            g(x, part)
        with pytest.raises(RuntimeError, match="Expected a value of type 'int'"):
            g(x, whole)


@pytest.fixture
def summed(ns):
    def kernel(x: torch.Tensor, sizes: list[int], factors: list[float]) -> torch.Tensor:
        assert type(sizes) is type(factors) is list
        return x * (sum(sizes) + sum(factors))

    op = ow.custom_op(f"{ns}::summed", kernel, mutates_args=())
    op.register_fake(lambda x, sizes, factors: torch.empty_like(x))
    op.register_autograd(
        lambda ctx, grad: (grad * ctx.total, None, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "total", sum(inputs[1]) + sum(inputs[2])),
    )
    op.register_vmap(lambda info, in_dims, x, sizes, factors: (op(x, sizes, factors), in_dims[0]))
    return op


@pytest.mark.parametrize(
    ("sizes", "factors"),
    [
        (range(3), np.array([1.0, 2.0])),
        (np.array([1, 2], np.int32), range(2)),
        (torch.ones(2, 3).shape, (1.5,)),
        (range(2), torch.Size([1])),
    ],
)
def test_what_stands_in_the_place_of_a_list_on_every_path(summed, sizes, factors):
    total = float(sum(sizes) + sum(factors))
    x = torch.ones(1)
    for op in (summed, summed._opoverload):
        assert [op(x, sizes, factors).item() for _ in range(3)] == [total] * 3
    leaf = torch.ones(1, requires_grad=True)
    summed(leaf, sizes, factors).sum().backward()
    assert leaf.grad.item() == total
    assert torch.func.grad(lambda x: summed(x, sizes, factors).sum())(x).item() == total
    assert torch.func.vmap(lambda x: summed(x, sizes, factors))(torch.ones(2, 1)).tolist() == [[total]] * 2
    with FakeTensorMode() as mode:
        assert summed(mode.from_tensor(x), sizes, factors).shape == (1,)
    assert make_fx(lambda x: summed(x, sizes, factors))(x)(x).item() == total
    if not isinstance(sizes, np.ndarray) and not isinstance(factors, np.ndarray):  # a tensor to Dynamo
        compiled = torch.compile(lambda x: summed(x, sizes, factors), fullgraph=True, backend="aot_eager")
        assert compiled(x).item() == total


@pytest.mark.parametrize("literal_first", [True, False])
def test_what_a_schema_does_not_say_is_not_shared(ns, literal_first):
    """One of two operators of one signature takes any text, the other a choice; each has its own errors."""

    def free(x: torch.Tensor, mode: str) -> torch.Tensor:
        return x + len(mode)

    def bound(x: torch.Tensor, mode: Literal["a", "b"]) -> torch.Tensor:
        return x + len(mode)

    order = (bound, free) if literal_first else (free, bound)
    ops = {fn.__name__: ow.custom_op(f"{ns}::{fn.__name__}", fn, mutates_args=()) for fn in order}
    assert ops["free"].schema.signature == ops["bound"].schema.signature
    for _ in range(3):  # cold and warm
        assert ops["free"](torch.ones(1), "long").item() == 5
        assert ops["bound"](torch.ones(1), "a").item() == 2
        with pytest.raises(ValueError, match=f"^{ns}::bound: argument mode"):
            ops["bound"](torch.ones(1), "long")
        with pytest.raises(TypeError, match=f"^{ns}::free: argument mode"):
            ops["free"](torch.ones(1), 3)
    files = [ops[name]._record.table[torch.Tensor].__code__.co_filename for name in ("free", "bound")]
    assert files == [f"<opwright {ns}::free on torch>", f"<opwright {ns}::bound on torch>"]
