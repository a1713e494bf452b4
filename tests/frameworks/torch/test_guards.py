"""Which states and tensors a guard may be made of, and what a guard that is missing or wrong leads to."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch.nn import Parameter

import opwright as ow
import torch_operators
import torch_situations
from opwright.frameworks.torch import entries, fast, guards


def test_this_torch_has_working_guards():
    assert guards.UNAVAILABLE is None


def test_plain_tensors():
    for tensor in (
        torch.ones(3),
        torch.ones(()),
        torch.ones(0),
        torch.ones(3).expand(2, 3),
        Parameter(torch.ones(1)),
    ):
        assert guards.is_plain(tensor)
    with torch.inference_mode():
        inside = torch.ones(3)
        assert guards.is_plain(inside)
    assert guards.is_plain(inside)


@pytest.mark.parametrize(
    "name",
    ["conjugated", "negated", "zero tensor", "sparse", "sparse rows", "mkldnn", "quantized", "meta",
     "subclass", "disabled subclass"],
)  # fmt: skip
def test_tensors_that_are_not_plain(name):
    seen = []
    torch_situations.observed(torch_situations.SITUATIONS[name], seen.append)
    assert not guards.is_plain(seen[0])


def test_values_that_are_no_tensors_are_not_plain():
    assert not any(map(guards.is_plain, (None, 1, [torch.ones(2)])))


def test_wrappers_are_not_plain():
    seen = []

    def look(x):
        seen.append(guards.is_plain(x))
        return x.sum()

    torch.func.grad(look)(torch.ones(3))
    torch.vmap(look)(torch.ones(3, 3))
    torch.func.functionalize(look)(torch.ones(3))
    assert seen == [False] * 3


def known(autocast=False):
    return guards.thread_is_known(autocast=autocast)


def test_states_that_are_known():
    assert known()
    with torch.no_grad():
        assert known()
    with torch.inference_mode():
        assert known()
    with torch.autocast("cpu"):
        assert not known()
        assert known(autocast=True)
        with torch.inference_mode():
            assert known(autocast=True)
    found = []
    thread = threading.Thread(target=lambda: found.append(known()))
    thread.start()
    thread.join()
    assert found == [True]


def excluding(key):
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))


def test_a_key_that_plain_tensors_do_not_have_may_be_excluded():
    """Threads that run backwards on a GPU exclude the key of named tensors, in some releases of torch."""
    keys = torch._C.DispatchKey
    with excluding(keys.Conjugate):
        assert known()
    for key in (keys.AutogradCPU, keys.CPU, keys.BackendSelect):
        with excluding(key):
            assert not known(autocast=True)
    assert known()


@pytest.mark.cuda
def test_an_operator_in_a_backward_on_a_gpu_is_called_directly(ns, monkeypatch):
    @ow.custom_op(f"{ns}::times", mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor", flavour="torch")
    def times(x, y):
        return x * y

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @times.register_autograd(setup_context=setup_context)
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return times(grad, y), times(grad, x)

    missed, calls = entries.Entries.miss, []

    def miss(self, *values):
        calls.append(values)
        return missed(self, *values)

    monkeypatch.setattr(entries.Entries, "miss", miss)
    x, y = (torch.ones(3, device="cuda", requires_grad=True) for _ in range(2))
    for _ in range(5):
        calls.clear()
        torch.autograd.grad(times(x, y).sum(), (x, y))
    assert calls == []


def test_states_that_are_not_known():
    seen = []

    def look(x):
        seen.append(known(autocast=True))
        return x.sum()

    torch.func.grad(look)(torch.ones(3))
    torch.vmap(look)(torch.ones(3, 3))
    torch.func.functionalize(look)(torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(look, torch.ones(3), check_trace=False)
    with torch._C._AutoDispatchBelowAutograd():
        look(torch.ones(3))
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)):
        look(torch.ones(3))
    assert seen == [False] * 6


def test_a_guard_takes_like_tensors_of_any_size_and_stride():
    check = guards.make_check([torch.ones(2), torch.ones(2, 2)])
    assert check(torch.ones(7), torch.ones(5, 6).t())
    assert check(torch.ones(14)[::2], torch.ones(0, 0))
    assert not check(torch.ones(7), torch.ones(5))
    assert not check(torch.ones(7), torch.ones(5, 6).double())
    assert not check(torch.ones(7), None)


def test_a_guard_of_one_tensor_for_two_takes_that_only():
    x, y = torch.ones(2), torch.ones(2)
    check = guards.make_check([x, y, x])
    assert check(x, y, x)
    assert check(y, x, y)
    assert not check(x, y, y)
    assert not check(x, x, x)
    assert not check(x, torch.ones(2), torch.ones(2))
    assert not guards.make_check([x, y, torch.ones(2)])(x, y, x)


class Always:
    """A guard that takes everything."""

    def __init__(self, *tensors, **sizes):
        self.check = lambda *values: True


class Never:
    """A guard that takes nothing."""

    def __init__(self, *tensors, **sizes):
        self.check = lambda *values: False


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Always, "torch's tensor guards take another dtype for a plain tensor"),
        (Never, "torch's tensor guards refuse a tensor like the one they were made of"),
    ],
)
def test_a_wrong_guard_is_found(monkeypatch, wrong, reason):
    monkeypatch.setattr(guards, "PROBES", guards.PROBES._replace(tensor_guards=wrong))
    assert guards._self_test() == reason


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (lambda: torch.is_autocast_enabled("cpu"), "autocast"),
        (torch._C._len_torch_dispatch_stack, "dispatch modes"),
    ],
)
def test_a_guard_that_does_not_see_a_thread_state_is_found(monkeypatch, state, what):
    right = guards.PROBES.tensor_guards

    class Blind:
        def __init__(self, *tensors, **sizes):
            inner = right(*tensors, **sizes).check
            self.check = lambda *values: inner(*values) or state()

    monkeypatch.setattr(guards, "PROBES", guards.PROBES._replace(tensor_guards=Blind))
    assert guards._self_test() == f"torch's tensor guards do not see {what}"


def test_a_missing_guard_is_found(monkeypatch):
    def missing():
        raise AttributeError("module 'torch._C' has no attribute '_dynamo'")

    for name in ("PROBES", "_KNOWN", "_AUTOCAST", "_PLAIN"):
        monkeypatch.setattr(guards, name, getattr(guards, name))
    monkeypatch.setattr(guards, "_probe", missing)
    assert guards._start() == "this torch lacks a guard: module 'torch._C' has no attribute '_dynamo'"


def test_without_guards_every_call_takes_the_dispatcher(monkeypatch):
    monkeypatch.setattr(guards, "UNAVAILABLE", "for a test")
    path = torch_operators.Path()
    op = torch_operators.with_rule(path)
    assert fast.reason_against(op._record) == "for a test"
    assert path.of(lambda: [op(torch.ones(3)) for _ in range(4)]) == ["dispatcher"] * 4
    x = torch.ones(3, requires_grad=True)
    op(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * (torch.sin(x) + x * torch.cos(x)))
