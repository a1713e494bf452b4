"""Whatever the schema: a kernel gets what Python's binding and the one coercion say, cold and warm alike."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import opwright as ow
from opwright.scalars import coercion
from opwright.schema import signature_of

X, Y = np.arange(3.0), np.ones((2, 2), dtype=np.int8)
ARRAYS = st.sampled_from([X, Y, X[::2], np.float64(2.5), np.array(1)])
INTS = st.sampled_from([0, 3, -1, True, np.int64(4), np.array(5)])
NUMBERS = INTS | st.sampled_from([0.5, np.float32(1.5), np.array(2.5)])
TEXT = st.sampled_from(["", "a", np.str_("b")])


def _lists(elements, size=None):
    least, most = (0, 3) if size is None else (size, size)
    return st.lists(elements, min_size=least, max_size=most).flatmap(
        lambda one: st.sampled_from([one, tuple(one)])
    )


# schema type -> values that it takes, and defaults as a schema writes them
TYPES = {
    "Tensor": (ARRAYS, [None]),
    "Tensor?": (ARRAYS | st.none(), ["None"]),
    "Tensor[]": (_lists(ARRAYS), [None]),
    "Tensor?[]": (_lists(ARRAYS | st.none()), [None]),
    "int": (INTS, [None, "7", "-2"]),
    "float": (NUMBERS, [None, "0.5", "inf"]),
    "bool": (st.sampled_from([True, False, 0, 1, np.bool_(True)]), [None, "True"]),
    "str": (TEXT, [None, "'s'"]),
    "Scalar": (NUMBERS, [None, "1", "2.5"]),
    "int?": (INTS | st.none(), [None, "None", "3"]),
    "int[]": (_lists(INTS), [None, "[1, 2]"]),
    "int[2]": (_lists(INTS, 2) | INTS.filter(lambda one: isinstance(one, int)), [None, "3"]),
    "float[]?": (_lists(NUMBERS) | st.none(), [None, "None", "[0.5]"]),
    "str[]": (_lists(TEXT), [None]),
}
NAMES = ["x", "k", "self", "len", "list", "KeyError", "_ow_x", "out", "args"]


@st.composite
def calls(draw):
    """A schema, and the arguments of a call of it."""
    count = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=count, max_size=count))
    kinds[draw(st.integers(0, count - 1))] = "Tensor"
    split = draw(st.integers(0, count))
    parts, args, kwargs, defaulted = [], [], {}, False
    by_name = draw(st.booleans())
    for index, drawn in enumerate(kinds):
        kind = drawn
        if index == split:
            parts.append("*")
            defaulted, by_name = False, True
        default = draw(st.sampled_from(TYPES[kind][1]))
        if default is None and defaulted:
            default = "None" if kind.endswith("?") else None
            if default is None:
                kind = "int?"
                default = "None"
        defaulted = defaulted or (default is not None and index < split)
        parts.append(f"{kind} {NAMES[index]}{'' if default is None else '=' + default}")
        if default is None or draw(st.booleans()):
            value = draw(TYPES[kind][0])
            if by_name or index >= split:
                kwargs[NAMES[index]] = value
            else:
                args.append(value)
        else:
            by_name = True
    return f"({', '.join(parts)}) -> int", args, kwargs


_count = itertools.count()


@settings(max_examples=150, deadline=None)
@given(calls())
def test_a_kernel_gets_what_the_schema_says(call):
    text, args, kwargs = call
    given_ = []
    with ow.Library("dispatchany", "FRAGMENT") as lib:
        name = lib.define(f"f{next(_count)}{text}")
        lib.impl(name, lambda *a, **k: given_.append((a, k)) or len(given_), "CPU", flavour="numpy")
        op = getattr(ow.ops.dispatchany, name).default
        bound = signature_of(op.schema).bind(*args, **kwargs)
        bound.apply_defaults()
        if not any(_arrays(bound.arguments[a.name]) for a in op.schema.arguments if a.has_tensors):
            return
        for number in range(1, 6):
            assert op(*args, **kwargs) == number
        for a, k in given_:
            assert len(a) == len(op.schema.positional)
            assert set(k) == {argument.name for argument in op.schema.keyword_only}
            got = [*a, *(k[argument.name] for argument in op.schema.keyword_only)]
            for argument, one in zip(op.schema.arguments, got, strict=True):
                value = bound.arguments[argument.name]
                wanted = value if argument.has_tensors else coercion(op.name, argument)(value)
                _same(one, wanted)


def _arrays(value):
    if isinstance(value, list | tuple):
        return any(map(_arrays, value))
    return isinstance(value, np.ndarray | np.generic)


def _same(got, wanted):
    if isinstance(wanted, list | tuple):
        assert type(got) is list
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            _same(one, other)
    elif isinstance(wanted, np.ndarray | np.generic):
        assert type(got) is np.ndarray
        assert got is wanted or isinstance(wanted, np.generic)
        np.testing.assert_array_equal(got, wanted)
    else:
        assert type(got) is type(wanted)
        assert got == wanted
