"""Functions that take any array which exports DLPack: those of compiled extensions, mostly.

They get the caller's own arrays. What they return becomes an array of the caller's framework, of the same
memory. This is a flavour without arrays of its own: no call ever has its arrays here.

A read-only array of NumPy says so in what it exports; a reader of DLPack before version 1.0, which cannot
hear it, gets a copy.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.errors import UnsupportedError, layout
from opwright.frameworks.base import RULE_KINDS, Framework

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.overload import OpOverload

_NONE = "kernels alone have this flavour: rules run on the arrays of a framework"


class DLPackFlavour(Framework):
    """The flavour ``dlpack``."""

    name: ClassVar[str] = "dlpack"
    flavour: ClassVar[str] = "dlpack"
    unsupported = MappingProxyType(dict.fromkeys(RULE_KINDS, _NONE))

    def device_type(self, array: Any) -> str:
        raise _no_arrays()

    def specialise(self, record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
        raise _no_arrays()

    def to_numpy(self, array: Any) -> Any:
        import numpy as np

        return array if isinstance(array, np.ndarray) else np.from_dlpack(array)

    def from_numpy(self, array: Any) -> Any:
        return array if array.flags.writeable else array.view(_exporting())

    def from_dlpack(self, array: Any) -> Any:
        return array


@cache
def _exporting() -> type:
    """Return the class of read-only arrays that every reader of DLPack can take."""
    import numpy as np

    class Exporting(np.ndarray[Any, Any]):
        def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **asked: Any) -> Any:
            if max_version is None or max_version[0] < 1:
                plain = np.asarray(self) if self.flags.writeable else np.array(self)
                return plain.__dlpack__(max_version=max_version, **asked)
            return super().__dlpack__(max_version=max_version, **asked)

    return Exporting


def _no_arrays() -> UnsupportedError:
    return UnsupportedError(layout("dlpack has no arrays of its own", fix="pass arrays of a framework"))


FRAMEWORK = DLPackFlavour()
