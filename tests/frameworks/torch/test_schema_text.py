"""What torch is told of a schema that has defaults which torch cannot read."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow

torch = pytest.importorskip("torch", reason="the schema text is torch's")

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
