from __future__ import annotations

import pytest

from checks.cases import assert_caught, facts_of, text_of, wrong_operators

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "ignores_in_dims",
        "OW501",
        "the output differs from a loop where the batch axis is the last",
        "3 at index (0, 2)",
        "0; 7 of 9 elements differ",
        "correct the vmap rule: it must look at in_dims",
        "the given sample, the batch axis is the last: x float64 (3, 3)",
    ),
    (
        "always_batched",
        "OW504",
        "the vmap rule raises where only x is batched",
        "the result of a loop",
        "TypeError: 'NoneType' object is not iterable",
        "correct the vmap rule",
        "the given sample, only x is batched: x float64 (3, 3), y float64 (3,)",
    ),
    (
        "only_the_output",
        "OW503",
        "the vmap rule returned something else than (outputs, out_dims)",
        "a pair of the outputs and the batch axis of each",
        "shape (3, 3, 4), dtype float64",
        "return out, 0 for an output with the batch in front, out, None for one without",
        "the given sample, the batch axis is the first: x float64 (3, 3, 4)",
    ),
    (
        "one_axis_more",
        "OW502",
        "the output differs from a loop where the batch axis is the first",
        "shape (3, 3, 4)",
        "shape (3, 3, 4, 1)",
        "correct the vmap rule: it must look at in_dims",
        "the given sample, the batch axis is the first: x float64 (3, 3, 4)",
    ),
    (
        "no_empty_batch",
        "OW505",
        "the vmap rule raises where the batch has no elements",
        "the result of a loop",
        "ValueError: need at least one array to stack",
        "correct the vmap rule",
        "the given sample, the batch has no elements: x float64 (0, 3, 4)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(5))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    assert facts_of(name) == facts


def test_a_finding_prints_whole():
    assert text_of("ignores_in_dims") == (
        "OW501 wrong::ignores_in_dims, vmap rule, numpy: the output differs from a loop where the "
        "batch axis is the last\n"
        "  expected: 3 at index (0, 2)\n"
        "  got: 0; 7 of 9 elements differ\n"
        "  registered at: SOURCE\n"
        "  to fix: correct the vmap rule: it must look at in_dims\n"
        "  sample: the given sample, the batch axis is the last: x float64 (3, 3)\n"
        "  to see it:\n"
        "    import numpy as np\n"
        "    import opwright as ow\n"
        "    import checks.wrong_operators\n"
        "    op = ow.ops.wrong.ignores_in_dims.default\n"
        "    x = np.array(ARRAY, 'float64')\n"
        "    batched = ow.vmap(op, (-1,))\n"
        "    print(batched(x))"
    )
