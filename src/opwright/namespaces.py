"""The array API namespace of an array, whichever framework it belongs to.

A framework is never imported here: an array's class says which one it is, and that one is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.errors import ArgumentError, MixedFrameworksError, layout

if TYPE_CHECKING:
    from opwright.catalogue import FrameworkInfo


def array_namespace(*arrays: Any) -> Any:
    """Return the namespace with the array API's functions for arrays of one framework.

    Parameters
    ----------
    arrays
        Arrays, tracers or fakes; lists of them; ``None`` and Python numbers are skipped. NumPy arrays beside
        those of a framework that takes them as constants count as its own.

    Returns
    -------
    namespace
        array_api_compat's for NumPy and CuPy, and for PyTorch with the few functions that ``torch.vmap``
        cannot batch replaced; ``jax.numpy``; for a fake, one on metadata alone.

    Raises
    ------
    ArgumentError
        If there is no array; `MixedFrameworksError` if they are of several frameworks.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> xp = ow.array_namespace(np.ones(2))
    >>> xp.sum(xp.ones(3))
    np.float64(3.0)
    """
    found: dict[str, tuple[FrameworkInfo, Any]] = {}
    for array in _flat(arrays):
        info = catalogue.framework_of_class(array.__class__)
        if info is None:
            raise ArgumentError(
                layout(
                    "array_namespace takes arrays",
                    expected="arrays of NumPy, PyTorch, JAX or CuPy",
                    got=f"{array!r} of type {type(array).__name__}",
                )
            )
        found.setdefault(info.name, (info, array))
    if not found:
        raise ArgumentError(layout("array_namespace needs one array at least", got="no array"))
    for name, (info, array) in found.items():
        if set(found) - {name} <= set(info.constants):
            if info.load_namespace is not None:
                return info.load_namespace()
            from array_api_compat import array_namespace as namespace_of

            return namespace_of(array)
    raise MixedFrameworksError(
        layout(
            "array_namespace was given arrays of several frameworks",
            expected="arrays of one framework",
            got=", ".join(found),
        )
    )


def _flat(values: Any) -> list[Any]:
    """Return the values in lists and tuples that can be arrays."""
    out: list[Any] = []
    for value in values:
        if value.__class__ in (list, tuple):
            out += _flat(value)
        elif value is not None and value.__class__ not in (bool, int, float, complex):
            out.append(value)
    return out
