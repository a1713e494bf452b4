"""What a Triton kernel writes to, read from its intermediate code.

* The text of Triton's own first stage is read (``asm["ttir"]``), which says what the kernel does before any
  optimisation; no data structure of the compiler is used.
* From every operation that writes memory, the address is followed back to the kernel's parameters: through
  arithmetic, branches, loops and calls, not through what was loaded.
* Where an address cannot be followed, or an operation that is not known gets one, the analysis fails and
  asks for a declaration. It never guesses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

WRITES = (
    "tt.store",
    "tt.atomic_rmw",
    "tt.atomic_cas",
    "tt.descriptor_store",
    "tt.descriptor_scatter",
    "tt.descriptor_reduce",
)
_LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.atomic_rmw", "tt.atomic_cas")
_HARMLESS = """
    addptr advance assert bitcast broadcast call cat clampf dot dot_scaled expand_dims fp_to_fp func gather
    get_num_programs get_program_id histogram int_to_ptr join make_range make_tensor_descriptor
    make_tensor_ptr map_elementwise map_elementwise.return mulhiui precise_divf precise_sqrt print ptr_to_int
    reduce reduce.return reshape return scan scan.return splat split trans unsplat
"""
_KNOWN = {f"tt.{name}" for name in _HARMLESS.split()} | {*WRITES, *_LOADS}
_KNOWN_DIALECTS = ("arith.", "math.", "scf.", "cf.", "ub.")
_UNKNOWN = "?"  # stands for an address that came out of memory or of an integer

_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_RESULT = re.compile(r"^(%[\w$.\-]+)(?::(\d+))?((?:, %[\w$.\-]+)*) = (.*)$")
_FUNCTION = re.compile(r'tt\.func (?:public |private )?@("[^"]*"|[\w$.\-]+)\(')
_PARAMETER = re.compile(r"(%[\w$.\-]+): ([^,%]*(?:<[^%]*>)?)")
_PAIR = re.compile(r"(%[\w$.\-]+) = (%[\w$.\-]+(?:#\d+)?)")
_LABEL = re.compile(r"^(\^[\w]+)(?:\((.*)\))?:")
_TARGET = re.compile(r"(\^[\w]+)(?:\(([^)]*)\))?")
_NAME = re.compile(r'^"?([\w]+\.[\w.]+)"?')


class Unclear(Exception):  # noqa: N818  (a signal to the caller, which words the error)
    """The analysis cannot tell what the kernel writes; the reason is its text."""


@dataclass
class _Frame:
    """An operation with regions: where its yielded values go."""

    name: str
    results: list[str] = field(default_factory=list)
    carried: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)


@dataclass
class _Function:
    """One function: which values come from which, and what is written, called and returned."""

    parameters: list[str] = field(default_factory=list)
    pointers: set[str] = field(default_factory=set)
    sources: dict[str, list[str]] = field(default_factory=dict)
    written: list[tuple[str, str]] = field(default_factory=list)
    doubtful: list[tuple[str, list[str]]] = field(default_factory=list)
    calls: list[tuple[str, list[str], list[str]]] = field(default_factory=list)
    returned: list[list[str]] = field(default_factory=list)
    labels: dict[str, list[str]] = field(default_factory=dict)
    jumps: list[tuple[str, list[str]]] = field(default_factory=list)
    frames: list[_Frame] = field(default_factory=list)

    def flow(self, targets: Iterable[str], origins: Iterable[str]) -> None:
        """Record that values come, one from one, from others."""
        for target, origin in zip(targets, origins, strict=False):
            self.sources.setdefault(target, []).append(origin)

    def roots(self, values: Iterable[str]) -> set[str]:
        """Return the pointer parameters that values may come from, and `_UNKNOWN` where one is not known."""
        seen: set[str] = set()
        stack = list(values)
        while stack:
            value = stack.pop()
            if value not in seen:
                seen.add(value)
                stack += self.sources.get(value, ())
        return {value for value in seen if value in self.pointers or value == _UNKNOWN}


def written_parameters(code: str) -> list[int]:
    """Return the positions of the parameters that a kernel writes to, from its code.

    Parameters
    ----------
    code
        The text of the kernel's first stage; its first function is the kernel.

    Raises
    ------
    Unclear
        If that cannot be told.
    """
    functions = _read(code)
    if not functions:
        raise Unclear("its intermediate code has no function that is understood")
    first = next(iter(functions))
    written, _ = _summary(functions, first, ())
    return sorted(written)


def _summary(
    functions: dict[str, _Function], name: str, above: tuple[str, ...]
) -> tuple[set[int], list[set[str]]]:
    """Return the positions that a function writes to, and the parameters that each result comes from."""
    if name not in functions or name in above:
        raise Unclear(f"it calls {name}, which is not understood")
    function = functions[name]
    positions = {parameter: number for number, parameter in enumerate(function.parameters)}
    written: set[int] = set()

    def write(operation: str, values: list[str]) -> None:
        roots = function.roots(values)
        if not roots or _UNKNOWN in roots:
            raise Unclear(f"{operation} writes to an address that does not come from a parameter alone")
        written.update(positions[root] for root in roots)

    for callee, arguments, results in function.calls:
        inner, returned = _summary(functions, callee, (*above, name))
        # What a call returns comes from its arguments: recorded before any address is followed.
        for result, roots in zip(results, returned, strict=False):
            names = functions[callee].parameters
            function.sources[result] = [
                _UNKNOWN if root == _UNKNOWN else arguments[names.index(root)] for root in roots
            ]
        for number in sorted(inner):
            write(f"a call of {callee}", [arguments[number]])
    for operation, value in function.written:
        write(operation, [value])
    for operation, values in function.doubtful:
        if function.roots(values):
            raise Unclear(f"{operation} gets an address, and what it does with it is not known")
    return written, [function.roots(values) for values in function.returned]


def _read(code: str) -> dict[str, _Function]:
    """Read every function of a module."""
    functions: dict[str, _Function] = {}
    current: _Function | None = None
    for raw in code.splitlines():
        line = re.sub(r"\s+//.*$", "", _without_locations(raw)).strip()
        match = _FUNCTION.match(line)
        if match:
            current = _Function()
            functions[match[1].strip('"')] = current
            for name, type_ in _PARAMETER.findall(line[match.end() :]):
                current.parameters.append(name)
                # A function that is called gets addresses as integers and tensors too: all are followed.
                if "!tt." in type_:
                    current.pointers.add(name)
        elif current is not None and line:
            _read_line(current, line)
    for function in functions.values():
        for label, values in function.jumps:
            function.flow(function.labels.get(label, ()), values)
    return functions


def _without_locations(line: str) -> str:
    """Return a line without its ``loc(...)`` marks, parentheses inside them included."""
    while True:
        start = re.search(r"\s*\bloc\(", line)
        if start is None:
            return line
        depth, end = 1, start.end()
        quoted = False
        while end < len(line) and depth:
            quoted ^= line[end] == '"'
            depth += 0 if quoted else (line[end] == "(") - (line[end] == ")")
            end += 1
        line = line[: start.start()] + line[end:]


def _read_line(function: _Function, line: str) -> None:
    """Read one line of a function's body."""
    frames = function.frames
    if line.startswith("}"):
        if line.endswith("{"):
            return  # the other region of the same operation
        if frames:
            frames.pop()
        return
    label = _LABEL.match(line)
    if label:
        values = [name for name, _ in _PARAMETER.findall(label[2] or "")]
        if frames and frames[-1].name == "scf.while":
            function.flow(values, frames[-1].passed)
        elif not frames:
            function.labels[label[1]] = values
        return
    result = _RESULT.match(line)
    results: list[str] = []
    if result:
        count = int(result[2] or 1)
        results = [result[1]] if count == 1 else [f"{result[1]}#{i}" for i in range(count)]
        results += _VALUE.findall(result[3])
        line = result[4]
    name = _NAME.match(line)
    if name is None:
        if results:
            function.doubtful.append((line[:40], _VALUE.findall(line)))
        return
    _read_operation(function, name[1], line, results)
    if line.endswith("{"):
        # A loop's bounds are written like what it carries: only the latter has addresses.
        pairs = _PAIR.findall(line.partition("iter_args(")[2] if name[1] == "scf.for" else line)
        carried = [target for target, _ in pairs]
        frames.append(_Frame(name[1], results, carried))
        function.flow(carried, [origin for _, origin in pairs])
        function.flow(results, [origin for _, origin in pairs])


def _read_operation(function: _Function, name: str, line: str, results: list[str]) -> None:
    """Record what one operation does with addresses."""
    values = _VALUE.findall(line)
    frames = function.frames
    if name == "scf.yield":
        if frames:
            function.flow(frames[-1].carried, values)
            function.flow(frames[-1].results, values)
    elif name == "scf.condition":
        frames[-1].passed = values[1:]
        function.flow(frames[-1].results, values[1:])
    elif name in ("scf.for", "scf.if", "scf.while"):
        return
    elif name in ("cf.br", "cf.cond_br", "cf.switch"):
        function.jumps += [(target, _VALUE.findall(passed or "")) for target, passed in _TARGET.findall(line)]
    elif name == "tt.return":
        function.returned = function.returned or [[] for _ in values]
        for before, value in zip(function.returned, values, strict=False):
            before.append(value)
    elif name == "tt.call":
        callee = re.search(r'@("[^"]*"|[\w$.\-]+)', line)
        function.calls.append((callee[1].strip('"') if callee else line, values, results))
    else:
        if name in WRITES:
            function.written.append((name, values[0] if values else _UNKNOWN))
        known = name in _KNOWN or name.startswith(_KNOWN_DIALECTS) or "pure = true" in line
        if not known:
            function.doubtful.append((name, values))
        if name in _LOADS:
            # An address that was loaded is not one of the parameters.
            origins = [_UNKNOWN] if "!tt.ptr<!tt.ptr" in line else []
        elif name == "tt.int_to_ptr":
            origins = values if function.roots(values) else [_UNKNOWN]
        else:
            origins = values
        for target in results:
            function.sources.setdefault(target, []).extend(origins)
