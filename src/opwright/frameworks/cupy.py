"""CuPy: arrays on a GPU that are computed on directly.

* The GPU of the first array is current around every kernel, whichever was current before.
* Work of another library on CuPy's arrays runs on CuPy's current stream, and CuPy's own on tensors of torch
  on torch's: what one has queued is done before the other reads it, and nothing waits on the host.
* CuPy has no read-only arrays; one whose elements share memory cannot be mutated.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import cupy

from opwright import modes
from opwright.dtypes import as_dtype, is_floating
from opwright.entry import first_array, table_key
from opwright.errors import ArgumentError, layout
from opwright.frameworks.base import Exported, Framework, Launching
from opwright.frameworks.bridges import bridge
from opwright.frameworks.direct import Direct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opwright.overload import OpOverload

_runtime = cupy.cuda.runtime


# No two elements share memory.
_WRITABLE = (
    "(0 not in {x}.strides or not {x}.size or all(s or n < 2 for s, n in zip({x}.strides, {x}.shape)))"
)


def _accept(value: Any) -> Any:
    return value if value.__class__ is cupy.ndarray else None


def shares_memory(a: Any, b: Any) -> bool:
    """Return whether two values are arrays in one allocation, whatever part of it each sees."""
    if not isinstance(a, cupy.ndarray) or not isinstance(b, cupy.ndarray) or not a.size or not b.size:
        return False
    return a.data.mem.ptr == b.data.mem.ptr or bool(cupy.may_share_memory(a, b))


def _advice(name: str, value: Any) -> str | None:
    return f"take its plain array first: cupy.asarray({name})" if isinstance(value, cupy.ndarray) else None


def on_its_device(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel with the GPU of its first array current around it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        array = first_array(value for value in (*args, *kwargs.values()) if _is_array(value))
        if array is None or array.device.id == _runtime.getDevice():
            return fn(*args, **kwargs)
        with array.device:
            return fn(*args, **kwargs)

    return call


def _is_array(value: Any) -> bool:
    return isinstance(value, cupy.ndarray | list | tuple)


def _under_modes(record: OpOverload, call: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    return modes.run_under(
        record,
        call,
        values,
        device_type_of=FRAMEWORK.device_type,
        cast=FRAMEWORK.cast,
        adapt=lambda rule: bridge(rule, FRAMEWORK),
    )


class _Handle:
    """A raw stream handle, as CUDA's stream protocol has it."""

    __slots__ = ("stream",)

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream


class Pointer:
    """An array as Triton's own launch takes it: something with ``data_ptr()`` and a ``dtype``."""

    __slots__ = ("array", "dtype")

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype = array.dtype.name

    def data_ptr(self) -> int:
        """Return the address."""
        return int(self.array.data.ptr)


def _pointer(value: Any) -> Any:
    return Pointer(value) if isinstance(value, cupy.ndarray) else value


def launch(launcher: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Launch in Triton's own way, with the arrays' GPU current and CuPy's stream as Triton's."""
    array = next(value for value in (*args, *kwargs.values()) if isinstance(value, cupy.ndarray))
    if launcher.layers.interpreted:
        raise ArgumentError(
            layout(
                f"Triton kernel {launcher.layers.name} runs in the interpreter, which takes torch tensors",
                got="arrays of cupy",
                fix="unset TRITON_INTERPRET, or pass tensors",
            )
        )
    from triton.runtime import driver

    # Triton asks the library that its driver is made with for the current stream: it gets CuPy's.
    interface = driver.active.get_device_interface()
    stream = interface.ExternalStream(cupy.cuda.get_current_stream().ptr, device=array.device.id)
    named = {name: _pointer(value) for name, value in kwargs.items()}
    with array.device, interface.device(array.device.id), interface.stream(stream):
        return launcher.kernel[grid](*map(_pointer, args), **named)


class CuPyFramework(Framework):
    """CuPy arrays, on GPUs."""

    name: ClassVar[str] = "cupy"
    flavour: ClassVar[str] = "cupy"
    lowered = MappingProxyType(
        {
            "fake": "runs on FakeArray, for opcheck and for calls with fakes",
            "autograd": "opwright.vjp",
            "jvp": "opwright.jvp; derived from the backward where there is no jvp rule",
            "vmap": "opwright.vmap; a loop where there is no vmap rule",
            "autocast": "opwright.autocast",
            "torch_dispatch": "opwright.DispatchMode",
        }
    )
    unsupported = MappingProxyType(
        {
            "functionalization": "CuPy traces nothing: a mutated argument is mutated in place",
        }
    )

    def __init__(self) -> None:
        self._direct = Direct(
            self,
            cupy.ndarray,
            accept=_accept,
            accept_output=_accept,
            shares_memory=shares_memory,
            writable=_WRITABLE,
            advice=_advice,
            under_modes=_under_modes,
            around=on_its_device,
        )

    def device_type(self, array: Any) -> str:
        return "cuda"

    def specialise(self, record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
        return self._direct.specialise(record, values, table_key(record.schema, values))

    def cast(self, array: Any, dtype: str) -> Any:
        return array.astype(as_dtype(dtype), copy=False) if is_floating(array.dtype) else array

    def to_numpy(self, array: Any) -> Any:
        return cupy.asnumpy(array)

    def from_numpy(self, array: Any) -> Any:
        return cupy.asarray(array)

    def from_host(self, array: Any, like: Any) -> Any:
        with like.device:
            return cupy.asarray(array)

    def from_dlpack(self, array: Any) -> Any:
        return cupy.from_dlpack(array)

    def exported(self, array: Any) -> Any:
        return Exported(array.__dlpack__(stream=-1), array.__dlpack_device__())

    def stream_of(self, array: Any) -> tuple[int, int] | None:
        if not isinstance(array, cupy.ndarray):
            return None
        with array.device:
            return int(array.device.id), int(cupy.cuda.get_current_stream().ptr)

    def on_stream(self, device: int | None, stream: int) -> AbstractContextManager[Any]:
        if not stream:
            return cupy.cuda.Stream.null
        if hasattr(cupy.cuda.Stream, "from_external"):  # which takes the place of ExternalStream
            return cupy.cuda.Stream.from_external(_Handle(stream))
        return cupy.cuda.ExternalStream(stream, -1 if device is None else device)

    def launching(self) -> Launching:
        return Launching(
            address="{}.data.ptr",
            dtype="{}.dtype",
            device="{}.device.id",
            is_plain=lambda cls: cls is cupy.ndarray,
            current_device=_runtime.getDevice,
            current_stream=lambda device: int(cupy.cuda.get_current_stream(device).ptr),
            launch=launch,
        )

    def convert(self, kind: str, value: Any) -> Any:
        """Return a dtype of NumPy, which are CuPy's, or a ``cupy.cuda.Device``."""
        if kind == "ScalarType":
            return as_dtype(value)
        if isinstance(value, cupy.cuda.Device):
            return value
        kind_of, _, index = str(value).partition(":")
        platform = getattr(value, "platform", None)
        if platform in ("gpu", "cuda", "rocm"):
            return cupy.cuda.Device(value.local_hardware_id)
        if kind_of != "cuda":
            raise ValueError(f"CuPy arrays are on cuda, not on {value}")
        return cupy.cuda.Device(int(index) if index else None)


FRAMEWORK = CuPyFramework()
