from __future__ import annotations

import math

import numpy as np
import pytest

from opwright.checks import numeric


def slope(function, at, dtype="float64"):
    return numeric.slope(lambda t: function(at + t), function(at), abs(at), dtype)


@pytest.mark.parametrize("at", [0.0, 1e-3, 0.7, 3.0, 40.0])
@pytest.mark.parametrize(
    ("function", "derivative"),
    [
        (math.sin, math.cos),
        (lambda x: x**3, lambda x: 3 * x * x),
        (math.exp, math.exp),
        (lambda x: 5.0, lambda x: 0.0),
    ],
)
def test_smooth_functions_are_measured_closely(function, derivative, at):
    found = slope(function, at)
    assert found.distance(derivative(at)) <= 1e-7 * max(1.0, abs(derivative(at)))


def test_a_kink_allows_every_slope_between_the_two_sides():
    found = slope(abs, 0.0)
    assert found.distance(-1.0) < 1e-9
    assert found.distance(0.3) == 0
    assert found.distance(1.5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: math.copysign(1, x),
        lambda x: math.sqrt(x) if x >= 0 else None,
        lambda x: None,
        lambda x: 1e-3 * math.sin(x * 1e12),
    ],
    ids=["a step", "the end of the domain", "nothing", "noise"],
)
def test_what_cannot_be_measured_has_no_slope(function):
    assert slope(function, 0.0) is None


def test_single_precision_is_measured_with_larger_steps():
    found = slope(lambda x: float(np.sin(np.float32(x))), 0.7, "float32")
    assert found.distance(math.cos(0.7)) < 2e-2


def test_noise_of_single_precision_is_not_taken_for_a_slope():
    found = slope(lambda x: float(np.sin(np.float32(x))), 0.7)
    assert found is None or found.distance(math.cos(0.7)) <= 5 * found.error


def test_the_loss_is_the_weighted_sum():
    assert numeric.total([np.array([1.0, 2.0])], [np.array([3.0, 4.0])]) == 11
    assert numeric.total([np.array([1j])], [np.array([2j])]) == 2
    assert numeric.total([np.array([1.0])], [np.array([1.0, 2.0])]) is None
    assert numeric.total([np.array([np.nan])], [np.array([1.0])]) is None


def test_weights_are_away_from_zero_and_repeatable():
    array = np.zeros((3, 4), "complex64")
    weights = numeric.random_like(array, 3)
    assert weights.dtype == array.dtype
    assert (np.abs(weights) >= 0.5).all()
    assert np.array_equal(weights, numeric.random_like(array, 3))
    assert not np.array_equal(weights, numeric.random_like(array, 4))


def test_indices_are_all_or_some():
    assert numeric.chosen_indices(np.zeros((2, 2)), 4, 0) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(set(numeric.chosen_indices(np.zeros((20, 20)), 6, 0))) == 6
    assert numeric.chosen_indices(np.zeros(()), 6, 0) == [()]


def test_sizes_and_products():
    assert numeric.largest(np.array([0.5])) == 1
    assert numeric.largest(np.array([-3.0, np.inf])) == 3
    assert numeric.inner(np.array([1 + 1j]), np.array([2j])) == 2
