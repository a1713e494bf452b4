"""NumPy kernels on tensors: arrays of the tensors' own memory go in, tensors of the results come out.

* A mutated argument is written in place; one whose elements share memory is refused.
* An output must not share memory with an argument: the tensors made of it would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from opwright.errors import ArgumentError, OutputError, layout
from opwright.frameworks.base import load
from opwright.frameworks.torch.convert import NoNumPyError, from_numpy, overlaps_itself, to_numpy
from opwright.outputs import alias_error, is_one, not_same, output_check, same_objects
from opwright.scalars import coercion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from opwright.frameworks.torch.lowered import Lowered
    from opwright.overload import Kernel
    from opwright.schema import Argument


def make_runner(state: Lowered, kernel: Kernel) -> Callable[[tuple[Any, ...]], Any]:
    """Return the function that runs a NumPy kernel on one value for each argument."""
    record = state.record
    convert = [(i, input_converter(state, argument)) for i, argument in enumerate(record.schema.arguments)]
    needed = [(i, fn) for i, fn in convert if fn is not None]
    take = output_taker(state, kernel)
    fn, apply = kernel.fn, state.apply

    def run(flat: tuple[Any, ...]) -> Any:
        values = list(flat)
        for index, to_array in needed:
            values[index] = to_array(values[index])
        out = apply(fn, tuple(values))
        return take(flat, values, out)

    return run


def input_converter(state: Lowered, argument: Argument) -> Callable[[Any], Any] | None:
    """Return what turns an argument's value into what a NumPy kernel takes, or None where nothing does."""
    if not argument.has_tensors:
        if argument.choices is None and argument.base not in ("ScalarType", "Device"):
            return _as_tuple if argument.is_tuple else None
        return coercion(state.record.qualname, argument, load("numpy").convert)
    qualname, write = state.record.qualname, argument.is_write

    def one(value: Any) -> Any:
        if value is None:
            return None
        if value.__class__ in (list, tuple):
            return [one(element) for element in value]
        if write and overlaps_itself(value):
            raise ArgumentError(
                layout(
                    f"{qualname} mutates argument {argument.name}, whose elements share memory",
                    expected="a tensor whose elements have memory of their own",
                    got=f"a tensor of shape {tuple(value.shape)} with strides {tuple(value.stride())}",
                    fix=f"pass {argument.name}.contiguous(), and use that afterwards",
                )
            )
        try:
            return to_numpy(value)
        except NoNumPyError as error:
            raise NoNumPyError(f"{qualname}: argument {argument.name}: {error}") from None

    return (lambda value: _as_tuple(one(value))) if argument.is_tuple else one


def _as_tuple(value: Any) -> Any:
    return None if value is None else tuple(value)


def _arrays(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        return [values]
    if values.__class__ in (list, tuple):
        return [array for value in values for array in _arrays(value)]
    return []


def output_taker(state: Lowered, kernel: Kernel) -> Callable[[tuple[Any, ...], list[Any], Any], Any]:
    """Return the function that makes tensors of what a NumPy kernel returned, or raises."""
    record = state.record
    single = is_one(record)
    position = {argument.name: i for i, argument in enumerate(record.schema.arguments)}
    same = {i: (position[name], not_same(record, kernel, i, name)) for i, name in same_objects(record)}
    take = output_check(record, kernel, _accept, None, "an array of numpy")
    checked = [
        i for i, entry in enumerate(record.schema.returns) if not any(True for _ in entry.type.aliases())
    ]

    def tensors(flat: tuple[Any, ...], values: list[Any], out: Any) -> Any:
        try:
            taken = take(out)
        except NoNumPyError as error:
            index = _first_refused((out,) if single else out)
            raise OutputError(f"{record.qualname}: output {index}: {error}") from None
        outs = (out,) if single else out or ()
        for index in checked:
            _check_memory(state, index, outs[index], values, outs[:index])
        for index, (argument, wrong) in same.items():
            if outs[index] is not values[argument]:
                wrong(outs[index])
            taken = flat[argument] if single else (*taken[:index], flat[argument], *taken[index + 1 :])
        return taken

    return tensors


def _first_refused(outs: Sequence[Any]) -> int:
    """Return the index of the first output that has no tensor."""
    for index, out in enumerate(outs):
        try:
            for array in _arrays(out):
                from_numpy(array)
        except NoNumPyError:
            return index
    return len(outs)


def _accept(value: Any) -> torch.Tensor | None:
    return from_numpy(value) if load("numpy").accepts(value) else None


def _check_memory(state: Lowered, index: int, value: Any, values: list[Any], before: Any) -> None:
    """Raise where an output shares memory with an argument or with an earlier output."""
    for array in _arrays(value):
        for argument, given in zip(state.record.schema.arguments, values, strict=True):
            for other in _arrays(given) if argument.has_tensors else ():
                if np.may_share_memory(array, other):
                    raise alias_error(state.record, index, f"argument {argument.name}", same=array is other)
        for number, earlier in enumerate(before):
            for other in _arrays(earlier):
                if np.may_share_memory(array, other):
                    raise alias_error(state.record, index, f"output {number}", same=array is other)
