from __future__ import annotations

import pytest

from opwright.checks.adapters.base import adapter


@pytest.fixture(name="numpy_adapter")
def fixture_numpy_adapter():
    return adapter("numpy")
