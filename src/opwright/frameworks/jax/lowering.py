"""The route of a computation into a compiled program, chosen while it is lowered.

``inlined`` for kernels that are traced; for host kernels ``tvm-ffi`` where that extra is installed and the
dtypes allow, else ``buffer_callback``, else ``pure_callback``; for the body of a ``triton_op`` XLA's own call
of its kernels, where it can be had; for other CUDA kernels ``buffer_callback`` on XLA's own stream. XLA
packs elements that are narrower than a byte, NumPy does not: these take ``pure_callback``, as wider ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from opwright.errors import UnsupportedError, layout
from opwright.frameworks.jax import callbacks, ffi, launches
from opwright.frameworks.jax.avals import canonical, is_packed
from opwright.frameworks.jax.kernels import takes_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.frameworks.jax.callbacks import Plan
    from opwright.overload import OpOverload

PLATFORMS = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "tpu": "tpu"}
"""JAX's platforms, with their device types in torch's words."""


def route(plan: Plan, device_type: str, dtypes: Sequence[Any], target: ffi.Target | None) -> str:
    """Return the name of the route that a plan takes for operands and outputs of these dtypes."""
    if plan.inline:
        return "inlined"
    if plan.flavour == "numpy" and device_type != "cpu":
        return "pure_callback"  # its author allowed copies, or it were not chosen
    if device_type == "cpu" and target is not None and ffi.usable(dtypes):
        return "tvm-ffi"
    if device_type in ("cpu", "cuda") and callbacks.has_buffers() and not any(map(is_packed, dtypes)):
        return "buffer_callback"
    return "pure_callback"


def traceable(
    plan: Plan,
    device_type: str,
    operands: Sequence[Any],
    outputs: Sequence[Any],
    *,
    target: ffi.Target | None,
    export: bool,
) -> Callable[..., Any]:
    """Return the function that is traced in a computation's place.

    Parameters
    ----------
    plan
        How the computation runs.
    device_type
        The device type of the platform that is lowered for.
    operands, outputs
        Abstract values.
    target
        What names the body in an XLA FFI target, or None.
    export
        Whether the program is to be exported, so that nothing of this process may be in it.

    Raises
    ------
    UnsupportedError
        If a host kernel is to be exported without a target of a stable name, or runs on no such device.
    """
    if plan.inline:
        return _inlined(plan, outputs)
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in outputs]
    dtypes = [aval.dtype for aval in (*operands, *outputs)]
    chosen = route(plan, device_type, dtypes, target)
    if chosen == "tvm-ffi" and target is not None:
        return ffi.through_target(target, plan.impure, shapes)
    held = plan.held(operands, outputs) if plan.held is not None else None
    if held is not None:
        return held
    if export:
        raise callbacks.not_exportable(plan.title)
    if device_type == "cuda" and plan.flavour != "numpy":
        packed = next(filter(is_packed, dtypes), None)
        if packed is not None:
            raise UnsupportedError(
                layout(
                    f"{plan.title}: a {plan.flavour} kernel cannot have GPU buffers of {packed}: "
                    "XLA keeps several elements in each byte",
                    expected="arrays whose elements take whole bytes",
                    registered=plan.source,
                    fix="convert the arguments first, x.astype('int8') for example, or register a kernel of "
                    "flavour jax",
                )
            )
        if chosen != "buffer_callback":
            raise UnsupportedError(
                layout(
                    f"{plan.title}: this JAX has no way to call a {plan.flavour} kernel on GPU buffers",
                    expected="jax.experimental.buffer_callback",
                    registered=plan.source,
                    fix="install JAX 0.9 or newer",
                )
            )
        return callbacks.through_device_buffers(plan, shapes)
    if chosen == "pure_callback":
        return callbacks.through_copies(plan, shapes, len(operands))
    return callbacks.through_buffers(plan, shapes, len(operands))


def _inlined(plan: Plan, outputs: Sequence[Any]) -> Callable[..., list[Any]]:
    """Return a traced kernel, its outputs compared with the fake's."""

    def call(*arrays: Any) -> list[Any]:
        results = plan.compute(arrays, None)
        if len(results) != len(outputs):
            raise callbacks.differs(plan, f"{len(outputs)} outputs", f"{len(results)} outputs")
        return [
            _as_promised(plan, i, r, aval) for i, (r, aval) in enumerate(zip(results, outputs, strict=True))
        ]

    return call


def _as_promised(plan: Plan, index: int, result: Any, aval: Any) -> Any:
    """Return an output as the abstract value says: strongly typed, of that very shape and dtype."""
    dtype = result.dtype
    if tuple(result.shape) != tuple(aval.shape) or canonical(dtype) != aval.dtype:
        raise callbacks.differs(plan, callbacks.described(aval), callbacks.described(result), index)
    strong = isinstance(result, jax.core.Tracer) and not getattr(jax.typeof(result), "weak_type", False)
    if strong and dtype == aval.dtype:  # an array from where x64 was on has another
        return result
    return jax.lax.convert_element_type(result, aval.dtype)


def routes(record: OpOverload) -> dict[str, str]:
    """Return the route of an operator's kernel, and which kernel it is, for each device type that has one.

    What a host kernel's dtypes or static arguments rule out is not known here: such a call takes
    ``buffer_callback`` where ``tvm-ffi`` is named, and where the launches of a body that are named cannot be
    held by XLA; arrays whose elements are narrower than a byte take ``pure_callback``.
    """
    found: dict[str, str] = {}
    for device_type in dict.fromkeys(PLATFORMS.values()):
        kernel = record.select_kernel("jax", device_type)
        if kernel is None:
            continue
        if kernel.flavour in ("jax", "array_api"):
            chosen = "inlined"
        elif device_type == "cpu" and ffi.usable(()):
            chosen = "tvm-ffi"
        elif device_type == "cuda" and launches.holds(record, kernel):
            found[device_type] = f"{launches.TARGET}, no copies ({kernel.flavour}, {kernel.source})"
            continue
        elif kernel.flavour == "numpy" and device_type != "cpu":
            chosen = "pure_callback"
        else:
            chosen = "buffer_callback" if callbacks.has_buffers() else "pure_callback"
        carries = (
            "" if chosen == "inlined" else f", {_carries(chosen, into=takes_out(kernel, record.schema))}"
        )
        found[device_type] = f"{chosen}{carries} ({kernel.flavour}, {kernel.source})"
    return found


def _carries(chosen: str, *, into: bool) -> str:
    """Return what a route to a host kernel copies, in words."""
    if chosen == "pure_callback":
        return "copies both ways"
    return "no copies" if into else "a copy of the results alone"
