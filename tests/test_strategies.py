from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opwright as ow
from checks.right_operators import OPERATORS
from opwright.errors import ArgumentValueError, RegistrationValueError
from opwright.strategies import arrays_of, search, strategy

TRIED = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def drawn(op, **arguments):
    """Return the calls that are drawn."""
    calls = []

    @TRIED
    @given(strategy(op, **arguments))
    def collect(call):
        calls.append(call)

    collect()
    assert calls
    return calls


@pytest.mark.parametrize("name", ["sin", "mul", "matmul", "linear", "weighted", "cast", "reduce", "full"])
def test_calls_fit_the_schema(name):
    schema = OPERATORS[name].schema
    for args, kwargs in drawn(OPERATORS[name]):
        assert len(args) == len(schema.positional)
        assert set(kwargs) == {argument.name for argument in schema.keyword_only}


def test_sizes_that_are_equal_in_a_sample_stay_equal():
    shapes = {(x.shape, y.shape) for (x, y), _ in drawn(OPERATORS["matmul"])}
    assert all(x[-1] == y[0] for x, y in shapes)
    assert len(shapes) > 3


def test_sizes_go_down_to_zero():
    assert any(0 in args[0].shape for args, _ in drawn(OPERATORS["sort"]))


def test_flags_choices_and_none_are_drawn(ns):
    @ow.custom_op(f"{ns}::all_kinds", mutates_args=())
    def all_kinds(
        x: np.ndarray,
        flag: bool,
        how: Literal["sum", "mean"],
        y: np.ndarray | None,
        k: int,
    ) -> np.ndarray:
        return x

    all_kinds.register_samples(lambda: [(np.ones(2), False, "sum", np.ones(2), 3)])
    calls = drawn(all_kinds)
    assert {args[1] for args, _ in calls} == {False, True}
    assert {args[2] for args, _ in calls} == {"sum", "mean"}
    assert {args[3] is None for args, _ in calls} == {False, True}
    assert {args[4] for args, _ in calls} == {3}


def test_without_samples_the_schema_decides(ns):
    @ow.custom_op(f"{ns}::fresh", mutates_args=(), flavour="numpy")
    def fresh(
        x: ow.Array,
        xs: list[ow.Array],
        sizes: list[int],
        how: Literal["a", "b"],
        scale: float = 0.5,
        y: ow.Array | None = None,
        *,
        flag: bool = True,
        z: complex = 1j,
        dtype: np.dtype | None = None,
        name: str = "n",
    ) -> ow.Array:
        return x

    for (x, xs, sizes, how, scale, y), rest in drawn(fresh):
        assert isinstance(x, np.ndarray)
        assert all(one.shape == x.shape for one in xs)
        assert y is None or y.shape == x.shape
        assert all(type(size) is int for size in sizes)
        assert how in ("a", "b")
        assert isinstance(scale, float)
        assert set(rest) == {"flag", "z", "dtype", "name"}
        assert rest["name"] == "n"


def test_arguments_are_given_by_name():
    calls = drawn(OPERATORS["logsumexp"], axis=st.just(-1))
    assert {args[1] for args, _ in calls} == {-1}


def test_numbers_are_multiples_of_a_sixteenth():
    for (x,), _ in drawn(OPERATORS["sort"]):
        assert (x * 16 == np.round(x * 16)).all()


def test_an_unknown_argument_is_an_error():
    with pytest.raises(ArgumentValueError) as raised:
        strategy(OPERATORS["sin"], y=st.none())
    assert str(raised.value) == "strategy of right::sin: no argument is named y\n  expected: x"


def test_an_argument_that_cannot_be_drawn_is_an_error(ns):
    @ow.custom_op(f"{ns}::word", mutates_args=())
    def word(x: np.ndarray, name: str) -> np.ndarray:
        return x

    with pytest.raises(ArgumentValueError) as raised:
        strategy(word)
    assert str(raised.value) == (
        f"strategy of {ns}::word: argument name cannot be drawn\n"
        "  got: type str\n"
        "  to fix: give a strategy for it: strategy(op, name=...)"
    )


def test_hypothesis_is_asked_for(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RegistrationValueError) as raised:
        strategy(OPERATORS["sin"])
    assert str(raised.value) == "Hypothesis is not installed\n  to fix: pip install hypothesis"


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int32", "uint8", "bool"])
def test_arrays_have_the_dtype_and_the_axes(dtype):
    seen = []

    @TRIED
    @given(arrays_of(2, dtype))
    def collect(array):
        seen.append(array)

    collect()
    assert {(array.dtype.name, array.ndim) for array in seen} == {(dtype, 2)}


# -------------------------------------------------------------------------------------------------- search


@pytest.fixture(name="wrong_from_three")
def fixture_wrong_from_three(ns):
    @ow.custom_op(f"{ns}::wrong_from_three", mutates_args=())
    def wrong_from_three(x: np.ndarray) -> np.ndarray:
        return x[:2] if x.ndim == 1 and len(x) > 2 else x + 0

    return wrong_from_three


def test_a_failure_shrinks_to_its_smallest_input(wrong_from_three):
    report = search(wrong_from_three, frameworks="numpy", x=arrays_of(1, largest=8))
    assert [finding.id for finding in report.findings] == ["OW104"]
    assert report.findings[0].sample == "the given sample: x float64 (3,)"


def test_a_failure_is_found_from_samples(wrong_from_three):
    wrong_from_three.register_samples(lambda: [(np.ones(2),)])
    report = search(wrong_from_three, frameworks="numpy", test_utils="schema")
    assert report.findings[0].sample == "the given sample: x float64 (3,)"
    assert "x = np.array([1., 1., 1.], 'float64')" in report.findings[0].snippet


def test_nothing_is_found_in_a_right_operator():
    assert search(OPERATORS["matmul"], frameworks="numpy", max_examples=10) is None


def test_calls_that_the_operator_refuses_are_no_failures(ns):
    @ow.custom_op(f"{ns}::picky", mutates_args=())
    def picky(x: np.ndarray) -> np.ndarray:
        if x.ndim != 1:
            raise ValueError("one axis, please")
        return x + 1

    assert search(picky, frameworks="numpy", max_examples=10) is None


def test_opcheck_inside_given_shrinks(wrong_from_three):
    smallest = []

    @settings(TRIED, max_examples=100)
    @given(strategy(wrong_from_three, x=arrays_of(1)))
    def test(call):
        args, kwargs = call
        smallest[:] = [args[0]]
        ow.opcheck(wrong_from_three, args, kwargs, frameworks="numpy", level="quick")

    with pytest.raises(AssertionError, match="OW104"):
        test()
    assert smallest[0].tolist() == [1.0, 1.0, 1.0]
