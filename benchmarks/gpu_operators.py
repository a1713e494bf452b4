"""The examples' operators on a GPU against eager PyTorch, ``torch.compile`` and the bare kernels.

Run ``python benchmarks/gpu_operators.py``. Inputs rotate through several times the memory of the cache, so
that what is measured is memory and not the cache. The bandwidth counts each input and output once. *Bare* is
the same kernel launched by its own library on arrays of its own, without operator or gradient graph.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Function = Any
"""A function of tensors."""

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


def bandwidth() -> float:
    """Return the bytes a microsecond that a copy of one gigabyte reaches."""
    import torch

    sets = [(torch.empty(2**28, device="cuda"), torch.empty(2**28, device="cuda")) for _ in range(3)]
    return 2 * 2**30 / time_of(lambda a, b: b.copy_(a), sets)


def with_gradient(function: Function, count: int) -> Function:
    """Return the function followed by its backward, for the first ``count`` arguments."""
    import torch

    def run(*args: Any) -> Any:
        out = function(*args[:-1])
        return torch.autograd.grad(out, args[:count], args[-1])

    return run


@dataclass(frozen=True)
class Case:
    """An operator and what it is compared with.

    Parameters
    ----------
    name
        What the table calls it.
    operator, reference
        The operator, and the same in PyTorch.
    bare
        The kernels forward, and forward and backward, each as a function of a set of inputs; none where the
        operator has no kernel of its own.
    sets
        Sets of inputs, the incoming gradient last.
    count
        How many inputs have a gradient.
    forward, both
        Bytes that a forward moves, and a forward with its backward.
    """

    name: str
    operator: Function
    reference: Function
    bare: tuple[Function, Function] | None
    sets: list[tuple[Any, ...]]
    count: int
    forward: int
    both: int


def rms_norm_case() -> Case:
    """Return the fused RMS normalisation."""
    import rms_norm as example
    import torch

    rows, width = 32768, 4096
    half = {"device": "cuda", "dtype": torch.bfloat16}
    sets = [
        (
            torch.randn(rows, width, **half).requires_grad_(),
            torch.randn(width, **half).requires_grad_(),
            torch.randn(rows, width, **half),
        )
        for _ in range(4)
    ]
    options = example._block(width)  # noqa: SLF001  (the bare kernel is launched as the operator does)
    programs = example.PROGRAMS

    def forward(x: Any, weight: Any, grad: Any) -> Any:
        out = torch.empty_like(x)
        example._forward[(rows,)](x, weight, out, width, 1e-6, **options)  # noqa: SLF001
        return out

    def both(x: Any, weight: Any, grad: Any) -> Any:
        forward(x, weight, grad)
        grad_x = torch.empty_like(x)
        partial = torch.empty(programs, width, dtype=torch.float32, device="cuda")
        example._backward[(programs,)](grad, x, weight, grad_x, partial, rows, width, 1e-6, **options)  # noqa: SLF001
        return grad_x, partial.sum(0).to(weight.dtype)

    size = rows * width * 2
    return Case(
        f"rms_norm {rows}x{width} bf16",
        example.rms_norm,
        lambda x, w: torch.nn.functional.rms_norm(x, (width,), w, 1e-6),
        (forward, both), sets, 2, 2 * size, 5 * size,
    )  # fmt: skip


def cross_entropy_case() -> Case:
    """Return the fused cross-entropy."""
    import cross_entropy as example
    import torch

    rows, classes = 4096, 32000
    half = {"device": "cuda", "dtype": torch.bfloat16}
    sets = [
        (
            torch.randn(rows, classes, **half).requires_grad_(),
            torch.randint(0, classes, (rows,), device="cuda"),
            torch.randn(rows, **half),
        )
        for _ in range(3)
    ]
    options = example._block(classes)  # noqa: SLF001  (the same)

    def forward(logits: Any, labels: Any, grad: Any) -> Any:
        losses = torch.empty(rows, **half)
        example._forward[(rows,)](logits, labels, losses, classes, **options)  # noqa: SLF001
        return losses

    def both(logits: Any, labels: Any, grad: Any) -> Any:
        losses, out = forward(logits, labels, grad), torch.empty_like(logits)
        example._backward[(rows,)](grad, logits, labels, losses, out, classes, **options)  # noqa: SLF001
        return out

    size = rows * classes * 2
    return Case(
        f"cross_entropy {rows}x{classes} bf16",
        example.cross_entropy,
        lambda x, labels: torch.nn.functional.cross_entropy(x, labels, reduction="none"),
        (forward, both), sets, 1, size, 3 * size,
    )  # fmt: skip


def gate_case() -> Case | None:
    """Return the gated activation in CUDA C, or None without CuPy."""
    try:
        import cupy
    except ImportError:
        return None
    import cupy_gate as example
    import torch

    sets = [tuple(torch.randn(2**25, device="cuda", requires_grad=i < 2) for i in range(3)) for _ in range(3)]
    theirs = {id(one): cupy.from_dlpack(one.detach()) for each in sets for one in each}

    def forward(x: Any, y: Any, grad: Any) -> Any:
        with cupy.cuda.Stream.null:
            out = cupy.empty_like(theirs[id(x)])
            example._launch("forward", theirs[id(x)], theirs[id(y)], out)  # noqa: SLF001  (the same)
        return out

    def both(x: Any, y: Any, grad: Any) -> Any:
        forward(x, y, grad)
        grads = cupy.empty_like(theirs[id(x)]), cupy.empty_like(theirs[id(y)])
        example._launch("backward", *(theirs[id(one)] for one in (grad, x, y)), *grads)  # noqa: SLF001
        return grads

    size = 2**27
    return Case(
        "gate 2^25 float32 (CuPy)",
        example.gate,
        lambda x, y: torch.nn.functional.silu(x) * y,
        (forward, both), sets, 2, 3 * size, 8 * size,
    )  # fmt: skip


def convolution_case() -> Case:
    """Return the convolution through the Fourier transform."""
    import torch
    from fft_convolution import fft_convolution

    batch, channels, n = 16, 256, 8192
    sets = [
        tuple(torch.randn(*shape, n, device="cuda", requires_grad=i < 2) for i, shape in enumerate(shapes))
        for shapes in [((batch, channels), (channels,), (batch, channels))] * 3
    ]

    def reference(x: Any, kernel: Any) -> Any:
        spectrum = torch.fft.rfft(x, n=2 * n) * torch.fft.rfft(kernel, n=2 * n)
        return torch.fft.irfft(spectrum, n=2 * n)[..., :n]

    size = batch * channels * n * 4
    return Case(
        f"fft_convolution {batch}x{channels}x{n} float32",
        fft_convolution, reference, None, sets, 2, 2 * size, 5 * size,
    )  # fmt: skip


def gpu_rows() -> list[tuple[str, str, str]]:
    """Return rows of text: what, figures, ratios."""
    import torch

    peak = bandwidth()
    table = [("copy of 1 GiB", f"{peak / 1e6:.2f} TB/s", "")]
    for make in (rms_norm_case, cross_entropy_case, gate_case, convolution_case):
        case = make()
        if case is None:
            continue
        for what, size, wrap in (("forward", case.forward, False), ("and backward", case.both, True)):
            compiled = torch.compile(case.reference)
            functions = {"eager": case.reference, "compile": compiled, "": case.operator}
            for name, function in functions.items():
                functions[name] = with_gradient(function, case.count) if wrap else without_last(function)
            if case.bare is not None:
                functions["bare"] = case.bare[wrap]
            with torch.set_grad_enabled(wrap):
                times = {name: time_of(function, case.sets) for name, function in functions.items()}
            ours = times.pop("")
            ratios = [f"{ours / theirs:.2f} x {name}" for name, theirs in times.items()]
            share = f"{size / ours / peak:.0%} of the copy's bandwidth"
            table.append((f"{case.name}, {what}", f"{ours:.0f} us", ", ".join([*ratios, share])))
        del case
        torch.cuda.empty_cache()
    return table


def without_last(function: Function) -> Function:
    """Return the function without the last argument, which is the incoming gradient."""
    return lambda *args: function(*args[:-1])


def cpu_row() -> tuple[str, str, str]:
    """Return the row of the recurrence that numba compiles for the CPU."""
    import torch
    from numba_recurrence import recurrence, steps

    rows, count = 64, 4096
    x, decay = torch.randn(rows, count), torch.rand(rows, count)
    arrays = x.numpy(), decay.numpy()

    def eager(x: Any, decay: Any) -> Any:
        state, found = torch.zeros(rows), []
        for step in range(count):
            state = decay[:, step] * state + x[:, step]
            found.append(state)
        return torch.stack(found, 1)

    best = dict.fromkeys(("eager", "bare", "ours"), float("inf"))
    calls = {
        "eager": lambda: eager(x, decay),
        "bare": lambda: steps(*arrays),
        "ours": lambda: recurrence(x, decay),
    }
    for _ in range(10):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e6)
    ratios = f"{best['ours'] / best['eager']:.2f} x eager, {best['ours'] / best['bare']:.2f} x bare"
    return f"recurrence {rows}x{count} float32 (numba, CPU)", f"{best['ours']:.0f} us", ratios


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
    table = gpu_rows()
    if importlib.util.find_spec("numba") is not None:
        table.append(cpu_row())
    for what, figures, ratios in table:
        print(f"{what:44} {figures:>12}  {ratios}")


if __name__ == "__main__":
    main()
