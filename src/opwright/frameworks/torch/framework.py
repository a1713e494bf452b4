"""PyTorch as a framework: what the engine asks of it, each answer in a module of its own."""

from __future__ import annotations

from contextlib import nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from opwright import registry
from opwright.frameworks.base import Exported, Framework, Launching
from opwright.frameworks.torch import (
    define,
    fake_tensors,
    fast,
    fingerprint,
    foreign,
    foreign_keys,
    private,
    slow,
    triton,
    watched,
)
from opwright.frameworks.torch.convert import default_device, from_numpy, to_numpy, to_torch
from opwright.frameworks.torch.lowered import lowered_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opwright.overload import OpOverload
    from opwright.programs import Program
    from opwright.rules.base import Rule


class TorchFramework(Framework):
    """PyTorch tensors, on every device."""

    name: ClassVar[str] = "torch"
    flavour: ClassVar[str] = "torch"
    lowered = MappingProxyType(
        {
            "fake": "torch.library.register_fake: FakeTensors and meta tensors",
            "autograd": "a single-level autograd function in the operator's Autograd kernel",
            "jvp": "the jvp of that function; derived from the backward where no rule is given",
            "vmap": "a kernel at FuncTorchBatched; a loop where no rule is given",
            "autocast": "a kernel at the device type's autocast key",
            "torch_dispatch": "torch.library.register_torch_dispatch",
            "functionalization": "torch's own, from the schema: auto_functionalized in compiled code",
        }
    )

    def device_type(self, array: Any) -> str:
        return str(array.device.type if isinstance(array, torch.Tensor) else default_device().type)

    def specialise(self, record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
        return fast.specialise(record, slow.slow_call(record), values)

    def started(self) -> None:
        foreign.catch_up()

    def attach(self, record: OpOverload) -> None:
        define.attach(record)
        # Dynamo calls what no table entry takes, such as a subclass: it goes to torch's dispatcher.
        record.traced = (torch.compiler.is_dynamo_compiling, slow.slow_call(record))
        self._fill_table(record)
        fingerprint.update(record)

    def trace_again(self) -> None:
        private.restart_trace()

    def never_traced(self, function: Any) -> None:
        private.never_traced(function)

    def changed(self, event: str, record: OpOverload, item: Any) -> None:
        if record.owner:
            foreign.changed(event, record, item)
            fingerprint.update(record)
            return
        state = lowered_of(record)
        if event == "undefine":
            define.detach(state, redefined=registry.records.get(record.key, record) is not record)
            fingerprint.remove(record)
            record.lowered.pop("torch", None)
        else:
            define.sync(state, item)
            self._fill_table(record)
            fingerprint.update(record)

    def _fill_table(self, record: OpOverload) -> None:
        """Enter torch's two plain classes in the table: Dynamo must never see a table miss."""
        record.table[torch.Tensor] = record.table[torch.nn.Parameter] = self.specialise(record, ())

    def covered(self, record: OpOverload) -> None:
        """Send all calls of an overload through torch's dispatcher, which holds more than we put there."""
        record.version += 1
        record.table.clear()
        lowered_of(record).cache.pop("fast", None)
        self._fill_table(record)

    def lookup(self, target: Any) -> OpOverload | None:
        return foreign.lookup(target)

    def get_kernel(self, record: OpOverload, key: str) -> Any:
        return foreign.get_kernel(record, key)

    def held_at(self, record: OpOverload, slot: str) -> str | None:
        return foreign.held_at(record, slot)

    def fallback_changed(self, namespace: str, key: str) -> None:
        foreign_keys.sync_fallback(namespace, key)

    def native(self, record: OpOverload) -> Any:
        return lowered_of(record).native

    def to_numpy(self, array: Any) -> Any:
        return to_numpy(array if array.device.type == "cpu" else array.cpu())

    def from_numpy(self, array: Any) -> Any:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # writes to a tensor that is made there are not counted
                return from_numpy(array, keep_strides=True)
        return from_numpy(array, keep_strides=True)  # a kernel may write to it

    def from_host(self, array: Any, like: Any) -> Any:
        return from_numpy(array).to(like.device)

    def from_dlpack(self, array: Any) -> Any:
        return torch.from_dlpack(array.capsule if array.__class__ is Exported else array)

    def exported(self, array: Any) -> Any:
        if not array.is_cuda or array.is_conj() or array.is_neg() or array.requires_grad:
            return array  # whose own export says why it cannot be exported
        return Exported(torch.utils.dlpack.to_dlpack(array), array.__dlpack_device__())

    def writes(self, array: Any) -> int | None:
        return None if array.is_inference() else int(array._version)  # noqa: SLF001  (torch names no other)

    def stream_of(self, array: Any) -> tuple[int, int] | None:
        device = array.device
        return (device.index, private.cuda_stream(device.index)) if device.type == "cuda" else None

    def on_stream(self, device: int | None, stream: int) -> AbstractContextManager[Any]:
        if device is not None and _is_current(device, stream):
            return nullcontext()
        external: AbstractContextManager[Any] = torch.cuda.stream(
            torch.cuda.ExternalStream(stream, device=device)
        )
        return external

    def launching(self) -> Launching:
        return triton.launching()

    def record_launches(
        self,
        function: Callable[[Sequence[Any]], Sequence[Any]],
        inputs: Sequence[tuple[Any, str]],
        device: str,
    ) -> Program:
        from opwright.frameworks.torch.launches import record

        return record(function, inputs, device)

    def run_fake(self, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return fake_tensors.run_fake(rule, args, kwargs)

    def convert(self, kind: str, value: Any) -> Any:
        return to_torch(kind, value)


def _is_current(device: int, stream: int) -> bool:
    """Return whether work is queued on a GPU's stream as it is."""
    known = torch.cuda.is_initialized() and private.cuda_device() == device
    return known and private.cuda_stream(device) == stream


FRAMEWORK = TorchFramework()
watched.listeners.append(FRAMEWORK.covered)
