"""Gradients by torch's engine: of an operator, of its gradients, and after an argument was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.checks.adapters.results import Pullback
from opwright.rules.autograd import new_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.checks.adapters.results import Called
    from opwright.overload import OpOverload
    from opwright.schema import Argument

Place = tuple[int, int | None]
"""An array of a call: the index of its argument, and its index in a list of arrays."""


def pullback(
    record: OpOverload, values: Sequence[Any], wanted: Sequence[Any], call: Callable[[list[Any]], Called]
) -> Pullback:
    """Make a call on tensors that require gradients."""
    graph = Graph(record, values, wanted, call)
    return Pullback(graph.outputs, graph.pull)


class Graph:
    """A differentiable call: the tensors that it began with, and what it returned.

    Parameters
    ----------
    record, values
        The call: every argument in schema order.
    wanted
        For each argument whether its gradient is wanted, nested for lists.
    call
        Makes the call on arguments in schema order.
    """

    def __init__(
        self,
        record: OpOverload,
        values: Sequence[Any],
        wanted: Sequence[Any],
        call: Callable[[list[Any]], Called],
    ) -> None:
        self.record = record
        self.values = values
        self.leaves: dict[Place, Any] = {}
        self.passed = [
            self._requiring(argument, index, value, flags)
            for index, (argument, value, flags) in enumerate(
                zip(record.schema.arguments, values, wanted, strict=True)
            )
        ]
        called = call(self.passed)
        self.outputs = [*called.outputs, *(called.new_values[a.name] for a in new_values(record.schema))]

    def _requiring(self, argument: Argument, index: int, value: Any, flags: Any) -> Any:
        """Return the value of an argument with the tensors that are wanted requiring a gradient."""

        def one(tensor: Any, flag: bool, element: int | None) -> Any:
            if not flag or tensor is None:
                return tensor
            leaf = self.leaves[index, element] = tensor.detach().requires_grad_()
            return leaf.clone() if argument.is_write else leaf  # a leaf may not be mutated

        if isinstance(value, list | tuple) and argument.has_tensors:
            pairs = enumerate(zip(value, flags, strict=True))
            return [one(tensor, flag, element) for element, (tensor, flag) in pairs]
        return one(value, flags, None) if argument.has_tensors else value

    def change(self, place: Place) -> None:
        """Change an argument in place, as an optimiser does."""
        import torch

        index, element = place
        tensor = self.passed[index] if element is None else self.passed[index][element]
        with torch.no_grad():
            tensor.add_(1)

    def pull(self, cotangents: Sequence[Any]) -> list[Any]:
        """Return one gradient for each argument for one cotangent for each output."""
        import torch._functorch.config

        outs, grads = self._roots(cotangents)
        found = [None] * len(self.leaves)
        if outs:
            leaves = list(self.leaves.values())
            with torch._functorch.config.patch(donated_buffer=False):  # noqa: SLF001  (a compiled graph is kept)
                found = torch.autograd.grad(outs, leaves, grads, retain_graph=True, allow_unused=True)
        return self._nested(found)

    def second(self, cotangents: Sequence[Any], directions: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Differentiate the inner product of the gradients with directions."""
        import torch

        outs, grads = self._roots(cotangents)
        grads = [grad.detach().requires_grad_() for grad in grads]
        leaves = list(self.leaves.values())
        found = torch.autograd.grad(outs, leaves, grads, create_graph=True, allow_unused=True)
        product: Any = 0
        for (index, element), grad in zip(self.leaves, found, strict=True):
            direction = directions[index] if element is None else directions[index][element]
            if grad is not None and direction is not None:
                product = product + (grad * direction).sum()
        if not isinstance(product, torch.Tensor) or not product.requires_grad:
            return self._nested([None] * len(leaves)), [None] * len(grads)
        every = torch.autograd.grad(product, [*leaves, *grads], allow_unused=True)
        return self._nested(every[: len(leaves)]), list(every[len(leaves) :])

    def _roots(self, cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the outputs that have gradients, flat, and the cotangent of each."""
        import torch

        outs, grads = [], []
        for output, cotangent in zip(self.outputs, cotangents, strict=True):
            many = isinstance(output, list | tuple)
            for out, grad in zip(output, cotangent, strict=True) if many else [(output, cotangent)]:
                if grad is not None and isinstance(out, torch.Tensor) and out.requires_grad:
                    outs.append(out)
                    grads.append(grad)
        return outs, grads

    def _nested(self, found: Sequence[Any]) -> list[Any]:
        result: list[Any] = [
            [None] * len(value) if argument.is_tensor_list and value is not None else None
            for argument, value in zip(self.record.schema.arguments, self.values, strict=True)
        ]
        for (index, element), grad in zip(self.leaves, found, strict=True):
            if element is None:
                result[index] = grad
            else:
                result[index][element] = grad
        return result
