"""What a call of an operator costs in JAX, against hand-written glue and plain ``jax.jit`` in the same run.

Run ``python benchmarks/jax_calls.py``. All variants of a row take turns in one process; each figure is the
fastest of many rounds. glibc's thresholds are fixed (the script starts itself again with them), for without
that the page faults of fresh buffers decide about calls with 4 MB arrays, on every route.
"""

from __future__ import annotations

import datetime as dt
import gc
import os
import platform
import re
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000"}
if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})  # noqa: S606

import jax  # noqa: E402  (after the environment)
import jax.numpy as jnp  # noqa: E402  (after the environment)
import numpy as np  # noqa: E402  (after the environment)
from jax.experimental.buffer_callback import buffer_callback  # noqa: E402  (after the environment)

import opwright as ow  # noqa: E402  (after the environment)
from opwright.frameworks.jax import ffi, private  # noqa: E402  (after the environment)

warnings.simplefilter("ignore")
SMALL, LARGE = 4, 1_000_000
ROUNDS = 60


def times(
    functions: dict[str, Callable[[], Any]],
    calls: int,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Microseconds a call of each, in the fastest round; the functions take turns."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        for _ in range(5):
            function()
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, function in functions.items():
            start = clock()
            for _ in range(calls):
                function()
            best[name] = min(best[name], (clock() - start) / calls * 1e6)
    gc.enable()
    return best


def row(what: str, value: str, target: str = "", reached: bool | None = None) -> None:
    """Print one line of the table."""
    verdict = "" if reached is None else "reached" if reached else "NOT reached"
    print(f"{what:<58}{value:>22}   {target:<12}{verdict}")


# ----------------------------------------------------------------------------------- what is compared


@ow.custom_op("bench::square", mutates_args=())
def square(x: np.ndarray) -> np.ndarray:
    """Return a new array."""
    return x * x


@ow.custom_op("bench::square_into", mutates_args=(), schema="(Tensor x) -> Tensor")
def square_into(x: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
    """Write into the array that is given."""
    return np.multiply(x, x, out=out)


@ow.custom_op("bench::mixture", mutates_args=())
def mixture(x: ow.Array, k: float = 2.0) -> ow.Array:
    """Compute with any framework's functions."""
    xp = ow.array_namespace(x)
    return xp.sin(x) * k + xp.exp(-x * x)


def save(ctx: Any, inputs: Any, output: Any) -> None:
    """Keep the input."""
    ctx.save_for_backward(*inputs)


for operator in (square, square_into):
    operator.register_fake(ow.empty_like)
    operator.register_autograd(lambda ctx, grad: 2 * ctx.saved_tensors[0] * grad, setup_context=save)


@jax.custom_vjp
def by_hand(x: Any) -> Any:
    """What people write today: custom_vjp around pure_callback."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda a: a * a, shape, x, vmap_method="sequential")


by_hand.defvjp(lambda x: (by_hand(x), x), lambda x, g: (2 * x * g,))


def compute(x: np.ndarray) -> np.ndarray:
    """What a hand-written loop calls."""
    return x * x


def loop_by_hand(x: Any) -> Any:
    """Return a batch through one hand-written callback with a loop in it."""

    def body(_context: Any, out: Any, rows: Any) -> None:
        source, target = np.asarray(rows), np.asarray(out)
        for i in range(len(source)):
            target[i] = compute(source[i])

    return buffer_callback(body, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def plain_mixture(x: Any, k: float = 2.0) -> Any:
    """Compute the same, written in jax.numpy."""
    return jnp.sin(x) * k + jnp.exp(-x * x)


# ------------------------------------------------------------------------------------------- the rows


def eager() -> None:
    """Calls on concrete arrays."""
    x = jnp.ones(SMALL)
    got = times({"ours": lambda: square(x), "jnp": lambda: x * x}, 50, 2000)
    got |= times({"hand": lambda: by_hand(x)}, 5, 10)  # its closure is new each time: JAX compiles it anew
    row("eager, NumPy kernel, 4 floats", f"{got['ours']:.1f} us", "<= 8 us", got["ours"] <= 8)
    row("  x * x by JAX itself", f"{got['jnp']:.1f} us")
    row("  over that", f"{got['ours'] / got['jnp']:.2f} x")
    row("  custom_vjp + pure_callback", f"{got['hand']:.1f} us")
    with_public_names_only(x)
    slope, hand = jax.grad(lambda a: square(a).sum()), jax.grad(lambda a: by_hand(a).sum())
    got = times({"ours": lambda: slope(x), "hand": lambda: hand(x)}, 10, 10)
    row("  eager grad of a sum, over custom_vjp's", f"{got['ours'] / got['hand']:.2f} x")


def with_public_names_only(x: Any) -> None:
    """Time an eager call on a JAX without the private entry that takes a NumPy array."""
    kept = private.device_put
    private.device_put = lambda: None  # type: ignore[assignment]
    square._record.table.clear()  # noqa: SLF001  (what was specialised uses the private entry)
    try:
        got = times({"public": lambda: square(x)}, 20, 600)
    finally:
        private.device_put = kept
        square._record.table.clear()  # noqa: SLF001
    row("eager, by JAX's public entries only", f"{got['public']:.1f} us", "<= 20 us", got["public"] <= 20)


def jitted() -> None:
    """Compiled calls, over plain jit."""
    routes = {"buffer_callback": False} | ({"tvm-ffi": True} if ffi.installed() else {})
    x = jnp.ones(SMALL)
    plain, hand = jax.jit(lambda a: a * a), jax.jit(by_hand)
    for name, enabled in routes.items():
        ffi.enabled = enabled
        ours, into = jax.jit(lambda a: square(a)), jax.jit(lambda a: square_into(a))  # noqa: PLW0108
        functions = {
            "plain": lambda: plain(x),
            "ours": lambda ours=ours: ours(x),
            "into": lambda into=into: into(x),
            "hand": lambda: hand(x),
        }
        got = times(functions, 50, 1000)
        for key, what in (("ours", "a new array"), ("into", "into out=")):
            over = got[key] - got["plain"]
            row(f"jit, 4 floats, {name}, {what}, over plain jit", f"{over:+.1f} us", "<= 6 us", over <= 6)
        row("  plain jit(x * x)", f"{got['plain']:.1f} us")
        for key, what in (("ours", "a new array"), ("into", "into out=")):
            row(f"  {what}, what it adds, over that", f"{got[key] / got['plain'] - 1:.2f} x")
        row("  jit of custom_vjp + pure_callback, over plain jit", f"{got['hand'] - got['plain']:+.1f} us")
        large(name)
    ffi.enabled = True


def large(route: str) -> None:
    """Compiled calls with a million floats, over NumPy itself."""
    x = jnp.ones(LARGE)
    view = np.asarray(x)
    ours, into = jax.jit(lambda a: square(a)), jax.jit(lambda a: square_into(a))  # noqa: PLW0108
    hand = jax.jit(by_hand)
    got = times(
        {
            "numpy": lambda: view * view,
            "ours": lambda: jax.block_until_ready(ours(x)),
            "into": lambda: jax.block_until_ready(into(x)),
            "hand": lambda: jax.block_until_ready(hand(x)),
        },
        1,
        600,
    )
    for key, what, target in (("into", "into out=", 1.2), ("ours", "a new array", 2.5)):
        ratio = got[key] / got["numpy"]
        row(
            f"jit, 10^6 floats, {route}, {what}, over NumPy",
            f"{ratio:.2f} x",
            f"<= {target} x",
            ratio <= target,
        )
    row("  NumPy", f"{got['numpy']:.0f} us")
    row("  jit of custom_vjp + pure_callback, over NumPy", f"{got['hand'] / got['numpy']:.2f} x")


def batches() -> None:
    """A batch of 128 rows without a vmap rule."""
    x = jnp.ones((128, SMALL))
    compiled: list[str] = []
    ours = jax.vmap(square)
    ours(x)
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    ours(x)
    jax.monitoring.clear_event_listeners()
    again = sum("backend_compile" in event for event in compiled)
    row("vmap without a rule, second eager call", f"{again} compilations", "0", again == 0)
    ffi.enabled = False
    inside, hand = jax.jit(jax.vmap(square)), jax.jit(loop_by_hand)
    got = times({"ours": lambda: inside(x), "hand": lambda: hand(x)}, 1, 3000)
    ffi.enabled = True
    ratio = got["ours"] / got["hand"]
    row("  jitted, over a hand-written loop in a callback", f"{ratio:.2f} x", "<= 1 x", ratio <= 1)


def inlined() -> None:
    """An ``array_api`` kernel against the same in ``jax.numpy``."""

    def text(function: Callable[..., Any]) -> str:
        lowered = jax.jit(function).lower(jnp.ones(SMALL)).as_text()
        return re.sub(r"@\w+\(|module @\w+", "", lowered)

    same = text(mixture) == text(plain_mixture)
    row("array_api kernel: StableHLO of the same in jax.numpy", str(same), "True", same)
    x = jnp.ones(SMALL)
    ours, plain = jax.jit(mixture), jax.jit(plain_mixture)
    got = times({"ours": lambda: ours(x), "plain": lambda: plain(x)}, 500)
    row("  jitted call, over the same in jax.numpy", f"{got['ours'] / got['plain']:.2f} x")


def compiling() -> None:
    """Tracing and compiling a gradient anew."""
    x = jnp.ones(SMALL)

    def fresh(function: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> None:
            # A function of its own each time, so that nothing is answered from a cache of programs.
            jax.jit(jax.grad(lambda a: function(a).sum())).lower(x).compile()

        return run

    got = times({"ours": fresh(square), "hand": fresh(by_hand)}, 1, 30, time.process_time)
    ratio = got["ours"] / got["hand"]
    row(
        "jit(grad): CPU time to trace and compile, over custom_vjp's",
        f"{ratio:.2f} x",
        "<= 1.2 x",
        ratio <= 1.2,
    )
    row("  ours", f"{got['ours'] / 1000:.1f} ms")


def main() -> None:
    """Print the table."""
    extra = "with" if ffi.installed() else "without"
    print(f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}  Opwright {ow.__version__}, ", end="")
    print(
        f"Python {platform.python_version()}, JAX {jax.__version__}, NumPy {np.__version__}, {extra} tvm-ffi"
    )
    print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores; ", end="")
    print(", ".join(f"{name}={value}" for name, value in ALLOCATOR.items()), end="\n\n")
    for part in (eager, jitted, batches, inlined, compiling):
        part()


if __name__ == "__main__":
    main()
