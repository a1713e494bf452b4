"""Whose arrays an operator is checked with by default."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.checks.used import frameworks
from opwright.targets import find


def names(op, *arguments, asked=None):
    return [one.name for one in frameworks(find(op), asked, arguments)]


@pytest.fixture(name="defined")
def fixture_defined(ns):
    ow.define(f"{ns}::f", "(Tensor x, Tensor[] more) -> Tensor")
    return f"{ns}::f"


def test_nothing_says_what_the_kernel_takes(defined):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    ow.impl(defined, "cpu", lambda x, more: torch.sin(x))
    assert names(defined, torch.ones(1), []) == ["torch"]
    assert names(defined, jax.numpy.ones(1), [jax.numpy.ones(1)]) == ["jax"]
    for arguments in ((), (np.ones(1), []), (np.ones(1), [torch.ones(1)])):
        assert {"numpy", "torch", "jax"} <= {*names(defined, *arguments)}
    assert names(defined, torch.ones(1), [], asked=["numpy", "jax"]) == ["numpy", "jax"]


def test_all_kernels_are_for_one_framework(defined):
    torch = pytest.importorskip("torch")

    def kernel(x, more):
        return torch.sin(x)

    kernel.__annotations__ = {"x": torch.Tensor, "more": list[torch.Tensor], "return": torch.Tensor}
    ow.impl(defined, "cpu", kernel)
    assert names(defined) == names(defined, np.ones(1), []) == ["torch"]


def test_a_kernel_says_that_it_takes_any_arrays(defined):
    torch = pytest.importorskip("torch")

    def kernel(x: ow.Array, more: list[ow.Array]) -> ow.Array:
        return x + 1

    kernel.__annotations__ = {"x": ow.Array, "more": list[ow.Array], "return": ow.Array}
    ow.impl(defined, "cpu", kernel)
    assert {"numpy", "torch"} <= {*names(defined, torch.ones(1), [])}


def test_an_operator_that_was_defined_for_torch_tensors_passes_opcheck(defined):
    torch = pytest.importorskip("torch")
    ow.impl(defined, "cpu", lambda x, more: torch.sin(x))
    ow.register_fake(defined, lambda x, more: torch.empty_like(x))
    report = ow.opcheck(find(defined).operator, (torch.ones(3), []))
    assert set(report.values()) == {"SUCCESS"}
    assert report.frameworks == ["torch"]
