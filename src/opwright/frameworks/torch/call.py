"""One call on its way through the autograd function: its arguments spread out and put together again.

Torch's autograd functions see tensors that are arguments of their own only, so lists are spread out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opwright.frameworks.torch import private

if TYPE_CHECKING:
    from collections.abc import Sequence


class Call:
    """One call on its way through the autograd function."""

    __slots__ = (
        "context",
        "differentiable",
        "dirty_outputs",
        "dtypes",
        "flat",
        "full",
        "keyset",
        "lengths",
        "modes",
        "outputs",
        "plan",
        "shapes",
        "templates",
    )

    def __init__(self, plan: Any, keyset: Any, flat: tuple[Any, ...], *, full: bool) -> None:
        self.plan = plan
        self.keyset = keyset
        self.full = full
        self.modes = (torch.is_grad_enabled(), private.fwd_grad_enabled()) if full else (False, False)
        self.lengths = [len(flat[i]) if flat[i] is not None else None for i in plan.state.lists]
        self.flat: Any = flat
        self.outputs: list[int | None] = []
        self.shapes: list[Any] = []
        self.dtypes: list[Any] = []
        self.templates: tuple[Any, ...] = ()
        self.context: Any = None
        self.differentiable: list[bool] = []
        self.dirty_outputs: dict[int, int] = {}

    def nest(self, values: Sequence[Any], missing: Any = None) -> list[Any]:
        """Return one entry for each argument of one for each flat value, lists put together again.

        ``missing`` stands for a list that is None.
        """
        lists = self.plan.state.lists
        if not lists:
            return list(values[: self.plan.state.total])
        lengths, nested, at = dict(zip(lists, self.lengths, strict=True)), [], 0
        for index in range(self.plan.state.total):
            length = lengths.get(index, -1)
            if length == -1 or length is None:
                nested.append(values[at] if length == -1 else missing)
                at += 1
            else:
                nested.append(list(values[at : at + length]))
                at += length
        return nested

    def flatten(self, flat: Sequence[Any]) -> list[Any]:
        """Return the arguments with lists of tensors spread out."""
        lists = self.plan.state.lists
        if not lists:
            return list(flat)
        spread: list[Any] = []
        for index, value in enumerate(flat):
            if index in lists and value is not None:
                spread += value
            else:
                spread.append(value)
        return spread

    def is_dirty(self, source: int) -> bool:
        """Return whether a flat value belongs to a mutated argument."""
        dirty = self.plan.dirty
        if not dirty:
            return False
        owners = self.nest(range(len(self.shapes)))
        return any(
            source == one or (one.__class__ is list and source in one)
            for one in map(owners.__getitem__, dirty)
        )

    def spread_outputs(self, inputs: Sequence[Any], out: Any) -> list[Any]:
        """Return the outputs, lists spread out, then the new values that are outputs of their own."""
        plan = self.plan
        outs = [out] if plan.single else list(out or ())
        for index, position in plan.returned.items():  # functorch returns it in another wrapper
            outs[index] = inputs[position]
        spread: list[Any] = []
        self.outputs = []
        for value in (*outs, *(inputs[i] for i in plan.fresh)):
            if value.__class__ in (list, tuple):
                self.outputs.append(len(value))
                spread += value
            else:
                self.outputs.append(None)
                spread.append(value)
        return spread

    def nest_outputs(self, values: Sequence[Any]) -> list[Any]:
        """Return one entry for each return and new value of one for each flat output."""
        nested, at = [], 0
        for length in self.outputs:
            if length is None:
                nested.append(values[at])
                at += 1
            else:
                nested.append(list(values[at : at + length]))
                at += length
        return nested
