"""The laws on JAX arrays: eager calls, ``jax.vjp``, ``jax.jvp``, ``jax.vmap``, ``jax.eval_shape``.

Everything runs with 64-bit types switched on for the duration of a call, so that derivatives can be
compared in double precision; the switch itself is left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from opwright.checks.adapters import jax_program
from opwright.checks.adapters.base import Adapter, call_arguments, outputs_of
from opwright.checks.adapters.results import Called, Faked, Meta, Pullback, Unsupported
from opwright.checks.adapters.wrapped import differentiable_wrapper
from opwright.checks.attempts import attempt
from opwright.rules.autograd import new_values, returned_mutations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opwright.checks.adapters.programs import Compiler
    from opwright.overload import OpOverload


class JAXAdapter(Adapter):
    """JAX: arrays that never change; how they lie in memory is JAX's business."""

    name: ClassVar[str] = "jax"
    in_place: ClassVar[bool] = False
    compiles_calls: ClassVar[bool] = True
    imports: ClassVar[tuple[str, ...]] = ("import jax",)

    def array(self, array: Any) -> Any:
        """Return an array with a copy of NumPy's."""
        import jax
        import numpy as np

        with jax.enable_x64(True):
            return jax.device_put(np.array(array))  # jax.numpy.array compiles a program for every shape

    def numpy(self, array: Any) -> Any:
        """Return a NumPy array."""
        import numpy as np

        return np.asarray(array)

    def zeros_like(self, array: Any) -> Any:
        """Return zeros, of a tracer too."""
        import jax

        return jax.numpy.zeros_like(array)

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
        kernel = record.select_kernel("jax", self.device_type)
        if kind == "compile" and jax_program.is_traced(kernel):
            return None  # JAX traces the kernel itself
        return super().supports(record, kind)

    def fake(
        self, record: OpOverload, values: Sequence[Any], hints: Mapping[int, int] | None = None
    ) -> Faked:
        """Call the operator under ``jax.eval_shape``; symbolic sizes are looked at on FakeArrays."""
        import jax

        function, structs, rebuild = self._of_structs(record, values)
        with self.scope():
            found = rebuild(jax.eval_shape(function, *structs))
        return Faked([_metas(one) for one in found[: len(record.schema.returns)]])

    def lowers(self, record: OpOverload, values: Sequence[Any]) -> bool:
        """Lower a program of a traced kernel: that raises where its outputs are not what the fake said."""
        import jax

        if not jax_program.is_traced(record.select_kernel("jax", self.device_type)):
            return False
        function, structs, _ = self._of_structs(record, values)
        with self.scope():
            return attempt(jax.jit(function).lower, *structs)[1] is None

    def _of_structs(
        self, record: OpOverload, values: Sequence[Any]
    ) -> tuple[Callable[..., Any], list[Any], Callable[[Any], list[Any]]]:
        """Return a function of all arrays, what stands for them, and ``rebuild`` for what it returns."""
        import jax

        tangents: list[Any] = [
            value if argument.has_tensors else None
            for argument, value in zip(record.schema.arguments, values, strict=True)
        ]
        function, arrays, _, rebuild = differentiable_wrapper(self, record, values, tangents)
        with self.scope():
            return function, [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays], rebuild

    def cheaply(self) -> AbstractContextManager[Any]:
        """Return the context in which transforms of what is traced are compiled as one program."""
        return jax_program.whole_programs()

    def outlined(self, function: Callable[[], list[Any]]) -> list[Any]:
        """Call the function under ``jax.eval_shape``, or as it is where that asks for values."""
        import jax

        with self.scope():
            found, error = attempt(jax.eval_shape, function)
        return function() if error is not None or found is None else found

    def vjp(self, record: OpOverload, values: Sequence[Any], wanted: Sequence[Any]) -> Pullback:
        """Call ``jax.vjp``."""
        return jax_program.pullback(self, record, values, wanted, jit=False)

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which 64-bit types are on."""
        import jax

        found: AbstractContextManager[Any] = jax.enable_x64(True)
        return found

    def second(
        self,
        record: OpOverload,
        values: Sequence[Any],
        wanted: Sequence[Any],
        cotangents: Sequence[Any],
        directions: Sequence[Any],
    ) -> tuple[list[Any], list[Any]] | Unsupported:
        """Call ``jax.grad`` of gradients."""
        return jax_program.second(self, record, values, wanted, cotangents=cotangents, directions=directions)

    def compilers(self, *, thorough: bool) -> list[Compiler] | Unsupported:
        """Return ``jax.jit``."""
        return jax_program.compilers(self)

    def functionalised(
        self, record: OpOverload, values: Sequence[Any]
    ) -> list[tuple[str, Any, Any]] | Unsupported:
        """Pass mutable references for the mutated arguments."""
        import jax

        if not hasattr(jax, "new_ref"):
            return Unsupported("this version of JAX has no mutable references")
        eager = self.call(record, values).new_values
        with self.scope():
            held = jax_program.references(record, values)
        return [(f"the reference for {name}", eager[name], one) for name, one in held]

    def jvp(
        self, record: OpOverload, values: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Call ``jax.jvp``."""
        import jax

        function, primals, directions, rebuild = differentiable_wrapper(self, record, values, tangents)
        with self.scope():
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
        with self.scope():
            return _called(record, jax_program.at_once(record, function, *(args[index] for index in arrays)))

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

    def array_code(self, name: str, array: Any) -> str:
        """Return ``code`` for a certain array, with its dtype where NumPy has none of that name."""
        return (
            f"jax.numpy.array({name}, '{array.dtype.name}')" if array.dtype.kind == "V" else self.code(name)
        )


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
