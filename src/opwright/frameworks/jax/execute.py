"""Computations on concrete arrays: a host kernel is called directly, in the caller's own stack.

* Inputs are read-only views; a result is handed over without a copy only where nobody else holds it.
* Uncommitted arrays follow ``jax_default_device``, as they do in every other call of JAX; arrays that are
  sharded, or on several devices, are left to a compiled program.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from opwright.frameworks.jax import private
from opwright.frameworks.jax.avals import canonical
from opwright.frameworks.jax.callbacks import Plan, carrier, on_numpy

if TYPE_CHECKING:
    from collections.abc import Sequence

aval_of = lru_cache(4096)(jax.core.ShapedArray)


@cache
def _first_device() -> Any:
    """Return the device of new arrays where nobody asked for another."""
    return jax.local_devices()[0]


def concrete(arrays: Sequence[Any]) -> list[Any]:
    """Return JAX arrays of what JAX may hand to an implementation: NumPy arrays and typed scalars too."""
    return [array if isinstance(array, jax.Array) else jax.numpy.array(array) for array in arrays]


def placement(arrays: Sequence[Any]) -> tuple[Any, bool] | None:
    """Return the device that results belong on and whether they are committed; None where XLA must decide."""
    devices, committed = set(), set()
    for array in arrays:
        sharding = array.sharding
        if type(sharding) is not jax.sharding.SingleDeviceSharding:
            return None
        device = private.device_of(sharding)
        devices.add(device)
        if array.committed:
            committed.add(device)
    if len(committed) > 1 or len(devices - committed) > 1:
        return None
    if committed:
        return next(iter(committed)), True
    default = jax.config.jax_default_device
    if isinstance(default, str):
        default = jax.local_devices(backend=default)[0]
    if default is None:
        default = next(iter(devices), None) or jax.local_devices()[0]
    return default, False


def adopt(result: Any, device: Any, committed: bool, extra: int = 0) -> Any:
    """Return a JAX array of a NumPy result, which is copied where anyone else may still write to it.

    Parameters
    ----------
    result
        The NumPy array or scalar.
    device, committed
        Where it belongs.
    extra
        How many of the caller's own names refer to it.
    """
    array = result if type(result) is np.ndarray else np.asarray(result)
    owner = array
    sole = private.is_sole(array, extra + (array is result) + 1)
    while sole and owner.base is not None:
        owner, parent = owner.base, owner
        sole = type(owner) is np.ndarray and private.is_sole(owner, 2)
        del parent
    dtype = canonical(array.dtype)
    if dtype != array.dtype:
        array = array.astype(dtype)
    elif not sole or not owner.flags.owndata:
        array = array.copy()
    return hand_over(array, device, committed)


def _watched() -> bool:
    """Return whether a jitted function is no plain call of a program, or may not take NumPy's arrays."""
    config = jax.config
    looked_at = config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs
    return bool(looked_at or config.jax_transfer_guard_host_to_device or config.jax_transfer_guard)


@jax.jit
def _identity(array: Any) -> Any:
    """Return an array of JAX: the cheapest public way for an uncommitted one, half of ``jnp.asarray``."""
    return array


def hand_over(array: np.ndarray[Any, Any], device: Any, committed: bool, sharding: Any = None) -> Any:
    """Return a JAX array of a NumPy array that nobody else holds."""
    put = private.device_put()
    if put is not None:
        where = sharding or jax.sharding.SingleDeviceSharding(device)
        return put(aval_of(array.shape, array.dtype), where, array, device, committed)
    usual = jax.config.jax_default_device is None and device == _first_device()
    if usual and not committed and not _watched():
        return _identity(array)
    return private.explicitly(array, device, committed)


def run_here(plan: Plan, arrays: Sequence[Any]) -> list[Any] | None:
    """Run a plan on concrete arrays in this very stack; None where only a compiled program can."""
    if plan.inline:
        return plan.compute(arrays, None)
    where = placement(arrays)
    if where is None:
        return None
    if where[0].platform == "cpu" or plan.flavour == "numpy":
        return run_on_host(plan, arrays, where)
    return run_on_device(plan, arrays)


def run_on_host(plan: Plan, arrays: Sequence[Any], where: tuple[Any, bool]) -> list[Any]:
    """Call a host kernel on concrete arrays, copied to the host if need be, and return JAX arrays."""
    results = on_numpy(plan)([np.asarray(array) for array in arrays], None)
    outs = []
    while results:
        outs.append(adopt(results.pop(0), *where))
    check_numbers(plan, outs)
    return outs


def run_on_device(plan: Plan, arrays: Sequence[Any]) -> list[Any]:
    """Call a CUDA kernel on concrete arrays and return JAX arrays."""
    other = carrier(plan.flavour)
    results = plan.compute([other.from_dlpack(array) for array in arrays], None)
    outs = [jax.dlpack.from_dlpack(result) for result in results]
    check_numbers(plan, outs)
    return outs


def check_numbers(plan: Plan, outs: Sequence[Any]) -> None:
    """Raise as JAX does while ``jax_debug_nans`` or ``jax_debug_infs`` is on."""
    nans, infs = jax.config.jax_debug_nans, jax.config.jax_debug_infs
    if not (nans or infs):
        return
    for out in outs:
        if not jax.dtypes.issubdtype(out.dtype, np.inexact):
            continue
        array = np.asarray(out)
        if array.dtype.kind not in "fc":
            array = array.astype(np.float32)
        if nans and np.isnan(array).any():
            raise FloatingPointError(f"invalid value (nan) encountered in {plan.title} ({plan.source})")
        if infs and np.isinf(array).any():
            raise FloatingPointError(f"invalid value (inf) encountered in {plan.title} ({plan.source})")
