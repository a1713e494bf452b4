"""JAX as the engine sees it: every overload is a primitive."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, final

import jax
import numpy as np

from opwright.dtypes import as_dtype
from opwright.entry import deciding
from opwright.frameworks.base import Framework, no_kernel
from opwright.frameworks.jax import eager, fake, invoke, lowering
from opwright.frameworks.jax.kernels import State, state_of
from opwright.frameworks.jax.primitive import default_device_type, primitive
from opwright.keys import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opwright.overload import OpOverload
    from opwright.rules.base import Rule


@final
class JAXFramework(Framework):
    """JAX arrays and tracers, on every device that JAX has."""

    name: ClassVar[str] = "jax"
    flavour: ClassVar[str] = "jax"
    immutable: ClassVar[bool] = True
    lowered: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "fake": "abstract evaluation of the operator's primitive",
            "autograd": "the transpose of a primitive that is linear in the tangents",
            "jvp": "the value of that linear primitive; derived from the backward where there is none",
            "vmap": "the batching rule of the operator's primitive; a loop where there is none",
            "autocast": "opwright.autocast casts the inputs while a call is traced or run",
            "torch_dispatch": "rules for an opwright.DispatchMode; JAX has no subclasses of arrays",
            "functionalization": "mutated arguments' new values are outputs; references hold them afterwards",
        }
    )

    def device_type(self, array: Any) -> str:
        """Return ``"cpu"``, ``"cuda"`` or ``"tpu"``; for a tracer that of the default device."""
        return invoke.device_type(array) if array is not None else default_device_type()

    def specialise(self, record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
        """Return the short way for concrete arrays, the general way for all else."""
        general = invoke.invoker(record, self.convert)
        first = deciding(record.schema, values)
        concrete = isinstance(first, jax.Array) and not isinstance(first, jax.core.Tracer)
        device_type = self.device_type(first if concrete else None)
        kernel = record.select_kernel(self.flavour, device_type)
        if kernel is None:
            fallback = record.fallbacks.get(key_of(device_type) or "")
            if fallback is not None and not fallback.falls_through:
                return _fallback(record, fallback)
            if concrete:
                raise no_kernel(record, self, device_type)
            return general
        return eager.direct(record, kernel, device_type, self.convert, general) if concrete else general

    def attach(self, record: OpOverload) -> None:
        """Keep nothing yet: a primitive is made at the first call."""
        record.lowered[self.name] = State()

    def changed(self, event: str, record: OpOverload, item: Any) -> None:
        """Forget what was kept of an overload, and what JAX keeps of programs that were traced with it.

        JAX has no way to forget one program, so it forgets all: the next call of each traces anew.
        """
        if getattr(item, "kind", "") == "samples":
            return
        if state_of(record).traced:
            jax.clear_caches()
        if event != "undefine":
            record.lowered[self.name] = State()

    def to_numpy(self, array: Any) -> Any:
        """Return a read-only NumPy view of an array on the CPU, a copy of any other."""
        return np.asarray(array)

    def from_numpy(self, array: Any) -> Any:
        """Return an array with a copy of NumPy's: JAX's arrays never change, NumPy's may."""
        return jax.numpy.array(array)

    def from_host(self, array: Any, like: Any) -> Any:
        """Return an array with a copy of NumPy's, on the device of another array."""
        return jax.device_put(np.array(array), next(iter(like.devices())))

    def from_dlpack(self, array: Any) -> Any:
        """Return an array of the memory of another library's."""
        return jax.dlpack.from_dlpack(array)

    def native(self, record: OpOverload) -> Any:
        """Return the primitive of an overload."""
        return primitive(record.qualname.replace("::", "."))

    def routes(self, record: OpOverload) -> dict[str, str]:
        """Return how a kernel is reached from compiled programs, and which one it is, by device type."""
        return lowering.routes(record)

    def run_fake(self, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a fake that is written with JAX, on tracers."""
        return fake.run_traced(rule, args, kwargs)

    def cast(self, array: Any, dtype: str) -> Any:
        """Return a floating array as another dtype, any other as it is."""
        return invoke.cast(array, dtype)

    def convert(self, kind: str, value: Any) -> Any:
        """Return a ``numpy.dtype``, which JAX uses for its own, or a ``jax.Device``."""
        if kind == "ScalarType":
            return np.dtype(value) if isinstance(value, type) and hasattr(value, "dtype") else as_dtype(value)
        if isinstance(value, jax.Device):
            return value
        name, _, index = str(value).partition(":")
        return jax.devices({"cuda": "gpu"}.get(name, name))[int(index or 0)]


def _fallback(record: OpOverload, kernel: Any) -> Callable[..., Any]:
    """Return the callable that runs a fallback: it gets the operator, then the arguments."""
    count = len(record.schema.positional)
    keyword_only = [argument.name for argument in record.schema.keyword_only]
    leading = (None,) if kernel.with_keyset else ()

    def call(*values: Any) -> Any:
        kwargs = dict(zip(keyword_only, values[count:], strict=True))
        return kernel.fn(*leading, record.operator, *values[:count], **kwargs)

    return call


FRAMEWORK = JAXFramework()
