from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.cases import assert_caught, facts_of, text_of, wrong_operators

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "reads_the_buffer",
        "OW901",
        "the output differs where x is transposed",
        "1.36159505 at index (1, 1), as for a contiguous copy",
        "-0.265421471; 10 of 12 elements differ",
        "make x contiguous in the kernel, or use its strides",
        "the given sample, x transposed: x float64 (3, 4) strides (8, 24)",
    ),
    (
        "only_contiguous",
        "OW902",
        "the kernel raises where x is transposed",
        "the result that it returns for a contiguous copy of x",
        "ValueError: not contiguous",
        "make x contiguous in the kernel, with numpy.asarray(x, order='C')",
        "the given sample, x transposed: x float64 (3, 4) strides (8, 24)",
    ),
    (
        "largest",
        "OW903",
        "kernel and fake disagree on arrays without elements",
        "both return, or both raise",
        "the kernel: ValueError: zero-size array to reduction operation maximum which has no identity; "
        "the fake: returns",
        "return early where there are no elements, or raise in both",
        "the given sample, size 3 made 0: x float64 (0,)",
    ),
    (
        "nan_by_layout",
        "OW904",
        "the output differs where x is transposed and holds NaN and infinities",
        "nan at index (0, 0), as for a contiguous copy",
        "0; 3 of 12 elements differ",
        "read the elements of the argument, and those only",
        "the given sample, NaN and infinities in x, x transposed: x float64 (3, 4) strides (8, 24)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(9))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    assert facts_of(name) == facts


def test_a_finding_prints_whole():
    assert text_of("reads_the_buffer") == (
        "OW901 wrong::reads_the_buffer, kernel, numpy: the output differs where x is transposed\n"
        "  expected: 1.36159505 at index (1, 1), as for a contiguous copy\n"
        "  got: -0.265421471; 10 of 12 elements differ\n"
        "  registered at: SOURCE\n"
        "  to fix: make x contiguous in the kernel, or use its strides\n"
        "  sample: the given sample, x transposed: x float64 (3, 4) strides (8, 24)\n"
        "  to see it:\n"
        "    import numpy as np\n"
        "    import opwright as ow\n"
        "    import checks.wrong_operators\n"
        "    op = ow.ops.wrong.reads_the_buffer.default\n"
        "    x = np.array(ARRAY, 'float64')\n"
        "    x = np.asfortranarray(x)\n"
        "    print(op(x))\n"
        "    x = x.copy()\n"
        "    print(op(x))"
    )


def test_an_axis_that_goes_with_another_one_is_not_emptied_alone(ns):
    def packed(bits: np.ndarray, weight: np.ndarray) -> np.ndarray:
        values = np.unpackbits(bits, axis=1)[:, : weight.shape[1]]
        return values.astype(weight.dtype) @ weight.T

    operator = ow.custom_op(f"{ns}::packed", packed, mutates_args=())
    operator.register_fake(lambda bits, weight: weight.new_empty((bits.shape[0], weight.shape[0])))
    args = np.ones((3, 2), np.uint8), np.ones((5, 12))
    report = ow.opcheck(operator, args, frameworks="numpy", test_utils=["layout"])
    assert report.outcome("layout", "numpy").status == "passed"


def test_a_count_of_elements_is_believed(ns):
    sizes = []

    def head(x: np.ndarray, n: int) -> np.ndarray:
        sizes.append((x.size, n))
        return np.ascontiguousarray(x).reshape(-1)[:n].copy()

    operator = ow.custom_op(f"{ns}::head", head, mutates_args=())
    operator.register_fake(lambda x, n: x.new_empty((n,)))
    report = ow.opcheck(operator, (np.ones(8), 8), frameworks="numpy", level="thorough")
    assert report.ok
    assert sizes
    assert all(n <= size for size, n in sizes)
