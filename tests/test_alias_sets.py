"""Arguments that are mutated in an alias set without a name: ``Tensor! x``."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import opwright as ow
from opwright.alias_sets import with_named_sets
from opwright.errors import SchemaError
from opwright.parse import parse_schema


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Tensor! x", "Tensor(a0!) x"),
        ("Tensor a, Tensor!? x=None", "Tensor a, Tensor(a1!)? x=None"),
        ("Tensor![] x", "Tensor(a0!)[] x"),
        ("Tensor[]! x", "Tensor[](a0!) x"),
        ("Tensor!?[] x", "Tensor(a0!)?[] x"),
        ("Tensor![]!? x", "Tensor(a0!)[](a0_1!)? x"),
        ("Tensor! x, Tensor(a0!) y, *, Tensor! z", "Tensor(a0_1!) x, Tensor(a0!) y, *, Tensor(a2!) z"),
        ("Tensor(a!) x, Tensor(b) y, int k=1", "Tensor(a!) x, Tensor(b) y, int k=1"),
    ],
)
def test_each_set_gets_a_name_of_its_own(text, named):
    schema = with_named_sets(parse_schema(f"ns::f({text}) -> ()"))
    assert str(schema) == f"ns::f({named}) -> ()"
    assert with_named_sets(schema) is schema


def fill(x, out):
    out[...] = x


def _definitions(ns):
    ow.define(f"{ns}::defined", "(Tensor x, Tensor! out) -> ()")
    ow.impl(f"{ns}::defined", "cpu", fill)
    library = ow.Library(ns, "FRAGMENT")
    library.define("of_library(Tensor x, Tensor! out) -> ()")
    library.impl("of_library", fill, "CPU")
    schema = "(Tensor x, Tensor! out) -> ()"
    ow.custom_op(f"{ns}::decorated", fill, mutates_args=["out"], schema=schema)
    return library


def test_every_way_to_define_takes_it(ns):
    library = _definitions(ns)
    for name in ("defined", "of_library", "decorated"):
        op = getattr(getattr(ow.ops, ns), name).default
        assert str(op.schema) == f"{ns}::{name}(Tensor x, Tensor(a1!) out) -> ()"
        out = np.zeros(3)
        op(np.arange(3.0), out)
        assert out.tolist() == [0, 1, 2]
    library.destroy()


def test_a_mutated_argument_that_mutates_args_does_not_name(ns):
    with pytest.raises(SchemaError, match="mutates_args and the schema name other arguments as mutated"):
        ow.custom_op(f"{ns}::f", fill, mutates_args=(), schema="(Tensor x, Tensor! out) -> ()")


def test_a_return_is_in_no_set_without_a_name(ns):
    with pytest.raises(SchemaError, match="return 0 is in the alias set !, which no argument has"):
        ow.define(f"{ns}::f", "(Tensor! x) -> Tensor!")


SUFFIXES = ["".join(parts) for size in range(5) for parts in product(["!", "?", "[]", "(a!)"], repeat=size)]


@pytest.mark.parametrize("base", ["Tensor", "int"])
def test_it_is_read_where_torch_reads_it(base):
    """Of every order of up to four suffixes."""
    torch = pytest.importorskip("torch")
    read = 0
    for suffix in SUFFIXES:
        if "?(" in suffix:  # ours reads it, as torch prints ``Tensor(a!)?[]`` so
            continue
        text = f"ns::f({base}{suffix} x, Tensor! y) -> ()"
        try:
            theirs = torch._C.parse_schema(text)
        except RuntimeError:
            with pytest.raises(SchemaError):
                parse_schema(text)
            continue
        read += 1
        schema = parse_schema(text)
        assert parse_schema(str(schema)) == schema
        assert "$" not in str(torch._C.parse_schema(str(with_named_sets(schema))))
        marked = [one.alias_info is not None and one.alias_info.is_write for one in theirs.arguments]
        assert [argument.is_write for argument in schema.arguments] == marked
        if suffix.count("[]") < 2:  # of a list of lists, torch prints other sets than it has read
            assert parse_schema(str(theirs)) == schema  # what torch prints reads back
    assert read > 50
