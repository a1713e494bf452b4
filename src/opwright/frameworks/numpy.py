"""NumPy: arrays that are computed on directly.

* ``numpy.ndarray`` itself needs no test; NumPy scalars count as 0-d arrays and ``memmap`` as an array.
  Other subclasses (``matrix``, masked arrays, arrays with units) would lose what they add: they raise.
* A kernel of another flavour takes no object or structured dtype.
* Two arrays share memory where the arrays that own their buffers do, whatever their strides.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from opwright import modes
from opwright.dtypes import as_dtype, is_floating
from opwright.entry import table_key
from opwright.fakes import FakeArray, fake_of
from opwright.frameworks.base import READ_ONLY, Framework
from opwright.frameworks.bridges import bridge
from opwright.frameworks.direct import Direct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opwright.overload import OpOverload
    from opwright.rules.base import Rule


def _accept(value: Any) -> Any:
    if value.__class__ is np.ndarray:
        return value
    if isinstance(value, np.generic | np.memmap):
        return np.asarray(value)
    return None


def _accept_output(value: Any) -> Any:
    """Accept NumPy scalars as they are: kernels on 0-d arrays return them."""
    if value.__class__ is np.ndarray or isinstance(value, np.generic):
        return value
    return np.asarray(value) if isinstance(value, np.memmap) else None


def _owner(array: Any) -> Any:
    """Return the array, or other object, at the end of the chain of bases."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def shares_memory(a: Any, b: Any) -> bool:
    """Return whether two values are arrays that use one buffer, whatever part of it each sees."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return False
    return _owner(a) is _owner(b) or bool(np.may_share_memory(a, b))


def _advice(name: str, array: Any) -> str | None:
    if isinstance(array, np.ma.MaskedArray):
        return f"fill it first: {name}.filled(value)"
    return f"take its plain array first: numpy.asarray({name})"


def _under_modes(record: OpOverload, call: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    return modes.run_under(
        record,
        call,
        values,
        device_type_of=FRAMEWORK.device_type,
        cast=FRAMEWORK.cast,
        adapt=lambda rule: bridge(rule, FRAMEWORK),
    )


def _hollow(value: Any) -> Any:
    """Return an array of a fake's shape that takes the memory of one element."""
    if isinstance(value, list | tuple):
        return type(value)(map(_hollow, value))
    if not isinstance(value, FakeArray):
        return value
    return np.broadcast_to(np.zeros((), value.dtype), tuple(map(int, value.shape)))


def _metadata(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_metadata, value))
    return fake_of(value) if isinstance(value, np.ndarray | np.generic) else value


class NumPyFramework(Framework):
    """NumPy arrays, on the CPU."""

    name: ClassVar[str] = "numpy"
    flavour: ClassVar[str] = "numpy"
    lowered = MappingProxyType(
        {
            "fake": "runs on FakeArray, for opcheck and for calls with fakes",
            "autograd": "opwright.vjp",
            "jvp": "opwright.jvp; derived from the backward where there is no jvp rule",
            "vmap": "opwright.vmap; a loop where there is no vmap rule",
            "autocast": "opwright.autocast",
            "torch_dispatch": "opwright.DispatchMode; a rule for a subclass of ndarray runs on its arrays",
        }
    )
    unsupported = MappingProxyType(
        {
            "functionalization": "NumPy traces nothing: a mutated argument is mutated in place",
        }
    )

    def __init__(self) -> None:
        self._direct = Direct(
            self,
            np.ndarray,
            accept=_accept,
            accept_output=_accept_output,
            shares_memory=shares_memory,
            writable="{x}.flags.writeable",
            portable="{x}.dtype.num != 17 and {x}.dtype.num != 20",  # object, void
            lendable="min({x}.strides, default=0) >= 0 and {x}.dtype.isnative",
            advice=_advice,
            under_modes=_under_modes,
        )

    def device_type(self, array: Any) -> str:
        """Return ``"cpu"``."""
        return "cpu"

    def specialise(self, record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
        """Return the generated callable for the class of the first array."""
        call = self._direct.specialise(record, values, table_key(record.schema, values))
        classes = [rule.slot for rule in record.rules_of("torch_dispatch")]
        if any(isinstance(cls, type) and issubclass(cls, np.ndarray) for cls in classes):
            return lambda *values: modes.run_for_subclass(record, call, values)
        return call

    def accepts(self, array: Any) -> bool:
        """Return whether it is a plain array, a scalar or a memmap."""
        return _accept(array) is not None

    def cast(self, array: Any, dtype: str) -> Any:
        """Return a floating array as another dtype, any other as it is."""
        return array.astype(as_dtype(dtype), copy=False) if is_floating(array.dtype) else array

    def run_fake(self, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a fake that is written with NumPy on arrays that take no memory."""
        hollow = {name: _hollow(one) for name, one in kwargs.items()}
        return _metadata(rule.fn(*map(_hollow, args), **hollow))

    def to_numpy(self, array: Any) -> Any:
        """Return the array itself."""
        return array

    def from_numpy(self, array: Any) -> Any:
        """Return the array itself."""
        return array

    def from_dlpack(self, array: Any) -> Any:
        """Return an array of the memory of one that is on the CPU."""
        return np.from_dlpack(array)

    def not_lent(self, array: Any) -> str | None:
        """Return whether it is read-only, or laid out as other libraries cannot have it."""
        if not array.flags.writeable:
            return READ_ONLY
        lendable = self._direct.is_lendable(array)
        return None if lendable else "an array with a negative stride, or of foreign byte order"

    def convert(self, kind: str, value: Any) -> Any:
        """Return a ``numpy.dtype``, or ``"cpu"``."""
        if kind == "ScalarType":
            return (
                np.dtype(str(value).removeprefix("torch."))
                if not isinstance(value, type | np.dtype)
                else np.dtype(value)
            )
        name = str(getattr(value, "type", value))
        if name.partition(":")[0] != "cpu":
            raise ValueError(f"NumPy arrays are on the cpu, not on {name}")
        return "cpu"


FRAMEWORK = NumPyFramework()
