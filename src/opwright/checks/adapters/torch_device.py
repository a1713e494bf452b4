"""The laws on tensors of a GPU: as on the CPU, and what a kernel copies and waits for."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from opwright.checks.adapters.base import call_arguments
from opwright.checks.adapters.results import Called, Unsupported
from opwright.checks.adapters.torch import TorchAdapter
from opwright.frameworks.torch.lowered import tensors_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.overload import OpOverload

WARM_UP = 3
"""Calls before a capture: kernels are compiled and libraries are set up in the first ones."""


class TorchDeviceAdapter(TorchAdapter):
    """PyTorch on one GPU."""

    device_type = "cuda"

    def __init__(self, index: int) -> None:
        self._device = f"cuda:{index}"

    def array(self, array: Any) -> Any:
        """Return a tensor on the GPU, with the strides of the array."""
        import torch

        there = super().array(array)
        new = torch.empty_strided(there.shape, there.stride(), dtype=there.dtype, device=self._device)
        return new.copy_(there) if 0 not in there.stride() else there.to(self._device)

    def numpy(self, array: Any) -> Any:
        """Return a NumPy array of a copy."""
        return super().numpy(array.detach().cpu())

    def code(self, name: str) -> str:
        """Return a tensor of a NumPy array, on the GPU."""
        return f"torch.from_numpy({name}).to({self._device!r})"

    def copies(self, record: OpOverload, values: Sequence[Any]) -> list[tuple[str, str, str]] | Unsupported:
        """Watch the functions that a kernel calls."""
        return copies(record, values)

    def waits(self, record: OpOverload, values: Sequence[Any]) -> Exception | None:
        """Use torch's own mode that reports synchronisation."""
        return waits(record, values)

    def replays(
        self, record: OpOverload, values: Sequence[Any], data: Sequence[Sequence[Any]]
    ) -> list[Called]:
        """Capture a call with values that are overwritten, and replay it; clear its outputs each time.

        Raises
        ------
        Exception
            What the call raised while it was captured, else what ended the capture.
        """
        import torch

        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.call(record, values)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph, called, error = torch.cuda.CUDAGraph(), None, None
        try:
            with warnings.catch_warnings(), torch.cuda.graph(graph, stream=stream):
                warnings.simplefilter("ignore")  # of a graph that holds no work
                try:
                    called = self.call(record, values)
                except Exception as raised:  # noqa: BLE001  (whatever the operator raises)
                    error = raised
        except RuntimeError as ended:  # the call spoilt the capture, and may have said how
            raise (error or ended) from None
        if called is None:
            raise error or RuntimeError("the call returned nothing")
        return [self._replayed(graph, called, values, new) for new in data]

    def _replayed(self, graph: Any, called: Called, values: Sequence[Any], new: Sequence[Any]) -> Called:
        import torch

        inputs = tensors_in(list(values))
        for place, tensor in zip(inputs, tensors_in(list(new)), strict=True):
            place.copy_(tensor)
        known = {id(tensor) for tensor in inputs}
        for tensor in tensors_in(called.outputs):
            if id(tensor) not in known:
                tensor.zero_()
        graph.replay()
        torch.cuda.synchronize(self._device)
        return Called(
            [_cloned(value) for value in called.outputs],
            {name: _cloned(value) for name, value in called.new_values.items()},
        )


def _cloned(value: Any) -> Any:
    """Return copies of the tensors in an output, which the next replay overwrites."""
    if isinstance(value, list | tuple):
        return [_cloned(one) for one in value]
    return value.clone() if hasattr(value, "clone") else value


def copies(record: OpOverload, values: Sequence[Any]) -> list[tuple[str, str, str]] | Unsupported:
    """Return each copy between devices that a kernel of torch's functions makes: name, from, to."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    kernel = record.select_kernel("torch", "cuda")
    if kernel is None or kernel.flavour not in ("torch", "array_api"):
        return Unsupported("copies between devices are seen in kernels of torch's functions alone")
    found: list[tuple[str, str, str]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            given = [one for one in args if isinstance(one, torch.Tensor)]
            before = {str(one.device) for one in given}
            after = {str(one.device) for one in [out, *given[:1]] if isinstance(one, torch.Tensor)}
            if func.overloadpacket.__name__ in ("_to_copy", "copy_") and len(before | after) > 1:
                source = str(given[-1].device)
                found.append((str(func), source, next(iter((before | after) - {source}))))
            return out

    args, kwargs = call_arguments(record, values)
    with Watch(), torch.no_grad():
        kernel.fn(*args, **kwargs)
    return found


def waits(record: OpOverload, values: Sequence[Any]) -> Exception | None:
    """Return the error with which torch reports that a call waits for the GPU, or None."""
    import torch

    args, kwargs = call_arguments(record, values)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this mode is new
            torch.cuda.set_sync_debug_mode("error")
        record.operator(*args, **kwargs)
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return error
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return None


def devices() -> list[TorchDeviceAdapter] | Unsupported:
    """Return an adapter for each GPU."""
    import torch

    if not torch.cuda.is_available():
        return Unsupported("needs a CUDA device, and torch finds none")
    return [TorchDeviceAdapter(index) for index in range(torch.cuda.device_count())]
