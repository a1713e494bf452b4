"""Every private name of torch that this package uses, in one file, and what stands in where one is missing.

* What the right answer depends on must be there: ``require`` raises at attach, and names what is missing.
* What only saves time has a slower stand-in here.
* ``torch.autograd.forward_ad`` is read as a module: its level is an attribute that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

from opwright.errors import UnsupportedError, layout

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
level_of = _take("_C._functorch.maybe_get_level")
current_level = _take("_C._functorch.maybe_current_level")
current_interpreter = _import("torch._functorch.pyfunctorch", "retrieve_current_functorch_interpreter")
allow_inplace_requires_grad = _import("torch._functorch.eager_transforms", "enable_inplace_requires_grad")

_NEEDED = tuple(_missing)  # what follows has a stand-in


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


def primal(value: Any) -> Any:
    """Return a tensor without its tangent of the current level; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return unpack_dual(value, level=0)[0]
    if value.__class__ in (list, tuple):
        return value.__class__(map(primal, value))
    return value


def _any_requires_grad(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    for value in (*args, *kwargs.values()):
        several = value if value.__class__ in (list, tuple) else (value,)
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in several):
            return True
    return False


def _stand_in_requires_grad(*args: Any, **kwargs: Any) -> bool:
    return _any_requires_grad(args, kwargs)


def _stand_in_alias(args: Any, kwargs: Any, outputs: Any) -> bool:
    seen = [t.untyped_storage().data_ptr() for t in _dense((*args, *kwargs.values()))]
    for tensor in _dense(outputs):
        pointer = tensor.untyped_storage().data_ptr()
        if pointer and pointer in seen:
            return True
        seen.append(pointer)
    return False


def _dense(values: Any) -> list[Any]:
    flat = []
    for value in values:
        if isinstance(value, torch.Tensor):
            flat.append(value)
        elif isinstance(value, list | tuple):
            flat += _dense(value)
    return flat


any_requires_grad: Callable[..., bool] = getattr(torch._C, "_any_requires_grad", _stand_in_requires_grad)  # noqa: SLF001
any_alias: Callable[..., bool] = getattr(
    torch._C, "_any_output_is_alias_to_input_or_output", _stand_in_alias  # noqa: SLF001
)


def never_traced(function: Any) -> Any:
    """Keep Dynamo out of a function, and of all it calls, where the dispatcher calls it.

    It is the code object that is marked: every closure of it, at no cost a call.
    """
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)  # noqa: SLF001
    mark = getattr(frames, "set_code_exec_strategy", None)
    if mark is None:
        return torch.compiler.disable(function)
    skip = frames._FrameAction.SKIP  # noqa: SLF001
    mark(function.__code__, frames._FrameExecStrategy(skip, skip))  # noqa: SLF001
    return function


def destroy(library: torch.library.Library) -> None:
    """Destroy a library: its kernels and operators are gone from the dispatcher."""
    library._destroy()  # noqa: SLF001
