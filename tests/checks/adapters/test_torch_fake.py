from __future__ import annotations

import numpy as np
import pytest

from checks.torch_operators import define, torch
from opwright.checks.adapters.base import adapter


@pytest.fixture(name="faked")
def fixture_faked(ns):
    """Return what a fake asks when it is run with symbolic sizes."""

    def faked(fake, *arrays, hints=None):
        def op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 2

        operator = define(op, ns, rules=[("fake", fake)])
        return adapter("torch").fake(operator._record, arrays, {} if hints is None else hints)

    return faked


X, Y = np.ones((3, 4)), np.ones((4, 1))


def _line(fake, offset):
    return f"{__file__}:{fake.__code__.co_firstlineno + offset}"


def test_a_relation_is_named_after_the_arguments_with_its_line(faked):
    def fake(x, y):
        if x.shape[1] > 2 * x.shape[0]:
            return x.new_empty((1,))
        return torch.empty_like(x)

    (asked,) = faked(fake, X, Y).asked
    assert asked.answer is False
    assert asked.text == "x.shape[1] > 2*x.shape[0]"
    assert asked.source == _line(fake, 1)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (int, "int(x.shape[0])"),
        (range, "int(x.shape[0])"),
        (lambda n: n == 3, "x.shape[0] == 3"),
        (lambda n: bool(n != 7), "x.shape[0] != 7"),
    ],
)
def test_each_way_to_ask_is_told_apart(faked, use, text):
    def fake(x, y):
        if use(x.shape[0]):
            pass
        return torch.empty_like(x)

    assert [asked.text for asked in faked(fake, X, Y).asked] == [text]


def test_what_torch_asks_itself_does_not_count(faked):
    def fake(x, y):
        torch._check(x.shape[1] == y.shape[0])
        z = (x @ y.new_empty((y.shape[0], 5))).reshape(-1)
        return torch.empty_like(x.transpose(0, 1).contiguous().view(x.shape[1], -1) + z.new_empty((1, 1)))

    assert faked(fake, X, Y).asked == []


def test_hints_stand_for_sizes(faked):
    def fake(x, y):
        return torch.empty_like(x) if x.shape[0] > 5 else x.new_empty(x.shape)

    answers = [faked(fake, X, Y, hints=hints).asked[0].answer for hints in ({}, {3: 7}, {3: 5})]
    assert answers == [False, True, False]


def test_known_sizes_are_no_symbols(ns):
    def op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2

    operator = define(op, ns, rules=[("fake", lambda x, y: x.new_empty((int(x.shape[0]), 2)))])
    found = adapter("torch").fake(operator._record, (X, Y))
    assert (found.asked, found.outputs[0].shape, found.outputs[0].strides) == ([], (3, 2), (2, 1))
