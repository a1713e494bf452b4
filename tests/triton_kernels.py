"""Kernels that the tests launch; Triton reads their source, so they are in a file."""

from __future__ import annotations

import triton
import triton.language as tl


def first(call, quantiles):
    """Stand in for a benchmark where there is no GPU: all configs are equally good."""
    call()
    return [1.0] * 3


BENCH = {"do_bench": first} if triton.knobs.runtime.interpret else {}


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < n
    tl.store(out + at, tl.load(x + at, mask=here) + tl.load(y + at, mask=here), mask=here)


@triton.jit
def scale(x, out, n, factor, bias, BLOCK: tl.constexpr = 64, SQUARE: tl.constexpr = False):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < n
    value = tl.load(x + at, mask=here)
    if SQUARE:
        value = value * value
    if bias is not None:
        value = value + tl.load(bias + at, mask=here)
    tl.store(out + at, value * factor, mask=here)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, num_warps=2)], key=["n"], **BENCH
)
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.heuristics({"BLOCK": lambda args: 32 if args["n"] < 100 else 64})
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def computed(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at) * 2)
    else:
        tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"], **BENCH)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_outside(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at) * 2)
    else:
        tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % 32 == 0})
@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"], **BENCH)
@triton.jit
def tuned_inside(x, out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=(at < n) | EVEN)


@triton.jit
def cast(x, out, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n).to(KIND), mask=at < n)


@triton.jit
def in_place(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.heuristics({"num_warps": lambda args: 2 if args["n"] < 100 else 4})
@triton.jit
def with_warps(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


FACTOR = tl.constexpr(3)


@triton.jit
def with_global(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * FACTOR, mask=at < n)


@triton.jit
def _store(p, value, here):
    tl.store(p, value, mask=here)


@triton.jit
def through_calls(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p = out + at
    for _ in range(0, n, BLOCK):
        _store(p, tl.load(x + at, mask=at < n), at < n)
        p += BLOCK
    if n > 3:
        tl.atomic_add(y + tl.max(at, 0), 1)


@triton.jit
def only_reads(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.device_assert(tl.sum(tl.load(x + at, mask=at < n), 0) >= 0, "negative")


@triton.jit
def loaded_address(table, n):
    address = tl.load(table + n).to(tl.pointer_type(tl.float32))
    tl.store(address, 1.0)


@triton.jit
def many(x, out, i, j, k, m, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + i + j + k + m)
