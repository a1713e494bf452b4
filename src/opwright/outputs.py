"""What a kernel returned, against its schema: number, classes, the argument itself where that is promised.

Aliasing is looked at apart, by ``check_aliases``: an output may not share memory with an argument or with
another output unless the schema says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.arrays import class_name
from opwright.errors import AliasError, ArgumentError, OutputError, layout
from opwright.scalars import coercion
from opwright.schema import Argument, ListType, OptionalType, Return, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.overload import Kernel, OpOverload

CHECKED_CALLS = 3
"""How many calls of an overload, from each array class, have the aliasing of their outputs checked."""


def is_one(record: OpOverload) -> bool:
    """Return whether the operator returns one bare value, rather than nothing or a tuple."""
    return len(record.schema.returns) == 1 and not record.schema.is_tuple


def may_be_undefined(record: OpOverload) -> bool:
    """Return whether None may stand for one of several outputs, as it may in torch for kernels of ``impl``.

    Where there is one alone, a kernel that gives None has no ``return``.
    """
    return not record.decorated and not is_one(record)


def output_check(
    record: OpOverload,
    kernel: Kernel,
    accept: Callable[[Any], Any],
    convert: Callable[[str, Any], Any] | None,
    arrays: str,
    *,
    undefined: bool = False,
) -> Callable[[Any], Any]:
    """Return the function that takes what a kernel returned and returns it as the schema has it.

    Parameters
    ----------
    record, kernel
        Whose outputs they are.
    accept
        ``accept(value)`` returns an array for what counts as one, else None.
    convert
        As ``scalars.coercion`` takes it.
    arrays
        What the arrays are called in a message, such as ``"an array of numpy"``.
    undefined
        Whether None may stand for one of several arrays.

    Raises
    ------
    OutputError
        From the returned function, if something does not fit; it has the kernel's ``file:line``.
    """
    returns = record.schema.returns

    def whole(out: Any) -> Any:
        if len(out) != len(returns):
            raise bad_output(record, kernel, f"a tuple of {len(returns)}", out)
        return tuple(take(value, out) for take, value in zip(takers, out, strict=True))

    def one_of(index: int, entry: Return) -> Callable[[Any, Any], Any]:
        take = _taker(record, entry, accept, convert)
        bare = _has_arrays(entry.type) and entry.type.leaf() is entry.type
        wanted = f"{arrays if bare else entry.type} as output {index}"

        def checked(value: Any, out: Any) -> Any:
            if undefined and bare and value is None:
                return None
            try:
                return take(value)
            except (_Misfit, ArgumentError):
                raise bad_output(record, kernel, wanted, out) from None

        return checked

    takers = [one_of(index, entry) for index, entry in enumerate(returns)]
    if not returns:
        return lambda out: _nothing(record, kernel, out)
    if is_one(record):
        return lambda out: takers[0](out, out)

    def check(out: Any) -> Any:
        if not isinstance(out, list | tuple):
            raise bad_output(record, kernel, f"a tuple of {len(returns)}", out)
        return whole(out)

    return check


class _Misfit(Exception):  # noqa: N818  (a signal inside this module, never an error of a caller)
    """A value is not of the type that the schema has at its place."""


def _has_arrays(type_: Type) -> bool:
    return getattr(type_.leaf(), "name", "") == "Tensor"


def _nothing(record: OpOverload, kernel: Kernel, out: Any) -> None:
    if out is not None:
        raise bad_output(record, kernel, "None", out)


def _taker(
    record: OpOverload,
    entry: Return,
    accept: Callable[[Any], Any],
    convert: Callable[[str, Any], Any] | None,
) -> Callable[[Any], Any]:
    """Return the function that turns one output into what the schema has, or raises ``_Misfit``."""

    def of(type_: Type) -> Callable[[Any], Any]:
        if not _has_arrays(type_):
            return coercion(record.qualname, Argument(entry.name or "output", type_), convert)
        if isinstance(type_, OptionalType):
            inner = of(type_.element)
            return lambda value: None if value is None else inner(value)
        if isinstance(type_, ListType):
            return _list_of(of(type_.element))
        return array

    def array(value: Any) -> Any:
        found = accept(value)
        if found is None:
            raise _Misfit
        return found

    return of(entry.type)


def _list_of(inner: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def take(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _Misfit
        return [inner(element) for element in value]

    return take


def bad_output(record: OpOverload, kernel: Kernel, expected: str, out: Any) -> OutputError:
    """Return the error for a kernel that returned something else than its schema says."""
    got = class_name(out)
    if isinstance(out, list | tuple):
        got += f" of {len(out)} ({', '.join(map(class_name, out))})"
    return OutputError(
        layout(
            f"kernel of {record.qualname} returned something else than its schema says",
            expected=f"{expected}: {record.schema}",
            got=got,
            registered=kernel.source,
        )
    )


def same_objects(record: OpOverload) -> list[tuple[int, str]]:
    """Return the index of each return that is a mutated argument itself, with that argument's name."""
    found: list[tuple[int, str]] = []
    if not record.schema.mutated:
        return found
    for index, entry in enumerate(record.schema.returns):
        sets = {name for alias in entry.type.aliases() if alias.is_write for name in alias.before}
        for argument in record.schema.mutated:
            before = {name for alias in argument.type.aliases() for name in alias.before}
            if argument.is_tensor and sets & before:
                found.append((index, argument.name))
    return found


def not_same(record: OpOverload, kernel: Kernel, index: int, name: str) -> Callable[[Any], None]:
    """Return the function that raises where a return is not the argument that it must be."""

    def wrong(out: Any) -> None:
        raise OutputError(
            layout(
                f"kernel of {record.qualname} must return its argument {name} itself as output {index}",
                got=f"another object of type {class_name(out)}",
                registered=kernel.source,
                fix=f"return {name}",
            )
        )

    return wrong


def check_aliases(
    record: OpOverload, values: Sequence[Any], out: Any, shares_memory: Callable[[Any, Any], bool]
) -> None:
    """Raise where an output shares memory with an argument or with another output.

    Returns with an alias annotation are left out: their schema allows it. ``shares_memory(a, a)`` is true
    for an array, of zero size too, and false for a value that nobody can write to.

    Raises
    ------
    AliasError
        Naming the output and the argument or the other output.
    """
    schema = record.schema
    outs = [out] if is_one(record) else list(out or ())
    seen: list[tuple[str, Any]] = []
    for argument, value in zip(schema.arguments, values, strict=True):
        if argument.has_tensors:
            seen += [(f"argument {argument.name}", array) for array in _leaves(value)]
    for index, (entry, value) in enumerate(zip(schema.returns, outs, strict=True)):
        if not _has_arrays(entry.type) or any(True for _ in entry.type.aliases()):
            continue
        for array in _leaves(value):
            for what, other in seen:
                if shares_memory(array, other):
                    raise alias_error(record, index, what, same=array is other)
            seen.append((f"output {index}", array))


def alias_error(record: OpOverload, index: int, what: str, *, same: bool) -> AliasError:
    """Return the error for an output that is, or shares memory with, something it may not."""
    return AliasError(
        layout(
            f"output {index} of {record.qualname} {'is' if same else 'shares memory with'} {what}"
            f"{' itself' if same else ''}; an output may not alias an argument or another output",
            registered=record.kernels_text(),
            fix="return a copy, or declare the aliasing in the schema",
        )
    )


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [array for element in value for array in _leaves(element)]
    return [] if value is None else [value]
