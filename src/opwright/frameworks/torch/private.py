"""The private names of torch that this package uses, and what stands in where one is missing.

Those about memory are in ``aliases.py``.

* What the right answer depends on must be there: ``require`` raises at attach, and names what is missing.
* What only saves time has a slower stand-in here.
* ``torch.autograd.forward_ad`` is read as a module: its level is an attribute that changes.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd import forward_ad

from opwright.errors import UnsupportedError, layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_missing: list[str] = []


def _take(path: str) -> Any:
    """Return what ``torch.<path>`` leads to, or None, which is noted as missing."""
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        _missing.append(f"torch.{path}")
    return found


def _import(module: str, name: str) -> Any:
    """Return ``module.name``, or None, which is noted as missing."""
    import importlib

    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        _missing.append(f"{module}.{name}")
        return None


below_autograd = _take("_C._AutoDispatchBelowAutograd")
below_inplace_or_view = _take("_C._AutoDispatchBelowADInplaceOrView")
after_autograd = _take("_C._after_autograd_keyset")
after_inplace_or_view = _take("_C._after_ADInplaceOrView_keyset")
exclude_keys = _take("_C._ExcludeDispatchKeyGuard")
functorch_active = _take("_C._are_functorch_transforms_active")
fwd_grad_enabled = _take("_C._is_fwd_grad_enabled")
set_fwd_grad = _take("_C._set_fwd_grad_enabled")
set_grad = _take("_C._set_grad_enabled")
has_kernel = _take("_C._dispatch_has_kernel_for_dispatch_key")
unpack_dual = _take("_VF._unpack_dual")
_function_base = _take("_C._FunctionBase")
_functorch = _take("_C._functorch")
add_batch_dim = _take("_C._functorch._add_batch_dim")
unwrap_batched = _take("_C._functorch._unwrap_batched")
is_batched = _take("_C._functorch.is_batchedtensor")
is_wrapped = _take("_C._functorch.is_functorch_wrapped_tensor")
unwrapped = _take("_C._functorch.get_unwrapped")
level_of = _take("_C._functorch.maybe_get_level")
current_level = _take("_C._functorch.maybe_current_level")
current_interpreter = _import("torch._functorch.pyfunctorch", "retrieve_current_functorch_interpreter")
allow_inplace_requires_grad = _import("torch._functorch.eager_transforms", "enable_inplace_requires_grad")
dispatch_mode_count = _take("_C._len_torch_dispatch_stack")
_dispatch_modes = _import("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack")

_NEEDED = tuple(_missing)  # what follows has a stand-in

no_profile = _import("torch._library.fake_profile", "MissingOpProfile")


def require() -> None:
    """Raise where this release of torch lacks what operators depend on.

    Raises
    ------
    UnsupportedError
        Naming the release and what is missing.
    """
    if _NEEDED:
        raise UnsupportedError(
            layout(
                f"torch {torch.__version__} lacks what operators are made with",
                got=", ".join(_NEEDED) + ", all missing",
                fix="install a release between torch 2.9 and the newest that this version was tested with",
            )
        )


_single_level_function: Any = getattr(
    torch.autograd.function, "_SingleLevelFunction", torch.autograd.Function
)


class SingleLevelFunction(_single_level_function):
    """The base of autograd functions that act at the innermost level only.

    From torch 2.14 on, functorch takes every ``torch.autograd.Function`` itself, its bare ``apply`` too.
    """

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int]:
        """Return what compiled autograd tells functions apart by; only ``Function`` has it in torch."""
        return (ctx._autograd_function_id,)  # noqa: SLF001


def single_level_apply(cls: type) -> Callable[..., Any]:
    """Return ``apply`` of an autograd function that acts at the innermost level only.

    ``Function.apply`` itself would hand the call to functorch once more, under which a nested ``jacfwd``
    is wrong.
    """
    apply: Callable[..., Any] = _function_base.__dict__["apply"].__get__(None, cls)
    return apply


get_single_level = _functorch.get_single_level_autograd_function_allowed
set_single_level = _functorch.set_single_level_autograd_function_allowed


def forward_level() -> bool:
    """Return whether a level of forward-mode AD is entered from Python."""
    return bool(forward_ad._current_level >= 0)  # noqa: SLF001


@contextmanager
def modes_restored(grad: bool, forward: bool) -> Iterator[None]:
    """Give a block the grad mode and the forward-grad mode of its caller, and take autograd out."""
    before, before_forward = torch.is_grad_enabled(), fwd_grad_enabled()
    set_grad(grad)
    set_fwd_grad(forward)
    try:
        with below_autograd():
            yield
    finally:
        set_grad(before)
        set_fwd_grad(before_forward)


@contextmanager
def forward_grad_on() -> Iterator[None]:
    """Turn forward-mode AD on for a block."""
    before = fwd_grad_enabled()
    set_fwd_grad(True)
    try:
        yield
    finally:
        set_fwd_grad(before)


# The batches of torch.autograd.functional's ``vectorize``, which know few operations.
is_legacy_batched: Callable[[Any], bool] = getattr(_functorch, "is_legacy_batchedtensor", lambda _: False)

add_legacy: Callable[..., Any] | None = getattr(torch, "_add_batch_dim", None)
remove_legacy: Callable[..., Any] | None = getattr(torch, "_remove_batch_dim", None)


def legacy_level() -> int:
    """Return the innermost level of those batches, which torch tells only where it enters another."""
    level: int = _core._vmapmode_increment_nesting()  # noqa: SLF001
    _core._vmapmode_decrement_nesting()  # noqa: SLF001
    return level - 1


def has_tangent(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has a tangent of the current level."""
    return unpack_dual(tensor, level=0)[1] is not None


def _stand_in_requires_grad(*args: Any, **kwargs: Any) -> bool:
    values = (*args, *kwargs.values())
    flat = (one for value in values for one in (value if value.__class__ in (list, tuple) else (value,)))
    return any(isinstance(one, torch.Tensor) and one.requires_grad for one in flat)


_core: Any = torch._C  # noqa: SLF001  (this file is where torch's private names are)
any_requires_grad: Callable[..., bool] = getattr(_core, "_any_requires_grad", _stand_in_requires_grad)


def traced() -> bool:
    """Return whether a graph of operations is being recorded, as by ``make_fx``."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode = getattr(module, "get_proxy_mode", None)
    return mode is not None and mode() is not None


def replays_checkpoint() -> bool:
    """Return whether selective checkpointing is answering calls with what it saved."""
    module = sys.modules.get("torch.utils.checkpoint")
    cls = getattr(module, "_CachedTorchDispatchMode", None)
    return cls is not None and any(isinstance(mode, cls) for mode in _dispatch_modes())


def fake_context(get: Callable[[], Any]) -> Any:
    """Return what lets ``torch.library.get_ctx()`` return ``get()`` for the duration, where it can be set."""
    return getattr(sys.modules.get("torch._library.fake_impl"), "set_ctx_getter", nullcontext)(get)


def restart_trace() -> None:
    """Make Dynamo, which is tracing a call, forget all that it has seen and begin again."""
    restart = getattr(sys.modules.get("torch._dynamo.exc"), "UnspecializeRestartAnalysis", None)
    if restart is not None:
        raise restart(restart_reason="operators that were defined before torch was imported were attached")


_frames: Any = getattr(getattr(_core, "_dynamo", None), "eval_frame", None)
_mark: Callable[..., None] | None = getattr(_frames, "set_code_exec_strategy", None)
_SKIPPED: Any = _mark and _frames._FrameExecStrategy(*[_frames._FrameAction.SKIP] * 2)  # noqa: SLF001


def never_traced(function: Any) -> Any:
    """Keep Dynamo out of a function, and of all it calls, where the dispatcher calls it.

    It is the code object that is marked: every closure of it, at no cost a call.
    """
    if _mark is None:
        return torch.compiler.disable(function)
    _mark(function.__code__, _SKIPPED)
    return function


def computed_kernel(qualname: str, key: str) -> Any:
    """Return what torch's dispatcher runs for an operator at a key, or None where a release does not say."""
    get = getattr(_core, "_dispatch_get_computed_kernel_for_dispatch_key", None)
    return None if get is None else get(qualname, key)


def register_fake(library: torch.library.Library, qualname: str, fn: Callable[..., Any], source: str) -> None:
    """Register a fake in a library; torch's public function walks the caller's frames for the source."""
    holder = getattr(entry_of(qualname), "fake_impl", None)
    handles = getattr(library, "_registration_handles", None)
    if holder is None or handles is None:
        torch.library.register_fake(qualname, fn, lib=library)
    else:
        handles.append(holder.register(fn, source, lib=library, allow_override=True))


def destroy(library: torch.library.Library) -> None:
    """Destroy a library: its kernels and operators are gone from the dispatcher."""
    library._destroy()  # noqa: SLF001


def watch_registrations(make: Callable[[set[str]], set[str]]) -> bool:
    """Put ``make(noted)`` in the place where torch notes kernels of Python; return whether there is one."""
    noted = getattr(torch.library, "_impls", None)
    if isinstance(noted, set):
        torch.library._impls = make(noted)  # noqa: SLF001
    return isinstance(noted, set)


def registrations(library: torch.library.Library) -> list[str]:
    """Return ``namespace/name/key`` of every kernel in a library."""
    return list(getattr(library, "_op_impls", ()))


cuda_device: Callable[[], int] = getattr(_core, "_cuda_getDevice", torch.cuda.current_device)
cuda_stream: Callable[[int], int] = getattr(
    _core, "_cuda_getCurrentRawStream", lambda device: int(torch.cuda.current_stream(device).cuda_stream)
)


class Functionalisation(NamedTuple):
    """What a launch is functionalised with: torch's two forms of it, and how a tensor gets its new value."""

    tensor: type
    api: Callable[[], Any]
    mutation: Any
    functional: Callable[..., dict[str, Any]]
    constants: Callable[[int], dict[str, Any]]


@cache
def functionalisation() -> Functionalisation | None:
    """Return what a launch is functionalised with, or None where this release has it under other names."""
    wrap = "torch._higher_order_ops.triton_kernel_wrap"
    side_table = _import(wrap, "kernel_side_table")
    found = (
        _import("torch._subclasses.functional_tensor", "FunctionalTensor"),
        _import("torch._subclasses.functional_tensor", "PythonFunctionalizeAPI"),
        _import(wrap, "triton_kernel_wrapper_mutation"),
        _import(wrap, "triton_kernel_wrapper_functional"),
        getattr(side_table, "get_constant_args", None),
    )
    return None if None in found else Functionalisation._make(found)


@cache
def functional_mode() -> type | None:
    """Return the class of the mode under which torch functionalises, or None."""
    mode: type | None = _import("torch._subclasses.functional_tensor", "FunctionalTensorMode")
    return mode


@cache
def traced_tensors() -> tuple[type, ...]:
    """Return the classes of tensors that torch traces with."""
    names = (("torch._subclasses.functional_tensor", "FunctionalTensor"), ("torch._subclasses", "FakeTensor"))
    found = (_import(module, name) for module, name in names)
    return tuple(cls for cls in found if cls is not None)


def exporting() -> bool:
    """Return whether operators are kept as they are because a program is being exported."""
    module = sys.modules.get("torch.export._trace")
    return bool(getattr(module, "custom_triton_ops_decomposition_disabled", bool)())


def note_triton_kernels(qualname: str, kernels: list[Any]) -> None:
    """Tell torch which Triton kernels an operator may launch: their code is part of what it caches by."""
    table = getattr(_import("torch._library", "triton"), "triton_ops_to_kernels", None)
    if isinstance(table, dict):
        table[qualname] = kernels


def dispatcher(name: str) -> Callable[..., Any]:
    """Return a function of torch's dispatcher that registrations for torch's own operators need.

    Raises
    ------
    UnsupportedError
        Naming it, where this release has none.
    """
    function: Callable[..., Any] | None = getattr(torch._C, name, None)  # noqa: SLF001
    if function is None:
        raise UnsupportedError(
            layout(f"torch {torch.__version__} lacks torch._C.{name}, which its own operators are asked with")
        )
    return function


def dispatch_keys() -> list[str]:
    """Return the dispatch keys that torch's enumeration names."""
    return list(torch._C.DispatchKey.__members__)  # noqa: SLF001


def entry_of(qualname: str) -> Any:
    """Return what torch keeps of an operator beside its dispatcher: its fake, its rules for modes."""
    return _entries().find(qualname)


@cache
def _entries() -> Any:
    from torch._library.simple_registry import singleton

    return singleton


def custom_op_of(native: Any) -> Any:
    """Return the ``CustomOpDef`` of an overload, or None."""
    from torch._library.custom_ops import OPDEFS

    found = OPDEFS.get(native.name())
    return found if found is not None and found._opoverload is native else None  # noqa: SLF001


def backward_of(custom_op: Any) -> Any:
    """Return the backward that a ``CustomOpDef`` was given, or None."""
    return custom_op._backward_fn  # noqa: SLF001


def schema_names(native: Any) -> tuple[str, str]:
    """Return the qualified name of an overload's operator and its own, empty for the unnamed one."""
    return native._schema.name, native._schema.overload_name  # noqa: SLF001


def schema_text(native: Any) -> str:
    """Return the schema of an overload."""
    return str(native._schema)  # noqa: SLF001


def packet_name(packet: Any) -> str:
    """Return the qualified name of a packet."""
    return str(packet._qualified_op_name)  # noqa: SLF001
