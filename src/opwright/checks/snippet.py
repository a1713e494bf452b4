"""The few lines of Python that show a finding."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from opwright.checks.arrays import written
from opwright.checks.samples import WRITTEN_OUT, Sample, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.checks.adapters.base import Adapter
    from opwright.overload import OpOverload


def snippet(record: OpOverload, adapter: Adapter, sample: Sample, lines: Sequence[str]) -> str:
    """Return the imports, the sample and the lines; in them, ``{call}`` and ``{args}`` are filled in."""
    head = ["import numpy as np", "import opwright as ow", *adapter.imports]
    head += _definition(record)
    arrays = _array_lines(adapter, sample)
    args = ", ".join(passed(sample, argument_texts(sample)))
    filled = (line.replace("{call}", f"op({args})").replace("{args}", args) for line in lines)
    return "\n".join([*head, *arrays, *filled])


def operator_text(record: OpOverload) -> str:
    """Return the expression for an operator."""
    if record.operator is None:
        return f"{record.owner}.ops.{record.name.replace('::', '.')}.{record.overload or 'default'}"
    return f"ow.ops.{record.name.replace('::', '.')}.{record.overload or 'default'}"


def name_in(sample: Sample, index: int) -> str:
    """Return the name of an argument's variable in a snippet."""
    name = sample.schema.arguments[index].name
    return f"{name}_" if name in ("np", "ow", "op", "torch", "jax") else name


def argument_texts(sample: Sample) -> list[str]:
    """Return an expression for each argument: variables for arrays, everything else written out."""
    return [
        name_in(sample, index) if argument.has_tensors and value is not None else _literal(value)
        for index, (argument, value) in enumerate(zip(sample.schema.arguments, sample.values, strict=True))
    ]


def passed(sample: Sample, texts: Sequence[str]) -> list[str]:
    """Return argument texts as they are passed: keyword-only ones by name, trailing defaults left out."""
    parts: list[str] = []
    left_out = True
    for argument, value, text in reversed(
        list(zip(sample.schema.arguments, sample.values, texts, strict=True))
    ):
        default = argument.default
        is_default = (
            default is not None
            and type(default.value) is type(value)
            and (value is None or (not argument.has_tensors and bool(default.value == value)))
        )
        if is_default and (left_out or argument.kwarg_only):
            continue
        left_out = left_out and argument.kwarg_only
        parts.append(f"{argument.name}={text}" if argument.kwarg_only else text)
    return parts[::-1]


def _definition(record: OpOverload) -> list[str]:
    module = getattr(record.operator, "__module__", "builtins")
    lines = [f"op = {operator_text(record)}"]
    if module in sys.modules and module not in ("__main__", "builtins"):
        return [f"import {module}", *lines]
    return [f"# {record.qualname} is defined at {record.source}", *lines]


def _array_lines(adapter: Adapter, sample: Sample) -> list[str]:
    lines: list[str] = []
    if sample.origin and any(_expression(array, sample.origin) is None for array in _arrays(sample.base)):
        lines += ["from opwright.testing import samples", f"args, kwargs = {sample.origin}"]
    positional = len(sample.schema.positional)
    names = []
    for index, (argument, value) in enumerate(zip(sample.schema.arguments, sample.base, strict=True)):
        if not argument.has_tensors or value is None:
            continue
        name = name_in(sample, index)
        names.append((name, argument.is_list, sample.values[index]))
        where = f"args[{index}]" if index < positional else f"kwargs[{argument.name!r}]"
        origin = where if sample.origin else ""
        if argument.is_list:
            items = [f"{origin}[{i}]" if origin else "" for i in range(len(value))]
            texts = [
                "None" if one is None else _made(one, item) for one, item in zip(value, items, strict=True)
            ]
            lines.append(f"{name} = [{', '.join(texts)}]")
        else:
            lines.append(f"{name} = {_made(value, origin)}")
    lines += sample.steps
    for name, is_list, value in names:
        code = adapter.code("one") if is_list else adapter.array_code(name, value)
        if is_list and code != "one":
            lines.append(f"{name} = [one if one is None else {code} for one in {name}]")
        elif not is_list and code != name:
            lines.append(f"{name} = {code}")
    return lines


def _arrays(values: Sequence[Any]) -> list[Any]:
    found = []
    for value in values:
        found += [
            one for one in (value if isinstance(value, list | tuple) else [value]) if hasattr(one, "dtype")
        ]
    return [one for one in found if hasattr(one, "shape")]


def _expression(array: Any, origin: str) -> str | None:
    return written(array, WRITTEN_OUT // 4 if origin else WRITTEN_OUT)


def _made(array: Any, origin: str) -> str:
    """Return an expression for an array: written out, taken from a registered sample, or a stand-in."""
    text = _expression(array, origin)
    if text is not None:
        return text
    if origin:
        return f"np.array({origin})"
    shape = tuple(array.shape)
    if array.dtype.kind in "biu":
        return f"np.ones({shape}, {array.dtype.name!r})"
    return f"np.random.default_rng(0).standard_normal({shape}).astype({array.dtype.name!r})"


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        inner = ", ".join(_literal(one) for one in value)
        return f"[{inner}]"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return f"float('{value}')"
    if isinstance(value, type):
        module = "" if value.__module__ == "builtins" else f"{value.__module__}."
        return f"{'np.' if module == 'numpy.' else module}{value.__qualname__}"
    text = repr(value)
    return f"np.{text}" if text.startswith("dtype(") else text_of(value)
