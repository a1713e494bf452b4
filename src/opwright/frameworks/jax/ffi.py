"""Host kernels as XLA FFI targets of a stable name, through the optional extra ``tvm-ffi``.

* The extra imports torch where torch is installed, so it is imported at the first lowering, never before.
* One target for each operator: its body finds what to run by its first operand, a constant that holds the
  static arguments as text. So names in a program are the same in every process, and a program can be kept.
  (As an attribute, jax-tvm-ffi 0.1.3 corrupts memory once the text is longer than a few bytes.)
* A target is never freed; an operator that is defined anew gets another name.
"""

from __future__ import annotations

import importlib.util
import json
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from opwright.frameworks.jax.callbacks import Plan, host_body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    class Resolve(Protocol):
        """From what a program says of a call to how it runs, and its number of inputs."""

        @property
        def version(self) -> int:
            """Another number after each registration."""

        def __call__(self, call: str, /) -> tuple[Plan, int]: ...


_DTYPES = frozenset(
    np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64",
    )
)  # fmt: skip
"""Dtypes that go through the extra as they are; others take another route."""

enabled = True
"""Whether the extra is used where it is installed; tests of the other routes turn it off."""


@dataclass(frozen=True, slots=True)
class Target:
    """What names the body of a host kernel in a program.

    Parameters
    ----------
    name
        The target's name.
    call
        The static arguments, as text.
    resolve
        ``resolve(call)`` returns the plan that the text stands for, and its number of inputs.
    """

    name: str
    call: str
    resolve: Resolve


@cache
def installed() -> bool:
    """Return whether the extra is there; nothing is imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("tvm_ffi", "jax_tvm_ffi"))


def usable(dtypes: Sequence[Any]) -> bool:
    """Return whether the extra is installed and takes arrays of these dtypes."""
    return enabled and installed() and all(dtype in _DTYPES for dtype in dtypes)


_SPEC = ["args", "rets"]
"""What XLA hands a body, in this order. Tensors are owned: NumPy could not take views of others."""

_lock = threading.Lock()
_registered: set[str] = set()


def register(name: str, resolve: Resolve) -> None:
    """Register a target unless it is."""
    import jax_tvm_ffi
    import tvm_ffi

    with _lock:
        if name not in _registered:
            body = tvm_ffi.convert(_body(resolve))
            jax_tvm_ffi.register_ffi_target(name, body, _SPEC, platform="cpu", pass_owned_tensor=True)
            _registered.add(name)


def _body(resolve: Resolve) -> Callable[..., None]:
    """Return what XLA calls with the text, then inputs, then outputs."""
    bodies: dict[bytes, tuple[int, Callable[..., None]]] = {}
    view = np.from_dlpack

    def body(call: Any, *tensors: Any) -> None:
        key = view(call).tobytes()
        version = resolve.version
        known = bodies.get(key)
        if known is None or known[0] != version:
            plan, count = resolve(key.decode())
            known = bodies[key] = (version, host_body(plan, view, count))
        known[1](*tensors)

    return body


def through_target(
    target: Target, impure: bool, shapes: Sequence[jax.ShapeDtypeStruct]
) -> Callable[..., Any]:
    """Return a traceable function that runs a host kernel through its target."""
    register(target.name, target.resolve)
    run = jax.ffi.ffi_call(target.name, list(shapes), has_side_effect=impure)
    call = np.frombuffer(target.call.encode(), np.uint8)
    return lambda *arrays: run(call, *arrays)


# ------------------------------------------------------------------------- static arguments as text


def encode(value: Any) -> Any:
    """Return what JSON can hold of a static argument.

    Raises
    ------
    TypeError
        If it cannot be written as text and read back in another process.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [encode(entry) for entry in value]}
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    raise TypeError(f"{type(value).__name__} cannot be written as text")


def decode(value: Any) -> Any:
    """Return the static argument that ``encode`` wrote."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "float":
        return float.fromhex(inner)
    if kind == "complex":
        return complex(*map(float.fromhex, inner))
    if kind == "dtype":
        return np.dtype(jax.numpy.dtype(inner))
    entries = [decode(entry) for entry in inner]
    return entries if kind == "list" else tuple(entries)


def text(value: Any) -> str | None:
    """Return a static value as text, or None where that cannot be done."""
    try:
        return json.dumps(encode(value), separators=(",", ":"))
    except TypeError:
        return None


def value_of(written: str) -> Any:
    """Return the static value of a text."""
    return decode(json.loads(written))
