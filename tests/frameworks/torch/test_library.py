"""Library, define and impl on torch tensors; each test names its row of torch.library's behaviours."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

import opwright as ow  # noqa: E402
from opwright.errors import DuplicateError, StaleError  # noqa: E402
from opwright.keys import DISPATCH_KEYS  # noqa: E402


@pytest.fixture
def lib():
    with ow.Library("lib", "FRAGMENT") as lib:
        yield lib


# kinds and namespaces


def test_row_48_kinds_and_reserved_namespaces():
    with pytest.raises(ValueError) as caught:
        ow.Library("lib", "BOGUS")
    text = "Library('lib', 'BOGUS'): unsupported kind\n  expected: 'DEF', 'FRAGMENT' or 'IMPL'"
    assert str(caught.value) == text
    for kind in ("DEF", "FRAGMENT"):
        with pytest.raises(ValueError) as caught:
            ow.Library("prim", kind)
        assert str(caught.value) == "'prim' is a reserved namespace\n  to fix: choose one of your own"
    ow.Library("prim", "IMPL").destroy()


def test_row_49_one_def_library_a_namespace():
    first = ow.Library("lib_def", "DEF")
    line = sys._getframe().f_lineno
    with pytest.raises(RuntimeError) as caught:
        ow.Library("lib_def", "DEF")
    assert str(caught.value) == (
        "namespace lib_def has a DEF library already; only one may define a namespace\n"
        f"  got: a second one at {__file__}:{line + 2}\n"
        f"  registered at: {__file__}:{line - 1}\n"
        "  to fix: make the second one a FRAGMENT"
    )
    first.destroy()
    ow.Library("lib_def", "DEF").destroy()


def test_row_49_both_lines_from_a_command_line():
    script = "import opwright as ow\na = ow.Library('n', 'DEF')\n\nb = ow.Library('n', 'DEF')\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "got: a second one at <string>:4" in done.stderr
    assert "registered at: <string>:2" in done.stderr


def test_row_50_fragments_with_and_without_a_def():
    with ow.Library("lib_fragment", "FRAGMENT") as one, ow.Library("lib_fragment", "DEF") as two:
        with ow.Library("lib_fragment", "FRAGMENT") as three:
            for number, lib in enumerate((one, two, three)):
                lib.define(f"op{number}(Tensor x) -> Tensor")
                lib.impl(f"op{number}", lambda x, number=number: x + number, "CPU")
            values = [getattr(torch.ops.lib_fragment, f"op{n}")(torch.zeros(1)).item() for n in range(3)]
        assert values == [0, 1, 2]
        assert not hasattr(torch.ops.lib_fragment, "op2")
        assert torch.ops.lib_fragment.op1(torch.zeros(1)) == 1


# define


def test_row_51_define_makes_an_operator_of_torch(lib):
    assert lib.define("foo(Tensor x, int k=2) -> Tensor") == "foo"
    lib.impl("foo", lambda x, k: x * k, "CPU")
    assert torch.equal(torch.ops.lib.foo(torch.ones(2)), torch.full((2,), 2.0))
    assert str(torch.ops.lib.foo.default._schema) == "lib::foo(Tensor x, int k=2) -> Tensor"


@pytest.mark.parametrize(("wrong", "hint"), [("int64_t", "int"), ("double", "float")])
def test_row_51_types_of_cpp_have_a_hint(lib, wrong, hint):
    with pytest.raises(RuntimeError) as caught:
        lib.define(f"typo({wrong} k) -> ()")
    assert f"{wrong}" in str(caught.value)
    assert f"`{hint}`" in str(caught.value) or f"'{hint}'" in str(caught.value)
    with pytest.raises(RuntimeError, match="unknown type"):
        lib.define("typo(Tensr x) -> ()")
    assert not hasattr(torch.ops.lib, "typo")


def test_row_52_define_by_qualified_name(lib):
    ow.define("lib::tagged", "(Tensor x) -> Tensor", lib=lib, tags=torch.Tag.pointwise)
    tags = (torch.Tag.pointwise, ow.Tag.core)
    ow.define("lib::tagged.several", "(Tensor x, int k) -> Tensor", lib=lib, tags=tags)
    assert torch.ops.lib.tagged.default.tags == [torch.Tag.pointwise]
    assert sorted(torch.ops.lib.tagged.several.tags, key=str) == [torch.Tag.core, torch.Tag.pointwise]
    with pytest.raises(ValueError, match="the schema must start with a parenthesis"):
        ow.define("lib::bad", "bad(Tensor x) -> Tensor", lib=lib)
    with pytest.raises(ValueError, match="an operator's name needs a namespace"):
        ow.define("bad", "(Tensor x) -> Tensor", lib=lib)


def test_row_53_legacy_decorators(lib):
    @ow.define(lib, "legacy(Tensor x) -> Tensor")
    def legacy(x):
        return x + 1

    lib.define("legacy2(Tensor x) -> Tensor")

    @ow.impl(lib, "legacy2", "CPU")
    def legacy2(x):
        return x + 2

    assert (torch.ops.lib.legacy(torch.zeros(1)), torch.ops.lib.legacy2(torch.zeros(1))) == (1, 2)
    assert legacy2(torch.zeros(1)) == 2


# impl


def test_row_54_what_impl_takes_as_types(lib):
    several = {"a": "CPU", "b": "cpu", "c": ["cpu", "cuda"], "d": "default", "e": "CompositeImplicitAutograd"}
    for name, types in several.items():
        lib.define(f"{name}(Tensor x) -> Tensor")
        ow.impl(f"lib::{name}", types, lambda x: x + 1, lib=lib)
        assert getattr(torch.ops.lib, name)(torch.zeros(1)) == 1

    lib.define("f(Tensor x) -> Tensor")

    @ow.impl("lib::f", "cpu", lib=lib)
    def decorated(x):
        return x + 2

    assert torch.ops.lib.f(torch.zeros(1)) == decorated(torch.zeros(1)) == 2
    text = "'gpu' is neither a device type nor a dispatch key\n  expected: one of cpu, cuda"
    with pytest.raises(RuntimeError, match=text):
        ow.impl("lib::f", "gpu", lambda x: x, lib=lib)


def test_row_55_what_library_impl_takes_as_operator(lib):
    lib.define("op(Tensor x) -> Tensor")
    x = torch.zeros(1)
    ours, theirs = ow.ops.lib.op.default, torch.ops.lib.op.default
    for number, op in enumerate(("op", "lib::op", theirs, ours, "op.default")):
        lib.impl(op, lambda x, number=number: x + number, "CPU")
        assert torch.ops.lib.op(x) == number
    with pytest.raises(RuntimeError) as caught:
        lib.impl("other::op", lambda x: x, "CPU")
    text = "other::op is not in the namespace of <Library FRAGMENT lib>\n  expected: lib\n  got: other"
    assert str(caught.value) == text
    with pytest.raises(RuntimeError, match="aten::sin is not in the namespace of <Library FRAGMENT lib>"):
        lib.impl(torch.ops.aten.sin.default, lambda x: x, "CPU")
    with pytest.raises(TypeError) as caught:
        lib.impl("op", 3, "CPU")
    assert str(caught.value) == "the kernel of op must be a function\n  got: 3 of type int"
    assert torch.ops.lib.op(x) == 4


def test_row_56_a_library_for_one_key(lib):
    lib.define("keyed(Tensor x) -> Tensor")
    with ow.Library("lib", "IMPL", "CPU") as cpu:
        cpu.impl("keyed", lambda x: x + 1)
        assert torch.ops.lib.keyed(torch.zeros(1)) == 1
        cpu.impl("keyed", lambda x: x + 2, "CPU")
        assert torch.ops.lib.keyed(torch.zeros(1)) == 2
        with pytest.raises(RuntimeError) as caught:
            cpu.impl("keyed", lambda x: x, "CUDA")
        text = "<Library IMPL lib CPU> was made for one dispatch key\n  expected: CPU\n  got: CUDA"
        assert str(caught.value) == text


def test_row_57_a_second_kernel_replaces_the_first(lib):
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: x + 1, "CPU")
    lib.impl("twice", lambda x: x + 2, "CPU")
    assert torch.ops.lib.twice(torch.zeros(1)) == 2
    with pytest.raises(RuntimeError, match="kernel of lib::twice for CPU is already registered") as caught:
        lib.impl("twice", lambda x: x + 3, "CPU", allow_override=False)
    assert isinstance(caught.value, DuplicateError)
    assert torch.ops.lib.twice(torch.zeros(1)) == 2


parse_key = torch._C._parse_dispatch_key
UNKNOWN_KEY = next(key for key in sorted(DISPATCH_KEYS) if key != "Autocast" and parse_key(key) is None)
KEYS = ["CPU", "CompositeExplicitAutograd", "AutogradCPU", "Autograd", "AutocastCPU"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("by", ["destroy", "del"])
def test_row_58_destroying_a_library_restores_what_was_there(lib, key, by):
    x = torch.zeros(1, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lib.define("restored(Tensor x) -> Tensor")
        lib.impl("restored", lambda x: x.detach() + 1, "CompositeExplicitAutograd")
        one = ow.Library("lib", "IMPL")
        one.impl("restored", lambda x: x.detach() + 2, key)
        two = ow.Library("lib", "IMPL")
        two.impl("restored", lambda x: x.detach() + 3, key)
        assert torch.ops.lib.restored(x) == 3
        if by == "del":
            del one
            gc.collect()
        else:
            one._destroy()
        assert torch.ops.lib.restored(x) == 3
        two._destroy()
        assert torch.ops.lib.restored(x) == 1


def test_row_59_builtins_are_overridden_and_restored():
    x = torch.tensor([1.0, 2.0])
    one, two = ow.Library("aten", "IMPL"), ow.Library("aten", "IMPL")
    one.impl("sin", lambda self: self + 1, "CPU")
    two.impl("sin", lambda self: self + 2, "CPU")
    one.impl("neg", lambda *args, **kwargs: args[0]._neg_view(), "AutogradCPU")
    assert torch.equal(torch.sin(x), x + 2)
    assert torch.neg(x).is_neg()
    one.destroy()
    assert not torch.neg(x).is_neg()
    assert torch.equal(torch.sin(x), x + 2)
    two.destroy()
    assert torch.equal(torch.ops.aten.sin(x), x.sin())
    assert torch.allclose(torch.sin(x), torch.tensor([0.8415, 0.9093]), atol=1e-4)


def test_row_59_the_zero_tensor_key_of_a_builtin():
    with ow.Library("aten", "IMPL", "ZeroTensor") as lib:
        lib.impl("aten::mul.Tensor", lambda *args, **kwargs: torch.zeros_like(args[0]) + 7)
        y = torch._efficientzerotensor(2)
        assert torch.equal(y * torch.ones(2), torch.full((2,), 7.0))
        assert torch.equal(torch.ones(2) * 3, torch.full((2,), 3.0))
    assert torch.equal(torch._efficientzerotensor(2) * torch.ones(2), torch.zeros(2))


def test_row_60_operators_of_a_destroyed_library_are_gone():
    lib = ow.Library("lib_gone", "FRAGMENT")
    lib.define("op(Tensor x) -> Tensor")
    lib.impl("op", lambda x: x.clone(), "CPU")
    operator = ow.ops.lib_gone.op.default
    assert torch.ops.lib_gone.op(torch.ones(1)) == 1
    lib._destroy()
    assert not hasattr(torch.ops.lib_gone, "op")
    line = sys._getframe().f_lineno - 2
    for call in (lambda: operator(torch.ones(1)), lambda: operator(torch.ones(1, requires_grad=True))):
        with pytest.raises(StaleError) as caught:
            call()
        assert f"operator lib_gone::op was unregistered at {__file__}:{line}" in str(caught.value)
    lib = ow.Library("lib_gone", "FRAGMENT")
    lib.define("op(Tensor x, Tensor y) -> Tensor")
    lib.impl("op", lambda x, y: x + y, "CPU")
    assert torch.ops.lib_gone.op(torch.ones(1), torch.ones(1)) == 2
    lib._destroy()


def hands_over_dtypes():
    """Return whether torch itself gives kernels lists of dtypes; older releases give their numbers."""
    seen = []
    with torch.library._scoped_library("lib_plain", "FRAGMENT") as plain:
        plain.define("op(Tensor x, ScalarType[] a) -> Tensor")
        plain.impl("op", lambda x, a: seen.append(a) or x.clone(), "CPU")
        torch.ops.lib_plain.op(torch.ones(1), [torch.float64])
    return seen == [[torch.float64]]


def test_row_61_lists_of_dtypes_layouts_and_memory_formats(lib):
    if not hands_over_dtypes():
        pytest.skip("this torch gives kernels numbers in place of lists of dtypes")
    lib.define("lists(Tensor x, ScalarType[] a, Layout[] b, MemoryFormat[] c) -> Tensor")
    seen = []

    def kernel(x, a, b, c):
        seen.append((a, b, c))
        return x.clone()

    lib.impl("lists", kernel, "CPU")
    dtypes, layouts, formats = [torch.float64], [torch.strided, torch.sparse_coo], [torch.channels_last]
    torch.ops.lib.lists(torch.ones(1), dtypes, layouts, formats)
    ow.ops.lib.lists(torch.ones(1), dtypes, layouts, formats)
    assert seen == [(dtypes, layouts, formats)] * 2
    assert all(type(value) is list for value in seen[0])


# fallthrough


def test_row_62_fallthrough_for_autocast(lib):
    lib.define("through(Tensor x) -> Tensor")
    lib.impl("through", lambda x: x + 1, "CPU")
    lib.impl("through", lambda x: x + 2, "AutocastCPU")
    x = torch.zeros(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.ops.lib.through(x) == ow.ops.lib.through(x) == 2
        lib.impl("through", ow.fallthrough_kernel, "AutocastCPU")
        assert torch.ops.lib.through(x) == ow.ops.lib.through(x) == 1
    with pytest.raises(NotImplementedError) as caught:
        ow.fallthrough_kernel()
    assert str(caught.value) == "fallthrough_kernel is a marker to register, not a function to call"


def test_row_62_fallthrough_for_the_cpu(lib):
    lib.define("meta_through(Tensor x) -> Tensor")
    lib.impl("meta_through", ow.fallthrough_kernel, "CPU")
    lib.impl("meta_through", lambda x: x.new_empty(5, device="meta"), "Meta")
    keys = torch._C._dispatch_tls_local_include_set() | torch.DispatchKeySet("Meta")
    with torch._C._ForceDispatchKeyGuard(keys, torch._C._dispatch_tls_local_exclude_set()):
        assert torch.ops.lib.meta_through(torch.zeros(1)).shape == (5,)


# every dispatch key


def test_a_kernel_at_autograd_takes_the_place_of_the_formula(lib):
    lib.define("own_grad(Tensor x) -> Tensor")
    lib.impl("own_grad", lambda x: x.clone(), "CPU")
    op = torch.ops.lib.own_grad.default
    keysets = []

    def kernel(keyset, x):
        keysets.append(keyset)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, x) + 1

    handle = lib.impl("own_grad", kernel, "Autograd", with_keyset=True)
    x = torch.zeros(1, requires_grad=True)
    assert op(x) == ow.ops.lib.own_grad(x) == 1
    assert [type(one) for one in keysets] == [torch.DispatchKeySet] * 2
    handle.destroy()
    assert op(x) == ow.ops.lib.own_grad(x) == 0


def test_a_kernel_at_the_batching_key(lib):
    lib.define("batched(Tensor x) -> Tensor")
    lib.impl("batched", lambda x: x.clone(), "CPU")
    lib.impl("batched", lambda x: x + 5, "FuncTorchBatched")
    assert torch.equal(torch.vmap(torch.ops.lib.batched)(torch.zeros(2)), torch.full((2,), 5.0))


def test_a_kernel_at_the_version_counter_key(lib):
    lib.define("counted(Tensor x) -> Tensor")
    lib.impl("counted", lambda x: x.clone(), "CPU")
    lib.impl("counted", lambda x: x + 4, "ADInplaceOrView")
    assert torch.ops.lib.counted(torch.zeros(1)) == ow.ops.lib.counted(torch.zeros(1)) == 4


def test_a_kernel_for_meta(lib):
    lib.define("for_meta(Tensor x) -> Tensor")
    lib.impl("for_meta", lambda x: x.new_empty(3), "Meta")
    assert torch.ops.lib.for_meta(torch.empty(1, device="meta")).shape == (3,)
    with torch._subclasses.FakeTensorMode():
        assert torch.ops.lib.for_meta(torch.empty(1)).shape == (3,)
    with pytest.raises(DuplicateError, match="fake rule of lib::for_meta is already registered"):
        ow.register_fake("lib::for_meta", lambda x: x, allow_override=False)


def test_gradients_go_through_an_implicit_composite(lib):
    lib.define("implicit(Tensor x) -> Tensor")
    lib.impl("implicit", lambda x: x.sin() * 2)
    x = torch.randn(3, requires_grad=True)
    for op in (torch.ops.lib.implicit, ow.ops.lib.implicit):
        (grad,) = torch.autograd.grad(op(x).sum(), x)
        assert torch.allclose(grad, 2 * x.cos())
        plain = x.detach()
        assert torch.allclose(torch.func.grad(lambda x, op=op: op(x).sum())(plain), 2 * plain.cos())
        assert torch.allclose(torch.func.jacfwd(op)(plain), torch.diag(2 * plain.cos()))
        assert torch.allclose(torch.vmap(op)(plain), plain.sin() * 2)
    with torch._subclasses.FakeTensorMode():
        assert torch.ops.lib.implicit(torch.empty(4)).shape == (4,)
    with pytest.raises(RuntimeError, match="fake rule of lib::implicit was refused"):
        ow.register_fake("lib::implicit", torch.empty_like)


@pytest.mark.parametrize("order", ["kernel first", "rule first"])
def test_a_formula_goes_before_what_an_implicit_composite_calls(lib, order):
    lib.define("formula(Tensor x) -> Tensor")
    if order == "kernel first":
        lib.impl("formula", lambda x: x.sin())
    ow.register_autograd("lib::formula", lambda ctx, grad: grad * 7, lib=lib)
    if order == "rule first":
        lib.impl("formula", lambda x: x.sin())
    x = torch.randn(2, requires_grad=True)
    for op in (torch.ops.lib.formula, ow.ops.lib.formula):
        (grad,) = torch.autograd.grad(op(x).sum(), x)
        assert torch.equal(grad, torch.full((2,), 7.0))
        assert torch.equal(torch.func.grad(lambda x, op=op: op(x).sum())(x.detach()), torch.full((2,), 7.0))
        assert torch.allclose(op(x), x.sin())


def test_a_meta_kernel_and_an_implicit_composite(lib):
    lib.define("decomposed(Tensor x) -> Tensor")
    meta = lib.impl("decomposed", lambda x: x.new_empty(1), "Meta")
    lib.impl("decomposed", torch.sin)
    x = torch.randn(2, requires_grad=True)
    for op in (torch.ops.lib.decomposed, ow.ops.lib.decomposed):
        (grad,) = torch.autograd.grad(op(x).sum(), x)
        assert torch.allclose(grad, x.cos())
        assert op(torch.empty(3, device="meta")).shape == (1,)  # torch's own table has it so
    meta.destroy()
    with pytest.raises(RuntimeError, match="kernel of lib::decomposed for Meta was refused"):
        lib.impl("decomposed", lambda x: x.new_empty(1), "Meta")


def test_newer_kernels_of_an_implicit_composite_replace_older_ones(lib):
    lib.define("renewed(Tensor x) -> Tensor")
    lib.impl("renewed", lambda x: x + 1)
    newer = lib.impl("renewed", lambda x: x + 2)
    assert torch.ops.lib.renewed(torch.zeros(1)) == ow.ops.lib.renewed(torch.zeros(1)) == 2
    newer.destroy()
    assert torch.ops.lib.renewed(torch.zeros(1)) == ow.ops.lib.renewed(torch.zeros(1)) == 1


def test_a_key_that_this_torch_does_not_have(lib):
    lib.define("no_key(Tensor x) -> Tensor")
    with pytest.raises(RuntimeError) as caught:
        lib.impl("no_key", lambda x: x, UNKNOWN_KEY)
    assert str(caught.value) == f"torch {torch.__version__} has no dispatch key {UNKNOWN_KEY}"
    assert ow.ops.lib.no_key.default._record.kernels == ()


# register_* through a Library


def test_row_70_register_kernel_with_lib():
    lib = ow.Library("lib", "FRAGMENT")
    lib.define("with_lib(Tensor x) -> Tensor")
    ow.register_kernel("lib::with_lib", "cpu", lambda x: x + 1, lib=lib)
    assert torch.ops.lib.with_lib(torch.zeros(1)) == 1
    with ow.Library("lib", "IMPL") as inner:
        ow.register_kernel("lib::with_lib", None, lambda x: x + 2, lib=inner)
        ow.register_kernel("lib::with_lib", ["cpu"], lambda x: x + 3, lib=inner)
        assert torch.ops.lib.with_lib(torch.zeros(1)) == 3
    assert torch.ops.lib.with_lib(torch.zeros(1)) == 1
    lib.destroy()


def test_row_68_69_register_kernel_on_an_operator_of_ours():
    @ow.custom_op("lib::three_ways", mutates_args=())
    def three_ways(x: Tensor) -> Tensor:
        return x.clone()

    x = torch.zeros(1)
    for number, target in enumerate((three_ways, "lib::three_ways", torch.ops.lib.three_ways.default)):
        handle = ow.register_kernel(target, "cpu", lambda x, number=number: x + 1 + number)
        assert torch.ops.lib.three_ways(x) == three_ways(x) == 1 + number
        handle.destroy()

    @three_ways.register_kernel("cpu")
    def decorated(x):
        return x + 9

    assert torch.ops.lib.three_ways(x) == three_ways(x) == decorated(x) == 9


def test_row_71_72_73_fakes(lib):
    @ow.custom_op("lib::faked", mutates_args=())
    def faked(x: Tensor) -> Tensor:
        return x.clone()

    with torch._subclasses.FakeTensorMode(), pytest.raises(RuntimeError, match="no fake impl is registered"):
        faked(torch.empty(1))
    for target in (faked, "lib::faked", torch.ops.lib.faked.default):
        with ow.Library("lib", "IMPL") as inner:
            ow.register_fake(target, lambda x: x.new_empty(6), lib=inner)
            assert torch.ops.lib.faked(torch.empty(1, device="meta")).shape == (6,)
            with torch._subclasses.FakeTensorMode():
                assert faked(torch.empty(1)).shape == (6,)
        with pytest.raises(RuntimeError, match="no fake impl is registered"):
            torch.ops.lib.faked(torch.empty(1, device="meta"))


def test_row_74_75_76_fakes_cover_each_other(lib):
    lib.define("stacked(Tensor x) -> Tensor")
    lib.impl("stacked", lambda x: x.clone(), "CompositeExplicitAutograd")
    x = torch.empty(1, device="meta")
    ow.register_fake("lib::stacked", lambda x: x.new_empty(2), lib=lib)
    line = sys._getframe().f_lineno - 1
    with ow.Library("lib", "IMPL") as inner:
        ow.register_fake("lib::stacked", lambda x: x.new_empty(3), lib=inner)
        assert torch.ops.lib.stacked(x).shape == (3,)
    assert torch.ops.lib.stacked(x).shape == (2,)
    with pytest.raises(RuntimeError) as caught:
        ow.register_fake("lib::stacked", lambda x: x, allow_override=False)
    assert f"registered at: {__file__}:{line}" in str(caught.value)


def test_row_77_a_fake_of_an_overload(lib):
    lib.define("two.one(Tensor x) -> Tensor")
    lib.define("two.other(Tensor x, int k) -> Tensor")
    ow.register_fake("lib::two.other", lambda x, k: x.new_empty(k), lib=lib)
    assert torch.ops.lib.two.other(torch.empty(1, device="meta"), 4).shape == (4,)


def test_row_78_make_fx_records_one_node(lib):
    from torch.fx.experimental.proxy_tensor import make_fx

    lib.define("traced(Tensor x) -> Tensor")
    lib.impl("traced", lambda x: x.sin(), "CPU")
    ow.register_fake("lib::traced", torch.empty_like, lib=lib)
    graph = make_fx(torch.ops.lib.traced, tracing_mode="symbolic")(torch.ones(3)).graph
    assert [str(node.target) for node in graph.nodes if node.op == "call_function"] == ["lib.traced.default"]


def test_row_79_an_untagged_fake_is_used_as_given(lib):
    lib.define("given(Tensor x) -> Tensor")
    lib.impl("given", lambda x: x.clone(), "CPU")
    ow.register_fake("lib::given", lambda x: x.new_empty(9, 9), lib=lib)
    with torch._subclasses.FakeTensorMode():
        assert torch.ops.lib.given(torch.empty(1)).shape == (9, 9)


def test_row_92_register_vmap(lib):
    @ow.custom_op("lib::vmapped", mutates_args=())
    def vmapped(x: Tensor) -> Tensor:
        return x.clone()

    x = torch.zeros(2)
    for number, target in enumerate((vmapped, "lib::vmapped", torch.ops.lib.vmapped.default)):
        handle = ow.register_vmap(target, lambda info, in_dims, x, number=number: (x + number, 0))
        assert torch.equal(torch.vmap(vmapped)(x), x + number)
        handle.destroy()

    @vmapped.register_vmap
    def rule(info, in_dims, x):
        return x + 7, 0

    assert torch.equal(torch.vmap(torch.ops.lib.vmapped)(x), x + 7)


def test_row_98_register_torch_dispatch(lib):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {})) - 1

    @ow.custom_op("lib::moded", mutates_args=())
    def moded(x: Tensor) -> Tensor:
        return x.clone()

    x = torch.zeros(1)
    for number, target in enumerate((moded, "lib::moded", torch.ops.lib.moded.default), 1):
        with ow.Library("lib", "IMPL") as inner:
            rule = lambda mode, func, types, args, kwargs, number=number: args[0] + number  # noqa: E731
            ow.register_torch_dispatch(target, Mode, rule, lib=inner)
            with Mode():
                ours, theirs = moded(x), torch.ops.lib.moded(x)
            assert ours == theirs == number
        with Mode():
            plain = moded(x)
        assert plain == -1

    @moded.register_torch_dispatch(Mode)
    def decorated(mode, func, types, args, kwargs):
        assert func is torch.ops.lib.moded.default
        assert isinstance(mode, Mode)
        return args[0] + 5

    with Mode():
        y = moded(x)
    assert y == 5


def test_private_names_that_code_uses(lib):
    lib.define("private(Tensor x) -> Tensor")
    assert lib._op_defs == {"lib::private"}
    assert lib.m is lib
    operator = ow.ops.lib.private.default
    assert operator._opoverload is torch.ops.lib.private.default
    assert operator._qualname == "lib::private"
    assert str(operator._schema) == str(torch.ops.lib.private.default._schema)
