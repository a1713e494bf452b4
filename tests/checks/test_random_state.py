from __future__ import annotations

import random

import numpy as np
import pytest

from opwright.checks.random_state import changed


def _nothing():
    np.random.default_rng(0).random()


def _numpy_draws():
    np.random.random()  # noqa: NPY002


def _numpy_seeds():
    np.random.seed(0)  # noqa: NPY002


@pytest.mark.parametrize(
    ("call", "whose"),
    [
        (_nothing, []),
        (_numpy_draws, ["NumPy's"]),
        (_numpy_seeds, ["NumPy's"]),
        (random.random, ["Python's"]),
        (lambda: (random.seed(0), _numpy_seeds()), ["Python's", "NumPy's"]),
    ],
)
def test_what_a_call_draws_or_seeds(call, whose):
    for _ in range(2):
        assert changed(call) == whose


def test_torchs_generator():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    before = torch.get_rng_state()
    assert changed(lambda: torch.manual_seed(0)) == ["PyTorch's"]
    assert changed(lambda: torch.rand(2)) == ["PyTorch's"]
    assert changed(lambda: torch.rand(2, generator=torch.Generator())) == []
    assert torch.equal(torch.get_rng_state(), before)


def test_generators_are_left_as_they_were():
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    with pytest.raises(KeyError):
        changed(lambda: (_ for _ in ()).throw(KeyError))
    changed(_numpy_seeds)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1][1])  # noqa: NPY002
