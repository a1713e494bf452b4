"""What torch made of an overload: its libraries, its overload object, and what the kernels need to know.

``record.lowered["torch"]`` holds it from attach on.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.library import Library

from opwright.overload import OpOverload


class Lowered:
    """One overload of ours in torch's dispatcher.

    ``count`` is the number of positional arguments, ``names`` the keyword-only ones, ``defaults`` one value
    for each argument (None where there is none).
    """

    __slots__ = ("count", "defaults", "fragment", "installed", "names", "native", "op_name", "record", "total")

    def __init__(self, record: OpOverload, fragment: Library) -> None:
        schema = record.schema
        self.record = record
        self.fragment = fragment
        self.op_name = record.qualname.partition("::")[2]
        self.count = len(schema.positional)
        self.total = len(schema.arguments)
        self.names = tuple(argument.name for argument in schema.keyword_only)
        self.defaults = tuple(a.default.value if a.default is not None else None for a in schema.arguments)
        self.native: Any = None
        self.installed: dict[str, Library] = {}

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return one value for each argument: torch drops those that equal their default."""
        if len(args) < self.count:
            args += self.defaults[len(args) : self.count]
        if self.names:
            missing = zip(self.names, self.defaults[self.count :], strict=True)
            args += tuple(kwargs.get(name, default) for name, default in missing)
        return args

    def keywords(self, flat: tuple[Any, ...]) -> dict[str, Any]:
        """Return the keyword-only arguments of one value for each argument."""
        return dict(zip(self.names, flat[self.count :], strict=True))

    def call(self, flat: tuple[Any, ...]) -> Any:
        """Call the operator in torch's dispatcher with one value for each argument."""
        if self.names:
            return self.native(*flat[: self.count], **self.keywords(flat))
        return self.native(*flat)


def lowered_of(record: OpOverload) -> Lowered:
    """Return what torch made of an attached record."""
    found: Lowered = record.lowered["torch"]
    return found


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of an argument or output: itself, or those in it; None is left out."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for element in value for tensor in tensors_in(element)]
    return []
