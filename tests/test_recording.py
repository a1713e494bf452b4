from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.wrong_operators import WRONG
from opwright.recording import Recording, recording


@pytest.fixture(name="double")
def fixture_double(ns):
    @ow.custom_op(f"{ns}::double", mutates_args=())
    def double(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        return x * k

    return double


def made(calls):
    return [(record.qualname.partition("::")[2], sample.values) for record, sample in calls.calls]


def test_calls_are_recorded_with_defaults(double):
    with recording() as calls:
        assert (double(np.ones(2)) == 2).all()
    ((name, (x, k)),) = made(calls)
    assert (name, x.tolist(), k) == ("double", [1.0, 1.0], 2.0)
    assert calls.left_out == {}


def test_arguments_are_copied_at_the_call(ns):
    @ow.custom_op(f"{ns}::fill_", mutates_args=("x",))
    def fill_(x: np.ndarray) -> None:
        x[...] = 7

    with recording() as calls:
        fill_(np.zeros(2))
    assert made(calls)[0][1][0].tolist() == [0.0, 0.0]


def test_layouts_are_kept(double):
    with recording() as calls:
        double(np.ones((3, 4)).T)
    assert made(calls)[0][1][0].strides == np.ones((3, 4)).T.strides


def test_calls_that_differ_in_values_alone_are_one(double):
    with recording() as calls:
        for x in (np.ones(2), np.zeros(2), np.ones(3), np.ones(2, "float32")):
            double(x)
        double(np.ones(2), 3.0)
    assert len(calls.calls) == 4


def test_only_so_many_calls_of_an_operator_are_kept(double):
    with recording(distinct=2) as calls:
        for size in range(5):
            double(np.ones(size))
    assert len(calls.calls) == 2
    assert calls.left_out == {"more than 2 different calls of one operator": 3}


def test_operators_defined_meanwhile_are_recorded(ns):
    with recording() as calls:

        @ow.custom_op(f"{ns}::later", mutates_args=())
        def later(x: np.ndarray) -> np.ndarray:
            return x + 1

        later(np.ones(2))
    assert [name for name, _ in made(calls)] == ["later"]
    later(np.ones(3))
    assert len(calls.calls) == 1


def test_nothing_is_recorded_afterwards_and_the_call_function_is_the_old_one(double):
    before = type(double).__call__
    with recording() as calls:
        assert type(double).__call__ is not before
    double(np.ones(2))
    assert type(double).__call__ is before
    assert calls.calls == []


def test_it_ends_where_the_block_raises(double):
    before = type(double).__call__
    with pytest.raises(KeyError), recording():
        raise KeyError
    assert type(double).__call__ is before


def test_calls_of_the_checker_are_not_recorded(double):
    with recording() as calls:
        ow.opcheck(double, (np.ones(3),), frameworks="numpy")
    assert calls.calls == []


def test_what_does_not_fit_is_left_out(double):
    with recording() as calls, pytest.raises(TypeError):
        double(np.ones(2), 1, 2, 3)
    assert (calls.calls, calls.left_out) == ([], {"arguments that cannot be copied (ArgumentError)": 1})


def test_calls_are_checked():
    wrong = next(one for one in WRONG if one.name == "returns_a_view")
    with recording() as calls, pytest.raises(RuntimeError):
        wrong.operator(np.ones((3, 4)))
    (report,) = calls.check(frameworks="numpy", test_utils="schema")
    assert [finding.id for finding in report.findings] == ["OW104"]
    assert "test_recording.py:" in report.findings[0].sample


def test_operators_that_are_gone_are_not_checked(ns):
    @ow.custom_op(f"{ns}::again", mutates_args=())
    def again(x: np.ndarray) -> np.ndarray:
        return x + 1

    with recording() as calls:
        again(np.ones(2))
    ow.custom_op(f"{ns}::again", mutates_args=())(again.__wrapped__)
    assert calls.check(frameworks="numpy") == []
    assert calls.left_out == {"operators that are gone": 1}


def test_one_recording_goes_on(double):
    calls = Recording()
    taken = []
    for size in (1, 2, 2):
        with recording(into=calls):
            double(np.ones(size))
        taken.append(len(calls.take()))
    assert taken == [1, 1, 0]
    assert calls.calls == []


def test_tracers_are_left_out(double):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    double.register_fake(lambda x, k=2.0: ow.empty_like(x))
    with recording() as calls:
        out = jax.jit(double)(np.ones(2, "float32"))
    assert out.tolist() == [2.0, 2.0]
    assert calls.calls == []
    assert len(calls.left_out) == 1


def test_compiled_code_is_not_broken(double):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    double.register_fake(lambda x, k=2.0: ow.empty_like(x))
    ow.attach("torch")
    with recording() as calls:
        out = torch.compile(double, fullgraph=True, backend="eager")(torch.ones(2))
        double(torch.ones(3))
    assert out.tolist() == [2.0, 2.0]
    assert [values[0].shape for _, values in made(calls)] == [(3,)]
