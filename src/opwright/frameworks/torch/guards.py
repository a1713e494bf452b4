"""Guards of the direct call: whether a call may skip torch's dispatcher.

* One C call of torch's own compares class, dispatch keys with the thread's, dtype, device, number of
  dimensions and ``requires_grad`` of all tensors at once.
* It takes the thread's keys as they are when the guard is made, so a guard is made only in states that
  are known to be harmless: the plain one, inference mode, and autocast where the operator has no rule.
* It aborts the process on a strided nested tensor, batched ones included: callers test for these first.
* It takes no tensor for two: which arguments are the same object is compared apart.
* ``UNAVAILABLE`` says why this torch has no direct call, or is None: a missing or wrong guard is found by
  a test when this module is imported.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode  # torch documents it under this path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Check = Any
"""``check(*tensors)`` is true where a call is like the one that the guard was made of."""

CLASSES = (Tensor, Parameter)

DEVICES = ("cpu", "cuda", "xpu", "mps")
"""Device types whose tensors are what they seem; those of others may be wrappers of torch's own class."""


class Probes(NamedTuple):
    """Torch's private functions that the direct call needs, each a test of the thread's state."""

    tensor_guards: Any
    included: Callable[[], Any]
    excluded: Callable[[], Any]
    keys_of: Callable[[Tensor], Any]
    tracing: Callable[[], Any]
    overridden: Callable[..., bool]
    overridden_one: Callable[[Any], bool]
    increment_version: Callable[[Any], None]
    functional: Callable[[Tensor], Tensor]


class ThreadKeys(NamedTuple):
    """The dispatch keys that a thread includes and excludes, as numbers."""

    included: int
    excluded: int


def _probe() -> Probes:
    core: Any = torch._C  # noqa: SLF001  (no public test of any of these exists)
    torch.autograd.forward_ad._current_level  # noqa: B018, SLF001  (read by generated code)
    torch.autograd.profiler._is_profiler_enabled  # noqa: B018, SLF001  (the same)
    return Probes(
        tensor_guards=core._dynamo.guards.TensorGuards,  # noqa: SLF001
        included=core._dispatch_tls_local_include_set,  # noqa: SLF001
        excluded=core._dispatch_tls_local_exclude_set,  # noqa: SLF001
        keys_of=core._dispatch_keys,  # noqa: SLF001
        tracing=core._get_tracing_state,  # noqa: SLF001
        overridden=core._has_torch_function_variadic,  # noqa: SLF001
        overridden_one=core._has_torch_function_unary,  # noqa: SLF001
        increment_version=core._increment_version,  # noqa: SLF001
        functional=torch._to_functional_tensor,  # noqa: SLF001
    )


def make_check(tensors: Sequence[Tensor]) -> Check:
    """Return the guard of these tensors in the present state of the thread; sizes and strides are free."""
    first = {id(tensor): position for position, tensor in reversed(list(enumerate(tensors)))}
    if len(first) < len(tensors):
        return _check_of_repeated(tensors, [first[id(tensor)] for tensor in tensors])
    free = [[None] * tensor.dim() for tensor in tensors]
    guards = PROBES.tensor_guards(*tensors, dynamic_dims_sizes=free, dynamic_dims_strides=free)
    return guards.check


def _check_of_repeated(tensors: Sequence[Tensor], first: list[int]) -> Check:
    """Return the guard of tensors of which some are the same object; ``first`` has where each comes first."""
    distinct = sorted(set(first))
    repeated = [(place, where) for place, where in enumerate(first) if place != where]
    check = make_check([tensors[place] for place in distinct])

    def check_repeated(*values: Any) -> Any:
        for place, where in repeated:
            if values[place] is not values[where]:
                return False
        return check(*[values[place] for place in distinct])

    return check_repeated


def thread_is_known(*, autocast: bool) -> bool:
    """Return whether a guard may be made in the present state of the thread.

    Parameters
    ----------
    autocast
        Whether it may be made while autocast is on.
    """
    now = _thread_keys()
    known = _KNOWN.get(now.included)
    if known is None or PROBES.tracing() is not None:
        return False
    # Threads that run backwards on a GPU exclude a key more, one that plain tensors do not have.
    if now.excluded & ~known & (_PLAIN | now.included):
        return False
    turned_on = known & ~now.excluded
    return not turned_on or (autocast and not turned_on & ~_AUTOCAST)


def is_plain(tensor: Any) -> bool:
    """Return whether a value is a dense tensor of torch's own class, with no key of any mode or wrapper."""
    if tensor.__class__ not in CLASSES:
        return False
    device = tensor.device.type
    keys = _plain_keys.get(device)
    if keys is None:
        keys = _plain_keys[device] = _keys_of_plain(device)
    return PROBES.keys_of(tensor).raw_repr() in keys


def _keys_of_plain(device: str) -> frozenset[int]:
    """Return the dispatch keys of dense tensors on a device, made in and outside inference mode."""
    if device not in DEVICES:
        return frozenset()
    found = set()
    for inference in (False, True):
        with torch.inference_mode(inference):
            found.add(PROBES.keys_of(torch.empty(0, device=device)).raw_repr())
    return frozenset(found)


def _backend_of_cpu() -> int:
    """Return the bit that names the CPU in a key of it; to exclude that alone is to exclude no key.

    Torch 2.9 leaves it among a thread's excluded keys when a key of the CPU is no longer excluded.
    """
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet  # noqa: SLF001
    shared: int = keys(key.CPU).raw_repr() & keys(key.AutogradCPU).raw_repr()
    return shared


def _thread_keys() -> ThreadKeys:
    return ThreadKeys(PROBES.included().raw_repr(), PROBES.excluded().raw_repr())


def _states_of_new_thread() -> tuple[ThreadKeys, ThreadKeys]:
    """Return the keys of a thread as torch starts it, and of the same thread in inference mode."""
    found: list[ThreadKeys] = []

    def look() -> None:
        found.append(_thread_keys())
        with torch.inference_mode():
            found.append(_thread_keys())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    plain, inference = found
    return plain, inference


def _self_test() -> str | None:
    """Return how a guard answers wrongly, or None; never asks about a nested tensor."""
    tensor = torch.zeros(2)
    check = make_check([tensor])
    negative = torch.zeros(2, dtype=torch.complex64).conj().imag
    wrong = {
        "another dtype": torch.zeros(2, dtype=torch.float64),
        "a tensor that requires a gradient": torch.zeros(2, requires_grad=True),
        "a negative view": negative,
        "a functional tensor": PROBES.functional(tensor),
        "a parameter": Parameter(tensor),
        "another number of dimensions": torch.zeros(2, 2),
        "no tensor": None,
    }
    if not (check(tensor) and check(torch.zeros(3)) and check(torch.zeros(6)[::2])):
        return "torch's tensor guards refuse a tensor like the one they were made of"
    for what, value in wrong.items():
        if check(value):
            return f"torch's tensor guards take {what} for a plain tensor"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if check(tensor):
            return "torch's tensor guards do not see autocast"
    with TorchDispatchMode():
        if check(tensor):
            return "torch's tensor guards do not see dispatch modes"
    return None


def _start() -> str | None:
    """Find torch's functions and test them; return why there can be no direct call, or None."""
    global PROBES, _KNOWN, _AUTOCAST, _PLAIN
    try:
        PROBES = _probe()
        plain, inference = _states_of_new_thread()
        _KNOWN = {plain.included: plain.excluded, inference.included: inference.excluded}
        _AUTOCAST = plain.excluded
        _PLAIN = (PROBES.keys_of(torch.empty(0)).raw_repr() & ~_backend_of_cpu()) | _AUTOCAST
        if len(_KNOWN) < len((plain, inference)):
            return "inference mode does not show in this torch's dispatch keys"
        reasons: list[str | None] = []
        thread = threading.Thread(target=lambda: reasons.append(_test_result()))
        thread.start()
        thread.join()
        return reasons[0]
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        return f"this torch lacks a guard: {error}"


def _test_result() -> str | None:
    try:
        return _self_test()
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        return f"this torch's guards fail: {error}"


PROBES: Probes
_KNOWN: dict[int, int]
_AUTOCAST: int
_PLAIN: int
_plain_keys: dict[str, frozenset[int]] = {}

UNAVAILABLE: str | None = _start()
"""Why every call takes torch's dispatcher in this torch, or None where direct calls are possible."""
