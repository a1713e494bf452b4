"""On a GPU: functions that take any DLPack array, numba's kernels, JAX arrays, torch's devices and graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import opwright as ow  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")]


class Exported:
    """What a compiled extension returns: an array that nobody knows and that exports DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **kwargs):
        return self.tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def arrays():
    """Return a maker of arrays for every library that is there, and what turns its arrays into tensors."""
    found = [lambda: torch.arange(8.0, device="cuda")]
    try:
        import cupy
    except ImportError:
        return found
    return [*found, lambda: cupy.arange(8, dtype="float32")]


def test_functions_that_take_any_dlpack_array(ns):
    @ow.custom_op(f"{ns}::scale", mutates_args=(), flavour="dlpack", schema="(Tensor x, float k) -> Tensor")
    def scale(x, k):
        return Exported(torch.from_dlpack(x) * k)

    ow.define(f"{ns}::scale_out", "(Tensor x, float k, Tensor(a!) out) -> ()")

    @ow.register_kernel(f"{ns}::scale_out", "cuda", flavour="dlpack")
    def scale_out(x, k, out):
        torch.from_dlpack(out).copy_(torch.from_dlpack(x) * k)

    for make in arrays():
        x = make()
        out = scale(x, 3.0)
        assert type(out) is type(x)
        assert (out == x * 3).all()
        target = make() * 0
        getattr(ow.ops, ns).scale_out(x, 2.0, target)
        assert (target == x * 2).all()


@pytest.mark.filterwarnings("ignore:The 'generic' unit for NumPy timedelta:DeprecationWarning")  # numba's own
@pytest.mark.filterwarnings("ignore:Grid size")
def test_kernels_of_numba(ns):
    pytest.importorskip("numba", reason="needs numba")
    try:
        from numba import cuda
    except (ImportError, AttributeError) as error:
        pytest.skip(f"numba.cuda cannot be imported here: {error}")
    if not cuda.is_available():
        pytest.skip("numba finds no CUDA device")

    @cuda.jit
    def double(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] * 2

    plain = torch.ones(8, device="cuda")
    try:
        double.forall(8)(plain, torch.empty_like(plain))
    except AttributeError as error:  # releases of numba.cuda that the installed NumPy is too new for
        pytest.skip(f"numba.cuda compiles no kernel with this NumPy: {error}")

    ow.define(f"{ns}::double", "(Tensor x, Tensor(a!) out) -> ()")
    ow.register_kernel(f"{ns}::double", "cuda", double)
    for make in arrays():
        x, out = make(), make() * 0
        getattr(ow.ops, ns).double(x, out)
        assert (out == x * 2).all()


def test_numpy_kernels_that_arrays_may_be_copied_for(ns):
    np = pytest.importorskip("numpy")
    ow.define(f"{ns}::add", "(Tensor x, Tensor(a!) total) -> Tensor")

    @ow.register_kernel(f"{ns}::add", ("cpu", "cuda"), copy=True)
    def add(x: np.ndarray, total: np.ndarray) -> np.ndarray:
        total += x
        return np.asfortranarray(x * 2)

    ow.register_fake(f"{ns}::add", lambda x, total: ow.empty_like(x))
    op = getattr(ow.ops, ns).add
    for make in arrays():
        for _ in range(4):
            x, total = make(), make()
            out = op(x, total)
            assert type(out) is type(x)
            assert out.device == x.device
            assert (out == x * 2).all()
            assert (total == x * 2).all()
    x, total = torch.arange(8.0, device="cuda").reshape(2, 4), torch.zeros(4, 2, device="cuda").T
    compiled = torch.compile(lambda x, total: op(x + 1, total) * 2, fullgraph=True, backend="aot_eager")
    for call in (op, compiled):
        total.zero_()
        out = call(x, total)
        plus = 0 if call is op else 1
        assert out.is_cuda
        assert torch.equal(out, (x + plus) * (2 + 2 * plus))
        assert torch.equal(total, x + plus)


def test_jax_arrays_on_torch_and_triton_kernels(ns):
    jax = pytest.importorskip("jax", reason="needs jax")
    triton = pytest.importorskip("triton", reason="needs triton")
    if jax.default_backend() != "gpu":
        pytest.skip("jax finds no GPU")
    import triton_kernels as kernels

    @ow.triton_op(f"{ns}::add", mutates_args=())
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda or x.is_meta
        out = torch.empty_like(x)
        ow.wrap_triton(kernels.add)[(triton.cdiv(out.numel(), 64),)](x, y, out, out.numel(), BLOCK=64)
        return out

    @add.register_fake(flavour="array_api")
    def fake(x, y):
        return ow.empty_like(x)

    x = jax.numpy.arange(1000.0)
    assert (add(x, x) == 2 * x).all()
    assert (jax.jit(lambda a: add(a, a * 2) + 1)(x) == 3 * x + 1).all()


@pytest.mark.parametrize("flavour", ["dlpack", "cupy", "torch"])
def test_jax_arrays_are_read_and_not_written_to(ns, flavour):
    jax = pytest.importorskip("jax", reason="needs jax")
    if jax.default_backend() != "gpu":
        pytest.skip("jax finds no GPU")
    if flavour == "cupy":
        pytest.importorskip("cupy", reason="needs cupy")

    def double(x):
        array = torch.from_dlpack(x) if flavour == "dlpack" else x
        if writing:
            array *= 2
            return Exported(array + 0) if flavour == "dlpack" else array + 0
        return Exported(array * 2) if flavour == "dlpack" else array * 2

    op = ow.custom_op(
        f"{ns}::double", double, mutates_args=(), schema="(Tensor x) -> Tensor", flavour=flavour
    )
    op.register_fake(ow.empty_like, flavour="array_api")
    for writing in (True, False):
        for wrap in (lambda f: f, jax.jit):
            x = jax.numpy.arange(3.0)
            run = wrap(op)
            for _ in range(5):
                if writing:
                    with pytest.raises(
                        (ow.errors.AliasError, jax.errors.JaxRuntimeError),
                        match=f"kernel of {op.name} wrote to argument x",
                    ):
                        run(x).block_until_ready()
                else:
                    assert run(x).tolist() == [0, 2, 4]
                assert x.tolist() == [0, 1, 2]


def test_the_device_of_the_tensors_is_current(ns):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    seen = []

    @ow.custom_op(f"{ns}::where", mutates_args=())
    def where(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.cuda.current_device())
        return x * 2

    x = torch.ones(3, device="cuda:1")
    for _ in range(5):
        where(x)
        where(torch.ones(3, device="cuda:0"))
    assert seen == [1, 0] * 5
    assert torch.cuda.current_device() == 0


def test_a_captured_operator_replays_with_new_data(ns):
    @ow.custom_op(f"{ns}::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    @ow.custom_op(f"{ns}::double_", mutates_args=("x",))
    def double_(x: torch.Tensor) -> None:
        x.mul_(2)

    x = torch.randn(100, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            y = square(x)
            double_(y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = square(x)
        double_(y)
    for _ in range(2):
        x.copy_(torch.randn(100))
        graph.replay()
        torch.testing.assert_close(y, 2 * x * x)


def test_a_kernel_for_the_cpu_alone_is_never_run_on_the_gpu(ns):
    ow.define(f"{ns}::only", "(Tensor x) -> Tensor", tags=())
    ow.register_kernel(f"{ns}::only", "cpu", lambda x: x + 1)
    with pytest.raises(NotImplementedError, match="has no kernel for torch arrays on cuda"):
        getattr(ow.ops, ns).only(torch.ones(3, device="cuda"))
