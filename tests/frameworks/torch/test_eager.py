"""Gradients of direct calls: what torch's dispatcher gives, without it, and the same errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import opwright as ow
import torch_operators
from opwright.errors import GradientError, MissingRuleError
from opwright.frameworks.torch import eager


def sum_of(path=None):
    """x + every y + z, with a backward that returns what ``answers`` holds."""
    answers = []
    seen = []

    @ow.custom_op(torch_operators.name_of("sum_of"), mutates_args=())
    def op(
        x: Tensor, ys: list[Tensor], k: float = 1.0, z: Tensor | None = None, *, w: Tensor | None = None
    ) -> Tensor:
        if path is not None:
            path.note()
        return sum((y for y in (*ys, z, w) if y is not None), x * k)

    def setup_context(ctx, inputs, output, keyword_only_inputs):
        seen.append((ctx.needs_input_grad, inputs, keyword_only_inputs))
        ctx.inputs, ctx.w = inputs, keyword_only_inputs["w"]

    @op.register_autograd(setup_context=setup_context)
    def _(ctx, grad):
        if answers:
            return answers[-1](ctx, grad)
        _x, ys, k, z = ctx.inputs
        wanted = {"x": grad * k, "ys": [grad for _ in ys]}
        return wanted | {name: grad for name, one in (("z", z), ("w", ctx.w)) if one is not None}

    return op, answers, seen


def leaf(*shape):
    return torch.ones(*shape, requires_grad=True)


def test_lists_optional_and_keyword_only_tensors():
    path = torch_operators.Path()
    op, _, seen = sum_of(path)
    for turn in range(3):
        x, y, z, w = leaf(3), leaf(3), leaf(3), leaf(3)
        out = op(x, [y, torch.ones(3)], 2.0, z, w=w)
        grads = torch.autograd.grad(out.sum(), (x, y, z, w))
        assert [g.tolist() for g in grads] == [[2.0] * 3, [1.0] * 3, [1.0] * 3, [1.0] * 3]
        assert path.taken[-1] == ("dispatcher" if turn == 0 else "direct")
    assert seen[0][0] == seen[2][0] == (True, [True, False], False, True, True)
    assert seen[2][1][0] is x
    assert seen[2][2] == {"w": w}


@pytest.mark.parametrize(("ys", "z", "w"), [([], None, None), ([1], None, 1), ([1, 1], 1, None)])
def test_missing_tensors_and_empty_lists(ys, z, w):
    path = torch_operators.Path()
    op, _, _ = sum_of(path)
    for _ in range(3):
        x = leaf(2)
        given = [leaf(2) for _ in ys]
        out = op(x, given, z=z and leaf(2), w=w and leaf(2))
        assert [g.tolist() for g in torch.autograd.grad(out.sum(), [x, *given])] == [[1.0] * 2] * (
            1 + len(ys)
        )
    assert path.taken == ["dispatcher", "direct", "direct"]


WRONG = {
    "shape": lambda ctx, grad: {"x": grad[:2]},
    "shape in a list": lambda ctx, grad: {"ys": [grad[:2], grad]},
    "number in a list": lambda ctx, grad: {"ys": [grad]},
    "class": lambda ctx, grad: {"x": 1.0},
    "not a tensor's": lambda ctx, grad: {"k": grad},
    "not given": lambda ctx, grad: {"z": grad},
    "unknown": lambda ctx, grad: {"u": grad},
    "too few": lambda ctx, grad: (grad, [grad, grad]),
    "too many": lambda ctx, grad: (grad, [grad, grad], None, None, None, None),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_gradients_raise_as_they_do_through_the_dispatcher(wrong):
    op, answers, _ = sum_of()
    _, dispatched = op, op._record.lowered["torch"].fast.slow
    texts = []
    for turn in range(4):
        x, y, z = leaf(3), leaf(3), leaf(1)
        out = dispatched(x, [y, z], 1.0, None, None) if turn == 3 else op(x, [y, z])
        answers.append(WRONG[wrong])
        with pytest.raises(GradientError) as error:
            out.sum().backward()
        answers.clear()
        texts.append(str(error.value))
    assert texts == texts[:1] * 4
    assert f"backward of {op._record.qualname}" in texts[0]


def one_of(backward, setup_context=None):
    """x * 2, with this backward."""
    op = ow.custom_op(
        torch_operators.name_of("one_of"), lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    op.register_autograd(backward, setup_context=setup_context)
    return op


WRONG_OF_ONE = {
    "shape": lambda ctx, grad: grad[:2],
    "number": lambda ctx, grad: (grad, grad),
    "class": lambda ctx, grad: "much",
}


@pytest.mark.parametrize("wrong", WRONG_OF_ONE)
def test_a_wrong_gradient_of_the_only_argument_names_it(wrong):
    op = one_of(WRONG_OF_ONE[wrong])
    texts = []
    for _ in range(3):
        with pytest.raises(GradientError) as error:
            op(leaf(3)).sum().backward()
        texts.append(str(error.value))
    assert texts == texts[:1] * 3
    assert f"backward of {op._record.qualname}" in texts[0]


@pytest.mark.parametrize(
    "backward",
    [
        lambda ctx, grad: grad * 2,
        lambda ctx, grad: (grad * 2,),
        lambda ctx, grad: {"x": grad * 2},
        lambda ctx, grad: (grad.double() * 2,),
        lambda ctx, grad: torch.tensor(2.0).expand(3),
        lambda ctx, grad: torch.full((3, 2), 2.0).t()[0].new_full((3,), 2.0),
        lambda ctx, grad: torch.full((5, 3), 0.4),
    ],
)
def test_every_right_form_of_a_gradient(backward):
    op = one_of(backward)
    for _ in range(3):
        x = leaf(3)
        op(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


def test_no_gradient_at_all():
    op = one_of(lambda ctx, grad: None)
    for _ in range(3):
        x = leaf(3)
        (op(x).sum() + x.sum()).backward()
        assert x.grad.tolist() == [1.0] * 3


def test_without_a_rule_the_output_requires_grad_and_its_backward_raises():
    path = torch_operators.Path()
    op = torch_operators.without_rule(path)
    texts = []
    for _ in range(3):
        out = op(leaf(3))
        assert out.requires_grad
        with pytest.raises(MissingRuleError) as error:
            out.sum().backward()
        texts.append(str(error.value))
    assert path.taken == ["dispatcher", "direct", "direct"]
    assert texts == texts[:1] * 3
    assert "no autograd formula was registered" in texts[0]


def test_without_a_gradient_by_declaration():
    path = torch_operators.Path()
    op = torch_operators.constant(path)
    assert [op(leaf(3)).requires_grad for _ in range(3)] == [False] * 3
    assert path.taken == ["dispatcher", "direct", "direct"]


@pytest.mark.parametrize("kind", ["once_differentiable", "numpy"])
def test_a_backward_that_cannot_be_differentiated(kind):
    if kind == "numpy":

        def numpy_backward(ctx, grad: np.ndarray) -> np.ndarray:
            return grad * 3

        op = one_of(numpy_backward)
    else:
        op = one_of(once_differentiable(lambda ctx, grad: grad * 3))
    for _ in range(3):
        x = leaf(3)
        (first,) = torch.autograd.grad((op(x) ** 2).sum(), x, create_graph=True)
        torch.testing.assert_close(first, 6 * op(x))
        with pytest.raises(RuntimeError, match="second derivative of "):
            torch.autograd.grad(first.sum(), x)


def test_outputs_that_the_author_marks():
    @ow.custom_op(torch_operators.name_of("marks"), mutates_args=())
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.long()

    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    seen = []

    @op.register_autograd(setup_context=setup_context)
    def _(ctx, first, second):
        seen.append((first is None, second is None))
        return first * 2

    for _ in range(3):
        x = leaf(3)
        first, second = op(x)
        assert (first.requires_grad, second.requires_grad) == (True, False)
        first.sum().backward()
        assert x.grad.tolist() == [2.0] * 3
    assert seen == [(False, True)] * 3


def test_gradcheck_and_gradgradcheck_of_direct_calls():
    path = torch_operators.Path()
    op = torch_operators.with_rule(path)
    x = torch.linspace(0.5, 2, 4, dtype=torch.float64, requires_grad=True)
    op(x)
    assert torch.autograd.gradcheck(op, (x,))
    assert torch.autograd.gradgradcheck(op, (x,))
    assert path.taken.count("direct") > path.taken.count("dispatcher")


@pytest.mark.parametrize(
    "kind",
    [torch_operators.with_rule, torch_operators.of_any, torch_operators.of_numpy, torch_operators.cast],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_backward_of_a_direct_call(kind):
    from torch._dynamo import compiled_autograd

    path = torch_operators.Path()
    op = kind(path)
    found = []
    for turn in range(3):
        x = torch.linspace(0.5, 2, 3).requires_grad_()
        out = op(x * 1)
        if turn < 2:
            out.sum().backward()
        else:
            with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
                out.sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[2], found[0])
    assert path.taken == ["dispatcher", "direct", "direct"]


def test_gradients_that_only_some_arguments_need():
    seen = []

    @ow.custom_op(torch_operators.name_of("needs"), mutates_args=())
    def op(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def setup_context(ctx, inputs, output):
        seen.append(ctx.needs_input_grad)
        ctx.save_for_backward(*inputs)

    @op.register_autograd(setup_context=setup_context)
    def _(ctx, grad):
        x, y = ctx.saved_tensors
        return tuple(grad * o if need else None for o, need in zip((y, x), ctx.needs_input_grad, strict=True))

    for _ in range(3):
        x, y = leaf(3), torch.full((3,), 5.0)
        op(x, y).sum().backward()
        assert x.grad.tolist() == [5.0] * 3
    assert seen == [(True, False)] * 3


def test_operators_whose_gradients_take_the_dispatcher():
    assert not eager.possible(torch_operators.mutating()._record.lowered["torch"])

    @ow.custom_op(torch_operators.name_of("listed"), mutates_args=())
    def op(x: Tensor) -> list[Tensor]:
        return [x * 1, x * 2]

    op.register_autograd(lambda ctx, grads: grads[0] + 2 * grads[1])
    assert not eager.possible(op._record.lowered["torch"])
    for _ in range(4):
        x = leaf(3)
        sum(op(x)).sum().backward()
        assert x.grad.tolist() == [3.0] * 3


def test_lists_with_missing_tensors_have_gradients():
    @ow.custom_op(
        torch_operators.name_of("some"), mutates_args=(), schema="(Tensor?[] xs, Tensor[] ys) -> Tensor"
    )
    def some(xs, ys):
        return ys[0] + sum(x.sum() for x in xs if x is not None)

    def setup_context(ctx, inputs, output):
        ctx.shapes = [None if x is None else x.shape for x in inputs[0]]

    @some.register_autograd(setup_context=setup_context)
    def _(ctx, grad):
        return [None if shape is None else grad.sum().expand(shape) for shape in ctx.shapes], [grad]

    for _ in range(3):
        x, y = leaf(2), leaf(3)
        some([None, x, None], [y]).sum().backward()
        assert (x.grad.tolist(), y.grad.tolist()) == ([3, 3], [1, 1, 1])
