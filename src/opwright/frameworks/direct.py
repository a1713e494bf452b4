"""The specialised callable of a framework whose arrays are computed on directly, without transforms.

One generated function for each overload and array class: class tests, coercions, the kernel, output
tests. The aliasing of outputs is looked at in the first calls, by a wrapper that then takes itself away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.entry import Names, compile_function, flat_names, kernel_call
from opwright.errors import AliasError, ArgumentError, NoKernelError, OutputError, layout
from opwright.frameworks.base import Framework, bridge
from opwright.keys import key_of
from opwright.modes import ACTIVE
from opwright.scalars import coercion, fast_test
from opwright.schema import Argument, ListType, OptionalType, Return, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.overload import Kernel, OpOverload

CHECKED_CALLS = 3
"""How many calls of an overload, from each array class, have the aliasing of their outputs checked."""


class Direct:
    """How a framework's arrays are tested: what ``specialise`` needs to know of them.

    Parameters
    ----------
    framework
        The framework.
    array_class
        The exact class that needs no test.
    accept
        ``accept(value)`` returns an array of ``array_class`` for what also counts as one, else None.
    accept_output
        The same for what a kernel returns.
    shares_memory
        ``shares_memory(a, b)``: whether two arrays use one buffer.
    writable
        ``writable(array)``: whether an operator can mutate it.
    portable
        ``portable(array)``: why an ``array_api`` kernel cannot take it, or None.
    under_modes
        ``under_modes(record, call, values)`` runs a call while a mode is entered.
    """

    def __init__(
        self,
        framework: Framework,
        array_class: type,
        *,
        accept: Callable[[Any], Any],
        accept_output: Callable[[Any], Any],
        shares_memory: Callable[[Any, Any], bool],
        writable: Callable[[Any], bool],
        portable: Callable[[Any], str | None],
        under_modes: Callable[[OpOverload, Callable[..., Any], tuple[Any, ...]], Any],
    ) -> None:
        self.framework = framework
        self.array_class = array_class
        self.accept = accept
        self.accept_output = accept_output
        self.shares_memory = shares_memory
        self.writable = writable
        self.portable = portable
        self.under_modes = under_modes

    def specialise(self, record: OpOverload, values: Sequence[Any], key: type) -> Callable[..., Any]:
        """Return the callable for calls whose first array has class ``key``."""
        device_type = device_of_call(self.framework, record, values)
        kernel = record.select_kernel(self.framework.flavour, device_type)
        if kernel is None:
            fallback = record.fallbacks.get(key_of(device_type) or "")
            if fallback is None:
                raise no_kernel(record, self.framework, device_type)
            return _fallback_call(record, fallback)
        call = self._generate(record, kernel, key)
        return self._checked(record, key, call) if record.schema.returns else call

    def _generate(self, record: OpOverload, kernel: Kernel, key: type) -> Callable[..., Any]:
        schema = record.schema
        names = Names(schema)
        names.add("array", self.array_class)
        names.add("kernel", bridge(kernel, self.framework))
        under_modes = self.under_modes
        body = [f"if {names.add('active', ACTIVE)}[0]:"]
        inner = [*self._argument_lines(record, kernel, key, names)]
        out = names.prefix + "out"
        inner += [f"{out} = {names.prefix}kernel({kernel_call(schema)})"]
        inner += self._output_lines(record, kernel, names, out)
        flat = flat_names(schema)
        title = f"{schema.qualname} on {self.framework.name}"
        plain = compile_function(f"{title}, under modes", "call", flat, inner, names)

        def moded(*values: Any) -> Any:
            return under_modes(record, plain, values)

        body += [f"    return {names.add('moded', moded)}({flat})", *inner]
        return compile_function(title, "call", flat, body, names)

    def _argument_lines(self, record: OpOverload, kernel: Kernel, key: type, names: Names) -> list[str]:
        lines: list[str] = []
        known = key is self.array_class
        portable = self.portable if kernel.flavour == "array_api" else None
        for argument in record.schema.arguments:
            name = argument.name
            if not argument.has_tensors:
                target = self.framework
                coerce = names.add("coerce_" + name, coercion(record.qualname, argument, target.convert))
                test = fast_test(argument, name)
                lines.append(
                    f"if not ({test}): {name} = {coerce}({name})" if test else f"{name} = {coerce}({name})"
                )
                continue
            accept = names.add("accept_" + name, self._acceptor(record, argument, portable))
            plain = not argument.is_optional and not argument.is_list
            if argument.is_write or portable is not None:
                lines.append(f"{name} = {accept}({name})")
            elif not (plain and known):
                lines += _array_test(argument, name, accept, names.prefix)
            known = known and not plain
        return lines

    def _acceptor(
        self, record: OpOverload, argument: Argument, portable: Callable[[Any], str | None] | None
    ) -> Callable[[Any], Any]:
        """Return the function that makes an array argument acceptable, or raises."""
        array_class, accept = self.array_class, self.accept

        def one(value: Any, type_: Type) -> Any:
            if isinstance(type_, OptionalType):
                return None if value is None else one(value, type_.element)
            if isinstance(type_, ListType):
                if not isinstance(value, list | tuple):
                    raise not_an_array(record, argument, value, self.framework.name)
                return [one(element, type_.element) for element in value]
            array = value if value.__class__ is array_class else accept(value)
            if array is None:
                raise not_an_array(record, argument, value, self.framework.name)
            if argument.is_write and (
                (array is not value and self.accept(value) is None) or not self.writable(array)
            ):
                raise read_only(record, argument)
            reason = None if portable is None else portable(array)
            if reason is not None:
                raise ArgumentError(
                    layout(f"{record.qualname}: argument {argument.name} {reason}", fix="convert it first")
                )
            return array

        return lambda value: one(value, argument.type)

    def _output_lines(self, record: OpOverload, kernel: Kernel, names: Names, out: str) -> list[str]:
        returns = record.schema.returns
        check = names.add("output", self._output_check(record, kernel))
        cls = names.prefix + "array"
        lines: list[str]
        if not returns:
            lines = [f"if {out} is not None: {check}({out})"]
        elif len(returns) == 1 and not record.schema.is_tuple:
            exact = isinstance(returns[0].type.leaf(), type(returns[0].type)) and str(
                returns[0].type
            ).startswith("Tensor")
            test = f"if {out}.__class__ is not {cls}: " if exact else ""
            lines = [f"{test}{out} = {check}({out})"]
        else:
            tests = [f"{out}.__class__ is not tuple", f"len({out}) != {len(returns)}"]
            tests += [f"{out}[{i}].__class__ is not {cls}" for i in range(len(returns))]
            lines = [f"if {' or '.join(tests)}: {out} = {check}({out})"]
        for index, name in same_objects(record):
            single = len(returns) == 1 and not record.schema.is_tuple
            item = out if single else f"{out}[{index}]"
            wrong = names.add(f"not_same_{index}", not_same(record, kernel, index, name))
            lines.append(f"if {item} is not {name}: {wrong}({item})")
        return [*lines, f"return {out}" if returns else "return None"]

    def _output_check(self, record: OpOverload, kernel: Kernel) -> Callable[[Any], Any]:
        """Return the function that takes what a kernel returned that is not plainly right."""
        schema = record.schema
        returns = schema.returns

        def check(out: Any) -> Any:
            if not returns:
                raise bad_output(record, kernel, "None", out)
            if len(returns) == 1 and not schema.is_tuple:
                return self._one_output(record, kernel, returns[0], 0, out)
            if not isinstance(out, list | tuple) or len(out) != len(returns):
                raise bad_output(record, kernel, f"a tuple of {len(returns)}", out)
            return tuple(
                self._one_output(record, kernel, r, i, o)
                for i, (r, o) in enumerate(zip(returns, out, strict=True))
            )

        return check

    def _one_output(self, record: OpOverload, kernel: Kernel, entry: Return, index: int, out: Any) -> Any:
        def one(value: Any, type_: Type) -> Any:
            if isinstance(type_, OptionalType):
                return None if value is None else one(value, type_.element)
            if isinstance(type_, ListType):
                if not isinstance(value, list | tuple):
                    raise bad_output(record, kernel, f"a list as output {index}", out)
                return [one(element, type_.element) for element in value]
            if not str(type_).startswith("Tensor"):
                argument = Argument(entry.name or f"output_{index}", type_)
                try:
                    return coercion(record.qualname, argument, self.framework.convert)(value)
                except ArgumentError:
                    raise bad_output(record, kernel, f"{type_} as output {index}", out) from None
            array = value if value.__class__ is self.array_class else self.accept_output(value)
            if array is None:
                raise bad_output(record, kernel, f"an array of {self.framework.name} as output {index}", out)
            return array

        return one(out, entry.type)

    def _checked(self, record: OpOverload, key: type, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with the aliasing of its outputs checked, for the first few times."""
        left = CHECKED_CALLS

        def checked(*values: Any) -> Any:
            nonlocal left
            out = call(*values)
            check_aliases(record, values, out, self.shares_memory)
            left -= 1
            if left <= 0 and record.table.get(key) is checked:
                record.table[key] = call
            return out

        return checked


def _array_test(argument: Argument, name: str, accept: str, prefix: str) -> list[str]:
    """Return lines that leave arrays of the exact class as they are and hand all else to ``accept``."""
    cls = prefix + "array"
    if not argument.is_list:
        optional = f"{name} is not None and " if argument.is_optional else ""
        return [f"if {optional}{name}.__class__ is not {cls}: {name} = {accept}({name})"]
    each = prefix + "each"
    return [
        f"if {name}.__class__ is not list: {name} = {accept}({name})",
        "else:",
        f"    for {each} in {name}:",
        f"        if {each}.__class__ is not {cls}:",
        f"            {name} = {accept}({name})",
        "            break",
    ]


def _fallback_call(record: OpOverload, kernel: Kernel) -> Callable[..., Any]:
    """Return the callable that runs a fallback: it gets the operator, then the arguments."""
    count = len(record.schema.positional)
    keyword_only = [argument.name for argument in record.schema.keyword_only]
    leading = (None,) if kernel.with_keyset else ()

    def call(*values: Any) -> Any:
        kwargs = dict(zip(keyword_only, values[count:], strict=True))
        return kernel.fn(*leading, record.operator, *values[:count], **kwargs)

    return call


def device_of_call(framework: Framework, record: OpOverload, values: Sequence[Any]) -> str:
    """Return the device type of the first array, else that of a device argument, else the framework's own."""
    for argument, value in zip(record.schema.arguments, values, strict=True):
        if argument.has_tensors:
            for array in value if isinstance(value, list | tuple) else (value,):
                if array is not None:
                    return framework.device_type(array)
    for argument, value in zip(record.schema.arguments, values, strict=True):
        if argument.base == "Device" and value is not None and not argument.is_list:
            return str(getattr(value, "type", value)).partition(":")[0]
    return framework.device_type(None)


def no_kernel(record: OpOverload, framework: Framework, device_type: str) -> NoKernelError:
    """Return the error for a call that no kernel can take."""
    return NoKernelError(
        layout(
            f"{record.qualname} has no kernel for {framework.name} arrays on {device_type}",
            expected=f"kernels for {record.kernels_text()}",
            got=f"{framework.name} arrays on {device_type}",
            registered=record.source,
            fix=f"register one: @opwright.register_kernel({record.qualname!r}, {device_type!r})",
        )
    )


def not_an_array(record: OpOverload, argument: Argument, value: Any, framework: str) -> ArgumentError:
    """Return the error for an argument that is no array of the framework, or no list of them."""
    if argument.is_list and not isinstance(value, list | tuple):
        what, expected = "must be a list of arrays", str(argument.type)
    else:
        what, expected = "must be an array", f"an array of {framework}"
    return ArgumentError(
        layout(
            f"{record.qualname}: argument {argument.name} {what}",
            expected=expected,
            got=type(value).__module__ + "." + type(value).__qualname__,
            fix="make it an array first, for example with numpy.asarray",
        )
    )


def read_only(record: OpOverload, argument: Argument) -> ArgumentError:
    """Return the error for a mutated argument that cannot be written to."""
    return ArgumentError(
        layout(
            f"{record.qualname} mutates argument {argument.name}, which is read-only",
            expected="an array that can be written to",
            fix=f"pass {argument.name}.copy(), and use the copy afterwards",
        )
    )


def bad_output(record: OpOverload, kernel: Kernel, expected: str, out: Any) -> OutputError:
    """Return the error for a kernel that returned something else than its schema says."""
    got = type(out).__name__
    if isinstance(out, list | tuple):
        got += f" of {len(out)} ({', '.join(type(one).__name__ for one in out)})"
    return OutputError(
        layout(
            f"kernel of {record.qualname} returned something else than its schema says",
            expected=f"{expected}: {record.schema}",
            got=got,
            registered=kernel.source,
        )
    )


def same_objects(record: OpOverload) -> list[tuple[int, str]]:
    """Return the index of each return that is a mutated argument itself, with that argument's name."""
    found = []
    for index, entry in enumerate(record.schema.returns):
        sets = {name for alias in entry.type.aliases() if alias.is_write for name in alias.before}
        for argument in record.schema.mutated:
            if argument.is_tensor and any(
                n in sets for alias in argument.type.aliases() for n in alias.before
            ):
                found.append((index, argument.name))
    return found


def not_same(record: OpOverload, kernel: Kernel, index: int, name: str) -> Callable[[Any], None]:
    """Return the function that raises where a return is not the argument that it must be."""

    def wrong(out: Any) -> None:
        raise OutputError(
            layout(
                f"kernel of {record.qualname} must return its argument {name} itself as output {index}",
                got=f"another object of type {type(out).__name__}",
                registered=kernel.source,
                fix=f"return {name}",
            )
        )

    return wrong


def check_aliases(
    record: OpOverload, values: Sequence[Any], out: Any, shares_memory: Callable[[Any, Any], bool]
) -> None:
    """Raise where an output shares memory with an argument or with another output.

    Returns with an alias annotation are left out: their schema allows it.

    Raises
    ------
    AliasError
        Naming the output and the argument or the other output.
    """
    schema = record.schema
    outs = [out] if len(schema.returns) == 1 and not schema.is_tuple else list(out)
    seen: list[tuple[str, Any]] = []
    for argument, value in zip(schema.arguments, values, strict=True):
        if argument.has_tensors:
            seen += [(f"argument {argument.name}", array) for array in _leaves(value)]
    for index, (entry, value) in enumerate(zip(schema.returns, outs, strict=True)):
        if any(True for _ in entry.type.aliases()) or str(entry.type.leaf()) != "Tensor":
            continue
        for array in _leaves(value):
            for what, other in seen:
                if array is other or shares_memory(array, other):
                    raise alias_error(record, index, what, same=array is other)
            seen.append((f"output {index}", array))


def alias_error(record: OpOverload, index: int, what: str, *, same: bool) -> AliasError:
    """Return the error for an output that is, or shares memory with, something it may not."""
    return AliasError(
        layout(
            f"output {index} of {record.qualname} {'is' if same else 'shares memory with'} {what}"
            f"{' itself' if same else ''}; an output may not alias an argument or another output",
            registered=record.kernels_text(),
            fix="return a copy, or declare the aliasing in the schema",
        )
    )


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [array for element in value for array in _leaves(element)]
    return [] if value is None else [value]
