"""Hypothesis strategies for the arguments of an operator, from its schema and its registered samples.

* Sizes that are equal in a sample stay equal, so that what is drawn fits together as the sample does; without
  samples all arrays have one shape.
* Smaller arrays, and values nearer to one, come first: a failure shrinks to them.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opwright.checks.runner import check, samples_of
from opwright.checks.samples import Sample, given
from opwright.errors import ArgumentValueError, RegistrationValueError, layout
from opwright.schema import ListType, OptionalType
from opwright.targets import require

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opwright.overload import OpOverload
    from opwright.report import Report
    from opwright.schema import Argument

LARGEST = 4
"""The largest size of an axis that is drawn, where a sample has no larger one."""

Call = tuple[tuple[Any, ...], dict[str, Any]]


def strategy(op: Any, /, **arguments: Any) -> Any:
    """Return a Hypothesis strategy that draws the arguments of calls, ``(args, kwargs)``.

    Arrays are NumPy's. With registered samples, each draw varies one of them: its sizes, those that are
    equal staying equal, its values and its flags; without, it follows the schema alone. An operator need not
    accept everything that is drawn: leave that out with ``hypothesis.assume``, or narrow the arguments.

    Parameters
    ----------
    op
        An operator, or its qualified name.
    arguments
        Strategies for arguments by name, instead of those drawn from the schema.

    Raises
    ------
    RegistrationError
        If Hypothesis is not installed.
    ArgumentError
        If a name is no argument, or an argument's type cannot be drawn and has no default.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> from hypothesis import given
    >>> @ow.custom_op("docs::half", mutates_args=())
    ... def half(x: np.ndarray) -> np.ndarray:
    ...     return x / 2
    >>> @given(strategy(half))
    ... def test_half(call):
    ...     args, kwargs = call
    ...     ow.opcheck(half, args, kwargs, frameworks="numpy")
    >>> test_half()
    """
    st = _hypothesis()
    record = require(op)
    names = [argument.name for argument in record.schema.arguments]
    unknown = [name for name in arguments if name not in names]
    if unknown:
        raise ArgumentValueError(
            layout(
                f"strategy of {record.qualname}: no argument is named {', '.join(unknown)}",
                expected=", ".join(names),
            )
        )
    registered = samples_of(record) if record.schema.arguments else []
    varied = [_Varied(record, sample, arguments).draws(st) for sample in registered]
    return st.one_of(varied) if varied else _Fresh(record, arguments).draws(st)


def search(
    op: Any,
    /,
    *,
    test_utils: str | Iterable[str] | None = None,
    frameworks: str | Iterable[str] | None = None,
    level: str = "quick",
    max_examples: int = 50,
    **arguments: Any,
) -> Report | None:
    """Look for arguments on which an operator fails, and return the report on the smallest; None for none.

    What the operator itself raises on is left out: draws need not be valid calls. The same arguments are
    drawn each time.

    Parameters
    ----------
    op
        An operator, or its qualified name.
    test_utils, frameworks, level
        As for ``opcheck``.
    max_examples
        How many calls to try.
    arguments
        As for ``strategy``.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::first_rows", mutates_args=())
    ... def first_rows(x: np.ndarray) -> np.ndarray:
    ...     return x[:2] if len(x) > 2 else x + 0
    >>> report = search(first_rows, frameworks="numpy", x=arrays_of(1))
    >>> report.findings[0].id, report.findings[0].sample
    ('OW104', 'the given sample: x float64 (3,)')
    """
    _hypothesis()
    from hypothesis import HealthCheck, settings
    from hypothesis import find as smallest
    from hypothesis.errors import NoSuchExample

    record = require(op)

    def report_on(call: Call) -> Report:
        return check(
            record, [given(record, *call)], test_utils=test_utils, frameworks=frameworks, level=level
        )

    def fails(call: Call) -> bool:
        return any(finding.law != "call" for finding in report_on(call).findings)

    options = settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        found = smallest(strategy(op, **arguments), fails, settings=options)
    except NoSuchExample:
        return None
    return report_on(found)


def arrays_of(ndim: int, dtype: str = "float64", largest: int = LARGEST) -> Any:
    """Return a strategy of NumPy arrays with a number of axes.

    Parameters
    ----------
    ndim
        The number of axes.
    dtype
        The dtype.
    largest
        The largest size of an axis.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(arrays_of(2, "int64"))
    ... def test_axes(array):
    ...     assert array.ndim == 2
    >>> test_axes()
    """
    st = _hypothesis()
    sizes = st.tuples(*[st.integers(0, largest)] * ndim)
    return sizes.flatmap(lambda shape: _array(st, shape, dtype))


def _hypothesis() -> Any:
    if importlib.util.find_spec("hypothesis") is None:
        raise RegistrationValueError(layout("Hypothesis is not installed", fix="pip install hypothesis"))
    from hypothesis import strategies

    return strategies


def _array(st: Any, shape: Sequence[int], dtype: Any) -> Any:
    """Return a strategy of arrays of one shape and dtype."""
    import numpy as np
    from hypothesis.extra.numpy import arrays

    kind = np.dtype(dtype).kind
    # Numbers of few binary digits, so that finite differences and sums in another order stay near.
    sixteenths = st.integers(-64, 64).map(lambda n: n / 16)
    elements = {
        "f": sixteenths,
        "c": st.builds(complex, sixteenths, sixteenths),
        "i": st.integers(0, 3),
        "u": st.integers(0, 3),
        "b": st.booleans(),
    }.get(kind)
    filled = elements if elements is None else st.one_of(st.just(_first(kind)), elements)
    return arrays(np.dtype(dtype), tuple(shape), elements=filled, fill=st.nothing())


def _first(kind: str) -> Any:
    """Return the value to which elements shrink."""
    return {"f": 1.0, "c": 1 + 0j, "b": True}.get(kind, 0)


@dataclass(frozen=True, slots=True)
class _Varied:
    """Draws that vary one sample."""

    record: OpOverload
    sample: Sample
    arguments: dict[str, Any]

    def draws(self, st: Any) -> Any:
        sizes = sorted({size for leaf in self.sample.leaves() for size in self.sample.array(leaf).shape})
        axes = st.fixed_dictionaries({size: _size(st, size) for size in sizes})
        return axes.flatmap(lambda chosen: self._with_sizes(st, chosen))

    def _with_sizes(self, st: Any, chosen: dict[int, int]) -> Any:
        values = [
            self.arguments.get(argument.name, self._value(st, argument, value, chosen))
            for argument, value in zip(self.record.schema.arguments, self.sample.values, strict=True)
        ]
        return st.tuples(*values).map(lambda drawn: _call(self.record, drawn))

    def _value(self, st: Any, argument: Argument, value: Any, chosen: dict[int, int]) -> Any:
        if argument.has_tensors and value is not None:
            if argument.is_list:
                drawn = st.tuples(*[self._value_of(st, one, chosen) for one in value]).map(list)
            else:
                drawn = self._value_of(st, value, chosen)
            return st.one_of(drawn, st.none()) if argument.is_optional else drawn
        options = [st.just(value)]
        if isinstance(argument.choices, tuple):
            options.append(st.sampled_from(argument.choices))
        elif isinstance(value, bool):
            options.append(st.booleans())
        if argument.is_optional and value is not None:
            options.append(st.none())
        return st.one_of(options)

    @staticmethod
    def _value_of(st: Any, array: Any, chosen: dict[int, int]) -> Any:
        if array is None:
            return st.none()
        if array.dtype.kind not in "fciub" or array.dtype.name not in _DRAWN:
            return st.just(array)
        shape = tuple(chosen[size] for size in array.shape)
        if shape == array.shape and array.dtype.kind in "iu":
            return st.one_of(st.just(array), _array(st, shape, array.dtype))
        return _array(st, shape, array.dtype)


_DRAWN = frozenset(
    ["bool", "float32", "float64", "complex64", "complex128"]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
)


def _size(st: Any, size: int) -> Any:
    """Return a strategy of sizes in place of one; an axis of one element broadcasts, and stays."""
    return st.just(1) if size == 1 else st.integers(0, max(size, LARGEST))


@dataclass(frozen=True, slots=True)
class _Fresh:
    """Draws from the schema alone."""

    record: OpOverload
    arguments: dict[str, Any]

    def draws(self, st: Any) -> Any:
        self._with_shape(st, (), "float64")  # what cannot be drawn is told now
        shapes = st.lists(st.integers(0, LARGEST), max_size=3).map(tuple)
        pairs = st.tuples(shapes, st.sampled_from(["float64", "float32"]))
        return pairs.flatmap(lambda pair: self._with_shape(st, *pair))

    def _with_shape(self, st: Any, shape: tuple[int, ...], dtype: str) -> Any:
        values = []
        for argument in self.record.schema.arguments:
            own = self.arguments.get(argument.name)
            values.append(self._argument(st, argument, shape, dtype) if own is None else own)
        return st.tuples(*values).map(lambda drawn: _call(self.record, drawn))

    def _argument(self, st: Any, argument: Argument, shape: tuple[int, ...], dtype: str) -> Any:
        drawn = self._of_type(st, argument, argument.type, shape, dtype)
        default = argument.default
        if drawn is None and default is not None:
            return st.just(default.value)
        if drawn is None:
            raise ArgumentValueError(
                layout(
                    f"strategy of {self.record.qualname}: argument {argument.name} cannot be drawn",
                    got=f"type {argument.type}",
                    fix=f"give a strategy for it: strategy(op, {argument.name}=...)",
                )
            )
        return drawn if default is None else st.one_of(st.just(default.value), drawn)

    def _of_type(self, st: Any, argument: Argument, type_: Any, shape: tuple[int, ...], dtype: str) -> Any:
        if isinstance(type_, OptionalType):
            inner = self._of_type(st, argument, type_.element, shape, dtype)
            return None if inner is None else st.one_of(st.none(), inner)
        if isinstance(type_, ListType):
            inner = self._of_type(st, argument, type_.element, shape, dtype)
            least, most = (1, 3) if type_.size is None else (type_.size, type_.size)
            return None if inner is None else st.lists(inner, min_size=least, max_size=most)
        if argument.choices is not None:
            return st.sampled_from(argument.choices)
        name = getattr(type_, "name", "")
        return _array(st, shape, dtype) if name == "Tensor" else _scalar(st, name)


def _scalar(st: Any, name: str) -> Any:
    """Return a strategy for a type that is no array, or None where there is none."""
    eighths = st.integers(-16, 16).map(lambda n: n / 8)
    if name in ("int", "SymInt"):
        return st.integers(0, 3)
    if name in ("float", "SymFloat", "Scalar", "number"):
        return eighths
    if name in ("bool", "SymBool"):
        return st.booleans()
    if name == "complex":
        return st.builds(complex, eighths, eighths)
    if name == "ScalarType":
        import numpy as np

        return st.sampled_from([np.dtype("float32"), np.dtype("float64")])
    return None


def _call(record: OpOverload, values: Sequence[Any]) -> Call:
    count = len(record.schema.positional)
    names = [argument.name for argument in record.schema.keyword_only]
    return tuple(values[:count]), dict(zip(names, values[count:], strict=True))
