"""The corpus that the checker is measured with: what is in it, and a sample of its faults."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from opwright.checks.runner import LAWS

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("expecttest", reason="expecttest is not installed, which torch's operator database needs")

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "checker"
sys.path.insert(0, str(FOLDER))

import corpus  # noqa: E402  (in the folder above)
import tables  # noqa: E402
from definitions import Case  # noqa: E402
from measure import measure  # noqa: E402
from mutators import MUTATORS, mutants  # noqa: E402
from recipes import RECIPES  # noqa: E402

WRONG = [*corpus.zoo_cases(), *corpus.mutant_cases()]
FEWER = {"call", "device"}  # an operator that raises is no fault of a law; device needs a GPU


def measured(case):
    """Return what both checkers say of a case."""
    first, second = measure(case)
    return first | second


def test_there_are_enough_wrong_operators_for_each_law():
    counts = Counter(law for case in WRONG for law in case.laws[:1])
    assert sum(counts.values()) >= 120
    assert {law for law, count in counts.items() if count >= 5} == set(LAWS) - FEWER


def test_every_law_that_is_named_exists():
    assert {law for case in WRONG for law in case.laws} <= set(LAWS)


def test_names_are_unique():
    counts = Counter(case.id for case in WRONG)
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_mutator_changes_a_recipe():
    assert {mutator.name for mutator, _ in mutants(RECIPES)} == {mutator.name for mutator in MUTATORS}


@pytest.mark.slow
def test_there_are_enough_right_operators():
    counts = Counter(case.group for case in corpus.cases() if not case.wrong)
    assert sum(counts.values()) >= 250
    assert counts["op_db"] > 500
    assert counts["scipy"] > 200


@pytest.mark.parametrize("case", WRONG[::16], ids=lambda case: case.id)
def test_a_sample_of_the_faults_is_caught_by_its_law_with_a_snippet_that_runs(case):
    result = measured(case)
    assert tables.by_law(case, result), result["ours"]
    assert tables.named(case, result), result["ours"]
    assert result["ours"].get("errored", []) == []
    assert [one["snippet_error"] for one in tables.findings(result) if one["snippet_error"]] == []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipes_are_right(recipe):
    case = next(one for one in corpus.recipe_cases() if one.name == recipe.name)
    result = measured(case)
    assert tables.alarms(result) == []
    assert tables.torch_alarms(result) == []


# ----------------------------------------------------------------------------------------------- the tables


def result(*findings, torch=None, seconds=0.5, **ours):
    """Return what could be measured of a case."""
    keys = ("id", "law", "framework", "what", "got", "sample", "snippet", "snippet_error")
    rows = [dict.fromkeys(keys, "") | {"law": law, "what": what, "id": "OW1"} for law, what in findings]
    return {"ours": {"findings": rows, "seconds": seconds, "shared": seconds / 2} | ours, "torch": torch}


def case(name, laws=(), words="", group="zoo"):
    return Case(group, name, lambda: (None, (), {}), None, laws, words)


def test_a_fault_is_caught_by_its_law_with_its_cause():
    one = case("one", ("vmap",), "loop")
    right, other, nothing = result(("vmap", "not a loop")), result(("fake", "shape")), result()
    assert [tables.caught(found) for found in (right, other, nothing)] == [True, True, False]
    assert [tables.by_law(one, found) for found in (right, other, nothing)] == [True, False, False]
    assert [tables.named(one, found) for found in (right, other, nothing)] == [True, False, False]


def test_what_the_definition_refuses_is_caught():
    refused = {"ours": {"refused": "ValueError: no", "seconds": 0.0}}
    assert tables.caught(refused)
    assert tables.by_law(case("one", ("fake",)), refused)


def test_everything_said_of_a_right_operator_is_an_alarm():
    assert tables.alarms(result()) == []
    assert tables.alarms(result(("vmap", "x"))) == ["OW1 : x; ; "]
    assert tables.alarms({"crashed": "exit status -11: "}) == ["crashed: exit status -11: "]
    assert tables.alarms(result(errored=["fake, numpy: Traceback\nKeyError: 1\n"])) == [
        "errored: KeyError: 1 (fake, numpy: Traceback)"
    ]
    assert tables.torch_alarms(result(torch={"refused": "no"})) == ["refused: no"]
    assert tables.torch_alarms(result(torch={"failed": {"test_schema": "E"}})) == ["test_schema: E"]
    assert tables.torch_alarms(result()) == []


def test_what_is_true_of_torch_alone_is_no_false_alarm():
    found = result(("layout", "raises"), torch={"failed": {"test_schema": "E"}, "confirmed": True})
    found["ours"]["findings"][0]["confirmed"] = True
    assert tables.alarms(found) == []
    assert tables.true_alone(found) == ["OW1 : raises; ; "]
    assert tables.torch_alarms(found) == []
    crashed = {"crashed": "exit status -11: ", "alone": "exit status -11"}
    assert tables.alarms(crashed) == []
    assert tables.true_alone(crashed) == ["crashes the process alone too: exit status -11"]


def test_the_report_has_every_table():
    cases = [case("one", ("vmap",), "loop"), case("two"), case("three", ("fake",))]
    twin = {"failed": {}, "seconds": 0.25}
    results = {
        "zoo/one": result(("vmap", "not a loop"), torch=twin),
        "zoo/two": result(torch=twin),
        "zoo/three": result(torch={"failed": {"test_schema": "E"}, "seconds": 0.1}),
    }
    text = list(tables.lines(cases, results, {"op_db": Counter(why=2)}))
    assert "  zoo          2       1           1            1      2     1                1" in text
    assert "  zoo          1             0           0      1     0                0" in text
    assert "  zoo  0.500                             0.250            0.250            1.00" in text
    assert "  op_db: 2 why" in text
    assert "  zoo/three (fake)" in text
    assert not tables.good(cases, results)
    assert tables.good(cases[:2], results)
