"""What a Triton launch costs on the host: Triton's own, from the launch cache, inside an operator.

Run ``python benchmarks/triton_launches.py`` on a machine with a GPU. Every figure is the fastest of several
rounds that take turns, in microseconds a call; ratios compare figures of one run.
"""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, CALLS = 15, 300

if importlib.util.find_spec("torch") is not None and importlib.util.find_spec("triton") is not None:
    import torch
    from torch.library import wrap_triton
    from triton_launch_kernels import five, nineteen

    import opwright as ow

    def plain_five(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Launch a kernel of 5 arguments."""
        out = torch.empty_like(x)
        five[(1,)](x, y, out, 64, 64)
        return out

    def our_five(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Launch it through Opwright."""
        out = torch.empty_like(x)
        ow.wrap_triton(five)[(1,)](x, y, out, 64, 64)
        return out

    def their_five(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Launch it through torch.library."""
        out = torch.empty_like(x)
        wrap_triton(five)[(1,)](x, y, out, 64, 64)
        return out

    def plain_nineteen(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor
    ) -> torch.Tensor:
        """Launch a kernel of 19 arguments."""
        out = torch.empty_like(a)
        nineteen[(1,)](a, b, c, d, e, out, 3, 8, 16, 32, 33, 100, 128, 1000, 1024, 7, 9, 640, 64)
        return out

    def our_nineteen(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor
    ) -> torch.Tensor:
        """Launch it through Opwright."""
        out = torch.empty_like(a)
        launch = ow.wrap_triton(nineteen)[(1,)]
        launch(a, b, c, d, e, out, 3, 8, 16, 32, 33, 100, 128, 1000, 1024, 7, 9, 640, 64)
        return out

    def their_nineteen(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor
    ) -> torch.Tensor:
        """Launch it through torch.library."""
        out = torch.empty_like(a)
        launch = wrap_triton(nineteen)[(1,)]
        launch(a, b, c, d, e, out, 3, 8, 16, 32, 33, 100, 128, 1000, 1024, 7, 9, 640, 64)
        return out


def measure(functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return microseconds a call: the best round of each, the functions taking turns."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for name, function in functions.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                function()
            best[name] = min(best[name], time.perf_counter() - start)
            torch.cuda.synchronize()
    return {name: seconds / CALLS * 1e6 for name, seconds in best.items()}


def rows() -> list[tuple[str, str, str]]:
    """Return rows of text: what, figures, ratio."""
    x, y, out, *rest = (torch.randn(64, device="cuda") for _ in range(7))
    few, many = (x, y), (x, y, *rest[:3])
    numbers = (3, 8, 16, 32, 33, 100, 128, 1000, 1024, 7, 9, 640, 64)
    five_op = ow.triton_op("bench::five", our_five, mutates_args=())
    nineteen_op = ow.triton_op("bench::nineteen", our_nineteen, mutates_args=())
    their_five_op = torch.library.triton_op("bench_torch::five", their_five, mutates_args=())
    their_nineteen_op = torch.library.triton_op("bench_torch::nineteen", their_nineteen, mutates_args=())
    found = measure(
        {
            "empty_like": lambda: torch.empty_like(x),
            "launch 5": lambda: five[(1,)](x, y, out, 64, 64),
            "cached 5": lambda: ow.wrap_triton(five)[(1,)](x, y, out, 64, 64),
            "launch 19": lambda: nineteen[(1,)](*many, out, *numbers),
            "cached 19": lambda: ow.wrap_triton(nineteen)[(1,)](*many, out, *numbers),
            "function 5": lambda: plain_five(*few),
            "operator 5": lambda: five_op(*few),
            "torch's 5": lambda: their_five_op(*few),
            "function 19": lambda: plain_nineteen(*many),
            "operator 19": lambda: nineteen_op(*many),
            "torch's 19": lambda: their_nineteen_op(*many),
        }
    )
    table = [("torch.empty_like", f"{found['empty_like']:.1f} us", "")]
    for count, goal in (("5", 0.6), ("19", 0.5)):
        pairs = (
            ("launch", f"launch {count}", f"cached {count}", ""),
            ("triton_op", f"function {count}", f"operator {count}", f" (to reach: {goal})"),
            ("torch.library.triton_op", f"function {count}", f"torch's {count}", ""),
        )
        for what, before, after, note in pairs:
            figures = f"{found[before]:.1f} -> {found[after]:.1f} us"
            table.append((f"{what}, {count} arguments", figures, f"{found[after] / found[before]:.2f}{note}"))
    return table


def main() -> None:
    """Print the table."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
        print("triton launches: skipped, needs torch and triton")
        return
    if not torch.cuda.is_available():
        print("triton launches: skipped, needs a GPU, and torch finds none")
        return
    for what, figures, ratio in rows():
        print(f"{what:36} {figures:>22}  {ratio}")


if __name__ == "__main__":
    main()
