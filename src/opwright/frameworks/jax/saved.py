"""What ``setup_context`` keeps: arrays become operands of the linear primitive, all else a static part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from opwright.frameworks.jax.avals import typed
from opwright.frameworks.jax.private import HOST_ARRAYS
from opwright.rules.autograd import Context

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

_OWN = ("needs_input_grad", "saved_tensors", "materialize_grads", "non_differentiable", "dirty_tensors")


class Saved:
    """A context taken apart: its arrays beside it, everything else in it.

    Parameters
    ----------
    context
        The context that ``setup_context`` has filled.
    arrays
        Arrays found so far, by whatever contexts; those found here are appended, each once.
    """

    __slots__ = ("_attributes", "_needs", "_tensors", "key", "materialize", "opaque")

    def __init__(self, context: Context, arrays: list[Any]) -> None:
        self.opaque = False
        self.materialize = context.materialize_grads
        self._needs = context.needs_input_grad
        self._tensors = [self._slot(one, arrays) for one in context.saved_tensors]
        self._attributes = [
            (name, *self._split(value, arrays)) for name, value in vars(context).items() if name not in _OWN
        ]
        # Absent and untyped arrays are left out of the key by their slots; values are typed.
        self.key: Hashable = (
            self.materialize,
            self._needs,
            tuple(map(typed, self._tensors)),
            tuple((name, tree, tuple(map(typed, leaves))) for name, tree, leaves in self._attributes),
        )

    def _split(self, value: Any, arrays: list[Any]) -> tuple[Any, list[Any]]:
        leaves, tree = jax.tree_util.tree_flatten(value, is_leaf=lambda one: one is None)
        return tree, [self._slot(leaf, arrays) for leaf in leaves]

    def _slot(self, value: Any, arrays: list[Any]) -> Any:
        """Return where an array is among the operands, or the value itself where it is no array."""
        if isinstance(value, HOST_ARRAYS) and value.dtype.kind in "biufc":
            value = jax.numpy.array(value)
        if isinstance(value, jax.Array):
            for index, known in enumerate(arrays):
                if known is value:
                    return _Slot(index)
            arrays.append(value)
            return _Slot(len(arrays) - 1)
        self.opaque |= not isinstance(value, _COMPARABLE)
        return value

    def context(self, arrays: Sequence[Any]) -> Context:
        """Return a context as ``setup_context`` left it, of other arrays."""

        def one(slot: Any) -> Any:
            return arrays[slot.index] if isinstance(slot, _Slot) else slot

        made = Context(self._needs)
        made.materialize_grads = self.materialize
        made.saved_tensors = tuple(map(one, self._tensors))
        for name, tree, leaves in self._attributes:
            setattr(made, name, jax.tree_util.tree_unflatten(tree, list(map(one, leaves))))
        return made


class _Slot:
    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __hash__(self) -> int:
        return hash((_Slot, self.index))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Slot) and other.index == self.index


_COMPARABLE = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.generic, type)
"""Classes of static values that are equal whenever they are the same."""
