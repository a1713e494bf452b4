"""Batches of gradients, as torch's older vmap makes them: an operator is looped over them.

``torch.autograd.grad(is_grads_batched=True)`` and ``vectorize`` of ``torch.autograd.functional`` have them.
Torch's own loop knows no operator that returns a list.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from opwright.errors import UnsupportedError, layout
from opwright.frameworks.torch import private
from opwright.frameworks.torch.lowered import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.frameworks.torch.lowered import Lowered


def each(state: Lowered, flat: tuple[Any, ...]) -> Any:
    """Call an operator that returns a list of tensors, once for each entry of a batch, if there is one.

    Raises
    ------
    UnsupportedError
        If batches are nested.
    """
    # Compiled autograd traces this, and knows no such batches.
    if torch.compiler.is_dynamo_compiling() or not any(map(private.is_legacy_batched, tensors_in(flat))):
        return state.call(flat)
    add, remove = private.add_legacy, private.remove_legacy
    if add is None or remove is None:
        raise _unsupported(state, f"torch {torch.__version__}, which cannot take such batches apart")
    level, sizes = private.legacy_level(), set()

    def taken_apart(tensor: torch.Tensor) -> Any:
        if not private.is_legacy_batched(tensor):
            return tensor
        whole = remove(tensor, level, 1, 0)
        if private.is_legacy_batched(whole):
            raise _unsupported(state, "a batch inside of another one")
        sizes.add(whole.shape[0])
        return _Batch(whole)

    apart = _map(taken_apart, flat)
    (size,) = sizes
    rows = [state.call(_map(partial(_entry, index), apart)) for index in range(size)]
    return [add(torch.stack(column), 0, level) for column in zip(*rows, strict=True)]


class _Batch:
    """A batch of tensors along the first axis."""

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole = whole


def _entry(index: int, one: Any) -> Any:
    return one.whole[index] if isinstance(one, _Batch) else one


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with the function of each tensor and batch in its lists and tuples."""
    if isinstance(value, torch.Tensor | _Batch):
        return function(value)
    return type(value)(_map(function, one) for one in value) if value.__class__ in (list, tuple) else value


def _unsupported(state: Lowered, got: str) -> UnsupportedError:
    return UnsupportedError(
        layout(
            f"{state.record.qualname} was called with gradients that torch batches",
            got=got,
            fix="use torch.func.vmap, or ask for one gradient after another",
        )
    )
