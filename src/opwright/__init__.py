"""Opwright: define an array operator once, and use it in NumPy, PyTorch, JAX and CuPy.

Names are imported on first use, so that ``import opwright`` costs next to nothing and never imports an
array library.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from opwright import errors as errors
    from opwright.batching import vmap as vmap
    from opwright.catalogue import Array as Array
    from opwright.checks.runner import opcheck as opcheck
    from opwright.creation import broadcast_shapes as broadcast_shapes
    from opwright.creation import empty as empty
    from opwright.creation import empty_like as empty_like
    from opwright.creation import result_type as result_type
    from opwright.custom_ops import custom_op as custom_op
    from opwright.definitions import define as define
    from opwright.definitions import impl as impl
    from opwright.dispatch import attach as attach
    from opwright.fake_context import get_ctx as get_ctx
    from opwright.fakes import FakeArray as FakeArray
    from opwright.infer import infer_schema as infer_schema
    from opwright.kernel_access import get_kernel as get_kernel
    from opwright.kernels.triton import wrap_triton as wrap_triton
    from opwright.library import Library as Library
    from opwright.library import _scoped_library as _scoped_library
    from opwright.modes import DispatchMode as DispatchMode
    from opwright.modes import autocast as autocast
    from opwright.namespaces import array_namespace as array_namespace
    from opwright.operator import CustomOpDef as CustomOpDef
    from opwright.operator import Operator as Operator
    from opwright.overload import fallthrough_kernel as fallthrough_kernel
    from opwright.packets import OperatorPacket as OperatorPacket
    from opwright.packets import ops as ops
    from opwright.references import register_reference as register_reference
    from opwright.register import impl_abstract as impl_abstract
    from opwright.register import register_autocast as register_autocast
    from opwright.register import register_autograd as register_autograd
    from opwright.register import register_fake as register_fake
    from opwright.register import register_jvp as register_jvp
    from opwright.register import register_kernel as register_kernel
    from opwright.register import register_samples as register_samples
    from opwright.register import register_torch_dispatch as register_torch_dispatch
    from opwright.register import register_vmap as register_vmap
    from opwright.registry import Handle as Handle
    from opwright.report import Report as Report
    from opwright.tags import Tag as Tag
    from opwright.transforms import jvp as jvp
    from opwright.transforms import vjp as vjp
    from opwright.triton_ops import triton_op as triton_op

_HOMES = {
    "Array": "catalogue",
    "CustomOpDef": "operator",
    "DispatchMode": "modes",
    "FakeArray": "fakes",
    "Handle": "registry",
    "Library": "library",
    "Operator": "operator",
    "OperatorPacket": "packets",
    "Report": "report",
    "Tag": "tags",
    "array_namespace": "namespaces",
    "attach": "dispatch",
    "autocast": "modes",
    "broadcast_shapes": "creation",
    "custom_op": "custom_ops",
    "define": "definitions",
    "empty": "creation",
    "empty_like": "creation",
    "fallthrough_kernel": "overload",
    "get_ctx": "fake_context",
    "get_kernel": "kernel_access",
    "impl": "definitions",
    "impl_abstract": "register",
    "infer_schema": "infer",
    "jvp": "transforms",
    "opcheck": "checks.runner",
    "ops": "packets",
    "register_autocast": "register",
    "register_autograd": "register",
    "register_fake": "register",
    "register_jvp": "register",
    "register_kernel": "register",
    "register_reference": "references",
    "register_samples": "register",
    "register_torch_dispatch": "register",
    "register_vmap": "register",
    "result_type": "creation",
    "triton_op": "triton_ops",
    "vjp": "transforms",
    "vmap": "batching",
    "wrap_triton": "kernels.triton",
}
_PRIVATE = {"_scoped_library": "library"}
"""Private names of torch.library that code in the wild uses."""

__all__ = [*_HOMES, "errors"]  # noqa: PLE0604  (the table is the one list of public names)
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    home = _HOMES.get(name) or _PRIVATE.get(name)
    if home is None:
        if name == "errors":
            return import_module("opwright.errors")
        raise AttributeError(f"module 'opwright' has no attribute {name!r}")
    value = getattr(import_module(f"opwright.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
