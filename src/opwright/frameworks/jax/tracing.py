"""Errors of an author's function on traced arrays: they name the operator and what to write instead."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import jax

from opwright.errors import ArgumentError, layout

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


@contextmanager
def naming(what: str, source: str) -> Iterator[None]:
    """Raise an error with ``what`` in it where the block asks a traced array for its values."""
    try:
        yield
    except _NEEDS_VALUES as error:
        if isinstance(error, jax.errors.TracerArrayConversionError):
            instead = "compute with opwright.array_namespace(x) instead of numpy"
        else:
            instead = "compute with arrays instead of Python numbers, take sizes from a static argument"
        raise ArgumentError(
            layout(
                f"the {what} needs the values of an array that JAX traces",
                expected="a body that works on shapes, dtypes and array operations alone",
                got=f"{type(error).__name__}: {str(error).splitlines()[0]}",
                registered=source,
                fix=f"{instead}, or call the operator outside of jax.jit",
            )
        ) from error
