"""Gradients by ``jax.vjp``, of operators and of their gradients, eagerly and inside ``jax.jit``.

JAX compiles every operation of an eager call for itself, again for each shape and dtype, which is most of
what a check costs. Where a law allows it, transforms whose rules are traced anyway run as one program.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opwright.checks.adapters.programs import Compiler, Program
from opwright.checks.adapters.results import Called, Pullback
from opwright.checks.adapters.wrapped import differentiable_wrapper, holds_arrays
from opwright.checks.attempts import attempt
from opwright.rules.autograd import new_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opwright.checks.adapters.base import Adapter
    from opwright.overload import OpOverload

TRACED = ("jax", "array_api")
"""The flavours that JAX traces; it calls others on the host."""

RULES = ("autograd", "jvp", "vmap")
"""The rules that transforms run."""

_whole: ContextVar[bool] = ContextVar("whole_programs", default=False)


def is_traced(part: Any) -> bool:
    """Return whether a kernel or a rule, or None for a missing one, is one that JAX traces."""
    return part is not None and part.flavour in TRACED


@contextmanager
def whole_programs() -> Iterator[None]:
    """Let ``at_once`` compile whole programs while the context is open."""
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


def at_once(record: OpOverload, function: Callable[..., Any], *arrays: Any) -> Any:
    """Run a transform of an operator, in one program where that is allowed and its rules are traced.

    Where the program raises, eagerly: *compile* is the law that looks at programs.
    """
    import jax

    rules = [rule for rule in map(record.rule, RULES) if rule is not None]
    parts: list[Any] = [*rules] or [record.select_kernel("jax", "cpu")]
    if _whole.get() and all(map(is_traced, parts)) and all(map(holds_arrays, record.schema.returns)):
        found, error = attempt(jax.jit(function), *arrays)
        if error is None:
            return found
    return function(*arrays)


def given(wanted: Sequence[Any]) -> list[Any]:
    """Return True where an array is wanted, None elsewhere, nested for lists."""
    return [
        [flag or None for flag in flags] if isinstance(flags, list) else flags or None for flags in wanted
    ]


def pullback(
    adapter: Adapter, record: OpOverload, values: Sequence[Any], wanted: Sequence[Any], *, jit: bool
) -> Pullback:
    """Return what ``jax.vjp`` makes of a call, or with ``jit`` what compiled programs of it do."""
    import jax

    function, arrays, _, rebuild = differentiable_wrapper(adapter, record, values, given(wanted))

    def linear(primals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        outs, pull = jax.vjp(function, *primals)
        return pull(tuple(map(_cotangent, outs, cotangents)))

    with adapter.scope():
        if jit:
            outputs, pull_flat = jax.jit(function)(*arrays), None
            compiled = jax.jit(linear)
        else:
            outputs, pull_flat = jax.vjp(function, *arrays)
    places = rebuild(range(len(outputs)))

    def pull(cotangents: Sequence[Any]) -> list[Any]:
        flat = _flat(places, cotangents, len(outputs))
        with adapter.scope():
            if pull_flat is not None:
                found = list(map(_conjugate, pull_flat(tuple(map(_cotangent, outputs, flat)))))
            else:
                found = list(map(_conjugate, compiled(arrays, flat)))
        return [
            [found.pop(0) if flag else None for flag in flags] if isinstance(flags, list)
            else found.pop(0) if flags else None
            for flags in wanted
        ]  # fmt: skip

    return Pullback(rebuild(outputs), pull)


def _flat(places: Sequence[Any], cotangents: Sequence[Any], count: int) -> list[Any]:
    """Return one cotangent for each output that is an array from those nested as the outputs are."""
    flat: list[Any] = [None] * count
    for place, cotangent in zip(places, cotangents, strict=True):
        pairs = zip(place, cotangent, strict=True) if isinstance(place, list) else [(place, cotangent)]
        for at, one in pairs:
            flat[at] = one
    return flat


def _cotangent(output: Any, cotangent: Any) -> Any:
    """Return a cotangent of the dtype that JAX wants for an output."""
    import jax
    import numpy as np

    if not jax.numpy.issubdtype(output.dtype, jax.numpy.inexact):
        return np.zeros(output.shape, jax.dtypes.float0)
    return jax.numpy.zeros_like(output) if cotangent is None else _conjugate(cotangent)


def _conjugate(array: Any) -> Any:
    """Return what is a gradient in torch's sense for JAX's cotangent, or the other way round."""
    return array.conj() if array.dtype.kind == "c" else array


def second(
    adapter: Adapter,
    record: OpOverload,
    values: Sequence[Any],
    wanted: Sequence[Any],
    *,
    cotangents: Sequence[Any],
    directions: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Differentiate the inner product of the gradients with directions."""
    import jax

    function, arrays, _, rebuild = differentiable_wrapper(adapter, record, values, given(wanted))
    along = [
        one for direction, flags in zip(directions, wanted, strict=True)
        for one in (direction if isinstance(flags, list) else [direction]) if flags and one is not None
    ]  # fmt: skip
    with adapter.scope():
        places = rebuild(range(len(function(*arrays))))
        flat = _flat(places, cotangents, sum(len(p) if isinstance(p, list) else 1 for p in places))
        used = [index for index, one in enumerate(flat) if one is not None]

        def product(primals: Sequence[Any], weights: Sequence[Any]) -> Any:
            outs, pull = jax.vjp(function, *primals)
            every = list(flat)
            for index, weight in zip(used, weights, strict=True):
                every[index] = weight
            grads = pull(tuple(map(_cotangent, outs, every)))
            return sum((grad * one).sum() for grad, one in zip(grads, along, strict=True))

        by_array, by_weight = at_once(
            record, jax.grad(product, (0, 1)), arrays, [flat[index] for index in used]
        )
    left = list(by_array)
    nested = [
        [left.pop(0) if flag else None for flag in flags] if isinstance(flags, list)
        else left.pop(0) if flags else None
        for flags in wanted
    ]  # fmt: skip
    return nested, list(by_weight)


def compilers(adapter: Adapter) -> list[Compiler]:
    """Return ``jax.jit``."""
    line = "op = jax.jit(op, static_argnums={static}, static_argnames={named})"
    return [Compiler("jax.jit", lambda record, values: JAXProgram(adapter, record), line)]


class JAXProgram(Program):
    """What ``jax.jit`` makes of an operator, of its gradient, and of it under vmap."""

    def __init__(self, adapter: Adapter, record: OpOverload) -> None:
        self._adapter = adapter
        self._record = record

    def call(self, values: Sequence[Any], *, other_size: bool = False) -> Called:
        """Run ``jax.jit`` of the operator."""
        import jax

        return self._split(values, jax.jit)

    def _split(self, values: Sequence[Any], transform: Any) -> Called:
        schema = self._record.schema
        wanted: list[Any] = [
            ([one is not None for one in value] if isinstance(value, list | tuple) else value is not None)
            if argument.has_tensors else None
            for argument, value in zip(schema.arguments, values, strict=True)
        ]  # fmt: skip
        function, arrays, _, rebuild = differentiable_wrapper(
            self._adapter, self._record, values, given(wanted)
        )
        with self._adapter.scope():
            outputs = rebuild(transform(function)(*arrays))
        count = len(schema.returns)
        fresh = [argument.name for argument in new_values(schema)]
        return Called(outputs[:count], dict(zip(fresh, outputs[count:], strict=True)))

    def vjp(self, values: Sequence[Any], wanted: Sequence[Any], *, other_size: bool = False) -> Pullback:
        """Run ``jax.jit`` of the operator and of its gradient."""
        return pullback(self._adapter, self._record, values, wanted, jit=True)

    def vmap(self, values: Sequence[Any], levels: Sequence[Sequence[Any]]) -> Called | None:
        """Run ``jax.jit`` of the operator under ``jax.vmap``."""
        import jax

        adapter, dims = self._adapter, levels[0]
        batched = [
            [one is not None for one in level] if isinstance(level, list) else level is not None
            for level in dims
        ]
        function, arrays, _, rebuild = differentiable_wrapper(adapter, self._record, values, given(batched))
        flat = [one for level in dims for one in (level if isinstance(level, list) else [level])]
        axes = tuple(one for one in flat if one is not None)
        with adapter.scope():
            outputs = rebuild(jax.jit(jax.vmap(function, axes))(*arrays))
        return Called(outputs[: len(self._record.schema.returns)])


def references(record: OpOverload, values: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return what mutable references hold after a call that was given them for the mutated arguments."""
    import jax

    from opwright.checks.adapters.base import call_arguments

    held: list[tuple[str, Any]] = []
    passed = list(values)
    for index, argument in enumerate(record.schema.arguments):
        if argument.is_write and not argument.is_list and values[index] is not None:
            passed[index] = jax.new_ref(values[index])
            held.append((argument.name, passed[index]))
    args, kwargs = call_arguments(record, passed)
    record.operator(*args, **kwargs)
    return [(name, reference[...]) for name, reference in held]
