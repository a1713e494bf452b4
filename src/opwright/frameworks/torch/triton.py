"""Triton kernels on tensors: launched where a call computes, traced where it is traced.

* Tracing goes through torch's public ``wrap_triton``. Where torch functionalises, what the kernel writes is
  said to it: declared, or found by an analysis that raises where it cannot tell. Torch's own would take
  every tensor for written.
* A ``triton_op`` is replaced by its body under functionalisation, so that the compiler sees the kernels;
  not in an exported program, not where another kernel than the body would run, not in the interpreter.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch.library import Library
from torch.utils._python_dispatch import TorchDispatchMode  # torch documents it under this path

from opwright.errors import UnsupportedError, layout
from opwright.frameworks.base import Launching
from opwright.frameworks.torch import private
from opwright.frameworks.torch.lowered import Lowered, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opwright.rules.decomposition import DecompositionRule

_CLASSES = (torch.Tensor, torch.nn.Parameter)

recorder: ContextVar[Callable[..., None] | None] = ContextVar("recorder", default=None)
"""What notes launches instead of making them, where one is."""


def launching() -> Launching:
    """Return how tensors reach Triton."""
    return Launching(
        address="{}.data_ptr()",
        dtype="{}.dtype",
        device="{}.get_device()",
        is_plain=_CLASSES.__contains__,
        current_device=private.cuda_device,
        current_stream=private.cuda_stream,
        launch=launch,
        busy=private.dispatch_mode_count,
        only_device=0 if torch.cuda.device_count() == 1 else None,
    )


def launch(launcher: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Trace a launch, or make it in Triton's own way with the tensors' device current."""
    record = recorder.get()
    if record is not None:
        return record(launcher, grid, args, kwargs)
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    without_data = any(type(one) not in _CLASSES or one.is_meta for one in tensors)
    if launcher.layers.interpreted:
        # Only a fake runs such a kernel's body on tensors without data: there is nothing to launch.
        return None if without_data else launcher.kernel[grid](*args, **kwargs)
    if without_data or _proxies():
        return trace(launcher, grid, args, kwargs)
    for tensor in tensors:
        module = getattr(torch, tensor.device.type, None)
        if module is not None and hasattr(module, "current_device") and tensor.device.type != "cpu":
            with module.device(tensor.device):
                return launcher.kernel[grid](*args, **kwargs)
    return launcher.kernel[grid](*args, **kwargs)


def _proxies() -> bool:
    """Return whether operations are being written into a graph."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return module is not None and module.get_proxy_mode() is not None


def trace(launcher: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Let torch see a launch: as a node of the graph that is being made, or as nothing but its effect."""
    layers = launcher.layers
    passed = dict(kwargs)
    # Torch takes an autotuner or a jit function; heuristics around it are computed here.
    for layer in layers.around:
        for name, function in layer.values.items():
            value = function({**dict(zip(launcher.arg_names, args, strict=False)), **passed})
            passed[name] = concrete(value) if layers.constant(name) else value
    kernel = layers.tuned(concrete)
    names = private.functionalisation()
    functional = names is not None and any(
        isinstance(value, names.tensor) for value in (*args, *passed.values())
    )
    if functional:
        with _Functionalise(launcher, names):
            torch.library.wrap_triton(kernel)[grid](*args, **passed)
        return
    if launcher.writes is not None and names is None:
        raise UnsupportedError(
            layout(
                f"torch {torch.__version__} cannot be told what Triton kernel {layers.name} writes",
                registered=layers.source,
                fix="leave writes= out, or install a release of torch that this version was tested with",
            )
        )
    torch.library.wrap_triton(kernel)[grid](*args, **passed)


def concrete(value: Any) -> Any:
    """Return the plain value of a symbolic one; the graph is then guarded on it."""
    if isinstance(value, torch.SymBool):
        return bool(value)
    if isinstance(value, torch.SymInt):
        return int(value)
    return float(value) if isinstance(value, torch.SymFloat) else value


class _Functionalise(TorchDispatchMode):
    """Turns a launch that mutates into one that returns what it wrote, for the parameters that we name."""

    supports_higher_order_operators = True

    def __init__(self, launcher: Any, names: Any) -> None:
        super().__init__()
        self._launcher = launcher
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        names = self._names
        if func is not names.mutation:
            return func(*args, **kwargs)
        given = kwargs["kwargs"]
        constants = names.constants(kwargs["constant_args_idx"])
        written = self._launcher.written({**constants, **given}, _is_tensor)
        changed = [name for name in written if _is_tensor(given.get(name))]
        outputs = names.functional(**kwargs, tensors_to_clone=changed)
        context = names.api()
        for name, output in context.unwrap_tensors(outputs).items():
            before = given[name]
            context.replace(before, output)
            context.mark_mutation_hidden_from_autograd(before)
            context.commit_update(before)
            context.sync(before)
        return None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def install(state: Lowered, rule: DecompositionRule) -> Library:
    """Let a body stand in for its operator where torch functionalises; destroying the library undoes it."""
    namespace = state.record.name.partition("::")[0]
    library = Library(namespace, "IMPL")
    mode = private.functional_mode()
    if mode is None:
        return library  # the operator stays opaque
    qualname = f"{namespace}::{state.op_name}"
    # Torch caches compiled graphs by their code: that of the kernels is part of it.
    private.note_triton_kernels(qualname, rule.kernels())
    torch.library.register_torch_dispatch(qualname, mode, _body(state, rule), lib=library)
    return library


def _body(state: Lowered, rule: DecompositionRule) -> Callable[..., Any]:
    record = state.record

    def decompose(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        flat = state.flat(tuple(args), dict(kwargs or {}))
        tensors = [tensor for value in flat for tensor in tensors_in(value)]
        if any(type(one) not in (*_CLASSES, *private.traced_tensors()) for one in tensors):
            return NotImplemented
        device_type = next((one.device.type for one in tensors), "cuda")
        kernel = record.select_kernel("torch", device_type)
        runs = device_type == "meta" or (kernel is not None and kernel.fn is rule.fn)
        if private.exporting() or not runs or rule.interpreted():
            return mode.__torch_dispatch__(func, types, args, kwargs)
        with mode:
            return state.apply(rule.fn, tuple(state.authors(flat)))

    return decompose
