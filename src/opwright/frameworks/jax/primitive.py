"""The primitives of operators: each rule that JAX asks for is a method of the computation that is bound.

A primitive has a name and one static parameter, ``call``. Computations are compared by type and value of
everything static in them, so that JAX never takes one for another (1, 1.0 and True are equal in Python).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from opwright.errors import UnsupportedError, layout
from opwright.frameworks.jax import avals, experimental, private
from opwright.frameworks.jax.callbacks import Plan, original_errors
from opwright.frameworks.jax.execute import check_numbers, concrete, run_here
from opwright.frameworks.jax.lowering import PLATFORMS, traceable

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from opwright.frameworks.jax.ffi import Target


class Computation(ABC):
    """What a primitive computes, static arguments included: the parameter ``call``.

    Parameters
    ----------
    name
        The primitive's name in a jaxpr.
    key
        Equal exactly for computations that are the same.
    """

    __slots__ = ("_hash", "key", "name")

    def __init__(self, name: str, key: Hashable) -> None:
        self.name = name
        self.key = key
        self._hash = hash((type(self), key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.key == other.key)

    @abstractmethod
    def __repr__(self) -> str:
        """Return what a jaxpr shows; short."""

    @abstractmethod
    def abstract(self, avals: Sequence[Any]) -> list[Any]:
        """Return the abstract values of the outputs."""

    @abstractmethod
    def plan(self, device_type: str) -> Plan:
        """Return how it runs on a device type."""

    @abstractmethod
    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return outputs and tangents."""

    @abstractmethod
    def batch(self, axis: Any, args: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return outputs and their batch axes; at least one operand is mapped."""

    def target(self) -> Target | None:
        """Return what names the body in an XLA FFI target, or None where it has no stable name."""
        return None

    def bind(self, *arrays: Any) -> list[Any]:
        """Apply the computation to arrays or tracers."""
        outs: list[Any] = primitive(self.name).bind(*arrays, call=self)
        return outs


_primitives: dict[str, Any] = {}


def primitive(name: str) -> Any:
    """Return the primitive of a name; there is one for each, whatever is redefined."""
    made = _primitives.get(name)
    if made is None:
        made = Primitive(name)
        made.multiple_results = True
        made.def_impl(_run)
        made.def_abstract_eval(lambda *avals, call: call.abstract(avals))
        ad.primitive_jvps[made] = lambda primals, tangents, *, call: call.jvp(primals, tangents)
        ad.primitive_transposes[made] = _transpose
        batching.fancy_primitive_batchers[made] = _batch
        for platform in PLATFORMS:
            mlir.register_lowering(made, partial(_lower, platform), platform=platform)
        experimental.add_jet(made)
        made = _primitives.setdefault(name, made)
    experimental.add_sparse(made)
    return made


def _batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], *, call: Computation) -> Any:
    # JAX also asks where nothing is mapped: a call on closed-over arrays under vmap.
    if all(dim is None for dim in dims):
        outs = call.bind(*args)
        return outs, [None] * len(outs)
    return call.batch(axis, avals.arrays(args), dims)


def _transpose(cotangents: Sequence[Any], *args: Any, call: Computation) -> list[Any]:
    if all(type(one) is ad.Zero for one in cotangents):
        return [None] * len(args)
    name = call.name.replace(".", "::", 1)
    raise UnsupportedError(
        layout(
            f"{name} is called on the tangents of a derivative, and JAX transposes it",
            expected="a linear function: an operator is not known to be one",
            got="a call in the rule of a jax.custom_jvp, or jax.linear_transpose of the operator itself",
            fix="write that rule with jax.custom_vjp, or take jax.vjp of the operator",
        )
    )


def _lower(platform: str, context: Any, *operands: Any, call: Computation) -> Any:
    device_type = PLATFORMS[platform]
    function = traceable(
        call.plan(device_type),
        device_type,
        context.avals_in,
        context.avals_out,
        target=call.target(),
        export=private.for_export(context),
    )
    return mlir.lower_fun(function, multiple_results=True)(context, *operands)


def device_type_of(array: Any) -> str:
    """Return the device type that a concrete array is on, in torch's words."""
    platform = next(iter(array.sharding.device_set)).platform
    return "cuda" if platform in ("gpu", "cuda", "rocm") else str(platform)


def default_device_type() -> str:
    """Return the device type of new arrays."""
    default = jax.config.jax_default_device
    platform = default if isinstance(default, str) else getattr(default, "platform", jax.default_backend())
    return "cuda" if platform in ("gpu", "cuda", "rocm") else str(platform)


@cache
def _on_one_platform() -> bool:
    """Return whether arrays can be on the CPU alone."""
    return jax.default_backend() == "cpu"


def device_type_of_call(arrays: Sequence[Any]) -> str:
    """Return the device type that a call of concrete arrays runs on: that of a committed one, if any is."""
    if not arrays:
        return default_device_type()
    if not _on_one_platform():
        committed = next((array for array in arrays if array.committed), None)
        if committed is not None:
            return device_type_of(committed)
        if jax.config.jax_default_device is not None:
            return default_device_type()
    return device_type_of(arrays[0])


def _run(*arrays: Any, call: Computation) -> list[Any]:
    """Run a computation on concrete arrays."""
    arrays = tuple(concrete(arrays))
    plan = call.plan(device_type_of_call(arrays))
    outs = run_here(plan, arrays)
    return _run_compiled(plan, arrays, call) if outs is None else outs


@partial(jax.jit, static_argnames=("call",))
def _compiled(*arrays: Any, call: Computation) -> list[Any]:
    return call.bind(*arrays)


def _run_compiled(plan: Plan, arrays: Sequence[Any], call: Computation) -> list[Any]:
    # Under debug_nans JAX would run the program again call by call, which would come here again.
    with original_errors(), jax.debug_nans(False), jax.debug_infs(False), jax.disable_jit(False):
        outs = _compiled(*arrays, call=call)
        jax.block_until_ready(outs)  # on several devices an exception comes with the result
    check_numbers(plan, outs)
    return outs
