"""``get_ctx``: the context of the fake that is running."""

from __future__ import annotations

import math
import threading

import pytest

import opwright as ow
from opwright.errors import ArgumentValueError, ContextError
from opwright.fake_context import ENTERED, check_bounds, current_ctx, entered_ctx, get_ctx
from opwright.sizes import bounds


def test_get_ctx_outside_a_fake():
    with pytest.raises(ContextError) as caught:
        ow.get_ctx()
    assert str(caught.value) == (
        "get_ctx() can only be called inside a fake\n"
        "  got: a call while no fake is running\n"
        "  to fix: call it in the function that register_fake was given"
    )
    assert isinstance(caught.value, RuntimeError)


def test_contexts_nest_and_end():
    with entered_ctx("outer"):
        with entered_ctx("inner"):
            assert get_ctx() == "inner"
        assert get_ctx() == "outer"
        seen = []
        thread = threading.Thread(target=lambda: seen.append(current_ctx()))
        thread.start()
        thread.join()
        assert seen == [None]
    assert current_ctx() is None


def test_a_context_ends_with_an_exception():
    before = ENTERED[0]
    with pytest.raises(KeyError), entered_ctx("ctx"):
        raise KeyError
    assert current_ctx() is None
    assert ENTERED[0] == before
    with entered_ctx("ctx"):
        assert ENTERED[0] == before + 1


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-1, None, "new_dynamic_size: min must not be negative\n  got: -1"),
        (3, 2, "new_dynamic_size: max must not be below min\n  got: min=3, max=2"),
        (0, -1, "new_dynamic_size: max must not be below min\n  got: min=0, max=-1"),
    ],
)
def test_bounds(low, high, text):
    with pytest.raises(ArgumentValueError) as caught:
        check_bounds(low, high)
    assert str(caught.value) == text
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("bounds", [{"min": "n"}, {"max": "n"}])
def test_symbolic_bounds(bounds):
    n = ow.FakeArray(("n",)).shape[0]
    ((name, _),) = bounds.items()
    with pytest.raises(ArgumentValueError) as caught:
        check_bounds(n if name == "min" else 0, n if name == "max" else None)
    assert str(caught.value) == (
        f"new_dynamic_size: {name} must be a plain int, not a symbolic size\n  got: n of type Size"
    )


def test_the_old_name_of_new_dynamic_size(ns):
    made = []

    @ow.custom_op(f"{ns}::nonzero", mutates_args=())
    def nonzero(x: ow.Array) -> ow.Array:
        return ow.array_namespace(x).nonzero(x)[0]

    @nonzero.register_fake
    def _(x):
        made.extend(ow.get_ctx().create_unbacked_symint(**given) for given in ({}, {"min": 0, "max": 7}))
        return ow.empty(made[0], dtype="int64")

    with pytest.warns(
        FutureWarning, match="^create_unbacked_symint is deprecated; use new_dynamic_size"
    ) as caught:
        out = nonzero(ow.FakeArray(("n",)))
    assert {warning.filename for warning in caught} == {__file__}
    assert out.shape == (made[0],)
    assert [bounds(size) for size in made] == [(2, math.inf), (0, 7)]


def test_bounds_that_are_right():
    check_bounds(0, None)
    check_bounds(2, 2)
    assert current_ctx() is None
