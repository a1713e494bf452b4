"""A call of an operator as a computation: its record, and the template that holds what is static.

Kernels and rules are looked up when JAX asks for them; the record's version is part of what is compared, so
that a registration is never answered with a program that was made before it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from opwright import registry
from opwright.errors import UnsupportedError
from opwright.frameworks.base import load, no_kernel
from opwright.frameworks.jax import autograd, fake, launches, vmap
from opwright.frameworks.jax.arguments import (
    Template,
    as_user_output,
    fill,
    like_arguments,
    paths,
    structure_of,
    unflatten,
)
from opwright.frameworks.jax.avals import typed
from opwright.frameworks.jax.bodies import compute, lean
from opwright.frameworks.jax.callbacks import Compute, Plan, not_exportable
from opwright.frameworks.jax.ffi import Target, installed, register, text, value_of
from opwright.frameworks.jax.kernels import apply, state_of
from opwright.frameworks.jax.primitive import Computation, default_device_type
from opwright.frameworks.jax.tracing import naming
from opwright.keys import IMPLICIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.overload import Kernel, OpOverload
    from opwright.schema import Argument, FunctionSchema


KEPT_PLANS = 256
"""How many combinations of static arguments an operator keeps the generated functions of."""


class Call(Computation):
    """A call of an operator.

    Parameters
    ----------
    record
        The overload.
    template
        Its arguments, with indices in place of arrays.
    """

    __slots__ = ("record", "template", "version")

    def __init__(self, record: OpOverload, template: Template) -> None:
        self.record = record
        self.template = template
        self.version = record.version
        name = record.qualname.replace("::", ".")
        super().__init__(name, (id(record), record.version, typed(template)))

    def __repr__(self) -> str:
        arguments = zip(self.schema.arguments, self.template, strict=True)
        static = [f"{a.name}={value!r}" for a, value in arguments if not a.has_tensors]
        return f"({', '.join(static)})"

    @property
    def schema(self) -> FunctionSchema:
        """The operator's schema."""
        return self.record.schema

    def values(self, arrays: Sequence[Any]) -> list[Any]:
        """Return every argument in schema order."""
        return fill(self.schema, self.template, arrays)

    def template_of(self, argument: Argument) -> Any:
        """Return the template's entry for an argument."""
        return self.template[self.schema.arguments.index(argument)]

    def structure(self, avals: Sequence[Any], count: int) -> tuple[Any, ...]:
        """Return the structure of the returns among ``count`` flat outputs."""
        found = structure_of(self.schema, count)
        return found if found is not None else self.fake(avals)[1]

    def returns(self, structure: tuple[Any, ...], outs: Sequence[Any]) -> Any:
        """Return the operator's own returns, without new values of mutated arguments, as its kernel does."""
        return as_user_output(self.schema, unflatten(self.schema, structure, self.template, outs)[0])

    def user_output(self, avals: Sequence[Any], outs: Sequence[Any]) -> Any:
        """Return what a caller gets: the returns, then the new values of mutated arguments."""
        structure = self.structure(avals, len(outs))
        returns, values = unflatten(self.schema, structure, self.template, outs)
        return as_user_output(self.schema, [*returns, *values])

    # ------------------------------------------------------------------------------------ kernels

    def kernel(self, device_type: str) -> Kernel:
        """Return the kernel for a device type, or raise."""
        kernel = self.record.select_kernel("jax", device_type)
        if kernel is None:
            raise no_kernel(self.record, load("jax"), device_type)
        return kernel

    def plan(self, device_type: str) -> Plan:
        plans = state_of(self.record).plans
        found = plans.get((self, device_type))
        if found is None:
            if len(plans) >= KEPT_PLANS:
                plans.clear()
            found = plans[self, device_type] = self._plan(device_type)
        return found

    def _plan(self, device_type: str) -> Plan:
        record = self.record
        kernel = self.kernel(device_type)
        impure = "nondeterministic_seeded" in record.tags
        run = compute(record, kernel, self.template)
        if kernel.flavour in ("jax", "array_api"):
            run = _named(record, kernel, run)
        generate = lean(record, kernel, self.template)
        held = None
        if device_type == "cuda" and launches.holds(record, kernel):
            held = partial(launches.traceable, record, kernel, self.template)
        return Plan(record.qualname, kernel.flavour, run, kernel.source, impure, generate, held)

    def target(self) -> Target | None:
        written = text(self.template)
        return None if written is None else Target(_target_name(self.record), written, _Resolver(self.record))

    def _traced_kernel(self) -> Kernel | None:
        """Return a kernel that JAX can trace, whatever the device."""
        for device_type in (default_device_type(), "cpu", "cuda", "tpu"):
            kernel = self.record.select_kernel("jax", device_type)
            if kernel is not None and kernel.flavour in ("jax", "array_api"):
                return kernel
        return None

    def implicit(self) -> Compute | None:
        """Return the kernel that gradients go through, if the operator has one."""
        kernel = self._traced_kernel()
        if kernel is None or kernel.key != IMPLICIT:
            return None
        return _named(self.record, kernel, compute(self.record, kernel, self.template))

    # -------------------------------------------------------------------------------------- rules

    def fake(self, avals: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the abstract values of the flat outputs, and the structure of the returns."""
        kernel = self._traced_kernel()
        if kernel is None:
            return fake.outputs(self.record, self.template, avals, None)
        run = apply(self.record, kernel, self.template)
        with naming(f"kernel of {self.record.qualname}", kernel.source):
            return fake.outputs(self.record, self.template, avals, run)

    def abstract(self, avals: Sequence[Any]) -> list[Any]:
        state_of(self.record).traced = True
        return self.fake(avals)[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return autograd.jvp(self, primals, tangents)

    def batch(self, axis: Any, args: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        rule = self.record.rule("vmap")
        reason = self._why_looped(rule, dims)
        if reason is None and rule is not None:
            nested = like_arguments(self.schema, self.template, dims, None)
            with naming(f"vmap rule of {self.record.qualname}", rule.source):
                outs, out_dims = vmap.by_rule(self.record, rule, axis.size, self.values(args), nested)
            self._compare(rule, vmap.without_axes(args, dims), outs, out_dims)
            return outs, out_dims
        warned = state_of(self.record).warned
        if reason is not None and reason not in warned and self._traced_kernel() is None:
            warned.add(reason)
            vmap.warn_of_loop(self.record.qualname, reason)
        return vmap.loop(self, args, dims)

    def _compare(self, rule: Any, avals: Sequence[Any], outs: list[Any], out_dims: list[Any]) -> None:
        """Compare what a vmap rule returned with the fake, where there is one and it knows the sizes."""
        if self.record.rule("fake") is None:
            return
        try:
            expected = self.abstract(avals)
        except UnsupportedError:
            return
        vmap.compare(self.record, rule, expected, outs, out_dims)

    def _why_looped(self, rule: Any, dims: Sequence[Any]) -> str | None:
        if rule is None:
            return "no vmap rule is registered"
        if rule.flavour not in ("array_api", "jax"):
            return f"its vmap rule is of flavour {rule.flavour}, which JAX cannot trace"
        if self.schema.mutated:
            return "it mutates arguments, which a vmap rule cannot do to JAX's arrays"
        batched = like_arguments(self.schema, self.template, dims, None)[len(self.schema.positional) :]
        for argument, dim in zip(self.schema.keyword_only, batched, strict=True):
            if dim is not None and (not isinstance(dim, tuple) or any(one is not None for one in dim)):
                return f"its keyword-only argument {argument.name} is batched, which a vmap rule is not told"
        return None


def _named(record: OpOverload, kernel: Kernel, run: Compute) -> Compute:
    """Return a traced kernel whose errors of missing values name the operator."""

    def traced(arrays: Sequence[Any], outs: Sequence[Any] | None) -> list[Any]:
        with naming(f"kernel of {record.qualname}", kernel.source):
            return run(arrays, outs)

    return traced


_targets: dict[str, list[OpOverload]] = {}
"""Records by name, in the order in which they got a target: XLA may call them as long as it lives."""


def _target_name(record: OpOverload) -> str:
    """Return the name of an operator's FFI target, the same in every process that defines it once."""
    with registry.lock:
        known = _targets.setdefault(record.key, [])
        if not any(one is record for one in known):
            known.append(record)
        generation = next(index for index, one in enumerate(known, 1) if one is record)
    name = f"opwright.{record.key.replace('::', '.')}"
    return name if generation == 1 else f"{name}#{generation}"


class _Resolver:
    """From what a program says of a call to how it runs, and its number of inputs."""

    __slots__ = ("_record",)

    def __init__(self, record: OpOverload) -> None:
        self._record = record

    @property
    def version(self) -> int:
        """The record's: another after each registration."""
        return self._record.version

    def __call__(self, written: str, /) -> tuple[Plan, int]:
        value = value_of(written)
        looped = isinstance(value, list)  # a template is a tuple
        call = Call(self._record, value_of(value[1]) if looped else value)
        computation = vmap.Loop(call, value[0]) if looped else call
        return computation.plan("cpu"), len(paths(self._record.schema, call.template))


def export_target(op: Any) -> str:
    """Register an operator's FFI target in this process and return its name.

    A program that ``jax.export`` keeps refers to host kernels by this name: allow it when exporting, with
    ``jax.export.DisabledSafetyCheck.custom_call(name)``, and call this in the process that loads the program.

    Parameters
    ----------
    op
        An operator.

    Raises
    ------
    UnsupportedError
        If the extra ``tvm-ffi`` is not installed.
    """
    record = registry.records[f"{op.name}.{op.overload}"]
    if not installed():
        raise not_exportable(record.qualname)
    name = _target_name(record)
    register(name, _Resolver(record))
    return name
