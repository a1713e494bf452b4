"""The backend kernel: which of the overload's kernels runs, on which arrays, and what it may return.

* It stands at ``CompositeExplicitAutograd``, below autograd and every transform: its tensors are plain.
* Grad mode is off around a kernel, here as on the fast path.
* A kernel of another flavour gets arrays of the tensors' own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opwright.frameworks.base import load, no_kernel, of_flavour
from opwright.frameworks.bridges import bridge, cannot_mutate
from opwright.frameworks.torch import aliases, fake, mutation, numpy_kernel, private
from opwright.frameworks.torch.convert import default_device, several_devices, to_share
from opwright.frameworks.torch.lowered import Lowered, shares_storage, tensors_in
from opwright.keys import DEFAULT, IMPLICIT, key_of
from opwright.outputs import bad_output, check_aliases, is_one, may_be_undefined, not_same, same_objects
from opwright.outputs import output_check as checked_outputs
from opwright.scalars import coercion

if TYPE_CHECKING:
    from opwright.overload import Kernel

Run = Callable[[tuple[Any, ...]], Any]
"""A kernel made ready: takes one value for each argument, returns what the schema says."""

_OWN = ("torch", "array_api")
_WRITABLE = ("cupy", "dlpack")  # their arrays of a tensor's memory can be written to


def make_kernel(state: Lowered) -> Callable[..., Any]:
    """Return the kernel for every device."""
    if state.mutated:
        return _mutating_kernel(state)
    total, only_positional = state.total, not state.names
    flat_of, grad_enabled, set_grad = state.flat, torch.is_grad_enabled, private.set_grad

    def kernel(*args: Any, **kwargs: Any) -> Any:
        flat = args if only_positional and len(args) == total else flat_of(args, kwargs)
        run = state.cache.get("run") or runner_for(state, flat)
        if not grad_enabled():
            return run(flat)
        set_grad(False)
        try:
            return run(flat)
        finally:
            set_grad(True)

    return private.never_traced(kernel)


def _mutating_kernel(state: Lowered) -> Callable[..., Any]:
    """Return the kernel of an operator that mutates: it counts its runs, and may not write to everything."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        flat = state.flat(args, kwargs)
        mutation.refuse_inference(state, flat)
        run = state.cache.get("run") or runner_for(state, flat)
        state.runs += 1
        before = torch.is_grad_enabled()
        private.set_grad(False)
        try:
            return run(flat)
        finally:
            private.set_grad(before)

    return private.never_traced(kernel)


def runner_for(state: Lowered, flat: Sequence[Any]) -> Run:
    """Return the kernel for a call's device, made ready; it is kept where every device has the same."""
    device_type = device_type_of(state, flat)
    cache = state.cache  # that of the rules as they are now: see `Lowered.derive`
    run: Run | None = cache.get(("run", device_type))
    if run is None:
        run = make_runner(state, device_type)
        cache["run", device_type] = run
        if device_type != "meta" and _same_everywhere(state):
            cache["run"] = run
    return run


def _same_everywhere(state: Lowered) -> bool:
    """Return whether a call's device decides nothing: one kernel of torch's for all, one device a type."""
    enabled = list(state.record.enabled_kernels())
    if len(enabled) != 1 or not state.tensors or several_devices():
        return False
    return enabled[0].key in (DEFAULT, IMPLICIT) and enabled[0].flavour in _OWN


def device_type_of(state: Lowered, flat: Sequence[Any]) -> str:
    """Return the device type of a call: of its tensors, where they differ one that is not the CPU."""
    found = None
    for index in state.tensors:
        for tensor in tensors_in(flat[index]):
            found = tensor.device.type
            if found != "cpu":
                return found
    if found is not None:
        return found
    for argument, value in zip(state.record.schema.arguments, flat, strict=True):
        if argument.base == "Device" and value is not None and not argument.is_list:
            return torch.device(value).type
    return default_device().type


def make_runner(state: Lowered, device_type: str) -> Run:
    """Return the kernel for a device type, made ready.

    Raises
    ------
    NoKernelError
        If there is none.
    """
    record = state.record
    if device_type == "meta":
        return fake.make_runner(state)
    kernel = record.select_kernel("torch", device_type)
    if kernel is not None:
        run = kernel_runner(state, kernel, device_type)
    else:
        fallback = record.fallbacks.get(key_of(device_type) or "")
        if fallback is None:
            raise no_kernel(record, load("torch"), device_type)
        run = _fallback_runner(state, fallback)
    return run if device_type == "cpu" else _on_device(state, device_type, run)


def kernel_runner(state: Lowered, kernel: Kernel, device_type: str | None) -> Run:
    """Return a kernel made ready for a device type, or any, whatever the flavour of its arrays."""
    if kernel.flavour == "numpy" and (device_type == "cpu" or not kernel.copies):
        return numpy_kernel.make_runner(state, kernel)
    return _own_runner(state, kernel) if kernel.flavour in _OWN else _bridged_runner(state, kernel)


def _fallback_runner(state: Lowered, kernel: Kernel) -> Run:
    """Return the runner of a fallback: it gets torch's overload, then the arguments."""
    leading = (torch.DispatchKeySet(kernel.key),) if kernel.with_keyset else ()
    return lambda flat: state.apply(kernel.fn, flat, *leading, state.native)


def _own_runner(state: Lowered, kernel: Kernel) -> Run:
    """Return the runner of a kernel that takes tensors."""
    fn, apply = kernel.fn, state.apply
    check = output_check(state, kernel)
    changes = author_coercions(state)

    def with_changes(flat: tuple[Any, ...]) -> Any:
        values = list(flat)
        for index, coerce in changes:
            values[index] = coerce(values[index])
        return check(flat, apply(fn, tuple(values)))

    if changes:
        return with_changes
    if state.names:
        return lambda flat: check(flat, apply(fn, flat))
    return lambda flat: check(flat, fn(*flat))


def author_coercions(state: Lowered) -> list[tuple[int, Callable[[Any], Any]]]:
    """Return what turns torch's values of ``Literal``, ``Enum`` and tuple arguments into the author's own."""
    schema = state.record.schema
    arguments = enumerate(schema.arguments)
    found = [(i, coercion(state.record.qualname, a)) for i, a in arguments if a.choices is not None]
    return found + [(i, _as_tuple) for i in schema.tuples]


def _as_tuple(value: Any) -> Any:
    return None if value is None else tuple(value)


def _bridged_runner(state: Lowered, kernel: Kernel) -> Run:
    """Return the runner of a kernel of another flavour: arrays go over by DLPack, of the same memory.

    Those of a kernel that may have copies go over as such, and back.
    """
    record = state.record
    if record.schema.mutated and kernel.flavour not in _WRITABLE and not kernel.copies:
        raise cannot_mutate(record, kernel, load("torch"))
    fn = bridge(kernel, load("torch"), record)
    check = output_check(state, kernel)
    other = of_flavour(kernel.flavour)
    changes = author_coercions(state)
    convert = [
        (i, a.base, other.convert)
        for i, a in enumerate(record.schema.arguments)
        if a.base in ("ScalarType", "Device") and not a.is_list
    ]

    def run(flat: tuple[Any, ...]) -> Any:
        values = [_detached(value) for value in flat]
        for index, kind, to_other in convert:
            values[index] = None if values[index] is None else to_other(kind, values[index])
        for index, coerce in changes:
            values[index] = coerce(values[index])
        out = state.apply(fn, tuple(values))
        for index in state.mutated:
            _write_back(flat[index], values[index])
        return check(flat, _given_again(state, flat, values, out))

    return run


def _given_again(state: Lowered, flat: tuple[Any, ...], values: list[Any], out: Any) -> Any:
    """Return what a kernel returned with its mutated arguments as the caller's own tensors."""
    if not state.mutated:
        return out
    if isinstance(out, list | tuple):
        return tuple(_given_again(state, flat, values, one) for one in out)
    return next((flat[index] for index in state.mutated if out is values[index]), out)


def _write_back(value: Any, detached: Any) -> None:
    """Copy into a tensor what was written, where the kernel had a dense copy of it."""
    if value.__class__ in (list, tuple):
        for one, its in zip(value, detached, strict=True):
            _write_back(one, its)
    elif isinstance(value, torch.Tensor) and value.data_ptr() != detached.data_ptr():
        value.detach().copy_(detached)


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return to_share(value)
    return [_detached(one) for one in value] if value.__class__ in (list, tuple) else value


def _on_device(state: Lowered, device_type: str, run: Run) -> Run:
    """Return ``run`` with the device of its tensors made current, where a device type has several."""
    module: Any = getattr(torch, device_type, None)
    if not all(hasattr(module, name) for name in ("current_device", "device", "device_count")):
        return run
    if module.device_count() <= 1:
        return run
    current = private.cuda_device if device_type == "cuda" else module.current_device
    leading = state.tensors[0] if state.tensors else None

    def on_device(flat: tuple[Any, ...]) -> Any:
        first = None if leading is None else flat[leading]
        if isinstance(first, torch.Tensor) and first.get_device() == current():  # -1 on the CPU
            return run(flat)
        for index in state.tensors:
            for tensor in tensors_in(flat[index]):
                device = tensor.device
                if device.type == device_type:
                    if device.index == current():
                        return run(flat)
                    with module.device(device):
                        return run(flat)
        return run(flat)

    return on_device


def output_check(state: Lowered, kernel: Kernel) -> Callable[[tuple[Any, ...], Any], Any]:
    """Return the function that takes what a kernel returned for these arguments, or raises."""
    record = state.record
    returns = record.schema.returns
    any_alias, tensor_class = aliases.any_alias, torch.Tensor
    plain = [str(entry.type) for entry in returns]

    def nothing(flat: tuple[Any, ...], out: Any) -> None:
        if out is not None:
            raise bad_output(record, kernel, "None", out)

    def one(flat: tuple[Any, ...], out: Any) -> Any:
        if not isinstance(out, tensor_class):
            raise bad_output(record, kernel, "a tensor", out)
        if any_alias(flat, {}, (out,)):
            check_aliases(record, flat, out, shares_storage)
        return out

    if not returns:
        return nothing
    if plain == ["Tensor"] and not record.schema.is_tuple:
        return one
    return _several_check(state, kernel)


def _several_check(state: Lowered, kernel: Kernel) -> Callable[[tuple[Any, ...], Any], Any]:
    """Return the check of outputs that are several, lists, optional, numbers, or arguments themselves."""
    record = state.record
    single = is_one(record)
    position = {argument.name: i for i, argument in enumerate(record.schema.arguments)}
    same = [(i, position[name], not_same(record, kernel, i, name)) for i, name in same_objects(record)]
    undefined = may_be_undefined(record) and kernel.flavour in _OWN
    take = checked_outputs(record, kernel, _accept, None, "a tensor", undefined=undefined)
    any_alias, tensor_class, count = aliases.any_alias, torch.Tensor, len(record.schema.returns)
    plain = not single and all(str(entry.type) == "Tensor" for entry in record.schema.returns)

    def check(flat: tuple[Any, ...], out: Any) -> Any:
        if plain and out.__class__ is tuple and len(out) == count:
            for one in out:
                if one.__class__ is not tensor_class:
                    break
            else:
                if not any_alias(flat, {}, out):
                    return out
        taken = take(out)
        outs = (taken,) if single else taken
        for index, argument, wrong in same:
            if outs[index] is not flat[argument]:
                wrong(outs[index])
        check_aliases(record, flat, taken, shares_storage)
        return taken

    return check


def _accept(value: Any) -> torch.Tensor | None:
    return value if isinstance(value, torch.Tensor) else None
