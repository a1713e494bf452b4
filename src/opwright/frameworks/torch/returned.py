"""Operators that return what they mutate, where torch functionalises: one that does not return it stands in.

Inductor reuses the memory of a mutated tensor while the same tensor, returned, is still in use, and older
releases functionalise no custom operator that returns an alias. An operator without such returns has
neither problem.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.library import Library, register_torch_dispatch

from opwright.frameworks.torch import backend, fake, private
from opwright.frameworks.torch.lowered import MUTATE
from opwright.keys import DEFAULT
from opwright.outputs import is_one, same_objects
from opwright.overload import Kernel, OpOverload
from opwright.rules.fake import FakeRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.frameworks.torch.lowered import Lowered


def sync(state: Lowered, attach: Callable[[OpOverload], Lowered]) -> None:
    """Define, with ``attach``, the operator that stands in for one that returns what it mutates."""
    if state.stand_in is None and private.functional_mode() is not None and same_objects(state.record):
        state.stand_in = attach(_record(state))
        state.inner.append(state.stand_in)


def _record(state: Lowered) -> OpOverload:
    record = state.record
    namespace, _, name = record.schema.name.partition("::")
    returned = {index for index, _ in same_objects(record)}
    rest = tuple(entry for index, entry in enumerate(record.schema.returns) if index not in returned)
    schema = replace(record.schema, name=f"{namespace}::{MUTATE}{name}", returns=rest, is_tuple=False)
    single = is_one(record)

    def without(runner_of: Callable[[tuple[Any, ...]], Callable[..., Any]]) -> Callable[..., Any]:
        """Return the function that runs what ``runner_of`` gives and leaves out what is mutated."""

        def run(*args: Any, **kwargs: Any) -> Any:
            flat = (*args, *(kwargs[name] for name in state.names))
            out = runner_of(flat)(flat)
            outs = (out,) if single else out
            kept = tuple(one for index, one in enumerate(outs) if index not in returned)
            return None if not kept else kept[0] if len(kept) == 1 else kept

        return run

    run = without(lambda flat: backend.runner_for(state, flat))
    faked = without(lambda flat: fake.make_runner(state))
    found = OpOverload(schema, flavour="torch", source=record.source, non_differentiable=True)
    found.kernels = (Kernel(run, DEFAULT, "torch", record.source),)
    found.rules = (FakeRule(faked, "torch", record.source),)
    return found


def install(state: Lowered, stand_in: Lowered) -> Library:
    """Let the other operator run where torch functionalises; destroying the library undoes it."""
    namespace = state.record.name.partition("::")[0]
    library = Library(namespace, "IMPL")
    names = [argument.name for argument in state.record.schema.arguments]
    positions = {index: names.index(name) for index, name in same_objects(state.record)}
    count, single = len(state.record.schema.returns), is_one(state.record)

    def functionalise(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        flat = state.flat(tuple(args), dict(kwargs or {}))
        with mode:
            out = stand_in.call(flat)
        rest = iter(out if isinstance(out, tuple) else (out,))
        outs = tuple(flat[positions[i]] if i in positions else next(rest) for i in range(count))
        return outs[0] if single else outs

    register_torch_dispatch(
        f"{namespace}::{state.op_name}", private.functional_mode(), functionalise, lib=library
    )
    return library
