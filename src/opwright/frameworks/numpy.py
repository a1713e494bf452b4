"""NumPy: arrays that are computed on directly.

* ``numpy.ndarray`` itself needs no test; NumPy scalars count as 0-d arrays and ``memmap`` as an array.
  Other subclasses (``matrix``, masked arrays, arrays with units) would lose what they add: they raise.
* An ``array_api`` kernel takes no object or structured dtype.
* Two arrays share memory where the arrays that own their buffers do, whatever their strides.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from opwright.entry import first_array, key_arguments
from opwright.frameworks.base import Framework
from opwright.frameworks.direct import Direct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.overload import OpOverload


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
    """Return whether two arrays use one buffer, whatever part of it each sees."""
    if isinstance(a, np.generic) or isinstance(b, np.generic):
        return False
    first, second = _owner(a), _owner(b)
    if first is second:
        return True
    return bool(np.may_share_memory(a, b))


def _portable(array: Any) -> str | None:
    if array.dtype.hasobject or array.dtype.names is not None:
        return f"has dtype {array.dtype}, which an array_api kernel cannot take"
    return None


def _under_modes(_record: OpOverload, call: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    return call(*values)


class NumPyFramework(Framework):
    """NumPy arrays, on the CPU."""

    name: ClassVar[str] = "numpy"
    flavour: ClassVar[str] = "numpy"
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
            writable=lambda array: bool(array.flags.writeable),
            portable=_portable,
            under_modes=_under_modes,
        )

    def device_type(self, array: Any) -> str:
        """Return ``"cpu"``."""
        return "cpu"

    def specialise(self, record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
        """Return the generated callable for the class of the first array."""
        chosen = {argument.name for argument in key_arguments(record.schema)}
        pairs = zip(record.schema.arguments, values, strict=True)
        first = first_array(value for argument, value in pairs if argument.name in chosen)
        return self._direct.specialise(record, values, first.__class__)

    def to_numpy(self, array: Any) -> Any:
        """Return the array itself."""
        return array

    def from_numpy(self, array: Any) -> Any:
        """Return the array itself."""
        return array

    def from_dlpack(self, array: Any) -> Any:
        """Return an array of the memory of one that is on the CPU."""
        return np.from_dlpack(array)

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
