"""The guarded direct call: the kernel itself, or its eager gradient wrapper, where a guard proves that
torch's dispatcher would do nothing else.

* The first statement is the one test that Dynamo folds: compiled code sees the operator in torch's
  dispatcher and none of the rest, so nothing here is ever guarded on.
* Function modes, transforms and nested tensors are tested first, then a short list of guards, which see
  dispatch modes too. A call that none of them takes goes through torch's dispatcher.
* Grad mode is off around kernels, as it is below torch's dispatcher.
* A callable that was called belongs to one version of its record: a change of kernels or rules replaces it.
"""

from __future__ import annotations

from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.entry import (
    Names,
    Written,
    first_array,
    flat_names,
    kernel_call,
    make_function,
    shared,
    write_function,
)
from opwright.frameworks import base
from opwright.frameworks.torch import guards, private, watched
from opwright.frameworks.torch.entries import DIFFERENTIATE, Entries
from opwright.frameworks.torch.lowered import lowered_of
from opwright.frameworks.torch.scalars import TakenOverError, refusing, unless_traced
from opwright.keys import DEFAULT, IMPLICIT, device_of
from opwright.outputs import is_one, same_objects
from opwright.scalars import coercion, coercion_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.frameworks.torch.lowered import Lowered
    from opwright.overload import OpOverload
    from opwright.schema import FunctionSchema


def specialise(
    record: OpOverload, slow_call: Callable[..., Any], values: Sequence[Any] = ()
) -> Callable[..., Any]:
    """Return the callable of a record for calls whose first tensor is a plain ``Tensor`` or ``Parameter``.

    Parameters
    ----------
    record
        The overload.
    slow_call
        Takes all values by position and calls the operator in torch's dispatcher.
    values
        The arguments of a first call, if there is one: where its first tensor is of another class, the
        callable has no direct call.
    """
    state = lowered_of(record)
    source: _Source | None = state.fast
    if source is None or source.native is not slow_call:
        source = state.fast = _Source(record, slow_call)
    if reason_against(record, values) is not None:
        return source.slow
    call: Callable[..., Any] = state.derive("fast", lambda: source.call(state))
    return call


def reason_against(record: OpOverload, values: Sequence[Any] = ()) -> str | None:
    """Return why an overload has no direct call, or None where it has one."""
    if guards.UNAVAILABLE or watched.UNAVAILABLE:
        return guards.UNAVAILABLE or watched.UNAVAILABLE
    if record.owner:
        return f"it lives in the dispatcher of {record.owner}"
    if not any(argument.has_tensors for argument in record.schema.arguments):
        return "no argument is a Tensor"
    if record.key in watched.covered:
        return f"something else registered a kernel for {watched.covered[record.key]} with torch.library"
    if values:
        pairs = zip(record.schema.arguments, values, strict=True)
        first = first_array(value for argument, value in pairs if argument.has_tensors)
        if first.__class__ not in guards.CLASSES:
            return f"the first tensor is a {first.__class__.__name__}"
    for key in [*[kernel.key for kernel in record.kernels], *record.fallbacks]:
        if not _only_last(key):
            return f"it has a kernel for {key}, which torch's dispatcher calls"
    for kernel in record.kernels:
        if kernel.with_keyset or kernel.falls_through:
            return "a kernel takes the dispatch keys, or skips one, which torch's dispatcher knows of"
    if record.kernel(IMPLICIT) is not None and (record.rule("autograd") or len(record.kernels) > 1):
        return "gradients go through one kernel of several, or there is a rule beside it"
    return None


def _only_last(key: str) -> bool:
    """Return whether a plain call of plain tensors reaches a kernel of this key last, or never."""
    last = key in (DEFAULT, IMPLICIT) or device_of(key) is not None
    return last or watched.is_unseen(key) or key.startswith("Autocast")  # which the guards see


class _Source:
    """The code of an overload's callables, written once; what it calls changes with kernels and rules.

    Parameters
    ----------
    record
        The overload.
    native
        Takes all values by position and calls the operator in torch's dispatcher.
    """

    def __init__(self, record: OpOverload, native: Callable[..., Any]) -> None:
        self.record = record
        self.schema = record.schema
        self.native = native
        self.flat = flat_names(record.schema)
        self.framework = base.load("torch")
        self.prefix = Names(self.schema).prefix
        self.first: FunctionType | None = None
        self.unused: tuple[Callable[..., Any], Entries] | None = None

    def call(self, state: Lowered) -> Callable[..., Any]:
        """Return the guarded direct call of the record's present version, without guards.

        One that no call has reached yet serves for the next version too.
        """
        if self.unused is not None and self.unused[1].renew():
            return self.unused[0]
        if self.first is None:
            self.first = self._direct()
        first = self.first
        space = dict(first.__globals__)

        def changed(entries: tuple[Any, ...]) -> None:
            space[self.prefix + "entries"] = entries

        def slow(*values: Any) -> Any:
            real = space[self.prefix + "slow"] = self.slow
            return real(*values)

        entries = Entries(state, lambda: self.slow, changed)
        space |= {
            self.prefix + "found": entries.found.get,
            self.prefix + "miss": entries.miss,
            self.prefix + "slow": slow,
        }
        call = FunctionType(first.__code__, space, "call")
        self.unused = call, entries
        return call

    @cached_property
    def slow(self) -> Callable[..., Any]:
        """The call through torch's dispatcher, scalars coerced as the direct call coerces them."""
        names = Names(self.schema)
        lines = _coercions(self.schema, names)
        if not lines:
            return self.native
        lines.append(f"return {names.prefix}native({self.flat})")
        written = write_function("slow", self.flat, lines, names)
        own = self._coercing(unless_traced) | {"native": self.native}
        return make_function(f"{self.schema.qualname} in torch", written, own)

    def _direct(self) -> FunctionType:
        """Return the guarded direct call, to be given its guards."""
        written = shared("on torch", self.schema, lambda: _Direct(self.record).written())
        own = self._coercing(refusing) | {"native": self.native, "entries": ()}
        return make_function(f"{self.schema.qualname} on torch", written, own)

    def _coercing(self, wrap: Callable[..., Callable[[Any], Any]]) -> dict[str, Callable[[Any], Any]]:
        """Return the coercions of all arguments without tensors, by the names that they have in the code."""
        qualname, convert = self.schema.qualname, self.framework.convert
        return {
            "coerce_" + argument.name: wrap(qualname, argument, coercion(qualname, argument, convert))
            for argument in self.schema.arguments
            if not argument.has_tensors
        }


def _coercions(schema: FunctionSchema, names: Names) -> list[str]:
    return [
        line
        for argument in schema.arguments
        if not argument.has_tensors
        for line in coercion_lines(argument, f"{names.prefix}coerce_{argument.name}", names.add)
    ]


class _Direct:
    """Writes the guarded direct call, as it is for every overload with such arguments and returns."""

    def __init__(self, record: OpOverload) -> None:
        self.record = record
        self.schema = schema = record.schema
        self.flat = flat_names(schema)
        self.arrays = [argument for argument in schema.arguments if argument.has_tensors]
        self.names = Names(schema)
        self.prefix = self.names.prefix

    def written(self) -> Written:
        """Return the code, with the helpers that it takes whatever the overload."""
        for name, value in {
            "is_compiling": torch.compiler.is_dynamo_compiling,
            "list": list,
            "len": len,
            "tensor": Tensor,
            "tuple": tuple,
        }.items():
            self.names.add(name, value)
        body = [
            f"if {self.prefix}is_compiling(): return {self.prefix}native({self.flat})",
            *self._odd_lines(),
            *self._guard_lines(),
            *[f"    {line}" for line in self._direct_lines()],
            f"return {self.prefix}miss({self.flat})",
        ]
        return write_function("call", self.flat, body, self.names)

    def _odd_lines(self) -> list[str]:
        """Return the tests of what the guards do not see, and of what they would abort on.

        The first finds function modes and whatever would be told of ``is_nested`` being read; it does not
        find what is no tensor, which has no such attribute.
        """
        probes, add, prefix = guards.PROBES, self.names.add, self.prefix
        odd, each, slow = f"{prefix}odd", f"{prefix}each", f"return {prefix}slow({self.flat})"
        lines, loops, overrides, nested = [], [], [], []
        for argument in self.arrays:
            name = argument.name
            if argument.is_tensor_list:
                given = f"{name} is not None and " if argument.is_optional else ""
                lines += [
                    f"if {name}.__class__ is {prefix}tuple: {name} = {prefix}list({name})",
                    f"if {given}{name}.__class__ is not {prefix}list: {slow}",
                ]
                several = f"({name} or ())" if argument.is_optional else name
                overrides.append(f"*{several}")
                loops += [
                    f"        for {each} in {several}:",
                    f"            if {each}.is_nested: {odd} = True",
                ]
            else:
                overrides.append(name)
                nested.append(
                    f"{name} is not None and {name}.is_nested"
                    if argument.is_optional
                    else f"{name}.is_nested"
                )
        alone = len(self.arrays) == 1 and not self.arrays[0].is_list
        overridden = add("overridden", probes.overridden_one if alone else probes.overridden)
        tests = [
            f"{overridden}({', '.join(overrides)})",
            f"{add('transforms', private.functorch_active)}()",
            f"{add('forward_ad', torch.autograd.forward_ad)}._current_level >= 0",
            f"{add('profiler', torch.autograd.profiler)}._is_profiler_enabled",
            *nested,
        ]
        return [
            *lines,
            "try:",
            f"    {odd} = {' or '.join(tests)}",
            *([f"    if not {odd}:", *(f"        {line}" for line in loops)] if loops else []),
            f"except {add('no_tensor', AttributeError)}: {slow}",
            f"if {odd}: {slow}",
        ]

    def _guard_lines(self) -> list[str]:
        """Return the head of the loop over the guards; what follows in it is for a call that one takes."""
        parts, tensors = [], []
        for argument in self.arrays:
            name = argument.name
            if argument.is_tensor_list:
                length = f"{self.prefix}len({name})"
                parts.append(f"(-1 if {name} is None else {length})" if argument.is_optional else length)
                tensors.append(f"*({name} or ())" if argument.is_optional else f"*{name}")
            elif argument.is_optional:
                parts.append(f"{name} is None")
                tensors.append(f"*(() if {name} is None else ({name},))")
            else:
                tensors.append(name)
        pattern = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        entries = f"{self.prefix}found({pattern}, ())" if parts else f"{self.prefix}entries"
        unpacked = ", ".join(
            self.prefix + name for name in ("check", "grad", "kernel", "differentiate", "output")
        )
        return [
            f"for {unpacked} in {entries}:",
            f"    if not {self.prefix}check({', '.join(tensors)}): continue",
        ]

    def _direct_lines(self) -> list[str]:
        """Return what a call that a guard takes does: coercions, the kernel, output tests."""
        prefix, add = self.prefix, self.names.add
        run = f"{prefix}out = {prefix}kernel({kernel_call(self.schema)})"
        lines = _coercions(self.schema, self.names)
        if lines:
            taken_over = f"except {add('taken_over', TakenOverError)}: return {prefix}slow({self.flat})"
            lines = ["try:", *(f"    {line}" for line in lines), taken_over]
        set_grad = add("set_grad", private.set_grad)
        lines += [
            f"if {prefix}grad and {add('grad_enabled', torch.is_grad_enabled)}():",
            f"    if {prefix}grad == {DIFFERENTIATE}: return {prefix}differentiate({self.flat})",
            f"    {set_grad}(False)",
            f"    try: {run}",
            f"    finally: {set_grad}(True)",
            f"else: {run}",
        ]
        for argument in self.schema.mutated:
            bump = add("bump", guards.PROBES.increment_version)
            bumped = f"{bump}({argument.name})" if argument.is_list else f"{bump}(({argument.name},))"
            lines.append(f"if {argument.name} is not None: {bumped}" if argument.is_optional else bumped)
        return [*lines, *self._output_lines()]

    def _output_lines(self) -> list[str]:
        """Return the tests of what the kernel returned."""
        prefix, out = self.prefix, self.prefix + "out"
        returns = self.schema.returns
        check = f"{out} = {prefix}output(({self.flat},), {out})"
        bare = all(
            str(entry.type.leaf()) == "Tensor" and entry.type.leaf() is entry.type for entry in returns
        )
        if not returns:
            return [f"if {out} is not None: {prefix}output((), {out})", "return None"]
        if not bare:
            lines = [check]
        elif is_one(self.record):
            lines = [f"if {out}.__class__ is not {prefix}tensor: {check}"]
        else:
            tests = [f"{out}.__class__ is not {prefix}tuple", f"{prefix}len({out}) != {len(returns)}"]
            tests += [f"{out}[{i}].__class__ is not {prefix}tensor" for i in range(len(returns))]
            lines = [f"if {' or '.join(tests)}: {check}"]
        for index, name in same_objects(self.record):
            item = out if is_one(self.record) else f"{out}[{index}]"
            lines.append(f"if {item} is not {name}: {check}")
        return [*lines, f"return {out}"]
