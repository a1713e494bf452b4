"""Whether a kernel can be for a device: its arrays are there, or are copied, and calls tell their device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opwright import catalogue
from opwright.errors import RegistrationValueError, layout
from opwright.keys import DEFAULT, device_of

if TYPE_CHECKING:
    from opwright.schema import FunctionSchema


def check_lives_on(what: str, flavour: str, key: str, source: str) -> None:
    """Raise where arrays of a flavour are never on the device of a kernel's key."""
    device_type = device_of(key)
    if device_type is not None and device_type != "meta" and not catalogue.lives_on(flavour, device_type):
        raise RegistrationValueError(
            layout(
                f"{what} has flavour {flavour}, whose arrays are never on {device_type}",
                registered=source,
                fix=f"annotate it with arrays that can be on {device_type}, or pass flavour="
                + (", or let them be copied: register_kernel(..., copy=True)" if flavour == "numpy" else ""),
            )
        )


def check_copies(schema: FunctionSchema, what: str, flavour: str, key: str, source: str) -> None:
    """Raise where copying arrays to the host and results back is of no use to a kernel."""
    arrays = any(argument.has_tensors for argument in schema.arguments)
    if flavour != "numpy" or key == "Meta" or not arrays:
        raise RegistrationValueError(
            layout(
                f"{what} cannot be registered with copy=True",
                expected="a kernel that takes NumPy arrays, for devices whose arrays have data",
                got=f"a kernel of flavour {flavour} for {device_of(key) or 'any device'}"
                + ("" if arrays else ", without Tensor inputs"),
                registered=source,
                fix="leave copy=True out, or annotate it with np.ndarray",
            )
        )


def require_device(schema: FunctionSchema, keys: list[str], source: str) -> None:
    """Raise where an operator without Tensor inputs has device kernels and no ``device`` parameter."""
    if keys == [DEFAULT] or any(argument.has_tensors for argument in schema.arguments):
        return
    if not any(a.name == "device" and a.base == "Device" for a in schema.arguments):
        raise RegistrationValueError(
            layout(
                f"{schema.qualname} has no Tensor inputs, so kernels for device types cannot be told apart",
                expected="a parameter 'device: torch.device' (schema: Device device)",
                got=str(schema),
                registered=source,
            )
        )
