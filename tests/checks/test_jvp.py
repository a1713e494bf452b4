from __future__ import annotations

import pytest

from checks.cases import assert_caught, facts_of, text_of, wrong_operators

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "zero_tangent",
        "OW401",
        "the tangent of output 0 differs from finite differences",
        "-1.82617732 at index (0,), by finite differences",
        "0, 1.82617732 away",
        "correct the jvp",
        "the given sample: x float64 (3,), y float64 (3,)",
    ),
    (
        "one_tangent",
        "OW403",
        "the jvp returned an incorrect number of tangents (expected 2, got 1)",
        "one for each of output_0, output_1",
        "shape (3,), dtype float64",
        "correct the jvp",
        "the given sample: x float64 (3,), y float64 (3,)",
    ),
    (
        "tangent_from_nothing",
        "OW404",
        "the tangent of output 0 for zero tangents is not zero",
        "zeros",
        "1",
        "correct the jvp",
        "the given sample: x float64 (3,), y float64 (3,)",
    ),
    (
        "on_a_grid",
        "OW402",
        "the tangents are not adjoint to the gradients",
        "1.59637268, the weights pulled back, along the direction",
        "0.798186338, the tangents weighted",
        "correct the jvp",
        "the given sample: x float64 (3, 4)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(4))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    assert facts_of(name) == facts


def test_a_finding_prints_whole():
    assert text_of("zero_tangent") == (
        "OW401 wrong::zero_tangent, jvp, numpy: the tangent of output 0 differs from finite "
        "differences\n"
        "  expected: -1.82617732 at index (0,), by finite differences\n"
        "  got: 0, 1.82617732 away\n"
        "  registered at: SOURCE\n"
        "  to fix: correct the jvp\n"
        "  sample: the given sample: x float64 (3,), y float64 (3,)\n"
        "  to see it:\n"
        "    import numpy as np\n"
        "    import opwright as ow\n"
        "    import checks.wrong_operators\n"
        "    op = ow.ops.wrong.zero_tangent.default\n"
        "    x = np.array(ARRAY, 'float64')\n"
        "    y = np.array(ARRAY, 'float64')\n"
        "    print(ow.jvp(op, (x, y,), (np.ones_like(x), np.ones_like(y))))"
    )
