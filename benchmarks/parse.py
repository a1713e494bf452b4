"""How many schemas a second are read, and how that compares with torch's own parser in the same run.

Run ``python benchmarks/parse.py``. With torch installed it reads every schema that torch registers, else a
few typical ones.
"""

from __future__ import annotations

import importlib.util
import time

from opwright.parse import parse_schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
TYPICAL = [
    "mylib::sin(Tensor x) -> Tensor",
    "mylib::add_(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
    'mylib::conv(Tensor x, Tensor w, Tensor? b=None, int[2] stride=1, str pad="same") -> (Tensor, Tensor)',
    "mylib::norm.out(Tensor x, SymInt[] shape, float eps=1e-05, *, Tensor(a!) out) -> Tensor(a!)",
] * 500


def rate(parse: Callable[[str], object], texts: list[str]) -> float:
    """Texts a second, in the fastest of a few rounds: what else the machine does only slows them."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for text in texts:
            parse(text)
        best = min(best, time.perf_counter() - start)
    return len(texts) / best


def main() -> None:
    """Print the rates and their ratio."""
    if importlib.util.find_spec("torch") is None:
        print(f"opwright: {rate(parse_schema, TYPICAL):,.0f} schemas a second (typical ones; no torch here)")
        return
    import torch

    core = torch._C  # noqa: SLF001  (torch has no public parser)
    registered = core._jit_get_all_schemas()  # noqa: SLF001  (nor a public list)
    texts = [text for schema in registered if "PyObject" not in (text := str(schema))]
    ours = rate(parse_schema, texts)
    theirs = rate(core.parse_schema, texts)
    print(f"{len(texts):,} schemas that torch {torch.__version__} registers")
    print(f"opwright: {ours:,.0f} schemas a second")
    print(f"torch:    {theirs:,.0f} schemas a second (C++)")
    print(f"ratio:    {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
