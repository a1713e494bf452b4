from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.cases import assert_caught, facts_of, text_of, wrong_operators

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "always_raises",
        "OW001",
        "the operator raises on a sample",
        "a result",
        "ValueError: no luck",
        "correct the kernel, or the sample",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "one_output_for_two",
        "OW002",
        "the kernel returned something else than its schema says",
        "a tuple of 2: wrong::one_output_for_two(Tensor x) -> (Tensor, Tensor)",
        "tuple of 1 (numpy.ndarray)",
        "correct what the kernel returns, or its return annotation",
        "the given sample: x float64 (3, 4)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(0))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    assert facts_of(name) == facts


def test_a_finding_prints_whole():
    assert text_of("always_raises") == (
        "OW001 wrong::always_raises, kernel, numpy: the operator raises on a sample\n"
        "  expected: a result\n"
        "  got: ValueError: no luck\n"
        "  registered at: SOURCE\n"
        "  to fix: correct the kernel, or the sample\n"
        "  sample: the given sample: x float64 (3, 4)\n"
        "  to see it:\n"
        "    import numpy as np\n"
        "    import opwright as ow\n"
        "    import checks.wrong_operators\n"
        "    op = ow.ops.wrong.always_raises.default\n"
        "    x = np.array(ARRAY, 'float64')\n"
        "    print(op(x))"
    )


@pytest.mark.parametrize("annotated", [False, True])
def test_a_kernel_without_annotations_may_be_for_one_framework(ns, annotated):
    def raising(x):
        raise ValueError("no luck")

    if annotated:
        raising.__annotations__ = {"x": np.ndarray, "return": np.ndarray}
    operator = ow.custom_op(f"{ns}::f", raising, mutates_args=(), schema="(Tensor x) -> Tensor")
    options = {"frameworks": "numpy", "test_utils": "schema", "raise_exception": False}
    (finding,) = ow.opcheck(operator, (np.ones(3),), **options).findings
    hint = "; if the kernel is for one framework's arrays only, annotate it with them, or pass flavour="
    assert (finding.id, finding.fix) == (
        "OW001",
        f"correct the kernel, or the sample{'' if annotated else hint}",
    )
