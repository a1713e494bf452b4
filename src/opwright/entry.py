"""From a schema to the source of a call function, compiled and visible in tracebacks and debuggers.

* The generated ``__call__`` has the operator's real parameters and does one table look-up.
* Names come from a validated schema; whatever else the code uses, built-ins too, is a global under a prefix
  that no parameter has: a parameter may be named ``len`` or ``KeyError``.
"""

from __future__ import annotations

import linecache
from functools import lru_cache, partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from opwright.schema import Argument, FunctionSchema, OptionalType
from opwright.source import GENERATED

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence


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


class Written(NamedTuple):
    """A function that was written, and compiled as a module; ``helpers`` are those of its globals so far."""

    name: str
    code: CodeType
    lines: list[str]
    length: int
    prefix: str
    helpers: dict[str, Any]


def compile_function(
    title: str, name: str, parameters: str, body: Iterable[str], names: Names
) -> FunctionType:
    """Compile ``def name(parameters): body`` and enter its source where tracebacks look for it."""
    written = write_function(name, parameters, body, names)
    return _make(title, written, written.helpers)


def write_function(name: str, parameters: str, body: Iterable[str], names: Names) -> Written:
    """Write and compile ``def name(parameters): body``, to be made a function of once or several times."""
    text = "\n    ".join((f"def {name}({parameters}):", *body)) + "\n"
    code, lines = _compiled(text)
    return Written(name, code, lines, len(text), names.prefix, names.globals)


def make_function(title: str, written: Written, own: Mapping[str, Any]) -> FunctionType:
    """Make a function that has, beside the helpers that its code came with, values of its ``own``."""
    prefix = written.prefix
    return _make(title, written, written.helpers | {prefix + name: value for name, value in own.items()})


def _make(title: str, written: Written, namespace: dict[str, Any]) -> FunctionType:
    filename = _enter_source(title, written.length, written.lines)
    namespace["__name__"] = "opwright.generated"
    exec(written.code, namespace)
    function: FunctionType = namespace.pop(written.name)
    # A tracer would import the module that the globals name, and there is none.
    del namespace["__name__"]
    function.__code__ = _in_file(function.__code__, filename)
    _alive[filename] = ref(function, partial(_leave_source, filename))
    return function


_MOST_SHARED = 256
_shared: dict[Hashable, Written] = {}


def shared(what: str, schema: FunctionSchema, write: Callable[[], Written]) -> Written:
    """Return what ``write()`` has written for the first of all schemas that look alike.

    Its text and its helpers follow from the arguments and returns alone, whatever the operator.
    """
    choices = tuple(argument.choices is not None for argument in schema.arguments)
    key = what, schema.signature, schema.tuples, choices
    found = _shared.get(key)
    if found is None:
        if len(_shared) >= _MOST_SHARED:
            _shared.clear()
        found = _shared[key] = write()
    return found


_alive: dict[str, ref[FunctionType]] = {}
"""The generated functions by the names of their files; a source goes with its function."""


@lru_cache(maxsize=256)
def _compiled(text: str) -> tuple[CodeType, list[str]]:
    """Compile a source, and cut it into lines: operators with parameters of the same names have the same."""
    return compile(text, f"{GENERATED}source>", "exec"), text.splitlines(keepends=True)


def _in_file(code: CodeType, filename: str) -> CodeType:
    inner = (_in_file(one, filename) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=filename, co_consts=tuple(inner))


def _enter_source(title: str, length: int, lines: list[str]) -> str:
    """Give a source a file name of its own: one that an older function of this title has keeps its text."""
    filename, count = f"{GENERATED}{title}>", 1
    while True:
        entry = (length, None, lines, filename)
        if linecache.cache.setdefault(filename, entry) is entry:
            return filename
        count += 1
        filename = f"{GENERATED}{title} ({count})>"


def _leave_source(filename: str, _function: ref[FunctionType]) -> None:
    _alive.pop(filename, None)
    linecache.cache.pop(filename, None)  # last: from here on another function may take the name


def parameters(schema: FunctionSchema, names: Names) -> str:
    """Return the parameter list of a schema, the keyword-only marker included; defaults are ``defaults``."""

    def one(argument: Argument) -> str:
        name = argument.name
        return name if argument.default is None else f"{name}={names.prefix}default_{name}"

    parts = [one(argument) for argument in schema.positional]
    if schema.keyword_only:
        parts += ["*", *(one(argument) for argument in schema.keyword_only)]
    return ", ".join(parts)


def defaults(schema: FunctionSchema) -> dict[str, Any]:
    """Return the values of the defaults that ``parameters`` names."""
    return {"default_" + a.name: a.default.value for a in schema.arguments if a.default is not None}


def flat_names(schema: FunctionSchema) -> str:
    """Return all parameter names in schema order, to pass them on by position."""
    return ", ".join(argument.name for argument in schema.arguments)


def kernel_call(schema: FunctionSchema, rename: Mapping[str, str] | None = None) -> str:
    """Return the argument list of a kernel: positional by position, keyword-only by name."""
    rename = rename or {}
    parts = [passed(a, rename.get(a.name, a.name)) for a in schema.positional]
    parts += [f"{a.name}={passed(a, rename.get(a.name, a.name))}" for a in schema.keyword_only]
    return ", ".join(parts)


def passed(argument: Argument, name: str) -> str:
    """Return the expression of an argument as kernels and rules get it: a list of arrays may be a tuple."""
    if not (argument.is_tuple and argument.has_tensors):
        return name
    return f"(None if {name} is None else (*{name},))" if argument.is_optional else f"(*{name},)"


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


_NOBODYS = (bool, int, float, complex, str)


def first_object(values: Iterable[Any]) -> Any:
    """Return the first dtype, device or layout that is an object of some library, not a name; else None."""
    for value in values:
        cls = value if isinstance(value, type) else value.__class__
        if value is not None and not any(cls is one for one in _NOBODYS):
            return value
    return None


def key_arguments(schema: FunctionSchema) -> list[Argument]:
    """Return the arguments whose first array, or else device or dtype object, decides the framework."""
    arrays = [argument for argument in schema.arguments if argument.has_tensors]
    if arrays:
        return arrays
    return [a for a in schema.arguments if a.base in ("Device", "ScalarType", "Layout") and not a.is_list]


def deciding(schema: FunctionSchema, values: Sequence[Any]) -> Any:
    """Return the array, or else the dtype or device object, that decides on the framework; else None."""
    chosen = {argument.name for argument in key_arguments(schema)}
    pairs = zip(schema.arguments, values, strict=True)
    candidates = [value for argument, value in pairs if argument.name in chosen]
    if any(argument.has_tensors for argument in schema.arguments):
        return first_array(candidates)
    return first_object(candidates)


def table_key(schema: FunctionSchema, values: Sequence[Any]) -> Hashable:
    """Return the key under which the callable for these values is in an operator's table."""
    value = deciding(schema, values)
    return value.__class__ if any(a.has_tensors for a in schema.arguments) else key_of_object(value)


def key_of_object(value: Any) -> Hashable:
    """Return the class of an object; a class stands for itself, beside its own: frameworks' may be equal."""
    return (value.__class__, value) if isinstance(value, type) else value.__class__


def _key_expression(schema: FunctionSchema, names: Names) -> str:
    """Return the source of the table's key; its value is that of ``table_key``."""
    chosen = key_arguments(schema)
    everything = f"({', '.join(argument.name for argument in chosen)},)"
    if not chosen:
        return names.add("none", type(None))
    if not chosen[0].has_tensors:
        return f"{names.add('key', key_of_object)}({names.add('first_object', first_object)}({everything}))"
    first, name = chosen[0], chosen[0].name
    if not first.is_list and not isinstance(first.type, OptionalType):
        return f"{name}.__class__"
    search = f"{names.add('first_array', first_array)}({everything})"
    if first.is_list:
        test = f"{name}.__class__ is {names.add('list', list)} and {name} and {name}[0] is not None"
        return f"({name}[0] if {test} else {search}).__class__"
    if len(chosen) == 1:
        return f"{name}.__class__"
    return f"({name} if {name} is not None else {search}).__class__"


def call_function(
    schema: FunctionSchema, table: dict[Hashable, Callable[..., Any]], miss: Callable[..., Any], name: str
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
    written = shared("__call__", schema, lambda: _write_call(schema))
    own = {"table": table, "miss": miss, **defaults(schema)}
    function = make_function(schema.qualname, written, own)
    function.__qualname__ = name
    return function


def _write_call(schema: FunctionSchema) -> Written:
    names = Names(schema)
    me, call = names.prefix + "self", names.prefix + "call"
    body = [
        "try:",
        f"    {call} = {names.prefix}table[{_key_expression(schema, names)}]",
        f"except {names.add('missing', KeyError)}:",
        f"    {call} = {names.prefix}miss",
        f"return {call}({flat_names(schema)})",
    ]
    params = parameters(schema, names)
    return write_function("__call__", f"{me}, {params}" if params else me, body, names)
