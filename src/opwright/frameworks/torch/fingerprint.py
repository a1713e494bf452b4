"""What torch's caches of compiled code must know of operators: a tag that changes with any of their rules.

* Torch keys what it has compiled by what Dynamo saw, where an operator is a name: with the cache on disk, a
  gradient that was edited since would go on unused.
* ``torch.compiler.config.cache_key_tag`` is part of every key. Ours is put after one that the user set, and
  stays the same as long as no schema, no rule and no version of this library changes.
* Torch may keep its configuration for each thread, as 2.13 does: the tag is put in where an operator changes,
  and where a call is traced.
* A rule is its code, constants, defaults, what it closes over, and the functions of others' modules that it
  names, whatever lines they are on. Kernels are called by name, so their code does not count.
"""

from __future__ import annotations

import hashlib
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch.compiler.config as compiler_config

from opwright import __version__
from opwright.keys import IMPLICIT
from opwright.rules.base import Rule

if TYPE_CHECKING:
    from opwright.overload import OpOverload

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_LIBRARIES = frozenset(
    {"torch", "numpy", "jax", "cupy", "triton", "array_api_compat", "opwright", "builtins"}
)
_MARK = ";opwright:"
_MODULUS = 1 << 128
_HAS_TAG = hasattr(compiler_config, "cache_key_tag")

_parts: dict[OpOverload, dict[Any, int]] = {}
"""For each record the digest of its schema, and of each kernel and rule at its place."""

_total = 0


def update(record: OpOverload) -> None:
    """Take a record's schema and present rules into the tag; what has been taken in is not read again."""
    known = _parts.get(record, {})
    new = {part: known.get(part) or _digest(record, *part) for part in _parts_of(record)}
    _parts[record] = new
    _replace(known, new)


def remove(record: OpOverload) -> None:
    """Take a record out of the tag."""
    _replace(_parts.pop(record, {}), {})


def _replace(known: dict[Any, int], new: dict[Any, int]) -> None:
    global _total
    # A sum, so that the order of definitions does not matter; a place is part of what is digested.
    _total = (_total - sum(known.values()) + sum(new.values())) % _MODULUS
    publish()


def publish() -> None:
    """Put the tag into torch's configuration, as this thread has it."""
    if not _HAS_TAG:
        return
    tag = str(compiler_config.cache_key_tag or "")
    users = tag.partition(_MARK)[0]
    new = f"{users}{_MARK}{_total:032x}" if _total else users
    if new != tag:
        compiler_config.cache_key_tag = new


def _parts_of(record: OpOverload) -> list[tuple[int, Any]]:
    """Return the parts of a record, each with its place: the later of two rules of a kind is in force."""
    return [(-1, None), *enumerate(record.kernels), *enumerate(record.rules)]


def _digest(record: OpOverload, place: int, part: Any) -> int:
    found = hashlib.blake2b(f"{record.qualname} {place} ".encode(), digest_size=16)
    seen: set[int] = set()
    if part is None:
        found.update(f"{__version__}{record.schema}{record.tags}{record.non_differentiable}".encode())
    elif isinstance(part, Rule):
        found.update(f"{part.kind}{part.slot}{part.flavour}{getattr(part, 'dtype', '')}".encode())
        _add(found, part.fn, seen)
        _add(found, getattr(part, "setup_context", None), seen)
    else:
        found.update(f"{part.key}{part.flavour}".encode())
        if part.key == IMPLICIT:
            _add(found, part.fn, seen)
    return int.from_bytes(found.digest(), "big")


def _add(found: Any, value: Any, seen: set[int]) -> None:
    """Add a value to a digest: a plain one as it is, a function with all that it is made of."""
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, _PLAIN):
        found.update(repr(value).encode())
    elif isinstance(value, (tuple, list)):
        for one in value:
            _add(found, one, seen)
    elif isinstance(value, FunctionType) and id(value) not in seen:
        seen.add(id(value))
        _add_code(found, value.__code__)
        for one in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            _add(found, one, seen)
        for cell in value.__closure__ or ():
            _add(found, _contents(cell), seen)
        _add_globals(found, value, seen)
    else:
        found.update(type(value).__qualname__.encode())


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _add_code(found: Any, code: CodeType) -> None:
    """Add a code object, whatever its file and lines."""
    found.update(code.co_code)
    found.update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(found, constant)
        elif isinstance(constant, frozenset):  # its own order differs from process to process
            found.update(repr(sorted(map(repr, constant))).encode())
        else:
            found.update(repr(constant).encode())


def _add_globals(found: Any, function: FunctionType, seen: set[int]) -> None:
    """Add what a function names in its module, and the functions that it names in modules of others."""
    names = _names(function.__code__)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if _root(value.__name__) not in _LIBRARIES:
                for attribute in names:
                    _add_function(found, vars(value).get(attribute), seen)
        elif isinstance(value, _PLAIN):
            found.update(repr(value).encode())
        else:
            _add_function(found, value, seen)


def _add_function(found: Any, value: Any, seen: set[int]) -> None:
    if isinstance(value, FunctionType) and _root(value.__module__ or "") not in _LIBRARIES:
        _add(found, value, seen)


def _names(code: CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names(constant)
    return names


def _root(module: str) -> str:
    return module.partition(".")[0]
