"""``get_kernel``: the kernel that is in force at a dispatch key, to be called from what will cover it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import registry
from opwright.errors import RegistrationError, StaleError, layout
from opwright.frameworks.base import load
from opwright.keys import resolve_key
from opwright.schema import signature_of
from opwright.targets import require

if TYPE_CHECKING:
    from opwright.overload import Kernel, OpOverload


class BoxedKernel:
    """A kernel taken out of an operator: it keeps working when another is registered over it.

    Calling it after its own registration is gone raises ``StaleError``.
    """

    def __init__(self, record: OpOverload, kernel: Kernel) -> None:
        self._record = record
        self._kernel = kernel

    def __repr__(self) -> str:
        return f"<kernel of {self._record.qualname} for {self._kernel.key} ({self._kernel.source})>"

    def call_boxed(self, dispatch_keys: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel with the operator's arguments, defaults filled in.

        Parameters
        ----------
        dispatch_keys
            Torch's dispatch key set, handed on to a kernel that asked for it; else it may be None.

        Raises
        ------
        StaleError
            If the registration that the kernel came from was undone.
        """
        if self._kernel not in self._record.kernels or self._record.stale is not None:
            raise StaleError(
                layout(
                    f"the kernel of {self._record.qualname} for {self._kernel.key} was invalidated: "
                    "its registration is gone",
                    registered=self._kernel.source,
                    fix="keep the handle or Library that registered it alive",
                )
            )
        bound = signature_of(self._record.schema).bind(*args, **kwargs)
        bound.apply_defaults()
        leading = (dispatch_keys,) if self._kernel.with_keyset else ()
        return self._kernel.fn(*leading, *bound.args, **bound.kwargs)


def get_kernel(op: Any, dispatch_key: str) -> Any:
    """Return the kernel in force at a dispatch key, with a method ``call_boxed(keyset, *args, **kwargs)``.

    Parameters
    ----------
    op
        A qualified name, an operator, or one that a framework's dispatcher holds.
    dispatch_key
        A dispatch key such as ``"CPU"``, or a device type.

    Raises
    ------
    RuntimeError
        If the operator has no kernel for the key; the message names both.
    """
    record = require(op)
    key = resolve_key(dispatch_key)
    if record.owner:
        return load(record.owner).get_kernel(record, key)
    with registry.lock:
        kernel = record.kernel(key)
    if kernel is None:
        raise RegistrationError(
            layout(
                f"{record.qualname} has no kernel for {key}",
                expected=f"one of those it has: {record.kernels_text()}",
                registered=record.source,
            )
        )
    return BoxedKernel(record, kernel)
