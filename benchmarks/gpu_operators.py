"""The examples' operators on a GPU against eager PyTorch, ``torch.compile`` and the bare kernels.

Run ``python benchmarks/gpu_operators.py``. Inputs rotate through several times the memory of the cache, so
that what is measured is memory and not the cache. The bandwidth counts each input and output once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
TURNS = 30


def time_of(function: Callable[..., Any], sets: list[tuple[Any, ...]]) -> float:
    """Return microseconds a call on the GPU, each call on the next set of inputs."""
    import torch

    for args in sets[:3]:
        function(*args)
    best = float("inf")
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for turn in range(TURNS):
            function(*sets[turn % len(sets)])
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / TURNS * 1e3)
    return best


def with_gradient(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return the function followed by its backward, for the first ``count`` arguments."""
    import torch

    def run(*args: Any) -> Any:
        out = function(*args[:-1])
        return torch.autograd.grad(out, args[:count], args[-1])

    return run


def bandwidth() -> float:
    """Return the bytes a microsecond that a copy of one gigabyte reaches."""
    import torch

    sets = [(torch.empty(2**28, device="cuda"), torch.empty(2**28, device="cuda")) for _ in range(3)]
    return 2 * 2**30 / time_of(lambda a, b: b.copy_(a), sets)


def cases() -> list[tuple[str, Any, Any, list[tuple[Any, ...]], int, int, int]]:
    """Return name, operator, reference, inputs, how many have a gradient, bytes forward, bytes in all."""
    import torch
    from cross_entropy import cross_entropy
    from rms_norm import rms_norm

    found: list[Any] = []
    rows, width = 8192, 4096
    half = {"device": "cuda", "dtype": torch.bfloat16}
    sets = [
        (
            torch.randn(rows, width, **half).requires_grad_(),
            torch.randn(width, **half).requires_grad_(),
            torch.randn(rows, width, **half),
        )
        for _ in range(4)
    ]
    size = rows * width * 2
    found.append(
        (
            f"rms_norm {rows}x{width} bf16",
            rms_norm,
            lambda x, w: torch.nn.functional.rms_norm(x, (width,), w, 1e-6),
            sets, 2, 2 * size, 5 * size,
        )
    )  # fmt: skip
    rows, classes = 4096, 32000
    sets = [
        (
            torch.randn(rows, classes, **half).requires_grad_(),
            torch.randint(0, classes, (rows,), device="cuda"),
            torch.randn(rows, **half),
        )
        for _ in range(3)
    ]
    size = rows * classes * 2
    found.append(
        (
            f"cross_entropy {rows}x{classes} bf16",
            cross_entropy,
            lambda x, labels: torch.nn.functional.cross_entropy(x, labels, reduction="none"),
            sets, 1, size, 3 * size,
        )
    )  # fmt: skip
    try:
        from cupy_gate import gate
    except ImportError:
        return found
    sets = [tuple(torch.randn(2**25, device="cuda", requires_grad=i < 2) for i in range(3)) for _ in range(3)]
    size = 2**27
    found.append(
        (
            "gate 2^25 float32 (CuPy)",
            gate,
            lambda x, y: torch.nn.functional.silu(x) * y,
            sets,
            2,
            3 * size,
            8 * size,
        )
    )
    return found


def rows() -> list[tuple[str, str, str]]:
    """Return rows of text: what, figures, ratios."""
    import torch

    peak = bandwidth()
    table = [("copy of 1 GiB", f"{peak / 1e6:.2f} TB/s", "")]
    for name, op, reference, sets, count, forward, both in cases():
        for what, size, wrap in (("forward", forward, False), ("and backward", both, True)):
            ours = with_gradient(op, count) if wrap else lambda *args, op=op: op(*args[:-1])
            eager = with_gradient(reference, count) if wrap else lambda *args, ref=reference: ref(*args[:-1])
            compiled = torch.compile(reference)
            fused = with_gradient(compiled, count) if wrap else lambda *args, ref=compiled: ref(*args[:-1])
            with torch.set_grad_enabled(wrap):
                times = [time_of(function, sets) for function in (ours, eager, fused)]
            share = size / times[0] / peak
            ratios = f"{times[0] / times[1]:.2f} x eager, {times[0] / times[2]:.2f} x compile"
            table.append(
                (f"{name}, {what}", f"{times[0]:.0f} us", f"{ratios}, {share:.0%} of the copy's bandwidth")
            )
        torch.cuda.empty_cache()
    return table


def main() -> None:
    """Print the table."""
    import importlib.util

    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
        print("operators on a GPU: skipped, needs torch and triton")
        return
    import torch

    if not torch.cuda.is_available():
        print("operators on a GPU: skipped, needs a GPU, and torch finds none")
        return
    for what, figures, ratios in rows():
        print(f"{what:44} {figures:>12}  {ratios}")


if __name__ == "__main__":
    main()
