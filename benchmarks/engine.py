"""What Opwright adds to a call, an import and a definition, with NumPy as the only framework.

Run ``python benchmarks/engine.py``. Each figure is the best of many short rounds in which all cases take
turns, so that what else the machine does slows all alike; what is over the bare kernel is a difference of two
such figures of one run. Imports and definitions are measured in fresh processes, as processor time: what
else the machine does meanwhile does not count.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import opwright as ow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

CALLS, ROUNDS, PROCESSES = 10_000, 80, 15
OUT = np.ones(3)


def one(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    """One array and a scalar with a default."""
    return OUT


def three(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Three arrays."""
    return OUT


def listed(xs: list[np.ndarray]) -> np.ndarray:
    """A list of arrays."""
    return OUT


def scalars(  # noqa: PLR0917  (what is measured)
    x: np.ndarray, a: list[int], b: list[float], c: bool = True, d: str = "x", e: int = 3, f: float = 1.0
) -> np.ndarray:
    """Two lists and four scalars."""
    return OUT


def mutated(x: np.ndarray, y: np.ndarray) -> None:
    """One array that is written to, one that is read."""


def portable(x: ow.Array, k: float = 2.0) -> ow.Array:
    """An array_api kernel."""
    return OUT


def many(  # noqa: PLR0917  (what is measured)
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    d: np.ndarray,
    e: np.ndarray,
    f: np.ndarray,
    g: np.ndarray,
    h: np.ndarray,
    i: np.ndarray,
    j: np.ndarray,
    k: np.ndarray,
    l: np.ndarray,  # noqa: E741  (the twelfth letter)
    m: np.ndarray,
    n: np.ndarray,
) -> np.ndarray:
    """Fourteen arrays."""
    return OUT


X = np.ones(3)
CASES: list[tuple[str, Any, tuple[str, ...], tuple[Any, ...], float | None]] = [
    ("one array, scalar default", one, (), (X,), 0.15),
    ("three arrays", three, (), (X, X, X), 0.25),
    ("14 arrays", many, (), (X,) * 14, None),
    ("list of three arrays", listed, (), ([X, X, X],), None),
    ("one array, 2 lists, 4 scalars", scalars, (), (X, [1, 2], [1.0]), None),
    ("one mutated array of two", mutated, ("x",), (np.ones(3), X), None),
    ("array_api kernel, scalar default", portable, (), (X,), None),
]

MANY = """
import time
from opwright import Array, custom_op

def make():
    def f(x: Array, y: Array, k: float = 1.0, n: int = 3) -> Array:
        return x
    return f

fns = [make() for _ in range(1000)]
custom_op("warm::up", make(), mutates_args=())
start = time.process_time()
for index, fn in enumerate(fns):
    custom_op(f"many::f{index}", fn, mutates_args=())
print(time.process_time() - start)
import sys
assert "numpy" not in sys.modules
"""


def calls(cases: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[float]:
    """Microseconds a call, the best of all rounds, all cases taking turns."""
    best = [float("inf")] * len(cases)
    for _ in range(ROUNDS):
        for index, (fn, args) in enumerate(cases):
            start = time.perf_counter()
            for _ in range(CALLS):
                fn(*args)
            best[index] = min(best[index], time.perf_counter() - start)
    return [seconds / CALLS * 1e6 for seconds in best]


def in_processes(scripts: Sequence[str]) -> list[float]:
    """Seconds of processor time that fresh processes take, each the best of several, taking turns."""
    best = [float("inf")] * len(scripts)
    for _ in range(PROCESSES):
        for index, script in enumerate(scripts):
            asked = f"{script}\nimport time; print(time.process_time())"
            best[index] = min(best[index], float(printed(asked)))
    return best


def printed(script: str) -> str:
    """Return what a fresh process prints."""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()


def row(what: str, figure: str, target: str = "", verdict: bool | None = None) -> None:
    """Print one row of the table."""
    mark = "" if verdict is None else "  reached" if verdict else "  MISSED"
    print(f"{what:<40} {figure:>20}   {target:<14}{mark}".rstrip())


def bench_calls() -> None:
    """Print what a call costs over the bare kernel."""
    pairs: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    for index, (_, fn, mutates, args, _target) in enumerate(CASES):
        op = ow.custom_op(f"bench::op{index}", fn, mutates_args=mutates)
        for _ in range(5):
            op(*args)
        pairs += [(op, args), (fn, args)]
    found = calls(pairs)
    for index, (what, *_, target) in enumerate(CASES):
        over, bare = found[2 * index] - found[2 * index + 1], found[2 * index + 1]
        text = f"{over:.3f} us over {bare:.3f}"
        row(what, text, f"<= {target:.2f} us" if target else "", over <= target if target else None)


def bench_import() -> None:
    """Print what an import costs over bare Python, and that it loads no NumPy."""
    engine = "import opwright as ow; ow.ops, ow.custom_op, ow.Library, ow.register_kernel"
    bare, whole, loaded = in_processes(["pass", "import opwright", engine])
    over = (whole - bare) * 1e3
    row("import opwright", f"{over:.1f} ms over {bare * 1e3:.1f}", "<= 25 ms", over <= 25)
    row("import, and the whole engine", f"{(loaded - bare) * 1e3:.1f} ms over {bare * 1e3:.1f}")
    standard = in_processes(["import dataclasses, inspect, typing, re, enum, contextlib"])[0]
    row("of which the standard library's part", f"{(standard - bare) * 1e3:.1f} ms over {bare * 1e3:.1f}")
    modules = printed(f"{engine}\nimport sys; print('numpy' in sys.modules)")
    row("NumPy imported by it", modules, "False", modules == "False")


def bench_definitions() -> None:
    """Print what 1,000 definitions cost with no framework loaded."""
    seconds = min(float(printed(MANY)) for _ in range(5))
    row("1,000 definitions, no framework", f"{seconds:.3f} s", "<= 0.30 s", seconds <= 0.3)


def bench_parse() -> None:
    """Print how fast schemas are read."""
    sys.path.insert(0, str(Path(__file__).parent))
    import parse

    schemas, what = parse.TYPICAL, "typical schemas read"
    if importlib.util.find_spec("torch") is not None:
        import torch

        registered = torch._C._jit_get_all_schemas()  # noqa: SLF001  (no public list)
        schemas = [text for schema in registered if "PyObject" not in (text := str(schema))]
        what = f"{len(schemas):,} schemas of torch read"
    rate = parse.rate(parse.parse_schema, schemas)
    row(what, f"{rate:,.0f} a second", ">= 10,000", rate >= 10_000)


def main() -> None:
    """Print the table."""
    today = dt.datetime.now(tz=dt.UTC).date()
    print(f"{today}  Opwright {ow.__version__}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores\n")
    bench_calls()
    bench_import()
    bench_definitions()
    bench_parse()


if __name__ == "__main__":
    main()
