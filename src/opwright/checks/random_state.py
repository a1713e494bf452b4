"""The global random generators of the libraries that are loaded: a call leaves them as they were."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

GENERATORS = (
    ("Python's", "random", ("getstate", "setstate", "random"), ()),
    ("NumPy's", "numpy.random", ("get_state", "set_state", "random"), ()),
    ("PyTorch's", "torch", ("get_rng_state", "set_rng_state", "rand"), (1,)),
)
"""By whose they are, their module, what gets and sets the state, and what draws, with its arguments."""


def changed(call: Callable[[], object]) -> list[str]:
    """Return whose generators a call changes, which are left as they were.

    Each is moved on before: a call that seeds one leaves it where the call before did.
    """
    modules = [(*row, sys.modules[row[1]]) for row in GENERATORS if row[1] in sys.modules]
    kept = [getattr(module, names[0])() for *_, names, _, module in modules]
    try:
        for *_, names, args, module in modules:
            getattr(module, names[2])(*args)
        before = _states(modules)
        call()
        after = _states(modules)
    finally:
        for (*_, names, _, module), state in zip(modules, kept, strict=True):
            getattr(module, names[1])(state)
    return [row[0] for row, *states in zip(modules, before, after, strict=True) if states[0] != states[1]]


def _states(modules: list[Any]) -> list[str]:
    return [_text(getattr(module, names[0])()) for *_, names, _, module in modules]


def _text(state: Any) -> str:
    if isinstance(state, tuple):
        return ", ".join(map(_text, state))
    return str(state.tolist()) if hasattr(state, "tolist") else str(state)
