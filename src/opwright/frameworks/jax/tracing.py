"""Errors of an author's function on traced arrays: they name the operator and what to write instead."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import jax

from opwright.errors import ArgumentError, UnsupportedError, layout
from opwright.frameworks.jax import private

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
    """Raise an error with ``what`` in it where the block asks for what it cannot have while JAX traces it.

    That is the values of a traced array, or an axis by the name that ``jax.vmap`` gave it.
    """
    try:
        yield
    except (NameError, AssertionError) as error:
        if not _asks_for_axis(error):
            raise
        raise UnsupportedError(
            layout(
                f"the {what} uses an axis by name: those of jax.vmap are not visible inside an operator",
                expected="a body without collectives, or with those of axes of jax.shard_map",
                got=f"{type(error).__name__}: {str(error) or 'raised by JAX for a collective'}",
                registered=source,
                fix="call the collective outside of the operator, on its arguments or outputs",
            )
        ) from error
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


def _asks_for_axis(error: Exception) -> bool:
    """Return whether JAX did not find an axis by its name.

    Outside of ``jax.jit`` it still knows the name under ``jax.vmap``, and fails with a bare assertion when it
    compiles the collective.
    """
    if isinstance(error, NameError):
        return "unbound axis name" in str(error)
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    inside = last is not None and str(last.tb_frame.f_globals.get("__name__")).startswith("jax.")
    return inside and not error.args and private.binds_axes()
