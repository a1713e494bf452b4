"""A kernel as a function of flat arrays: arguments put together, outputs taken apart and tested.

* A kernel with a keyword parameter ``out`` that is not in the schema and defaults to None is handed XLA's
  own output buffer there (a tuple of them for several returns) and may write into it and return it.
* JAX's arrays are immutable. A mutating kernel of flavour ``array_api`` gets references for the arguments
  that it mutates and writes ``x[...] = …``; one of flavour ``jax`` returns their new values after its
  outputs; any other gets a fresh copy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from opwright.errors import OutputError, layout
from opwright.frameworks.base import of_flavour
from opwright.frameworks.jax.arguments import Template, fill, flatten_outputs, is_ref, paths, structure_of
from opwright.frameworks.jax.inputs import copy_of, inputs_of
from opwright.outputs import CHECKED_CALLS, check_aliases, is_one, not_same, same_objects
from opwright.rules.autograd import new_values, returned_mutations

if TYPE_CHECKING:
    from opwright.overload import Kernel, OpOverload
    from opwright.schema import FunctionSchema


class State:
    """What JAX keeps of a record beside its own: dropped at every registration.

    ``unchecked`` holds the number of calls of a host kernel whose outputs are still looked at for aliasing;
    ``warned`` the reasons of warnings that were given; ``plans`` how calls run, by static arguments;
    ``traced`` whether a program may have been traced with what was registered then.
    """

    __slots__ = ("plans", "traced", "unchecked", "warned")

    def __init__(self) -> None:
        self.plans: dict[Any, Any] = {}
        self.traced = False
        self.unchecked = [CHECKED_CALLS]
        self.warned: set[str] = set()


def state_of(record: OpOverload) -> State:
    """Return what JAX keeps of a record."""
    state = record.lowered.get("jax")
    if state is None:
        state = record.lowered["jax"] = State()
    return state


Apply = Callable[..., tuple[list[Any], tuple[Any, ...]]]


def takes_out(kernel: Kernel, schema: FunctionSchema) -> bool:
    """Return whether a kernel can write its outputs into arrays that it is given as ``out``."""
    if kernel.flavour in ("jax", "array_api") or any(a.name == "out" for a in schema.arguments):
        return False
    try:
        parameter = inspect.signature(kernel.fn).parameters.get("out")
    except (TypeError, ValueError):
        return False
    return (
        parameter is not None
        and parameter.default is None
        and parameter.kind is not parameter.POSITIONAL_ONLY
    )


def apply(record: OpOverload, kernel: Kernel, template: Template, *, checked: bool = True) -> Apply:
    """Return the function that runs a kernel on flat arrays: flat outputs, and their structure.

    Where it is not ``checked``, nobody looks whether the kernel keeps to its schema: the arrays have no data.
    """
    schema = record.schema
    static = in_flavour(schema, template, kernel.flavour)
    count = len(schema.positional)
    keyword_only = [argument.name for argument in schema.keyword_only]
    leading = (None,) if kernel.with_keyset else ()
    into = takes_out(kernel, schema)
    mutated = [i for i, argument in enumerate(schema.arguments) if argument.is_write]
    functional = kernel.flavour == "jax" and bool(mutated)
    inline = kernel.flavour in ("jax", "array_api")
    unchecked = [0] if inline or not checked else state_of(record).unchecked
    names = [f"argument {name}" for name in paths(schema, template)]
    fix = "write to a copy of it, or declare it in mutates_args"
    title = f"kernel of {record.qualname}"
    inputs = inputs_of(title, kernel.source, kernel.flavour, names, fix) if checked else None
    fn = kernel.fn

    def run(arrays: Sequence[Any], outs: Sequence[Any] | None = None) -> tuple[list[Any], tuple[Any, ...]]:
        if inputs is not None:
            copied = bool(unchecked[0])
            arrays, before = inputs.given(arrays, copied=copied)
        values = fill(schema, static, arrays)
        if mutated and not functional:
            _make_writable(schema, values, mutated, kernel.flavour, outs)
        kwargs = dict(zip(keyword_only, values[count:], strict=True))
        if into and outs is not None:
            kwargs["out"] = outs[0] if len(schema.returns) == 1 else tuple(outs[: len(schema.returns)])
        result = fn(*leading, *values[:count], **kwargs)
        if functional:
            return _functional(record, kernel, result)
        if inputs is not None:
            inputs.require_unwritten(arrays, before, copied=copied)
        if unchecked[0]:
            check_aliasing(record, kernel, values, result)
        leaves, structure = flatten_outputs(record, result, kernel.flavour, kernel)
        if mutated:
            _require_returned(record, kernel, values, result)
        return leaves + _new_values(schema, values), structure

    return run


def check_aliasing(record: OpOverload, kernel: Kernel, values: Sequence[Any], result: Any) -> None:
    """Raise where an output shares memory with an argument or another output; counts down the calls."""
    to_numpy = of_flavour(kernel.flavour).to_numpy

    def shares(one: Any, other: Any) -> bool:
        if any(getattr(getattr(array, "device", None), "type", "cpu") != "cpu" for array in (one, other)):
            return False
        return bool(np.may_share_memory(to_numpy(one), to_numpy(other)))

    flatten_outputs(record, result, kernel.flavour, kernel)
    check_aliases(record, values, result, shares)
    state_of(record).unchecked[0] -= 1


def in_flavour(schema: FunctionSchema, template: Template, flavour: str) -> Template:
    """Return the template with dtypes and devices as the flavour's own objects."""
    if flavour in ("jax", "array_api"):
        return template
    kinds = [
        argument.base if argument.base in ("ScalarType", "Device") else None for argument in schema.arguments
    ]
    if not any(kinds):
        return template
    convert = of_flavour(flavour).convert

    def one(kind: str, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [one(kind, entry) for entry in value]
        if value is None:
            return None
        return convert(kind, device_name(value) if kind == "Device" else value)

    return tuple(one(kind, value) if kind else value for kind, value in zip(kinds, template, strict=True))


def device_name(device: Any) -> str:
    """Return a device of JAX in torch's words, such as ``"cuda:0"``."""
    platform = getattr(device, "platform", None)
    if platform is None:
        return str(device)
    kind = "cuda" if platform in ("gpu", "cuda", "rocm") else str(platform)
    return kind if kind == "cpu" else f"{kind}:{device.local_hardware_id or 0}"


def _make_writable(
    schema: FunctionSchema, values: list[Any], mutated: list[int], flavour: str, outs: Sequence[Any] | None
) -> None:
    """Replace each mutated argument by something that the kernel may write to."""
    places = _places(schema, outs) if outs is not None else {}
    for index in mutated:
        value = values[index]
        name = schema.arguments[index].name
        if isinstance(value, list | tuple):
            values[index] = type(value)(None if one is None else _fresh(one, flavour) for one in value)
        elif value is not None and name in places and outs is not None:
            # The kernel mutates XLA's own output buffer, which is its new value.
            places[name][...] = value
            values[index] = places[name]
        elif value is not None:
            values[index] = _fresh(value, flavour)


def _places(schema: FunctionSchema, outs: Sequence[Any] | None) -> dict[str, Any]:
    """Return the output that is the new value of each mutated argument, where the schema alone tells."""
    if (
        outs is None
        or any(a.is_list or a.is_optional for a in schema.mutated)
        or structure_of(schema, 0) is None
    ):
        return {}
    if len(outs) != len(schema.returns) + len(new_values(schema)):
        return {}
    places = {a.name: outs[len(schema.returns) + i] for i, a in enumerate(new_values(schema))}
    for name in returned_mutations(schema):
        places[name] = outs[_index_of_return(schema, name)]
    return places


def _index_of_return(schema: FunctionSchema, name: str) -> int:
    argument = next(argument for argument in schema.mutated if argument.name == name)
    own = {one for alias in argument.type.aliases() for one in alias.before}
    return next(
        index
        for index, entry in enumerate(schema.returns)
        if any(one in own for alias in entry.type.aliases() for one in alias.before)
    )


def _fresh(value: Any, flavour: str) -> Any:
    if flavour == "numpy":
        return np.array(value)
    if flavour == "array_api":
        return jax.new_ref(value)
    return copy_of(value)


def _require_returned(record: OpOverload, kernel: Kernel, values: list[Any], result: Any) -> None:
    """Raise where a return that stands for a mutated argument is another array."""
    named = dict(zip((argument.name for argument in record.schema.arguments), values, strict=True))
    for index, name in same_objects(record):
        out = result if is_one(record) else result[index]
        if out is not named[name]:
            not_same(record, kernel, index, name)(out)


def _new_values(schema: FunctionSchema, values: list[Any]) -> list[Any]:
    """Return the arrays of the mutated arguments that no return stands for, as they are now."""
    named = dict(zip((argument.name for argument in schema.arguments), values, strict=True))
    found: list[Any] = []
    for argument in new_values(schema):
        value = named[argument.name]
        several = value if isinstance(value, list | tuple) else [value]
        found += [one[...] if is_ref(one) else one for one in several if one is not None]
    return found


def _functional(record: OpOverload, kernel: Kernel, result: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Take apart what a mutating kernel of flavour ``jax`` returned: outputs, then new values."""
    schema = record.schema
    expected = len(schema.returns) + len(new_values(schema))
    values = list(result) if isinstance(result, list | tuple) else [result]
    if len(values) != expected:
        raise OutputError(
            layout(
                f"kernel of {record.qualname} must return its outputs and then the new values of "
                f"{', '.join(argument.name for argument in schema.mutated)}, for JAX's arrays are immutable",
                expected=f"{expected} values",
                got=f"{len(values)}",
                registered=kernel.source,
            )
        )
    returns: Any = values[: len(schema.returns)]
    if len(schema.returns) == 1 and not schema.is_tuple:
        returns = returns[0]
    leaves, structure = flatten_outputs(record, returns if schema.returns else None, "jax", kernel)
    for value in values[len(schema.returns) :]:
        leaves += [one for one in (value if isinstance(value, list | tuple) else [value]) if one is not None]
    return leaves, structure
