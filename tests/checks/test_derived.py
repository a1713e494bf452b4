from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.right_operators import OPERATORS
from opwright.checks import derived
from opwright.checks.arrays import LAYOUTS
from opwright.checks.samples import given
from opwright.targets import find

x = np.arange(1.0, 13).reshape(3, 4)


def sample_of(name, *args, **kwargs):
    return given(OPERATORS[name]._record, args, kwargs)


def titles(samples):
    return [sample.title.removeprefix("the given sample, ") for sample in samples]


def test_flags_are_flipped_options_left_out_and_words_changed():
    assert titles(derived.flags(sample_of("logsumexp", x, 1))) == ["keepdims=True"]
    assert titles(derived.flags(sample_of("linear", x, x, x[0]))) == ["bias=None"]
    assert titles(derived.flags(sample_of("reduce", x))) == ["how='mean'", "how='max'"]


def test_numbers_become_others_and_axes_are_counted_from_the_other_end():
    assert titles(derived.numbers(sample_of("logsumexp", x, 1))) == ["axis=-1", "axis=2"]
    assert titles(derived.numbers(sample_of("logsumexp", x, -2))) == ["axis=0", "axis=-1", "axis=-3"]
    assert titles(derived.numbers(sample_of("chunks", x[0], 2))) == ["parts=3", "parts=1"]
    assert titles(derived.numbers(sample_of("scale_", x, 0.5))) == ["k=0.45"]
    assert titles(derived.numbers(sample_of("scale_", x, float("inf")))) == []
    assert titles(derived.numbers(sample_of("full", [2, 3], 1.0))) == ["value=0.8"]
    assert titles(derived.numbers(sample_of("cast", x, np.dtype("int64")))) == []


def test_lists_become_longer():
    (longer,) = derived.longer_lists(sample_of("cat", [x, 2 * x]))
    assert longer.title == "the given sample, xs of 3 arrays"
    assert [longer.array(leaf)[0, 0] for leaf in longer.leaves()] == [1.0, 2.0, 2.0]
    assert list(derived.longer_lists(sample_of("mul", x, x))) == []


def test_dtypes_become_other_floating_ones():
    assert titles(derived.other_dtypes(sample_of("cast", x, np.dtype("int64")))) == ["dtype=dtype('float64')"]
    assert titles(derived.other_dtypes(sample_of("cast", x, np.dtype("float64")))) == [
        "dtype=dtype('float32')"
    ]


def test_axes_of_equal_sizes_become_unequal():
    (rows, columns) = derived.unequal(sample_of("mul", x[:, :3], x[:, :3]))
    assert [rows.array(leaf).shape for leaf in rows.leaves()] == [(2, 3), (2, 3)]
    assert [columns.array(leaf).shape for leaf in columns.leaves()] == [(3, 2), (3, 2)]
    assert rows.title == "the given sample, axis 0 of (3, 3) shorter"
    assert list(derived.unequal(sample_of("mul", x, x[0]))) == []


def test_other_values_are_near_and_then_negated():
    near, negated = derived.elsewhere(sample_of("mul", x, x))
    for leaf in near.leaves():
        factor = near.array(leaf) / x
        assert 0.75 <= factor.min() < factor.max() <= 1.25
        assert np.array_equal(negated.array(leaf), -near.array(leaf))
    first, second = map(near.array, near.leaves())
    assert not np.array_equal(first, second)
    assert list(derived.elsewhere(sample_of("argmax", x.astype(int)))) == []


def test_numbers_and_dtypes_with_nothing_to_do():
    assert titles(derived.no_ops(sample_of("scale_", x, 2.0))) == ["k=1.0", "k=0.0"]
    assert titles(derived.no_ops(sample_of("cast", x, np.dtype("int64")))) == ["dtype=dtype('float64')"]


def test_dtypes_change_together():
    (single,) = derived.dtypes(sample_of("mul", x, x))
    assert [single.array(leaf).dtype.name for leaf in single.leaves()] == ["float32", "float32"]
    assert list(derived.dtypes(sample_of("argmax", x.astype(int)))) == []


def test_double_precision_is_taken_where_there_is_less():
    sample = sample_of("mul", x.astype("float32"), x.astype("complex64"))
    wide = derived.in_double(sample)
    assert [wide.array(leaf).dtype.name for leaf in wide.leaves()] == ["float64", "complex128"]
    assert derived.in_double(wide) is wide


def test_layouts_change_one_array_at_a_time():
    rows = list(derived.layouts(sample_of("mul", x, x[0]), LAYOUTS))
    assert [(leaf.label, layout) for leaf, layout, _ in rows] == [
        ("x", "transposed"),
        ("x", "sliced"),
        ("x", "with a negative stride"),
        ("x", "at an offset"),
        ("x", "expanded"),
        ("x", "read-only"),
        ("y", "sliced"),
        ("y", "with a negative stride"),
        ("y", "at an offset"),
        ("y", "expanded"),
        ("y", "read-only"),
    ]
    assert rows[0][2].steps == ("x = np.asfortranarray(x)",)


def test_mutated_arrays_are_neither_expanded_nor_read_only():
    layouts = [layout for _, layout, _ in derived.layouts(sample_of("scale_", x, 2.0), LAYOUTS)]
    assert layouts == ["transposed", "sliced", "with a negative stride", "at an offset"]


def test_elements_of_lists_are_laid_out_in_place():
    *_, last = (variant for _, _, variant in derived.layouts(sample_of("cat", [x, x]), ["transposed"]))
    assert last.steps == ("xs[1] = np.asfortranarray(xs[1])",)


def test_compact_arrays_are_contiguous():
    sample = derived.compact(sample_of("mul", x.T, x[:, ::2].T))
    assert all(sample.array(leaf).flags.c_contiguous for leaf in sample.leaves())


def test_other_values_keep_shapes_and_dtypes():
    sample = sample_of("take", x, np.array([1, 2]))
    others = list(derived.other_values(sample))
    assert titles(others) == ["zeros", "negated", "reversed", "every second element zero"]
    for other in others:
        for leaf in sample.leaves():
            assert other.array(leaf).shape == sample.array(leaf).shape
            assert other.array(leaf).dtype == sample.array(leaf).dtype
            assert not np.shares_memory(other.array(leaf), sample.array(leaf))


def test_sizes_are_changed_wherever_they_occur():
    sample = sample_of("matmul", x, x.T)
    assert derived.sizes(sample) == [3, 4]
    shapes = [[one.array(leaf).shape for leaf in one.leaves()] for _, one in derived.empties(sample)]
    assert shapes == [[(0, 4), (4, 0)], [(3, 0), (0, 3)]]
    shapes = [[one.array(leaf).shape for leaf in one.leaves()] for one in derived.smaller(sample)]
    assert shapes == [[(2, 4), (4, 2)], [(3, 3), (3, 3)]]


@pytest.mark.parametrize(
    ("values", "emptied", "one_less"),
    [
        ((np.ones(8), 8), [], []),  # as many as there are elements
        ((np.ones((2, 4)), 8), [], []),
        ((np.ones((2, 4)), 4), [2], [2]),
        ((np.ones((2, 4)), [3, 2]), [4], [4]),
        ((np.ones((5, 3)), np.array([0, 4, 4, 1])), [4], [3, 4]),  # indices, of which 4 is the last of 5
        ((np.ones(5), np.array([0, 2, 5])), [3], [3]),  # offsets
    ],
    ids=["count", "count of all", "count of an axis", "counts", "indices", "offsets"],
)
def test_no_size_is_changed_that_integers_may_tell(ns, values, emptied, one_less):
    kinds = [
        "Tensor" if isinstance(v, np.ndarray) else "int[]" if isinstance(v, list) else "int" for v in values
    ]
    text = ", ".join(f"{kind} a{i}" for i, kind in enumerate(kinds))
    ow.define(f"{ns}::f", f"({text}) -> Tensor")
    sample = given(find(f"{ns}::f"), values, {})
    assert [size for size, _ in derived.empties(sample)] == emptied
    sizes = {size for size in derived.sizes(sample) if size > 1}
    assert [size for size in sorted(sizes) if not derived.told(sample, size, size - 1)] == one_less


def test_a_count_is_not_made_one_more_than_there_is(ns):
    ow.define(f"{ns}::f", "(Tensor x, int n) -> Tensor")
    values = [one.values[1] for one in derived.numbers(given(find(f"{ns}::f"), (np.ones(8), 8), {}))]
    assert values == [7]
    values = [one.values[1] for one in derived.numbers(given(find(f"{ns}::f"), (np.ones(8), 5), {}))]
    assert values == [6, 4]


def test_misfits_change_one_array():
    assert titles(derived.misfits(sample_of("normalised", x))) == [
        "x in float32",
        "x in int64",
        "x with another axis",
        "x longer",
        "x with an axis less",
    ]
    assert len(list(derived.misfits(sample_of("normalised", x[:0])))) == 5


def test_special_values_leave_mutated_and_small_arrays_alone():
    ((leaf, special),) = derived.special_values(sample_of("masked_fill", x, x > 0, 1.0))
    assert leaf.label == "x"
    assert special.array(leaf).reshape(-1)[:3].tolist() == pytest.approx(
        [np.nan, np.inf, -np.inf], nan_ok=True
    )
    assert list(derived.special_values(sample_of("scale_", x, 1.0))) == []


def test_integers_are_made_zero():
    sample = derived.with_zero_integers(sample_of("take", x, np.array([1, 2])))
    assert [sample.array(leaf).any() for leaf in sample.leaves()] == [True, False]
