"""Fakes written with torch, for other frameworks' arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import opwright as ow
from opwright.fake_context import entered_ctx
from opwright.frameworks.torch.fake_tensors import run_fake
from opwright.rules.fake import FakeRule
from opwright.testing import fake as fake_of

CONSTANT = torch.ones(3)


def rule(fn):
    return FakeRule(fn, "torch", "here:1")


def test_arrays_lists_and_everything_else():
    seen = []

    def fake(xs, k, *, y):
        seen.append(([x.device.type for x in xs], xs[0].dtype, k, y))
        return [torch.cat(xs), None, 3], torch.empty_like(xs[0])

    x = ow.FakeArray((2, 3), "float16")
    out = run_fake(rule(fake), [[x, x], 2.0], {"y": None})
    assert repr(out) == ("([FakeArray((4, 3), float16, cpu), None, 3], FakeArray((2, 3), float16, cpu))")
    assert seen == [(["cpu", "cpu"], torch.float16, 2.0, None)]


@pytest.mark.parametrize(
    ("device", "given", "returned"),
    [
        ("cpu", "cpu", "cpu"),
        ("cuda:1", "cuda:1", "cuda:1"),
        ("meta", "meta", "meta"),
        ("tpu", "meta", "meta"),
    ],
)
def test_the_device_is_that_of_what_the_fake_stands_for(device, given, returned):
    seen = []

    def fake(x):
        seen.append(str(x.device))
        return x + torch.arange(3, device=x.device)

    out = run_fake(rule(fake), [ow.FakeArray((2, 3), "float32", device)], {})
    assert repr(out) == f"FakeArray((2, 3), float32, {returned})"
    assert seen == [given]


def test_the_body_runs_below_autograd_as_in_torch():
    weight = torch.ones(4, requires_grad=True)
    seen = []

    def fake(x):
        seen.append((x * weight).requires_grad)
        return torch.nn.functional.interpolate(x, size=(3,), mode="nearest")

    out = run_fake(rule(fake), [ow.FakeArray((2, 0, 4), "float32", framework="numpy")], {})
    assert out.shape == (2, 0, 3)  # above autograd torch decomposes it otherwise, and raises
    assert seen == [False]


def test_a_fake_without_arrays():
    def fake(n):
        return torch.zeros(n), ow.empty((n,), dtype="int8", device="cpu")

    assert (
        repr(run_fake(rule(fake), [3], {})) == "(FakeArray((3,), float32, cpu), FakeArray((3,), int8, cpu))"
    )


def test_a_tensor_with_data_beside_a_fake_is_refused_as_torch_does_it_for_its_own_alone():
    def fake(x):
        return x * CONSTANT

    with pytest.raises(AssertionError, match="convert all Tensors to FakeTensors first"):
        run_fake(rule(fake), [ow.FakeArray((2, 3), "float32", framework="torch")], {})
    out = run_fake(rule(fake), [ow.FakeArray((2, 3), "float32", framework="jax")], {})
    assert repr(out) == "FakeArray((2, 3), float32, cpu)"


@pytest.mark.parametrize("get", [ow.get_ctx, torch.library.get_ctx])
def test_a_size_that_depends_on_data_is_the_callers_outside(get):
    def fake(x):
        found = get().new_dynamic_size(max=4)
        other = get().new_dynamic_size(min=2)
        fixed = get().new_dynamic_size()
        torch._check(fixed == 2)
        # Of three axes at most: with more, torch 2.9 asks whether the sizes are laid out channels last.
        half = x.new_empty((2 * found + 1, x.shape[0], fixed))
        rest = x.new_empty((other // 2, (found * other) % 3))
        return half, rest, x.new_empty((half.numel() * rest.numel(),))

    from opwright.fakes import FakeContext

    with entered_ctx(FakeContext()):
        half, rest, flat = run_fake(rule(fake), [ow.FakeArray((5, 3))], {})
    first = half.shape[0]
    name = str(first).removeprefix("2*").removesuffix(" + 1")
    assert first == 2 * ow.FakeArray((name,)).shape[0] + 1
    assert half.shape[1:] == (5, 2)
    assert "//2" in str(rest.shape[0])
    assert "%3" in str(rest.shape[1])
    assert flat.shape[0] == half.numel() * rest.numel()


def test_symbolic_sizes():
    with pytest.raises(ow.errors.UnsupportedError) as caught:
        run_fake(rule(torch.empty_like), [ow.FakeArray(("n", 3))], {})
    assert str(caught.value) == (
        "a fake of flavour torch runs on FakeTensors of known sizes outside torch\n"
        "  got: shape (n, 3)\n"
        "  registered at: here:1\n"
        "  to fix: write it with opwright.empty_like and opwright.empty, for any framework"
    )


def test_what_the_testing_helper_gives_for_tensors_is_what_torch_computes():
    """The lines that a finding prints: the fake looks at the device, and at the size that the data decide."""

    @ow.custom_op("faketensors::places", mutates_args=())
    def places(x: torch.Tensor, ys: list[torch.Tensor]) -> torch.Tensor:
        return x.nonzero()

    seen = []

    @places.register_fake
    def _(x, ys):
        seen.append((x.device.type, [y.device.type for y in ys]))
        count = torch.library.get_ctx().new_dynamic_size(max=x.numel())
        return torch.empty((count, x.dim()), dtype=torch.int64, device=x.device)

    out = fake_of(places, torch.ones(2, 3), (torch.ones(1), torch.ones(1)))
    assert str(out.shape[1]) == "2"
    assert out.framework == "torch"
    assert seen == [("cpu", ["cpu", "cpu"])]
    on_meta = fake_of(places, torch.ones(2, device="meta"), [])
    assert on_meta.device == "meta"
    assert fake_of(places, np.ones(2), []).device == "cpu"


def test_under_jax_the_device_is_that_where_the_kernel_will_run():
    jax = pytest.importorskip("jax")
    seen = []

    @ow.custom_op("faketensors::shifted", mutates_args=())
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[-1], device=x.device)

    @shifted.register_fake
    def _(x):
        seen.append(x.device.type)
        return x + torch.arange(x.shape[-1], device=x.device)

    out = jax.jit(shifted)(jax.numpy.ones((2, 3), "float32"))
    assert out.tolist() == [[1.0, 2.0, 3.0]] * 2
    assert set(seen) == {"cuda" if jax.default_backend() == "gpu" else "cpu"}
