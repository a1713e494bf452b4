"""What torch is told of a schema that has defaults which torch cannot read."""

from __future__ import annotations

import enum
from dataclasses import replace

import numpy as np
import pytest

import opwright as ow

torch = pytest.importorskip("torch", reason="the schema text is torch's")

from torch.fx.operator_schemas import _torchscript_schema_to_signature  # noqa: E402  (the same)

from opwright.frameworks.torch.schema_text import torch_signature  # noqa: E402  (needs torch)
from opwright.parse import parse_schema  # noqa: E402  (after it)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("(Tensor x, int k=1, float m=0.5) -> Tensor", None),
        ("(Tensor x, float k=inf) -> Tensor", "(Tensor x, float k) -> Tensor"),
        (
            "(Tensor x, int a=1, float k=nan, int b=2) -> Tensor",
            "(Tensor x, int a, float k, int b=2) -> Tensor",
        ),
        ("(Tensor x, *, float k=-inf, int b=2) -> Tensor", "(Tensor x, *, float k, int b=2) -> Tensor"),
        ("(Tensor x, Tensor?[] ys=[None]) -> Tensor", "(Tensor x, Tensor?[] ys) -> Tensor"),
        ("(Tensor x, str[] s=['a']) -> Tensor", "(Tensor x, str[] s) -> Tensor"),
        ("(Tensor x, float k=1e-320) -> Tensor", "(Tensor x, float k) -> Tensor"),
        (
            "(Tensor x, int a=1, str[] s=['a'], int b=2, *, int c=3, str[] t=['b'], str d=\"e\") -> Tensor",
            '(Tensor x, int a, str[] s, int b=2, *, int c=3, str[] t, str d="e") -> Tensor',
        ),
        (
            "(Tensor x, complex z=0.0+2.0j, int b=2) -> Tensor",
            "(Tensor x, complex z=2.0j, int b=2) -> Tensor",
        ),
        ("(Tensor x, complex z=1.0+2.0j, int b=2) -> Tensor", "(Tensor x, complex z, int b=2) -> Tensor"),
    ],
)
def test_defaults_that_torch_cannot_read_are_left_out(text, given):
    schema = parse_schema("ns::f" + text)
    assert torch_signature(schema) == (text if given is None else given)
    torch._C.parse_schema("ns::f" + torch_signature(schema))


def test_such_an_operator_is_called_with_its_defaults(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray, k: float = float("inf"), ys: list[np.ndarray | None] = [None]) -> np.ndarray:  # noqa: B006
        return np.minimum(x, k) + len(ys)

    for _ in range(3):
        assert f(torch.ones(2)).tolist() == [2.0, 2.0]
        assert f(torch.ones(2), 0.5).tolist() == [1.5, 1.5]
        assert f(np.ones(2)).tolist() == [2.0, 2.0]
    assert getattr(torch.ops, ns).f(torch.ones(2), 0.5, [None]).tolist() == [1.5, 1.5]


class Scale(enum.Enum):
    UNLIMITED = float("inf")
    ONE = 1.0


def _readable(schema):
    """Return whether torch reads a schema and makes a Python signature of it, as its tracers do."""
    try:
        _torchscript_schema_to_signature(torch._C.parse_schema(f"{schema.name}{schema.signature}"))
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def test_no_more_defaults_are_left_out_than_torch_demands(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(
        x: torch.Tensor,
        a: int = 1,
        m: Scale = Scale.UNLIMITED,
        b: int = 2,
        names: tuple[str, ...] = ("p",),
        c: float = 0.5,
        *,
        d: int = 3,
        n: Scale = Scale.UNLIMITED,
        o: Scale = Scale.ONE,
        more: tuple[str, ...] = ("q",),
        e: str = "e",
        z: complex = 2j,
    ) -> torch.Tensor:
        assert m is Scale.UNLIMITED
        assert n is Scale.UNLIMITED
        assert o is Scale.ONE
        assert (names, more, e, z) == (("p",), ("q",), "e", 2j)
        return x * a * b * c * d

    schema = f._record.schema
    given = parse_schema(f"{ns}::f{torch_signature(schema)}")
    assert _readable(given)
    assert [a.name for a in given.arguments if a.default] == ["c", "d", "o", "e", "z"]
    for index, (before, after) in enumerate(zip(schema.arguments, given.arguments, strict=True)):
        if before.default and not after.default:
            restored = [*given.arguments[:index], before, *given.arguments[index + 1 :]]
            name = f"{ns}::f_{before.name}"  # torch keeps signatures by name
            assert not _readable(replace(given, name=name, arguments=tuple(restored))), before.name
    x = torch.ones(2)
    native = getattr(torch.ops, ns).f
    inf = float("inf")
    for _ in range(3):
        assert f(x).tolist() == [3.0, 3.0]
        assert native(x, 1, inf, 2, ["p"], n=inf, more=["q"]).tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="missing value for argument 'a'"):
        native(x, n=inf, more=["q"])
