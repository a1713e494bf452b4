"""Arguments and outputs as JAX sees them: flat arrays, and a template that holds everything else.

The template has one entry for each argument of the schema: for a Tensor the index of its array, None, or a
tuple of these for a list; for all else the value itself, which is static. Outputs are flat too: the
returns, lists laid out, then the new values of mutated arguments that no return stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from opwright import catalogue
from opwright.arrays import as_list, class_name, not_a_list, not_an_array, refused_array
from opwright.errors import ArgumentError, OutputError, layout
from opwright.frameworks.base import load
from opwright.frameworks.jax.callbacks import taken
from opwright.frameworks.jax.private import HOST_ARRAYS
from opwright.outputs import bad_output, is_one
from opwright.overload import Kernel, OpOverload
from opwright.rules.autograd import new_values
from opwright.scalars import coercion
from opwright.schema import Argument, FunctionSchema, ListType, OptionalType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Template = tuple[Any, ...]

_ON_HOST: tuple[Any, ...] = (*HOST_ARRAYS, np.generic)

_REFERENCE = getattr(getattr(jax, "ref", None), "Ref", ())


def is_ref(value: Any) -> bool:
    """Return whether a value is a mutable array reference, eager or traced."""
    return isinstance(value, _REFERENCE)


def fill(schema: FunctionSchema, template: Template, arrays: Sequence[Any]) -> list[Any]:
    """Return every argument in schema order, as kernels and rules get it, arrays put in their places."""
    values = [
        _filled(entry, arrays)
        if argument.has_tensors
        else list(entry)  # a list of its own for whoever gets it
        if entry.__class__ is list
        else entry
        for argument, entry in zip(schema.arguments, template, strict=True)
    ]
    return list(schema.with_tuples(values)) if schema.tuples else values


def _filled(entry: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(entry, tuple):
        return [_filled(one, arrays) for one in entry]
    return None if entry is None else arrays[entry]


def like_arguments(schema: FunctionSchema, template: Template, flags: Sequence[Any], other: Any) -> list[Any]:
    """Return one flag for each argument, nested for lists; ``other`` where there is no array."""

    def one(entry: Any) -> Any:
        if isinstance(entry, tuple):
            return tuple(map(one, entry))
        return other if entry is None else flags[entry]

    return [
        one(entry) if argument.has_tensors else other
        for argument, entry in zip(schema.arguments, template, strict=True)
    ]


def paths(schema: FunctionSchema, template: Template) -> list[str]:
    """Return a name for each flat array: ``x``, ``xs[1]``."""
    found: list[str] = []
    for argument, entry in zip(schema.arguments, template, strict=True):
        if argument.has_tensors and isinstance(entry, tuple):
            found += [f"{argument.name}[{i}]" for i, one in enumerate(entry) if one is not None]
        elif argument.has_tensors and entry is not None:
            found.append(argument.name)
    return found


class ForeignError(Exception):
    """An array is another framework's: whoever takes such a call is to be found anew."""


def _is_numpy(value: Any) -> bool:
    """Return whether a value is an array or scalar of NumPy, and not one that JAX made of a constant."""
    info = catalogue.framework_of_class(type(value))
    return isinstance(value, np.ndarray | np.generic) and (info is None or info.name != "jax")


class _Found:
    """Arrays of a call in order, and references with their arrays' indices."""

    __slots__ = ("arrays", "refs")

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.refs: list[tuple[Any, int]] = []


class Splitter:
    """Splits a call's values into arrays and a template.

    Parameters
    ----------
    record
        The operator.
    convert
        Gives this framework's own dtype or device.
    """

    def __init__(self, record: OpOverload, convert: Callable[[str, Any], Any]) -> None:
        self.record = record
        self.schema = schema = record.schema
        self.coercions = {
            argument.name: coercion(record.qualname, argument, convert)
            for argument in schema.arguments
            if not argument.has_tensors
        }

    def split(self, values: Sequence[Any]) -> tuple[list[Any], Template, list[tuple[Any, int]]]:
        """Return arrays, template, and the references among the arguments with their arrays' indices."""
        found = _Found()
        template = tuple(
            self._array(argument, value, argument.type, argument.name, found)
            if argument.has_tensors
            else self.static(argument, value)
            for argument, value in zip(self.schema.arguments, values, strict=True)
        )
        return found.arrays, template, found.refs

    def static(self, argument: Argument, value: Any) -> Any:
        """Return a static argument, coerced; a tracer has no value to be one."""
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, jax.core.Tracer):
                raise self._traced(argument, one)
        return self.coercions[argument.name](value)

    def _traced(self, argument: Argument, value: Any) -> ArgumentError:
        dims = "1-d" if argument.is_list else "0-d"
        return ArgumentError(
            layout(
                f"{self.record.qualname}: argument {argument.name} is static, and JAX traces it",
                expected=f"a value of type {argument.type} that is known while tracing",
                got=f"a traced {jax.typeof(value).str_short()}",
                fix=f"make {argument.name} a {dims} Tensor in the schema, or static in the transform "
                f"(jax.jit(..., static_argnames={argument.name!r})), or give it inside the function that JAX "
                "transforms",
            )
        )

    def _array(self, argument: Argument, value: Any, type_: Any, path: str, found: _Found) -> Any:
        if isinstance(type_, OptionalType):
            if value is None:
                return None
            return self._array(argument, value, type_.element, path, found)
        if isinstance(type_, ListType):
            value = as_list(value)
            if not isinstance(value, list | tuple):
                raise not_a_list(self.record, argument, value)
            rows = enumerate(value)
            return tuple(self._array(argument, v, type_.element, f"{path}[{i}]", found) for i, v in rows)
        if is_ref(value):
            if not argument.is_write:
                raise ArgumentError(
                    layout(
                        f"{self.record.qualname}: argument {path} is a mutable reference, "
                        "and the operator only reads it",
                        expected="an array of jax",
                        got=f"a {type(value).__name__} of {jax.typeof(value).str_short()}",
                        fix=f"pass {path}[...]",
                    )
                )
            if any(value is one for one, _ in found.refs):
                raise ArgumentError(
                    layout(
                        f"{self.record.qualname}: argument {path} is a mutable reference "
                        "that is mutated already",
                        expected="another reference for each argument that is mutated",
                        got="one reference twice, of which only one new value could be kept",
                        fix=f"pass jax.new_ref({path}[...])",
                    )
                )
            found.refs.append((value, len(found.arrays)))
            value = value[...]
        elif argument.is_write and _is_numpy(value):
            raise refused_array(
                self.record,
                path,
                f"a {class_name(value)}, which would not change: beside JAX's arrays it is a constant",
                "an array of jax for an argument that is mutated, as the other arrays are",
                f"pass jax.numpy.asarray({path}) and take the new value from what the call returns, "
                "or pass NumPy arrays only",
            )
        found.arrays.append(self._accepted(path, value))
        return len(found.arrays) - 1

    def _accepted(self, path: str, value: Any) -> Any:
        if isinstance(value, jax.Array):
            if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
                fix = f"pass jax.random.key_data({path})"
                raise refused_array(
                    self.record, path, f"a key of dtype {value.dtype}", "an array of numbers", fix
                )
            return value
        info = catalogue.framework_of_class(type(value))
        if not isinstance(value, _ON_HOST):
            foreign = info is not None and info.name != "jax"
            raise ForeignError if foreign else not_an_array(self.record, path, value)
        own = type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic)
        if not own and (info is None or info.name != "jax"):
            got, fix = f"a {class_name(value)}", f"pass numpy.asarray({path})"
            raise refused_array(
                self.record, path, got, "a numpy.ndarray as a constant beside JAX's arrays", fix
            )
        try:
            return jax.numpy.array(value)
        except TypeError:
            got = f"a numpy.ndarray of dtype {value.dtype}"
            raise refused_array(self.record, path, got, "a dtype that JAX has", None) from None


# ------------------------------------------------------------------------------------------- outputs


def has_other_returns(schema: FunctionSchema) -> bool:
    """Return whether an output is a number or other value that cannot be traced."""
    return any(getattr(entry.type.leaf(), "name", "") != "Tensor" for entry in schema.returns)


class Number:
    """An output that is no array: it has no place among the flat ones."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def flatten_outputs(
    record: OpOverload, out: Any, flavour: str, kernel: Kernel | str
) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the arrays among the outputs of a kernel, fake or rule, and their structure.

    The structure has, for each return, None where it is absent, True for an array, a count for a list, and
    a `Number` for what is no array.

    Raises
    ------
    OutputError
        If the outputs are not those of the schema.
    """
    returns = record.schema.returns
    if not returns:
        if out is not None:
            raise _bad(record, "None", out, kernel)
        return [], ()
    values = [out] if is_one(record) else out
    if not isinstance(values, list | tuple) or len(values) != len(returns):
        raise _bad(record, f"a tuple of {len(returns)}", out, kernel)

    def take(index: int, leaf: Any) -> Any:
        array = _output(leaf, flavour)
        if array is None:
            wanted = "jax" if flavour in ("jax", "array_api") else flavour
            raise _bad(record, f"an array of {wanted} as output {index}", out, kernel)
        return array

    leaves: list[Any] = []
    structure: list[Any] = []
    for index, (entry, value) in enumerate(zip(returns, values, strict=True)):
        type_ = entry.type
        if getattr(type_.leaf(), "name", "") != "Tensor":
            structure.append(Number(value))
            continue
        if isinstance(type_, OptionalType):
            if value is None:
                structure.append(None)
                continue
            type_ = type_.element
        if not isinstance(type_, ListType):
            leaves.append(take(index, value))
            structure.append(True)
        elif isinstance(value, list | tuple):
            leaves += [take(index, one) for one in value]
            structure.append(len(value))
        else:
            raise _bad(record, f"{entry.type} as output {index}", out, kernel)
    return leaves, tuple(structure)


def _output(leaf: Any, flavour: str) -> Any:
    """Return an output as an array of a flavour; None where it is none."""
    if flavour == "fake":
        return leaf
    if is_ref(leaf):
        return leaf[...]
    traced = flavour in ("jax", "array_api")
    if traced and isinstance(leaf, jax.Array):
        return leaf
    info = catalogue.framework_of_class(type(leaf))
    if info is not None and not traced and flavour in info.flavours:
        return leaf if load(info.name).accepts(leaf) else None
    if flavour == catalogue.DLPACK and hasattr(leaf, "__dlpack__"):
        return taken(leaf)
    if traced and isinstance(leaf, _ON_HOST):
        return jax.numpy.array(leaf)
    return None


def _bad(record: OpOverload, expected: str, out: Any, kernel: Kernel | str) -> OutputError:
    if isinstance(kernel, str):
        what, _, source = kernel.partition(" at ")
        kernel = Kernel(None, "", "", source)  # type: ignore[arg-type]
        return OutputError(str(bad_output(record, kernel, expected, out)).replace("kernel", what, 1))
    return bad_output(record, kernel, expected, out)


def unflatten(
    schema: FunctionSchema, structure: tuple[Any, ...], template: Template, leaves: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the returns and the new values of mutated arguments, lists built again."""
    rest = list(leaves)
    entries = dict(zip((a.name for a in schema.arguments), template, strict=True))
    returns = [_taken(entry, rest) for entry in structure]
    values: list[Any] = []
    for argument in new_values(schema):
        entry = entries[argument.name]
        if isinstance(entry, tuple):
            values.append([None if one is None else rest.pop(0) for one in entry])
        else:
            values.append(None if entry is None else rest.pop(0))
    return returns, values


def _taken(entry: Any, rest: list[Any]) -> Any:
    if isinstance(entry, Number):
        return entry.value
    if entry is None or entry is True:
        return rest.pop(0) if entry else None
    return [rest.pop(0) for _ in range(entry)]


def structure_of(schema: FunctionSchema, count: int) -> tuple[Any, ...] | None:
    """Return the structure of ``count`` flat outputs where the schema tells it, else None."""
    lists = [isinstance(entry.type, ListType) for entry in schema.returns]
    if any(isinstance(entry.type, OptionalType) for entry in schema.returns):
        return None
    if not any(lists):
        return (True,) * len(lists)
    mutated = new_values(schema)
    if sum(lists) > 1 or any(argument.is_list or argument.is_optional for argument in mutated):
        return None
    return tuple(count - (len(lists) - 1) - len(mutated) if one else True for one in lists)


def as_user_output(schema: FunctionSchema, values: Sequence[Any]) -> Any:
    """Return outputs as a caller gets them: nothing, one bare, several a tuple."""
    if not values:
        return None
    if len(values) == 1 and not (schema.is_tuple and schema.returns):
        return values[0]
    return tuple(values)
