"""Kernels that do next to nothing, for the benchmark of launches; Triton reads them from a file."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def five(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803
        """Add two arrays."""
        at = tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

    @triton.jit
    def nineteen(a, b, c, d, e, out, i, j, k, l, m, n, o, p, q, r, s, t, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, E741, N803, PLR0917
        """Write one element, whatever the arguments."""
        tl.store(out, tl.load(a) + i + j + k + l + m + n + o + p + q + r + s + t)
