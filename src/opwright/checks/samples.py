"""Samples: the values an operator is called with, as NumPy arrays, and how a snippet writes them down.

* A sample holds one value for each argument of the schema, defaults filled in.
* ``base`` and ``steps`` are how a snippet gets to the values: arrays written out, then a line for each
  change (``x = np.asfortranarray(x)``).
* The author's arrays are never handed to an operator: each call gets its own copies (``arrays.copied``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.errors import ArgumentError, layout
from opwright.frameworks.base import load
from opwright.schema import Argument, FunctionSchema, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opwright.overload import OpOverload

WRITTEN_OUT = 24
"""Up to how many elements an array is written out in a snippet."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a sample: the index of its argument, its index in a list of arrays, and its label."""

    argument: int
    element: int | None
    label: str


@dataclass(frozen=True, slots=True)
class Sample:
    """What an operator is called with.

    Parameters
    ----------
    title
        Such as ``"sample 0, x transposed"``.
    schema
        The operator's schema.
    values
        One for each argument, in schema order; arrays are NumPy's.
    base
        The values that a snippet starts from.
    steps
        Lines that turn them into ``values``.
    origin
        An expression for ``(args, kwargs)`` where the sample is registered, to be used for large arrays.
    requires_grad
        Labels of the arrays that were given as tensors that require a gradient.
    """

    title: str
    schema: FunctionSchema
    values: tuple[Any, ...]
    base: tuple[Any, ...]
    steps: tuple[str, ...] = ()
    origin: str = ""
    requires_grad: frozenset[str] = field(default_factory=frozenset)

    def leaves(self) -> list[Leaf]:
        """Return every array, with the label that messages give it."""
        found = []
        for index, (argument, value) in enumerate(zip(self.schema.arguments, self.values, strict=True)):
            if not argument.has_tensors or value is None:
                continue
            if argument.is_list:
                rows = [
                    Leaf(index, i, f"{argument.name}[{i}]") for i, one in enumerate(value) if one is not None
                ]
                found += rows
            else:
                found.append(Leaf(index, None, argument.name))
        return found

    def array(self, leaf: Leaf) -> Any:
        """Return the array of a leaf."""
        value = self.values[leaf.argument]
        return value if leaf.element is None else value[leaf.element]

    def argument(self, leaf: Leaf) -> Argument:
        """Return the argument that a leaf belongs to."""
        return self.schema.arguments[leaf.argument]

    def with_array(self, leaf: Leaf, array: Any, note: str = "", step: str = "") -> Sample:
        """Return the sample with another array; ``step`` is the line that makes it in a snippet."""
        return self.with_arrays({leaf: array}, note, (step,) if step else ())

    def with_arrays(self, arrays: Mapping[Leaf, Any], note: str = "", steps: Sequence[str] = ()) -> Sample:
        """Return the sample with other arrays."""
        values = put(self.values, arrays)
        title = f"{self.title}, {note}" if note else self.title
        if steps:
            return replace(self, title=title, values=values, steps=(*self.steps, *steps))
        return replace(self, title=title, values=values, base=values, steps=(), origin="")

    def with_value(self, index: int, value: Any) -> Sample:
        """Return the sample with another value for one argument."""
        values = tuple(value if i == index else old for i, old in enumerate(self.values))
        base = tuple(value if i == index else old for i, old in enumerate(self.base))
        name = self.schema.arguments[index].name
        return replace(self, title=f"{self.title}, {name}={text_of(value)}", values=values, base=base)

    def mapped(self, change: Callable[[Leaf, Any], Any], note: str = "") -> Sample:
        """Return the sample with every array changed."""
        return self.with_arrays({leaf: change(leaf, self.array(leaf)) for leaf in self.leaves()}, note)

    def __str__(self) -> str:
        rows = []
        for argument, value in zip(self.schema.arguments, self.values, strict=True):
            if argument.has_tensors and value is not None:
                many = value if argument.is_list else [value]
                text = ", ".join("None" if one is None else array_text(one) for one in many)
                rows.append(f"{argument.name} {'[' + text + ']' if argument.is_list else text}")
            else:
                rows.append(f"{argument.name}={text_of(value)}")
        return f"{self.title}: {', '.join(rows) or 'no arguments'}"


def put(values: Sequence[Any], arrays: Mapping[Leaf, Any]) -> tuple[Any, ...]:
    """Return argument values with some of their arrays replaced."""
    changed = list(values)
    for index in {leaf.argument for leaf in arrays if leaf.element is not None}:
        changed[index] = list(changed[index])
    for leaf, array in arrays.items():
        if leaf.element is None:
            changed[leaf.argument] = array
        else:
            changed[leaf.argument][leaf.element] = array
    return tuple(changed)


def array_text(array: Any) -> str:
    """Return dtype and shape, and strides where the array is not C-contiguous."""
    text = f"{array.dtype} {tuple(array.shape)}"
    flags = array.flags
    if not flags.c_contiguous:
        text += f" strides {array.strides}"
    return text if flags.writeable else f"{text} read-only"


def text_of(value: Any) -> str:
    """Return a value that is not an array, for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def bound(record: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return one value for each argument of the schema, defaults filled in.

    Raises
    ------
    ArgumentError
        If they do not fit the schema.
    """
    try:
        arguments = signature_of(record.schema).bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            layout(
                f"opcheck of {record.qualname}: a sample does not fit the schema",
                expected=str(record.schema),
                got=str(error),
                fix="give the arguments of one call: a tuple, or a tuple and a dict of keyword arguments",
            )
        ) from None
    arguments.apply_defaults()
    return tuple(arguments.arguments[argument.name] for argument in record.schema.arguments)


def given(record: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sample:
    """Return the sample of the arguments of one call, in any framework's arrays."""
    return _sample(record, "the given sample", args, kwargs, "")


def registered(record: OpOverload) -> list[Sample]:
    """Return the samples that ``register_samples`` declares."""
    rule = record.rule("samples")
    if rule is None:
        return []
    return [
        _sample(record, f"sample {index}", args, kwargs, f"samples({record.qualname!r})[{index}]")
        for index, (args, kwargs) in enumerate(split(record, rule.fn()))
    ]


def split(record: OpOverload, declared: Iterable[Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield ``(args, kwargs)`` of what a function of samples returned or yielded."""
    for entry in declared:
        if (
            isinstance(entry, tuple)
            and len(entry) == 2
            and isinstance(entry[1], dict)
            and isinstance(entry[0], tuple | list)
        ):
            yield tuple(entry[0]), entry[1]
        elif isinstance(entry, dict):
            yield (), entry
        elif isinstance(entry, tuple | list):
            yield tuple(entry), {}
        else:
            rule = record.rule("samples")
            raise ArgumentError(
                layout(
                    f"the samples of {record.qualname} are not samples",
                    expected="tuples of arguments, or pairs of a tuple and a dict of keyword arguments",
                    got=f"an entry of type {type(entry).__name__}",
                    registered=None if rule is None else rule.source,
                )
            )


def _sample(
    record: OpOverload, title: str, args: Sequence[Any], kwargs: Mapping[str, Any], origin: str
) -> Sample:
    wanted: set[str] = set()
    arguments = record.schema.arguments
    values = tuple(
        _numpy_value(value, argument.name, wanted) if argument.has_tensors else value
        for argument, value in zip(
            arguments, record.schema.with_tuples(bound(record, args, kwargs)), strict=True
        )
    )
    return Sample(title, record.schema, values, values, (), origin, frozenset(wanted))


def _numpy_value(value: Any, label: str, wanted: set[str]) -> Any:
    """Return NumPy arrays for any framework's; note the labels of those that require a gradient."""
    if isinstance(value, list | tuple):
        return [_numpy_value(one, f"{label}[{index}]", wanted) for index, one in enumerate(value)]
    info = catalogue.framework_of_class(type(value))
    if info is None:
        return value
    if getattr(value, "requires_grad", False):
        wanted.add(label)
        value = value.detach()
    if info.name == "numpy":
        import numpy as np

        return np.asarray(value)
    return load(info.name).to_numpy(value)
