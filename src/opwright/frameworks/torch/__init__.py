"""PyTorch: every overload is an operator of torch's own dispatcher, right under every transform."""

from __future__ import annotations

from opwright.frameworks.torch.framework import FRAMEWORK

__all__ = ["FRAMEWORK"]
