"""The direct call and torch's dispatcher give the same, whatever the situation, first call or later one."""

from __future__ import annotations

import contextlib
import threading
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import opwright as ow
import torch_operators
import torch_situations

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::DeprecationWarning:torch.*")

PLAIN = torch_situations.SITUATIONS["plain"]


@pytest.mark.parametrize("situation", torch_situations.SITUATIONS)
@pytest.mark.parametrize("kind", torch_operators.KINDS)
def test_every_situation_first_then_plain_calls_then_again(kind, situation):
    run = torch_situations.SITUATIONS[situation]
    direct, dispatched = torch_situations.calls_of(kind())
    for step in (run, PLAIN, PLAIN, PLAIN, PLAIN, run, run, run):
        assert torch_situations.observed(step, direct) == torch_situations.observed(step, dispatched)


@pytest.mark.parametrize("kind", torch_operators.KINDS)
def test_the_direct_call_is_taken_from_the_second_call_on(kind):
    path = torch_operators.Path()
    direct, dispatched = torch_situations.calls_of(kind(path))
    below = "direct" if kind is torch_operators.implicit else "dispatcher"
    assert path.of(lambda: direct(torch.ones(3))) == [below]
    assert path.of(lambda: [direct(torch.ones(3)) for _ in range(5)]) == ["direct"] * 5
    assert path.of(lambda: dispatched(torch.ones(3))) == [below]


# --------------------------------------------------------------------------- signatures, at random


def combine():
    """An operator with every kind of argument, and a gradient."""

    @ow.custom_op(torch_operators.name_of("combine"), mutates_args=())
    def op(
        x: Tensor,
        ys: list[Tensor],
        z: Tensor | None = None,
        k: float = 2.0,
        n: list[int] = [1, 2],  # noqa: B006  (a schema's default is never mutated)
        *,
        w: Tensor | None = None,
        mode: str = "add",
    ) -> tuple[Tensor, Tensor]:
        assert type(k) is float
        assert type(n) is list
        total = x * k
        for one in (*ys, *(t for t in (z, w) if t is not None)):
            total = total + one * n[0] if mode == "add" else total - one
        return total, x * n[1]

    def setup_context(ctx, inputs, output, keyword_only_inputs):
        ctx.inputs = [
            None if one is None else [] if isinstance(one, list) else one for one in (inputs[3], inputs[4])
        ]
        ctx.k, ctx.n, ctx.mode = inputs[3], inputs[4], keyword_only_inputs["mode"]
        ctx.count, ctx.z, ctx.w = len(inputs[1]), inputs[2] is not None, keyword_only_inputs["w"] is not None
        ctx.needs = ctx.needs_input_grad

    @op.register_autograd(setup_context=setup_context)
    def _(ctx, total, other):
        factor = ctx.n[0] if ctx.mode == "add" else -1
        assert len(ctx.needs[1]) == ctx.count
        return {
            "x": total * ctx.k + other * ctx.n[1],
            "ys": [total * factor] * ctx.count,
            "z": total * factor if ctx.z else None,
            "w": total * factor if ctx.w else None,
        }

    op.register_fake(lambda x, ys, z=None, k=2.0, n=(1, 2), *, w=None, mode="add": (x.clone(), x.clone()))
    return op


tensors = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([torch.float32, torch.float64, torch.int64]),
        "kind": st.sampled_from(
            ["plain", "plain", "leaf", "parameter", "strided", "not a leaf", "inference"]
        ),
    }
)
calls = st.fixed_dictionaries(
    {
        "shape": st.sampled_from([(), (3,), (2, 3), (0,)]),
        "x": tensors,
        "ys": st.lists(tensors | st.just("x"), max_size=3),
        "list": st.sampled_from([list, tuple]),
        "z": st.none() | tensors | st.just("x"),
        "w": st.none() | tensors | st.just("z"),
        "k": st.sampled_from([2.0, 3, True, np.float64(1.5), np.int32(2), torch.tensor(2.5), "two"]),
        "n": st.sampled_from([[1, 2], (3, 4), [np.int64(1), 2], [True, 2]]),
        "mode": st.sampled_from(["add", "subtract"]),
        "under": st.sampled_from(["none", "none", "no_grad", "inference", "autocast", "profiler"]),
    }
)
CONTEXTS = {
    "none": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "profiler": lambda: torch.autograd.profiler.profile(use_cpu=True),
}


def tensor_of(spec, shape, seed):
    """Return a tensor of a drawn kind."""
    value = (torch.arange(int(np.prod(shape))).reshape(shape) + seed).to(spec["dtype"])
    kind = spec["kind"] if spec["dtype"].is_floating_point else "plain"
    if kind == "inference":
        with torch.inference_mode():
            return value.clone()
    if kind == "parameter":
        return torch.nn.Parameter(value)
    if kind == "strided":
        return torch.stack([value, value], -1)[..., 0]
    value = value.requires_grad_(kind in ("leaf", "not a leaf"))
    return value * 1 if kind == "not a leaf" else value


def outcome(call, drawn):
    """Return what a drawn call gives, gradients included, or its error."""
    shape = drawn["shape"]
    x = tensor_of(drawn["x"], shape, 1)
    ys = [x if spec == "x" else tensor_of(spec, shape, 2 + i) for i, spec in enumerate(drawn["ys"])]
    z = x if drawn["z"] == "x" else drawn["z"] and tensor_of(drawn["z"], shape, 7)
    w = z if drawn["w"] == "z" else drawn["w"] and tensor_of(drawn["w"], shape, 8)
    try:
        with CONTEXTS[drawn["under"]]():
            outs = call(x, drawn["list"](ys), z, drawn["k"], drawn["n"], w, drawn["mode"])
        leaves = [t for t in {id(t): t for t in (x, *ys, z, w) if t is not None}.values() if t.requires_grad]
        grads = ()
        if leaves and outs[0].requires_grad:
            total = sum((out * out).sum() for out in outs)
            grads = torch.autograd.grad(total, leaves, allow_unused=True)
        return torch_situations.describe([*outs, *grads])
    except Exception as error:  # noqa: BLE001  (whatever it is, it is compared)
        return type(error).__name__, str(error).splitlines()[0]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(calls, min_size=1, max_size=14))
def test_any_row_of_calls(drawn):
    op = combine()
    slow = op._record.lowered["torch"].fast.slow
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in [*drawn, *drawn]:
            fast = outcome(lambda x, ys, z, k, n, w, mode: op(x, ys, z, k, n, w=w, mode=mode), one)
            assert fast == outcome(slow, one)


def test_threads_share_guards_and_agree():
    op = torch_operators.with_rule()
    _, dispatched = torch_situations.calls_of(op)
    kinds = [
        lambda: torch.ones(3),
        lambda: torch.ones(3, dtype=torch.float64),
        lambda: torch.ones(2, 3),
        lambda: torch.ones(3, requires_grad=True),
        lambda: torch.nn.Parameter(torch.ones(3)),
    ]
    wanted = [torch_situations.describe(dispatched(make())) for make in kinds]
    found, wrong = [], []

    def work(turn):
        contexts = [contextlib.nullcontext, torch.no_grad, torch.inference_mode]
        for i in range(200):
            index = (i + turn) % len(kinds)
            x = kinds[index]()
            with contexts[(i // 7) % 3]():
                inside = op(x)
            outside = torch_situations.describe(op(x))
            found.append(inside)
            if outside != wanted[index]:
                wrong.append((index, outside))

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(found) == 800
