"""Abstract values: canonical dtypes, mesh axes that operands vary over, zeros of the right kind.

Zeros and outputs take their mesh axes from an abstract value, never from a shape and dtype alone: under
``shard_map`` a zero that does not vary made derivatives silently wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.interpreters import ad

from opwright.frameworks.jax.private import HOST_ARRAYS

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOAT0 = jax.dtypes.float0

CONSTANTS = (*HOST_ARRAYS, np.generic, bool, int, float, complex)
"""Classes of what JAX takes for an array without its being one of JAX's."""


def canonical(dtype: Any) -> np.dtype[Any]:
    """Return the dtype that JAX keeps for one: 32 bits for 64 while x64 is off, the machine's byte order."""
    kept: np.dtype[Any] = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    return kept if kept.isnative else kept.newbyteorder("=")


def is_inexact(aval: Any) -> bool:
    """Return whether an abstract value, or array, is floating or complex."""
    return bool(jax.dtypes.issubdtype(aval.dtype, np.inexact))


def is_complex(aval: Any) -> bool:
    """Return whether an abstract value, or array, is complex."""
    return bool(jax.dtypes.issubdtype(aval.dtype, np.complexfloating))


def is_packed(dtype: Any) -> bool:
    """Return whether elements of a dtype are narrower than a byte, several in each byte of XLA's buffers."""
    if jax.dtypes.issubdtype(dtype, np.integer):
        return bool(jax.numpy.iinfo(dtype).bits < _BYTE)
    return bool(jax.dtypes.issubdtype(dtype, np.floating) and jax.numpy.finfo(dtype).bits < _BYTE)


_BYTE = 8
"""Bits."""


def unpacked(dtype: Any) -> Any:
    """Return a dtype of whole bytes that has every value of a packed one; any other as it is."""
    if not is_packed(dtype):
        return dtype
    if not jax.dtypes.issubdtype(dtype, np.integer):
        return np.dtype(np.float32)
    return np.dtype(np.int8 if jax.dtypes.issubdtype(dtype, np.signedinteger) else np.uint8)


def is_live(tangent: Any) -> bool:
    """Return whether a tangent may be other than zero."""
    return type(tangent) is not ad.Zero and tangent.dtype != FLOAT0


def zeros(aval: Any) -> Any:
    """Return zeros that vary over the same mesh axes as the abstract value."""
    return ad.instantiate_zeros(ad.Zero(aval))


def no_tangent(array: Any) -> Any:
    """Return the symbolic zero tangent of an array."""
    return ad.Zero(jax.typeof(array).to_tangent_aval())


def varying(aval: Any) -> frozenset[Any]:
    """Return the mesh axes that a value varies over inside ``shard_map``."""
    kind = getattr(aval, "manual_axis_type", None)
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def shaped(shape: Sequence[Any], dtype: Any, operands: Sequence[Any], *, weak_type: bool = False) -> Any:
    """Return the abstract value of an output: unsharded, varying over the axes that the operands do."""
    like = next((aval for aval in operands if isinstance(aval, jax.core.ShapedArray)), None)
    how: dict[str, Any] = {"weak_type": weak_type}
    if like is None:
        return jax.core.ShapedArray(tuple(shape), np.dtype(dtype), **how)
    spec = jax.sharding.PartitionSpec(*[None] * len(shape))
    how["sharding"] = like.sharding.update(spec=spec)
    kind = getattr(like, "manual_axis_type", None)
    if kind is not None:
        how["manual_axis_type"] = kind
    elif hasattr(like, "vma"):
        how["vma"] = like.vma
    return jax.core.ShapedArray(tuple(shape), np.dtype(dtype), **how)


def arrays(values: Sequence[Any]) -> list[Any]:
    """Return the values with numbers and arrays on the host made JAX's, for author's rules take those.

    Primals, cotangents and literals of jaxprs may be Python numbers or arrays of NumPy.
    """
    return [
        jax.numpy.array(value, jax.typeof(value).dtype)
        if isinstance(value, CONSTANTS) and getattr(value, "dtype", None) != FLOAT0
        else value
        for value in values
    ]


def same_axes(arrays: Sequence[Any]) -> list[Any]:
    """Return the operands cast so that all vary over the same mesh axes."""
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        return list(arrays)
    over = [varying(jax.typeof(array)) for array in arrays]
    axes = frozenset().union(*over)
    if not axes:
        return list(arrays)
    return [
        jax.lax.pcast(array, tuple(axes - own), to="varying") if axes - own else array
        for array, own in zip(arrays, over, strict=True)
    ]


def unsharded(arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays without axes of an explicit mesh, where any has some."""
    if not any(_axes(jax.typeof(array)) for array in arrays):
        return list(arrays)
    spec = jax.sharding.PartitionSpec
    return [jax.sharding.reshard(array, spec(*[None] * array.ndim)) for array in arrays]


def sharded_like(array: Any, aval: Any) -> Any:
    """Return an array over the axes of an explicit mesh that an abstract value is over."""
    axes = _axes(aval)
    if axes is None or axes == _axes(jax.typeof(array)):
        return array
    return jax.sharding.reshard(array, axes)


def sharded_as(array: Any, aval: Any) -> Any:
    """Return an array as an abstract value is on an explicit mesh: over its axes, or whole."""
    return unsharded([array])[0] if _axes(aval) is None else sharded_like(array, aval)


def _axes(aval: Any) -> Any:
    """Return the partition of an abstract value over an explicit mesh; None where it is whole."""
    spec = getattr(getattr(aval, "sharding", None), "spec", None)
    return spec if spec is not None and any(part is not None for part in spec) else None


def without_axis(aval: Any) -> Any:
    """Return the abstract value of one row of a batch along the first axis."""
    return shaped(aval.shape[1:], aval.dtype, [aval], weak_type=aval.weak_type)


def typed(value: Any) -> Any:
    """Return a key under which values are equal only if type and value are: 1, 1.0 and True differ."""
    if isinstance(value, tuple | list):
        return (type(value), *map(typed, value))
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, complex):
        return complex, value.real.hex(), value.imag.hex()
    if isinstance(value, dict):
        return (dict, *((typed(name), typed(entry)) for name, entry in value.items()))
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return type(value), value
