"""What the public tests of ``torch.library`` pin down about rules: rows 80 to 97."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest
import torch
from torch import Tensor

import opwright as ow

NS = "behaviours_rules"
_count = 0


@pytest.fixture
def name():
    global _count
    _count += 1
    return f"{NS}::op_{_count}"


def native(op):
    namespace, _, base = op.name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), op.overload)


def nonzero(name):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.from_numpy(np.stack(np.nonzero(x.numpy()), axis=1))

    @op.register_fake
    def _(x):
        size = ow.get_ctx().new_dynamic_size()
        return x.new_empty((size, x.dim()), dtype=torch.int64)

    return op


@pytest.mark.parametrize("source", [ow.get_ctx, torch.library.get_ctx])
def test_row_81_a_size_that_depends_on_the_data(name, source):
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.nonzero(x)

    bounds = {}

    @op.register_fake
    def _(x):
        ctx = source()
        size = ctx.new_dynamic_size(min=1, max=5)
        with pytest.raises(ValueError, match="min"):
            ctx.new_dynamic_size(min=-1)
        with pytest.raises(ValueError, match="SymInt"):
            ctx.new_dynamic_size(min=size)
        bounds["size"] = size
        return x.new_empty((size, x.dim()), dtype=torch.int64)

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        out = native(op)(mode.from_tensor(torch.ones(3)))
    assert out.shape[0] is not None
    assert isinstance(bounds["size"], torch.SymInt)


def test_row_81_compiled(name):
    op = nonzero(name)
    x = torch.tensor([0.0, 1.0, 0.0, 2.0])

    def compiled(function):
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend="aot_eager")(x)

    try:
        compiled(torch.nonzero)
    except torch._dynamo.exc.Unsupported:  # torch 2.9 has to be told, for its own operators too
        with pytest.raises(torch._dynamo.exc.Unsupported, match="capture_dynamic_output_shape_ops = True"):
            compiled(op)
        torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        assert torch.equal(compiled(op), torch.tensor([[1], [3]]))
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False


def test_row_81_the_old_name(name):
    op = nonzero(name)
    op.register_fake(
        lambda x: x.new_empty((ow.get_ctx().create_unbacked_symint(), x.dim()), dtype=torch.int64)
    )
    x = torch.tensor([0.0, 1.0, 0.0, 2.0])
    with pytest.warns(FutureWarning, match="create_unbacked_symint is deprecated"):
        assert torch.equal(
            torch.compile(op, fullgraph=True, backend="aot_eager")(x), torch.tensor([[1], [3]])
        )


def test_row_83_meta_tensors_have_no_data(name):
    op = nonzero(name)
    with pytest.raises(RuntimeError, match="data-dependent shape"):
        native(op)(torch.empty(3, device="meta"))


def test_row_84_targets_of_register_autograd(name):
    def define(suffix):
        @ow.custom_op(name + suffix, mutates_args=())
        def op(x: Tensor) -> Tensor:
            return torch.sin(x)

        return op

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()

    for number, target in enumerate((lambda op: op, lambda op: op.name, native)):
        op = define(str(number))
        ow.register_autograd(target(op), backward, setup_context=setup)
        x = torch.randn(3, requires_grad=True)
        for call in (op, native(op)):
            (grad,) = torch.autograd.grad(call(x).sum(), x)
            assert torch.allclose(grad, x.cos())


@pytest.mark.parametrize("direct", [True, False])
def test_row_85_86_keyword_only_inputs_and_defaults(name, direct):
    seen = []

    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor, k: float = 3.14, *, a: Optional[str] = None, b: int = 2) -> Tensor:
        return x * k * b

    def setup(ctx, inputs, keyword_only_inputs, output):
        seen.append((inputs[1:], keyword_only_inputs))
        ctx.factor = inputs[1] * keyword_only_inputs["b"]

    op.register_autograd(lambda ctx, g: (g * ctx.factor, None), setup_context=setup)
    call = op if direct else native(op)
    x = torch.ones(2, requires_grad=True)
    for args, kwargs, expected in (
        ((), {}, ((3.14,), {"a": None, "b": 2})),
        ((2.0,), {"b": 3}, ((2.0,), {"a": None, "b": 3})),
        ((), {"a": "z"}, ((3.14,), {"a": "z", "b": 2})),
    ):
        for _ in range(2):
            (grad,) = torch.autograd.grad(call(x, *args, **kwargs).sum(), x)
            assert seen.pop() == expected
            assert torch.allclose(grad, torch.full((2,), expected[0][0] * expected[1]["b"]))


@pytest.mark.parametrize("direct", [True, False])
def test_row_87_the_context(name, direct):
    needs = []

    @ow.custom_op(name, mutates_args=())
    def op(xs: list[Tensor], y: Tensor, z: Optional[Tensor] = None) -> list[Tensor]:
        return [x * y for x in xs]

    def setup(ctx, inputs, output):
        xs, y, _ = inputs
        ctx._pt_metadata = "mine"
        ctx._opwright_like = 3
        ctx.save_for_backward(*xs, y)
        ctx.length = len(xs)

    def backward(ctx, grads):
        *xs, y = ctx.saved_tensors
        needs.append(ctx.needs_input_grad)
        assert ctx._pt_metadata == "mine"
        assert ctx._opwright_like == 3
        assert len(grads) == ctx.length
        return [g * y for g in grads], sum(g * x for g, x in zip(grads, xs, strict=True)), None

    op.register_autograd(backward, setup_context=setup)
    call = op if direct else native(op)
    a, b = torch.randn(2, requires_grad=True), torch.randn(2)
    y = torch.randn(2, requires_grad=True)
    for _ in range(2):
        first, second = call([a, b], y)
        grads = torch.autograd.grad((first + 2 * second).sum(), (a, y))
        assert torch.allclose(grads[0], y)
        assert torch.allclose(grads[1], a + 2 * b)
        assert needs.pop() == ([True, False], True, False)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("returned", [1, 3])
def test_row_88_gradients_of_arguments_that_were_left_out(name, direct, returned):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor, k: int = 1, s: str = "a") -> Tensor:
        return x * k

    needs = []

    def backward(ctx, g):
        needs.append(ctx.needs_input_grad[0])
        return g if returned == 1 else (g, None, None)

    op.register_autograd(backward)
    call = op if direct else native(op)
    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        call(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0))
    assert needs == [True] * 3


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(("returned", "expected", "got"), [((1,), 2, 1), ((1, 2, 3), 2, 3)])
def test_row_89_a_wrong_number_of_gradients(name, direct, returned, expected, got):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    op.register_autograd(lambda ctx, g: tuple(g for _ in returned))
    call = op if direct else native(op)
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=rf"incorrect number of gradients \(expected {expected}, got {got}\)"
        ):
            call(x, y).sum().backward()


def test_row_90_gradients_of_a_defined_operator():
    library = ow.Library(NS, "FRAGMENT")
    library.define("by_define(Tensor x) -> Tensor")
    library.impl("by_define", lambda x: torch.sin(x), "CPU")
    ow.register_autograd(
        f"{NS}::by_define",
        lambda ctx, g: g * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        lib=library,
    )
    x = torch.randn(3, requires_grad=True)
    (grad,) = torch.autograd.grad(torch.ops.behaviours_rules.by_define(x).sum(), x)
    assert torch.allclose(grad, x.cos())
    library.destroy()
    assert not hasattr(torch.ops.behaviours_rules, "by_define")


def mul(name):
    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor, y: Tensor, k: float = 1.0, *, s: float = 2.0) -> Tensor:
        return x * y * k * s

    return op


def rule(op, seen):
    def batched(info, in_dims, x, y, k, *, s):
        seen.append((info.batch_size, info.randomness, in_dims, k, s))
        x = x.movedim(in_dims[0], -1) if in_dims[0] is not None else x.unsqueeze(-1)
        y = y.movedim(in_dims[1], -1) if in_dims[1] is not None else y.unsqueeze(-1)
        return (x * y * k * s).movedim(-1, 0), 0

    return batched


def test_row_93_94_the_rule_and_its_axes(name):
    op = mul(name)
    seen = []
    op.register_vmap(rule(op, seen))
    x, y = torch.randn(2, 3), torch.randn(3, 2)
    for call in (op, native(op)):
        found = torch.vmap(call, in_dims=(0, 1))(x, y)
        assert torch.allclose(found, x * y.T * 2)
        assert seen.pop() == (2, "error", (0, 1, None), 1.0, 2.0)
        found = torch.vmap(lambda a: call(a, y[:, 0], 3.0, s=4.0), in_dims=-2, out_dims=1)(x)  # noqa: B023
        assert torch.allclose(found, (x * y[:, 0] * 12).T)
        assert seen.pop() == (2, "error", (0, None, None), 3.0, 4.0)
        nested = torch.vmap(torch.vmap(call, in_dims=(0, None)), in_dims=(None, 1))(x, y)
        assert torch.allclose(nested, x * y.T[:, None] * 2)
        seen.clear()


def test_row_94_registering_again_replaces(name):
    op = mul(name)
    op.register_vmap(lambda info, in_dims, x, y, k, *, s: (x * 0, 0))
    op.register_vmap(rule(op, []))
    x = torch.randn(2, 3)
    assert torch.allclose(torch.vmap(op)(x, x), x * x * 2)
    handle = ow.register_vmap(op, lambda info, in_dims, x, y, k, *, s: (x * 0, 0))
    assert torch.equal(torch.vmap(op)(x, x), x * 0)
    handle.destroy()
    assert torch.allclose(torch.vmap(op)(x, x), x * x * 2)


def test_row_95_without_a_rule_it_is_a_loop_that_warns_once(name):
    op = mul(name)
    x, y = torch.randn(2, 3), torch.randn(3, 2)
    with pytest.warns(UserWarning, match="has no vmap rule") as caught:
        found = torch.vmap(op, in_dims=(0, 1))(x, y)
    assert torch.allclose(found, x * y.T * 2)
    assert [str(warning.message) for warning in caught] == [
        f"{name} has no vmap rule: it is called once for each of 2 entries, at a performance drop; "
        f"add one with @opwright.register_vmap({name!r})"
    ]
    assert torch.allclose(torch.vmap(native(op), in_dims=(0, 1))(x, y), x * y.T * 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_row_96_97_autocast(name, dtype):
    seen = []

    @ow.custom_op(name, mutates_args=())
    def op(x: Tensor, ys: list[Tensor], n: Tensor, *, z: Optional[Tensor] = None) -> Tensor:
        seen.append([x.dtype, ys[0].dtype, n.dtype, None if z is None else z.dtype])
        return x.clone()

    op.register_autocast("cpu", dtype)
    op.register_autocast("cuda", torch.float16)
    x, n = torch.ones(2), torch.ones(2, dtype=torch.int64)
    for call in (op, native(op)):
        assert call(x, [x], n).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert call(x, [x], n, z=x).dtype == dtype
            assert seen[-1] == [dtype, dtype, torch.int64, dtype]
            double = call(x.double(), [x], n)
            assert double.dtype == torch.float64
            with torch.autocast("cpu", enabled=False):
                assert call(x, [x], n).dtype == torch.float32
        assert call(x, [x], n).dtype == torch.float32


def test_row_97_autocast_again_and_by_name(name):
    op = mul(name)
    ow.register_autocast(name, "cpu", torch.bfloat16)
    handle = ow.register_autocast(native(op), "cpu", torch.float16)
    x = torch.ones(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(x, x).dtype == torch.float16
        handle.destroy()
        assert op(x, x).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.ones(2, requires_grad=True)
        op.register_autograd(
            lambda ctx, g: (g, g), setup_context=lambda ctx, inputs, keyword_only_inputs, output: None
        )
        op(y, x).sum().backward()
    assert y.grad.dtype == torch.float32
