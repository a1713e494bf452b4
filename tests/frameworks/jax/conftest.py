"""Four CPU devices, asked for before JAX makes its backend; the tests below need two of them."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("jax", reason="JAX is not installed")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4".strip()
)
