"""The specialised callable of a framework whose arrays are computed on directly, without transforms.

One generated function for each overload and class of the first array: class tests, coercions, the kernel,
output tests. What it finds is not plainly right goes to a slower function that accepts, converts, raises, or
hands the call on to the framework that takes such arrays. The aliasing of outputs is looked at in the first
calls, by a wrapper that then takes itself away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import catalogue, registry
from opwright.arrays import arrays_of, as_list, class_name, read_only, refused_array
from opwright.entry import Names, compile_function, flat_names, kernel_call
from opwright.frameworks.base import Framework, no_kernel, of_flavour
from opwright.frameworks.bridges import bridge
from opwright.keys import key_of
from opwright.modes import ACTIVE
from opwright.outputs import CHECKED_CALLS, check_aliases, is_one, not_same, output_check, same_objects
from opwright.overload import Kernel, OpOverload
from opwright.scalars import coercion, coercion_lines
from opwright.schema import Argument, BaseType, ListType, OptionalType, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


class _Foreign(Exception):  # noqa: N818  (a signal inside this module, never an error of a caller)
    """An array is not of this framework."""


class Direct:
    """How a framework's arrays are tested: what ``specialise`` needs to know of them.

    Parameters
    ----------
    framework
        The framework. All its arrays are on one device type.
    array_class
        The exact class that needs no test.
    accept
        ``accept(value)`` returns an array of ``array_class`` for what also counts as one, else None.
    accept_output
        The same for what a kernel returns.
    shares_memory
        ``shares_memory(a, b)``: whether two values are arrays that use one buffer.
    writable
        A source expression for whether the array ``{x}`` can be written to.
    portable
        A source expression for whether kernels of another flavour can take the array ``{x}``.
    lendable
        A source expression for whether another framework can write to the memory of the array ``{x}``.
    advice
        ``advice(name, value)``: the line that makes a refused array one that can be taken, or None.
    under_modes
        ``under_modes(record, call, values)`` runs a call while a mode is entered.
    around
        ``around(kernel)`` returns what runs a kernel, with the arrays' device current for example.
    """

    def __init__(
        self,
        framework: Framework,
        array_class: type,
        *,
        accept: Callable[[Any], Any],
        accept_output: Callable[[Any], Any],
        shares_memory: Callable[[Any, Any], bool],
        writable: str = "True",
        portable: str = "True",
        lendable: str = "True",
        advice: Callable[[str, Any], str | None] = lambda name, value: None,
        under_modes: Callable[[OpOverload, Callable[..., Any], tuple[Any, ...]], Any],
        around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn,
    ) -> None:
        self.framework = framework
        self.array_class = array_class
        self.accept = accept
        self.accept_output = accept_output
        self.shares_memory = shares_memory
        self.writable = writable
        self.portable = portable
        self.lendable = lendable
        self.advice = advice
        self.under_modes = under_modes
        self.around = around
        # Written by this framework's own module, never by a schema.
        self.is_writable: Callable[[Any], bool] = eval(f"lambda x: {writable.format(x='x')}")  # noqa: S307
        self.is_portable: Callable[[Any], bool] = eval(f"lambda x: {portable.format(x='x')}")  # noqa: S307
        self.is_lendable: Callable[[Any], bool] = eval(f"lambda x: {lendable.format(x='x')}")  # noqa: S307

    def specialise(self, record: OpOverload, values: Sequence[Any], key: Hashable) -> Callable[..., Any]:
        """Return the callable for calls that have ``key`` in the record's table."""
        device_type = device_of_call(self.framework, record, values)
        kernel = record.select_kernel(self.framework.flavour, device_type)
        if kernel is None:
            fallback = record.fallbacks.get(key_of(device_type) or "")
            if fallback is None or fallback.falls_through:
                raise no_kernel(record, self.framework, device_type)
            kernel = _as_kernel(record, fallback, self.framework.flavour)
        call = _Specialised(self, record, kernel, key).callable()
        return self._checked(record, key, call) if record.schema.returns else call

    def _checked(self, record: OpOverload, key: Hashable, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with the aliasing of its outputs checked, for the first few times."""
        left = CHECKED_CALLS

        def checked(*values: Any) -> Any:
            nonlocal left
            out = call(*values)
            if ACTIVE[0]:
                return out  # what a mode makes of a call is its own affair
            check_aliases(record, values, out, self.shares_memory)
            left -= 1
            if left <= 0:
                with registry.lock:
                    if record.table.get(key) is checked:
                        record.table[key] = call
            return out

        return checked


class _Specialised:
    """One callable in the making: the record, its kernel, and the class of the first array."""

    def __init__(self, direct: Direct, record: OpOverload, kernel: Kernel, key: Hashable) -> None:
        self.direct = direct
        self.record = record
        self.kernel = kernel
        self.known = key is direct.array_class
        self.own = kernel.flavour == direct.framework.flavour
        self.lent = not self.own and kernel.flavour != catalogue.ARRAY_API
        taker = direct.framework if kernel.flavour == catalogue.ARRAY_API else of_flavour(kernel.flavour)
        self.convert = taker.convert
        fn = direct.around(bridge(kernel, direct.framework, record))
        self.function = (lambda *args, **kwargs: fn(None, *args, **kwargs)) if kernel.with_keyset else fn

    def callable(self) -> Callable[..., Any]:
        """Return the callable, which asks for modes first."""
        plain: Callable[..., Any] | None = None

        def moded(*values: Any) -> Any:
            nonlocal plain
            if plain is None:
                plain = self._compile(None)
            return self.direct.under_modes(self.record, plain, values)

        return self._compile(moded)

    def _compile(self, moded: Callable[..., Any] | None) -> Callable[..., Any]:
        schema = self.record.schema
        names, flat = Names(schema), flat_names(schema)
        title = f"{schema.qualname} on {self.direct.framework.name}"
        body: list[str] = []
        if moded is None:
            title += ", under modes"
        else:
            body += [
                f"if {names.add('active', ACTIVE)}[0]:",
                f"    return {names.add('moded', moded)}({flat})",
            ]
        body += self._array_lines(names, flat)
        for argument in schema.arguments:
            if not argument.has_tensors:
                coerce = coercion(self.record.qualname, argument, self.convert)
                body += coercion_lines(argument, names.add("coerce_" + argument.name, coerce), names.add)
        out = names.prefix + "out"
        body.append(f"{out} = {names.add('kernel', self.function)}({kernel_call(schema)})")
        body += self._output_lines(names, out)
        call = compile_function(title, "call", flat, body, names)
        names.add("other", self._other(call))
        return call

    def _array_lines(self, names: Names, flat: str) -> list[str]:
        """Return the lines that hand a call to ``other`` unless each array is of the exact class and fit."""
        names.add("array", self.direct.array_class)
        leave = f"return {names.prefix}other({flat})"
        known, tests, lines = self.known, [], []
        for argument in self.record.schema.arguments:
            if not argument.has_tensors:
                continue
            if argument.is_list:
                lines += self._list_lines(argument, names, leave)
            else:
                test = self._test(argument, argument.name, names, known=known and not argument.is_optional)
                if test and argument.is_optional:
                    test = f"{argument.name} is not None and ({test})"
                tests += [test] if test else []
            known = False
        return [*([f"if {' or '.join(tests)}: {leave}"] if tests else []), *lines]

    def _test(self, argument: Argument, name: str, names: Names, *, known: bool = False) -> str:
        """Return an expression that is true where an array needs a closer look; empty where none does."""
        tests = [] if known else [f"{name}.__class__ is not {names.prefix}array"]
        if argument.is_write:
            tests.append(f"not ({self.direct.writable.format(x=name)})")
        if not self.own:
            tests.append(f"not ({self.direct.portable.format(x=name)})")
        if argument.is_write and self.lent:
            tests.append(f"not ({self.direct.lendable.format(x=name)})")
        return " or ".join(tests)

    def _list_lines(self, argument: Argument, names: Names, leave: str) -> list[str]:
        name, each = argument.name, names.prefix + "each"
        inner = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
        test = self._test(argument, each, names)
        if isinstance(inner, ListType) and isinstance(inner.element, OptionalType):
            test = f"{each} is not None and ({test})"
        loop = [f"for {each} in {name}:", f"    if {test}: {leave}"]
        is_list = f"{name}.__class__ is {names.add('list', list)}"
        size = inner.size if isinstance(inner, ListType) else None
        if size is not None:
            is_list += f" and {names.add('len', len)}({name}) == {size}"
        lines = [f"if {is_list}:", *(f"    {line}" for line in loop)]
        return [*lines, f"elif {name} is not None: {leave}" if argument.is_optional else f"else: {leave}"]

    def _other(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function for values that the generated code finds are not plainly right."""
        record = self.record
        arguments = record.schema.arguments
        returned = same_objects(record)
        places = {argument.name: index for index, argument in enumerate(arguments)}

        def other(*values: Any) -> Any:
            try:
                accepted = [
                    self._accept(a, as_list(v) if a.is_list else v) if a.has_tensors else v
                    for a, v in zip(arguments, values, strict=True)
                ]
            except _Foreign:
                accepted = None
            if accepted is None:
                return record.miss(*values)
            out = call(*accepted)
            for index, name in returned:  # the caller's own object, where a view of it was computed on
                out = (
                    values[places[name]]
                    if is_one(record)
                    else (*out[:index], values[places[name]], *out[index + 1 :])
                )
            return out

        return other

    def _accept(self, argument: Argument, value: Any) -> Any:
        """Return an argument with arrays as the generated code takes it."""
        for name, array in arrays_of(self.record, argument, value):
            self._require(argument, name, array)
        return self._accepted(value, argument.type)

    def _accepted(self, value: Any, type_: Type) -> Any:
        if isinstance(value, list | tuple) and not isinstance(type_, BaseType):
            return [self._accepted(element, BaseType("Tensor")) for element in value]
        return (
            value
            if value is None or value.__class__ is self.direct.array_class
            else self.direct.accept(value)
        )

    def _require(self, argument: Argument, name: str, value: Any) -> None:
        """Raise where an array cannot be taken."""
        direct, record = self.direct, self.record
        plain = f"{direct.array_class.__module__}.{direct.array_class.__qualname__}"
        array = value if value.__class__ is direct.array_class else direct.accept(value)
        if array is None:
            info = catalogue.framework_of_class(value.__class__)
            if info is None or info.name != direct.framework.name:
                raise _Foreign
            raise refused_array(
                record, name, class_name(value), f"a plain {plain}", direct.advice(name, value)
            )
        if argument.is_write:
            copied = array is not value and not direct.shares_memory(array, value)
            if copied or not direct.is_writable(array):
                raise read_only(record, name, value)
        if not self.own and not direct.is_portable(array):
            got = f"{class_name(value)} of dtype {getattr(array, 'dtype', None)}"
            expected = f"a dtype that a kernel of flavour {self.kernel.flavour} can take"
            raise refused_array(record, name, got, expected, "convert it first, with astype")
        if argument.is_write and self.lent and not direct.is_lendable(array):
            got = direct.framework.not_lent(array) or ""
            expected = f"an array whose memory a kernel of flavour {self.kernel.flavour} can write to"
            raise refused_array(record, name, got, expected, "pass a copy, and use the copy afterwards")

    def _output_lines(self, names: Names, out: str) -> list[str]:
        """Return the lines that test what the kernel returned and return it."""
        record, kernel, direct = self.record, self.kernel, self.direct
        returns = record.schema.returns
        arrays = f"an array of {direct.framework.name}"
        check = output_check(record, kernel, direct.accept_output, direct.framework.convert, arrays)
        name = names.add("check", check)
        array = names.prefix + "array"
        bare = [isinstance(entry.type, BaseType) and entry.type.name == "Tensor" for entry in returns]
        if not returns:
            tests = [f"{out} is not None"]
        elif is_one(record):
            tests = [f"{out}.__class__ is not {array}"] if bare[0] else []
        else:
            tests = [f"{out}.__class__ is not {names.add('tuple', tuple)}"]
            tests.append(f"{names.add('len', len)}({out}) != {len(returns)}")
            tests += [f"{out}[{index}].__class__ is not {array}" for index in range(len(returns))]
        change = f"{out} = {name}({out})"
        lines = [f"if {' or '.join(tests)}: {change}" if tests else change]
        for index, argument in same_objects(record):
            item = out if is_one(record) else f"{out}[{index}]"
            wrong = names.add(f"not_same_{index}", not_same(record, kernel, index, argument))
            lines.append(f"if {item} is not {argument}: {wrong}({item})")
        return [*lines, f"return {out}"]


def _as_kernel(record: OpOverload, fallback: Kernel, flavour: str) -> Kernel:
    """Return a fallback as a kernel of the operator: it gets the operator, then the arguments."""
    keyset = (None,) if fallback.with_keyset else ()

    def call(*args: Any, **kwargs: Any) -> Any:
        return fallback.fn(*keyset, record.operator, *args, **kwargs)

    return Kernel(call, fallback.key, flavour, fallback.source)


def device_of_call(framework: Framework, record: OpOverload, values: Sequence[Any]) -> str:
    """Return the device type of the first array, else that of a device argument, else the framework's own."""
    arguments = record.schema.arguments
    for argument, value in zip(arguments, values, strict=True):
        if argument.has_tensors:
            for array in value if isinstance(value, list | tuple) else (value,):
                if array is not None:
                    return framework.device_type(array)
    for argument, value in zip(arguments, values, strict=True):
        if argument.base == "Device" and value is not None and not argument.is_list:
            return str(getattr(value, "type", None) or getattr(value, "platform", value)).partition(":")[0]
    return framework.device_type(None)
