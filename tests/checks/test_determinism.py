from __future__ import annotations

import pytest

from checks.cases import assert_caught, finding_of, wrong_operators

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "adds_noise",
        "OW1001",
        "two calls with equal arguments give different results",
        "take the state or generator as an argument, or tags='nondeterministic_seeded'",
    ),
    (
        "counts_shapes",
        "OW1002",
        "the result depends on the calls before",
        "keep nothing from one call to the next, or key it by everything that it depends on",
    ),
    (
        "shares_its_scratch",
        "OW1003",
        "calls from several threads at once give other results",
        "keep buffers and other state local to the call, or take a lock",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(10))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    finding = finding_of(name)
    assert [finding.id, finding.what, finding.fix] == facts
