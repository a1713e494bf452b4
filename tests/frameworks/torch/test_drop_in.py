"""What a user of torch.library tries first, with nothing changed but the import."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import opwright as library  # noqa: E402
from opwright import Library, custom_op, get_ctx, register_autograd, register_fake  # noqa: E402


def test_a_numpy_backed_operator_with_a_scalar_and_a_fake():
    @custom_op("dropin::scaled_sine", mutates_args=())
    def scaled_sine(pic: Tensor, factor: float) -> Tensor:
        return torch.from_numpy(np.sin(pic.cpu().numpy()) * factor).to(pic.device)

    @scaled_sine.register_fake
    def _(pic, factor):
        return torch.empty_like(pic)

    x = torch.randn(3, 4)
    assert torch.allclose(scaled_sine(x, 2.5), x.sin() * 2.5)
    assert torch.allclose(torch.ops.dropin.scaled_sine(x, 2.5), x.sin() * 2.5)
    compiled = torch.compile(scaled_sine, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(x, 2.5), x.sin() * 2.5)
    assert scaled_sine(x.to("meta"), 1.0).shape == (3, 4)


def test_a_numpy_operator_that_works_in_place_on_the_cpu():
    @custom_op("dropin::sine_in_place", mutates_args={"x"}, device_types="cpu")
    def sine_in_place(x: Tensor) -> None:
        array = x.numpy()
        np.sin(array, out=array)

    x = torch.randn(3)
    expected, version = x.sin(), x._version
    assert sine_in_place(x) is None
    assert torch.allclose(x, expected)
    assert x._version > version


def test_a_factory_function_that_goes_by_its_device():
    @custom_op("dropin::filled", mutates_args={}, device_types="cpu")
    def filled(size: int, value: float, device: torch.device) -> Tensor:
        return torch.full((size,), value, device=device)

    @filled.register_fake
    def _(size, value, device):
        return torch.empty(size, device=device)

    assert torch.equal(filled(3, 2.0, torch.device("cpu")), torch.full((3,), 2.0))
    assert torch.equal(torch.ops.dropin.filled(2, 1.0, device="cpu"), torch.ones(2))
    with pytest.raises(NotImplementedError, match="dropin::filled has no kernel for torch arrays on cuda"):
        filled(3, 2.0, torch.device("cuda"))


def test_a_factory_of_numpy_that_was_called_outside_can_be_compiled():
    @custom_op("dropin::steps", mutates_args=())
    def steps(n: int) -> np.ndarray:
        return np.arange(n)

    steps.register_fake(lambda n: library.empty((n,), dtype="int64"))
    compiled = torch.compile(lambda x: x + steps(3), backend="aot_eager", fullgraph=True)
    assert type(steps(3)) is np.ndarray
    assert torch.equal(compiled(torch.ones(3)), torch.tensor([1.0, 2.0, 3.0]))
    assert type(steps(3)) is np.ndarray


def test_a_linear_layer_is_given_as_the_fake_of_an_operator_that_exists():
    with Library("dropin", "FRAGMENT") as lib:
        lib.define("layer(Tensor x, Tensor weight, Tensor bias) -> Tensor")
        lib.impl("layer", torch.nn.functional.linear, "CPU")

        @register_fake("dropin::layer", lib=lib)
        def _(x, weight, bias):
            assert x.dim() == 2
            assert weight.dim() == 2
            assert x.shape[1] == weight.shape[1]
            assert x.device == weight.device
            return x @ weight.t() + bias

        with torch._subclasses.FakeTensorMode():
            x, weight, bias = torch.randn(2, 3), torch.randn(5, 3), torch.randn(5)
            y = torch.ops.dropin.layer(x, weight, bias)
        assert y.shape == (2, 5)
        meta = [torch.empty(*size, device="meta") for size in ((2, 3), (5, 3), (5,))]
        assert torch.ops.dropin.layer(*meta).shape == (2, 5)


def test_an_output_whose_size_depends_on_the_data():
    @custom_op("dropin::where_not_zero", mutates_args=())
    def where_not_zero(x: Tensor) -> Tensor:
        return torch.tensor(np.stack(np.nonzero(x.numpy(force=True)), axis=1), device=x.device)

    @register_fake("dropin::where_not_zero")
    def _(x):
        count = get_ctx().new_dynamic_size()
        return x.new_empty([count, x.dim()], dtype=torch.int64)

    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.tensor([0, 1, 2, 3, 4, 0])
    trace = make_fx(torch.ops.dropin.where_not_zero, tracing_mode="symbolic")(x)
    assert torch.equal(trace(x), torch.tensor([[1], [2], [3], [4]]))
    assert "dropin.where_not_zero" in trace.code


def test_a_kernel_for_cuda_is_added_to_an_operator_for_the_cpu():
    @custom_op("dropin::for_cpu", mutates_args=(), device_types="cpu")
    def for_cpu(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.numpy()))

    @library.register_kernel("dropin::for_cpu", "cuda")
    def _(x):
        return torch.from_numpy(np.sin(x.cpu().numpy())).to(device=x.device)

    x = torch.randn(3)
    assert torch.allclose(for_cpu(x), x.sin())
    assert torch._C._dispatch_has_kernel("dropin::for_cpu")
    assert [kernel.key for kernel in for_cpu._record.kernels] == ["CPU", "CUDA"]


def test_a_backward_reads_what_was_saved():
    @custom_op("dropin::sine", mutates_args=())
    def sine(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.cpu().numpy())).to(x.device)

    def setup_context(ctx, inputs, output) -> Tensor:
        (x,) = inputs
        ctx.save_for_backward(x)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos()

    register_autograd("dropin::sine", backward, setup_context=setup_context)
    x = torch.randn(3, requires_grad=True)
    y = sine(x)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.allclose(grad, x.cos())


def test_a_backward_with_a_keyword_only_argument():
    @custom_op("dropin::times", mutates_args=())
    def times(x: Tensor, *, val: float) -> Tensor:
        return torch.from_numpy(x.cpu().numpy() * val).to(x.device)

    def setup_context(ctx, inputs, keyword_only_inputs, output) -> Tensor:
        ctx.val = keyword_only_inputs["val"]

    def backward(ctx, grad):
        return grad * ctx.val

    register_autograd("dropin::times", backward, setup_context=setup_context)
    x = torch.randn(3, requires_grad=True)
    y = times(x, val=3.14)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.allclose(grad, torch.full_like(x, 3.14))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_inputs_are_cast_under_autocast(dtype):
    seen = []

    @custom_op("dropin::what_dtype", mutates_args=())
    def what_dtype(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return x.clone()

    library.register_autocast("dropin::what_dtype", "cpu", dtype)
    x = torch.randn(3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.ops.dropin.what_dtype(x)
    assert (y.dtype, what_dtype(x).dtype, seen) == (dtype, torch.float32, [dtype, torch.float32])


def test_a_batching_rule_moves_the_batch_to_the_front():
    @custom_op("dropin::cube", mutates_args=())
    def cube(x: Tensor) -> tuple[Tensor, Tensor]:
        array = x.numpy()
        return torch.tensor(array**3), torch.tensor(3 * array**2)

    def cube_vmap(info, in_dims, x):
        result = cube(x)
        return result, (in_dims[0], in_dims[0])

    library.register_vmap(cube, cube_vmap)
    x = torch.randn(3)
    assert torch.allclose(torch.vmap(cube)(x)[0], x**3)

    @custom_op("dropin::product", mutates_args=())
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.tensor(x.numpy() * y.numpy())

    @library.register_vmap("dropin::product")
    def product_vmap(info, in_dims, x, y):
        x_dim, y_dim = in_dims
        x = x.movedim(x_dim, -1) if x_dim is not None else x.unsqueeze(-1)
        y = y.movedim(y_dim, -1) if y_dim is not None else y.unsqueeze(-1)
        result = product(x, y)
        return result.movedim(-1, 0), 0

    x, y = torch.randn(4, 3), torch.randn(3, 4)
    assert torch.allclose(torch.vmap(product, in_dims=(0, 1))(x, y), x * y.t())
    assert torch.allclose(torch.vmap(product, in_dims=(None, 1))(x[0], y), x[0] * y.t())


def test_a_rule_for_a_dispatch_mode_changes_the_result():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    @custom_op("dropin::copy", mutates_args=())
    def copy(x: Tensor) -> Tensor:
        return x.clone()

    @library.register_torch_dispatch("dropin::copy", Mode)
    def _(mode, func, types, args, kwargs):
        (x,) = args
        return x + 1

    x = torch.randn(3)
    assert torch.equal(copy(x), x)
    with Mode():
        y = copy(x)
    assert torch.equal(y, x + 1)


def test_dispatch_to_the_original_sine_under_a_condition():
    original = library.get_kernel("aten::sin", "CPU")

    def conditional(dispatch_keys, x):
        if (x < 0).any():
            return original.call_boxed(dispatch_keys, x)
        return torch.zeros_like(x)

    lib = library.Library("aten", "IMPL")
    lib.impl("sin", conditional, "CPU", with_keyset=True)
    positive, mixed = torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 2.0])
    assert torch.equal(torch.sin(positive), torch.zeros(2))
    assert torch.allclose(torch.sin(mixed), torch.tensor([-0.8415, 0.9093]), atol=1e-4)
    lib._destroy()
    assert torch.allclose(torch.sin(positive), torch.tensor([0.8415, 0.9093]), atol=1e-4)


def test_a_library_that_overrides_a_builtin():
    my_lib = Library("aten", "IMPL")

    def div_cpu(self, other):
        return self * (1 / other) + 1

    my_lib.impl("div.Tensor", div_cpu, "CPU")
    assert torch.equal(torch.tensor([4.0]) / torch.tensor([2.0]), torch.tensor([3.0]))
    my_lib._destroy()
    assert torch.equal(torch.tensor([4.0]) / torch.tensor([2.0]), torch.tensor([2.0]))


def test_a_library_that_defines_implements_and_has_a_fallback():
    with Library("dropin_lib", "DEF") as my_lib:
        my_lib.define("total(Tensor self) -> Tensor")
        my_lib.impl("total", lambda self: self.sum(), "CPU")
        calls = []

        def fallback_kernel(op, *args, **kwargs):
            calls.append(op)
            return op(*args, **kwargs)

        my_lib.fallback(fallback_kernel, "Autocast")
        x = torch.arange(4.0)
        assert torch.ops.dropin_lib.total(x) == 6
        assert calls == []
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.ops.dropin_lib.total(x) == 6
        assert calls == [torch.ops.dropin_lib.total.default]


def test_define_and_impl_by_qualified_name():
    library.define("dropin::mysin", "(Tensor x) -> Tensor")

    @library.impl("dropin::mysin", "cpu")
    def f(x):
        return torch.from_numpy(np.sin(x.numpy()))

    x = torch.randn(3)
    assert torch.allclose(torch.ops.dropin.mysin(x), x.sin())


def test_the_legacy_decorators():
    with Library("dropin_legacy", "DEF") as lib:

        @library.define(lib, "doubled(Tensor x) -> Tensor")
        def doubled(x):
            return x * 2

        lib.define("tripled(Tensor x) -> Tensor")

        @library.impl(lib, "tripled", "CPU")
        def tripled(x):
            return x * 3

        x = torch.ones(2, requires_grad=True)
        torch.ops.dropin_legacy.doubled(x).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), 2.0))
        assert torch.equal(torch.ops.dropin_legacy.tripled(torch.ones(2)), torch.full((2,), 3.0))


def test_the_old_name_of_register_fake():
    with Library("dropin_old", "FRAGMENT") as lib:
        lib.define("op(Tensor x) -> Tensor")
        text = "opwright.impl_abstract is deprecated; use opwright.register_fake"
        with pytest.warns(FutureWarning, match=f"^{text}$"):

            @library.impl_abstract("dropin_old::op", lib=lib)
            def _(x):
                return torch.empty_like(x)

        assert torch.ops.dropin_old.op(torch.empty(2, device="meta")).shape == (2,)


def test_direct_register_custom_op_as_servers_have_it():
    """A helper that vLLM and SGLang copied from one another, over the library's private method."""

    def direct_register_custom_op(lib, name, function, mutates_args, fake):
        lib.define(name + library.infer_schema(function, mutates_args=mutates_args))
        lib.impl(name, function, dispatch_key="CPU")
        lib._register_fake(name, fake, _stacklevel=2)

    def added(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    with Library("dropin_direct", "FRAGMENT") as lib:
        direct_register_custom_op(lib, "added", added, [], lambda x, y: torch.empty_like(x))
        op = torch.ops.dropin_direct.added
        assert torch.compile(op, fullgraph=True, backend="aot_eager")(torch.ones(2), torch.ones(2)).sum() == 4
        with pytest.raises(RuntimeError, match="fake rule of dropin_direct::added is already registered"):
            lib._register_fake("added", lambda x, y: x, allow_override=False)
    assert not hasattr(torch.ops.dropin_direct, "added")


def test_the_private_method_for_dispatch_rules():
    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Library("dropin_rule", "FRAGMENT") as lib:
        lib.define("same(Tensor x) -> Tensor")
        lib.impl("same", lambda x: x.clone(), "CompositeExplicitAutograd")
        lib._register_torch_dispatch_rule("same", Counts, lambda mode, func, types, args, kwargs: args[0] + 1)
        with Counts():
            assert torch.ops.dropin_rule.same(torch.zeros(1)) == 1
        assert torch.ops.dropin_rule.same(torch.zeros(1)) == 0


def test_legacy_impl_with_its_parameters_by_name():
    with Library("dropin_named", "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        library.impl(lib, "f", dispatch_key="CPU")(lambda x: x + 1)
        assert torch.ops.dropin_named.f(torch.zeros(1)) == 1
        library.impl(lib, name="f", dispatch_key="CPU")(lambda x: x + 2)
        lib.impl(op_name="f", fn=lambda x: x + 3, dispatch_key="XLA")
        assert torch.ops.dropin_named.f(torch.zeros(1)) == 2


def test_private_names_that_code_in_the_wild_uses():
    def half(x: Tensor) -> Tensor:
        return x / 2

    def fake(x):
        return torch.empty_like(x)

    op = custom_op("dropin_names::half", half, mutates_args=(), device_types="cpu")
    assert isinstance(op, library.CustomOpDef)
    assert not isinstance(half, library.CustomOpDef)
    theirs = torch.library.custom_op("dropin_theirs::half", half, mutates_args=(), device_types="cpu")
    for name in ("_name", "_init_fn", "_abstract_fn"):
        assert getattr(op, name) == getattr(theirs, name), name
    assert op._tags == (torch.Tag.pt2_compliant_tag,)  # torch keeps those alone that were given
    assert (op._namespace, theirs._namespace) == ("dropin_names", "dropin_theirs")
    assert op._backend_fns == {"cpu": half}
    assert list(theirs._backend_fns) == ["cpu"]

    handle = library.register_fake(op, fake)
    assert op._abstract_fn is fake
    handle.destroy()
    assert op._abstract_fn is None

    every = library.register_kernel(op, None, fake)
    assert op._backend_fns == {"cpu": half, None: fake}
    every.destroy()
    assert op._backend_fns == {"cpu": half}
    for name in ("_name", "_namespace", "_tags", "_init_fn", "_abstract_fn", "_backend_fns"):
        with pytest.raises(AttributeError):
            setattr(op, name, None)
    with pytest.raises(TypeError):
        op._backend_fns["cuda"] = half


def test_those_of_an_overload_and_of_an_operator_without_a_function():
    overload = custom_op("dropin_names::two.out", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")
    assert overload._name == "two.out"
    with library._scoped_library("dropin_scoped", "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor", tags=torch.Tag.pointwise)
        op = library.ops.dropin_scoped.f.default
        assert op._init_fn is None
        assert op._tags == (torch.Tag.pointwise,)
        assert op._backend_fns == {}
        assert lib.source.startswith(__file__)
    assert not hasattr(torch.ops.dropin_scoped, "f")


def test_what_is_missing_can_be_done_with_torch_itself():
    op = custom_op("dropin_missing::op", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    for owner, name in (
        (library, "EffectType"),
        (library, "_register_effectful_op"),
        (op, "register_effect"),
    ):
        assert not hasattr(owner, name)
    assert not hasattr(Library, "register_symm_mem_args")
    entry = torch._library.simple_registry.singleton.find("dropin_missing::op")
    with torch.library._scoped_library("dropin_missing", "FRAGMENT") as lib:
        torch.library._register_effectful_op(op._opoverload, torch.library.EffectType.ORDERED, lib=lib)
        lib.register_symm_mem_args("op", ["x"])
        assert entry.effect.effect is torch.library.EffectType.ORDERED
        assert op(torch.zeros(1)) == 1
    assert entry.effect.effect is None
