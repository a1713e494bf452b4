from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.cases import assert_caught, facts_of, one, report_of, text_of, wrong_operators
from checks.right_operators import OPERATORS
from opwright.checks.functionalization import _surroundings
from opwright.checks.runner import opcheck

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "writes_to_a_copy",
        "OW701",
        "the new value of x differs where x is transposed",
        "2.60800009 at index (1, 2), as for a contiguous x",
        "1.30400005; 12 of 12 elements differ",
        "write through x as it was passed, not through a contiguous copy of it",
        "the given sample, x transposed: x float64 (3, 4) strides (8, 24)",
    ),
    (
        "writes_to_contiguous_only",
        "OW702",
        "the kernel raises where x is transposed",
        "the result that it gives for a contiguous x",
        "ValueError: not contiguous",
        "write the result back with x[...] = y",
        "the given sample, x transposed: x float64 (3, 4) strides (8, 24)",
    ),
    (
        "clears_the_gaps",
        "OW703",
        "the kernel writes beside x where that is sliced",
        "memory that is not part of x as it was",
        "8 other bytes changed",
        "use the strides and the offset of x",
        "the given sample, x sliced: x float64 (3, 4) strides (64, 16)",
    ),
    (
        "scales_the_base",
        "OW704",
        "the new value of x differs where x, y are views of one array",
        "3.91200014 at index (1, 2), as for arrays of their own",
        "5.21600018; 12 of 12 elements differ",
        "use nothing but the elements of each argument",
        "the given sample: x float64 (3, 4), y float64 (3, 4)",
    ),
    (
        "refuses_views",
        "OW704",
        "the kernel raises where x, y are views of one array",
        "the result that it gives for arrays of their own",
        "ValueError: views of one array",
        "use nothing but the elements of each argument",
        "the given sample: x float64 (3, 4), y float64 (3, 4)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(7))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    assert facts_of(name) == facts


def test_a_finding_prints_whole():
    assert text_of("writes_to_a_copy") == (
        "OW701 wrong::writes_to_a_copy, kernel, numpy: the new value of x differs where x is transposed\n"
        "  expected: 2.60800009 at index (1, 2), as for a contiguous x\n"
        "  got: 1.30400005; 12 of 12 elements differ\n"
        "  registered at: SOURCE\n"
        "  to fix: write through x as it was passed, not through a contiguous copy of it\n"
        "  sample: the given sample, x transposed: x float64 (3, 4) strides (8, 24)\n"
        "  to see it:\n"
        "    import numpy as np\n"
        "    import opwright as ow\n"
        "    import checks.wrong_operators\n"
        "    op = ow.ops.wrong.writes_to_a_copy.default\n"
        "    x = np.array(ARRAY, 'float64')\n"
        "    x = np.asfortranarray(x)\n"
        "    op(x)\n"
        "    print(x)"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sin", "the operator mutates no argument"),
        ("scale_", "numpy does not functionalise programs"),
    ],
)
def test_what_is_left_out_is_said(name, reason):
    report = opcheck(OPERATORS[name], test_utils="functionalization", frameworks="numpy")
    assert report.outcome("functionalization", "numpy").reason == reason


def test_the_layouts_of_mutated_arguments_are_left_to_this_law():
    both = report_of(one("writes_to_a_copy"))
    assert [finding.id for finding in both.findings] == ["OW701"] * len(both.findings)
    alone = report_of(one("writes_to_a_copy"), test_utils="layout")
    assert {finding.id for finding in alone.findings} == {"OW901"}


@pytest.mark.parametrize("order", ["C", "F"])
def test_surroundings_are_the_bytes_beside_an_array(order):
    whole = np.zeros((4, 6), order=order)
    part = whole[1:3, ::2]
    raw, outside = _surroundings(part)
    assert raw.nbytes == whole.nbytes
    assert outside.sum() == whole.nbytes - part.nbytes
    raw[outside] = 1
    assert not part.any()
    assert (whole != 0).sum() == whole.size - part.size


def test_an_array_of_its_own_has_no_surroundings():
    assert not _surroundings(np.ones(3))[1].any()


def test_a_torch_kernel_changes_numpy_arrays_whatever_their_layout():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def scale(x: torch.Tensor) -> None:
        x.mul_(2)

    scale.__annotations__ = {"x": torch.Tensor, "return": None}
    operator = ow.custom_op("functionalization::scale", scale, mutates_args=("x",))
    for x in (np.ones((2, 3)), np.ones((3, 2)).T, np.ones((2, 6))[:, ::2]):
        operator(x)
        assert (x == 2).all()
