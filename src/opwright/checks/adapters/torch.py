"""The laws on PyTorch tensors: calls, FakeTensorMode, autograd and torch.func, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from opwright.checks.adapters.base import (
    Adapter,
    Called,
    Faked,
    Meta,
    Pullback,
    Unsupported,
    call_arguments,
    differentiable_wrapper,
    missing_rule,
    mutated,
    operator_of,
    outputs_of,
)
from opwright.errors import OpCheckError
from opwright.rules.autograd import new_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opwright.overload import OpOverload
    from opwright.schema import Argument

LAYOUTS = ("transposed", "sliced", "at an offset", "expanded")


class TorchAdapter(Adapter):
    """PyTorch: tensors over the samples' memory, with the same strides."""

    name: ClassVar[str] = "torch"
    layouts: ClassVar[tuple[str, ...]] = LAYOUTS
    imports: ClassVar[tuple[str, ...]] = ("import torch",)

    def array(self, array: Any) -> Any:
        """Return a tensor of the array's memory."""
        import numpy as np
        import torch

        from opwright.frameworks.torch.convert import from_numpy

        own = np.asarray(array)
        own.flags.writeable = True  # a copy of the checker's own; torch has no read-only tensors
        if own.dtype.kind in "biufc" and min(own.strides, default=0) >= 0 and own.dtype.isnative:
            return torch.from_numpy(own)
        return from_numpy(own)  # what torch cannot take over as it is

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
        if kind == "fake" and (
            record.kernel("Meta") is not None or record.kernel("CompositeImplicitAutograd")
        ):
            return None
        return missing_rule(record, kind)

    def fake(
        self, record: OpOverload, values: Sequence[Any], hints: Mapping[int, int] | None = None
    ) -> Faked:
        """Call the operator on FakeTensors; symbolic sizes are looked at on FakeArrays."""
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        seen: list[tuple[str, Any]] = []
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:

            def one(value: Any, label: str) -> Any:
                if isinstance(value, list | tuple):
                    return [one(each, f"{label}[{i}]") for i, each in enumerate(value)]
                if value is None:
                    return None
                found = mode.from_tensor(self.array(value.copy(order="K")), static_shapes=True)
                seen.append((f"argument {label}", found))
                return found

            pairs = zip(record.schema.arguments, values, strict=True)
            fakes = [one(value, a.name) if a.has_tensors else value for a, value in pairs]
            args, kwargs = call_arguments(record, fakes)
            outputs = outputs_of(record, operator_of(record)(*args, **kwargs))
            return Faked([_metas(out, f"output {i}", seen) for i, out in enumerate(outputs)])

    def vjp(self, record: OpOverload, values: Sequence[Any], wanted: Sequence[Any]) -> Pullback:
        """Call the operator on tensors that require gradients."""
        leaves: dict[tuple[int, int | None], Any] = {}
        passed = [
            _requiring(argument, index, value, flags, leaves)
            for index, (argument, value, flags) in enumerate(
                zip(record.schema.arguments, values, wanted, strict=True)
            )
        ]
        called = self.call(record, passed)
        outputs = [*called.outputs, *(called.new_values[a.name] for a in new_values(record.schema))]

        def pull(cotangents: Sequence[Any]) -> list[Any]:
            return _pulled(record, values, outputs, leaves, cotangents)

        return Pullback(outputs, pull)

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

        def function(*positional: Any) -> Any:
            out = operator_of(record)(*positional, **kwargs)
            return torch.zeros(()) if not record.schema.returns else out  # vmap wants a tensor

        for in_dims in reversed(levels):
            function = torch.vmap(function, tuple(in_dims[:count]), out_dims)
        out = function(*args)
        return Called(outputs_of(record, out), mutated(record, values))

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


def _metas(value: Any, label: str, seen: list[tuple[str, Any]]) -> Any:
    import torch

    if isinstance(value, list | tuple):
        return [_metas(one, f"{label}[{index}]", seen) for index, one in enumerate(value)]
    if not isinstance(value, torch.Tensor):
        return value
    same = tuple(what for what, other in seen if other is value)
    seen.append((label, value))
    known = [isinstance(size, int) for size in value.shape]
    shape = tuple(int(size) if fixed else None for size, fixed in zip(value.shape, known, strict=True))
    strides = (
        tuple(value.stride()) if all(known) and all(isinstance(s, int) for s in value.stride()) else None
    )
    return Meta(shape, str(value.dtype).removeprefix("torch."), same, strides)


def _requiring(
    argument: Argument, index: int, value: Any, flags: Any, leaves: dict[tuple[int, int | None], Any]
) -> Any:
    """Return the value of an argument with the tensors that are wanted requiring a gradient."""

    def one(tensor: Any, flag: bool, element: int | None) -> Any:
        if not flag or tensor is None:
            return tensor
        leaf = leaves[index, element] = tensor.detach().requires_grad_()
        return leaf.clone() if argument.is_write else leaf  # a leaf may not be mutated

    if isinstance(value, list | tuple) and argument.has_tensors:
        pairs = enumerate(zip(value, flags, strict=True))
        return [one(tensor, flag, element) for element, (tensor, flag) in pairs]
    return one(value, flags, None) if argument.has_tensors else value


def _pulled(
    record: OpOverload,
    values: Sequence[Any],
    outputs: Sequence[Any],
    leaves: Mapping[tuple[int, int | None], Any],
    cotangents: Sequence[Any],
) -> list[Any]:
    import torch

    outs, grads = [], []
    for output, cotangent in zip(outputs, cotangents, strict=True):
        many = isinstance(output, list | tuple)
        for out, grad in zip(output, cotangent, strict=True) if many else [(output, cotangent)]:
            if grad is not None and isinstance(out, torch.Tensor) and out.requires_grad:
                outs.append(out)
                grads.append(grad)
    result: list[Any] = [
        [None] * len(value) if argument.is_tensor_list and value is not None else None
        for argument, value in zip(record.schema.arguments, values, strict=True)
    ]
    if not outs:
        return result
    found = torch.autograd.grad(outs, list(leaves.values()), grads, retain_graph=True, allow_unused=True)
    for (index, element), grad in zip(leaves, found, strict=True):
        if element is None:
            result[index] = grad
        else:
            result[index][element] = grad
    return result


ADAPTER = TorchAdapter()
