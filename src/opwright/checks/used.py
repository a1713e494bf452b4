"""Whose arrays an operator is checked with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.checks.adapters.base import adapter, installed
from opwright.targets import annotated_flavour_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opwright.checks.adapters.base import Adapter
    from opwright.overload import OpOverload

_OF_SEVERAL = ("numpy", catalogue.ARRAY_API, catalogue.DLPACK)


def frameworks(
    record: OpOverload, asked: str | Iterable[str] | None, arguments: Iterable[Any] = ()
) -> list[Adapter]:
    """Return how each framework is used that was asked for, or else that the operator is for.

    Parameters
    ----------
    record
        The operator.
    asked
        Names of frameworks, or None.
    arguments
        What it is called with, where that was given for this check. Their framework is the only one for an
        operator that nowhere says which arrays its kernels take: it was made with ``define``, or ``schema=``.
    """
    if asked is not None:
        several = [asked] if isinstance(asked, str) else list(asked)
        return [adapter(name) for name in several]
    names = [info.name for info in catalogue.frameworks() if installed(info.name)]
    flavours = _flavours(record)
    if not flavours & {*_OF_SEVERAL}:
        own = [info.name for info in catalogue.frameworks() if flavours & {*info.flavours}]
        return [adapter(name) for name in [name for name in names if name in own] or own]
    given = {info.name for info in map(catalogue.framework_of_class, map(type, _flat(arguments))) if info}
    if len(given) == 1 and given != {"numpy"} and _unstated(record):
        names = [*given]
    return [adapter(name) for name in names]


def _flavours(record: OpOverload) -> set[str]:
    """Return the flavour of the definition, or those of the kernels where it takes any arrays."""
    kernels = {kernel.flavour for kernel in record.kernels if not kernel.falls_through}
    return kernels if kernels and record.flavour == catalogue.ARRAY_API else {record.flavour}


def _unstated(record: OpOverload) -> bool:
    """Return whether no kernel's annotations say which arrays it takes."""
    kernels = [kernel for kernel in record.kernels if not kernel.falls_through]
    return {kernel.flavour for kernel in kernels} == {catalogue.ARRAY_API} and not any(
        annotated_flavour_of(kernel.fn) for kernel in kernels
    )


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
