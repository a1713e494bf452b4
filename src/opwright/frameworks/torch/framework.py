"""PyTorch as a framework: what the engine asks of it, each answer in a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from opwright.frameworks.base import Framework
from opwright.frameworks.torch import define, slow
from opwright.frameworks.torch.lowered import lowered_of
from opwright.overload import OpOverload


class TorchFramework(Framework):
    """PyTorch tensors, on every device."""

    name: ClassVar[str] = "torch"
    flavour: ClassVar[str] = "torch"

    def device_type(self, array: Any) -> str:
        return str(array.device.type) if isinstance(array, torch.Tensor) else torch.get_default_device().type

    def specialise(self, record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
        return slow.slow_call(record)

    def attach(self, record: OpOverload) -> None:
        define.attach(record)
        self._fill_table(record)

    def changed(self, event: str, record: OpOverload, item: Any) -> None:
        if event == "undefine":
            define.detach(lowered_of(record))
            del record.lowered["torch"]
        else:
            self._fill_table(record)

    def _fill_table(self, record: OpOverload) -> None:
        """Enter torch's two plain classes in the table: Dynamo must never see a table miss."""
        for cls in (torch.Tensor, torch.nn.Parameter):
            record.table[cls] = self.specialise(record, ())

    def native(self, record: OpOverload) -> Any:
        return lowered_of(record).native

    def to_numpy(self, array: Any) -> Any:
        return array.detach().resolve_conj().resolve_neg().numpy()

    def from_numpy(self, array: Any) -> Any:
        return torch.from_numpy(array)

    def from_dlpack(self, array: Any) -> Any:
        return torch.from_dlpack(array)

    def convert(self, kind: str, value: Any) -> Any:
        if kind == "ScalarType":
            return getattr(torch, str(getattr(value, "name", value)).removeprefix("torch."))
        return torch.device(value)


FRAMEWORK = TorchFramework()
