"""JAX's private names, each probed once; where one is missing, a public and slower path is taken.

``trace_state_clean`` tells a call on closed-over arrays inside a trace from one outside of every trace;
``batched_device_put`` hands a NumPy array to JAX at a tenth of the public cost and checks nothing itself.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def _found(module: str, name: str) -> Any:
    try:
        return getattr(__import__(module, fromlist=[name]), name, None)
    except ImportError:
        return None


trace_state_clean: Callable[[], bool] | None = _found("jax._src.core", "trace_state_clean")
"""Whether no trace is under way in this thread; None where this JAX does not say."""

_TYPED_ARRAY = _found("jax._src.literals", "TypedNdArray")

HOST_ARRAYS: tuple[type[Any], ...] = (np.ndarray, *([] if _TYPED_ARRAY is None else [_TYPED_ARRAY]))
"""Classes of arrays on the host that JAX takes: NumPy's, and what JAX makes of these while it traces.

The latter is none of NumPy's in JAX 0.9, and has hardly a method there.
"""


def binds_axes() -> bool:
    """Return whether an axis has a name here, from ``jax.vmap`` for one; False where JAX does not say."""
    environment = _found("jax._src.core", "get_axis_env")
    return environment is not None and bool(getattr(environment(), "axis_sizes", ()))


@cache
def device_put() -> Callable[..., Any] | None:
    """Return ``put(aval, sharding, array, device, committed)``, or None where only public names are there.

    The entry is called once on a known array, and left alone unless it answers rightly.
    """
    try:
        from jax._src.lib import _jax
    except ImportError:
        return None
    entry = getattr(_jax, "batched_device_put", None)
    if entry is None:
        return None

    def put(aval: Any, sharding: Any, array: Any, device: Any, committed: bool) -> Any:
        try:
            return entry(aval, sharding, [array], [device], committed)
        except jax.errors.JaxRuntimeError:  # jax.transfer_guard may refuse what nobody wrote down
            return explicitly(array, device, committed)

    device = jax.devices("cpu")[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    sample = np.arange(3, dtype=np.float32)
    try:
        got = put(jax.core.ShapedArray((3,), sample.dtype), sharding, sample, device, True)
        right = isinstance(got, jax.Array) and got.committed and np.array_equal(np.asarray(got), sample)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return None
    return put if right else None


def explicitly(array: Any, device: Any, committed: bool) -> Any:
    """Return a JAX array of a NumPy array by a transfer that JAX counts as asked for."""
    if committed:
        return jax.device_put(array, device)
    with jax.default_device(device):
        return jax.device_put(array)


@cache
def array_class() -> type:
    """Return the exact class of concrete arrays, inside a trace too."""
    with jax.ensure_compile_time_eval():
        return type(jax.device_put(np.zeros(1, np.float32)))


def device_of(sharding: Any) -> Any:
    """Return the device of a ``SingleDeviceSharding``."""
    device = getattr(sharding, "_device", None)
    return next(iter(sharding.device_set)) if device is None else device


@cache
def jet() -> Any:
    """Return the module of ``jet``, or None where its table of rules is another than the one that is known.

    Rules take and return plain Taylor coefficients where ``jet`` can be asked not to scale them.
    """
    try:
        from jax.experimental import jet as found
    except ImportError:
        return None
    known = all(hasattr(found, name) for name in ("jet_rules", "zero_series"))
    return found if known and "factorial_scaled" in inspect.signature(found.jet).parameters else None


def sparse_rules() -> list[Any]:
    """Return the tables of rules of ``sparsify``, if somebody has imported its module: that takes long."""
    module = sys.modules.get("jax.experimental.sparse.transform")
    if module is None:
        return []
    tables = [getattr(module, name, None) for name in ("sparse_rules_bcoo", "sparse_rules_bcsr")]
    return [table for table in tables if isinstance(table, dict)]


def for_export(context: Any) -> bool:
    """Return whether a lowering is one of ``jax.export``; False where this JAX does not say."""
    parameters = getattr(getattr(context, "module_context", None), "lowering_parameters", None)
    return bool(getattr(parameters, "for_export", False))


def _count_of(array: Any) -> int:
    return sys.getrefcount(array)


_SOLE = partial(_count_of, np.empty(1))() - 1
"""The count that ``sys.getrefcount`` gives a function for an argument that nobody else holds.

The ``partial`` holds it too: a call from C, which is the same whatever evaluates the interpreter's frames.
"""


def _count_of_local() -> int:
    array = np.empty(1)
    return sys.getrefcount(array)


REFERENCES_TO_A_LOCAL = _count_of_local()
"""The count that ``sys.getrefcount`` gives for a local variable that nobody else holds."""


def references_of_two_calls() -> int:
    """Return how many references more than usual two calls in Python hold of an argument.

    While something has replaced the interpreter's frame evaluation, as torch's compiler does and may leave
    it after an error, callers keep what they pass on their stack.
    """
    return 2 * (_count_of(object()) - _SOLE)


COUNTS_TELL = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether reference counts tell who holds an object: not without the GIL."""


def is_sole(array: Any, extra: int) -> bool:
    """Return whether only ``extra`` known holders refer to an array; False where counts do not tell."""
    return COUNTS_TELL and sys.getrefcount(array) <= _SOLE + extra
