"""What a function that allocates tensors and launches Triton kernels does, recorded on FakeTensors.

Views are followed, allocations and copies are noted; any other operation ends the recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # torch documents it under this path
from torch.utils._python_dispatch import TorchDispatchMode  # the same

from opwright.frameworks.torch import triton
from opwright.frameworks.torch.lowered import tensors_in
from opwright.programs import Buffer, Copy, NotAProgram, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
_FULL = frozenset({"full", "full_like", "new_full"})


def record(
    function: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[tuple[Any, str]], device: str
) -> Program:
    """Return what a function of tensors does.

    Parameters
    ----------
    function
        Takes a list of tensors and returns a sequence of them.
    inputs
        Shape and standard dtype name of each.
    device
        Where they are.

    Raises
    ------
    NotAProgram
        If it does something else than allocate, copy and launch.
    """
    with torch.no_grad(), FakeTensorMode():
        tensors = [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for shape, dtype in inputs]
        recorder = _Recorder(tensors)
        token = triton.recorder.set(recorder.launch)
        try:
            with recorder:
                outputs = function(tensors)
        except NotAProgram:
            raise
        except Exception as error:  # a call on data may do well, or says the same to the caller
            raise NotAProgram(f"it raises {error!r} without data") from error
        finally:
            triton.recorder.reset(token)
        recorder.program.outputs = [recorder.whole(tensor) for tensor in outputs]
    return recorder.program


class _Recorder(TorchDispatchMode):
    """Notes what allocations, copies and launches do with the memory of FakeTensors."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__()
        self.program = Program(len(tensors))
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # a storage that is gone could give its address to another
        for tensor in tensors:
            self._add(tensor)

    def _add(self, tensor: Any, fill: Any = None) -> None:
        if not tensor.is_contiguous() or tensor.layout != torch.strided:
            raise NotAProgram("it allocates a tensor that is not contiguous")
        self._numbers[_memory(tensor)] = len(self.program.buffers)
        self._kept.append(tensor)
        self.program.buffers.append(Buffer(tuple(tensor.shape), _name(tensor), fill))

    def number(self, tensor: Any) -> int:
        """Return the number of the buffer that a tensor starts with."""
        number = self._numbers.get(_memory(tensor))
        if number is None or tensor.storage_offset() or _name(tensor) != self.program.buffers[number].dtype:
            raise NotAProgram("it uses a part of a tensor, or its memory as another dtype")
        return number

    def whole(self, tensor: Any) -> int:
        """Return the number of the buffer that a contiguous tensor is all of."""
        if not tensor.is_contiguous() or tensor.numel() != self._kept[self.number(tensor)].numel():
            raise NotAProgram("it returns or copies a part of a tensor, or one that is not contiguous")
        return self.number(tensor)

    def launch(self, launcher: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a launch."""

        def buffer_of(value: Any) -> tuple[int, Any] | None:
            return (self.number(value), value.dtype) if isinstance(value, torch.Tensor) else None

        self.program.steps.append(launcher.as_data(grid, args, kwargs, buffer_of))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = {_memory(tensor) for tensor in tensors_in([*args, *kwargs.values()])}
        made = [tensor for tensor in tensors_in(out) if _memory(tensor) not in given]
        name = func.overloadpacket.__name__
        if func._schema.is_mutable:  # noqa: SLF001  (torch has no other name for it)
            raise NotAProgram(f"it calls {func}")
        if not made:
            return out  # a view, or a number
        if name in _EMPTY:
            self._add(out)
        elif name in _FILLED:
            self._add(out, _FILLED[name])
        elif name in _FULL:
            self._add(out, kwargs.get("fill_value", args[-1]))
        elif name == "clone":
            source = self.whole(args[0])
            self._add(out)
            self.program.steps.append(Copy(source, self.number(out)))
        else:
            raise NotAProgram(f"it calls {func}")
        return out


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (its identity; there is no address)


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
