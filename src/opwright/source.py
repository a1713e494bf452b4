"""Where something was written: ``file:line`` of functions and of the caller's own line.

Locations come from code objects and frames alone; no module is searched or imported for them.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from types import CodeType, FrameType
from typing import Any

GENERATED = "<opwright "
"""How the file names of generated functions start."""

_PACKAGE = os.path.dirname(__file__) + os.sep  # noqa: PTH120  (pathlib costs 8 ms at import)


def code_of(fn: Any) -> CodeType | None:
    """Return the code object under partials, methods, handles and decorators, or None."""
    seen = 0
    while seen < 32:
        if isinstance(fn, partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif hasattr(fn, "__func__"):
            fn = fn.__func__
        else:
            break
        seen += 1
    code = getattr(fn, "__code__", None)
    if code is None and not isinstance(fn, type):
        code = getattr(getattr(type(fn), "__call__", None), "__code__", None)
    return code if isinstance(code, CodeType) else None


def source_of(fn: Any) -> str:
    """Return ``file:line`` of a function, or what it is where it has no Python source."""
    code = code_of(fn)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    module = getattr(fn, "__module__", None) or type(fn).__module__
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__
    return f"<{module}.{name}>"


def file_of(source: str) -> str:
    """Return the file part of a ``file:line``; all cells of a notebook, and all typed lines, are one file."""
    if source.endswith(">"):
        return source
    path = source.rpartition(":")[0]
    if path.startswith("<") or os.path.basename(os.path.dirname(path)).startswith("ipykernel_"):  # noqa: PTH119, PTH120
        return "<typed>"
    return path


def is_own(frame: FrameType) -> bool:
    """Return whether a frame is of this package, or of a function that it generated."""
    return frame.f_code.co_filename.startswith((_PACKAGE, GENERATED))


def caller() -> tuple[str, int]:
    """Return ``file:line`` of the first frame outside this package, and its depth for ``warnings.warn``.

    The depth counts from the function that calls ``caller``, as ``stacklevel`` does.
    """
    frame, depth = sys._getframe(1), 1  # noqa: SLF001  (the documented way to a frame)
    while frame.f_back is not None and is_own(frame):
        frame, depth = frame.f_back, depth + 1
    return f"{frame.f_code.co_filename}:{frame.f_lineno}", depth
