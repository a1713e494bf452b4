"""What tests of operators use: registered samples, what a fake returns, drawn arguments, recorded calls."""

from __future__ import annotations

from typing import Any

from opwright import catalogue
from opwright.calls import split
from opwright.checks.runner import samples_of
from opwright.fakes import FakeArray, fake_of
from opwright.frameworks.base import load
from opwright.recording import Recording, recording
from opwright.strategies import arrays_of, search, strategy
from opwright.targets import require
from opwright.transforms import run_fake

TYPE_CHECKING = False

__all__ = ["Recording", "arrays_of", "fake", "recording", "samples", "search", "strategy"]


def samples(op: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the samples that ``register_samples`` declares, as the arguments of calls.

    Parameters
    ----------
    op
        An operator, or its qualified name.

    Returns
    -------
    list of (args, kwargs)
        Defaults filled in, keyword-only arguments by name, NumPy arrays; new ones each time.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::triple", mutates_args=())
    ... def triple(x: np.ndarray) -> np.ndarray:
    ...     return 3 * x
    >>> @triple.register_samples
    ... def declared():
    ...     yield (np.ones(2),)
    >>> samples(triple)
    [((array([1., 1.]),), {})]
    """
    record = require(op)
    return [split(record, sample.values) for sample in samples_of(record)]


def fake(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what an operator's fake returns for such arguments, with a ``FakeArray`` for each array.

    Parameters
    ----------
    op
        An operator, or its qualified name.
    args, kwargs
        Arguments of a call: arrays of any framework, of which the metadata is taken, or fakes.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::quarter", mutates_args=())
    ... def quarter(x: np.ndarray) -> np.ndarray:
    ...     return x / 4
    >>> @quarter.register_fake
    ... def _(x):
    ...     return ow.empty_like(x)
    >>> fake(quarter, np.ones(2))
    FakeArray((2,), float64, cpu)
    """
    from opwright.checks.samples import bound

    record = require(op)
    values = zip(record.schema.arguments, bound(record, args, kwargs), strict=True)
    return run_fake(record, [_faked(value) if argument.has_tensors else value for argument, value in values])


def _faked(value: Any) -> Any:
    """Return the metadata of arrays, their device too."""
    if isinstance(value, list | tuple):
        return [_faked(one) for one in value]
    info = catalogue.framework_of_class(type(value))
    if value is None or info is None or isinstance(value, FakeArray):
        return value
    kind, device = load(info.name).device_type(value), str(getattr(value, "device", ""))
    return fake_of(value, device if device.partition(":")[0] == kind else kind)
