"""What users hold: ``Operator``, ``OperatorPacket`` and ``ops``.

* Each operator is the one instance of a final subclass whose ``__call__`` is generated with the schema's
  real parameters: the signature is right and a call costs one table look-up.
* Operators are pickled by name and are their own deep copies.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

from opwright import register, registry
from opwright.dispatch import make_miss
from opwright.entry import call_function
from opwright.errors import ArgumentError, StaleError, layout
from opwright.frameworks.base import load
from opwright.keys import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opwright.overload import OpOverload
    from opwright.schema import FunctionSchema

P = ParamSpec("P")
R = TypeVar("R")


class Operator(Generic[P, R]):
    """One overload of an operator: call it with arrays of any framework; register rules on it.

    Made by ``custom_op``, ``triton_op`` and ``Library.define``; also found as ``ops.ns.name.overload``.
    """

    __slots__ = ("__dict__", "__weakref__", "_record")
    _record: OpOverload

    def __init__(self, record: OpOverload, module: str) -> None:
        self._record = record
        self.__module__ = module

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the operator; the generated subclass has the real parameters."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<Operator {self._record.qualname}{self._record.schema.signature}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._record.key, self.__module__)

    def __copy__(self) -> Operator[P, R]:
        return self

    def __deepcopy__(self, memo: Any) -> Operator[P, R]:
        return self

    @property
    def name(self) -> str:
        """The qualified name, ``ns::name``."""
        return self._record.name

    @property
    def overload(self) -> str:
        """The overload's name, ``default`` for the unnamed one."""
        return self._record.overload or "default"

    @property
    def schema(self) -> FunctionSchema:
        """The schema."""
        return self._record.schema

    @property
    def tags(self) -> tuple[str, ...]:
        """The names of its tags."""
        return self._record.tags

    @property
    def _qualname(self) -> str:
        return self._record.name

    @property
    def _schema(self) -> FunctionSchema:
        return self._record.schema

    @property
    def _opoverload(self) -> Any:
        """Torch's own overload object; torch is imported for it."""
        return load("torch").native(self._record)

    def register_kernel(
        self,
        device_types: str | Sequence[str] | None,
        func: Callable[..., Any] | None = None,
        /,
        *,
        flavour: str | None = None,
    ) -> Any:
        """Register a kernel for device types, as ``opwright.register_kernel`` does."""
        return register.register_kernel(self, device_types, func, flavour=flavour)

    def register_fake(self, func: Callable[..., Any] | None = None, /, *, flavour: str | None = None) -> Any:
        """Register the fake, as ``opwright.register_fake`` does."""
        return register.register_fake(self, func, flavour=flavour)

    def register_autograd(
        self,
        backward: Callable[..., Any] | None = None,
        /,
        *,
        setup_context: Callable[..., None] | None = None,
        flavour: str | None = None,
    ) -> Any:
        """Register the gradient, as ``opwright.register_autograd`` does."""
        return register.register_autograd(self, backward, setup_context=setup_context, flavour=flavour)

    def register_jvp(
        self,
        func: Callable[..., Any] | None = None,
        /,
        *,
        setup_context: Callable[..., None] | None = None,
        flavour: str | None = None,
    ) -> Any:
        """Register the tangent, as ``opwright.register_jvp`` does."""
        return register.register_jvp(self, func, setup_context=setup_context, flavour=flavour)

    def register_vmap(self, func: Callable[..., Any] | None = None, /, *, flavour: str | None = None) -> Any:
        """Register the batching rule, as ``opwright.register_vmap`` does."""
        return register.register_vmap(self, func, flavour=flavour)

    def register_autocast(self, device_type: str, cast_inputs: Any, /) -> Any:
        """Cast floating inputs under autocast, as ``opwright.register_autocast`` does."""
        return register.register_autocast(self, device_type, cast_inputs)

    def register_torch_dispatch(
        self,
        torch_dispatch_class: type,
        func: Callable[..., Any] | None = None,
        /,
        *,
        flavour: str | None = None,
    ) -> Any:
        """Register what runs under a mode or for a subclass, as ``opwright.register_torch_dispatch`` does."""
        return register.register_torch_dispatch(self, torch_dispatch_class, func, flavour=flavour)

    def register_samples(self, func: Callable[..., Any] | None = None, /) -> Any:
        """Register sample inputs, as ``opwright.register_samples`` does."""
        return register.register_samples(self, func)

    @contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:
        """Turn the kernels of a device type on or off inside a ``with`` block.

        A device type without a kernel, or a state that it has already, is logged as a warning.
        """
        key = key_of(device_type)
        kernels = [kernel for kernel in self._record.kernels if kernel.key == key]
        before = [kernel.enabled for kernel in kernels]
        if not kernels:
            _logger().warning("%s has no kernel for %s to turn on or off", self._record.qualname, device_type)
        elif all(state == enabled for state in before):
            state = "on" if enabled else "off"
            _logger().warning(
                "the kernel of %s for %s is %s already", self._record.qualname, device_type, state
            )
        registry.set_enabled(self._record, kernels, enabled=enabled)
        try:
            yield
        finally:
            for kernel, state in zip(kernels, before, strict=True):
                registry.set_enabled(self._record, [kernel], enabled=state)


def _logger() -> Any:
    import logging

    return logging.getLogger("opwright")


def make_operator(record: OpOverload, fn: Callable[..., Any] | None, module: str) -> Operator[..., Any]:
    """Return the operator of a record, its ``__call__`` generated from the schema.

    ``fn`` is the decorated function, whose name, docstring and signature the operator takes.
    """
    name = record.name.partition("::")[2]
    call = call_function(record.schema, record.table, make_miss(record), name)
    cls = type(name, (Operator,), {"__slots__": (), "__call__": call, "__module__": module})
    operator: Operator[..., Any] = cls(record, module)
    if fn is not None:
        update_wrapper(operator, fn)
    else:
        operator.__name__ = name  # type: ignore[attr-defined]
        operator.__qualname__ = name  # type: ignore[attr-defined]
        operator.__doc__ = f"The operator ``{record.schema}``."
    record.operator = operator
    return operator


def _unpickle(key: str, module: str) -> Operator[..., Any]:
    """Find an operator by name; the module that defines it is imported where it is not known yet."""
    record = registry.records.get(key)
    if record is None:
        __import__(module)
        record = registry.records.get(key)
    if record is None:
        raise StaleError(
            layout(
                f"operator {key.removesuffix('.default')} is not defined in this process",
                expected=f"module {module} to define it on import",
                fix="define operators at module level, in a module that can be imported",
            )
        )
    operator: Operator[..., Any] = record.operator
    return operator


class OperatorPacket:
    """All overloads of ``ns::name``: calls try them in definition order; ``packet.overload`` is one.

    Rules registered through it go to ``default``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.__name__ = name.partition("::")[2]

    def __repr__(self) -> str:
        return f"<OperatorPacket {self._name} ({', '.join(self.overloads())})>"

    def __reduce__(self) -> tuple[Any, ...]:
        namespace, _, name = self._name.partition("::")
        return _packet, (namespace, name)

    @property
    def _record(self) -> OpOverload:
        """The record of the default overload."""
        return self._find("default")

    def _find(self, overload: str) -> OpOverload:
        record = registry.records.get(f"{self._name}.{overload}")
        if record is None:
            raise AttributeError(f"operator {self._name} has no overload {overload!r}")
        return record

    def overloads(self) -> list[str]:
        """Return the overloads' names, in definition order."""
        return [record.overload or "default" for record in registry.overloads_of(self._name)]

    def __getattr__(self, overload: str) -> Operator[..., Any]:
        if overload.startswith("__"):
            raise AttributeError(overload)
        record = registry.records.get(f"{self._name}.{overload}")
        if record is None:
            default = registry.records.get(f"{self._name}.default")
            if default is not None and hasattr(Operator, overload):
                found: Operator[..., Any] = getattr(default.operator, overload)
                return found
            raise AttributeError(f"operator {self._name} has no overload {overload!r}")
        operator: Operator[..., Any] = record.operator
        return operator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the first overload, in definition order, that takes these arguments."""
        records = registry.overloads_of(self._name)
        if len(records) == 1:
            return records[0].operator(*args, **kwargs)
        reasons: list[str] = []
        for record in records:
            try:
                _bound(record, args, kwargs)
            except (TypeError, ArgumentError) as error:
                reasons.append(f"{record.schema}: {str(error).splitlines()[0]}")
            else:
                return record.operator(*args, **kwargs)
        _no_overload(self._name, reasons)
        return None


def _no_overload(name: str, reasons: list[str]) -> NoReturn:
    raise ArgumentError(
        layout(f"no overload of {name} takes these arguments", got="; ".join(reasons) or "no overloads")
    )


def _bound(record: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise where an overload cannot take these arguments."""
    from opwright.catalogue import framework_of_class
    from opwright.scalars import coercion
    from opwright.schema import signature_of

    bound = signature_of(record.schema).bind(*args, **kwargs).arguments
    for argument in record.schema.arguments:
        if argument.name not in bound:
            continue
        value = bound[argument.name]
        if not argument.has_tensors:
            coercion(record.qualname, argument)(value)
        elif argument.is_tensor and value is not None and framework_of_class(type(value)) is None:
            raise ArgumentError(f"{argument.name} is not an array")
        elif value is None and not argument.is_optional:
            raise ArgumentError(f"{argument.name} is None")
        elif argument.is_list and value is not None and not isinstance(value, list | tuple):
            raise ArgumentError(f"{argument.name} must be a list of arrays")


class _Namespace:
    """``ops.ns``: the operators of a namespace by attribute."""

    def __init__(self, name: str) -> None:
        self.__name = name
        self.__packets: dict[str, OperatorPacket] = {}

    def __repr__(self) -> str:
        return f"<opwright.ops.{self.__name}>"

    def __dir__(self) -> list[str]:
        prefix = self.__name + "::"
        return sorted(
            {r.name.removeprefix(prefix) for r in registry.records.values() if r.name.startswith(prefix)}
        )

    def __getattr__(self, name: str) -> OperatorPacket:
        qualified = f"{self.__name}::{name}"
        if (name.startswith("__") and name.endswith("__")) or not registry.overloads_of(qualified):
            raise AttributeError(
                f"no operator {qualified} is defined{_waiting(qualified)}; import the module that defines it"
            )
        return self.__packets.setdefault(name, OperatorPacket(qualified))


def _waiting(name: str) -> str:
    entries = [e for key, es in registry.pending.items() if key.rpartition(".")[0] == name for e in es]
    return "".join(f"; {entry.what} waits for it ({entry.source})" for entry in entries)


class _Ops:
    """``ops``: the namespaces of operators by attribute."""

    def __init__(self) -> None:
        self.__namespaces: dict[str, _Namespace] = {}

    def __repr__(self) -> str:
        return "<opwright.ops>"

    def __dir__(self) -> list[str]:
        return sorted({record.name.partition("::")[0] for record in registry.records.values()})

    def __getattr__(self, name: str) -> _Namespace:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self.__namespaces.setdefault(name, _Namespace(name))


ops = _Ops()
"""Every operator: ``ops.ns.name`` is a packet, ``ops.ns.name.overload`` an operator."""


def _packet(namespace: str, name: str) -> OperatorPacket:
    packet: OperatorPacket = getattr(getattr(ops, namespace), name)
    return packet


def module_of_caller() -> str:
    """Return the name of the module outside this package that is calling."""
    frame = sys._getframe(1)  # noqa: SLF001  (the documented way to a frame)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("opwright."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "__main__"))
