from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.checks.attempts import attempt
from opwright.checks.blame import chain, culprit, functions


@pytest.fixture(name="op")
def fixture_op(ns):
    def kernel(x: np.ndarray) -> np.ndarray:
        raise ValueError("from the kernel")

    op = ow.custom_op(f"{ns}::f", kernel, mutates_args=())
    op.register_fake(fake)
    op.register_autograd(backward, setup_context=setup_context)
    return op


def fake(x):
    raise ValueError("from the fake")


def setup_context(ctx, inputs, output):
    raise ValueError("from setup_context")


def backward(ctx, grad):
    raise ValueError("from the backward")


def wrapped(fn, *args):
    try:
        fn(*args)
    except ValueError as error:
        raise RuntimeError("around it") from error


def test_functions_have_the_words_of_findings(op):
    words = functions(op._record)
    assert {code.co_name: word for code, word in words.items()} == {
        "kernel": "kernel",
        "fake": "fake",
        "backward": "backward",
        "setup_context": "setup_context",
    }


@pytest.mark.parametrize(
    ("fn", "args", "word"),
    [(fake, (1,), "fake"), (setup_context, (1, 2, 3), "setup_context"), (backward, (1, 2), "backward")],
)
def test_the_function_is_found_under_what_is_wrapped_around_it(op, fn, args, word):
    _, error = attempt(wrapped, fn, *args)
    found, place, inner = culprit(op._record, error)
    assert (found, place) == (word, f"{__file__}:{fn.__code__.co_firstlineno + 1}")
    assert str(inner).startswith("from ")


def test_the_kernel_is_found_under_the_operator(op):
    _, error = attempt(op, np.ones(1))
    assert culprit(op._record, error)[0] == "kernel"


def test_what_comes_from_elsewhere_has_no_culprit(op):
    error = RuntimeError("from elsewhere")
    assert culprit(op._record, error) == ("", "", error)


def test_a_chain_ends():
    first, second, third = RuntimeError(1), RuntimeError(2), RuntimeError(3)
    first.__cause__, second.__context__, third.__context__ = second, first, first
    first.inner_exception = third
    assert set(chain(first)) == {first, second, third}
