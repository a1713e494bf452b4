"""Tangents that a jvp rule may not return, each named by output in a whole text."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.errors import GradientError
from opwright.source import source_of


@ow.custom_op("tangents::one", mutates_args=())
def one(x: np.ndarray) -> np.ndarray:
    return x + 1


@ow.custom_op("tangents::mixed", mutates_args=())
def mixed(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + 1, np.argsort(x, axis=0)


@ow.custom_op("tangents::listed", mutates_args=())
def listed(xs: list[np.ndarray], y: np.ndarray | None = None) -> list[np.ndarray]:
    return [x + 1 for x in xs]


@ow.custom_op("tangents::bump_", mutates_args=("x",))
def bump_(x: np.ndarray) -> None:
    x += 1


x = np.ones((2, 3), np.float32)


def pushed(op, rule):
    primals, tangents = (([x, x],), ([x, None],)) if op is listed else ((x.copy(),), (x,))
    handle = op.register_jvp(rule)
    try:
        return ow.jvp(op, primals, tangents)[1]
    finally:
        handle.destroy()


def test_what_a_rule_may_return():
    assert pushed(one, lambda ctx, t: 2 * t)[0, 0] == 2
    assert pushed(one, lambda ctx, t: (2 * t,))[0, 0] == 2
    assert pushed(one, lambda ctx, t: None).tolist() == np.zeros((2, 3)).tolist()
    first, second = pushed(mixed, lambda ctx, t: (t, None))
    assert second is None
    assert first.dtype == np.float32
    first, second = pushed(mixed, lambda ctx, t: [t, t])  # a tangent of integers is ignored
    assert second is None
    assert [t.sum() for t in pushed(listed, lambda ctx, ts, y: ts)] == [6, 0]
    assert pushed(bump_, lambda ctx, t: t).sum() == 6


def test_what_a_rule_gets():
    seen = []

    def rule(ctx, xs, y):
        seen.append((ctx.needs_input_grad, xs[1], y))
        return xs

    pushed(listed, rule)
    handle = listed.register_jvp(rule)
    _, tangents = ow.jvp(listed, ([x, x], x), (None, x))
    handle.destroy()
    assert seen == [(([True, False], False), None, None), (([False, False], True), None, pytest.approx(x))]
    assert [t.sum() for t in tangents] == [0, 0]


@pytest.mark.parametrize(
    ("op", "rule", "text"),
    [
        (
            one,
            lambda ctx, t: (t, t),
            "an incorrect number of tangents (expected 1, got 2)\n"
            "  expected: one for each of output_0\n"
            "  got: a tuple of 2",
        ),
        (
            mixed,
            lambda ctx, t: t,
            "an incorrect number of tangents (expected 2, got 1)\n"
            "  expected: one for each of output_0, output_1\n"
            "  got: shape (2, 3), dtype float32",
        ),
        (
            one,
            lambda ctx, t: t[0],
            "a tangent that does not fit output_0\n"
            "  expected: shape (2, 3), dtype float32, those of the output\n"
            "  got: shape (3,), dtype float32",
        ),
        (
            one,
            lambda ctx, t: t.astype(np.float64),
            "a tangent that does not fit output_0\n"
            "  expected: shape (2, 3), dtype float32, those of the output\n"
            "  got: shape (2, 3), dtype float64",
        ),
        (
            one,
            lambda ctx, t: 0.0,
            "a tangent that does not fit output_0\n"
            "  expected: an array of numpy, or None\n"
            "  got: 0.0 of type float",
        ),
        (
            listed,
            lambda ctx, ts, y: ts[0],
            "a tangent that does not fit output_0\n"
            "  expected: a list of 2\n"
            "  got: shape (2, 3), dtype float32",
        ),
        (
            listed,
            lambda ctx, ts, y: ts[:1],
            "a tangent that does not fit output_0\n  expected: a list of 2\n  got: a list of 1",
        ),
        (
            bump_,
            lambda ctx, t: t[0],
            "a tangent that does not fit x\n"
            "  expected: shape (2, 3), dtype float32, those of the output\n"
            "  got: shape (3,), dtype float32",
        ),
    ],
)
def test_what_a_rule_may_not_return(op, rule, text):
    with pytest.raises(GradientError) as caught:
        pushed(op, rule)
    assert str(caught.value) == f"jvp of {op.name} returned {text}\n  registered at: {source_of(rule)}"


def test_an_operator_without_outputs():
    @ow.custom_op("tangents::nothing", mutates_args=())
    def nothing(x: np.ndarray) -> None:
        return None

    nothing.register_jvp(lambda ctx, t: None)
    assert ow.jvp(nothing, (x,), (x,)) == (None, None)
    nothing.register_jvp(lambda ctx, t: t)
    with pytest.raises(GradientError, match="expected: one for each of no outputs"):
        ow.jvp(nothing, (x,), (x,))
