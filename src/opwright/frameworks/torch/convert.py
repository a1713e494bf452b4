"""Tensors as NumPy arrays and back, on the CPU, of the same memory; dtypes and devices of torch.

* An input is detached, its conj and neg bits resolved.
* NumPy has no bfloat16 and no float8: they go over as their bits, under the dtypes of ``ml_dtypes``.
* What a NumPy kernel returns becomes native-endian and C-contiguous. ``np.asarray(order="C")`` keeps a 0-d
  array 0-d, which ``np.ascontiguousarray`` does not.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from opwright.errors import UnsupportedError, layout

_BITS: dict[torch.dtype, tuple[str, torch.dtype, str]] = {
    torch.bfloat16: ("bfloat16", torch.int16, "int16"),
    torch.float8_e4m3fn: ("float8_e4m3fn", torch.uint8, "uint8"),
    torch.float8_e5m2: ("float8_e5m2", torch.uint8, "uint8"),
    torch.float8_e4m3fnuz: ("float8_e4m3fnuz", torch.uint8, "uint8"),
    torch.float8_e5m2fnuz: ("float8_e5m2fnuz", torch.uint8, "uint8"),
}
"""Dtypes that NumPy has through ml_dtypes only: their name there, and integers of the same size."""

_FROM_BITS = {name: (bits, dtype) for dtype, (name, _, bits) in _BITS.items()}
_TORCH_BITS = {"int16": torch.int16, "uint8": torch.uint8}


class NoNumPyError(UnsupportedError):
    """A tensor has no NumPy array of the same memory."""


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array of a tensor on the CPU.

    Raises
    ------
    NoNumPyError
        If it is sparse, quantized, nested, or of a dtype that NumPy does not have.
    """
    plain = tensor.detach()
    if plain.dtype in _BITS:
        return _as_ml_dtype(plain)
    try:
        array: np.ndarray[Any, Any] = plain.numpy()
    except (RuntimeError, TypeError) as error:
        if plain.layout is torch.strided and (plain.is_conj() or plain.is_neg() or _is_zero(plain)):
            return _resolved(plain).numpy()
        raise NoNumPyError(
            layout(
                "a tensor cannot be given to a NumPy kernel",
                expected="a dense tensor on the CPU, of a dtype that NumPy has",
                got=f"{tensor.dtype}, {tensor.layout}, on {tensor.device}: {str(error).splitlines()[0]}",
                fix="convert it first, or register a kernel with torch tensors for it",
            )
        ) from None
    return array


def _is_zero(tensor: torch.Tensor) -> bool:
    return bool(getattr(torch, "_is_zerotensor", lambda _: False)(tensor))


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if _is_zero(tensor) else tensor.resolve_conj().resolve_neg()


def _as_ml_dtype(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    name, bits, _ = _BITS[tensor.dtype]
    return tensor.view(bits).numpy().view(getattr(_ml_dtypes(name), name))


def _ml_dtypes(name: str) -> Any:
    try:
        return importlib.import_module("ml_dtypes")
    except ModuleNotFoundError:
        raise NoNumPyError(
            layout(
                f"a NumPy kernel was given a {name} tensor, and NumPy alone has no {name}",
                fix="pip install ml_dtypes, or convert the tensor first, for example with .float()",
            )
        ) from None


def from_numpy(array: Any, *, keep_strides: bool = False) -> torch.Tensor:
    """Return a tensor of a NumPy array or scalar, of the same memory where NumPy's layout allows.

    With ``keep_strides`` that of an array that is not contiguous too; torch has no negative strides.

    Raises
    ------
    NoNumPyError
        If torch has no such dtype.
    """
    strided = keep_strides and min(getattr(array, "strides", ()), default=0) >= 0
    array = np.asarray(array, order=None if strided else "C")
    name = array.dtype.name
    if name in _FROM_BITS:
        bits, dtype = _FROM_BITS[name]
        return from_numpy(array.view(bits), keep_strides=keep_strides).view(dtype)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise NoNumPyError(
            layout(
                "a NumPy array cannot become a tensor",
                expected="a dtype that torch has",
                got=f"{array.dtype}: {str(error).splitlines()[0]}",
                fix="convert it in the kernel, with astype",
            )
        ) from None


def to_share(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as it goes over by DLPack: without a gradient, and dense, which JAX asks for."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether elements share memory, as in an expanded tensor: writing to one changes others."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.layout is torch.strided and any(size > 1 and stride == 0 for size, stride in sizes)


NAMED = ("ScalarType", "Device", "Layout", "MemoryFormat")
"""Schema types whose values have standard names."""


def to_torch(kind: str, value: Any) -> Any:
    """Return torch's own object for a value of a named type, given by name or as another's object."""
    if kind == "ScalarType":
        return value if isinstance(value, torch.dtype) else _dtype(value)
    if kind == "Device":
        return value if isinstance(value, torch.device) else _device(value)
    return getattr(torch, value) if isinstance(value, str) else value


def _dtype(value: Any) -> torch.dtype:
    name = value if isinstance(value, str) else _dtype_name(value)
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")  # noqa: TRY004  (the caller lays it out)
    return found


def _dtype_name(value: Any) -> str:
    if value is bool:
        return "bool"
    try:
        return np.dtype(value).name
    except TypeError:
        return str(getattr(value, "name", value))


def _device(value: Any) -> torch.device:
    if isinstance(value, (str, int)):  # Dynamo traces this, and in torch 2.9 knows no unions of types
        return torch.device(value)
    platform = getattr(value, "platform", None)
    if platform is not None:  # a device of JAX
        return torch.device({"gpu": "cuda", "rocm": "cuda"}.get(platform, platform))
    return torch.device(str(value))


def several_devices() -> bool:
    """Return whether this machine has several devices of one type, one of which is current."""
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    return bool(getattr(module, "device_count", int)() > 1)


def default_device() -> torch.device:
    """Return the device on which torch makes tensors."""
    try:
        return torch.get_default_device()
    except AttributeError:  # torch 2.9 cannot say it in a thread that has called set_default_device(None)
        return torch.device("cpu")
