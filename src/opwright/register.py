"""Every ``register_*``: find the operator, describe the rule, validate it, commit it.

Each works as a decorator (returns the function) and as a call (returns a ``Handle``), for an operator of
ours or one that a framework's own dispatcher holds, by name or object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import opwright.dispatch  # noqa: F401  (tells the frameworks of what is registered here)
from opwright import registry
from opwright.placement import require_device
from opwright.source import caller, source_of
from opwright.targets import (
    add_kernel,
    all_or_none,
    check_fake,
    device_keys,
    flavour_of,
    or_wait,
    owned_by,
    require,
    require_callable,
    require_differentiable,
    warn_of_own_fake,
)

if TYPE_CHECKING:
    from opwright.overload import OpOverload
    from opwright.registry import Handle
    from opwright.rules.base import Rule

F = TypeVar("F", bound=Callable[..., Any])


def result(func: Any, register: Callable[[Any], Handle]) -> Any:
    """Register ``func``, or return the decorator that registers and returns what it decorates."""
    if func is not None:
        return register(func)

    def decorate(fn: F) -> F:
        register(fn)
        return fn

    return decorate


def register_kernel(
    op: Any,
    device_types: str | Sequence[str] | None,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Any = None,
    flavour: str | None = None,
    copy: bool = False,
) -> Any:
    """Register a kernel for one or more device types, or for every device (``None``).

    Parameters
    ----------
    op
        A qualified name, an operator, or one that a framework's dispatcher holds. A name that is not
        defined yet waits until it is.
    device_types
        Device types in torch's words, such as ``"cpu"`` or ``("cpu", "cuda")``.
    func
        The kernel; left out, this is a decorator.
    lib
        A ``Library`` that owns the registration.
    flavour
        The arrays that the body takes, where its annotations do not say.
    copy
        Whether arrays on a device that the host cannot see may be copied to the host for this kernel, which
        takes NumPy arrays, and its results back to that device. Otherwise data is never moved.

    Raises
    ------
    RegistrationError
        If a device type is unknown, or the signature or flavour does not fit; nothing has changed then.
    """
    keys = device_keys(device_types)

    def register(fn: Callable[..., Any]) -> Handle:
        def apply(record: OpOverload) -> Handle:
            require_device(record.schema, keys, source_of(fn))
            with all_or_none() as handles:
                for key in keys:
                    handle = add_kernel(record, key, fn, flavour=flavour, copy=copy)
                    handles.append(handle)  # before the next one may raise
            return registry.group(fn, handles, source_of(fn))

        require_callable("a kernel", fn)
        return owned_by(lib, lambda: or_wait(op, f"kernel for {', '.join(keys)}", fn, apply))

    return result(func, register)


def _register_rule(
    op: Any, fn: Any, describe: Callable[[OpOverload], Rule], *, lib: Any, allow_override: bool = True
) -> Handle:
    """Validate and commit a rule of an operator that must exist."""

    def register() -> Handle:
        record = require(op)
        return registry.add_rule(record, describe(record), fn, allow_override=allow_override)

    return owned_by(lib, register)


def register_fake(
    op: Any,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Any = None,
    _stacklevel: int = 1,
    allow_override: bool = True,
    flavour: str | None = None,
) -> Any:
    """Register the fake: a function with the operator's parameters that returns outputs without data.

    Parameters
    ----------
    op
        A qualified name or an operator. A name that is not defined yet waits until it is.
    func
        The fake; left out, this is a decorator.
    lib
        A ``Library`` that owns the registration.
    _stacklevel
        Taken because torch takes it; the fake's own source line needs no frame to be counted.
    allow_override
        Whether a fake that is registered already may be covered.
    flavour
        The arrays that the body takes, where its annotations do not say.

    Raises
    ------
    RegistrationError
        If the signature is not the operator's; ``DuplicateError`` if overriding was not allowed.
    """
    from opwright.rules import fake

    def register(fn: Callable[..., Any]) -> Handle:
        def apply(record: OpOverload) -> Handle:
            rule = fake.describe(record.schema, fn, flavour_of(fn, record, flavour, kernel=False))
            check_fake(record, rule.source, allow_override=allow_override)
            warn_of_own_fake(record)
            return registry.add_rule(record, rule, fn, allow_override=allow_override)

        require_callable("a fake", fn)
        return owned_by(lib, lambda: or_wait(op, "fake", fn, apply))

    return result(func, register)


def impl_abstract(
    qualname: str, func: Callable[..., Any] | None = None, *, lib: Any = None, _stacklevel: int = 1
) -> Any:
    """Register a fake under the name that ``register_fake`` had before. Deprecated."""
    import warnings

    warnings.warn(
        "opwright.impl_abstract is deprecated; use opwright.register_fake",
        FutureWarning,
        stacklevel=caller()[1],
    )
    return register_fake(qualname, func, lib=lib)


def register_autograd(
    op: Any,
    backward: Callable[..., Any] | None = None,
    /,
    *,
    setup_context: Callable[..., None] | None = None,
    lib: Any = None,
    flavour: str | None = None,
) -> Any:
    """Register the gradient: ``backward(ctx, *grads)``, and ``setup_context(ctx, inputs, output)``.

    Parameters
    ----------
    op
        A qualified name or an operator.
    backward
        Returns one gradient, a tuple with one for each argument, or a dict by argument name. Left out,
        this is a decorator.
    setup_context
        Keeps on ``ctx`` what the backward needs; takes ``keyword_only_inputs`` too where the schema has
        keyword-only arguments.
    lib
        A ``Library`` that owns the registration.
    flavour
        The arrays that the bodies take, where the backward's annotations do not say.

    Raises
    ------
    RegistrationError
        If there is no such operator, or a signature is not the one it is called with.
    """
    from opwright.rules import autograd

    def register(fn: Callable[..., Any]) -> Handle:
        def describe(record: OpOverload) -> Rule:
            require_differentiable(record, fn, "backward")
            chosen = flavour_of(fn, record, flavour, kernel=False)
            return autograd.describe(record.schema, fn, setup_context, chosen)

        return _register_rule(op, fn, describe, lib=lib)

    return result(backward, register)


def register_jvp(
    op: Any,
    func: Callable[..., Any] | None = None,
    /,
    *,
    setup_context: Callable[..., None] | None = None,
    lib: Any = None,
    flavour: str | None = None,
) -> Any:
    """Register the tangent: ``jvp(ctx, *tangents)`` returns the tangents of the outputs.

    Parameters
    ----------
    op
        A qualified name or an operator.
    func
        Gets one tangent for each argument (None where it has none). Left out, this is a decorator.
    setup_context
        As for ``register_autograd``, whose own is used where none is given.
    lib
        A ``Library`` that owns the registration.
    flavour
        The arrays that the body takes, where its annotations do not say.

    Raises
    ------
    RegistrationError
        If there is no such operator, or a signature is not the one it is called with.
    """
    from opwright.rules import jvp

    def register(fn: Callable[..., Any]) -> Handle:
        def describe(record: OpOverload) -> Rule:
            require_differentiable(record, fn, "jvp")
            chosen = flavour_of(fn, record, flavour, kernel=False)
            return jvp.describe(record.schema, fn, setup_context, chosen)

        return _register_rule(op, fn, describe, lib=lib)

    return result(func, register)


def register_vmap(
    op: Any,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Any = None,
    flavour: str | None = None,
) -> Any:
    """Register the batching rule: ``fn(info, in_dims, *args, **kwargs)`` returns ``(outputs, out_dims)``.

    Parameters
    ----------
    op
        A qualified name or an operator.
    func
        The rule; left out, this is a decorator.
    lib
        A ``Library`` that owns the registration.
    flavour
        The arrays that the body takes, where its annotations do not say.

    Raises
    ------
    RegistrationError
        If there is no such operator, or the signature is not the one it is called with.
    """
    from opwright.rules import vmap

    def register(fn: Callable[..., Any]) -> Handle:
        def describe(record: OpOverload) -> Rule:
            return vmap.describe(record.schema, fn, flavour_of(fn, record, flavour, kernel=False))

        return _register_rule(op, fn, describe, lib=lib)

    return result(func, register)


def register_autocast(op: Any, device_type: str, cast_inputs: Any, /, *, lib: Any = None) -> Handle:
    """Cast the floating inputs of an operator to a dtype while autocast is on for a device type.

    Parameters
    ----------
    op
        A qualified name or an operator.
    device_type
        In torch's words, such as ``"cuda"``.
    cast_inputs
        The dtype, of any framework or by name.
    lib
        A ``Library`` that owns the registration.

    Raises
    ------
    RegistrationError
        If there is no such operator, or the dtype is not a floating one.
    """
    from opwright.rules import autocast

    def describe(record: OpOverload) -> Rule:
        flavour = record.owner or record.flavour
        return autocast.describe(record.schema, device_type, cast_inputs, caller()[0], flavour)

    return _register_rule(op, None, describe, lib=lib)


def register_torch_dispatch(
    op: Any,
    torch_dispatch_class: type,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Any = None,
    allow_override: bool = True,
    flavour: str | None = None,
) -> Any:
    """Register what runs instead of the operator under a dispatch mode, or for a tensor subclass.

    Parameters
    ----------
    op
        A qualified name or an operator. A name that is not defined yet waits until it is.
    torch_dispatch_class
        The mode's class, or the tensor subclass.
    func
        ``fn(mode, func, types, args, kwargs)`` for a mode, ``fn(func, types, args, kwargs)`` for a
        subclass; left out, this is a decorator.
    lib
        A ``Library`` that owns the registration.
    allow_override
        Whether a rule that is registered already may be covered.
    flavour
        The arrays that the body takes, where its annotations do not say.

    Raises
    ------
    RegistrationError
        If the signature is not the one it is called with.
    """
    from opwright.rules import torch_dispatch

    def register(fn: Callable[..., Any]) -> Handle:
        def apply(record: OpOverload) -> Handle:
            chosen = flavour_of(fn, record, flavour, kernel=False)
            rule = torch_dispatch.describe(record.schema, torch_dispatch_class, fn, chosen)
            return registry.add_rule(record, rule, fn, allow_override=allow_override)

        require_callable("a dispatch rule", fn)
        return owned_by(lib, lambda: or_wait(op, "dispatch rule", fn, apply))

    return result(func, register)


def register_samples(op: Any, func: Callable[..., Any] | None = None, /, *, lib: Any = None) -> Any:
    """Register sample inputs for the checker: ``fn()`` returns or yields ``args`` or ``(args, kwargs)``.

    Parameters
    ----------
    op
        A qualified name or an operator.
    func
        Makes the samples, with NumPy arrays; left out, this is a decorator.
    lib
        A ``Library`` that owns the registration.

    Raises
    ------
    RegistrationError
        If there is no such operator, or ``fn`` takes parameters.
    """
    from opwright.rules import samples

    def register(fn: Callable[..., Any]) -> Handle:
        def describe(record: OpOverload) -> Rule:
            return samples.describe(record.schema, fn, flavour_of(fn, record, None, kernel=False))

        return _register_rule(op, fn, describe, lib=lib)

    return result(func, register)
