from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.cases import outcome_of
from checks.right_operators import OPERATORS
from opwright.checks.attempts import attempt
from opwright.checks.base import Law, Probe, facts, line_of, merged, raised
from opwright.checks.samples import given
from opwright.errors import layout
from opwright.report import Finding

x = np.ones((2, 3))


def probe_of(adapter, name, *args):
    record = OPERATORS[name]._record
    return Probe(record, adapter, [given(record, args, {})])


def test_a_call_gets_copies(numpy_adapter):
    probe = probe_of(numpy_adapter, "scale_", x, 2.0)
    run = probe.run(probe.samples[0])
    assert (run.outputs[0] == 2).all()
    assert (x == 1).all()


def test_an_exception_of_the_operator_is_kept(numpy_adapter):
    run = probe_of(numpy_adapter, "matmul", x, x).run(given(OPERATORS["matmul"]._record, (x, x), {}))
    assert isinstance(run.error, ValueError)
    assert run.outputs == []


def test_references_are_made_once(numpy_adapter):
    probe = probe_of(numpy_adapter, "sin", x)
    assert probe.reference(probe.samples[0]) is probe.reference(probe.samples[0])


def test_outputs_have_names(numpy_adapter):
    assert probe_of(numpy_adapter, "sin", x).output_names == ["the output"]
    assert probe_of(numpy_adapter, "sort", x).output_names == ["output 0", "output 1"]
    assert probe_of(numpy_adapter, "accumulate", x, x).output_names == [
        "the output",
        "the new value of total",
        "the new value of count",
    ]


@pytest.mark.parametrize(
    "case",
    [
        ("sin", (x,), [x], [x], []),
        ("sin", (x,), [x], [x[:1]], [("shape", "the output", "shape (1, 3)", "shape (2, 3)")]),
        ("sin", (x,), [x], [x.astype(int)], [("dtype", "the output", "dtype int64", "dtype float64")]),
        ("sin", (x,), [x[0, :1]], [x[0, :1] * 2], [("value", "the output", "2 at index (0,)", "1")]),
        ("chunks", (x, 2), [[x]], [[x, x]], [("structure", "the output", "a list of 2", "a list of 1")]),
        ("chunks", (x, 2), [[x]], [[x[0]]], [("shape", "the output[0]", "shape (3,)", "shape (2, 3)")]),
        ("count_positive", (x,), [3], [4], [("structure", "the output", "4", "3")]),
        ("sin", (x,), [3], [x], [("structure", "the output", "float64 (2, 3)", "3")]),
    ],
)
def test_differences_are_named(numpy_adapter, case):
    name, args, got, expected, found = case
    assert list(probe_of(numpy_adapter, name, *args).different(got, expected)) == found


def test_an_errors_facts_are_read():
    text = layout("it failed", expected="this", got="that: twice", fix="try again")
    assert facts(ValueError(text)) == (
        "it failed",
        {"expected": "this", "got": "that: twice", "to fix": "try again"},
    )
    assert facts(ValueError()) == ("", {})


def test_exceptions_are_told_in_a_line():
    assert raised(ValueError("short")) == "ValueError: short"
    assert raised(ValueError()) == "ValueError"
    assert raised(ValueError("first\n" + "x" * 300)) == "ValueError: first ..."


def test_the_line_of_the_authors_file_is_found():
    def fails():
        raise ValueError

    _, error = attempt(fails)
    line = fails.__code__.co_firstlineno + 1
    assert line_of(error, f"{__file__}:1") == f"{__file__}:{line}"
    assert line_of(error, "other.py:1") == "other.py:1"


def test_attempt_returns_one_or_the_other():
    assert attempt(int, "3") == (3, None)
    value, error = attempt(int, "x")
    assert value is None
    assert isinstance(error, ValueError)


def test_findings_are_merged_by_what_they_say():
    one = Finding("OW1", "a", "op", "kernel", "s", "numpy", "this")
    other = Finding("OW1", "a", "op", "kernel", "s", "numpy", "that")
    assert [(finding.what, finding.more) for finding in merged([one, other, one])] == [
        ("this", 1),
        ("that", 0),
    ]


def test_a_law_is_a_check(numpy_adapter):
    def check(probe):
        probe.compared(2)
        probe.skip("one thing")
        probe.skip("one thing")
        yield probe.finding("XX1", "wrong", sample=probe.samples[0])

    probe = probe_of(numpy_adapter, "sin", x)
    law = Law("own", check, {"XX1": "It is wrong."})
    probe.start(law.name)
    (finding,) = law.check(probe)
    assert (finding.law, finding.rule, finding.operator) == ("own", "kernel", "right::sin")
    assert finding.source == OPERATORS["sin"]._record.kernels[0].source
    assert (probe.comparisons, list(probe.skipped)) == (2, ["one thing"])


# -------------------------------------------------------------------------------------- what laws leave out


def test_quick_leaves_layouts_out():
    outcome = outcome_of(OPERATORS["sin"], "layout", x, level="quick")
    assert (outcome.status, outcome.reason) == ("skipped", "level quick looks at the samples as they are")


@pytest.mark.parametrize(
    ("name", "args", "law", "reason"),
    [
        ("full", ([2], 1.0), "layout", "no sample has an array"),
        ("count_positive", (x,), "fake", "no fake is registered"),
        ("dropout", (x, 0.5), "autograd", "the operator is declared random (tag nondeterministic_seeded)"),
    ],
)
def test_what_does_not_apply_is_skipped(name, args, law, reason):
    outcome = outcome_of(OPERATORS[name], law, *args)
    assert (outcome.status, outcome.reason) == ("skipped", reason)


def test_an_operator_without_outputs_has_no_fake_to_compare():
    @ow.custom_op("base::fills", mutates_args=("x",))
    def fills(x: np.ndarray) -> None:
        x[...] = 7

    fills.register_fake(lambda x: None)
    assert outcome_of(fills, "fake", x).reason == "the operator has no outputs"


def test_keyword_only_arrays_are_not_batched():
    @ow.custom_op("base::keyword", mutates_args=())
    def keyword(*, x: np.ndarray) -> np.ndarray:
        return x * 2

    keyword.register_vmap(lambda info, in_dims, *, x: (x, None))
    keyword.register_samples(lambda: [((), {"x": x})])
    assert outcome_of(keyword, "vmap").reason == "no positional argument is an array"


def test_outputs_whose_shape_follows_the_data_are_not_stacked():
    @ow.custom_op("base::positive", mutates_args=())
    def positive(x: np.ndarray) -> np.ndarray:
        return x[x > 0.99].copy()

    positive.register_vmap(lambda info, in_dims, x: (x, 0))
    outcome = outcome_of(positive, "vmap", np.ones(3))
    assert "outputs whose shapes depend on the data cannot be stacked" in outcome.reason


def test_elements_that_the_operator_does_not_accept_are_not_batched():
    calls = []

    @ow.custom_op("base::picky", mutates_args=())
    def picky(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        if len(calls) > 6:
            raise ValueError("enough")
        return x * 2

    picky.register_vmap(lambda info, in_dims, x: (x * 2, in_dims[0]))
    outcome = outcome_of(picky, "vmap", np.ones(3))
    assert outcome.reason == "the operator does not accept varied elements of a batch"


def test_arrays_without_elements_are_not_compared_with_open_sizes():
    @ow.custom_op("base::some", mutates_args=())
    def some(x: np.ndarray) -> np.ndarray:
        if x.size == 0:
            raise ValueError("not supported")
        return x[x > 0].copy()

    some.register_fake(lambda x: x.new_empty((ow.get_ctx().new_dynamic_size(),)))
    outcome = outcome_of(some, "layout", x)
    assert outcome.status == "passed"
    assert outcome.reason == "arrays without elements were not looked at: the fake leaves sizes open"
