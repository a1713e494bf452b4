"""Torch as a framework of the engine: what it lowers, arrays of others, and the table that Dynamo reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.frameworks.base import RULE_KINDS, load
from opwright.frameworks.torch import FRAMEWORK

NS = "torch_framework"


def test_every_kind_of_rule_is_lowered():
    assert load("torch") is FRAMEWORK
    assert set(RULE_KINDS) <= set(FRAMEWORK.lowered) | set(FRAMEWORK.unsupported)
    assert all(FRAMEWORK.lowered.values())


def test_the_default_device_is_known_after_it_was_taken_back():
    torch.set_default_device("meta")
    try:
        assert FRAMEWORK.device_type(None) == "meta"
    finally:
        torch.set_default_device(None)
    assert FRAMEWORK.device_type(None) == "cpu"
    with torch.device("meta"):
        assert FRAMEWORK.device_type(None) == "meta"


def test_devices_and_arrays():
    assert FRAMEWORK.device_type(torch.empty(1, device="meta")) == "meta"
    assert FRAMEWORK.device_type(None) == "cpu"
    array = np.arange(3.0)
    tensor = FRAMEWORK.from_numpy(array)
    array[0] = 7
    assert tensor[0] == 7
    assert FRAMEWORK.to_numpy(tensor)[0] == 7
    assert torch.equal(FRAMEWORK.from_dlpack(np.ones(2)), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("change", ["kernel", "rule", "destroy", "enable"])
def test_plain_classes_stay_in_the_table(change):
    @ow.custom_op(f"{NS}::{change}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x + 1

    table = op._record.table
    assert {torch.Tensor, torch.nn.Parameter} <= set(table)
    if change == "kernel":
        op.register_kernel("cpu", lambda x: x + 2)
    elif change == "rule":
        op.register_fake(lambda x: torch.empty_like(x))
    elif change == "destroy":
        ow.register_autograd(op, lambda ctx, g: g).destroy()
    else:
        with op.set_kernel_enabled("cpu", enabled=False):
            assert {torch.Tensor, torch.nn.Parameter} <= set(table)
    assert {torch.Tensor, torch.nn.Parameter} <= set(table)


def test_compiled_before_the_first_call():
    @ow.custom_op(f"{NS}::first", mutates_args=())
    def op(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    op.register_fake(lambda x, y: torch.empty_like(x))
    torch._dynamo.reset()
    explained = torch.compile(op, fullgraph=True, backend="eager")
    parameter = torch.nn.Parameter(torch.ones(2))
    assert torch.equal(explained(parameter, torch.ones(2)).detach(), torch.full((2,), 2.0))
