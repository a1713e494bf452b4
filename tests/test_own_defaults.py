"""Kernels and fakes whose own defaults are not those of the schema."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.own_defaults import with_own_defaults
from opwright.parse import parse_schema

SCHEMA = "(Tensor x, float a=1., int[2] b=1, *, str c='c', ScalarType? d=None) -> Tensor"


def kernel(x, a=2.0, b=(1, 1), *, c="own", d="float16"):
    return x, a, b, c, d


def called(fn, *args, **kwargs):
    return with_own_defaults(fn, parse_schema("n::f" + SCHEMA))(*args, **kwargs)[1:]


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((0, 1.0, (1, 1)), {"c": "c", "d": None}, (2.0, (1, 1), "own", "float16")),
        ((0, 1.0, (3, 1)), {"c": "c", "d": None}, (1.0, (3, 1), "own", "float16")),
        ((0, 5.0, [1, 1]), {"c": "x", "d": "int8"}, (5.0, (1, 1), "x", "int8")),
    ],
    ids=["all left out", "a later one given, as in torch", "others given"],
)
def test_the_functions_own_defaults_count(args, kwargs, expected):
    assert called(kernel, *args, **kwargs) == expected


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, a, b, *, c, d: 0,
        lambda x, a=1, b=(1, 1), *, c="c", d=None: 0,
        lambda *args, **kwargs: 0,
    ],
    ids=["without defaults", "the same defaults", "without names"],
)
def test_other_functions_are_called_as_they_are(fn):
    assert with_own_defaults(fn, parse_schema("n::f" + SCHEMA)) is fn


def routes(torch, ns):
    native, ours = getattr(torch.ops, ns).f, getattr(ow.ops, ns).f
    compiled = torch.compile(lambda x: native(x), backend="aot_eager", fullgraph=True)
    return [native, native.default, ours, ours.default, compiled]


@pytest.mark.parametrize("by", ["impl", "register_kernel"])
def test_on_tensors(ns, by):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ow.define(f"{ns}::f", "(Tensor x, float eps=1e-6, ScalarType? dtype=None) -> Tensor")
    calls = routes(torch, ns)

    def body(x, eps=1e-5, dtype=torch.float16):
        return (x + eps * 1e6).to(dtype)

    body.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    if by == "impl":
        ow.impl(f"{ns}::f", "cpu", body)
    else:
        ow.register_kernel(f"{ns}::f", "cpu", body)
    ow.register_fake(f"{ns}::f", lambda x, eps=0.0, dtype=torch.float16: x.new_empty(x.shape, dtype=dtype))
    for call in calls:
        for _ in range(3):
            found = call(torch.zeros(1))
            assert (found.item(), found.dtype) == (10.0, torch.float16)
    for call in calls[:-1]:
        assert call(torch.zeros(1), 1e-6, torch.float64).item() == pytest.approx(1.0)


def test_on_numpy_arrays_and_with_the_schema_of_a_definition(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=(), schema="(Tensor x, int k=1) -> Tensor")
    def scale(x, k=3):
        return x * k

    assert [scale(np.ones(1))[0], scale(np.ones(1), 1)[0], scale(np.ones(1), 2)[0]] == [3, 3, 2]


@pytest.mark.parametrize(("own", "expected"), [(None, 1), (3, 3)])
def test_a_fake_that_has_none_where_any_value_will_do_gets_the_schemas(own, expected):
    fake = with_own_defaults(
        lambda x, k=own: k, parse_schema("n::f(Tensor x, int k=1) -> Tensor"), none_counts=False
    )
    assert fake(0, 1) == expected
