"""The laws on JAX arrays: eager calls, ``jax.vjp``, ``jax.jvp``, ``jax.vmap``, ``jax.eval_shape``.

Everything runs with 64-bit types switched on for the duration of a call, so that derivatives can be
compared in double precision; the switch itself is left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from opwright.checks.adapters.base import (
    Adapter,
    Called,
    Faked,
    Meta,
    Pullback,
    Unsupported,
    call_arguments,
    differentiable_wrapper,
    missing_rule,
    outputs_of,
)
from opwright.rules.autograd import new_values, returned_mutations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opwright.overload import OpOverload


class JAXAdapter(Adapter):
    """JAX: arrays that never change; how they lie in memory is JAX's business."""

    name: ClassVar[str] = "jax"
    in_place: ClassVar[bool] = False
    imports: ClassVar[tuple[str, ...]] = ("import jax",)

    def array(self, array: Any) -> Any:
        """Return an array with a copy of NumPy's."""
        import jax

        with jax.enable_x64(True):
            return jax.numpy.array(array)

    def numpy(self, array: Any) -> Any:
        """Return a NumPy array."""
        import numpy as np

        return np.asarray(array)

    def is_array(self, value: Any) -> bool:
        """Return whether it is an array or a tracer."""
        import jax

        return isinstance(value, jax.Array)

    def shares_memory(self, a: Any, b: Any) -> bool:
        """Return False: arrays that never change may share memory."""
        return False

    def metadata(self, array: Any) -> tuple[tuple[str, Any], ...]:
        """Return shape and dtype."""
        return (("shape", tuple(array.shape)), ("dtype", str(array.dtype)))

    def call(self, record: OpOverload, values: Sequence[Any]) -> Called:
        """Call the operator; the new values of mutated arguments come after its returns."""
        import jax

        args, kwargs = call_arguments(record, values)
        with jax.enable_x64(True):
            return _called(record, record.operator(*args, **kwargs))

    def supports(self, record: OpOverload, kind: str) -> Unsupported | None:
        """Return why a rule that is missing leaves nothing to look at."""
        if kind == "jvp" and record.rule("autograd") is not None:
            return None
        if kind == "vmap" and record.schema.mutated:
            return Unsupported("mutated arguments under vmap are looked at in other frameworks")
        return missing_rule(record, kind)

    def fake(
        self, record: OpOverload, values: Sequence[Any], hints: Mapping[int, int] | None = None
    ) -> Faked:
        """Call the operator under ``jax.eval_shape``; symbolic sizes are looked at on FakeArrays."""
        import jax

        tangents: list[Any] = [
            value if argument.has_tensors else None
            for argument, value in zip(record.schema.arguments, values, strict=True)
        ]
        function, arrays, _, rebuild = differentiable_wrapper(self, record, values, tangents)
        with jax.enable_x64(True):
            structs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
            found = rebuild(jax.eval_shape(function, *structs))
        return Faked([_metas(one) for one in found[: len(record.schema.returns)]])

    def vjp(self, record: OpOverload, values: Sequence[Any], wanted: Sequence[Any]) -> Pullback:
        """Call ``jax.vjp``."""
        import jax
        import numpy as np

        function, arrays, _, rebuild = differentiable_wrapper(self, record, values, _given(wanted))
        with jax.enable_x64(True):
            outputs, pull_flat = jax.vjp(function, *arrays)
        places = rebuild(range(len(outputs)))

        def pull(cotangents: Sequence[Any]) -> list[Any]:
            flat: list[Any] = [None] * len(outputs)
            for place, cotangent in zip(places, cotangents, strict=True):
                for at, one in (
                    zip(place, cotangent, strict=True) if isinstance(place, list) else [(place, cotangent)]
                ):
                    flat[at] = one
            with jax.enable_x64(True):
                filled = [_cotangent(jax, np, out, one) for out, one in zip(outputs, flat, strict=True)]
                found = list(pull_flat(tuple(filled)))
            return [
                [found.pop(0) if flag else None for flag in flags_] if isinstance(flags_, list)
                else found.pop(0) if flags_ else None
                for flags_ in wanted
            ]  # fmt: skip

        return Pullback(rebuild(outputs), pull)

    def jvp(
        self, record: OpOverload, values: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Call ``jax.jvp``."""
        import jax

        function, primals, directions, rebuild = differentiable_wrapper(self, record, values, tangents)
        with jax.enable_x64(True):
            outputs, found = jax.jvp(function, tuple(primals), tuple(directions))
        return rebuild(outputs), rebuild(found)

    def vmap(
        self, record: OpOverload, values: Sequence[Any], levels: Sequence[Sequence[Any]], out_dims: int = 0
    ) -> Called:
        """Call ``jax.vmap``, nested for several levels."""
        import jax

        count = len(record.schema.positional)
        args, kwargs = call_arguments(record, values)
        arrays = [index for index, argument in enumerate(record.schema.positional) if argument.has_tensors]

        def function(*given: Any) -> Any:
            positional = list(args)
            for index, value in zip(arrays, given, strict=True):
                positional[index] = value
            return record.operator(*positional, **kwargs)

        for in_dims in reversed(levels):
            dims = tuple(in_dims[:count][index] for index in arrays)
            function = jax.vmap(function, dims, out_dims)
        with jax.enable_x64(True):
            return _called(record, function(*(args[index] for index in arrays)))

    def batch_lines(self, in_dims: Sequence[str], out_dims: int) -> tuple[str, ...]:
        """Return a call of ``jax.vmap``."""
        batched = "op"
        for dims in reversed(in_dims):
            batched = f"jax.vmap({batched}, {dims}{f', {out_dims}' if out_dims else ''})"
        return (f"batched = {batched}", "print(batched({args}))")

    def gradient_lines(self, sample: Any) -> tuple[str, ...]:
        """Return a call of ``jax.vjp`` with incoming gradients of ones."""
        return (
            "out, pull = jax.vjp(lambda *arrays: op(*arrays), {args})",
            "print(pull(jax.tree.map(jax.numpy.ones_like, out)))",
        )

    def code(self, name: str) -> str:
        """Return a JAX array of a NumPy array."""
        return f"jax.numpy.array({name})"


def _given(wanted: Sequence[Any]) -> list[Any]:
    """Return True where an array is wanted, None elsewhere, nested for lists."""
    return [
        [flag or None for flag in flags] if isinstance(flags, list) else flags or None for flags in wanted
    ]


def _cotangent(jax: Any, np: Any, output: Any, cotangent: Any) -> Any:
    """Return a cotangent of the dtype that JAX wants for an output."""
    if not jax.numpy.issubdtype(output.dtype, jax.numpy.inexact):
        return np.zeros(output.shape, jax.dtypes.float0)
    return jax.numpy.zeros_like(output) if cotangent is None else cotangent


def _called(record: OpOverload, out: Any) -> Called:
    """Split what a call returned into the returns and the new values of mutated arguments."""
    schema = record.schema
    fresh = [argument.name for argument in new_values(schema)]
    count = len(schema.returns) + len(fresh)
    if not fresh:
        outputs = outputs_of(record, out)
    elif count == 1:
        outputs = [out]
    else:
        outputs = list(out)
    after = dict(zip(fresh, outputs[len(schema.returns) :], strict=True))
    for entry in schema.returns if returned_mutations(schema) else ():
        names = {name for alias in entry.type.aliases() if alias.is_write for name in alias.before}
        for argument in schema.mutated:
            if any(name in names for alias in argument.type.aliases() for name in alias.before):
                after[argument.name] = outputs[schema.returns.index(entry)]
    return Called(outputs[: len(schema.returns)], after)


def _metas(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_metas(one) for one in value]
    return Meta(tuple(value.shape), str(value.dtype)) if hasattr(value, "dtype") else value


ADAPTER = JAXAdapter()
