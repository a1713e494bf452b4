"""Batching: keyword-only tensors, empty batches, and rules that return something wrong."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import opwright as ow
from opwright.errors import OutputError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*has no vmap rule")
NS = "torch_vmap"


@ow.custom_op(f"{NS}::weigh", mutates_args=())
def weigh(x: Tensor, k: float = 1.0, *, w: Tensor, s: float = 2.0) -> Tensor:
    return x * w * k * s


@ow.custom_op(f"{NS}::two", mutates_args=())
def two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.sum(0).to(torch.int64)


two.register_fake(lambda x: (torch.empty_like(x), x.new_empty(x.shape[1:], dtype=torch.int64)))


@ow.custom_op(f"{NS}::counted", mutates_args=())
def counted(x: Tensor) -> tuple[Tensor, float]:
    return x * 2, float(x.sum())


counted.register_fake(lambda x: (torch.empty_like(x), 0.0))


@ow.custom_op(f"{NS}::ragged", mutates_args=())
def ragged(x: Tensor, lists: bool) -> list[Tensor]:
    size = int(x[0])
    return [x.clone() for _ in range(size)] if lists else [x[:size].clone()]


@ow.custom_op(f"{NS}::halves", mutates_args=())
def halves(xs: list[Tensor], y: Tensor) -> list[Tensor]:
    return [x / 2 * y for x in xs]


@pytest.fixture(params=["operator", "torch.ops"])
def route(request):
    if request.param == "operator":
        return lambda op: op
    return lambda op: getattr(torch.ops.torch_vmap, op.name.partition("::")[2])


def _weigh_rule(info, in_dims, x, k, *, w, s):
    dims = dict(zip("xkws", (*in_dims, None, None), strict=False))
    x = x.movedim(dims["x"], 0) if dims["x"] is not None else x.expand(info.batch_size, *x.shape)
    w = w.movedim(dims["w"], 0) if dims["w"] is not None else w.expand(info.batch_size, *w.shape)
    return weigh(x, k, w=w, s=s), 0


@pytest.mark.parametrize("rule", [None, _weigh_rule])
def test_keyword_only_tensors(route, rule):
    handle = None if rule is None else ow.register_vmap(weigh, rule)
    call = route(weigh)
    x, w = torch.randn(4, 3), torch.randn(3, 4)
    assert torch.allclose(vmap(lambda a, b: call(a, 3.0, w=b), in_dims=(0, 1))(x, w), x * w.T * 6)
    assert torch.allclose(vmap(lambda a: call(a, w=w[:, 0]))(x), x * w[:, 0] * 2)
    assert torch.allclose(vmap(lambda b: call(x[0], w=b), in_dims=1)(w), x[0] * w.T * 2)
    nested = vmap(lambda a: vmap(lambda b: call(a, w=b), in_dims=1)(w))(x)
    assert torch.allclose(nested, x[:, None] * w.T[None] * 2)
    if handle is not None:
        handle.destroy()


def test_lists_and_a_loop(route):
    x, y = torch.randn(4, 3), torch.randn(3, 4)
    found = vmap(lambda a, b: route(halves)([a, b], a), in_dims=(0, 1))(x, y)
    assert torch.allclose(found[0], x * x / 2)
    assert torch.allclose(found[1], y.T * x / 2)


def test_an_empty_batch(route):
    first, second = vmap(route(two))(torch.zeros(0, 3, 2))
    assert (first.shape, second.shape, second.dtype) == ((0, 3, 2), (0, 2), torch.int64)


def test_the_loop_over_another_axis(route):
    first, second = vmap(route(two), in_dims=1, out_dims=(2, 1))(torch.ones(3, 4, 2))
    assert first.shape == (3, 2, 4)
    assert second.shape == (2, 4)


@pytest.mark.parametrize(
    ("rule", "what", "expected", "got"),
    [
        (
            lambda info, d, x: x,
            "something else than (outputs, out_dims)",
            "a pair of the outputs and the batch axis of each",
            "shape (2, 3), dtype torch.float32",
        ),
        (
            lambda info, d, x: (x, x, x),
            "something else than (outputs, out_dims)",
            "a pair of the outputs and the batch axis of each",
            "a tuple of 3 (Tensor, Tensor, Tensor)",
        ),
        (
            lambda info, d, x: ((x,), 0),
            "a wrong number of outputs",
            f"2: {two.schema}",
            "a tuple of 1 (Tensor)",
        ),
        (
            lambda info, d, x: ((x, x), (0, "a")),
            "something else than an axis as out_dim of output 1",
            "an int, or None for an output that is not batched",
            "'a' of type str",
        ),
        (
            lambda info, d, x: ((x, x), (0, 0, 0)),
            "a wrong number of out_dims",
            "2, one for each output",
            "(0, 0, 0)",
        ),
        (
            lambda info, d, x: (((x,), x), 0),
            "a list as output 0",
            f"no list: {NS}::two(Tensor x) -> (Tensor, Tensor)",
            "a tuple of 1 (Tensor)",
        ),
        (
            lambda info, d, x: ((x, x), (0, 1)),
            "an out_dim for output 1 that is not the batch's axis",
            "an axis of size 2",
            "axis 1 of shape (2, 3)",
        ),
        (
            lambda info, d, x: ((x, x), 2),
            "an impossible out_dim for output 0",
            "an axis of output 0, from -2 to 1",
            "2 for shape (2, 3)",
        ),
    ],
)
def test_a_rule_that_returns_something_wrong(route, rule, what, expected, got):
    handle = ow.register_vmap(two, rule)
    with pytest.raises(OutputError) as error:
        vmap(route(two))(torch.randn(2, 3))
    fix = "\n  to fix: return out, 0 for an output with the batch in front, out, None for one without"
    assert str(error.value) == (
        f"the vmap rule of {NS}::two returned {what}\n"
        f"  expected: {expected}\n"
        f"  got: {got}\n"
        f"  registered at: {handle.source}"
    ) + (fix if "pair" in expected else "")
    handle.destroy()


def test_a_number_that_all_entries_share_is_the_number_of_the_batch(route):
    doubled, number = vmap(route(counted), out_dims=(0, None))(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    assert doubled.tolist() == [[2.0, 4.0], [6.0, 0.0]]
    assert number == 3.0


def test_a_number_that_is_nan_for_all_entries(route):
    _, number = vmap(route(counted), out_dims=(0, None))(torch.full((2, 3), torch.nan))
    assert math.isnan(number)
    with pytest.raises(UnsupportedError, match=r"got: nan and 3\.0"):
        vmap(route(counted), out_dims=(0, None))(torch.tensor([[torch.nan] * 3, [1.0] * 3]))


@pytest.mark.parametrize(
    ("call", "x", "got"),
    [
        (counted, [[1.0, -1.0], [1.0, 1.0]], "0.0 and 2.0"),
        (lambda x: ragged(x, True), [[1.0, 1.0], [2.0, 1.0]], "lists of 1 and 2"),
        (lambda x: ragged(x, False), [[1.0, 1.0], [2.0, 1.0]], "(1,) and (2,)"),
    ],
)
def test_outputs_that_differ_between_entries_are_refused_as_by_opwright_vmap(call, x, got):
    with pytest.raises(UnsupportedError) as error:
        vmap(call)(torch.tensor(x))
    name, index = ("counted", 1) if call is counted else ("ragged", 0)
    assert str(error.value) == (
        f"vmap of {NS}::{name}: output {index} differs between the elements of the batch\n"
        "  expected: one shape and dtype, length or value for all of them\n"
        f"  got: {got}\n"
        "  to fix: pad it inside the operator, or call the operator in a loop of your own"
    )


def test_a_number_of_a_rule(route):
    handle = ow.register_vmap(counted, lambda info, in_dims, x: ((x * 2, 7.0), (0, None)))
    assert vmap(route(counted), out_dims=(0, None))(torch.ones(2, 3))[1] == 7.0
    handle.destroy()
    handle = ow.register_vmap(counted, lambda info, in_dims, x: ((x * 2, x.sum(1)), 0))
    with pytest.raises(OutputError, match="returned an array as output 1"):
        vmap(route(counted))(torch.ones(2, 3))
    handle.destroy()


def test_per_sample_gradients_of_a_looped_operator(route):
    @ow.custom_op(f"{NS}::square", mutates_args=())
    def square(x: Tensor) -> Tensor:
        return x * x

    square.register_autograd(
        lambda ctx, g: 2 * g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    x = torch.randn(2, 3)
    assert torch.allclose(vmap(grad(lambda y: route(square)(y).sum()))(x), 2 * x)
