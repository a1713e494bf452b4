"""``ops``: every operator by name, and ``OperatorPacket``, all overloads of one.

What is removed is gone from here at once: packets look their overloads up at every call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from opwright import registry
from opwright.arrays import arrays_of, not_an_array
from opwright.catalogue import framework_of_class
from opwright.entry import Names, defaults, flat_names, make_function, parameters, write_function
from opwright.errors import ArgumentError, RegistrationError, StaleError, layout
from opwright.operator import Operator, find_operator
from opwright.scalars import coercion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.overload import OpOverload


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
        records = registry.overloads_of(self._name)
        if not records:
            raise self._gone()
        return _packet, (self._name, [(record.key, record.operator.__module__) for record in records])

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(Operator), *self.overloads()})

    @property
    def _record(self) -> OpOverload:
        """The record of the default overload, to which a registration through the packet goes."""
        record = registry.records.get(f"{self._name}.default")
        if record is None:
            raise RegistrationError(
                layout(
                    f"operator {self._name} has no default overload",
                    expected=f"one of its overloads: {', '.join(self.overloads()) or 'it has none'}",
                    fix=f"name it: opwright.ops.{self._name.replace('::', '.')}.<overload>",
                )
            )
        return record

    def _gone(self) -> StaleError:
        return StaleError(
            layout(f"operator {self._name} was unregistered", fix="import the module that defines it")
        )

    def overloads(self) -> list[str]:
        """Return the overloads' names, in definition order."""
        return [record.overload or "default" for record in registry.overloads_of(self._name)]

    def __getattr__(self, name: str) -> Any:
        record = registry.records.get(f"{self._name}.{name}")
        if record is not None:
            return record.operator
        default = registry.records.get(f"{self._name}.default")
        if default is not None and not name.startswith("__") and hasattr(Operator, name):
            return getattr(default.operator, name)
        raise AttributeError(f"operator {self._name} has no overload {name!r}")

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the first overload, in definition order, that takes these arguments."""
        records = registry.overloads_of(self._name)
        if len(records) == 1:
            return records[0].operator(*args, **kwargs)
        if not records:
            raise self._gone()
        reasons: list[str] = []
        for record in records:
            test = _tests.get(record) or _tests.setdefault(record, _test(record))
            try:
                test(*args, **kwargs)
            except TypeError as error:
                reasons.append(f"{record.schema}: {str(error).splitlines()[0]}")
            else:
                return record.operator(*args, **kwargs)
        rows = "".join(f"\n    {reason}" for reason in reasons)
        raise ArgumentError(layout(f"no overload of {self._name} takes these arguments", got=rows))


_tests: WeakKeyDictionary[OpOverload, Callable[..., None]] = WeakKeyDictionary()
"""The functions that raise a TypeError where not they are meant; for overloads that have siblings."""


def _test(record: OpOverload) -> Callable[..., None]:
    arguments = record.schema.arguments
    coercions = [None if a.has_tensors else coercion(record.qualname, a) for a in arguments]

    def test(*values: Any) -> None:
        for argument, coerce, value in zip(arguments, coercions, values, strict=True):
            if coerce is not None:
                coerce(value)
                continue
            for name, array in arrays_of(record, argument, value):
                if framework_of_class(array.__class__) is None:
                    raise not_an_array(record, name, array)

    names = Names(record.schema)
    body = [f"{names.add('test', test)}({flat_names(record.schema)})"]
    written = write_function("test", parameters(record.schema, names), body, names)
    title = f"which overload, {record.qualname}"
    function = make_function(title, written, defaults(record.schema))
    function.__qualname__ = record.name.partition("::")[2]  # the name in Python's own TypeErrors
    return function


class _Namespace:
    """``ops.ns``: the operators of a namespace by attribute."""

    def __init__(self, name: str) -> None:
        self.__name = name
        self.__packets: dict[str, OperatorPacket] = {}

    def __repr__(self) -> str:
        return f"<opwright.ops.{self.__name}>"

    def __dir__(self) -> list[str]:
        names = (record.name.partition("::") for record in list(registry.records.values()))
        return sorted({name for namespace, _, name in names if namespace == self.__name})

    def __getattr__(self, name: str) -> OperatorPacket:
        qualified = f"{self.__name}::{name}"
        if not registry.overloads_of(qualified):
            raise AttributeError(
                f"no operator {qualified} is defined{_waiting(qualified)}; import the module that defines it"
            )
        packet = self.__packets.get(name)
        return packet or self.__packets.setdefault(name, OperatorPacket(qualified))


def _waiting(name: str) -> str:
    waiting = [
        (key, entries) for key, entries in list(registry.pending.items()) if key.startswith(name + ".")
    ]
    return "".join(
        f"; {entry.what} waits for it ({entry.source})" for _, entries in waiting for entry in entries
    )


class _Ops:
    """``ops``: the namespaces of operators by attribute."""

    def __repr__(self) -> str:
        return "<opwright.ops>"

    def __dir__(self) -> list[str]:
        return sorted({record.name.partition("::")[0] for record in list(registry.records.values())})

    def __getattr__(self, name: str) -> _Namespace:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        # Dynamo traces this, and in torch 2.9 knows no setdefault of __dict__. Of two threads each may make
        # one: it keeps packets, and these a name.
        namespace = _Namespace(name)
        setattr(self, name, namespace)
        return namespace


ops = _Ops()
"""Every operator: ``ops.ns.name`` is a packet, ``ops.ns.name.overload`` an operator."""


def _packet(name: str, overloads: Sequence[tuple[str, str]] = ()) -> OperatorPacket:
    """Find a packet by name, to unpickle it; the modules that define its overloads are imported."""
    for key, module in overloads:
        find_operator(key, module)
    namespace, _, base = name.partition("::")
    packet: OperatorPacket = getattr(getattr(ops, namespace), base)
    return packet
