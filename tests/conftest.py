"""What every test shares; strictness (warnings, markers, xfail) is in pyproject.toml."""

from __future__ import annotations

import importlib.util
import itertools

import pytest

_count = itertools.count()


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


@pytest.fixture
def ns():
    """A namespace of the test's own, emptied afterwards."""
    name = f"t{next(_count)}"
    yield name
    from opwright import registry

    # A list of pairs would be made while garbage is collected, which may end operators.
    for key in list(registry.records):
        record = registry.records.get(key)
        if record is not None and key.startswith(f"{name}::"):
            registry.undefine(record, "the end of the test")
    assert not [key for key in registry.pending if key.startswith(f"{name}::")]
    assert not [slot for slot in registry.fallbacks if slot[0] in (name, "_")]
