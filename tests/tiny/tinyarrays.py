"""An array library of its own, as small as can be: memory from NumPy, on one of two devices."""

from __future__ import annotations

import numpy as np


class Array:
    """An array that knows addition, multiplication and DLPack."""

    def __init__(self, data, device="cpu"):
        self.data = np.asarray(data)
        self.device = device

    def __repr__(self):
        return f"tinyarrays.Array({self.data.tolist()}, {self.device!r})"

    def __add__(self, other):
        return Array(self.data + getattr(other, "data", other), self.device)

    def __mul__(self, other):
        return Array(self.data * getattr(other, "data", other), self.device)

    def __dlpack__(self, **kwargs):
        return self.data.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


class Sub(Array):
    """A subclass counts as an array of the library."""
