"""The autocast rule: the dtype that floating inputs are cast to while autocast is on for a device type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from opwright import catalogue
from opwright.errors import RegistrationTypeError, RegistrationValueError, layout
from opwright.keys import AUTOCAST_DEVICES
from opwright.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Hashable

    from opwright.schema import FunctionSchema

FLOATING = ("float16", "bfloat16", "float32", "float64")
"""The dtypes that inputs can be cast to."""


@dataclass(frozen=True, slots=True, eq=False)
class AutocastRule(Rule):
    """Cast floating inputs to ``dtype`` (a standard name) under autocast for ``device_type``."""

    kind: ClassVar[str] = "autocast"

    device_type: str = ""
    dtype: str = ""

    @property
    def slot(self) -> Hashable:
        """The device type: there is one rule for each."""
        return self.device_type


def dtype_name(dtype: Any) -> str:
    """Return the standard name of a dtype object of any framework, such as ``"float16"``."""
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).removeprefix("torch.")


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Stand for the function of a rule that is data alone."""


def describe(
    schema: FunctionSchema, device_type: Any, cast_inputs: Any, source: str, flavour: str = ""
) -> AutocastRule:
    """Return the rule, its device type and dtype checked; an operator of torch's is for torch's devices.

    Raises
    ------
    RegistrationTypeError
        If ``device_type`` is not a string.
    RegistrationValueError
        If there is no such device type, or no autocast for it, or ``cast_inputs`` is not a floating dtype.
    """
    what = f"register_autocast of {schema.qualname}"
    if not isinstance(device_type, str):
        raise RegistrationTypeError(
            layout(f"{what}: device_type must be a string such as 'cuda'", got=type(device_type).__name__)
        )
    known = AUTOCAST_DEVICES if flavour == "torch" else catalogue.known_device_types()
    if device_type not in known:
        whose = (
            "is not a device type that torch has autocast for"
            if flavour == "torch"
            else "is not a device type"
        )
        raise RegistrationValueError(
            layout(f"{what}: {device_type!r} {whose}", expected=f"one of {', '.join(known)}")
        )
    name = dtype_name(cast_inputs)
    if name not in FLOATING:
        raise RegistrationValueError(
            layout(f"{what}: cast_inputs must be a floating dtype", expected=", ".join(FLOATING), got=name)
        )
    return AutocastRule(_nothing, "array_api", source, device_type, name)
