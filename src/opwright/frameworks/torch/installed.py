"""Kernels in torch's dispatcher that can be taken out one by one, each in a torch Library of its own."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from opwright.errors import RegistrationError, layout
from opwright.frameworks.torch import backend, private, retired, watched
from opwright.keys import device_of
from opwright.overload import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opwright.frameworks.torch.lowered import Lowered


class Installed:
    """What one registration put into torch's dispatcher; ``destroy`` takes it out, and only it.

    Parameters
    ----------
    namespace
        The namespace of the operators, or ``_`` for fallbacks of torch's own.
    """

    __slots__ = ("handles", "library")

    def __init__(self, namespace: str) -> None:
        self.library = torch.library.Library(namespace, "IMPL")
        self.handles: list[Any] = []

    def impl(self, name: str, fn: Callable[..., Any], keys: Iterable[str], *, with_keyset: bool) -> None:
        """Put a kernel at dispatch keys of an operator."""
        for key in keys:
            with warnings.catch_warnings():
                # Torch warns once a process of any kernel that covers another; our registry tells more.
                warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
                self._impl(name, fn, key, with_keyset=with_keyset)

    def _impl(self, name: str, fn: Callable[..., Any], key: str, *, with_keyset: bool) -> None:
        try:
            watched.impl(self.library, name, fn, key, with_keyset=with_keyset)
        except RuntimeError as error:
            raise RegistrationError(
                layout(
                    f"torch {torch.__version__} refused a kernel of {self.library.ns}::{name} for {key}",
                    got=str(error).splitlines()[0],
                )
            ) from None

    def fallback(self, fn: Callable[..., Any], kernel: Kernel) -> bool:
        """Put a fallback at a key for every operator; return False where torch holds one itself."""
        try:
            self.library.fallback(fn, kernel.key, with_keyset=kernel.with_keyset)
        except RuntimeError as error:
            if "multiple backend fallbacks" in str(error):
                return False
            raise RegistrationError(
                layout(
                    f"torch {torch.__version__} refused a fallback for {kernel.key}",
                    got=str(error).splitlines()[0],
                    registered=kernel.source,
                )
            ) from None
        return True

    def destroy(self) -> None:
        """Take it out of the dispatcher; what it covered is in force again."""
        for handle in self.handles:
            handle.destroy()
        self.handles.clear()
        retired.destroy(self.library)


def install(
    state: Lowered, keys: Iterable[str], fn: Callable[..., Any], *, with_keyset: bool = False
) -> Installed:
    """Put a kernel at dispatch keys of an operator, all or none."""
    installed = Installed(state.record.name.partition("::")[0])
    try:
        installed.impl(state.op_name, fn, keys, with_keyset=with_keyset)
    except BaseException:
        installed.destroy()
        raise
    return installed


def kernel_at(state: Lowered, kernel: Kernel) -> Callable[..., Any]:
    """Return the function for torch's dispatcher of a kernel that an author registered at a dispatch key.

    Torch leaves out arguments that equal their default; they are filled in again. What a kernel that takes
    tensors returns is torch's to judge, as it is for its own.
    """
    if kernel.falls_through:
        fallthrough: Callable[..., Any] = torch.library.fallthrough_kernel
        return fallthrough
    leading = 1 if kernel.with_keyset else 0
    fn, flat_of, apply, with_tuples = kernel.fn, state.flat, state.apply, state.record.schema.with_tuples
    device_type = device_of(kernel.key)

    def call(*args: Any, **kwargs: Any) -> Any:
        return apply(fn, tuple(with_tuples(flat_of(args[leading:], kwargs))), *args[:leading])

    def converted(*args: Any, **kwargs: Any) -> Any:
        return run(flat_of(args, kwargs))

    def converted_with_keys(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        # Made for each call: the dispatch keys are part of what runs, and few kernels ask for them.
        bound = Kernel(partial(fn, keyset), kernel.key, kernel.flavour, kernel.source)
        return backend.kernel_runner(state, bound, device_type)(flat_of(args, kwargs))

    if kernel.flavour in ("torch", "array_api"):
        return private.never_traced(call)
    if kernel.with_keyset:
        return private.never_traced(converted_with_keys)
    run = backend.kernel_runner(state, kernel, device_type)
    return private.never_traced(converted)
