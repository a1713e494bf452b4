from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.right_operators import OPERATORS
from opwright.testing import fake, samples


def test_samples_are_the_arguments_of_calls_with_defaults_filled_in():
    (args, kwargs), *rest = samples(OPERATORS["weighted"])
    assert rest == []
    assert len(args) == 1
    assert set(kwargs) == {"weight", "power"}
    assert kwargs["power"] == 1
    OPERATORS["weighted"](*args, **kwargs)


def test_samples_are_new_each_time():
    first, second = samples("right::sin"), samples("right::sin")
    assert len(first) == len(second) == 3


def test_samples_of_an_operator_without_any_are_none():
    @ow.custom_op("testing::bare", mutates_args=())
    def bare(x: np.ndarray) -> np.ndarray:
        return x + 1

    assert samples(bare) == []


def test_samples_that_are_none_are_refused():
    @ow.custom_op("testing::odd", mutates_args=())
    def odd(x: np.ndarray) -> np.ndarray:
        return x + 1

    def declared():
        yield np.ones(3)

    odd.register_samples(declared)
    with pytest.raises(TypeError) as raised:
        samples(odd)
    assert str(raised.value) == (
        "the samples of testing::odd are not samples\n"
        "  expected: tuples of arguments, or pairs of a tuple and a dict of keyword arguments\n"
        "  got: an entry of type ndarray\n"
        f"  registered at: {__file__}:{declared.__code__.co_firstlineno}"
    )


def test_fake_returns_what_the_fake_does():
    out = fake(OPERATORS["cat"], [np.ones((2, 3)), np.ones((1, 3))])
    assert repr(out) == "FakeArray((3, 3), float64, cpu)"


def test_fake_takes_fakes_and_lists_as_tuples():
    x = ow.FakeArray(("n", 3))
    assert repr(fake("right::cat", (x, x))) == "FakeArray((2*n, 3), float64, cpu)"
