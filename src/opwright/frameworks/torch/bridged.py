"""NumPy kernels on the tensors of a guard: written out for each overload, nothing asked that the guard knows.

* The guard has shown that the tensors are dense, on the CPU, neither conjugated nor negated, of dtypes that
  NumPy has, and which of them require grad.
* An array that owns its memory, C-contiguous and writable, becomes a tensor at once. Any other output goes
  the way that it goes below torch's dispatcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from opwright.entry import Names, compile_function, flat_names, kernel_call
from opwright.frameworks.torch import numpy_kernel
from opwright.outputs import is_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from opwright.frameworks.torch.lowered import Lowered
    from opwright.overload import Kernel
    from opwright.schema import Argument


def make(state: Lowered, kernel: Kernel, tensors: Sequence[Tensor]) -> Callable[..., Any] | None:
    """Return the function that runs a NumPy kernel on tensors like these, or None where it is not so direct.

    It is called as an author's kernel is, every value coerced.
    """
    try:
        for dtype in {tensor.dtype for tensor in tensors}:
            torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return None
    returns = state.record.schema.returns
    if any(str(entry.type) != "Tensor" for entry in returns):
        return None
    return _Writer(state, kernel, detach=any(tensor.requires_grad for tensor in tensors)).function()


class _Writer:
    """Writes the function."""

    def __init__(self, state: Lowered, kernel: Kernel, *, detach: bool) -> None:
        self.state = state
        self.kernel = kernel
        self.schema = state.record.schema
        self.names = Names(self.schema)
        self.prefix = self.names.prefix
        self.numpy = ".detach().numpy()" if detach else ".numpy()"
        self.flat = flat_names(self.schema)

    def function(self) -> Callable[..., Any]:
        """Return the function."""
        arrays = {a.name: self._array(a) for a in self.schema.arguments}
        lines = [f"{self._new(name)} = {array}" for name, array in arrays.items() if array is not None]
        rename = {name: self._new(name) for name, array in arrays.items() if array is not None}
        kernel = self.names.add("kernel", self.kernel.fn)
        out = f"{self.prefix}out"
        lines = [*self._refusals(), *lines, f"{out} = {kernel}({kernel_call(self.schema, rename)})"]
        values = ", ".join(rename.get(argument.name, argument.name) for argument in self.schema.arguments)
        take = self.names.add("take", numpy_kernel.output_taker(self.state, self.kernel))
        lines += self._outputs(out, f"return {take}(({self.flat},), [{values}], {out})")
        positional = ", ".join(argument.name for argument in self.schema.positional)
        named = ", ".join(argument.name for argument in self.schema.keyword_only)
        parameters = ", ".join(part for part in (positional, f"*, {named}" if named else "") if part)
        return compile_function(
            f"{self.schema.qualname}, NumPy kernel", "call", parameters, lines, self.names
        )

    def _new(self, name: str) -> str:
        return f"{self.prefix}array_{name}"

    def _array(self, argument: Argument) -> str | None:
        """Return the expression of what the kernel gets for an argument, or None for the argument itself."""
        name = argument.name
        if not argument.has_tensors:
            convert = numpy_kernel.input_converter(self.state, argument)
            return None if convert is None else f"{self.names.add('convert_' + name, convert)}({name})"
        if argument.is_tensor_list:
            each = f"{self.prefix}each"
            array = f"[{each}{self.numpy} for {each} in {name}]"
        else:
            array = f"{name}{self.numpy}"
        return f"None if {name} is None else {array}" if argument.is_optional else array

    def _refusals(self) -> list[str]:
        """Return what hands a mutated argument whose elements may share memory to where it is refused."""
        run = numpy_kernel.make_runner(self.state, self.kernel)
        lines = []
        for argument in self.schema.mutated:
            name, again = argument.name, f"return {self.names.add('run', run)}(({self.flat},))"
            if argument.is_list:
                each = f"{self.prefix}each"
                lines += [f"for {each} in {name} or ():", f"    if not {each}.is_contiguous(): {again}"]
            else:
                optional = f"{name} is not None and " if argument.is_optional else ""
                lines.append(f"if {optional}not {name}.is_contiguous(): {again}")
        return lines

    def _outputs(self, out: str, taken: str) -> list[str]:
        """Return what makes tensors of plainly right outputs, and leaves all others to ``taken``."""
        returns = self.schema.returns
        array, tensor = self.names.add("ndarray", np.ndarray), self.names.add("from_numpy", torch.from_numpy)
        if not returns:
            return [taken]
        if is_one(self.state.record):
            # A 0-d result is often a NumPy scalar.
            scalar, asarray = self.names.add("generic", np.generic), self.names.add("asarray", np.asarray)
            lines = [
                f"if {self.names.add('isinstance', isinstance)}({out}, {scalar}): {out} = {asarray}({out})",
            ]
            items, result = [out], f"{tensor}({out})"
        else:
            lines = []
            items = [f"{out}[{index}]" for index in range(len(returns))]
            result = f"({', '.join(f'{tensor}({item})' for item in items)},)"
        tests = [f"{i}.__class__ is {array} and {i}.base is None and {i}.flags.carray" for i in items]
        tests += [f"{a} is not {b}" for n, a in enumerate(items) for b in items[:n]]
        if not is_one(self.state.record):
            length = f"{self.names.add('len', len)}({out}) == {len(returns)}"
            tests.insert(0, f"{out}.__class__ is {self.names.add('tuple', tuple)} and {length}")
        errors = self.names.add("errors", (TypeError, ValueError))
        return [
            *lines,
            f"if {' and '.join(tests)}:",
            f"    try: return {result}",
            f"    except {errors}: {taken}",
            taken,
        ]
