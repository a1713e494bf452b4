"""Generated functions around a kernel: for flat arrays, and for XLA's own buffers.

What the schema and the static arguments tell is in their source, so that a call does little beside the
kernel's own work. Anything that is not plainly right goes to the general functions of ``kernels.py``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from opwright.entry import Names, compile_function, kernel_call
from opwright.frameworks.jax import private
from opwright.frameworks.jax.arguments import flatten_outputs, paths
from opwright.frameworks.jax.callbacks import failure, require_released
from opwright.frameworks.jax.callbacks import fill as write
from opwright.frameworks.jax.kernels import apply, check_aliasing, in_flavour, state_of, takes_out
from opwright.outputs import is_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opwright.frameworks.jax.arguments import Template
    from opwright.frameworks.jax.callbacks import Compute, Plan
    from opwright.overload import Kernel, OpOverload


def _is_plain(record: OpOverload, kernel: Kernel) -> bool:
    """Return whether a kernel computes one array of NumPy and mutates nothing."""
    schema = record.schema
    one = is_one(record) and str(schema.returns[0].type) == "Tensor"
    return kernel.flavour == "numpy" and one and not schema.mutated and not kernel.with_keyset


def _is_several(record: OpOverload, kernel: Kernel) -> bool:
    """Return whether a kernel returns a tuple of arrays of NumPy, mutates nothing and takes no outputs."""
    schema = record.schema
    tensors = bool(schema.returns) and all(str(entry.type) == "Tensor" for entry in schema.returns)
    several = tensors and not is_one(record) and not takes_out(kernel, schema)
    return kernel.flavour == "numpy" and several and not schema.mutated and not kernel.with_keyset


class _Source:
    """The names in a generated function: arrays, static arguments, and how the kernel is called."""

    def __init__(self, record: OpOverload, kernel: Kernel, template: Template) -> None:
        self.record = record
        self.kernel = kernel
        self.static = in_flavour(record.schema, template, kernel.flavour)
        self.names = Names(record.schema)
        self.prefix = self.names.prefix
        self.count = len(paths(record.schema, template))
        self.arrays = [f"{self.prefix}a{index}" for index in range(self.count)]
        self.outs = [f"{self.prefix}out{index}" for index in range(len(record.schema.returns))]
        self.out, self.result = self.outs[0], self.prefix + "result"
        self.names.add("kernel", kernel.fn)
        self.names.add("unchecked", state_of(record).unchecked)

    def passed(self, arrays: Sequence[str]) -> Mapping[str, str]:
        """Return what is passed for each argument, where the arrays have these names."""

        def one(argument: Any, entry: Any) -> str:
            if not argument.has_tensors:
                name = self.names.add("static_" + argument.name, entry)
                return f"[*{name}]" if isinstance(entry, list) else name
            if isinstance(entry, tuple):
                return f"[{', '.join('None' if slot is None else arrays[slot] for slot in entry)}]"
            return "None" if entry is None else arrays[entry]

        pairs = zip(self.record.schema.arguments, self.static, strict=True)
        return {argument.name: one(argument, entry) for argument, entry in pairs}

    def call(self, passed: Mapping[str, str], out: str | None) -> str:
        """Return the line that calls the kernel; it may write into ``out``."""
        into = f", out={out}" if out is not None and takes_out(self.kernel, self.record.schema) else ""
        return f"{self.result} = {self.prefix}kernel({kernel_call(self.record.schema, passed)}{into})"

    def checked(self, passed: Mapping[str, str], out: str) -> str:
        """Return the line that looks at the aliasing of the first outputs."""
        check = self.names.add("check", _alias_check(self.record, self.kernel))
        return f"if {self.prefix}unchecked[0]: {check}({self.result}, {out}, {', '.join(passed.values())})"


def _alias_check(record: OpOverload, kernel: Kernel) -> Callable[..., None]:
    def check(result: Any, out: Any, *values: Any) -> None:
        if result is not out:
            check_aliasing(record, kernel, values, result)

    return check


def compute(record: OpOverload, kernel: Kernel, template: Template) -> Compute:
    """Return the function from flat arrays, and outputs to write into, to flat outputs."""
    general = apply(record, kernel, template)
    if not _is_plain(record, kernel):
        return lambda arrays, outs: general(arrays, outs)[0]
    source = _Source(record, kernel, template)
    add, passed = source.names.add, source.passed(source.arrays)
    add("general", general)
    add("ndarray", np.ndarray)
    unpack = f"{', '.join(source.arrays)}, = {source.prefix}arrays" if source.arrays else "pass"
    arrays, outs = source.prefix + "arrays", source.prefix + "outs"
    given = f"{outs}[0]" if takes_out(kernel, record.schema) else None
    lines = [
        f"if {outs} is not None and {given is not None} or {source.prefix}unchecked[0]:",
        f"    return {source.prefix}general({arrays}, {outs})[0]",
        unpack,
        source.call(passed, None),
        f"if {source.result}.__class__ is {source.prefix}ndarray: return [{source.result}]",
        f"return {add('flatten', _flatten(record, kernel))}({source.result})",
    ]
    title = f"{record.qualname} for jax"
    return compile_function(title, "compute", f"{arrays}, {outs}", lines, source.names)


def _flatten(record: OpOverload, kernel: Kernel) -> Callable[[Any], list[Any]]:
    return lambda result: flatten_outputs(record, result, kernel.flavour, kernel)[0]


def lean(record: OpOverload, kernel: Kernel, template: Template) -> Any:
    """Return what generates the body of a plain NumPy kernel for XLA's buffers; None for other kernels."""
    several = _is_several(record, kernel)
    if not several and not _is_plain(record, kernel):
        return None

    def generate(
        plan: Plan, view: Callable[[Any], Any], mapped: Sequence[bool] | None = None
    ) -> Callable[..., None]:
        source = _Source(record, kernel, template)
        if mapped is None:
            lines = _once_several(source, plan) if several else _once(source, plan)
        else:
            lines = _each(source, plan, mapped, several=several)
        return _body(source, plan, view, lines, looped=mapped is not None)

    return generate


def _once(source: _Source, plan: Plan) -> list[str]:
    """Return the lines that call the kernel and put its result into the output."""
    add, out, result = source.names.add, source.out, source.result
    passed = source.passed(source.arrays)
    same = f"{result}.__class__ is {add('ndarray', np.ndarray)} and {result}.dtype is {out}.dtype"
    fill = add("fill", _fill(source.record, source.kernel, plan))
    return [
        source.call(passed, out),
        source.checked(passed, out),
        f"if {result} is {out}: pass",
        f"elif {same} and {result}.shape == {out}.shape: {out}[...] = {result}",
        f"else: {fill}({out}, {result})",
        f"{result} = None",
    ]


def _once_several(source: _Source, plan: Plan) -> list[str]:
    """Return the lines that call the kernel and put its results into the outputs."""
    passed = source.passed(source.arrays)
    whole = [(f"{out}.dtype", f"{out}.shape") for out in source.outs]
    return [
        source.call(passed, None),
        source.checked(passed, "None"),
        *_scalars(source, whole),
        *_spread(source, plan, source.outs, whole),
        f"{' = '.join([source.result, *_items(source)])} = None",
    ]


def _items(source: _Source) -> list[str]:
    return [f"{source.prefix}item{index}" for index in range(len(source.outs))]


def _scalars(source: _Source, like: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines that name the class of NumPy's scalar that counts as each result, if one does."""
    return [
        f"{source.prefix}scalar{index} = None if {shape} else {dtype}.type"
        for index, (dtype, shape) in enumerate(like)
    ]


def _spread(
    source: _Source, plan: Plan, targets: Sequence[str], like: Sequence[tuple[str, str]]
) -> list[str]:
    """Return the lines that put results into targets like these; any that do not fit go the general way."""
    add, prefix, result, items = source.names.add, source.prefix, source.result, _items(source)
    record, kernel = source.record, source.kernel
    flatten = _flatten(record, kernel)
    fill = add("fill", lambda outs, returned: write(plan, outs, flatten(returned)))
    array, fits = add("ndarray", np.ndarray), prefix + "fits"
    tests = [
        f"({item}.__class__ is {array} and {item}.dtype is {dtype} and {item}.shape == {shape}"
        f" or {item}.__class__ is {prefix}scalar{index})"
        for index, (item, (dtype, shape)) in enumerate(zip(items, like, strict=True))
    ]
    count = f"{add('len', len)}({result}) == {len(items)}"
    return [
        f"{fits} = {result}.__class__ is {add('tuple', tuple)} and {count}",
        f"if {fits}:",
        f"    {', '.join(items)}, = {result}",
        f"    {fits} = {' and '.join(tests)}",
        f"if {fits}:",
        *(f"    {target}[...] = {item}" for target, item in zip(targets, items, strict=True)),
        f"else: {fill}(({', '.join(targets)},), {result})",
    ]


def _each(source: _Source, plan: Plan, mapped: Sequence[bool], *, several: bool) -> list[str]:
    """Return the lines that call the kernel for each row of the mapped arrays."""
    prefix, add = source.prefix, source.names.add
    row = [f"{prefix}r{index}" for index in range(source.count)]
    on = [index for index, one in enumerate(mapped) if one]
    passed = source.passed([row[i] if one else source.arrays[i] for i, one in enumerate(mapped)])
    into = takes_out(source.kernel, source.record.schema)
    # The general way looks at the aliasing of outputs in the first calls.
    general = add("general", lambda arrays, outs: write(plan, outs, plan.compute(arrays, outs)))
    rows = [f"{add('rows', _rows)}({source.arrays[i]})" for i in on]
    named = [row[i] for i in on]
    lists = f"[{', '.join(source.arrays)}], [{', '.join(source.outs)}]"
    lines = [f"if {prefix}unchecked[0]: {general}({lists})"]
    if several:
        lines += ["else:", *(f"    {line}" for line in _several_rows(source, plan, passed, rows, named))]
        used = [*_items(source), *(f"{prefix}each{index}" for index in range(len(source.outs)))]
        return [*lines, f"{' = '.join([*named, *used, source.result])} = None"]
    add("ndarray", np.ndarray)
    add("fill", _fill(source.record, source.kernel, plan))
    if not into:
        lines += [
            f"elif ({prefix}memory := {add('flat', _flat)}({source.out})) is not None:",
            *(f"    {line}" for line in _flat_rows(source, passed, rows, named)),
        ]
    lines += ["else:", *(f"    {line}" for line in _any_rows(source, passed, rows, named, into=into))]
    return [*lines, f"{' = '.join([*named, *(prefix + n for n in ('each', 'memory', 'result'))])} = None"]


def _flat_rows(
    source: _Source, passed: Mapping[str, str], rows: Sequence[str], named: Sequence[str]
) -> list[str]:
    """Return the lines of a loop over 1-d results: one assignment compares shape and dtype, and copies."""
    prefix, result, out = source.prefix, source.result, source.out
    memory, start, stop, width = (prefix + name for name in ("memory", "start", "stop", "width"))
    refused = source.names.add("refused", (ValueError, BufferError, TypeError))
    each = f"for {named[0]} in {rows[0]}:" if len(rows) == 1 else ""
    each = each or f"for {', '.join(named)} in {source.names.add('zip', zip)}({', '.join(rows)}):"
    return [
        f"{stop}, {width} = 0, {out}.shape[1]",
        each,
        f"    {start} = {stop}",
        f"    {stop} += {width}",
        f"    {source.call(passed, None)}",
        f"    if {result}.__class__ is {prefix}ndarray:",
        f"        try: {memory}[{start}:{stop}] = {result}",
        f"        except {refused}: pass",
        "        else: continue",
        f"    {prefix}fill({out}[{start} // {width}], {result})",
    ]


def _any_rows(
    source: _Source, passed: Mapping[str, str], rows: Sequence[str], named: Sequence[str], *, into: bool
) -> list[str]:
    """Return the lines of a loop over results of any number of dimensions."""
    prefix, result, out = source.prefix, source.result, source.out
    each, dtype, shape, scalar = (prefix + name for name in ("each", "dtype", "shape", "scalar"))
    same = (
        f"{result}.__class__ is {prefix}ndarray and {result}.dtype is {dtype} and {result}.shape == {shape}"
    )
    pairs = f"{source.names.add('zip', zip)}({', '.join(rows)}, {prefix}rows({out}))"
    return [
        f"{dtype}, {shape} = {out}.dtype, {out}.shape[1:]",
        f"{scalar} = None if {shape} else {dtype}.type",
        f"for {', '.join(named)}, {each} in {pairs}:",
        f"    {source.call(passed, each)}",
        *([f"    if {result} is {each}: continue"] if into else []),
        f"    if {same}: {each}[...] = {result}",
        f"    elif {result}.__class__ is {scalar}: {each}[...] = {result}",
        f"    else: {prefix}fill({each}, {result})",
    ]


def _several_rows(
    source: _Source, plan: Plan, passed: Mapping[str, str], rows: Sequence[str], named: Sequence[str]
) -> list[str]:
    """Return the lines of a loop over tuples of results."""
    prefix, outs = source.prefix, source.outs
    each = [f"{prefix}each{index}" for index in range(len(outs))]
    like = [(f"{prefix}dtype{index}", f"{prefix}shape{index}") for index in range(len(outs))]
    pairs = ", ".join([*rows, *(f"{prefix}rows({out})" for out in outs)])
    return [
        *(f"{d}, {s} = {out}.dtype, {out}.shape[1:]" for (d, s), out in zip(like, outs, strict=True)),
        *_scalars(source, like),
        f"for {', '.join([*named, *each])} in {source.names.add('zip', zip)}({pairs}):",
        f"    {source.call(passed, None)}",
        *(f"    {line}" for line in _spread(source, plan, each, like)),
    ]


def _rows(array: np.ndarray[Any, Any]) -> Any:
    """Return the rows of an array as arrays; those of a 1-d array are 0-d."""
    return array if array.ndim > 1 else [array[i, ...] for i in range(len(array))]


def _flat(out: np.ndarray[Any, Any]) -> memoryview | None:
    """Return the memory of an output whose rows are 1-d, or None.

    A slice of it takes a buffer of its own format and shape, and nothing else: no cast, no broadcast.
    """
    if out.ndim != 2 or out.dtype not in _COPIED_BY_SLICE or not out.flags.c_contiguous:
        return None
    return out.reshape(-1).data


_COPIED_BY_SLICE = frozenset(map(np.dtype, "?bBhHiIlLqQefd"))
"""Dtypes that a slice of a memoryview takes: real numbers, in the machine's own order of bytes."""


def _body(
    source: _Source, plan: Plan, viewed: Callable[[Any], Any], lines: list[str], *, looped: bool
) -> Callable[..., None]:
    """Return the body for XLA's buffers, inputs and then outputs."""
    add, prefix = source.names.add, source.prefix
    view, error = add("view", viewed), prefix + "error"
    arrays = [*source.arrays, *source.outs]
    buffers = [f"{prefix}b{index}" for index in range(len(arrays))]
    opened = [f"{array} = {view}({buffer})" for array, buffer in zip(arrays, buffers, strict=True)]
    # No longer to be written to; the keyword would cost as much as the view.
    opened += [f"{array}.setflags(False)" for array in source.arrays]
    body = ["try:", *(f"    {line}" for line in (*opened, *lines))]
    body += [f"except {add('exception', BaseException)} as {error}:"]
    body += [f"    raise {add('failure', failure)}({add('plan', plan)}, {error}) from None"]
    references, held = add("references", sys.getrefcount), add("held", require_released)
    for array in arrays if private.COUNTS_TELL else ():
        # The check takes the only reference: nobody else has one unless the kernel does.
        body += [
            f"if {references}({array}) > {private.REFERENCES_TO_A_LOCAL}:",
            f"    {prefix}own = [{array}]",
            f"    {array} = None",
            f"    {held}({prefix}plan, {prefix}own.pop())",
        ]
    title = f"{source.record.qualname} in a program of jax{', looped' if looped else ''}"
    return compile_function(title, "body", ", ".join(buffers), body, source.names)


def _fill(record: OpOverload, kernel: Kernel, plan: Plan) -> Callable[[Any, Any], None]:
    def fill(out: Any, result: Any) -> None:
        if isinstance(result, np.generic) and result.dtype == out.dtype and not out.shape:
            out[...] = result
        else:
            write(plan, [out], flatten_outputs(record, result, kernel.flavour, kernel)[0])

    return fill
