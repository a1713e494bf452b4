from __future__ import annotations

import pytest

from checks.cases import assert_caught, facts_of, text_of, wrong_operators

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "wrong_factor",
        "OW301",
        "the gradient for x differs from finite differences",
        "1.72485076 at index (1, 3), by finite differences",
        "2.58727615, 0.862425382 away",
        "correct the formula in the backward",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "broadcast_gradient",
        "OW302",
        "the gradient for x has another shape than x",
        "shape (3, 4)",
        "shape (2, 3, 4)",
        "sum the gradient over the axes that were broadcast, or reshape it",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "single_gradient",
        "OW303",
        "the gradient for x has another dtype than x",
        "dtype float64",
        "dtype float32",
        "convert it to the dtype of x in the backward",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "no_gradient",
        "OW304",
        "the backward gives no gradient for x, on which the outputs depend",
        "1.72485076 at index (1, 3), by finite differences",
        "None",
        "return the gradient for x, or declare non_differentiable=True if none is meant",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "two_gradients",
        "OW306",
        "the backward returned an incorrect number of gradients (expected 1, got 2)",
        "one for each of x",
        "2, more than there are arguments",
        "return None for an argument without a gradient, or a dict by argument name",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "dense_gradient",
        "OW307",
        "the gradient for x differs where the incoming gradient is transposed",
        "-1.85755641 at index (2, 1)",
        "1.55040348; 10 of 12 elements differ",
        "make the incoming gradient contiguous, or use its strides",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "changes_its_gradient",
        "OW308",
        "the backward changed its incoming gradient",
        "its incoming gradient as it was: 0.812547733 at index (0, 0)",
        "1.81254773; 12 of 12 elements differ",
        "work on a copy in the backward",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "changes_a_saved_array",
        "OW309",
        "the backward changed argument x",
        "argument x as it was: 0.125730221 at index (0, 0)",
        "1.12573022; 12 of 12 elements differ",
        "work on a copy in the backward",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "all_or_nothing",
        "OW310",
        "the gradient for x differs where only x needs a gradient",
        "1.88230774 at index (0,)",
        "0; 3 of 3 elements differ",
        "correct the backward",
        "the given sample: x float64 (3,), y float64 (3,)",
    ),
    (
        "not_zero_for_zero",
        "OW311",
        "the gradient for x of a zero gradient is not zero",
        "0 at index (0,)",
        "1; 3 of 3 elements differ",
        "correct the backward",
        "the given sample: x float64 (3,), y float64 (3,)",
    ),
    (
        "keeps_its_output",
        "OW312",
        "the output is kept alive after it was released",
        "memory that is free once nothing uses the result",
        "ctx.result holds it, which makes a reference cycle in PyTorch",
        "keep arrays with ctx.save_for_backward, not as attributes of ctx or in a global",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "counts_its_calls",
        "OW313",
        "the gradient for x is another when it is pulled back again",
        "-1.85755641 at index (2, 1)",
        "-3.71511281; 12 of 12 elements differ",
        "correct the backward",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "not_differentiable_yet",
        "OW305",
        "argument x requires a gradient, but no autograd formula is registered",
        "an autograd formula, or non_differentiable=True",
        "neither",
        "@opwright.register_autograd('wrong::not_differentiable_yet'), or declare non_differentiable=True",
        "the given sample: x float64 (3,)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(3))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    assert facts_of(name) == facts


def test_a_finding_prints_whole():
    assert text_of("wrong_factor") == (
        "OW301 wrong::wrong_factor, backward, numpy: the gradient for x differs from finite "
        "differences\n"
        "  expected: 1.72485076 at index (1, 3), by finite differences\n"
        "  got: 2.58727615, 0.862425382 away\n"
        "  registered at: SOURCE\n"
        "  to fix: correct the formula in the backward\n"
        "  sample: the given sample: x float64 (3, 4)\n"
        "  to see it:\n"
        "    import numpy as np\n"
        "    import opwright as ow\n"
        "    import checks.wrong_operators\n"
        "    op = ow.ops.wrong.wrong_factor.default\n"
        "    x = np.array(ARRAY, 'float64')\n"
        "    out, pull = ow.vjp(op, x)\n"
        "    print(pull(np.ones_like(out)))"
    )
