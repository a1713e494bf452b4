"""Fallbacks: for the operators of a namespace at any key, and for every operator where torch allows it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import opwright as ow  # noqa: E402
from opwright.errors import RegistrationError  # noqa: E402
from opwright.keys import DISPATCH_KEYS  # noqa: E402

GENERIC = "TESTING_ONLY_GenericMode"


def with_key(key):
    """Include a dispatch key in this thread for a block."""
    included = torch._C._dispatch_tls_local_include_set() | torch.DispatchKeySet(key)
    return torch._C._ForceDispatchKeyGuard(included, torch._C._dispatch_tls_local_exclude_set())


@pytest.fixture
def lib():
    with ow.Library("fall", "FRAGMENT") as lib:
        for name in ("one", "two"):
            lib.define(f"{name}(Tensor x, int k=1) -> Tensor")
            lib.impl(name, lambda x, k: x + k, "CPU")
        yield lib


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_row_63_a_global_fallback_catches_every_operator():
    seen = []

    def fallback(op, *args, **kwargs):
        seen.append((op, args, kwargs))
        return args[0]

    x, y = torch.ones(1), torch.ones(1)
    with ow.Library("_", "IMPL") as lib:
        lib.fallback(fallback, GENERIC)
        with with_key(GENERIC):
            torch.ops.aten.add.Tensor(x, y, alpha=2)
            assert seen == [(torch.ops.aten.add.Tensor, (x, y), {"alpha": 2})]
    with pytest.raises(RuntimeError), with_key(GENERIC):
        torch.add(x, y)
    assert len(seen) == 1


def test_row_63_with_the_keyset_it_redispatches(lib):
    seen = []

    def fallback(keyset, op, *args, **kwargs):
        seen.append(op)
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

    lib.define("negated(Tensor x) -> Tensor")
    lib.impl("negated", torch.neg, "CPU")
    with ow.Library("_", "IMPL") as everywhere:
        everywhere.fallback(fallback, GENERIC, with_keyset=True)
        x = torch.ones(1)
        with with_key(GENERIC):
            ours, theirs = ow.ops.fall.negated(x), torch.ops.fall.negated(x)
    assert ours == theirs == -1
    assert seen == [torch.ops.fall.negated.default, torch.ops.aten.neg.default] * 2


def test_row_63_fallthrough_is_a_fallback():
    x = torch.ones(1)
    with ow.Library("_", "IMPL") as lib:
        lib.fallback(ow.fallthrough_kernel, GENERIC)
        with with_key(GENERIC):
            y = torch.neg(x)
    assert y == -1


def test_autocast_for_the_operators_of_a_namespace(lib):
    seen = []

    def fallback(op, *args, **kwargs):
        seen.append(op)
        return op(args[0] + 10, *args[1:], **kwargs)

    handle = lib.fallback(fallback, "Autocast")
    x = torch.zeros(1)
    assert torch.ops.fall.one(x) == ow.ops.fall.one(x) == 1
    with autocast():
        assert torch.ops.fall.one(x) == ow.ops.fall.one(x) == 11
        assert torch.ops.fall.two(x, 5) == ow.ops.fall.two(x, k=5) == 15
        assert torch.sin(x) == 0
    assert seen == [torch.ops.fall.one.default] * 2 + [torch.ops.fall.two.default] * 2
    handle.destroy()
    with autocast():
        assert torch.ops.fall.one(x) == ow.ops.fall.one(x) == 1


def test_an_operator_that_is_defined_later_has_the_fallback_too(lib):
    lib.fallback(lambda op, *args: op(*args) * 100, "AutocastCPU")
    lib.define("later(Tensor x) -> Tensor")
    lib.impl("later", lambda x: x + 1, "CPU")
    with autocast():
        assert torch.ops.fall.later(torch.zeros(1)) == ow.ops.fall.later(torch.zeros(1)) == 100


def test_what_an_operator_has_goes_before_the_fallback(lib):
    x = torch.zeros(1)
    lib.fallback(lambda op, *args: args[0] - 1, "Autocast")
    rule = ow.register_autocast("fall::one", "cpu", torch.bfloat16)
    kernel = lib.impl("two", lambda x, k: x + 7, "AutocastCPU")
    with autocast():
        assert torch.ops.fall.one(x) == 1
        assert torch.ops.fall.one(x).dtype == torch.bfloat16
        assert torch.ops.fall.two(x) == 7
        rule.destroy()
        kernel.destroy()
        assert torch.ops.fall.one(x) == -1
        assert torch.ops.fall.two(x) == -1


def test_newer_fallbacks_cover_older_ones(lib):
    x = torch.zeros(1)
    with autocast():
        one = lib.fallback(lambda op, *args: args[0] + 100, "Autocast")
        two = lib.fallback(lambda op, *args: args[0] + 200, "Autocast")
        assert torch.ops.fall.one(x) == 200
        one.destroy()
        assert torch.ops.fall.one(x) == 200
        two.destroy()
        assert torch.ops.fall.one(x) == 1


def test_autocast_for_every_operator():
    x = torch.zeros(1)
    with ow.Library("_", "IMPL") as lib:
        lib.fallback(lambda op, *args, **kwargs: op(*args, **kwargs) + 1, "Autocast")
        with autocast():
            assert torch.ops.aten.sin(x) == 1
            assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.bfloat16
    with autocast():
        assert torch.sin(x) == 0


def test_a_namespace_of_torch():
    x = torch.zeros(1)
    held = torch.library.Library("fall_held", "FRAGMENT")
    held.define("op(Tensor x) -> Tensor")
    held.impl("op", lambda x: x + 1, "CPU")
    with ow.Library("fall_held", "IMPL") as lib:
        lib.fallback(lambda op, *args: op(*args) * 2, "AutocastCPU")
        with autocast():
            assert torch.ops.fall_held.op(x) == 2
            assert torch.sin(x) == 0
    with autocast():
        assert torch.ops.fall_held.op(x) == 1
    held._destroy()


def test_a_device_without_a_kernel(lib):
    lib.define("bare(Tensor x, *, int k=3) -> Tensor")
    lib.fallback(lambda op, *args, **kwargs: args[0] + 40, "CPU")
    x = torch.zeros(1)
    assert torch.ops.fall.bare(x) == ow.ops.fall.bare(x) == 40
    assert torch.ops.fall.one(x) == ow.ops.fall.one(x) == 1


def test_a_key_is_needed(lib):
    with pytest.raises(RuntimeError) as caught:
        lib.fallback(lambda op, *args: None)
    text = "<Library FRAGMENT fall>.fallback needs a dispatch key\n  expected: such as 'CPU'"
    assert str(caught.value) == text
    with pytest.raises(TypeError, match="a fallback must be a function"):
        lib.fallback(3, "CPU")
    parse = torch._C._parse_dispatch_key
    unknown = next(key for key in sorted(DISPATCH_KEYS) if key != "Autocast" and parse(key) is None)
    for library in (lib, ow.Library("_", "IMPL")):
        with pytest.raises(RegistrationError) as caught:
            library.fallback(lambda op, *args: None, unknown)
        assert str(caught.value) == f"torch {torch.__version__} has no dispatch key {unknown}"


def test_a_kernel_that_torch_holds_for_every_operator_is_not_replaced():
    zeros = torch.zeros(1)
    seen = []

    def fallback(op, *args, **kwargs):
        seen.append(op)
        return zeros

    held = torch.library.Library("fall_zero", "FRAGMENT")
    held.define("op(Tensor x) -> Tensor")
    with ow.Library("_", "IMPL") as lib:
        lib.fallback(fallback, "ZeroTensor")
        assert torch.ops.fall_zero.op(torch._efficientzerotensor(1)) is zeros
    assert seen == [torch.ops.fall_zero.op.default]
    assert torch.equal(torch._efficientzerotensor(1) * torch.ones(1), zeros)
    held._destroy()
