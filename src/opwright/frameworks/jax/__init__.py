"""JAX: every overload is a primitive of its own, right under every transform."""

from __future__ import annotations

from opwright.frameworks.jax.call import export_target
from opwright.frameworks.jax.framework import FRAMEWORK

__all__ = ["FRAMEWORK", "export_target"]
