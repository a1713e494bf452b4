"""The matrix of torch: kinds of operators, transforms, and what each of their cells must be.

A cell is *right*, compared with built-in operations, or *raises* with a text. ``test_conformance.py`` runs
it, and the documentation prints it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_compiled import plain
from torch_kinds import KINDS, NAMESPACE, Fn, Kind
from torch_transforms import TRANSFORMS, Transform

__all__ = ["FORMS", "KINDS", "NAMESPACE", "TRANSFORMS", "X", "expected_error", "plain"]

FORMS: dict[str, Callable[[Fn], Fn]] = {
    "sum": lambda f: f,
    "product": lambda f: lambda y: f(y) * y,
    "three": lambda f: lambda y: f(y) * y * y,
}

X = torch.tensor([0.4, 1.1, -0.8], dtype=torch.float64)


def expected_error(kind_: Kind, transform_: Transform) -> str | None:
    """Return what the error of a cell says, or None where the cell must be right."""
    for need in transform_.needs:
        if need in kind_.raises:
            return kind_.raises[need]
    return None
