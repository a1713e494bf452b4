"""The laws on NumPy arrays: the operator itself, and Opwright's transforms of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.checks.adapters.base import Adapter, call_arguments, mutated, outputs_of
from opwright.checks.adapters.results import Asked, Called, Faked, Meta, Pullback
from opwright.checks.arrays import LAYOUTS, is_floating
from opwright.errors import GradientError
from opwright.rules.autograd import new_values, output_names
from opwright.schema import ListType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opwright.checks.samples import Sample
    from opwright.forward import Forward
    from opwright.overload import OpOverload
    from opwright.schema import FunctionSchema


class NumPyAdapter(Adapter):
    """NumPy: arrays as they are."""

    name: ClassVar[str] = "numpy"
    layouts: ClassVar[tuple[str, ...]] = tuple(LAYOUTS)
    coerces: ClassVar[bool] = False

    def array(self, array: Any) -> Any:
        """Return the array itself."""
        return array

    def numpy(self, array: Any) -> Any:
        """Return the array itself."""
        return array

    def is_array(self, value: Any) -> bool:
        """Return whether it is an array, or a NumPy scalar."""
        import numpy as np

        return isinstance(value, np.ndarray | np.generic)

    def shares_memory(self, a: Any, b: Any) -> bool:
        """Return whether two arrays use one buffer, whatever part of it each sees."""
        from opwright.frameworks.numpy import shares_memory

        return shares_memory(a, b)

    def metadata(self, array: Any) -> tuple[tuple[str, Any], ...]:
        """Return shape, strides, dtype, address and the writeable flag."""
        return (
            ("shape", tuple(array.shape)),
            ("strides", tuple(array.strides)),
            ("dtype", str(array.dtype)),
            ("address", array.__array_interface__["data"][0]),
            ("writeable flag", bool(array.flags.writeable)),
        )

    def call(self, record: OpOverload, values: Sequence[Any]) -> Called:
        """Call the operator; arguments are mutated in place."""
        args, kwargs = call_arguments(record, values)
        outputs = outputs_of(record, record.operator(*args, **kwargs))
        return Called(outputs, mutated(record, values))

    def fake(
        self, record: OpOverload, values: Sequence[Any], hints: Mapping[int, int] | None = None
    ) -> Faked:
        """Run the fake on FakeArrays."""
        from opwright.sizes import recording
        from opwright.transforms import run_fake

        names: dict[int, str] = {}  # equal sizes are one symbol, as in torch, named after the first
        fakes = [
            _fake_value(value, argument.name, hints, names) if argument.has_tensors else value
            for argument, value in zip(record.schema.arguments, values, strict=True)
        ]
        with recording() as questions:
            out = run_fake(record, fakes)
        seen: list[tuple[str, Any]] = []
        for argument, fake in zip(record.schema.arguments, fakes, strict=True):
            if isinstance(fake, list):
                seen += [(f"argument {argument.name}[{i}]", one) for i, one in enumerate(fake)]
            elif argument.has_tensors:
                seen.append((f"argument {argument.name}", fake))
        outputs = [_metas(one, f"output {index}", seen) for index, one in enumerate(outputs_of(record, out))]
        return Faked(outputs, [Asked(_readable(one.text), one.source, one.answer) for one in questions])

    def vjp(self, record: OpOverload, values: Sequence[Any], wanted: Sequence[Any]) -> Pullback:
        """Run the forward of the autograd rule, and let the backward be called as often as wanted."""
        from opwright.calls import mapped
        from opwright.rules.autograd import split_gradients

        forward = _forward(record, values, wanted)
        xp = forward.call.xp

        def pull(cotangents: Sequence[Any]) -> list[Any]:
            # The rule itself, not opwright.vjp: that copies the gradients that come in, and checks those
            # that go out.
            grads = list(cotangents)
            if forward.ctx.materialize_grads:
                pairs = zip(forward.outputs, grads, strict=True)
                grads = [
                    mapped(lambda out, g: xp.zeros_like(xp.asarray(out)) if g is None else g, *p)
                    for p in pairs
                ]
            returned = forward.back(forward.rule.fn(forward.ctx, *map(forward.there, grads)))
            return split_gradients(forward.rule, record.schema, returned)

        return Pullback(forward.outputs, pull, forward.ctx)

    def refuses(
        self, record: OpOverload, values: Sequence[Any], cotangents: Sequence[Any]
    ) -> Exception | None:
        """Return the error of ``opwright.vjp`` for what the backward returns."""
        from opwright.gradients import pull_back

        wanted = [
            [hasattr(one, "dtype") for one in value]
            if isinstance(value, list | tuple)
            else hasattr(value, "dtype")
            for value in values
        ]
        try:
            pull_back(_forward(record, values, wanted), cotangents)
        except GradientError as error:
            return error
        return None

    def jvp(
        self, record: OpOverload, values: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Call ``opwright.jvp``; keyword-only arguments are constants."""
        from opwright.transforms import jvp

        count = len(record.schema.positional)
        args, kwargs = call_arguments(record, values)
        out, found = jvp(record.operator, args, tuple(tangents[:count]), **kwargs)
        changed = mutated(record, values)
        after = [changed[argument.name] for argument in new_values(record.schema)]
        single = len(output_names(record.schema)) == 1
        return [*outputs_of(record, out), *after], [found] if single else list(found or ())

    def vmap(
        self, record: OpOverload, values: Sequence[Any], levels: Sequence[Sequence[Any]], out_dims: int = 0
    ) -> Called:
        """Call ``opwright.vmap``, nested for several levels."""
        from opwright.batching import vmap

        batched: Any = record.operator
        for in_dims in reversed(levels):
            batched = vmap(batched, tuple(in_dims[: len(record.schema.positional)]), out_dims)
        args, kwargs = call_arguments(record, values)
        return Called(outputs_of(record, batched(*args, **kwargs)), mutated(record, values))

    def batch_lines(self, in_dims: Sequence[str], out_dims: int) -> tuple[str, ...]:
        """Return a call of ``opwright.vmap``."""
        batched = "op"
        for dims in reversed(in_dims):
            batched = f"ow.vmap({batched}, {dims}{f', {out_dims}' if out_dims else ''})"
        return (f"batched = {batched}", "print(batched({args}))")

    def tangent_lines(self, sample: Sample) -> tuple[str, ...]:
        """Return a call of ``opwright.jvp`` with tangents of ones."""
        count = len(sample.schema.positional)
        ones = []
        for argument, value in list(zip(sample.schema.arguments, sample.values, strict=True))[:count]:
            if not argument.has_tensors or value is None:
                ones.append("None")
            elif argument.is_list:
                ones.append(f"[np.ones_like(one) for one in {argument.name}]")
            else:
                ones.append(f"np.ones_like({argument.name})" if is_floating(value) else "None")
        tangents = ", ".join(ones) + ("," if count == 1 else "")
        return ("print(ow.jvp(op, ({args},), (" + tangents + ")))",)

    def gradient_lines(self, sample: Sample) -> tuple[str, ...]:
        """Return a call of ``opwright.vjp`` with incoming gradients of ones."""
        ones = _ones(sample.schema)
        return ("out, pull = ow.vjp(op, {args})", f"print(pull({', '.join(ones)}))")

    def code(self, name: str) -> str:
        """Return the name itself."""
        return name


def _ones(schema: FunctionSchema) -> list[str]:
    """Return an expression for an incoming gradient of ones for each output."""
    single = len(schema.returns) == 1 and not schema.is_tuple
    texts = []
    for index, entry in enumerate(schema.returns):
        name = "out" if single else f"out[{index}]"
        listed = isinstance(entry.type, ListType)
        texts.append(f"[np.ones_like(one) for one in {name}]" if listed else f"np.ones_like({name})")
    return texts + [f"np.ones_like({argument.name})" for argument in new_values(schema)]


def _forward(record: OpOverload, values: Sequence[Any], wanted: Sequence[Any]) -> Forward:
    from opwright.calls import bind
    from opwright.forward import Forward, autograd_rule, no_formula

    args, kwargs = call_arguments(record, values)
    call = bind("vjp", record.operator, args, kwargs)
    rule = autograd_rule(call)
    if rule is None:
        raise no_formula(call, "vjp", "a backward")
    return Forward(call, rule, rule.setup_context, wanted)


def _fake_value(value: Any, label: str, hints: Mapping[int, int] | None, names: dict[int, str]) -> Any:
    from opwright.fakes import FakeArray
    from opwright.sizes import symbol

    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_fake_value(one, f"{label}__{i}_", hints, names) for i, one in enumerate(value)]

    def size(axis: int, n: int) -> Any:
        if hints is None or n < 2:  # 0 and 1 are never symbols, as in torch
            return n
        return symbol(names.setdefault(n, f"{label}__axis{axis}"), hints.get(n, n), low=2)

    return FakeArray(tuple(size(axis, n) for axis, n in enumerate(value.shape)), value.dtype)


def _readable(text: str) -> str:
    """Return a question with the sizes' names as an author writes them: ``xs[1].shape[0] > 2``."""
    return re.sub(r"(\w+?)(?:__(\d+)_)?__axis(\d+)", _written_size, text)


def _written_size(match: re.Match[str]) -> str:
    name, element, axis = match.groups()
    return f"{name}{'' if element is None else f'[{element}]'}.shape[{axis}]"


def _metas(value: Any, label: str, seen: list[tuple[str, Any]]) -> Any:
    from opwright.fakes import FakeArray
    from opwright.sizes import bounds, evaluate

    if isinstance(value, list | tuple):
        return [_metas(one, f"{label}[{index}]", seen) for index, one in enumerate(value)]
    if not isinstance(value, FakeArray):
        return value
    same = tuple(what for what, other in seen if other is value)
    seen.append((label, value))
    shape = tuple(evaluate(size) for size in value.shape)
    return Meta(shape, value.dtype.name, same, None, tuple(map(bounds, value.shape)))


ADAPTER = NumPyAdapter()
