"""CuPy arrays: kernels of their own flavour, of torch's and Triton's, gradients, streams, devices."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
cupy = pytest.importorskip("cupy", reason="needs cupy")

import opwright as ow  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")]


@pytest.fixture
def square(ns):
    source = """
    extern "C" __global__ void square(const float* x, float* out, int n) {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) out[i] = x[i] * x[i];
    }
    """
    kernel = cupy.RawKernel(source, "square")

    @ow.custom_op(f"{ns}::square", mutates_args=())
    def square(x: cupy.ndarray) -> cupy.ndarray:
        out = cupy.empty_like(x)
        kernel(((x.size + 127) // 128,), (128,), (x, out, x.size))
        return out

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @square.register_autograd(setup_context=setup_context, flavour="array_api")
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad

    @square.register_fake(flavour="array_api")
    def fake(x):
        return ow.empty_like(x)

    return square


def sample(*shape, dtype="float32"):
    return cupy.random.default_rng(0).standard_normal(shape, dtype="float64").astype(dtype)


def test_a_raw_kernel_with_its_gradient(square):
    x = sample(1000)
    for _ in range(5):
        assert (square(x) == x * x).all()
    out, pull = ow.vjp(square, x)
    assert isinstance(out, cupy.ndarray)
    cupy.testing.assert_allclose(pull(cupy.ones_like(x))[0], 2 * x)
    _, tangent = ow.jvp(square, (x,), (cupy.ones_like(x),))
    cupy.testing.assert_allclose(tangent, 2 * x)
    with pytest.warns(UserWarning, match="has no vmap rule"):
        batched = ow.vmap(square)(cupy.stack([x, 2 * x]))
    cupy.testing.assert_allclose(batched, cupy.stack([x * x, 4 * x * x]), rtol=1e-6)


def test_an_elementwise_kernel(ns):
    kernel = cupy.ElementwiseKernel("T x, T k", "T out", "out = x * k", "scaled")

    @ow.custom_op(f"{ns}::scaled", mutates_args=())
    def scaled(x: cupy.ndarray, k: float = 2.0) -> cupy.ndarray:
        return kernel(x, k)

    x = sample(10)
    cupy.testing.assert_allclose(scaled(x), 2 * x)
    cupy.testing.assert_allclose(scaled(x, 3), 3 * x)


def test_wrong_arguments(square):
    import numpy as np

    with pytest.raises(TypeError, match="2 frameworks"):
        ow.custom_op("wrong::pair", lambda x, y: x, mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor")(
            sample(3), np.ones(3)
        )
    with pytest.raises(NotImplementedError, match="no kernel for numpy arrays on cpu"):
        square(np.ones(3, np.float32))


def test_outputs_may_not_alias(ns):
    @ow.custom_op(f"{ns}::same", mutates_args=())
    def same(x: cupy.ndarray) -> cupy.ndarray:
        return x[1:]

    with pytest.raises(RuntimeError, match="may not alias"):
        same(sample(4))


def test_mutation_of_arrays_whose_elements_share_memory(ns):
    @ow.custom_op(f"{ns}::fill", mutates_args=("x",))
    def fill(x: cupy.ndarray) -> None:
        x[...] = 7

    x = sample(4, 4)
    fill(x[:, ::2])
    assert (x[:, ::2] == 7).all()
    with pytest.raises(TypeError, match="which is read-only"):
        fill(cupy.broadcast_to(cupy.zeros(1), (4,)))


def test_torch_kernels_on_cupy_arrays_and_the_reverse(square, ns):

    @ow.custom_op(f"{ns}::triple", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return x * 3

    @ow.custom_op(f"{ns}::negate_", mutates_args=("x",))
    def negate_(x: torch.Tensor) -> None:
        x.neg_()

    x = sample(1000)
    out = triple(x)
    assert isinstance(out, cupy.ndarray)
    cupy.testing.assert_allclose(out, 3 * x)
    y = x.copy()
    negate_(y)
    cupy.testing.assert_allclose(y, -x)
    tensor = torch.randn(1000, device="cuda", requires_grad=True)
    result = square(tensor)
    torch.testing.assert_close(result, tensor * tensor)
    result.sum().backward()
    torch.testing.assert_close(tensor.grad, 2 * tensor)
    compiled = torch.compile(lambda t: square(t) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(tensor), tensor * tensor + 1)


def test_views_and_conjugated_tensors(ns):
    @ow.custom_op(f"{ns}::same", mutates_args=())
    def same(x: cupy.ndarray) -> cupy.ndarray:
        return x + 0

    x = torch.randn(8, dtype=torch.complex64, device="cuda")
    torch.testing.assert_close(same(x), x)
    torch.testing.assert_close(same(x[::2]), x[::2])
    torch.testing.assert_close(same(x.conj()), x.conj())
    torch.testing.assert_close(same(x.conj().imag), x.conj().imag)
    assert same(x[:0]).shape == (0,)


def test_a_cupy_kernel_writes_to_a_tensor(ns):

    @ow.custom_op(f"{ns}::fill", mutates_args=("out",))
    def fill(x: cupy.ndarray, out: cupy.ndarray) -> None:
        out[...] = x * 2

    x, out = torch.randn(8, device="cuda"), torch.zeros(8, device="cuda")
    version = out._version
    fill(x, out)
    torch.testing.assert_close(out, 2 * x)
    assert out._version > version


def test_streams_are_handed_over(ns):
    seen = []

    @ow.custom_op(f"{ns}::torch_side", mutates_args=())
    def torch_side(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.cuda.current_stream().cuda_stream)
        return x * 3

    @ow.custom_op(f"{ns}::cupy_side", mutates_args=())
    def cupy_side(x: cupy.ndarray) -> cupy.ndarray:
        seen.append(cupy.cuda.get_current_stream().ptr)
        return x * 3

    x = sample(1 << 22)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        torch.cuda._sleep(1)
        y = x * 5
        out = torch_side(y)
        last = out + 1
    stream.synchronize()
    assert seen == [stream.ptr]
    cupy.testing.assert_allclose(last, x * 15 + 1, rtol=1e-5, atol=1e-5)
    seen.clear()
    side = torch.cuda.Stream()
    tensor = torch.randn(1 << 22, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        t = tensor * 5
        result = cupy_side(t) + 1
    side.synchronize()
    assert seen == [side.cuda_stream]
    torch.testing.assert_close(result, tensor * 15 + 1)


def test_triton_kernels_on_cupy_arrays(ns):
    triton = pytest.importorskip("triton", reason="needs triton")
    import triton_kernels as kernels

    @ow.triton_op(f"{ns}::add", mutates_args=())
    def add(x: ow.Array, y: ow.Array) -> ow.Array:
        out = ow.array_namespace(x).empty_like(x)
        ow.wrap_triton(kernels.add)[(triton.cdiv(x.size, 64),)](x, y, out, x.size, BLOCK=64)
        return out

    @ow.triton_op(f"{ns}::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for kernel in (kernels.tuned, kernels.computed):
            ow.wrap_triton(kernel)[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, out, out.numel())
        return out

    x, y = sample(1000), sample(1000)
    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(3):
        cupy.testing.assert_allclose(add(x, y), x + y)
        cupy.testing.assert_allclose(twice(x), 2 * x)
        with stream:
            big = cupy.ones(1 << 22, "float32")
            out = add(big * 2, big) + 1
        stream.synchronize()
        assert (out == 4).all()
    cupy.testing.assert_allclose(add(x[1:], y[1:]), x[1:] + y[1:])
    compare = ow.wrap_triton(kernels.add)
    for n in (1, 16, 999):
        out = cupy.zeros_like(x)
        compare[(16,)](x, y, out, n, 64)
        cupy.testing.assert_allclose(out[:n], (x + y)[:n])
        assert (out[n:] == 0).all()


@pytest.mark.skipif(
    cupy.cuda.runtime.getDeviceCount() < 2 if cupy.cuda.is_available() else True, reason="needs two GPUs"
)
def test_the_device_of_the_arrays_is_current(square):
    with cupy.cuda.Device(1):
        x = sample(100)
    for _ in range(4):
        out = square(x)
        assert out.device.id == 1
        assert cupy.cuda.runtime.getDevice() == 0
    with cupy.cuda.Device(1):
        assert (out == x * x).all()
