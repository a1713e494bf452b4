"""``get_kernel``: the kernel that is in force at a dispatch key, to be called from what will cover it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.entry import first_array
from opwright.errors import RegistrationError, StaleError, layout
from opwright.frameworks.base import load
from opwright.frameworks.bridges import bridge
from opwright.keys import DEFAULT, IMPLICIT, device_of, resolve_key
from opwright.schema import signature_of
from opwright.targets import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        names = [argument.name for argument in self._record.schema.arguments]
        values = self._record.schema.with_tuples([bound.arguments[name] for name in names])
        bound.arguments.update(zip(names, values, strict=True))
        leading = (dispatch_keys,) if self._kernel.with_keyset else ()
        return self._function(bound.arguments)(*leading, *bound.args, **bound.kwargs)

    def _function(self, values: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the kernel's function, arrays of another flavour than its own taken over and back."""
        arrays = [argument.name for argument in self._record.schema.arguments if argument.has_tensors]
        first = first_array(values[name] for name in arrays)
        info = catalogue.framework_of_class(first.__class__)
        return self._kernel.fn if info is None else bridge(self._kernel, load(info.name), self._record)


def _computes(key: str) -> bool:
    return key in (DEFAULT, IMPLICIT) or device_of(key) is not None


def _keys(key: str) -> tuple[str, ...]:
    """Return the keys whose kernels count for a key, the nearest first: one for every device for each."""
    return (key, DEFAULT, IMPLICIT) if _computes(key) and key != IMPLICIT else (key,)


def get_kernel(op: Any, dispatch_key: Any) -> Any:
    """Return the kernel in force at a dispatch key, with a method ``call_boxed(keyset, *args, **kwargs)``.

    Parameters
    ----------
    op
        A qualified name, an operator, or one that a framework's dispatcher holds.
    dispatch_key
        A dispatch key such as ``"CPU"``, or a device type, by name or as torch's own object.

    Raises
    ------
    RuntimeError
        If the operator has no kernel for the key; the message names both.
    """
    record = require(op)
    key = resolve_key(dispatch_key)
    if record.owner:
        return load(record.owner).get_kernel(record, key)
    in_force = list(record.enabled_kernels())
    kernel = next((kernel for one in _keys(key) for kernel in in_force if kernel.key == one), None)
    if kernel is None and "torch" in record.lowered and not _computes(key):
        return load("torch").get_kernel(record, key)
    if kernel is None:
        raise RegistrationError(
            layout(
                f"{record.qualname} has no kernel for {key}",
                expected=f"one of those it has: {record.kernels_text()}",
                registered=record.source,
            )
        )
    return BoxedKernel(record, kernel)
