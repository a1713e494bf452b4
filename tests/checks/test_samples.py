from __future__ import annotations

import numpy as np
import pytest

from checks.right_operators import OPERATORS
from opwright.checks.samples import Leaf, array_text, given, put, registered, split
from opwright.checks.snippet import snippet
from opwright.errors import ArgumentError


def sample_of(name, *args, **kwargs):
    return given(OPERATORS[name]._record, args, kwargs)


def test_leaves_are_the_arrays_with_the_labels_of_messages():
    x = np.ones((2, 3))
    assert sample_of("cat", [x, x], 1).leaves() == [Leaf(0, 0, "xs[0]"), Leaf(0, 1, "xs[1]")]
    assert [leaf.label for leaf in sample_of("linear", x, x).leaves()] == ["x", "weight"]
    assert [leaf.label for leaf in sample_of("weighted", x, weight=x).leaves()] == ["x", "weight"]


def test_values_have_every_argument_with_defaults():
    assert sample_of("weighted", 1.0 * np.ones(2), weight=np.ones(2)).values[2] == 1


def test_a_sample_prints_what_it_is():
    x = np.ones((2, 3))
    frozen = np.broadcast_to(x, (2, 2, 3))
    assert str(sample_of("cat", [x, x.T], 1)) == (
        "the given sample: xs [float64 (2, 3), float64 (3, 2) strides (8, 24)], axis=1"
    )
    assert (
        str(sample_of("linear", x, x))
        == "the given sample: x float64 (2, 3), weight float64 (2, 3), bias=None"
    )
    assert str(sample_of("full", [2], 1.5)) == "the given sample: shape=[2], value=1.5"
    assert array_text(frozen) == "float64 (2, 2, 3) strides (0, 24, 8) read-only"


def test_changes_make_new_samples():
    x = np.ones(3)
    sample = sample_of("mul", x, x)
    first, second = sample.leaves()
    changed = sample.with_array(second, x * 2, "y doubled", "y = y * 2")
    assert (changed.array(second) == 2).all()
    assert (sample.array(second) == 1).all()
    assert changed.title == "the given sample, y doubled"
    assert changed.steps == ("y = y * 2",)
    assert changed.base is sample.base
    other = changed.with_array(first, x * 3, "x tripled")
    assert other.steps == ()
    assert other.base is other.values
    assert sample_of("cat", [x], 0).with_value(1, -1).title == "the given sample, axis=-1"


def test_arrays_are_put_into_lists():
    assert put([[1, 2], 3], {Leaf(0, 1, "a[1]"): 5, Leaf(1, None, "b"): 6}) == ([1, 5], 6)


def test_registered_samples_know_where_they_come_from():
    samples = registered(OPERATORS["mul"]._record)
    assert [sample.title for sample in samples] == ["sample 0", "sample 1", "sample 2"]
    assert samples[1].origin == "samples('right::mul')[1]"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ([(1, 2)], [((1, 2), {})]),
        ([((1,), {"k": 2})], [((1,), {"k": 2})]),
        ([([1], {})], [((1,), {})]),
        ([{"k": 2}], [((), {"k": 2})]),
        ([[1, 2]], [((1, 2), {})]),
    ],
)
def test_samples_may_be_written_in_several_ways(declared, expected):
    assert list(split(OPERATORS["mul"]._record, declared)) == expected


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match="missing a required argument: 'y'"):
        sample_of("mul", np.ones(3))


def test_a_snippet_writes_small_arrays_out(numpy_adapter):
    sample = sample_of("linear", np.array([[1.0, np.nan]]), np.array([[np.inf, -2.5]], "float32"))
    assert snippet(OPERATORS["linear"]._record, numpy_adapter, sample, ["print({call})"]) == (
        "import numpy as np\n"
        "import opwright as ow\n"
        "import checks.right_operators\n"
        "op = ow.ops.right.linear.default\n"
        "x = np.array([[1., np.nan]], 'float64')\n"
        "weight = np.array([[np.inf, -2.5]], 'float32')\n"
        "print(op(x, weight))"
    )


def test_a_snippet_takes_large_arrays_from_registered_samples(numpy_adapter):
    record = OPERATORS["mul"]._record
    text = snippet(record, numpy_adapter, registered(record)[0], ["{call}", "f({args})"])
    assert text.splitlines()[4:] == [
        "from opwright.testing import samples",
        "args, kwargs = samples('right::mul')[0]",
        "x = np.array(args[0])",
        "y = np.array([0.1257302210933933, -0.1321048632913019, 0.6404226504432821, 0.10490011715303971], "
        "'float64')",
        "op(x, y)",
        "f(x, y)",
    ]


def test_a_snippet_has_stand_ins_for_other_large_arrays(numpy_adapter):
    sample = sample_of("take", np.ones((5, 6)), np.ones(30, "int64"))
    text = snippet(OPERATORS["take"]._record, numpy_adapter, sample, ["{call}"])
    assert text.splitlines()[4:6] == [
        "x = np.random.default_rng(0).standard_normal((5, 6)).astype('float64')",
        "index = np.ones((30,), 'int64')",
    ]


def test_a_snippet_passes_arguments_as_the_schema_says(numpy_adapter):
    x = np.ones(1)

    def call(name, *args, **kwargs):
        sample = sample_of(name, *args, **kwargs)
        return snippet(OPERATORS[name]._record, numpy_adapter, sample, ["{call}"]).splitlines()[-1]

    assert call("weighted", x, weight=x) == "op(x, weight=weight)"
    assert call("weighted", x, weight=x, power=3) == "op(x, weight=weight, power=3)"
    assert call("reduce", x) == "op(x)"
    assert call("reduce", x, "max") == "op(x, 'max')"
    assert call("logsumexp", x, 0) == "op(x, 0)"
    assert call("cast", x, np.dtype("float32")) == "op(x, np.dtype('float32'))"
    assert call("full", [2], float("nan")) == "op([2], float('nan'))"
    assert call("masked_fill", x, x > 0, 2.0) == "op(x, mask, 2.0)"
