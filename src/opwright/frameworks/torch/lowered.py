"""What torch made of an overload: its libraries, its overload object, and what the kernels need to know.

``record.lowered["torch"]`` holds it from attach on.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.frameworks.torch import aliases
from opwright.frameworks.torch.convert import NAMED, to_torch
from opwright.registry import require_live

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.library import Library

    from opwright.overload import OpOverload
    from opwright.rules.base import Rule
    from opwright.schema import Argument

OPAQUE = "opwright_backward_of_"
"""How the names of operators that run another's backward begin."""

MUTATE = "opwright_mutate_of_"
"""How the names of operators begin that mutate as another does and do not return it."""


class Lowered:
    """One overload of ours in torch's dispatcher.

    ``count`` is the number of positional arguments, ``names`` the keyword-only ones, ``defaults`` one value
    for each argument (None where there is none), as torch has it. ``cache`` holds what kernels derive from
    the record's present kernels and rules; a change empties it. ``classes`` has the positions of arguments
    that authors get as members of an ``Enum``, or as tuples, and that class. ``opaque`` has the rules whose
    bodies run as operators of their own (``inner``), each with what stands in for it; ``backward_of`` is the
    rule that such an operator runs. ``stand_in`` mutates as this one does and does not return it. ``bundle``
    is the library that is being filled. ``runs`` counts those of an operator that mutates; ``warned`` says
    whether the loop of vmap was warned of, ``dual`` whether a level of forward mode was seen that compiled
    code had entered.
    """

    __slots__ = (
        "backward_of",
        "bundle",
        "cache",
        "classes",
        "count",
        "defaults",
        "dual",
        "fast",
        "fragment",
        "inner",
        "installed",
        "lists",
        "mutated",
        "names",
        "native",
        "op_name",
        "opaque",
        "record",
        "runs",
        "slow",
        "stand_in",
        "tensors",
        "total",
        "warned",
    )

    def __init__(self, record: OpOverload) -> None:
        arguments = record.schema.arguments
        self.record = record
        self.op_name = record.qualname.partition("::")[2]
        self.names = tuple(argument.name for argument in arguments if argument.kwarg_only)
        self.total = len(arguments)
        self.count = self.total - len(self.names)
        self.defaults = tuple(map(_default, arguments))
        enums = tuple((i, a.choices) for i, a in enumerate(arguments) if isinstance(a.choices, type))
        self.classes = enums + tuple((i, tuple) for i in record.schema.tuples)
        self.tensors = tuple(i for i, a in enumerate(arguments) if a.has_tensors)
        self.lists = tuple(i for i, a in enumerate(arguments) if a.is_tensor_list)
        self.mutated = tuple(i for i, a in enumerate(arguments) if a.is_write and a.has_tensors)
        self.fragment: Library | None = None
        self.bundle: Library | None = None
        self.native: Any = None
        self.installed: dict[Any, Library] = {}
        self.cache: dict[Any, Any] = {}
        self.opaque: dict[Any, Any] = {}
        self.inner: list[Lowered] = []
        self.fast: Any = None
        self.slow: Callable[..., Any] | None = None
        self.warned = False
        self.stand_in: Lowered | None = None
        self.runs = 0
        self.dual = False
        self.backward_of: Rule | None = None

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return one value for each argument: torch drops those that equal their default."""
        count = self.count
        if len(args) < count:
            args += self.defaults[len(args) : count]
        if self.names:
            missing = zip(self.names, self.defaults[count:], strict=True)
            args += tuple([kwargs.get(name, default) for name, default in missing])
        return args

    def authors(self, flat: Sequence[Any]) -> Sequence[Any]:
        """Return the values as authors' functions take them: members of an ``Enum``, and tuples.

        Torch has plain values, and lists.
        """
        if not self.classes:
            return flat
        values = list(flat)
        for index, kind in self.classes:
            if values[index] is not None:
                values[index] = kind(values[index])
        return tuple(values)

    def keywords(self, flat: tuple[Any, ...]) -> dict[str, Any]:
        """Return the keyword-only arguments among one value for each argument."""
        return dict(zip(self.names, flat[self.count :], strict=True))

    def call(self, flat: tuple[Any, ...]) -> Any:
        """Call the operator in torch's dispatcher with one value for each argument."""
        if self.names:
            return self.native(*flat[: self.count], **self.keywords(flat))
        return self.native(*flat)

    def apply(self, fn: Callable[..., Any], flat: tuple[Any, ...], *leading: Any) -> Any:
        """Call a kernel or rule with one value for each argument, keyword-only ones by name."""
        if self.names:
            return fn(*leading, *flat[: self.count], **self.keywords(flat))
        return fn(*leading, *flat)

    def derive(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what is cached under a key, made now where it is not.

        What a thread makes of rules that change meanwhile goes into a cache that nobody reads any more.
        """
        cache = self.cache
        found = cache.get(key)
        if found is None:
            found = cache[key] = make()
        return found


def _default(argument: Argument) -> Any:
    """Return a default as torch hands such an argument to a kernel."""
    value = None if argument.default is None else argument.default.value
    if value is None:
        return None
    if argument.base in NAMED:
        several = value if argument.is_list else (value,)
        found = [to_torch(argument.base, one) for one in several]
        return found if argument.is_list else found[0]
    if isinstance(value, Enum):
        return value.value
    return list(value) if argument.is_list else value


def lowered_of(record: OpOverload) -> Lowered:
    """Return what torch made of an attached record.

    Raises
    ------
    StaleError
        If another thread has redefined or destroyed the operator.
    """
    found: Lowered | None = record.lowered.get("torch")
    if found is None:
        require_live(record)
        raise KeyError(record.qualname)
    return found


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of an argument or output: itself, or those in it; None is left out."""
    if isinstance(value, Tensor):
        return [value]
    if value.__class__ in (list, tuple):
        return [tensor for element in value for tensor in tensors_in(element)]
    return []


def shares_storage(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors use one storage, whatever part of it each sees."""
    if one.layout == other.layout == torch.strided:
        return bool(aliases.is_alias_of(one, other))
    return one is other or bool(aliases.any_alias((one,), {}, (other,)))
