"""What stands in the place of a list of arrays, on every path; and what does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest

import opwright as ow
from opwright.arrays import as_list
from opwright.errors import ArgumentError


class Row(Sequence):
    def __init__(self, values):
        self.values = list(values)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]


def _torch():
    return pytest.importorskip("torch")


def _jax():
    return pytest.importorskip("jax.numpy")


ARRAYS = {
    "numpy": lambda: np.ones(1),
    "fake": lambda: ow.FakeArray((1,)),
    "torch": lambda: _torch().ones(1),
    "jax": lambda: _jax().ones(1),
}


@pytest.fixture
def summed(ns):
    @ow.custom_op(f"{ns}::summed", mutates_args=())
    def summed(xs: list[ow.Array]) -> ow.Array:
        assert type(xs) is list
        return sum(xs) * 1

    summed.register_fake(lambda xs: ow.empty_like(xs[0]))
    return summed


@pytest.fixture
def added(ns):
    @ow.custom_op(f"{ns}::added", mutates_args=())
    def added(x: ow.Array, ys: list[ow.Array]) -> ow.Array:
        assert type(ys) is list
        return x + sum(ys)

    added.register_fake(lambda x, ys: ow.empty_like(x))
    return added


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("wrap", [deque, Row])
def test_a_sequence_cold_and_warm(summed, added, name, wrap):
    one = ARRAYS[name]
    for _ in range(3):
        results = [summed(wrap([one()])), added(one(), wrap([one()]))]
        results += [summed([one()]), added(one(), (one(),))]
        assert [result.shape for result in results] == [(1,)] * 4
        if name != "fake":
            assert [float(result[0]) for result in results] == [1, 2, 1, 2]


def test_a_list_of_parameters(summed):
    torch = _torch()
    parameters = torch.nn.ParameterList([torch.ones(1), torch.ones(1)])
    summed.register_autograd(
        lambda ctx, grad: [grad] * ctx.count,
        setup_context=lambda ctx, inputs, output: setattr(ctx, "count", len(inputs[0])),
    )
    for _ in range(2):
        summed(parameters).sum().backward()
    assert [one.grad.item() for one in parameters] == [2, 2]


def test_in_transforms_of_jax(added):
    jax = pytest.importorskip("jax")
    x = _jax().ones(1)
    assert jax.jit(lambda x: added(x, deque([x])))(x).tolist() == [2]


@pytest.mark.parametrize("value", [{1: 2}, {1}, "ab", b"ab", 3, None, iter([1]), np.ones((2, 2))])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_what_is_no_list(summed, added, value, name):
    one = ARRAYS[name]
    assert as_list(value) is value
    for _ in range(2):
        added(one(), [one()])
        for call in (lambda: summed(value), lambda: added(one(), value)):
            with pytest.raises(ArgumentError, match="must be a list of arrays"):
                call()
