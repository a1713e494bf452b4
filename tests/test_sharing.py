"""Arguments that share memory with a mutated one: refused where a gradient or tangent is asked for."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.errors import GradientError
from opwright.sharing import Extent, have_common


@ow.custom_op("sharing::multiply", mutates_args=("x",))
def multiply(x: np.ndarray, y: np.ndarray) -> None:
    x *= y


@multiply.register_autograd(setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
def _(ctx, g):
    x, y = ctx.saved_tensors
    return g * y, g * x


@ow.custom_op("sharing::halve_all", mutates_args=("xs",))
def halve_all(xs: list[np.ndarray]) -> None:
    for x in xs:
        np.divide(x, 2, out=x)


halve_all.register_autograd(lambda ctx, gs: [g / 2 for g in gs])


def _extent(array):
    return Extent(array.__array_interface__["data"][0], array.shape, array.strides, array.itemsize)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (np.s_[:], np.s_[:], True),
        (np.s_[:, :2], np.s_[:, 1:], True),
        (np.s_[:, :2], np.s_[:, 2:], False),
        (np.s_[::2], np.s_[1::2], False),
        (np.s_[:, 0], np.s_[:, 1], False),
        (np.s_[:0], np.s_[:], False),
    ],
)
def test_views_are_compared_by_their_elements(one, other, common):
    for dtype in ("f8", "i1", "c16"):
        base = np.zeros((4, 4), dtype)
        assert have_common(_extent(base[one]), _extent(base[other])) is common
        assert have_common(_extent(base[other]), _extent(base[one].T)) is common


def test_views_that_are_too_hard_to_compare_count_as_sharing():
    sizes = (9,) * 7
    strides = (10007, 10009, 10037, 10039, 10061, 10067, 10069)
    assert have_common(Extent(0, sizes, strides, 1), Extent(3, sizes, strides[::-1], 1))


@pytest.mark.parametrize(
    "run",
    [
        lambda *args: ow.vjp(multiply, *args),
        lambda *args: ow.jvp(multiply, args, tuple(np.ones_like(arg) for arg in args)),
    ],
    ids=["vjp", "jvp"],
)
def test_a_gradient_is_refused_before_anything_is_written(run):
    x = np.array([2.0, 3.0])
    for other, what in ((x, "are one array"), (x[::-1], "share memory")):
        with pytest.raises(GradientError) as error:
            run(x, other)
        assert str(error.value) == (
            f"sharing::multiply: arguments x and y {what}, and x is mutated; such a call has no gradient\n"
            "  expected: arguments with memory of their own where a gradient or tangent is needed\n"
            f"  registered at: {multiply._record.source}\n"
            "  to fix: pass a copy as y, or call it without gradients"
        )
        np.testing.assert_array_equal(x, [2, 3])
    multiply(x, x)
    np.testing.assert_array_equal(x, [4, 9])


def test_what_is_apart_has_its_gradient():
    buffer = np.array([2.0, 3.0, 5.0, 7.0])
    _, pull = ow.vjp(multiply, buffer[::2], buffer[1::2])
    x, y = pull(np.ones(2))
    np.testing.assert_array_equal(x, [3, 7])
    np.testing.assert_array_equal(y, [2, 5])
    np.testing.assert_array_equal(buffer, [6, 3, 35, 7])


def test_one_array_twice_in_a_list():
    x = np.ones(2)
    with pytest.raises(GradientError, match=r"arguments xs\[0\] and xs\[2\] are one array"):
        ow.vjp(halve_all, [x, np.ones(2), x])
