"""The schema text that torch is given: the record's own, less the defaults that torch cannot read.

* Torch reads no ``inf`` and no ``nan``, no number that underflows, no complex one with a real part, no list
  with text or ``None`` in it. Such an argument has no default in torch's dispatcher; called as an operator of
  Opwright it has.
* The positional arguments before it lose theirs there too: as in Python, none without a default follows one
  that has one. Torch's parser lets a list follow, but the signatures that torch makes of schemas do not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from opwright.defaults import Default

if TYPE_CHECKING:
    from opwright.schema import Argument, FunctionSchema


def torch_signature(schema: FunctionSchema) -> str:
    """Return the text from the opening parenthesis on."""
    if all(map(_read_by_torch, schema.arguments)):
        return schema.signature
    schema = replace(schema, arguments=tuple(map(_imaginary, schema.arguments)))
    positional = list(schema.positional)
    last = max((index for index, one in enumerate(positional) if not _read_by_torch(one)), default=-1)
    arguments = [*map(_bare, positional[: last + 1]), *positional[last + 1 :]]
    arguments += [one if _read_by_torch(one) else _bare(one) for one in schema.keyword_only]
    return replace(schema, arguments=tuple(arguments)).signature


def _imaginary(argument: Argument) -> Argument:
    """Return an argument whose complex default is written without a real part that is zero."""
    value = argument.default and argument.default.value
    if not isinstance(value, complex) or str(value.real) != "0.0":
        return argument
    return replace(argument, default=Default(value, f"{value.imag!r}j"))


def _bare(argument: Argument) -> Argument:
    return replace(argument, default=None)


def _read_by_torch(argument: Argument) -> bool:
    return argument.default is None or _is_read(str(argument))


@lru_cache(maxsize=1024)
def _is_read(argument: str) -> bool:
    try:
        torch._C.parse_schema(f"opwright::probe({argument}) -> ()")  # noqa: SLF001  (torch has no public parser)
    except (RuntimeError, IndexError):
        return False
    return True
