"""Calls the function of one case alone, without any operator: does the process survive it?

``run.py`` starts it after a case has crashed or took too long: a function that crashes here too is to blame.
"""

from __future__ import annotations

import functools
import operator
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> None:
    """Call the function of the case that is named, on its sample and on what the checker derives of it."""
    group, _, name = sys.argv[1].partition("/")
    warnings.simplefilter("ignore")
    function, arrays = _of_scipy(name) if group == "scipy" else _of_torch(name)
    for passed in _variants(arrays):
        try:
            function(*passed)
        except Exception:  # noqa: BLE001, S112  (refusing is no crash)
            continue


def _of_scipy(name: str) -> tuple[Callable[..., Any], list[np.ndarray]]:
    import scipy.special

    function = getattr(scipy.special, name)
    random = np.random.default_rng(0)
    return function, [random.uniform(0.2, 0.8, (3, 4)) for _ in range(function.nin)]


def _of_torch(name: str) -> tuple[Callable[..., Any], list[np.ndarray]]:
    from collections import Counter

    import op_db
    import torch

    made = next(made for one, made in op_db.definitions(Counter()) if one == name)

    def function(*arrays: np.ndarray) -> None:
        tensors = [torch.from_numpy(np.array(one)) for one in arrays]
        made.kernel(*tensors)
        marked = [one.requires_grad for one in made.args()]
        varied = [one.clone().requires_grad_(mark) for one, mark in zip(tensors, marked, strict=True)]
        out = made.kernel(*varied)
        live = [one.abs().sum() for one in (out if isinstance(out, tuple) else [out]) if one.requires_grad]
        if live:
            functools.reduce(operator.add, live).backward()

    return function, [one.detach().numpy() for one in made.args()]


def _variants(arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield the arrays as they are, then changed: values, dtypes, sizes."""
    yield arrays
    floating = [one.dtype.kind in "fc" for one in arrays]
    for change in (
        np.zeros_like,
        operator.neg,
        lambda x: np.flip(x).copy(),
        lambda x: x[..., :0],
        lambda x: x[:0],
    ):
        for index in range(len(arrays)):
            yield [change(one) if i == index and one.ndim else one for i, one in enumerate(arrays)]
        yield [change(one) if one.ndim else one for one in arrays]
    for size in sorted({size for one in arrays for size in one.shape}):
        for cut in (size - 1, 0):
            yield [one[tuple(slice(cut if n == size else n) for n in one.shape)] for one in arrays]
    for name in ("float32", "float64"):
        yield [one.astype(name) if is_float else one for one, is_float in zip(arrays, floating, strict=True)]
    for index, is_float in enumerate(floating):
        if is_float and arrays[index].size >= 3:
            special = np.array(arrays[index], order="C")
            special.reshape(-1)[:3] = (np.nan, np.inf, -np.inf)
            yield [special if i == index else one for i, one in enumerate(arrays)]


if __name__ == "__main__":
    main()
