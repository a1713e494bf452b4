"""What every test shares; strictness (warnings, markers, xfail) is in pyproject.toml."""

from __future__ import annotations

import importlib.util

import pytest


def _why_no_cuda() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "needs a CUDA device, and torch, which would find it, is not installed"
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA device, and torch finds none"


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU where there is none; torch is only asked when such a test was collected."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    reason = _why_no_cuda() if marked else None
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
