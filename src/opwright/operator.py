"""What users hold: ``Operator``, ``OperatorPacket`` and ``ops``.

* Each operator is the one instance of a final subclass whose ``__call__`` is generated with the schema's
  real parameters: the signature is right and a call costs one table look-up.
* Operators are pickled by name and are their own deep copies.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import update_wrapper
from inspect import isfunction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from opwright import references, register, registry
from opwright.dispatch import in_use, make_miss
from opwright.entry import call_function
from opwright.errors import StaleError, layout
from opwright.frameworks.base import load
from opwright.keys import DEFAULT, device_of, key_of
from opwright.overload import OpOverload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opwright.overload import Kernel
    from opwright.rules.base import Rule
    from opwright.schema import FunctionSchema

P = ParamSpec("P")
R = TypeVar("R")


class Operator(Generic[P, R]):
    """One overload of an operator: call it with arrays of any framework; register rules on it.

    Made by ``custom_op``, ``triton_op`` and ``Library.define``; also found as ``ops.ns.name.overload``.
    """

    __slots__ = ("__dict__", "__weakref__", "_library", "_record")
    _record: OpOverload
    _library: Callable[[], Any]

    def __init_subclass__(cls) -> None:
        """Leave out typing's search for type parameters, which the class of one operator never has."""

    def __init__(self, record: OpOverload, module: str) -> None:
        self._record = record
        self._library = _no_library
        self.__module__ = module

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the operator; the generated subclass has the real parameters."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<Operator {self._record.qualname}{self._record.schema.signature}>"

    def __reduce__(self) -> tuple[Any, ...]:
        registry.require_live(self._record)
        return find_operator, (self._record.key, self.__module__)

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
    def _namespace(self) -> str:
        return self._record.name.partition("::")[0]

    @property
    def _name(self) -> str:
        return self._record.qualname.partition("::")[2]

    @property
    def _tags(self) -> tuple[Any, ...]:
        """Torch's own tags; torch is imported for it."""
        return tuple(self._opoverload.tags)

    @property
    def _init_fn(self) -> Any:
        """The decorated function; None where the operator was defined without one."""
        return getattr(self, "__wrapped__", None)

    @property
    def _abstract_fn(self) -> Any:
        """The fake in force, or None."""
        rule = self._record.rule("fake")
        return None if rule is None else getattr(rule, "fn", None)

    @property
    def _backend_fns(self) -> Mapping[str | None, Any]:
        """The newest kernel for each device type, enabled or not; that for every device is at None."""
        return MappingProxyType(
            {
                device_of(kernel.key): kernel.fn
                for kernel in self._record.kernels
                if kernel.key == DEFAULT or device_of(kernel.key) is not None
            }
        )

    @property
    def _lib(self) -> Any:
        """The Library that owns the definition; None where that is gone."""
        return self._library()

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
        copy: bool = False,
    ) -> Any:
        """Register a kernel for device types, as ``opwright.register_kernel`` does."""
        return register.register_kernel(self, device_types, func, flavour=flavour, copy=copy)

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

    def register_vmap(self, func: Callable[..., Any] | None = None, *, flavour: str | None = None) -> Any:
        """Register the batching rule, as ``opwright.register_vmap`` does."""
        return register.register_vmap(self, func, flavour=flavour)

    def register_autocast(self, device_type: str, cast_inputs: Any) -> Any:
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

    def register_reference(
        self, func: Callable[..., Any] | None = None, /, *, flavour: str | None = None
    ) -> Any:
        """Register what the checker compares with, as ``opwright.register_reference`` does."""
        return references.register_reference(self, func, flavour=flavour)

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
            word = "on" if enabled else "off"
            _logger().warning(
                "the kernel of %s for %s is %s already", self._record.qualname, device_type, word
            )
        registry.set_enabled(self._record, kernels, [enabled] * len(kernels))
        try:
            yield
        finally:
            registry.set_enabled(self._record, kernels, before)


CustomOpDef = Operator
"""The name that the class has in torch.library, where code asks whether something is an operator."""


def _no_library() -> None:
    """Stand for the Library of an operator that has none."""


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
    operator.__name__ = operator.__qualname__ = name  # type: ignore[attr-defined]
    operator.__doc__ = f"The operator ``{record.schema}``."
    if fn is not None:
        documented = getattr(fn, "__doc__", None) or operator.__doc__
        # What is no plain function has attributes of its own kind, which an operator must not take over.
        update_wrapper(operator, fn, updated=("__dict__",) if isfunction(fn) else ())
        operator.__doc__ = documented
    record.operator = operator
    return operator


def find_operator(key: str, module: str) -> Operator[..., Any]:
    """Find an operator by name, to unpickle it; the module that defines it is imported if need be."""
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


def commit_definition(
    schema: FunctionSchema,
    *,
    flavour: str,
    source: str,
    module: str,
    tags: tuple[str, ...] = (),
    fn: Callable[..., Any] | None = None,
    kernels: tuple[Kernel, ...] = (),
    rules: tuple[Rule, ...] = (),
    non_differentiable: bool = False,
    replace_: bool = False,
) -> OpOverload:
    """Make the record and operator of a validated schema and commit them in one step."""
    in_use()  # modules are imported before the lock is taken
    record = OpOverload(
        schema, flavour=flavour, source=source, tags=tags, non_differentiable=non_differentiable
    )
    record.kernels = kernels
    record.rules = rules
    record.decorated = fn is not None
    make_operator(record, fn, module)
    registry.define(record, replace=replace_)
    return record


def module_of_caller() -> str:
    """Return the name of the module outside this package that is calling."""
    frame = sys._getframe(1)  # noqa: SLF001  (the documented way to a frame)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("opwright."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "__main__"))
