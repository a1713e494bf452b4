"""Writes of a kernel to its inputs: JAX's arrays are immutable, and so is what lies in XLA's buffers.

* NumPy kernels get read-only views. A framework without read-only arrays may count writes to an array: the
  count is compared before and after a body.
* In the first calls of an operator such a kernel gets copies, so that one that always writes reaches no
  buffer of XLA's. The copies cost nothing later.
* Where nobody counts writes, what is in the copies is compared with what was: a kernel that writes in its
  first calls is found, one that begins later is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.frameworks.base import Framework, load, of_flavour
from opwright.frameworks.bridges import wrote_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.frameworks.jax.callbacks import Compute


class Inputs:
    """The inputs of a kernel or rule whose framework has no read-only arrays.

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

    __slots__ = ("counted", "fix", "framework", "names", "source", "title")

    def __init__(self, title: str, source: str, framework: Framework, names: Sequence[str], fix: str) -> None:
        self.title = title
        self.source = source
        self.fix = fix
        self.framework = framework
        self.names = tuple(names)
        self.counted = type(framework).writes is not Framework.writes

    def given(self, arrays: Sequence[Any], *, copied: bool) -> tuple[Sequence[Any], list[Any]]:
        """Return what the body gets, and for each of it what tells a write: a count, the original, or None.

        The body gets the arrays, or copies: where they are asked for, or where writes to one of the arrays
        are not counted, as they are to others.
        """
        if not copied:
            before = self._counts(arrays)
            if None not in before or not self.counted:
                return arrays, before
        copies = list(map(copy_of, arrays))
        counts = zip(self._counts(copies), arrays, strict=True)
        return copies, [array if count is None else count for count, array in counts]

    def _counts(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the number of writes to each array so far; None where they are not counted."""
        return list(map(self.framework.writes, arrays)) if self.counted else [None] * len(arrays)

    def _written(self, array: Any, before: Any) -> bool:
        if before is None or isinstance(before, int):
            return before is not None and self.framework.writes(array) != before
        return _on_host(array).tobytes() != _on_host(before).tobytes()

    def require_unwritten(self, arrays: Sequence[Any], before: Sequence[Any], *, copied: bool) -> None:
        """Raise where an array was written to since.

        Raises
        ------
        AliasError
            Naming the argument.
        """
        rows = zip(self.names, arrays, before, strict=True)
        name = next((name for name, array, old in rows if self._written(array, old)), None)
        if name is None:
            return
        got = (
            "a write to a copy" if copied else "a write to what may be memory of JAX: its values have changed"
        )
        raise wrote_to(
            self.title,
            name,
            expected="inputs left as they are: arrays of JAX are immutable",
            got=got,
            registered=self.source,
            fix=self.fix,
        )


def copy_of(array: Any) -> Any:
    """Return a copy of an array, on the same device."""
    return array.clone() if hasattr(array, "clone") else array.copy()


def _on_host(array: Any) -> Any:
    """Return an array as one of NumPy."""
    info = catalogue.framework_of_class(type(array))
    return array if info is None else load(info.name).to_numpy(array)


def inputs_of(title: str, source: str, flavour: str, names: Sequence[str], fix: str) -> Inputs | None:
    """Return the inputs of a body of a flavour, or None where it gets arrays that it cannot write to."""
    if flavour in ("jax", "array_api", "numpy"):
        return None
    return Inputs(title, source, of_flavour(flavour), names, fix)


def watched(inputs: Inputs | None, compute: Compute) -> Compute:
    """Return a function of flat arrays that raises where it has written to one: if writes are counted."""
    if inputs is None or not inputs.counted:
        return compute

    def run(arrays: Sequence[Any], outs: Sequence[Any] | None) -> list[Any]:
        arrays, before = inputs.given(arrays, copied=False)
        results = compute(arrays, outs)
        inputs.require_unwritten(arrays, before, copied=False)
        return results

    return run
