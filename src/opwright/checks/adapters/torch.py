"""The laws on PyTorch tensors: calls, FakeTensorMode, autograd and torch.func, on the CPU."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.checks.adapters import torch_autograd, torch_program
from opwright.checks.adapters.base import Adapter, call_arguments, mutated, operator_of, outputs_of
from opwright.checks.adapters.results import Called, Faked, Pullback, Unsupported
from opwright.checks.adapters.wrapped import differentiable_wrapper, holds_arrays
from opwright.errors import OpCheckError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opwright.checks.adapters.programs import Compiler
    from opwright.overload import OpOverload

LAYOUTS = ("transposed", "sliced", "at an offset", "expanded")


class TorchAdapter(Adapter):
    """PyTorch: tensors with the strides and the offset of the samples' arrays, which can be resized."""

    name: ClassVar[str] = "torch"
    layouts: ClassVar[tuple[str, ...]] = LAYOUTS
    own_autocast: ClassVar[bool] = True
    imports: ClassVar[tuple[str, ...]] = ("import torch",)

    def array(self, array: Any) -> Any:
        """Return a tensor of the array's values, with its layout, that can be resized."""
        return _laid_out(array, shared=False)

    def over(self, array: Any) -> Any:
        """Return a tensor of the array's memory."""
        return _laid_out(array, shared=True)

    def numpy(self, array: Any) -> Any:
        """Return a NumPy array of the tensor's memory."""
        from opwright.frameworks.torch.convert import to_numpy

        return to_numpy(array)

    def is_array(self, value: Any) -> bool:
        """Return whether it is a tensor."""
        import torch

        return isinstance(value, torch.Tensor)

    def shares_memory(self, a: Any, b: Any) -> bool:
        """Return whether two tensors have one storage; those without memory have none."""
        first, second = (one.untyped_storage().data_ptr() for one in (a, b))
        return bool(first == second and first != 0)

    def metadata(self, array: Any) -> tuple[tuple[str, Any], ...]:
        """Return shape, strides, dtype, address and whether a gradient is required."""
        return (
            ("shape", tuple(array.shape)),
            ("strides", tuple(array.stride())),
            ("dtype", str(array.dtype)),
            ("address", array.data_ptr()),
            ("requires_grad flag", bool(array.requires_grad)),
        )

    def call(self, record: OpOverload, values: Sequence[Any]) -> Called:
        """Call the operator; arguments are mutated in place."""
        args, kwargs = call_arguments(record, values)
        return Called(outputs_of(record, operator_of(record)(*args, **kwargs)), mutated(record, values))

    def supports(self, record: OpOverload, kind: str) -> Unsupported | None:
        """Return why a rule that is missing leaves nothing to look at."""
        if kind == "jvp" and record.rule("autograd") is not None:
            return None
        if kind in ("fake", "compile") and (
            record.kernel("Meta") is not None or record.kernel("CompositeImplicitAutograd") is not None
        ):
            return None
        return super().supports(record, kind)

    def fake(
        self, record: OpOverload, values: Sequence[Any], hints: Mapping[int, int] | None = None
    ) -> Faked:
        """Call the operator on FakeTensors."""
        from opwright.checks.adapters.torch_fake import fake

        return fake(record, values, hints, self.array)

    def vjp(self, record: OpOverload, values: Sequence[Any], wanted: Sequence[Any]) -> Pullback:
        """Call the operator on tensors that require gradients."""
        return torch_autograd.pullback(record, values, wanted, lambda passed: self.call(record, passed))

    def second(
        self,
        record: OpOverload,
        values: Sequence[Any],
        wanted: Sequence[Any],
        cotangents: Sequence[Any],
        directions: Sequence[Any],
    ) -> tuple[list[Any], list[Any]] | Unsupported:
        """Differentiate gradients that were made with ``create_graph=True``."""
        graph = torch_autograd.Graph(record, values, wanted, lambda passed: self.call(record, passed))
        return graph.second(cotangents, directions)

    def pulled_after(
        self,
        record: OpOverload,
        values: Sequence[Any],
        wanted: Sequence[Any],
        cotangents: Sequence[Any],
        place: tuple[int, int | None],
    ) -> list[Any] | Unsupported:
        """Change an argument in place between the call and the backward."""
        graph = torch_autograd.Graph(record, values, wanted, lambda passed: self.call(record, passed))
        graph.change(place)
        return graph.pull(cotangents)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Keep torch's loggers from writing what they think of an author's errors."""
        known = dict(logging.root.manager.loggerDict)
        loggers = [one for name, one in known.items() if _is_torchs(name) and isinstance(one, logging.Logger)]
        handlers = {handler for logger in loggers for handler in logger.handlers}
        for handler in handlers:
            handler.addFilter(_drop)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(_drop)

    def autocast(self, device_type: str, dtype: str) -> AbstractContextManager[Any]:
        """Return ``torch.autocast``."""
        import torch

        found: AbstractContextManager[Any] = torch.autocast(device_type, dtype=getattr(torch, dtype))
        return found

    def autocast_lines(self, device_type: str, dtype: str) -> tuple[str, ...]:
        """Return a call under ``torch.autocast``."""
        with_ = f"with torch.autocast({device_type!r}, dtype=torch.{dtype}):"
        return ("print({call})", with_, "    print({call})")

    def compilers(self, *, thorough: bool) -> list[Compiler] | Unsupported:
        """Return ``torch.compile`` with aot_eager, and with inductor where everything is looked at."""
        return torch_program.compilers(self, thorough=thorough)

    def exported(self, record: OpOverload, values: Sequence[Any]) -> Called | Unsupported:
        """Return what ``torch.export`` makes, saves and loads."""
        return torch_program.exported(record, values)

    def functionalised(
        self, record: OpOverload, values: Sequence[Any]
    ) -> list[tuple[str, Any, Any]] | Unsupported:
        """Run views of one tensor under ``torch.compile`` with aot_eager, whose programs have no mutation."""
        return torch_program.functionalised(record, values)

    def device_of(self, array: Any) -> str:
        """Return the device as torch writes it."""
        return str(array.device)

    def jvp(
        self, record: OpOverload, values: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Call ``torch.func.jvp``."""
        import torch

        function, primals, directions, rebuild = differentiable_wrapper(self, record, values, tangents)
        outputs, found = torch.func.jvp(function, tuple(primals), tuple(directions))
        return rebuild(outputs), rebuild(found)

    def vmap(
        self, record: OpOverload, values: Sequence[Any], levels: Sequence[Sequence[Any]], out_dims: int = 0
    ) -> Called:
        """Call ``torch.vmap``, nested for several levels."""
        import torch

        count = len(record.schema.positional)
        args, kwargs = call_arguments(record, values)

        arrays = [holds_arrays(entry) for entry in record.schema.returns]
        outputs: list[Any] = []

        def function(*positional: Any) -> Any:
            outputs[:] = outputs_of(record, operator_of(record)(*positional, **kwargs))
            batched = [out for out, one in zip(outputs, arrays, strict=True) if one]
            return batched or torch.zeros(())  # vmap takes tensors alone, and wants one

        for in_dims in reversed(levels):
            function = torch.vmap(function, tuple(in_dims[:count]), out_dims)
        batched = function(*args)
        found = iter(batched if any(arrays) else ())
        merged = [next(found) if one else out for out, one in zip(outputs, arrays, strict=True)]
        return Called(merged, mutated(record, values))

    def gradient_lines(self, sample: Any) -> tuple[str, ...]:
        """Return a call and a backward of ones."""
        names = [leaf for leaf in sample.leaves() if sample.array(leaf).dtype.kind in "fc"]
        texts = [sample.schema.arguments[leaf.argument].name for leaf in names if leaf.element is None]
        lines = [f"{name}.requires_grad_()" for name in texts]
        outs = "out" if len(sample.schema.returns) == 1 else "[one for one in out if one.requires_grad]"
        if not sample.schema.returns or not texts:
            return ("print({call})",)
        ones = f"torch.ones_like({outs})" if outs == "out" else f"[torch.ones_like(one) for one in {outs}]"
        grads = f"torch.autograd.grad({outs}, [{', '.join(texts)}], {ones}, allow_unused=True)"
        return (*lines, "out = {call}", f"print({grads})")

    def batch_lines(self, in_dims: Sequence[str], out_dims: int) -> tuple[str, ...]:
        """Return a call of ``torch.vmap``."""
        batched = "op"
        for dims in reversed(in_dims):
            batched = f"torch.vmap({batched}, {dims}{f', {out_dims}' if out_dims else ''})"
        return (f"batched = {batched}", "print(batched({args}))")

    def code(self, name: str) -> str:
        """Return a tensor of a NumPy array."""
        return f"torch.from_numpy({name})"

    def array_code(self, name: str, array: Any) -> str:
        """Return a tensor of a NumPy array; one that begins inside a buffer does so as a tensor too."""
        if array.dtype.name == "bfloat16":
            return f"torch.from_numpy({name}).bfloat16()"
        offset = _offset(array)
        if not offset or array.base.ndim != 1:
            return self.code(name)
        steps = tuple(step // array.itemsize for step in array.strides)
        return f"torch.from_numpy({name}.base).as_strided({tuple(array.shape)}, {steps}, {offset})"

    def layout_code(self, name: str) -> str:
        """Return the shape and the strides of a tensor."""
        return f"{name}.shape, {name}.stride()"

    def copy_code(self, name: str) -> str:
        """Return a contiguous copy of a tensor."""
        return f"{name}.clone(memory_format=torch.contiguous_format)"

    def error_class(self) -> type[OpCheckError]:
        """Return a class that is torch's own error too, where that is loaded and so can be caught."""
        import sys

        theirs = getattr(sys.modules.get("torch.testing._internal.optests"), "OpCheckError", None)
        if theirs is None:
            return OpCheckError
        return type("OpCheckError", (OpCheckError, theirs), {"__module__": "opwright.errors"})


def _laid_out(array: Any, *, shared: bool) -> Any:
    """Return a tensor with an array's strides, and its offset in a buffer; in its memory, or in a copy."""
    import numpy as np
    import torch

    from opwright.frameworks.torch.convert import from_numpy

    own = np.asarray(array)
    own.flags.writeable = True  # a copy of the checker's own; torch has no read-only tensors
    if own.dtype.kind not in "biufc" or min(own.strides, default=0) < 0 or not own.dtype.isnative:
        return from_numpy(own)  # what torch cannot take over as it is
    if own.flags.c_contiguous and not _offset(own):
        return torch.from_numpy(own) if shared else torch.from_numpy(own).clone()
    if not _in_buffer(own):
        return torch.from_numpy(own)
    buffer = np.asarray(own.base)
    whole = torch.from_numpy(buffer.reshape(-1).view(own.dtype))
    storage = (whole if shared else whole.clone()).untyped_storage()
    steps = [step // own.itemsize for step in own.strides]
    return torch.empty(0, dtype=whole.dtype).set_(storage, _offset(own), own.shape, steps)


def _in_buffer(own: Any) -> bool:
    """Return whether an array is a view of a contiguous buffer of its elements."""
    import numpy as np

    base = own.base
    if not isinstance(base, np.ndarray) or not base.flags.c_contiguous or not own.size:
        return False
    start = own.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return start >= 0 and start % own.itemsize == 0 and base.nbytes % own.itemsize == 0


def _offset(own: Any) -> int:
    """Return how many elements into a buffer an array begins; 0 where it is in none."""
    if not _in_buffer(own):
        return 0
    start = own.__array_interface__["data"][0] - own.base.__array_interface__["data"][0]
    return int(start // own.itemsize)


def _is_torchs(name: str) -> bool:
    return name == "torch" or name.startswith("torch.")


def _drop(_record: logging.LogRecord) -> bool:
    return False


ADAPTER = TorchAdapter()
