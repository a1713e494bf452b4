"""NumPy arrays of samples: copied with their layout, laid out otherwise, written down, compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

FLOATING = "fc"
"""The kinds of dtype that have derivatives."""

TOLERANCES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "float16": (1e-3, 1e-3),
        "bfloat16": (1.6e-2, 1e-2),
        "float32": (2e-6, 1e-5),
        "float64": (1e-7, 1e-7),
        "complex64": (2e-6, 1e-5),
        "complex128": (1e-7, 1e-7),
    }
)
"""Relative and absolute tolerance by dtype; the absolute one is scaled with the largest value."""


def is_floating(array: Any) -> bool:
    """Return whether an array has derivatives: real or complex floating, bfloat16 included."""
    return array.dtype.kind in FLOATING or "float" in array.dtype.name


def copied(array: Any) -> Any:
    """Return a copy in memory of its own with the same strides, offset and writeability.

    Memory between the elements is filled with other values, so that reading it shows.
    """
    import numpy as np

    if array.dtype.hasobject or not isinstance(array, np.ndarray):
        return array.copy()
    if array.flags.c_contiguous and array.base is None and array.flags.writeable:
        return array.copy()
    low, high = np.lib.array_utils.byte_bounds(array)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    start = array.__array_interface__["data"][0]
    pad = array.itemsize if low != owner.__array_interface__["data"][0] else 0
    buffer = np.full(high - low + pad, 0x41 if array.dtype.kind in FLOATING else 0, np.uint8)
    if array.size == 0:
        new = np.empty_like(array)
    else:
        new = np.ndarray(array.shape, array.dtype, buffer, pad + start - low, array.strides)
        new[...] = array
    new.flags.writeable = array.flags.writeable
    return new


def _transposed(x: Any) -> Any:
    import numpy as np

    return np.asfortranarray(x)


def _sliced(x: Any) -> Any:
    import numpy as np

    return np.repeat(x, 2, axis=-1)[..., ::2]


def _flipped(x: Any) -> Any:
    import numpy as np

    return np.flip(np.flip(x, 0).copy(), 0)


def _offset(x: Any) -> Any:
    import numpy as np

    return np.concatenate([np.full(1, 41, x.dtype), x.ravel()])[1:].reshape(x.shape)


def _read_only(x: Any) -> Any:
    new = x.copy()
    new.flags.writeable = False
    return new


def _expanded(x: Any) -> Any:
    import numpy as np

    first = np.array(x[:1], order="C")
    return np.lib.stride_tricks.as_strided(first, x.shape, (0, *first.strides[1:]))


Layout = tuple[Callable[[Any], Any], str, int]

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "transposed": (_transposed, "np.asfortranarray({0})", 2),
        "sliced": (_sliced, "np.repeat({0}, 2, axis=-1)[..., ::2]", 1),
        "with a negative stride": (_flipped, "np.flip(np.flip({0}, 0).copy(), 0)", 1),
        "at an offset": (
            _offset,
            "np.concatenate([np.full(1, 41, {0}.dtype), {0}.ravel()])[1:].reshape({0}.shape)",
            1,
        ),
        "expanded": (
            _expanded,
            "np.lib.stride_tricks.as_strided({0}[:1].copy(), {0}.shape, (0, *{0}[:1].copy().strides[1:]))",
            1,
        ),
        "read-only": (_read_only, "np.frombuffer({0}.tobytes(), {0}.dtype).reshape({0}.shape)", 0),
    }
)
"""By name: what lays an array out in memory, how a snippet writes it, and from how many dimensions."""


def has_other_layout(array: Any, name: str) -> bool:
    """Return whether laying an array out in this way changes anything."""
    if array.ndim < LAYOUTS[name][2] or array.dtype.hasobject or array.size == 0:
        return False
    if name == "read-only":
        return bool(array.flags.writeable)
    if name == "at an offset":
        return True
    if name == "transposed":
        return not _transposed(array).flags.c_contiguous
    return bool(array.shape[-1] > 1 if name == "sliced" else array.shape[0] > 1)


def written(array: Any, limit: int) -> str | None:
    """Return an expression that makes the array, or None where it has too many elements."""
    import numpy as np

    name = array.dtype.name
    if array.dtype.hasobject or array.dtype.names is not None or array.size > limit:
        return None
    if array.size == 0:
        return f"np.empty({tuple(array.shape)}, {name!r})"
    text = np.array2string(
        array, separator=", ", threshold=limit + 1, floatmode="unique", max_line_width=10_000
    )
    text = re.sub(
        r"\b(nan|inf)(?=j|\b)", r"np.\1", re.sub(r"\s+(?=[,\]])|(?<=\[)\s+", "", re.sub(r"\s+", " ", text))
    )
    text = re.sub(r"np\.(nan|inf)j", r"complex(0, np.\1)", text)
    known = "float32" if array.dtype.kind == "V" else name  # NumPy alone has no bfloat16
    return f"np.array({text}, {known!r})"


def tolerance(dtype: Any, rtol: float | None, atol: float | None) -> tuple[float, float]:
    """Return relative and absolute tolerance of a comparison in a dtype."""
    default = TOLERANCES.get(dtype.name, (0.0, 0.0))
    return default[0] if rtol is None else rtol, default[1] if atol is None else atol


def wide(array: Any) -> Any:
    """Return the array in a dtype that comparisons compute in."""
    import numpy as np

    if array.dtype.kind in "biu" or (array.dtype.kind == "f" and array.dtype.itemsize >= 8):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def difference(
    got: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None, dtype: Any = None
) -> tuple[str, str] | None:
    """Return the worst element of two arrays of one shape, as (expected, got), or None where they agree.

    ``dtype`` is the one whose tolerance counts, by default that of ``expected``.
    """
    import numpy as np

    dtype = dtype or expected.dtype
    if got.size == 0:
        return None
    if dtype.hasobject or dtype.names is not None or dtype.kind in "SUMm":
        return None if np.array_equal(got, expected) else (repr(expected), repr(got))
    relative, absolute = tolerance(dtype, rtol, atol)
    a, b = wide(np.asarray(got)), wide(np.asarray(expected))
    if dtype.kind in "biu":
        wrong = a != b
        error = wrong.astype(float)
    else:
        finite = np.abs(b[np.isfinite(b)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        error = np.where(same, 0.0, np.abs(np.where(same, 0, a - np.where(same, 0, b))))
        error = np.where(np.isnan(error), np.inf, error)
        bound = relative * np.where(np.isfinite(b), np.abs(b), 0.0) + absolute * scale
        wrong = error > bound
    if not wrong.any():
        return None
    index = np.unravel_index(int(np.argmax(np.where(wrong, error, -1.0))), got.shape)
    where = f" at index {tuple(map(int, index))}" if got.ndim else ""
    count = int(wrong.sum())
    rest = f"; {count} of {got.size} elements differ" if got.size > 1 else ""
    return f"{shown(expected[index])}{where}", f"{shown(got[index])}{rest}"


def shown(number: Any) -> str:
    """Return one element for a message."""
    value = number.item() if hasattr(number, "item") else number
    return f"{value:.9g}" if isinstance(value, float | complex) else repr(value)


def described(array: Any) -> str:
    """Return dtype and shape for a message."""
    return f"{array.dtype} {tuple(array.shape)}"
