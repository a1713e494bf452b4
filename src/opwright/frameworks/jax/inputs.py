"""Writes of a kernel to its inputs: JAX's arrays are immutable, and so is what lies in XLA's buffers.

* NumPy kernels get read-only views. A framework without read-only arrays counts writes to an array instead:
  the count is compared before and after a body.
* In the first calls of an operator such a kernel gets copies, so that one that always writes reaches no
  buffer of XLA's. The copies cost nothing later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.errors import AliasError, layout
from opwright.frameworks.base import Framework, of_flavour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.frameworks.jax.callbacks import Compute


class Inputs:
    """The inputs of a kernel or rule whose framework counts writes to its arrays.

    Parameters
    ----------
    title
        What runs, for messages, such as ``"kernel of ns::f"``.
    source
        Its ``file:line``.
    framework
        That of the arrays.
    names
        What each array is, such as ``"argument x"``.
    fix
        What to do about a write.
    """

    __slots__ = ("fix", "framework", "names", "source", "title")

    def __init__(self, title: str, source: str, framework: Framework, names: Sequence[str], fix: str) -> None:
        self.title = title
        self.source = source
        self.fix = fix
        self.framework = framework
        self.names = tuple(names)

    def given(self, arrays: Sequence[Any], *, copied: bool) -> tuple[Sequence[Any], list[int | None]]:
        """Return what the body gets, and how often each of it was written to so far.

        That is the arrays, or copies: where they are asked for, or where writes to an array are not counted.
        """
        if not copied:
            before = self.counts(arrays)
            if None not in before:
                return arrays, before
        copies = [array.clone() for array in arrays]
        return copies, self.counts(copies)

    def counts(self, arrays: Sequence[Any]) -> list[int | None]:
        """Return the number of writes to each array so far."""
        return list(map(self.framework.writes, arrays))

    def require_unwritten(self, arrays: Sequence[Any], before: Sequence[int | None], *, copied: bool) -> None:
        """Raise where an array was written to since.

        Raises
        ------
        AliasError
            Naming the argument.
        """
        after = self.counts(arrays)
        if after == before:
            return
        name = next(n for n, old, new in zip(self.names, before, after, strict=True) if old != new)
        got = (
            "a write to a copy" if copied else "a write to what may be memory of JAX: its values have changed"
        )
        raise AliasError(
            layout(
                f"{self.title} wrote to {name}, which it may not mutate",
                expected="inputs left as they are: arrays of JAX are immutable",
                got=got,
                registered=self.source,
                fix=self.fix,
            )
        )


def inputs_of(title: str, source: str, flavour: str, names: Sequence[str], fix: str) -> Inputs | None:
    """Return the inputs of a body of a flavour, or None where writes are not counted or cannot happen."""
    if flavour in ("jax", "array_api", "numpy"):
        return None
    framework = of_flavour(flavour)
    if type(framework).writes is Framework.writes:
        return None
    return Inputs(title, source, framework, names, fix)


def watched(inputs: Inputs | None, compute: Compute) -> Compute:
    """Return a function of flat arrays that raises where it has written to one of them."""
    if inputs is None:
        return compute

    def run(arrays: Sequence[Any], outs: Sequence[Any] | None) -> list[Any]:
        arrays, before = inputs.given(arrays, copied=False)
        results = compute(arrays, outs)
        inputs.require_unwritten(arrays, before, copied=False)
        return results

    return run
