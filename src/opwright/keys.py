"""Torch's dispatch keys as data: their names, and the device type that each backend key stands for."""

from __future__ import annotations

from opwright.errors import RegistrationValueError, layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BACKENDS = (
    "CPU", "CUDA", "HIP", "XLA", "MPS", "IPU", "XPU", "HPU", "VE", "Lazy", "MTIA", "MAIA", "PrivateUse1",
    "Meta",
)  # fmt: skip
"""Backend keys; each stands for one device type, which is its name in lower case."""

DEFAULT = "CompositeExplicitAutograd"
"""The key of a kernel for every device."""

IMPLICIT = "CompositeImplicitAutograd"
"""The key of a kernel for every device that gradients go through."""

_PREFIXED = (
    "Autograd",
    "Autocast",
    "Sparse",
    "SparseCsr",
    "Quantized",
    "NestedTensor",
)
_OTHER = """
    Autograd AutogradOther AutogradFunctionality AutogradNestedTensor ADInplaceOrView BackendSelect Python
    PythonTLSSnapshot PythonDispatcher PreDispatch Functionalize Conjugate Negative ZeroTensor Named Tracer
    Autocast FuncTorchBatched FuncTorchVmapMode FuncTorchGradWrapper FuncTorchDynamicLayerBackMode
    FuncTorchDynamicLayerFrontMode FuncTorchBatchedDecomposition BatchedNestedTensor Batched VmapMode
    DeferredInit TESTING_ONLY_GenericWrapper TESTING_ONLY_GenericMode MkldnnCPU FPGA Vulkan Metal
    CompositeImplicitAutograd CompositeImplicitAutogradNestedTensor CompositeExplicitAutograd
    CompositeExplicitAutogradNonFunctional CustomRNGKeyId Undefined
    Dense Sparse SparseCsr Quantized NestedTensor
    PrivateUse2 PrivateUse3 AutogradPrivateUse2 AutogradPrivateUse3
"""
DISPATCH_KEYS: frozenset[str] = frozenset(
    [*BACKENDS, *_OTHER.split(), *(prefix + backend for prefix in _PREFIXED for backend in BACKENDS)]
)
"""The names of all dispatch keys."""

_AUTOCAST = ("CPU", "CUDA", "HPU", "IPU", "MPS", "PrivateUse1", "XPU")

_SPECIAL = {"privateuseone": "PrivateUse1"}
_DEVICE_KEYS: dict[str, str] = {key.lower(): key for key in BACKENDS if key != "PrivateUse1"} | _SPECIAL
DEVICE_TYPES: tuple[str, ...] = tuple(sorted(_DEVICE_KEYS))
"""The device types that a kernel can be registered for."""

AUTOCAST_DEVICES: tuple[str, ...] = tuple(sorted(d for d, key in _DEVICE_KEYS.items() if key in _AUTOCAST))
"""The device types that torch has autocast for."""

_KEY_DEVICES: dict[str, str] = {key: device for device, key in _DEVICE_KEYS.items()}


def device_of(key: str) -> str | None:
    """Return the device type of a backend key, or None for any other key."""
    return _KEY_DEVICES.get(key)


def key_of(device_type: str) -> str | None:
    """Return the backend key of a device type, or None where torch has no such device."""
    return _DEVICE_KEYS.get(device_type)


def resolve_key(name: Any, *, allow_default: bool = True) -> str:
    """Return the dispatch key that a device type, ``"default"`` or a key's own name stands for.

    Raises
    ------
    RegistrationValueError
        If it is none of these; the message lists the device types.
    """
    # Torch's own enumeration has the names too.
    name = name if isinstance(name, str) else str(getattr(name, "name", repr(name)))
    if name in DISPATCH_KEYS:
        return str(name)
    if allow_default and name == "default":
        return DEFAULT
    key = _DEVICE_KEYS.get(name)
    if key is None:
        raise RegistrationValueError(
            layout(
                f"{name!r} is neither a device type nor a dispatch key",
                expected=f"one of {', '.join(DEVICE_TYPES)}, 'default', or a dispatch key such as 'CPU'",
            )
        )
    return key
