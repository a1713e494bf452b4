from __future__ import annotations

import pytest

from checks.cases import assert_caught, facts_of, text_of, wrong_operators

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "adds_in_place",
        "OW101",
        "argument x was changed but is not declared as mutated",
        "x as it was: 0.125730221 at index (0, 0)",
        "1.12573022; 12 of 12 elements differ",
        "work on a copy, or declare it: mutates_args=('x',)",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "changes_a_second_argument",
        "OW101",
        "argument y was changed but is not declared as mutated",
        "y as it was: 1.30400005 at index (1, 2)",
        "2.60800009; 12 of 12 elements differ",
        "work on a copy, or declare it: mutates_args=('y',)",
        "the given sample: x float64 (3, 4), y float64 (3, 4)",
    ),
    (
        "changes_an_element",
        "OW101",
        "argument xs[1] was changed but is not declared as mutated",
        "xs[1] as it was: 1.30400005 at index (1, 2)",
        "0; 12 of 12 elements differ",
        "work on a copy, or declare it: mutates_args=('xs',)",
        "the given sample: xs [float64 (3, 4), float64 (3, 4)]",
    ),
    (
        "reshapes_its_argument",
        "OW102",
        "the shape, strides of argument x changed",
        "shape (3, 4); strides (32, 8)",
        "shape (4, 3); strides (24, 8)",
        "return a new array, and leave the argument's shape and layout alone",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "locks_its_argument",
        "OW102",
        "the writeable flag of argument x changed",
        "writeable flag True",
        "writeable flag False",
        "return a new array, and leave the argument's shape and layout alone",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "changes_nothing",
        "OW103",
        "argument x is declared as mutated, but no call changed it",
        "x changed by at least one call",
        "x unchanged in 1 sample and what was derived from it",
        "take x out of mutates_args, or give a sample in which it changes",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "returns_its_argument",
        "OW104",
        "output 0 is argument x itself",
        "memory of its own: an output may not alias an argument or another output",
        "one object",
        "return a copy, or declare the aliasing in the schema",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "returns_a_view",
        "OW104",
        "output 0 shares memory with argument x",
        "memory of its own: an output may not alias an argument or another output",
        "a view of the same memory",
        "return a copy, or declare the aliasing in the schema",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "one_array_twice",
        "OW105",
        "output 1 is output 0 itself",
        "memory of its own: an output may not alias an argument or another output",
        "one object",
        "return a copy, or declare the aliasing in the schema",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "list_of_views",
        "OW105",
        "output 0 shares memory with output 0",
        "memory of its own: an output may not alias an argument or another output",
        "a view of the same memory",
        "return a copy, or declare the aliasing in the schema",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "keeps_its_buffer",
        "OW106",
        "output 0 of two calls is in the same memory",
        "new memory for the output of each call",
        "the second call overwrites the result of the first",
        "allocate the output in each call, or return a copy of the buffer that is kept",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "only_logs",
        "OW107",
        "the operator has no outputs and mutates nothing, so its calls may be removed as dead code",
        "a return, a mutated argument, or the tag nondeterministic_seeded",
        "wrong::only_logs(Tensor x) -> ()",
        "return something, declare what is mutated, or pass tags='nondeterministic_seeded'",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "ignores_an_argument",
        "OW108",
        "argument y makes no difference",
        "another result for other values or another shape",
        "the same result whatever float64 (3, 4) it is",
        "remove y, or use it",
        "the given sample: x float64 (3, 4), y float64 (3, 4)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(1))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    assert facts_of(name) == facts


def test_a_finding_prints_whole():
    assert text_of("adds_in_place_with_a_flag") == (
        "OW101 wrong::adds_in_place_with_a_flag, kernel, numpy: argument x was changed but is not "
        "declared as mutated\n"
        "  expected: x as it was: 0.125730221 at index (0, 0)\n"
        "  got: 1.12573022; 12 of 12 elements differ\n"
        "  registered at: SOURCE\n"
        "  to fix: work on a copy, or declare it: mutates_args=('x',)\n"
        "  sample: the given sample, flag=True: x float64 (3, 4), flag=True\n"
        "  to see it:\n"
        "    import numpy as np\n"
        "    import opwright as ow\n"
        "    import checks.wrong_operators\n"
        "    op = ow.ops.wrong.adds_in_place_with_a_flag.default\n"
        "    x = np.array(ARRAY, 'float64')\n"
        "    before = x.copy()\n"
        "    op(x, True)\n"
        "    print(x - before)"
    )
