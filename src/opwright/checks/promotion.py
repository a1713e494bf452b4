"""Differences of dtype that are the frameworks' own: each promotes an operator's arguments by its own rules.

Where ``x`` has axes and is float32, ``y`` has none and is float64, ``x * y`` is float32 in torch and float64
in NumPy. Such results are compared in the less precise of the two dtypes. A difference that no promotion
of the arguments explains stays one.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

from opwright.checks.adapters.base import adapter
from opwright.checks.attempts import attempt
from opwright.creation import result_type
from opwright.fake_context import entered_ctx
from opwright.fakes import FakeArray
from opwright.faking import computing_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opwright.checks.base import Probe
    from opwright.checks.samples import Sample

NUMBERS = (bool, int, float, complex)


def computing(probe: Probe) -> str:
    """Return the framework that the operator's kernel computes with."""
    return computing_of(probe.record, probe.adapter.name, probe.adapter.device_type)


def in_one_dtype(
    sample: Sample, names: tuple[str, str], got: Sequence[Any], expected: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return two lists of outputs; each pair in one dtype where promotion alone sets the two apart.

    ``names`` are the frameworks that computed them.
    """
    pairs = [_pair(sample, names, one, other) for one, other in zip(got, expected, strict=True)]
    return [one for one, _ in pairs], [other for _, other in pairs]


def _pair(sample: Sample, names: tuple[str, str], got: Any, expected: Any) -> tuple[Any, Any]:
    import numpy as np

    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        return in_one_dtype(sample, names, got, expected)
    if not all(hasattr(one, "dtype") for one in (got, expected)) or got.dtype == expected.dtype:
        return got, expected
    if (got.dtype, expected.dtype) not in list(_promoted(sample, names)):
        return got, expected
    if got.dtype.kind == expected.dtype.kind:
        common = min(got.dtype, expected.dtype, key=lambda dtype: dtype.itemsize)
    else:
        common = np.promote_types(got.dtype, expected.dtype)
    with np.errstate(all="ignore"):
        return got.astype(common), expected.astype(common)


def _promoted(sample: Sample, names: tuple[str, str]) -> Iterator[tuple[Any, Any]]:
    """Yield what each framework makes of some of the arguments, the same ones, for each choice of them."""
    if names[0] == names[1]:
        return
    arrays = {(array.ndim and 1, array.dtype): None for array in map(sample.array, sample.leaves())}
    given = [value for value in sample.values if type(value) in NUMBERS]
    numbers = {type(value): value for value in (*given, 1.0)}  # a kernel may divide
    operands = [*arrays, *numbers.values()]
    for count in range(1, len(operands) + 1):
        for chosen in combinations(operands, count):
            if any(isinstance(one, tuple) for one in chosen):
                found = [_result_type(name, chosen) for name in names]
                yield found[0], found[1]


def _result_type(name: str, operands: Sequence[Any]) -> Any:
    """Return the dtype that a framework's arithmetic gives, or None where it refuses."""
    made = [FakeArray((2,) * one[0], one[1], framework=name) if isinstance(one, tuple) else one
            for one in operands]  # fmt: skip
    with adapter(name).scope(), entered_ctx(None, name):
        return attempt(result_type, *made)[0]
