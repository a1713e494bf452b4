"""Mutated arguments: their version counters, and what must not be written to.

* The kernel at ``ADInplaceOrView`` counts one new version for each mutated tensor.
* Inference tensors have no such key: the backend kernel refuses them outside inference mode, as built-ins do.
* Where a gradient is needed, nothing else may share a mutated argument's memory.
* A tensor that was captured by ``torch.func.grad`` or ``jvp`` is wrapped, like all arguments, before any
  other kernel sees it: the one at ``FuncTorchDynamicLayerFrontMode`` looks first, then goes on as torch does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opwright.errors import ArgumentError, UnsupportedError, layout
from opwright.frameworks.torch import private, watched
from opwright.frameworks.torch.lowered import Lowered, shares_storage, tensors_in
from opwright.sharing import Extent, have_common, refuse_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


COUNTED = "ADInplaceOrView"
"""The dispatch key at which a mutation is counted."""

_COUNTED = torch.DispatchKey.ADInplaceOrView


class InferenceTensorError(ArgumentError, RuntimeError):
    """An inference tensor would be written to outside inference mode."""


def make_kernel(state: Lowered) -> Callable[..., Any]:
    """Return the kernel for the dispatch key ``ADInplaceOrView``; the one above it may call it itself."""
    redispatch, after = state.native.redispatch, private.after_inplace_or_view
    below, increment = private.below_inplace_or_view, torch.autograd.graph.increment_version

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        flat = state.flat(args, kwargs)
        runs = state.runs
        with below():
            out = redispatch(keyset & after, *args, **kwargs)
        if private.dispatch_mode_count() and state.runs == runs and private.replays_checkpoint():
            raise _not_replayed(state)
        for index in state.mutated:
            increment(tensors_in(flat[index]))
        return out

    return private.never_traced(kernel)


def is_next(state: Lowered, keyset: Any) -> bool:
    """Return whether below autograd the dispatcher would call what ``make_kernel`` returns, and no other."""
    record = state.record
    return (
        COUNTED in state.installed
        and keyset.has(_COUNTED)
        and record.key not in watched.covered
        and record.kernel(COUNTED) is None
    )


def _not_replayed(state: Lowered) -> UnsupportedError:
    record = state.record
    return UnsupportedError(
        layout(
            f"{record.qualname} mutates its arguments, and selective checkpointing was told to save its "
            "results: on recomputation the mutation would be left out",
            expected="a policy that recomputes it",
            registered=record.source,
            fix=f"return CheckpointPolicy.PREFER_RECOMPUTE for torch.ops.{record.name.replace('::', '.')}",
        )
    )


BITS = ("Conjugate", "Negative")
"""Dispatch keys of tensors whose memory holds something else: torch's own kernels there expect a return."""


def make_bits_kernel(state: Lowered, key: str) -> Callable[..., Any]:
    """Return the kernel for a key of ``BITS``: it works on plain copies and writes the mutated ones back."""
    excluded = torch.DispatchKeySet(getattr(torch.DispatchKey, key))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        flat = state.flat(args, kwargs)
        plain = tuple(map(_plain, flat))
        with private.exclude_keys(excluded):
            out = state.call(plain)
        for index in state.mutated:
            pairs = zip(tensors_in(flat[index]), tensors_in(plain[index]), strict=True)
            for tensor, its_copy in pairs:
                if tensor is not its_copy:
                    tensor.copy_(its_copy)
        given = {id(p): v for p, v in zip(plain, flat, strict=True) if isinstance(v, torch.Tensor)}
        if out.__class__ in (tuple, list):
            return tuple(given.get(id(one), one) for one in out)
        return given.get(id(out), out)

    return private.never_traced(kernel)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.resolve_conj().resolve_neg()
    return [_plain(one) for one in value] if value.__class__ in (list, tuple) else value


FRONT = "FuncTorchDynamicLayerFrontMode"
"""The dispatch key at which functorch takes a call."""


def make_front_kernel(state: Lowered) -> Callable[..., Any] | None:
    """Return the kernel for the key of functorch's front, or None where torch's own cannot be had."""
    record = state.record
    own = private.computed_kernel(record.qualname, FRONT)
    if own is None:
        return None

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_captured(state, state.flat(args, kwargs))
        return own.call_boxed(keyset, *args, **kwargs)

    return private.never_traced(kernel)


def refuse_inference(state: Lowered, flat: Sequence[Any]) -> None:
    """Raise where an inference tensor would be written to outside inference mode."""
    if torch.is_inference_mode_enabled():
        return
    for index in state.mutated:
        if any(tensor.is_inference() for tensor in tensors_in(flat[index])):
            argument = state.record.schema.arguments[index].name
            raise InferenceTensorError(
                layout(
                    f"{state.record.qualname}: inplace update to inference tensor outside InferenceMode "
                    "is not allowed",
                    expected=f"a normal tensor as {argument}",
                    fix=f"pass {argument}.clone(), or call it under torch.inference_mode()",
                )
            )


def refuse_memory_in_common(state: Lowered, flat: Sequence[Any]) -> None:
    """Raise where a mutated argument shares memory with another one, and a gradient or tangent is needed."""
    needed = torch.is_grad_enabled() and private.any_requires_grad(*flat)
    if needed or any(private.has_tangent(tensor) for tensor in tensors_in(flat)):
        refuse_shared(state.record, flat, _have_common)


def _have_common(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = _unwrapped(one), _unwrapped(other)
    if one is other or not shares_storage(one, other):
        return one is other
    if any(tensor.layout != torch.strided or tensor.is_nested for tensor in (one, other)):
        return True
    return have_common(_extent(one), _extent(other))


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the wrappers of transforms: they have no memory that can be asked for."""
    while private.is_wrapped(tensor):
        tensor = private.unwrapped(tensor)
    return tensor


def _extent(tensor: torch.Tensor) -> Extent:
    """Return where a tensor's elements are in its storage; a traced one has no address."""
    size = tensor.element_size()
    strides = tuple(int(stride) * size for stride in tensor.stride())
    return Extent(int(tensor.storage_offset()) * size, tuple(map(int, tensor.shape)), strides, size)


def refuse_captured(state: Lowered, flat: Sequence[Any]) -> None:
    """Raise where a tensor from outside a ``grad`` or ``jvp`` transform would be written to inside it."""
    level = private.current_level()
    if level < 0 or private.current_interpreter().key().name not in ("Grad", "Jvp"):
        return
    for index in state.mutated:
        for tensor in tensors_in(flat[index]):
            if private.level_of(tensor) < level:
                argument = state.record.schema.arguments[index].name
                raise UnsupportedError(
                    layout(
                        f"{state.record.qualname} would mutate a captured tensor, argument {argument}, "
                        "inside a transform of torch.func, which its derivative would not know of",
                        expected="a tensor that the transform was given, or that was made inside it",
                        fix=f"pass {argument}.clone(), or give {argument} to the transform as an argument",
                    )
                )
