"""Triton operators on a GPU: values, gradients, compilers, the launch cache, streams, graphs, devices."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs the package triton")

import opwright as ow  # noqa: E402
import triton_kernels as kernels  # noqa: E402

# Torch imports what it deprecates where it compiles.
pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")]


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def sample(*shape, dtype=None):
    return torch.randn(*shape, device="cuda", dtype=dtype)


@pytest.fixture
def add(ns):
    @ow.triton_op(f"{ns}::add", mutates_args=())
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        ow.wrap_triton(kernels.add)[blocks](x, y, out, out.numel(), BLOCK=64)
        return out

    @add.register_autograd
    def backward(ctx, grad):
        return add(grad, torch.zeros_like(grad)), grad

    return add


@pytest.fixture
def twice(ns):
    @ow.triton_op(f"{ns}::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for kernel in (kernels.tuned, kernels.computed, kernels.tuned_outside, kernels.tuned_inside):
            ow.wrap_triton(kernel)[blocks](x, out, out.numel())
        return out

    @twice.register_autograd
    def backward(ctx, grad):
        return twice(grad.contiguous())

    return twice


@pytest.fixture
def double_(ns):
    @ow.triton_op(f"{ns}::double_", mutates_args=("x",))
    def double_(x: torch.Tensor) -> None:
        ow.wrap_triton(kernels.in_place)[blocks](x, x.numel(), BLOCK=64)

    return double_


def test_row_109_values_and_gradients(add, twice, double_):
    x, y = sample(1000), sample(1000)
    for _ in range(5):
        assert torch.equal(add(x, y), x + y)
        assert torch.equal(twice(x), 2 * x)
    z = x.clone()
    version = z._version
    double_(z)
    assert torch.equal(z, 2 * x)
    assert z._version > version
    assert add(x[:0], y[:0]).shape == (0,)
    a = sample(50, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(twice, (a,))
    assert torch.autograd.gradgradcheck(twice, (a,))


def test_row_112_launches_from_the_cache_equal_plain_ones(add):
    """Alignments, sizes, None and dtypes change from call to call; so do constants and options."""
    memory = torch.zeros(4096, device="cuda")
    arrays = [memory[i : i + 200].copy_(torch.randn(200)) for i in (0, 1024, 2049, 3075)]
    arrays += [array.half() for array in arrays[:2]]
    launcher = ow.wrap_triton(kernels.scale)
    cases = list(
        itertools.product(arrays, (1, 16, 100, 200), (None, True), (64, 128), (True, False), (2, 3.0, 1))
    )
    torch.manual_seed(0)
    for index in torch.randperm(len(cases))[:200].tolist():
        x, n, with_bias, block, square, factor = cases[index]
        bias = x if with_bias else None
        outs = [torch.zeros_like(x) for _ in range(2)]
        options = {"num_warps": 2} if index % 3 == 0 else {}
        for launch, out in zip((kernels.scale, launcher), outs, strict=True):
            launch[(4,)](x, out, n, factor, bias, BLOCK=block, SQUARE=square, **options)
        assert torch.equal(*outs)
    assert launcher[(4,)](arrays[0], outs[0], 100, 2.0, None) is not None


def test_a_tensor_on_the_cpu_is_refused_as_by_triton():
    x = sample(64)
    launcher = ow.wrap_triton(kernels.add)
    launcher[(1,)](x, x, x, 64, 64)
    for launch in (kernels.add[(1,)], launcher[(1,)]):
        with pytest.raises(ValueError, match="cannot be accessed from Triton"):
            launch(x, torch.zeros(64), x, 64, 64)


def test_the_current_stream_is_used(add):
    x = sample(1 << 22)
    add(x, x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        y = x * 3
        z = add(y, x)
        w = z * 2
    stream.synchronize()
    assert torch.equal(w, (x * 3 + x) * 2)


def test_row_109_110_under_torch_compile(add, twice, double_, ns):
    from torch._inductor.utils import run_and_get_code

    x, y = sample(1000), sample(1000)

    def function(x, y):
        z = add(x.sin(), y)
        double_(z)
        return twice(z).cos()

    expected = (2 * (2 * (x.sin() + y))).cos()
    torch._dynamo.reset()
    out, codes = run_and_get_code(torch.compile(function, fullgraph=True), x, y)
    torch.testing.assert_close(out, expected)
    assert not [code for code in codes if f"torch.ops.{ns}" in code]
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for n in (100, 200, 333):
        torch.testing.assert_close(compiled(x[:n].clone(), y[:n].clone()), expected[:n])
    assert counter.frame_count == 1
    a = sample(100).requires_grad_()
    torch.compile(lambda a: twice(a).sum(), fullgraph=True)(a).backward()
    assert torch.equal(a.grad, torch.full_like(a, 2))


def test_under_transforms(add, twice):
    x, y = sample(8), sample(8)
    twice.register_vmap(lambda info, in_dims, a: (twice(a), in_dims[0]))
    torch.testing.assert_close(torch.func.grad(lambda a: (add(a, y) * a).sum())(x), 2 * x + y)
    torch.testing.assert_close(torch.func.jacfwd(twice)(x), 2 * torch.eye(8, device="cuda"))
    torch.testing.assert_close(
        torch.func.hessian(lambda a: (twice(a) * a).sum())(x), 4 * torch.eye(8, device="cuda")
    )
    with pytest.warns(UserWarning, match="no vmap rule"):
        batched = torch.vmap(add)(torch.stack([x, y]), torch.stack([y, y]))
    torch.testing.assert_close(batched, torch.stack([x + y, y + y]))


def test_row_110_subclasses_under_torch_compile(add):
    from torch.testing._internal.two_tensor import TwoTensor

    x, y = sample(64), sample(64)
    a, b = TwoTensor(x, y), TwoTensor(y, x)
    torch._dynamo.reset()
    out = torch.compile(lambda a, b: add(a, b) * 2, fullgraph=True)(a, b)
    torch.testing.assert_close(out.a, (x + y) * 2)
    torch.testing.assert_close(out.b, (x + y) * 2)


def test_row_112_export_and_make_fx(add, ns):
    from torch.fx.experimental.proxy_tensor import make_fx

    x, y = sample(64), sample(64)
    module = type("Module", (torch.nn.Module,), {"forward": lambda self, x, y: add(x, y)})()
    program = torch.export.export(module, (x, y))
    torch.testing.assert_close(program.module()(x, y), x + y)

    def function(x, y):
        out = torch.empty_like(x)
        ow.wrap_triton(kernels.add)[(1,)](x, y, out, 64, 64, num_warps=8)
        return out

    for mode in ("real", "fake", "symbolic"):
        traced = make_fx(function, tracing_mode=mode)(x, y)
        assert "triton_kernel_wrapper_mutation" in traced.code
        torch.testing.assert_close(traced(x, y), x + y)


def test_a_captured_operator_replays_with_new_data(add, twice):
    x, y = sample(1000), sample(1000)
    for _ in range(3):
        twice(add(x, y))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = twice(add(x, y))
    for _ in range(2):
        x.copy_(torch.randn(1000))
        y.copy_(torch.randn(1000))
        graph.replay()
        assert torch.equal(out, 2 * (x + y))


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_inputs_on_a_device_that_is_not_the_current_one(add, twice):
    for device in (1, 0, 1):
        x = torch.randn(1000, device=f"cuda:{device}")
        for _ in range(3):
            out = add(x, x)
            assert out.device == x.device
            assert torch.equal(out, 2 * x)
            assert torch.equal(twice(x), 2 * x)
            outside = torch.empty_like(x)
            ow.wrap_triton(kernels.add)[blocks](x, x, outside, 1000, BLOCK=64)
            assert torch.equal(outside, 2 * x)
        assert torch.cuda.current_device() == 0


def test_a_launch_costs_no_more_than_a_plain_one(ns):
    """Loose: what is reached is in benchmarks/triton.py."""
    import time

    @ow.triton_op(f"{ns}::cheap", mutates_args=("out",))
    def cheap(x: torch.Tensor, out: torch.Tensor) -> None:
        ow.wrap_triton(kernels.add)[(1,)](x, x, out, 64, 64)

    def plain(x, out):
        kernels.add[(1,)](x, x, out, 64, 64)

    x, out = sample(64), sample(64)
    best = {plain: float("inf"), cheap: float("inf")}
    for function in [plain, cheap] * 10:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            function(x, out)
        best[function] = min(best[function], time.perf_counter() - start)
    assert best[cheap] < best[plain]
