"""Compiled code on disk is not used again after a rule or a schema has changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading

import pytest
import torch
import torch.compiler.config as compiler_config
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import opwright as ow
from opwright.frameworks.torch import fingerprint

NS = "torch_fingerprint"

SCRIPT = """
import sys
import threading
import torch
import opwright as ow

factor = float(sys.argv[1])

@ow.custom_op("edited::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * 1

op.register_fake(lambda x: torch.empty_like(x))
op.register_autograd(lambda ctx, g: g * factor)

def compiled():
    x = torch.ones(2, requires_grad=True)
    torch.compile(op, fullgraph=True)(x).sum().backward()
    from torch._dynamo.utils import counters
    print(x.grad[0].item(), counters["aot_autograd"]["autograd_cache_hit"])

if sys.argv[2] == "here":
    compiled()
else:
    thread = threading.Thread(target=compiled)
    thread.start()
    thread.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "in another thread"])
@pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")),
    reason="inductor needs a C++ compiler, and there is none",
)
def test_an_edited_gradient_is_used(tmp_path, monkeypatch, where):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", raising=False)
    found = []
    for factor in (2, 3, 3):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(factor), where], capture_output=True, text=True, check=True
        )
        found.append(done.stdout.strip())
    assert found == ["2.0 0", "3.0 0", "3.0 1"]


@pytest.fixture
def op():
    @ow.custom_op(f"{NS}::op", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x + 1

    return op


def tag():
    return compiler_config.cache_key_tag


K = 2.0


def helper(g):
    return g * K


def test_the_tag_follows_the_rules(op, monkeypatch):
    before = tag()
    handle = ow.register_autograd(op, lambda ctx, g: g * 2)
    first = tag()
    assert first != before
    handle.destroy()
    assert tag() == before
    again = ow.register_autograd(op, lambda ctx, g: g * 2)
    assert tag() == first
    again.destroy()
    other = ow.register_autograd(op, lambda ctx, g: g * 3)
    assert tag() not in (first, before)
    other.destroy()


@pytest.mark.parametrize("what", ["closure", "default", "global", "helper", "nested", "dtype"])
def test_what_a_rule_is_made_of(op, monkeypatch, what):
    def register(value):
        if what == "closure":
            return ow.register_autograd(op, lambda ctx, g: g * value)
        if what == "default":
            return ow.register_autograd(op, _with_default(value))
        if what == "nested":
            return ow.register_autograd(op, lambda ctx, g: next(h * value for h in (g,)))
        if what == "dtype":
            return ow.register_autocast(op, "cpu", torch.bfloat16 if value == 2 else torch.float16)
        monkeypatch.setitem(globals(), "K", value)
        if what == "global":
            return ow.register_autograd(op, lambda ctx, g: g * K)
        return ow.register_autograd(op, lambda ctx, g: helper(g))

    tags = []
    for value in (2, 3, 2):
        handle = register(value)
        tags.append(tag())
        handle.destroy()
    assert tags[0] == tags[2] != tags[1]


def _with_default(value):
    def backward(ctx, g, factor=value):
        return g * factor

    return backward


def test_a_schema_counts_and_an_operator_that_is_gone_does_not():
    before = tag()
    library = ow.Library(NS, "FRAGMENT")
    library.define("gone(Tensor x) -> Tensor")
    first = tag()
    library.destroy()
    assert tag() == before
    library = ow.Library(NS, "FRAGMENT")
    library.define("gone(Tensor(a!) x) -> ()")
    assert tag() not in (before, first)
    library.destroy()


def test_of_two_rules_the_later_counts(op):
    def one(ctx, g):
        return g * 2

    def two(ctx, g):
        return g * 3

    found = []
    for order in ((one, two), (two, one)):
        handles = [ow.register_autograd(op, rule) for rule in order]
        found.append(tag())
        for handle in reversed(handles):
            handle.destroy()
    assert found[0] != found[1]


def test_one_rule_of_two_operators_counts_for_both(op):
    before = tag()

    def other(x: Tensor) -> Tensor:
        return x * 1

    ow.custom_op(f"{NS}::shares", other, mutates_args=())
    defined = tag()

    def rule(ctx, g):
        return g * 2

    handles = [ow.register_autograd(name, rule) for name in (op, f"{NS}::shares")]
    both = tag()
    handles[0].destroy()
    assert len({before, defined, both, tag()}) == 4
    handles[1].destroy()
    assert tag() == defined


def test_the_user_s_own_tag_stays_in_front(op):
    with compiler_config.patch(cache_key_tag="mine"):
        fingerprint.update(op._record)
        assert tag().startswith("mine;opwright:")
        handle = ow.register_autograd(op, lambda ctx, g: g)
        assert tag().startswith("mine;opwright:")
        handle.destroy()


def test_constants_without_an_order_of_their_own():
    def one(x):
        return x in {"a", "b", "c"}

    found = [fingerprint.hashlib.blake2b() for _ in range(2)]
    for digest in found:
        fingerprint._add(digest, one, set())
    assert found[0].digest() == found[1].digest()


def test_a_closure_that_is_not_assigned_yet_and_one_that_holds_itself():
    def outer():
        def rule(ctx, g):
            return rule(ctx, later)

        digest = fingerprint.hashlib.blake2b()
        fingerprint._add(digest, rule, set())
        later = 1
        return digest.digest(), later

    assert outer() == outer()


def tag_where_it_is_traced(call):
    """Return the tag of another thread after it has called an operator with a tensor without data."""
    found = []

    def run():
        with FakeTensorMode():
            call(torch.ones(2))
        found.append(tag())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("what", ["fake", "composite", "rule for the mode"])
def test_another_thread_has_the_tag_once_it_traces(op, what):
    if what == "composite":
        library = ow.Library(NS, "FRAGMENT")
        library.define("composite(Tensor x) -> Tensor")
        library.impl("composite", lambda x: x + 1, "CompositeImplicitAutograd")
        called = torch.ops.torch_fingerprint.composite
    else:
        called = torch.ops.torch_fingerprint.op
        if what == "fake":
            op.register_fake(torch.empty_like)
        else:
            op.register_torch_dispatch(FakeTensorMode, lambda mode, func, types, args, kwargs: args[0])
    assert tag_where_it_is_traced(called) == tag() != ""
    if what == "composite":
        library.destroy()
