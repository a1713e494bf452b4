"""What a call costs in PyTorch: an operator of Opwright beside the other ways to make one, in one run.

Run ``python benchmarks/torch_calls.py`` (``--device cuda`` on a GPU, ``--rounds 20`` for a quick look). Each
row is one kind of call; every column is timed in turn, round after round, and the fastest round of each is
kept: what else the machine does only slows them. ``over`` is the time over the plain function of the same
row, ``/custom`` that as a part of what ``custom_op`` takes over it, ``/hand`` as a multiple of what the
tests by hand take over it, ``/Func.`` the whole call as a part of the bare function's. Where the targets were
set, 2 us for 14 tensors, the tests by hand took 1.53 us: 1.31 of ``/hand`` is to reach.

The columns: the plain Python function; for 14 tensors the same ``by hand``, in one function with the tests
that no call past the dispatcher can do without; a bare ``torch.autograd.Function``, where a gradient is
needed; ``torch.library.Library.impl``; ``torch.library.custom_op``; Opwright's operator; and ``torch.ops`` of
the same operator, which is the path that calls take which have no direct one.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

import opwright as ow
from opwright.frameworks.torch import guards

Calls = dict[str, Callable[[], Any]]

COLUMNS = ("plain", "by hand", "Function", "impl", "custom_op", "opwright", "torch.ops")
SECONDS = 0.002  # how long one round of one column takes: short ones find the moments when nothing else runs
DEFINITIONS, CHUNK = 1000, 50
"""The libraries define in turns, and garbage is collected between: a collection takes as long as a chunk."""

library = torch.library.Library("bench_impl", "DEF")


def best(calls: Calls, rounds: int, sync: Callable[[], None]) -> dict[str, float]:
    """Return the microseconds a call of each column, in its fastest round."""
    found = dict.fromkeys(calls, float("inf"))
    counts = {}
    for name, call in calls.items():
        for _ in range(20):
            call()
        sync()
        start = time.perf_counter()
        for _ in range(50):
            call()
        counts[name] = max(20, int(SECONDS / ((time.perf_counter() - start) / 50)))
    for _ in range(rounds):
        for name, call in calls.items():
            repeat = range(counts[name])
            sync()
            start = time.perf_counter()
            for _ in repeat:
                call()
            found[name] = min(found[name], (time.perf_counter() - start) / counts[name] * 1e6)
    return found


def variants(
    name: str, fn: Callable[..., Any], *, mutates: tuple[str, ...] = (), grad: tuple[Any, Any] | None = None
) -> dict[str, Callable[..., Any]]:
    """Return ``fn`` in every column; ``grad`` is its setup_context and backward."""
    theirs = torch.library.custom_op(f"bench_custom::{name}", fn, mutates_args=mutates)
    ours = ow.custom_op(f"bench_ours::{name}", fn, mutates_args=mutates)
    schema = torch.library.infer_schema(fn, mutates_args=mutates)
    library.define(name + schema)
    library.impl(name, fn, "CompositeExplicitAutograd")
    found = {"plain": fn}
    if grad is not None:
        setup, backward = grad
        theirs.register_autograd(backward, setup_context=setup)
        ours.register_autograd(backward, setup_context=setup)
        torch.library.register_autograd(f"bench_impl::{name}", backward, setup_context=setup, lib=library)
        members = {"forward": staticmethod(_forward(fn, setup)), "backward": staticmethod(backward)}
        function: Any = type(name, (torch.autograd.Function,), members)
        found["Function"] = function.apply
    found["impl"] = getattr(torch.ops.bench_impl, name).default
    found["custom_op"] = theirs
    found["opwright"] = ours
    found["torch.ops"] = getattr(torch.ops.bench_ours, name).default
    return found


def _forward(fn: Callable[..., Any], setup: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward that takes the context itself, which is the faster way in torch."""

    def forward(ctx: Any, *args: Any) -> Any:
        output = fn(*args)
        setup(ctx, args, output)
        return output

    return forward


def one(x: Tensor, k: float = 2.0) -> Tensor:
    """Return new memory, at little cost."""
    return x.clone()


def three(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Return the same of three tensors."""
    return x.clone()


def fourteen(  # noqa: PLR0917  (that is the point)
    a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor,
    h: Tensor, i: Tensor, j: Tensor, k: Tensor, m: Tensor, n: Tensor, o: Tensor,
) -> Tensor:  # fmt: skip
    """Return the same of fourteen tensors."""
    return a.clone()


def by_hand(tensors: list[Tensor]) -> Callable[..., Tensor]:
    """Return ``fourteen`` in one function with the tests that no call past the dispatcher can do without."""
    check = guards.make_check(tensors)
    compiling, plain = torch.compiler.is_dynamo_compiling, Tensor
    core: Any = torch._C  # noqa: SLF001  (torch has no public tests of these)
    modes, dispatch_modes = core._is_torch_function_mode_enabled, core._len_torch_dispatch_stack  # noqa: SLF001
    levels, profiler = torch.autograd.forward_ad, torch.autograd.profiler

    def guarded(  # noqa: PLR0917  (as fourteen)
        a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor,
        h: Tensor, i: Tensor, j: Tensor, k: Tensor, m: Tensor, n: Tensor, o: Tensor,
    ) -> Tensor:  # fmt: skip
        other = (
            compiling() or a.__class__ is not plain or modes() or dispatch_modes()
            or levels._current_level >= 0  # noqa: SLF001  (torch has no public test)
            or profiler._is_profiler_enabled  # noqa: SLF001  (the same)
            or a.is_nested or b.is_nested or c.is_nested or d.is_nested or e.is_nested or f.is_nested
            or g.is_nested or h.is_nested or i.is_nested or j.is_nested or k.is_nested or m.is_nested
            or n.is_nested or o.is_nested
        )  # fmt: skip
        if other or not check(a, b, c, d, e, f, g, h, i, j, k, m, n, o):
            raise ValueError("other tensors, or another state, than the guard's")
        return fourteen(a, b, c, d, e, f, g, h, i, j, k, m, n, o)

    return guarded


def mixed(  # noqa: PLR0917  (the same)
    x: Tensor, y: Tensor, z: Tensor, w: Tensor,
    stride: list[int], padding: list[int], dilation: list[int],
    low: list[float], high: list[float], scale: list[float],
    flag: bool, mode: str,
) -> Tensor:  # fmt: skip
    """Return the same of everything that an interpolation takes."""
    return x.clone()


def fill(x: Tensor, y: Tensor) -> None:
    """Declare a mutation, and leave it."""


def scaled(x: Tensor, k: float) -> Tensor:
    """Return what has a gradient."""
    return x * k


def setup_scaled(ctx: Any, inputs: Any, output: Any) -> None:
    """Keep what the gradient takes."""
    ctx.save_for_backward(inputs[0])
    ctx.k = inputs[1]


def backward_scaled(ctx: Any, grad: Any) -> Any:
    """Return the gradient."""
    (_,) = ctx.saved_tensors
    return grad * ctx.k, None


def rows(device: str) -> dict[str, tuple[Calls, Any]]:
    """Return every row: its calls by column, and the context that they run in."""
    tensors = [torch.ones(4, device=device) for _ in range(14)]
    x, *_ = tensors
    leaf = torch.ones(4, device=device, requires_grad=True)
    grad = torch.ones(4, device=device)
    first, last = variants("one", one), variants("scaled", scaled, grad=(setup_scaled, backward_scaled))
    mixed_args = (*tensors[:4], [1, 1], [0, 0], [1, 1], [0.0], [1.0], [0.5, 0.5], True, "nearest")

    def calls(found: dict[str, Callable[..., Any]], *args: Any) -> Calls:
        return {name: (lambda fn=fn: fn(*args)) for name, fn in found.items()}

    def backward(fn: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(fn(leaf, 2.0), leaf, grad)

    both = {name: backward(fn) for name, fn in last.items()}
    return {
        "1 tensor": (calls(first, x), nullcontext()),
        "3 tensors": (calls(variants("three", three), *tensors[:3]), nullcontext()),
        "14 tensors": (
            calls(variants("fourteen", fourteen) | {"by hand": by_hand(tensors)}, *tensors),
            nullcontext(),
        ),
        "4 tensors, 6 lists, bool, str": (calls(variants("mixed", mixed), *mixed_args), nullcontext()),
        "1 of 2 tensors mutated": (
            calls(variants("fill", fill, mutates=("x",)), *tensors[:2]),
            nullcontext(),
        ),
        "gradient needed, forward": (calls(last, leaf, 2.0), nullcontext()),
        "gradient needed, forward + backward": (both, nullcontext()),
        "requires grad, under no_grad": (calls(last, leaf, 2.0), torch.no_grad()),
        "inference mode": (calls(last, x, 2.0), torch.inference_mode()),
        "autocast on": (calls(first, x), torch.autocast(device, dtype=torch.bfloat16)),
        "in a compiled graph": (compiled(x), nullcontext()),
    }


def compiled(x: Tensor) -> Calls:
    """Return compiled functions that call each operator four times."""
    found = {}
    for name, fn in variants("graph", scaled, grad=(setup_scaled, backward_scaled)).items():
        if name == "Function":
            continue
        if name in {"custom_op", "opwright"}:
            fn.register_fake(lambda x, k: torch.empty_like(x))
        elif name == "impl":
            torch.library.register_fake("bench_impl::graph", lambda x, k: torch.empty_like(x), lib=library)

        def four(x: Tensor, fn: Callable[..., Any] = fn) -> Tensor:
            return fn(fn(fn(fn(x, 2.0), 2.0), 2.0), 2.0)

        run = torch.compile(four, fullgraph=True, backend=backend())
        found[name] = lambda run=run: run(x)
    return found


def backend() -> str:
    """Return the compiler's backend: inductor needs a C++ compiler."""
    return "inductor" if shutil.which("g++") or shutil.which("c++") else "aot_eager"


def define_ours(numbers: range) -> None:
    """Define operators with a fake and an autograd rule."""
    for index in numbers:
        op = ow.custom_op(f"bench_define_ours::f{index}", scaled, mutates_args=())
        op.register_fake(lambda x, k: torch.empty_like(x))
        op.register_autograd(backward_scaled, setup_context=setup_scaled)


def define_theirs(numbers: range) -> None:
    """Define the same operators with ``torch.library``."""
    for index in numbers:
        op = torch.library.custom_op(f"bench_define_theirs::f{index}", scaled, mutates_args=())
        op.register_fake(lambda x, k: torch.empty_like(x))
        op.register_autograd(backward_scaled, setup_context=setup_scaled)


def print_row(title: str, times: dict[str, float]) -> None:
    """Print a row, and how much of ``custom_op``'s overhead is left."""
    plain = times["plain"]
    cells = [f"{times[name]:9.2f}" if name in times else f"{'-':>9}" for name in COLUMNS]
    over, theirs = times["opwright"] - plain, times["custom_op"] - plain
    ratios = [
        f"{over / theirs:9.2f}",
        f"{over / (times['by hand'] - plain):8.2f}" if "by hand" in times else f"{'-':>8}",
        f"{times['opwright'] / times['Function']:8.2f}" if "Function" in times else f"{'-':>8}",
    ]
    print(f"{title:36}{' '.join(cells)} {over:8.2f} {' '.join(ratios)}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--only", default="", help="rows whose title contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sync = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)
    where = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else platform.processor() or platform.machine()
    )
    print(f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}  Python {platform.python_version()}")
    print(f"torch {torch.__version__}  {options.device} ({where})  compiled with {backend()}")
    print(f"direct calls: {guards.UNAVAILABLE or 'yes'}")
    print("microseconds a call, the fastest of interleaved rounds\n")
    ratios = f"{'/custom':>9} {'/hand':>8} {'/Func.':>8}"
    print(f"{'':36}{' '.join(f'{name:>9}' for name in COLUMNS)} {'over':>8} {ratios}")
    for title, (calls, context) in rows(options.device).items():
        if options.only in title:
            with context:
                print_row(title, best(calls, options.rounds, sync))
    if not options.only:
        print()
        spent = {"opwright": 0.0, "torch.library": 0.0}
        for begin in range(0, DEFINITIONS + CHUNK, CHUNK):
            for name, define in (("opwright", define_ours), ("torch.library", define_theirs)):
                gc.collect()
                gc.disable()
                start = time.perf_counter()
                define(range(begin, begin + CHUNK))
                spent[name] += (time.perf_counter() - start) * (begin > 0)  # the first imports what is late
                gc.enable()
        for name, seconds in spent.items():
            print(f"{DEFINITIONS} operators with fake and autograd, {name}: {seconds * 1000:.0f} ms")
        print(f"ratio: {spent['opwright'] / spent['torch.library']:.2f}")


if __name__ == "__main__":
    main()
