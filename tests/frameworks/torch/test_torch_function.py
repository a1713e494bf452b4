"""Objects that are no tensors and take over torch's functions: they get the operator's overload."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx import symbolic_trace

import opwright as ow
from opwright.errors import ArgumentError

W = torch.tensor([1.0, 2.0])


@ow.custom_op("takes_over::scale", mutates_args=())
def scale(x: Tensor, y: Tensor | None = None, k: float = 2.0, *, n: int = 1) -> Tensor:
    return x * k * n + (0 if y is None else y)


@ow.custom_op("takes_over::first", mutates_args=())
def first(xs: list[Tensor], sizes: list[int]) -> Tensor:
    return xs[0] * sizes[0]


@ow.custom_op("takes_over::on_host", mutates_args=())
def on_host(x: np.ndarray, k: int = 1) -> np.ndarray:
    return x * k


@ow.custom_op("takes_over::filled", mutates_args=())
def filled(size: int, value: float = 1.0) -> Tensor:
    return torch.full((size,), value)


PROGRAMS = {
    "a tensor": (lambda x: scale(x, k=3.0) + 1, (W,)),
    "the second tensor": (lambda y: scale(W, y), (W,)),
    "all by keyword": (lambda x, y: scale(n=3, y=y, x=x), (W, W)),
    "a number with it": (lambda x, k: scale(x, None, k), (W, 3.0)),
    "a number alone": (lambda k: scale(W, None, k), (3.0,)),
    "a keyword-only number": (lambda n: scale(W, n=n), (3,)),
    "in a list": (lambda x: first([x, W], [2, 1]), (W,)),
    "later in a list": (lambda x: first([W, x], [2, 1]), (W,)),
    "the list": (lambda xs: first(xs, [2, 1]), ([W, W],)),
    "a list of numbers": (lambda sizes: first([W], sizes), ([3, 1],)),
    "in a list of numbers": (lambda size: first([W], [size, 1]), (3,)),
    "a kernel of numpy": (lambda x: on_host(x, 3), (W,)),
    "no tensor at all": (lambda size: filled(size), (3,)),
}


@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_symbolic_trace_records_the_operator(name: str, called: bool) -> None:
    program, values = PROGRAMS[name]
    if called:
        program(*values)
    graph = symbolic_trace(program)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert any(str(target).startswith("takes_over.") for target in targets)
    assert torch.equal(graph(*values), program(*values))


class Recorder:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func, args


def test_any_such_object_gets_the_call() -> None:
    given = Recorder()
    assert scale(given) == (torch.ops.takes_over.scale.default, (given, None, 2.0))
    assert first([W, given], [1]) == (torch.ops.takes_over.first.default, ([W, given], [1]))


def test_other_objects_are_refused() -> None:
    for call in (lambda: scale(object()), lambda: scale(W, object())):
        with pytest.raises(ArgumentError, match="must be an array"):
            call()
    with pytest.raises(ArgumentError, match="argument k"):
        scale(W, None, object())
    with pytest.raises(ArgumentError, match="arrays of 2 frameworks"):
        scale(np.ones(2), Recorder())
