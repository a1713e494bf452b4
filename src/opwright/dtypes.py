"""Dtypes of any framework, in NumPy's words."""

from __future__ import annotations

from typing import Any

from opwright.errors import ArgumentError, layout
from opwright.rules.autocast import dtype_name


def as_dtype(dtype: Any) -> Any:
    """Return NumPy's dtype for a dtype of any framework, or the name of one.

    Raises
    ------
    ArgumentError
        If it is none; for ``bfloat16`` and its like, if ml_dtypes is not installed.
    """
    import numpy as np

    if isinstance(dtype, np.dtype):
        return dtype
    if dtype in (bool, int, float, complex):
        return np.dtype(dtype)
    name = dtype_name(dtype)
    try:
        return np.dtype(name)
    except TypeError:
        return _extended(name)


def _extended(name: str) -> Any:
    """Return a dtype that NumPy itself has not."""
    import numpy as np

    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError, TypeError) as error:
        raise ArgumentError(
            layout(
                f"{name!r} is not a dtype",
                expected="a dtype of any framework, or its name",
                fix="pip install ml_dtypes, for bfloat16 and its like",
            )
        ) from error


def is_inexact(dtype: Any) -> bool:
    """Return whether a dtype of any framework is a floating or complex one."""
    return is_floating(dtype) or dtype_name(dtype).startswith(("complex", "clongdouble"))


def is_floating(dtype: Any) -> bool:
    """Return whether a dtype of any framework is a real floating one."""
    return dtype_name(dtype).startswith(("float", "bfloat", "longdouble"))
