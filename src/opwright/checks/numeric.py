"""Derivatives by finite differences, with an estimate of how far they can be trusted.

* Central differences at two steps, extrapolated (Richardson); their difference is the estimate.
* Differences to either side tell a kink: there, every slope between the two is right.
* Where a value is not finite, an output changes its shape, or the estimate is large, there is no answer.
* Complex values follow torch: the gradient of a real loss L is dL/d(re) + i dL/d(im).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEPS = {
    "float64": (1e-5, 1e-3),
    "float32": (1e-2, 3e-2),
    "complex128": (1e-5, 1e-3),
    "complex64": (1e-2, 3e-2),
}
"""Steps to try, by dtype, relative to the value or to 1."""

TRUSTED = {"float64": 1e-3, "float32": 5e-2, "complex128": 1e-3, "complex64": 5e-2}
"""The largest estimated error, relative to the derivative, at which a derivative is trusted."""

TOLERANCE = {
    "float64": (1e-5, 1e-7),
    "float32": (2e-2, 2e-3),
    "complex128": (1e-5, 1e-7),
    "complex64": (2e-2, 2e-3),
}
"""Relative and absolute tolerance of the comparison with a gradient, by dtype."""


@dataclass(frozen=True, slots=True)
class Slope:
    """A derivative by finite differences.

    Parameters
    ----------
    value
        The derivative.
    error
        The estimated error.
    low, high
        The slopes to either side, where they differ (at a kink), else the value twice.
    """

    value: float
    error: float
    low: float
    high: float

    def distance(self, other: float) -> float:
        """Return how far a number is from what the derivative can be."""
        return max(0.0, self.low - other, other - self.high)


def slope(
    along: Callable[[float], float | None], here: float | None, size: float, dtype: str
) -> Slope | None:
    """Return the derivative of ``along`` at 0, or None where it cannot be trusted.

    Parameters
    ----------
    along
        The value of the function at a distance along a direction; None where it cannot be evaluated.
    here
        Its value at 0.
    size
        The size of what is varied; steps are relative to it, or to 1.
    dtype
        The precision in which the function computes.
    """
    if here is None:
        return None
    best: Slope | None = None
    for step in STEPS[dtype]:
        found = _at_step(along, here, step * max(1.0, size))
        if found is not None and (best is None or found.error < best.error):
            best = found
        if best is not None and best.error <= 1e-7 * max(1.0, abs(best.value)):
            break
    scale = max(abs(best.value), 1e-2) if best is not None else 1.0
    return best if best is not None and best.error <= TRUSTED[dtype] * scale else None


def _at_step(along: Callable[[float], float | None], here: float, h: float) -> Slope | None:
    values = [along(t) for t in (h, -h, h / 2, -h / 2)]
    if any(value is None for value in values):
        return None
    up, down, half_up, half_down = (value for value in values if value is not None)
    coarse, fine = (up - down) / (2 * h), (half_up - half_down) / h
    right, left = (half_up - here) * 2 / h, (here - half_down) * 2 / h
    wide_gap, gap = abs((up - here) / h - (here - down) / h), abs(right - left)
    scale = max(abs(right), abs(left), 1e-3)
    if gap > 1e-3 * scale and gap > 0.75 * wide_gap:  # does not shrink with the step: a kink
        tilt = abs((up - here) / h - right) + abs((here - down) / h - left)
        return Slope(fine, tilt, min(left, right), max(left, right))
    value = (4 * fine - coarse) / 3
    return Slope(value, abs(fine - coarse), value, value)


def total(outputs: Sequence[Any], weights: Sequence[Any]) -> float | None:
    """Return the real loss: the sum of the outputs weighted; None where it is not finite or shapes differ."""
    import numpy as np

    loss = 0.0
    for output, weight in zip(outputs, weights, strict=True):
        if output.shape != weight.shape:
            return None
        wide = output.astype(np.complex128 if output.dtype.kind == "c" else np.float64)
        loss += float(np.sum((np.conj(weight.astype(wide.dtype)) * wide).real))
    return loss if np.isfinite(loss) else None


def random_like(array: Any, seed: int) -> Any:
    """Return an array of the same shape and dtype of numbers between 1/2 and 1, of either sign."""
    import numpy as np

    random = np.random.default_rng(seed)

    def part() -> Any:
        return random.uniform(0.5, 1.0, array.shape) * random.choice([-1.0, 1.0], array.shape)

    values = part() + 1j * part() if array.dtype.kind == "c" else part()
    return np.asarray(values).astype(array.dtype)


def chosen_indices(array: Any, number: int, seed: int) -> list[tuple[int, ...]]:
    """Return some indices of an array: all where there are few."""
    import numpy as np

    flat = list(range(array.size))
    if array.size > number:
        flat = sorted(np.random.default_rng(seed).choice(array.size, number, replace=False).tolist())
    return [tuple(map(int, np.unravel_index(index, array.shape))) for index in flat]


def largest(array: Any) -> float:
    """Return the largest finite magnitude in an array, or 1 where that is less."""
    import numpy as np

    finite = np.abs(array[np.isfinite(array)])
    return max(1.0, float(finite.max())) if finite.size else 1.0


def inner(a: Any, b: Any) -> float:
    """Return the real inner product of two arrays, complex ones as pairs of numbers."""
    import numpy as np

    return float(np.sum((np.conj(a) * b).real))
