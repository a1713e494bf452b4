"""NumPy arrays, called: what reaches a kernel, what is refused in which words, what may be returned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import opwright as ow
from opwright.errors import AliasError, ArgumentError, OutputError
from opwright.frameworks.base import RULE_KINDS, load
from opwright.frameworks.numpy import shares_memory
from opwright.source import source_of

X = np.arange(6.0)


@pytest.fixture
def define(ns):
    """Define an operator of a name that is new each time."""
    count = iter(range(100))

    def define(fn, mutates_args=(), **kwargs):
        return ow.custom_op(f"{ns}::op{next(count)}", fn, mutates_args=mutates_args, **kwargs)

    return define


def numpy_double(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    return x * k


def portable_double(x: ow.Array, k: float = 2.0) -> ow.Array:
    xp = ow.array_namespace(x)
    return xp.multiply(x, xp.asarray(k, dtype=x.dtype))


def add_one(x: np.ndarray) -> None:
    x += 1


def test_it_declares_every_kind_of_rule():
    numpy = load("numpy")
    assert set(numpy.lowered) | set(numpy.unsupported) == set(RULE_KINDS)
    assert not set(numpy.lowered) & set(numpy.unsupported)
    assert all(numpy.lowered.values())
    assert all(numpy.unsupported.values())


LAYOUTS = {
    "contiguous": X.copy(),
    "reversed": X[::-1],
    "step": X[::2],
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "broadcast": np.broadcast_to(np.float64(3), (2, 2)),
    "zero size": np.empty((0, 3)),
    "zero strides": np.lib.stride_tricks.as_strided(X, (4,), (0,)),
    "big-endian": X.astype(">f8"),
    "little-endian": X.astype("<f4"),
    "Fortran": np.asfortranarray(np.ones((2, 3))),
    "0-d": np.array(3.0),
    "unaligned": np.frombuffer(b"\x00" + X.tobytes(), dtype="f8", offset=1),
    "complex": X + 1j,
    "half": X.astype(np.float16),
    "integers": np.arange(4),
    "booleans": np.array([True, False]),
}


@pytest.mark.parametrize("body", [numpy_double, portable_double])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_and_byte_order_is_passed_as_it_is(define, body, layout):
    x = LAYOUTS[layout]
    if body is portable_double and layout == "booleans":
        x = x.astype(np.int8)
    given = []

    def kernel(x, k):
        given.append(x)
        return body(x, k)

    op = define(
        kernel, schema="(Tensor x, float k=2.0) -> Tensor", flavour="numpy" if body is numpy_double else None
    )
    for _ in range(5):
        np.testing.assert_array_equal(op(x, 2.0), body(x, 2.0))
        assert op(x, 2.0).dtype == body(x, 2.0).dtype
    assert all(one is x for one in given)


@pytest.mark.parametrize("body", [numpy_double, portable_double])
def test_numpy_scalars_count_as_0d_arrays(define, body):
    op = define(body)
    for value in (np.float64(1.5), np.float32(1.5), np.array(1.5)):
        for _ in range(5):
            out = op(value)
            assert out == 3.0
            assert np.ndim(out) == 0
    given = []

    def kernel(x: np.ndarray) -> np.ndarray:
        given.append(type(x))
        return x + 1

    define(kernel)(np.int8(3))
    assert given == [np.ndarray]


def test_a_kernel_may_return_numpy_scalars(define):
    def total(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x.sum(), np.array(x.max())

    for _ in range(5):
        one, two = define(total)(X)
        assert (one, two) == (15.0, 5.0)
        assert isinstance(one, np.float64)
        assert type(two) is np.ndarray


def test_a_memmap_is_an_array(define, tmp_path):
    stored = np.memmap(tmp_path / "x", dtype="f8", mode="w+", shape=(3,))
    for _ in range(5):
        out = define(numpy_double)(stored)
        assert type(out) is np.ndarray
    op = define(add_one, mutates_args=("x",))
    for _ in range(5):
        op(stored)
    stored.flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "x"), [5.0] * 3)
    read_only = np.memmap(tmp_path / "x", dtype="f8", mode="r")
    with pytest.raises(ArgumentError, match="which is read-only"):
        op(read_only)


# ------------------------------------------------------------------ mutation


def test_mutation_in_place_through_views(define):
    """Behaviours 6, 7: the caller's own memory changes, whatever view of it is passed."""
    op = define(add_one, mutates_args=("x",))
    base = np.zeros((3, 4))
    for view in (base, base[1], base[:, ::2], base.T, base[::-1, 1], base[2, 3, ...]):
        assert op(view) is None
    expected = np.ones((3, 4))
    expected[1] += 1
    expected[:, ::2] += 1
    expected += 1
    expected[:, 1] += 1
    expected[2, 3] += 1
    np.testing.assert_array_equal(base, expected)


@pytest.mark.parametrize("warm", [False, True])
def test_a_read_only_array_is_refused_where_it_would_be_mutated(define, ns, warm):
    def both(x: np.ndarray, y: np.ndarray) -> None:
        y += x

    op = define(both, mutates_args=("y",))
    locked = np.zeros(3)
    locked.flags.writeable = False
    if warm:
        for _ in range(5):
            op(np.ones(3), np.ones(3))
    op(locked, np.zeros(3))  # only read
    for value, got in [
        (locked, "numpy.ndarray"),
        (np.broadcast_to(np.float64(1), 3), "numpy.ndarray"),
        (np.float64(1.0), "numpy.float64"),
    ]:
        with pytest.raises(ArgumentError) as e:
            op(np.ones(3), value)
        assert str(e.value) == (
            f"{ns}::op0 mutates argument y, which is read-only\n"
            "  expected: an array that can be written to\n"
            f"  got: {got}\n"
            "  to fix: pass a copy, and use the copy afterwards"
        )


def test_mutated_lists_and_optionals(define):
    """Behaviours 4, 6, 7."""

    def bump(xs: list[np.ndarray], ys: list[np.ndarray | None], z: np.ndarray | None = None) -> None:
        for one in [*xs, *ys, z]:
            if one is not None:
                one[...] += 1

    op = define(bump, mutates_args="unknown")
    assert str(op.schema).endswith("(Tensor(a0!)[] xs, Tensor(a1!)?[] ys, Tensor(a2!)? z=None) -> ()")
    a, b, c, d = (np.zeros(2) for _ in range(4))
    for _ in range(5):
        op([a, b], [None, c])
        op((a,), (c, None), z=d)
    assert [one[0] for one in (a, b, c, d)] == [10.0, 5.0, 10.0, 5.0]
    a.flags.writeable = False
    for args in (([b, a], []), ([], [None, a]), ([], [], a)):
        with pytest.raises(ArgumentError, match="which is read-only"):
            op(*args)


def test_an_operator_may_mutate_and_return_something_new(define):
    def push(stack: np.ndarray, x: np.ndarray) -> np.ndarray:
        stack[:-1] = stack[1:]
        stack[-1] = x
        return stack.sum()

    op = define(push, mutates_args={"stack"})
    stack = np.zeros(2)
    assert [op(stack, np.array(float(n))) for n in range(5)] == [0, 1, 3, 5, 7]


# ------------------------------------------------------------------ what is refused


class Units(np.ndarray):
    """A subclass that means something."""


def _units():
    return X.view(Units)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("value", "got", "fix"),
    [
        (X.view(np.matrix), "numpy.matrix", "take its plain array first: numpy.asarray(x)"),
        (np.ma.masked_array([1.0], [True]), "numpy.ma.MaskedArray", "fill it first: x.filled(value)"),
        (_units(), f"{__name__}.Units", "take its plain array first: numpy.asarray(x)"),
    ],
)
def test_subclasses_that_would_lose_what_they_add(define, ns, value, got, fix, *, warm):
    op = define(numpy_double)
    if warm:
        for _ in range(5):
            op(X)
    with pytest.raises(ArgumentError) as e:
        op(value)
    assert str(e.value) == (
        f"{ns}::op0: argument x cannot be taken\n"
        "  expected: a plain numpy.ndarray\n"
        f"  got: {got}\n"
        f"  to fix: {fix}"
    )


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array([1, "a"], dtype=object), "object"),
        (np.zeros(2, dtype=[("a", "f8")]), "[('a', '<f8')]"),
        (np.zeros(2, dtype="V8"), "|V8"),
    ],
)
def test_object_and_structured_dtypes_are_for_numpy_kernels_alone(define, ns, value, dtype, warm):
    numpy_op = define(lambda x: x.copy(), schema="(Tensor x) -> Tensor", flavour="numpy")
    portable = define(lambda x: x + x, schema="(Tensor x) -> Tensor")
    listed = define(lambda xs: xs[0] + xs[0], schema="(Tensor[] xs) -> Tensor")
    if warm:
        for _ in range(5):
            portable(X)
            listed([X, X])
    for _ in range(2):
        assert numpy_op(value).dtype == value.dtype
    for op, arg, name in ((portable, value, "x"), (listed, [X, value], "xs[1]")):
        with pytest.raises(ArgumentError) as e:
            op(arg)
        assert str(e.value) == (
            f"{op._qualname}: argument {name} cannot be taken\n"
            "  expected: a dtype that a kernel of flavour array_api can take\n"
            f"  got: numpy.ndarray of dtype {dtype}\n"
            "  to fix: convert it first, with astype"
        )


def test_dates_and_strings_reach_a_numpy_kernel(define):
    op = define(lambda x: x.copy(), schema="(Tensor x) -> Tensor", flavour="numpy")
    for x in (np.array(["2024-01-01"], dtype="M8[D]"), np.array(["a"]), np.array(["b"], dtype="S1")):
        assert op(x).dtype == x.dtype


# ------------------------------------------------------------------ aliasing


ALIASES = {
    "the input": (lambda x, y: (x, y + 1), 0, "is argument x itself"),
    "the second input": (lambda x, y: (x + 1, y), 1, "is argument y itself"),
    "a view": (lambda x, y: (x[::-1], y + 1), 0, "shares memory with argument x"),
    "a reshaped view": (lambda x, y: (x + 1, x.reshape(2, 3)), 1, "shares memory with argument x"),
    "an empty view": (lambda x, y: (x[:0], y + 1), 0, "shares memory with argument x"),
    "another part of the same memory": (lambda x, y: (x[1::2], y + 1), 0, "shares memory with argument x"),
    "the same output twice": (lambda x, y: (x + 1,) * 2, 1, "is output 0 itself"),
    "the same empty output twice": (lambda x, y: (np.empty(0),) * 2, 1, "is output 0 itself"),
    "two parts of one array": (lambda x, y: (z := x + 1, z[:2]), 1, "shares memory with output 0"),
}


@pytest.mark.parametrize("name", ALIASES)
def test_an_output_may_not_alias(define, ns, name):
    """Behaviour 14, I018, I020: which output aliases what."""
    body, index, what = ALIASES[name]
    op = define(body, schema="(Tensor x, Tensor y) -> (Tensor, Tensor)", flavour="numpy")
    with pytest.raises(AliasError) as e:
        op(X.copy(), X.copy())
    assert str(e.value) == (
        f"output {index} of {ns}::op0 {what}; an output may not alias an argument or another output\n"
        f"  registered at: any device (numpy, {source_of(body)})\n"
        "  to fix: return a copy, or declare the aliasing in the schema"
    )


def test_a_numpy_scalar_is_a_value_and_aliases_nothing(define):
    def total(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        s = x.sum()
        return s, s

    assert define(total)(X) == (15.0, 15.0)


def test_aliasing_in_lists_is_found(define):
    op = define(lambda xs: [xs[1]], schema="(Tensor[] xs) -> Tensor[]", flavour="numpy")
    with pytest.raises(AliasError, match=r"output 0 of .* is argument xs itself"):
        op([X.copy(), X.copy()])


def test_a_mutated_argument_is_not_returned_unless_the_schema_says_so(define):
    """I019: a kernel that returns the buffer that it filled."""

    def fill(x: np.ndarray) -> np.ndarray:
        x[:] = 1
        return x

    with pytest.raises(AliasError, match=r"output 0 of .* is argument x itself"):
        define(fill, mutates_args=("x",))(X.copy())


def test_aliasing_is_looked_at_in_the_first_calls_after_each_registration(define):
    calls = [0]

    def sometimes(x: np.ndarray) -> np.ndarray:
        calls[0] += 1
        return x if calls[0] > 3 else x + 1

    op = define(sometimes)
    for _ in range(3):
        op(X)
    assert op(X) is X  # not on every warm call: opcheck finds it
    op.register_fake(lambda x: x)
    with pytest.raises(AliasError):
        op(X)


def test_declared_aliasing_is_allowed(define):
    op = define(lambda x: x[::2], schema="(Tensor(a) x) -> Tensor(a)", flavour="numpy")
    for _ in range(5):
        assert np.shares_memory(op(X), X)


def test_shares_memory():
    assert shares_memory(X, X[::2])
    assert shares_memory(X[:1], X[3:])  # one buffer, as torch counts it
    assert not shares_memory(X, X.copy())
    assert not shares_memory(X, np.float64(1))
    assert not shares_memory(3, X)
    assert not shares_memory(X, None)


# ------------------------------------------------------------------ outputs


@pytest.mark.parametrize(
    ("body", "returns", "expected", "got"),
    [
        (lambda x: None, "Tensor", "an array of numpy as output 0", "NoneType"),
        (lambda x: 1.0, "Tensor", "an array of numpy as output 0", "float"),
        (lambda x: [x + 1], "Tensor", "an array of numpy as output 0", "list of 1 (numpy.ndarray)"),
        (lambda x: x + 1, "()", "None", "numpy.ndarray"),
        (lambda x: x + 1, "(Tensor, Tensor)", "a tuple of 2", "numpy.ndarray"),
        (lambda x: (x + 1,), "(Tensor, Tensor)", "a tuple of 2", "tuple of 1 (numpy.ndarray)"),
        (
            lambda x: (x + 1, x + 2, 3),
            "(Tensor, Tensor)",
            "a tuple of 2",
            "tuple of 3 (numpy.ndarray, numpy.ndarray, int)",
        ),
        (
            lambda x: (x + 1, None),
            "(Tensor, Tensor)",
            "an array of numpy as output 1",
            "tuple of 2 (numpy.ndarray, NoneType)",
        ),
        (lambda x: x + 1, "((Tensor))", "a tuple of 1", "numpy.ndarray"),
        (lambda x: x + 1, "Tensor[]", "Tensor[] as output 0", "numpy.ndarray"),
        (lambda x: [x + 1, None], "Tensor[]", "Tensor[] as output 0", "list of 2 (numpy.ndarray, NoneType)"),
        (lambda x: 2.5, "int", "int as output 0", "float"),
        (lambda x: "a", "float", "float as output 0", "str"),
        (
            lambda x: np.ma.masked_array(x + 1),
            "Tensor",
            "an array of numpy as output 0",
            "numpy.ma.MaskedArray",
        ),
    ],
)
def test_an_output_that_does_not_fit(define, ns, *, body, returns, expected, got):
    op = define(body, schema=f"(Tensor x) -> {returns}", flavour="numpy")
    for _ in range(2):
        with pytest.raises(OutputError) as e:
            op(X)
        assert str(e.value) == (
            f"kernel of {ns}::op0 returned something else than its schema says\n"
            f"  expected: {expected}: {op.schema}\n"
            f"  got: {got}\n"
            f"  registered at: {source_of(body)}"
        )
        assert e.value.__suppress_context__ or e.value.__context__ is None


@pytest.mark.parametrize(
    ("body", "returns", "expected"),
    [
        (lambda x: (x + 1,), "((Tensor))", tuple),  # behaviour 17
        (lambda x: [x + 1, x + 2], "(Tensor, Tensor)", tuple),
        (lambda x: (x + 1, x + 2), "Tensor[]", list),
        (lambda x: None, "Tensor?", type(None)),
        (lambda x: [x + 1, None], "Tensor?[]", list),
        (lambda x: np.int64(3), "int", int),
        (lambda x: 3, "float", float),
        (lambda x: None, "()", type(None)),
        (lambda x: (x + 1, 3), "(Tensor, int)", tuple),
        (lambda x: ([x + 1], x + 2), "(Tensor[], Tensor)", tuple),
    ],
)
def test_outputs_have_the_schemas_form(define, body, returns, expected):
    op = define(body, schema=f"(Tensor x) -> {returns}", flavour="numpy")
    for _ in range(5):
        assert type(op(X)) is expected


# ------------------------------------------------------------------ in-place and out


def test_the_inplace_tag_returns_the_very_argument(define):
    """Behaviours 25, 26."""

    def scale_(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        x *= k
        return x

    op = define(scale_, mutates_args=("x",), tags=ow.Tag.inplace)
    assert str(op.schema).endswith("(Tensor(a0!) x, float k=2.0) -> Tensor(a0!)")
    x = np.ones(2)
    for _ in range(5):
        assert op(x) is x
    np.testing.assert_array_equal(x, [32.0] * 2)


def test_the_inplace_tag_with_another_object(define, ns):
    def scale_(x: np.ndarray) -> np.ndarray:
        return x * 2

    op = define(scale_, mutates_args=("x",), tags="inplace")
    for _ in range(2):
        with pytest.raises(OutputError) as e:
            op(np.ones(2))
        assert str(e.value) == (
            f"kernel of {ns}::op0 must return its argument x itself as output 0\n"
            "  got: another object of type numpy.ndarray\n"
            f"  registered at: {source_of(scale_)}\n"
            "  to fix: return x"
        )


def test_the_out_tag_returns_the_out_arguments(define):
    """Behaviour 29."""

    def sincos(x: np.ndarray, *, s: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.sin(x, out=s), np.cos(x, out=c)

    op = define(sincos, mutates_args=("s", "c"), tags=(ow.Tag.out,))
    s, c = np.empty(6), np.empty(6)
    for _ in range(5):
        out = op(X, s=s, c=c)
        assert out[0] is s
        assert out[1] is c
    np.testing.assert_array_equal(s, np.sin(X))


def test_a_memmap_comes_back_as_itself(define, tmp_path):
    stored = np.memmap(tmp_path / "x", dtype="f8", mode="w+", shape=(3,))

    def add_(x: np.ndarray) -> np.ndarray:
        x += 1
        return x

    op = define(add_, mutates_args=("x",), tags="inplace")
    for _ in range(5):
        assert op(stored) is stored
    np.testing.assert_array_equal(stored, [5.0] * 3)


# ------------------------------------------------------------------ lists, optionals, other kernels


def test_tensor_lists_and_optional_tensors(define):
    """Behaviours 9, 11 and 37."""
    given = []

    def f(
        xs: Sequence[np.ndarray],
        ys: Sequence[np.ndarray | None] | None = None,
        z: np.ndarray | None = None,
        *,
        w: np.ndarray | None = None,
    ) -> np.ndarray:
        given.append((type(xs), ys, z, w))
        return np.asarray(sum(xs) + 0.0)

    op = define(f)
    for _ in range(4):
        np.testing.assert_array_equal(op([X, X]), 2 * X)
        np.testing.assert_array_equal(op((X, X, X)), 3 * X)
    assert {one[0] for one in given} == {list}
    op([np.float64(1), X], [None, X], X, w=X)
    _, (hole, y), z, w = given[-1]
    assert hole is None
    assert y is z is w is X
    assert op([]) == 0.0


def test_an_empty_list_leaves_the_choice_to_the_next_array(define):
    op = define(lambda xs, y: y + len(xs), schema="(Tensor[] xs, Tensor y) -> Tensor", flavour="numpy")
    for _ in range(5):
        np.testing.assert_array_equal(op([], X), X)


def test_keyword_only_arrays(define):
    """Behaviour 13: supported, not refused."""

    def f(x: np.ndarray, *, y: np.ndarray, k: int = 1) -> np.ndarray:
        return x + k * y

    op = define(f)
    for _ in range(5):
        np.testing.assert_array_equal(op(X, y=X), 2 * X)
        np.testing.assert_array_equal(op(X, k=2, y=X), 3 * X)


def test_a_torch_kernel_takes_numpy_arrays_in_their_own_memory(define):
    torch = pytest.importorskip("torch", reason="the kernel is torch's")
    given = []

    def body(x, dtype):
        given.append((x.data_ptr(), dtype))
        return (x + 1).to(dtype)

    op = define(body, schema="(Tensor x, ScalarType? dtype=None) -> Tensor", flavour="torch")
    x = X.copy()
    for _ in range(5):
        out = op(x, dtype="float32")
        assert type(out) is np.ndarray
        assert out.dtype == np.float32
    assert given[0] == (x.ctypes.data, torch.float32)
    with pytest.raises(ArgumentError, match="a dtype that a kernel of flavour torch can take"):
        op(np.array([object()]))


def test_a_kernel_with_the_keyset_gets_none(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda keyset, x: x + (keyset is None), "CPU", with_keyset=True)
        np.testing.assert_array_equal(getattr(ow.ops, ns).f(X), X + 1)


def test_a_kernel_of_another_framework_never_mutates_a_copy():
    pytest.importorskip("torch", reason="torch is not installed")

    @ow.custom_op("numpy_lent::double", mutates_args={"x"}, schema="(Tensor(a!) x) -> ()", flavour="torch")
    def double(x):
        x.mul_(2)

    whole = np.arange(6.0).reshape(2, 3)
    for x in (whole, whole.T, whole[:, ::2], whole[1:]):
        expected = x * 2
        double(x)
        np.testing.assert_array_equal(x, expected)
    for x in (np.arange(3.0)[::-1], np.arange(3, dtype=">f8")):
        kept = x.copy()
        with pytest.raises(ow.errors.ArgumentError) as raised:
            double(x)
        assert str(raised.value) == (
            "numpy_lent::double: argument x cannot be taken\n"
            "  expected: an array whose memory a kernel of flavour torch can write to\n"
            "  got: an array with a negative stride, or of foreign byte order\n"
            "  to fix: pass a copy, and use the copy afterwards"
        )
        np.testing.assert_array_equal(x, kept)


def test_advice_names_the_argument_that_is_meant(ns):
    @ow.custom_op(f"{ns}::add", mutates_args=())
    def add(x: np.ndarray, others: list[np.ndarray]) -> np.ndarray:
        return x + others[0]

    with pytest.raises(
        ArgumentError, match=r"to fix: take its plain array first: numpy\.asarray\(others\[0\]\)"
    ):
        add(X, [_units()])
    with pytest.raises(ArgumentError, match=r"to fix: fill it first: others\[1\]\.filled\(value\)"):
        add(X, [X, np.ma.masked_array([1.0], [True])])
