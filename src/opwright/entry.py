"""From a schema to the source of a call function, compiled and visible in tracebacks and debuggers.

* The generated ``__call__`` has the operator's real parameters and does one table look-up.
* Names come from a validated schema; helpers are passed in as globals under a prefix that no parameter has.
"""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

from opwright.schema import Argument, FunctionSchema, OptionalType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FunctionType


class Names:
    """The names that generated code of an operator uses beside its parameters.

    Parameters
    ----------
    schema
        The operator's schema; no helper's name is that of a parameter.
    """

    def __init__(self, schema: FunctionSchema) -> None:
        prefix = "_ow_"
        while any(argument.name.startswith(prefix) for argument in schema.arguments):
            prefix += "_"
        self.prefix = prefix
        self.globals: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> str:
        """Make ``value`` available to the code and return the name it has there."""
        full = self.prefix + name
        self.globals[full] = value
        return full


def compile_function(
    title: str, name: str, parameters: str, body: Iterable[str], names: Names
) -> FunctionType:
    """Compile ``def name(parameters): body`` and enter its source where tracebacks look for it."""
    filename = f"<opwright {title}>"
    text = f"def {name}({parameters}):\n" + "".join(f"    {line}\n" for line in body)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace = names.globals
    namespace["__name__"] = "opwright.generated"
    exec(compile(text, filename, "exec"), namespace)
    function: FunctionType = namespace.pop(name)
    return function


def forget(title: str) -> None:
    """Drop the source of a generated function that nothing uses any more."""
    linecache.cache.pop(f"<opwright {title}>", None)


def parameters(schema: FunctionSchema, names: Names) -> str:
    """Return the parameter list of a schema, defaults and the keyword-only marker included."""

    def one(argument: Argument) -> str:
        if argument.default is None:
            return argument.name
        return f"{argument.name}={names.add('default_' + argument.name, argument.default.value)}"

    parts = [one(argument) for argument in schema.positional]
    if schema.keyword_only:
        parts += ["*", *(one(argument) for argument in schema.keyword_only)]
    return ", ".join(parts)


def flat_names(schema: FunctionSchema) -> str:
    """Return all parameter names in schema order, to pass them on by position."""
    return ", ".join(argument.name for argument in schema.arguments)


def kernel_call(schema: FunctionSchema, rename: Mapping[str, str] | None = None) -> str:
    """Return the argument list of a kernel: positional by position, keyword-only by name."""
    rename = rename or {}
    parts = [rename.get(a.name, a.name) for a in schema.positional]
    parts += [f"{a.name}={rename.get(a.name, a.name)}" for a in schema.keyword_only]
    return ", ".join(parts)


def first_array(values: Iterable[Any]) -> Any:
    """Return the first value that is not None, looking into lists and tuples; None where there is none."""
    for value in values:
        if value.__class__ is list or value.__class__ is tuple:
            found = first_array(value)
            if found is not None:
                return found
        elif value is not None:
            return value
    return None


def key_arguments(schema: FunctionSchema) -> list[Argument]:
    """Return the arguments whose first array, or else device or dtype object, decides the framework."""
    arrays = [argument for argument in schema.arguments if argument.has_tensors]
    if arrays:
        return arrays
    return [a for a in schema.arguments if a.base in ("Device", "ScalarType", "Layout") and not a.is_list]


def key_expression(schema: FunctionSchema, names: Names) -> str:
    """Return the source of what the table's key is the class of."""
    chosen = key_arguments(schema)
    if not chosen:
        return "None"
    first = chosen[0]
    if not first.is_list and not isinstance(first.type, OptionalType):
        return first.name
    search = names.add("first_array", first_array)
    rest = f"{search}(({', '.join(a.name for a in chosen)},))"
    if first.is_list:
        list_name = first.name
        test = f"{list_name}.__class__ is list and {list_name} and {list_name}[0] is not None"
        return f"({list_name}[0] if {test} else {rest})"
    if len(chosen) == 1:
        return first.name
    return f"({first.name} if {first.name} is not None else {rest})"


def call_function(
    schema: FunctionSchema, table: dict[type, Callable[..., Any]], miss: Callable[..., Any], name: str
) -> FunctionType:
    """Return the generated ``__call__`` of an operator.

    Parameters
    ----------
    schema
        Its schema.
    table
        From the class of the first array to the specialised callable, which takes all values by position.
    miss
        Called with all values by position where the table has nothing.
    name
        The function's name in tracebacks and in Python's own TypeErrors.
    """
    names = Names(schema)
    me = names.add("self", None)
    passed = flat_names(schema)
    key = key_expression(schema, names)
    body = [
        "try:",
        f"    {names.prefix}call = {names.add('table', table)}[{key}.__class__]",
        "except KeyError:",
        f"    return {names.add('miss', miss)}({passed})",
        f"return {names.prefix}call({passed})",
    ]
    params = parameters(schema, names)
    function = compile_function(schema.qualname, "__call__", f"{me}, {params}" if params else me, body, names)
    function.__qualname__ = name
    return function
