"""The Triton kernels that a function may launch, found without running it."""

from __future__ import annotations

import inspect
from types import CellType
from typing import Any

from opwright.kernels.triton import Launcher, classes

_EMPTY = CellType()
_LIBRARIES = ("torch", "triton", "numpy", "jax", "cupy")  # whose modules hold no kernels of an author


def interpreting() -> bool:
    """Return whether Triton runs kernels in its interpreter in this process."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def kernels_in(function: Any) -> list[Any]:
    """Return the Triton functions that a function may launch: those that its names lead to, and onwards.

    Names are looked up in globals and closures, also those of the functions that it calls; what is only
    known when it runs is not found.
    """
    _, _, jit, _ = classes()
    return [one for one in _launched(function) if isinstance(one, jit)]


def runs_interpreted(function: Any) -> bool:
    """Return whether a function may launch a kernel that Triton interprets."""
    if not interpreting():
        return False
    *_, interpreted = classes()
    return any(isinstance(one, interpreted) for one in _launched(function))


def _launched(function: Any) -> list[Any]:
    autotuner, heuristics, jit, interpreted = classes()
    found: dict[int, Any] = {}
    seen: set[int] = set()
    stack = [function]
    while stack:
        one = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Launcher):
            stack.append(one.kernel)
        elif isinstance(one, (autotuner, heuristics)):
            stack.append(one.fn)
        elif isinstance(one, (jit, interpreted)):
            found[id(one)] = one
        elif inspect.isfunction(one):
            stack += _reachable(one)
    return list(found.values())


def _reachable(function: Any) -> list[Any]:
    """Return what the names in a function's code lead to."""
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    for value in [*values]:
        if inspect.ismodule(value) and value.__name__.partition(".")[0] not in _LIBRARIES:
            values += [vars(value)[name] for name in names if name in vars(value)]
    cells = (cell for cell in function.__closure__ or () if cell != _EMPTY)
    return values + [cell.cell_contents for cell in cells]
