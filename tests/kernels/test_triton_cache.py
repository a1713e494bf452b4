"""A launch from the cache does what a plain launch does: the same compiled kernel, grid, stream, arguments.

Triton compiles for a GPU that is not there; what would reach it is written down and compared.
"""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs the package triton")

import opwright as ow  # noqa: E402
import triton_kernels as kernels  # noqa: E402
import triton_stub  # noqa: E402
from opwright.frameworks.torch import framework as torch_framework  # noqa: E402
from opwright.frameworks.torch import triton as torch_triton  # noqa: E402
from opwright.kernels import triton_cache, triton_code  # noqa: E402
from triton_stub import captured  # noqa: E402

pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return str(tmp_path_factory.mktemp("triton"))


@pytest.fixture
def gpu(monkeypatch, compiled):
    """A GPU that is not there, on which tensors of the CPU are."""
    monkeypatch.setenv("TRITON_CACHE_DIR", compiled)
    with triton_stub.gpu() as driver:
        yield driver


@pytest.fixture
def fresh():
    """Return a function that wraps a kernel anew, with an empty cache."""

    def wrap(kernel):
        vars(kernel).pop("_opwright_launcher", None)
        return ow.wrap_triton(kernel)

    return wrap


def same(kernel, launcher, grid, *args, times=2, **kwargs):
    """Launch both ways several times; what reaches the device must be the same each time."""
    for _ in range(times):
        cached, kept = captured(lambda: launcher[grid](*args, **kwargs))
        plain, compiled = captured(lambda: kernel[grid](*args, **kwargs))
        # A tuner tries its configs out the first time; the last launch is the real one.
        assert cached[-1:] == plain[-1:]
        assert kept is compiled
    return plain[-1]


def slow_launches(monkeypatch):
    """Return a list that grows with every launch that does not come from the cache."""
    seen = []
    launch = torch_triton.launch
    monkeypatch.setattr(
        torch_framework.TorchFramework,
        "launching",
        lambda _, before=torch_framework.TorchFramework.launching: _watched(before(_), launch, seen),
    )
    return seen


def _watched(launching, launch, seen):
    def watched(*args):
        seen.append(args)
        return launch(*args)

    launching.launch = watched
    return launching


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def test_the_second_launch_comes_from_the_cache(gpu, fresh, monkeypatch):
    seen = slow_launches(monkeypatch)
    x, out = torch.randn(100), torch.empty(100)
    launcher = fresh(kernels.add)
    for _ in range(3):
        launcher[(4,)](x, x, out, 100, 32)
    assert len(seen) == 1


def test_alignments_dtypes_and_sizes(gpu, fresh):
    launcher = fresh(kernels.add)
    memory = torch.zeros(4096)
    arrays = [memory[4:104], memory[1:101], memory[8:109].half()[1:], memory[:0]]
    for x, y, out in itertools.product(arrays, repeat=3):
        for n in (0, 1, 16, 100, 2**31 - 1, 2**31, 2**40, -(2**31), -1):
            if n == 100 or (x is arrays[0] and x is y and out is x):
                same(kernels.add, launcher, (4,), x, y, out, n, 32, times=1)
    same(kernels.add, launcher, (4,), arrays[0], arrays[1], arrays[2], 100, 32, times=3)


def test_every_pair_of_values_follows_every_other(gpu, fresh):
    """What was launched before must not decide what is launched now."""
    launcher = fresh(kernels.scale)
    x, out = torch.randn(64), torch.empty(64)
    cases = [
        ((x, out, 64, 2.0, None), {}),
        ((x, out, 64, 2.0, x), {}),
        ((x, out, 1, 2.0, None), {}),
        ((x, out, 64, 2, None), {}),
        ((x, out, 64, 1, None), {}),
        ((x, out, 64, True, None), {}),
        ((x, out, 64, 2.0, None, 32), {}),
        ((x, out, 64, 2.0, None), {"SQUARE": True}),
        ((x, out, 64, 2.0, None), {"SQUARE": 1}),
        ((x, out, 64, 2.0, None), {"num_warps": 8}),
        ((x, out, 64, 2.0, None), {"num_warps": 2, "num_stages": 1}),
        ((x[1:], out[1:], 63, 2.0, x[1:]), {"BLOCK": 128}),
        ((x.half(), out, 64, 2.0, None), {}),
    ]
    for first, second in itertools.permutations(cases, 2):
        same(kernels.scale, launcher, (2,), *first[0], times=1, **first[1])
        same(kernels.scale, launcher, (2,), *second[0], times=1, **second[1])


def test_many_integers(gpu, fresh, monkeypatch):
    monkeypatch.setattr(triton_code, "RECENT", 5)
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.many)
    cases = [(1, 2, 3, 4), (16, 2, 3, 4), (1, 2, 3, 2**31), (1, 2, 3, -5), (1, 2**40, 3, 4), (17, 32, 1, 1)]
    for first, second in itertools.permutations(cases, 2):
        for numbers in (first, second, first):
            same(kernels.many, launcher, (2,), x, out, *numbers, 32, times=1)
            same(kernels.many, launcher, (2,), x[1:], out, *numbers, 32, times=1)


def test_positional_and_keyword_launches_share_an_entry(gpu, fresh, monkeypatch):
    seen = slow_launches(monkeypatch)
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.add)
    launcher[(2,)](x, x, out, 64, 32)
    launcher[(2,)](out=out, n=64, x=x, y=x, BLOCK=32)
    launcher.run(x, x, out, 64, grid=(2,), warmup=False, BLOCK=32)
    assert len(seen) == 1
    same(kernels.add, launcher, (2,), out=out, n=64, x=x, y=x, BLOCK=32)


def test_grids(gpu, fresh):
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.add)
    for grid in ((2,), (2, 3), (2, 3, 4), [5], [5, 6], blocks, lambda meta: [meta["n"] // 32, 1]):
        same(kernels.add, launcher, grid, x, x, out, 64, 32)
    seen = []
    launcher[lambda meta: seen.append(meta) or (1,)](x, x, out, 64, 32)
    kernels.add[lambda meta: seen.append(meta) or (1,)](x, x, out, 64, 32)
    assert list(seen[0]) == list(seen[1]) == ["x", "y", "out", "n", "BLOCK"]
    assert seen[0]["x"] is x


@pytest.mark.parametrize("name", ["tuned", "computed", "tuned_outside", "tuned_inside", "with_warps"])
def test_tuned_and_computed_kernels(gpu, fresh, name):
    kernel = getattr(kernels, name)
    launcher = fresh(kernel)
    more = {"BLOCK": 32} if name == "with_warps" else {}
    for x, n in itertools.product((torch.randn(4096), torch.randn(4096).half()), (64, 50, 256, 1, 64)):
        same(kernel, launcher, blocks, x, torch.empty_like(x), n, times=3, **more)


@pytest.mark.parametrize("name", ["tuned", "tuned_outside", "tuned_inside"])
def test_a_config_that_the_tuner_changes_is_taken_up(gpu, fresh, name):
    kernel = getattr(kernels, name)
    launcher = fresh(kernel)
    tuner = launcher.layers.tuner
    x, out = torch.randn(64), torch.empty(64)
    before = same(kernel, launcher, blocks, x, out, 64)
    for key, config in list(tuner.cache.items()):
        tuner.cache[key] = next(one for one in tuner.configs if one is not config)
    assert same(kernel, launcher, blocks, x, out, 64) != before
    tuner.cache.clear()
    assert same(kernel, launcher, blocks, x, out, 64) == before


def test_streams_and_devices(gpu, fresh, monkeypatch):
    seen = slow_launches(monkeypatch)
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.add)
    for stream in (7, 8, 0, 7):
        gpu.stream = stream
        assert same(kernels.add, launcher, (2,), x, x, out, 64, 32)[1] == stream
    assert len(seen) == 1
    gpu.device = 3  # the tensors are on another one
    same(kernels.add, launcher, (2,), x, x, out, 64, 32)
    assert len(seen) == 3


def test_hooks_are_called(gpu, fresh, monkeypatch):
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.add)
    same(kernels.add, launcher, (2,), x, x, out, 64, 32)
    calls = []
    kernels.add.add_pre_run_hook(lambda *args, **kwargs: calls.append("before"))
    try:
        launcher[(2,)](x, x, out, 64, 32)
    finally:
        kernels.add.pre_run_hooks.clear()
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    if hasattr(enter, "add"):
        enter.add(note := lambda _: calls.append("enter"))
        launcher[(2,)](x, x, out, 64, 32)
        enter.remove(note)
        leave.add(note)
        launcher[(2,)](x, x, out, 64, 32)
        leave.remove(note)
    monkeypatch.setattr(runtime, "launch_enter_hook", lambda _: calls.append("own"))
    launcher[(2,)](x, x, out, 64, 32)
    assert calls == ["before", *["enter"] * 2 * hasattr(enter, "add"), "own"]


def test_a_hook_that_was_set_before_the_first_launch(gpu, fresh, monkeypatch):
    calls = []
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", calls.append)
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.add)
    for _ in range(3):
        launcher[(2,)](x, x, out, 64, 32)
    assert len(calls) == 3


def test_debug_settings_are_part_of_the_key(gpu, fresh, monkeypatch):
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.add)
    before = same(kernels.add, launcher, (2,), x, x, out, 64, 32)
    monkeypatch.setattr(triton.knobs.runtime, "debug", True)
    kept = same(kernels.add, launcher, (2,), x, x, out, 64, 32)
    monkeypatch.setattr(triton.knobs.runtime, "debug", False)
    assert same(kernels.add, launcher, (2,), x, x, out, 64, 32) == before
    assert kept[0] == before[0]


def test_a_changed_global_raises_as_in_a_plain_launch(gpu, fresh, monkeypatch):
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.with_global)
    same(kernels.with_global, launcher, (2,), x, out, 64, 32)
    monkeypatch.setattr(kernels, "FACTOR", triton.language.constexpr(5))
    for launch in (kernels.with_global[(2,)], launcher[(2,)]):
        with pytest.raises(RuntimeError, match="Global variable FACTOR has changed since we compiled"):
            launch(x, out, 64, 32)


def test_wrong_arguments_raise_what_triton_raises(gpu, fresh):
    x, out = torch.randn(64), torch.empty(64)
    for kernel, args, kwargs in [
        (kernels.add, (x, x, out), {}),
        (kernels.add, (x, x, out, 64, 32, 5), {}),
        (kernels.add, (x, x, out, 64), {"block": 32}),
        (kernels.add, (x, x, out, 64, 32), {"no_such_option": 32}),
        (kernels.tuned, (x, out, 64), {"BLOCK": 32}),
        (kernels.computed, (x, out, 64, 32), {}),
    ]:
        launcher = fresh(kernel)
        with pytest.raises((TypeError, KeyError, ValueError)) as plain:
            kernel[blocks](*args, **kwargs)
        with pytest.raises(type(plain.value)):
            launcher[blocks](*args, **kwargs)


def test_what_is_not_understood_is_launched_plainly(gpu, fresh, monkeypatch):
    seen = slow_launches(monkeypatch)
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.cast)
    for kind in (triton.language.float16, triton.language.float32):
        same(kernels.cast, launcher, (2,), x, out, 64, kind, 32)
    assert len(seen) == 2
    launcher = fresh(kernels.add)
    for _ in range(2):
        same(kernels.add, launcher, (2,), x, x, out, 64, triton.language.constexpr(32), times=1)
    assert len(seen) == 4
    same(kernels.add, launcher, (2,), x, x, torch.nn.Parameter(out), 64, 32)


def test_launchers_that_need_scratch_memory_are_called_in_full(gpu, fresh, monkeypatch):
    monkeypatch.setattr(triton_stub.CudaLauncher, "scratch", 128)
    x, out = torch.randn(64), torch.empty(64)
    same(kernels.add, fresh(kernels.add), (2,), x, x, out, 64, 16, times=3)


def test_another_release_or_backend_of_triton_means_plain_launches(gpu, fresh, monkeypatch):
    seen = slow_launches(monkeypatch)
    x, out = torch.randn(64), torch.empty(64)
    monkeypatch.setattr(triton_cache, "KNOWN", ((1, 0), (2, 0)))
    triton_cache.runtime.cache_clear()
    same(kernels.add, fresh(kernels.add), (2,), x, x, out, 64, 32, times=3)
    assert len(seen) == 3


def test_the_cache_is_bounded(gpu, fresh, monkeypatch):
    monkeypatch.setattr(triton_cache, "LIMIT", 4)
    x, out = torch.randn(64), torch.empty(64)
    launcher = fresh(kernels.tuned)
    for n in range(40, 60):
        same(kernels.tuned, launcher, blocks, x, out, n, times=1)


def test_integers_by_size():
    assert [triton_code.wide(n) for n in (1, -(2**31), 2**31, 2**63, -(2**40))] == [0, 0, 1, 2, 1]


def test_names_of_generated_code_are_beside_those_of_the_kernel():
    assert triton_code.prefix_beside(["x", "_ow_grid"]) == "_ow__"
