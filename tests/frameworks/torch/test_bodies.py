"""Which bodies are known to meet no gradient; every doubt counts against one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, enable_grad, nn, sin
from torch.nn import Parameter as Renamed

from opwright.frameworks.torch.bodies import meets_no_gradient

WEIGHT = torch.ones(3, requires_grad=True)
FACTOR = 2.0
LATER = None
fetch = {"weight": WEIGHT}.get


def helper(x):
    return x * WEIGHT


HARMLESS = [
    lambda x: x * 2,
    lambda x: torch.sin(x) + np.pi,
    lambda x: sin(x) * math.pi,
    lambda x, k=2.0: torch.empty_like(x).copy_(x * k),
    lambda x: torch.stack([one * 2 for one in x]),
    lambda x: x if isinstance(x, Tensor) else torch.zeros(len(x)),
    lambda x: torch.zeros(3, dtype=torch.float64) + sum(x),
    lambda x: x * FACTOR,
    torch.sin,
    math.sin,
]
DOUBTFUL = [
    lambda x: x * WEIGHT,
    lambda x: x if LATER is None else x * LATER,
    lambda x: helper(x) + 1,
    lambda x: x * fetch("weight"),
    fetch,
    lambda x: torch.nn.functional.linear(x, x),
    lambda x: nn.functional.relu(x * 2),
    lambda x: [Renamed(x), x * 2][1],
    lambda x: x.requires_grad_() * 2,
    lambda x: torch.zeros(3, requires_grad=True) + x,
    lambda x: dict([("requires_grad", True)], x=x),
    lambda x: [torch.enable_grad(), x * 2][1],
    lambda x: [enable_grad(), x * 2][1],
    lambda x: x * 2 if torch.is_grad_enabled() else x,
    lambda x: getattr(x, "requires" + "_grad_")(),
    lambda x: [eval("WEIGHT") * one for one in x],  # noqa: S307
    lambda x: torch.stack([one * WEIGHT for one in x]),
    pytest.raises,
    nn.Linear(3, 3),
    type("Callable", (), {"__call__": lambda self, x: x})(),
]


@pytest.mark.parametrize("body", HARMLESS, ids=range(len(HARMLESS)))
def test_bodies_that_meet_no_gradient(body):
    assert meets_no_gradient(body)


@pytest.mark.parametrize("body", DOUBTFUL, ids=range(len(DOUBTFUL)))
def test_bodies_that_may_meet_one(body):
    assert not meets_no_gradient(body)


def test_a_body_that_closes_over_anything_may_meet_one():
    weight = 2.0
    assert not meets_no_gradient(lambda x: x * weight)
