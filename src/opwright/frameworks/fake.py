"""Fakes as a framework: calling an operator with `FakeArray` runs its fake rule.

So a fake may call operators, and the shapes of a whole function come from calling it with fakes.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from opwright import modes
from opwright.arrays import as_list
from opwright.dtypes import is_floating
from opwright.errors import ArgumentError, FakeError, layout
from opwright.fake_context import current_ctx
from opwright.fakes import FakeArray, fake_of
from opwright.faking import run_fake
from opwright.frameworks.base import Framework, Launching, run_elsewhere
from opwright.scalars import coercion
from opwright.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.overload import OpOverload


class FakeFramework(Framework):
    """Arrays without data, on any device."""

    name: ClassVar[str] = "fake"
    flavour: ClassVar[str] = "fake"
    lowered = MappingProxyType(
        {
            "fake": "a call with FakeArrays runs the fake rule",
            "autocast": "opwright.autocast changes the dtype of floating inputs",
            "torch_dispatch": "the rule runs instead while its opwright.DispatchMode is entered",
        }
    )
    unsupported = MappingProxyType(
        {
            "autograd": "a FakeArray has no data to differentiate; gradients have its shape and dtype",
            "jvp": "a FakeArray has no data to differentiate; tangents have its shape and dtype",
            "vmap": "a FakeArray has no data to batch: call the operator with the batch's shape",
            "functionalization": "a FakeArray has no data, so that mutating it changes nothing",
        }
    )

    def device_type(self, array: Any) -> str:
        """Return the type of the device that the fake stands for an array on."""
        return "cpu" if array is None else str(array.device).partition(":")[0]

    def specialise(self, record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
        """Return the callable that runs the fake rule."""
        coercions = [
            None if argument.has_tensors else coercion(record.qualname, argument)
            for argument in record.schema.arguments
        ]

        def run(*values: Any) -> Any:
            pairs = zip(record.schema.arguments, coercions, values, strict=True)
            return run_fake(
                record,
                [
                    _scalar(coerce, value)
                    if coerce is not None
                    else self._array(record, argument.name, as_list(value) if argument.is_list else value)
                    for argument, coerce, value in pairs
                ],
                ctx=current_ctx(),
                elsewhere=run_elsewhere,
            )

        def call(*values: Any) -> Any:
            if not modes.ACTIVE[0]:
                return run(*values)
            return modes.run_under(record, run, values, device_type_of=self.device_type, cast=self.cast)

        return call

    def launching(self) -> Launching:
        """Return what launches nothing: a fake of an operator may be a body that launches kernels."""
        return Launching(
            address="0",
            dtype="{}.dtype",
            device="-1",
            is_plain=lambda cls: False,
            current_device=lambda: -1,
            current_stream=lambda device: 0,
            launch=lambda launcher, grid, args, kwargs: None,
        )

    def _array(self, record: OpOverload, name: str, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._array(record, name, one) for one in value]
        if value is None or isinstance(value, FakeArray):
            return value
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return fake_of(value)
        raise ArgumentError(
            layout(
                f"{record.qualname}: argument {name} must be an array",
                expected="a FakeArray, or an array of any framework as a constant",
                got=type(value).__name__,
            )
        )

    def cast(self, array: Any, dtype: str) -> Any:
        """Return a floating fake as another dtype, any other as it is."""
        return fake_of(array).astype(dtype) if is_floating(array.dtype) else array

    def to_numpy(self, array: Any) -> Any:
        """Refuse: there is no data."""
        raise FakeError(layout(f"{array} has no data to convert to NumPy"))

    def from_numpy(self, array: Any) -> Any:
        """Return the metadata of a NumPy array."""
        return fake_of(array)

    def from_dlpack(self, array: Any) -> Any:
        """Return the metadata of an array."""
        return fake_of(array)


def _scalar(coerce: Callable[[Any], Any], value: Any) -> Any:
    """Return a coerced argument; symbolic sizes stay as they are."""
    if isinstance(value, Size):
        return value
    if isinstance(value, list | tuple) and any(isinstance(one, Size) for one in value):
        return list(value)  # run_fake makes the tuple that a parameter may be annotated as
    return coerce(value)


FRAMEWORK = FakeFramework()
