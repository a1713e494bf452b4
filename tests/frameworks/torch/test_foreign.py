"""Operators that torch's own dispatcher holds: registrations work on them, handles undo them."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import opwright as ow  # noqa: E402
from opwright import registry  # noqa: E402
from opwright.errors import DuplicateError, MissingRuleError, RegistrationError, StaleError  # noqa: E402
from opwright.targets import find  # noqa: E402

has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


@pytest.fixture
def held():
    """An operator that torch.library defined, with a kernel for the CPU and nothing else."""
    lib = torch.library.Library("foreign", "FRAGMENT")
    lib.define("square(Tensor x, float scale=1.0) -> Tensor")
    lib.impl("square", lambda x, scale=1.0: x.detach() * x.detach() * scale, "CPU")
    yield torch.ops.foreign.square.default
    lib._destroy()


@pytest.fixture
def custom():
    @torch.library.custom_op("foreign::custom", mutates_args=())
    def custom(x: Tensor, scale: float = 1.0) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()) * scale)

    yield custom
    custom._lib._destroy()


# lookup


@pytest.mark.parametrize(
    "target",
    [
        lambda: "aten::sin",
        lambda: "aten::sin.default",
        lambda: torch.ops.aten.sin,
        lambda: torch.ops.aten.sin.default,
    ],
)
def test_a_builtin_is_found_by_name_and_object(target):
    record = find(target())
    assert (record.qualname, record.owner) == ("aten::sin", "torch")
    assert str(record.schema) == "aten::sin(Tensor self) -> Tensor"
    assert find("aten::sin") is record
    assert record.lowered["torch"].native is torch.ops.aten.sin.default
    assert "RegisterSchema.cpp" in record.source


def test_an_overload_other_than_default():
    assert find("aten::add.Tensor") is find(torch.ops.aten.add.Tensor)
    assert find(torch.ops.aten.add.Scalar).qualname == "aten::add.Scalar"


def test_what_torch_library_made(held, custom):
    assert find(held) is find("foreign::square")
    assert find(custom) is find("foreign::custom") is find(torch.ops.foreign.custom)
    assert find(custom).flavour == "torch"


def test_ours_is_found_by_its_object_in_torch():
    @ow.custom_op("foreign::ours", mutates_args=())
    def ours(x: Tensor) -> Tensor:
        return x.clone()

    assert find(torch.ops.foreign.ours) is ours._record
    assert find(torch.ops.foreign.ours.default) is ours._record
    assert ours._opoverload is torch.ops.foreign.ours.default


def test_the_unnamed_overload_of_an_operator_that_has_none():
    with pytest.raises(RegistrationError) as caught:
        ow.register_fake("aten::add", lambda *args: args[0])
    assert str(caught.value).startswith(
        "aten::add has no overload without a name\n  expected: one of aten::add.Scalar, "
    )


def test_no_operator():
    with pytest.raises(RegistrationError) as caught:
        ow.register_vmap("aten::no_such_operator", lambda info, in_dims, x: (x, 0))
    assert str(caught.value) == (
        "operator aten::no_such_operator does not exist\n"
        "  to fix: define it first, with opwright.custom_op or Library.define, or import the module that does"
    )
    with pytest.raises(TypeError, match="not an operator"):
        ow.register_vmap(torch.sin, lambda info, in_dims, x: (x, 0))


def test_an_operator_that_was_destroyed_and_defined_again_has_a_new_record():
    lib = torch.library.Library("foreign", "FRAGMENT")
    lib.define("again(Tensor x) -> Tensor")
    first = find("foreign::again")
    handle = ow.register_kernel("foreign::again", "cpu", lambda x: x + 1)
    assert torch.ops.foreign.again(torch.zeros(1)) == 1
    lib._destroy()
    assert find("foreign::again") is None
    lib = torch.library.Library("foreign", "FRAGMENT")
    lib.define("again(Tensor x, Tensor y) -> Tensor")
    second = find("foreign::again")
    assert second is not first
    assert len(second.schema.arguments) == 2
    assert not has_kernel("foreign::again", "CPU")
    handle.destroy()
    lib._destroy()


# names that torch owns


@pytest.mark.parametrize("name", ["aten::sin", "foreign::square"])
def test_a_name_that_torch_owns_cannot_be_defined(held, name):
    with pytest.raises(DuplicateError) as caught:

        @ow.custom_op(name, mutates_args=())
        def op(x: Tensor) -> Tensor:
            return x.clone()

    text = str(caught.value)
    first, got, registered, fix = text.splitlines()
    assert first == f"operator {name} is already registered, in torch's own dispatcher"
    assert got.startswith(f"  got: a second definition at {__file__}:")
    assert registered.startswith("  registered at: /")
    assert fix == (
        "  to fix: choose another name or overload; "
        "kernels and rules can be registered for torch's operator too"
    )
    assert find(name).owner == "torch"


def test_a_new_name_in_a_namespace_of_torch():
    with ow.Library("aten", "FRAGMENT") as lib:
        lib.define("_opwright_test(Tensor x) -> Tensor")
        lib.impl("_opwright_test", lambda x: x + 1, "CPU")
        assert torch.ops.aten._opwright_test(torch.zeros(1)) == 1
    assert not hasattr(torch.ops.aten, "_opwright_test")


# kernels


def test_row_68_and_69_a_kernel_for_a_device(held, custom):
    x = torch.randn(3)
    for target, name in ((held, "square"), (custom, "custom"), ("foreign::square", "square")):
        before = getattr(torch.ops.foreign, name)(x)
        handle = ow.register_kernel(target, "cpu", lambda x, scale=1.0: x + scale)
        assert torch.equal(getattr(torch.ops.foreign, name)(x), x + 1)
        assert torch.equal(getattr(torch.ops.foreign, name)(x, 2.0), x + 2)
        handle.destroy()
        assert torch.equal(getattr(torch.ops.foreign, name)(x), before)


def test_a_kernel_for_another_device_is_added(custom):
    meta = ow.register_kernel(custom, ("cuda", "mps"), lambda x, scale=1.0: x.clone())
    assert has_kernel("foreign::custom", "CUDA")
    assert has_kernel("foreign::custom", "MPS")
    meta.destroy()
    assert not has_kernel("foreign::custom", "CUDA")
    assert not has_kernel("foreign::custom", "MPS")


def test_a_numpy_kernel_for_an_operator_of_torch(held):
    def kernel(x: np.ndarray, scale: float = 1.0) -> np.ndarray:
        assert type(x) is np.ndarray
        return x * scale

    x = torch.arange(3.0)
    handle = ow.register_kernel(held, "cpu", kernel)
    assert torch.equal(held(x, 3.0), x * 3)
    handle.destroy()
    assert torch.equal(held(x, 3.0), x * x * 3)


def test_kernels_of_one_key_are_undone_in_any_order(held):
    x = torch.zeros(1)
    one = ow.register_kernel(held, "cpu", lambda x, scale=1.0: x + 1)
    two = ow.register_kernel(held, "cpu", lambda x, scale=1.0: x + 2)
    assert held(x) == 2
    one.destroy()
    assert held(x) == 2
    two.destroy()
    assert held(x) == 0


def test_a_kernel_with_another_signature_is_refused(held):
    with pytest.raises(TypeError, match="kernel of foreign::square for CPU has another signature"):
        ow.register_kernel(held, "cpu", lambda x: x)
    assert held(torch.ones(1)) == 1


def test_allow_override_counts_what_torch_holds(held):
    with ow.Library("foreign", "IMPL") as lib, pytest.raises(DuplicateError) as caught:
        lib.impl("square", lambda x, scale=1.0: x, "CPU", allow_override=False)
    first, _, registered, _ = str(caught.value).splitlines()
    assert first == "kernel of foreign::square for CPU is already registered"
    assert registered.startswith(f"  registered at: {__file__}:")
    with ow.Library("foreign", "IMPL") as lib:
        lib.impl("square", lambda x, scale=1.0: x, "CUDA", allow_override=False)


# rules


def test_row_71_72_77_a_fake_for_an_operator_of_torch(held, custom):
    for target in (held, custom, "foreign::square", torch.ops.foreign.custom):
        handle = ow.register_fake(target, lambda x, scale=1.0: x.new_empty(7))
        op = find(target).lowered["torch"].native
        assert op(torch.empty(3, device="meta")).shape == (7,)
        with torch._subclasses.FakeTensorMode():
            assert op(torch.empty(3)).shape == (7,)
        handle.destroy()
        with pytest.raises((RuntimeError, NotImplementedError)):
            op(torch.empty(3, device="meta"))


def test_row_76_a_fake_of_ours_hides_that_of_torch_while_it_lives(held):
    x = torch.empty(3, device="meta")
    lib = torch.library.Library("foreign", "IMPL")
    torch.library.register_fake("foreign::square", lambda x, scale=1.0: x.new_empty(1), lib=lib)
    with ow.Library("foreign", "IMPL") as ours:
        ow.register_fake("foreign::square", lambda x, scale=1.0: x.new_empty(2), lib=ours)
        assert held(x).shape == (2,)
        ow.register_fake("foreign::square", lambda x, scale=1.0: x.new_empty(3), lib=ours)
        assert held(x).shape == (3,)
    assert held(x).shape == (1,)
    lib._destroy()


def test_row_74_75_a_fake_that_may_not_override(held):
    text = r"fake rule of aten::sin is already registered\n.*\n  registered at: .*_meta_registrations.py"
    with pytest.raises(RuntimeError, match=text):
        ow.register_fake("aten::sin", lambda self: self, allow_override=False)
    with ow.Library("foreign", "IMPL") as lib:
        ow.register_fake(held, lambda x, scale=1.0: torch.empty_like(x), lib=lib, allow_override=False)
        with pytest.raises(DuplicateError, match=rf"registered at: {__file__}"):
            ow.register_fake(held, lambda x, scale=1.0: torch.empty_like(x), allow_override=False)


@pytest.mark.parametrize("allow_override", [True, False])
def test_row_75_a_fake_of_an_implicit_composite_is_refused(allow_override):
    with pytest.raises(RegistrationError) as caught:
        ow.register_fake("aten::linear", torch.nn.functional.linear, allow_override=allow_override)
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "fake rule of aten::linear was refused: the operator has a kernel for CompositeImplicitAutograd and "
        "runs as what that calls, so a fake would never run"
    )
    assert "RegisterCompositeImplicitAutograd" in lines[2]


def test_a_meta_kernel_of_an_implicit_composite_is_refused():
    text = (
        "kernel of aten::linear for Meta was refused: the operator has a kernel for CompositeImplicitAutograd"
    )
    with ow.Library("aten", "IMPL") as lib, pytest.raises(RegistrationError, match=text):
        lib.impl("linear", torch.nn.functional.linear, "Meta")
    assert find("aten::linear").kernels == ()


def test_a_kernel_may_take_dispatch_keys_beside_numpy_arrays(held):
    def kernel(keyset, x: np.ndarray, scale: float = 1.0) -> np.ndarray:
        assert keyset.has(torch.DispatchKey.CPU)
        assert type(x) is np.ndarray
        return x + scale

    with ow.Library("foreign", "IMPL") as lib:
        lib.impl("square", kernel, "CPU", with_keyset=True)
        assert held(torch.ones(1)) == 2
    assert held(torch.ones(1)) == 1


def _square_rules(target):
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad * ctx.scale, None

    return ow.register_autograd(target, backward, setup_context=setup_context)


def test_a_gradient_for_an_operator_of_torch(held):
    handle = _square_rules(held)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    held(x, 3.0).sum().backward()
    assert torch.equal(x.grad, 6 * x.detach())
    plain = x.detach()
    assert torch.equal(torch.func.grad(lambda x: held(x).sum())(plain), 2 * plain)
    assert torch.equal(torch.func.jacfwd(held)(plain), torch.diag(2 * plain))
    assert torch.allclose(torch.func.hessian(lambda x: (held(x) * x).sum())(plain), torch.diag(6 * plain))
    handle.destroy()
    assert "square" not in type(held(x).grad_fn).__name__


def test_a_gradient_for_a_custom_op_of_torch_that_has_none(custom):
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x.cos() * grad * ctx.scale, None

    handle = ow.register_autograd(custom, backward, setup_context=setup_context)
    x = torch.randn(3, requires_grad=True)
    custom(x).sum().backward()
    assert torch.allclose(x.grad, x.detach().cos())
    handle.destroy()
    with pytest.raises(RuntimeError, match="no autograd formula"):
        custom(x).sum().backward()


def test_a_gradient_for_an_operator_that_has_one_is_refused(custom):
    def backward(ctx, grad):
        return grad

    with pytest.raises(DuplicateError) as caught:
        ow.register_autograd("aten::sin", backward)
    lines = str(caught.value).splitlines()
    assert lines[0] == "autograd rule of aten::sin was refused: torch holds an autograd formula for it"
    assert "VariableType" in lines[2]
    assert lines[3] == "  to fix: Library('aten', 'IMPL').impl(..., 'Autograd') replaces it"
    assert find("aten::sin").rules == ()

    custom.register_autograd(lambda ctx, grad: (grad, None))
    text = rf"foreign::custom was refused.*\n.*\n  registered at: {__file__}"
    with pytest.raises(DuplicateError, match=text):
        ow.register_autograd(custom, backward)
    with pytest.raises(DuplicateError, match="jvp rule of aten::sin was refused"):
        ow.register_jvp("aten::sin", lambda ctx, t: t)


def test_a_gradient_for_an_implicit_composite_goes_before_that_of_what_it_calls():
    lib = torch.library.Library("foreign", "FRAGMENT")
    lib.define("composite(Tensor x) -> Tensor")
    lib.impl("composite", lambda x: x.sin())
    op = torch.ops.foreign.composite.default
    x = torch.randn(2, requires_grad=True)
    handle = ow.register_autograd(op, lambda ctx, grad: grad * 7)
    op(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 7.0))
    handle.destroy()
    x.grad = None
    op(x).sum().backward()
    assert torch.allclose(x.grad, x.detach().cos())
    lib._destroy()


def test_a_gradient_for_a_mutating_operator_of_torch_is_refused():
    lib = torch.library.Library("foreign", "FRAGMENT")
    lib.define("mutate(Tensor(a!) x) -> ()")
    with pytest.raises(RegistrationError) as caught:
        ow.register_autograd("foreign::mutate", lambda ctx, grad: grad)
    assert str(caught.value).splitlines()[0] == (
        "Cannot register autograd formula for non-functional operator foreign::mutate"
    )
    lib._destroy()


def test_a_tangent_alone(held):
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(inputs[0])
        ctx.scale = inputs[1]

    handle = ow.register_jvp(
        held, lambda ctx, t, _: 2 * ctx.saved_tensors[0] * t * ctx.scale, setup_context=setup_context
    )
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(torch.func.jvp(held, (x,), (torch.ones(2),))[1], 2 * x)
    x.requires_grad_()
    with pytest.raises(MissingRuleError, match="no autograd formula"):
        held(x).sum().backward()
    handle.destroy()


def test_row_92_a_batching_rule(held, custom):
    calls = []

    def rule(info, in_dims, x, scale=1.0):
        calls.append((info.batch_size, in_dims))
        return x + 1, in_dims[0]

    x = torch.zeros(2, 3)
    for target in (held, custom):
        op = find(target).lowered["torch"].native
        handle = ow.register_vmap(target, rule)
        assert torch.equal(torch.vmap(op, in_dims=1)(x), torch.ones(3, 2))
        assert calls.pop() == (3, (1, None))
        handle.destroy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its slow loop
            assert torch.equal(torch.vmap(op, in_dims=1)(x), torch.zeros(3, 2))
        assert calls == []


def test_a_batching_rule_for_a_builtin_hides_that_of_torch():
    x = torch.randn(2, 3)
    handle = ow.register_vmap("aten::sin", lambda info, in_dims, self: (self + 5, in_dims[0]))
    assert torch.equal(torch.vmap(torch.sin)(x), x + 5)
    handle.destroy()
    assert torch.equal(torch.vmap(torch.sin)(x), x.sin())


def test_autocast_for_an_operator_of_torch(held, custom):
    x = torch.ones(2)
    for target in (held, "aten::sin"):
        op = find(target).lowered["torch"].native
        handle = ow.register_autocast(target, "cpu", torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert op(x).dtype == torch.bfloat16
        assert op(x).dtype == torch.float32
        handle.destroy()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert op(x).dtype == torch.float32


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_row_98_a_rule_for_a_dispatch_mode(held, custom):
    x = torch.ones(2)
    for target in (held, custom, torch.ops.aten.sin, "aten::sin"):
        op = find(target).lowered["torch"].native
        before = op(x)
        first = ow.register_torch_dispatch(target, Mode, lambda mode, func, types, args, kw: args[0] + 10)
        second = ow.register_torch_dispatch(target, Mode, lambda mode, func, types, args, kw: args[0] + 20)
        with Mode():
            assert torch.equal(op(x), x + 20)
            second.destroy()
            assert torch.equal(op(x), x + 10)
            first.destroy()
            assert torch.equal(op(x), before)
        assert torch.equal(op(x), before)


def test_a_rule_for_a_mode_that_torch_holds(held):
    lib = torch.library.Library("foreign", "IMPL")
    torch.library.register_torch_dispatch(held, Mode, lambda *args: args[3][0], lib=lib)
    with pytest.raises(DuplicateError) as caught:
        ow.register_torch_dispatch(held, Mode, lambda *args: args[3][0])
    assert str(caught.value).splitlines()[0] == (
        "torch_dispatch rule of foreign::square for Mode is already registered, through torch.library"
    )
    assert find(held).rules == ()
    lib._destroy()


def test_an_operator_of_a_stale_record_says_so():
    lib = torch.library.Library("foreign", "FRAGMENT")
    lib.define("gone(Tensor x) -> Tensor")
    record = find("foreign::gone")
    lib._destroy()
    lib = torch.library.Library("foreign", "FRAGMENT")
    lib.define("gone(Tensor x) -> Tensor")
    find("foreign::gone")
    with pytest.raises(StaleError, match="gone was destroyed or redefined by the torch Library that defined"):
        registry.require_live(record)
    lib._destroy()


def test_registrations_before_torch_is_there_reach_it():
    script = """
import sys
import opwright as ow
lib = ow.Library("aten", "IMPL")
lib.impl("sin", lambda self: self + 1, "CPU")
ow.register_kernel("aten::cos", "cpu", lambda self: self + 2)
more = {"aten::tan": 3}
lib.fallback(lambda op, *args, **kwargs: op(*args, **kwargs) + more.get(op.name(), 0), "Autocast")
assert "torch" not in sys.modules
import torch
assert torch.sin(torch.zeros(1)) == 0
ow.attach("torch")
assert torch.sin(torch.zeros(1)) == 1
assert torch.cos(torch.zeros(1)) == 2
x = torch.zeros(1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = torch.tan(x)
assert y == 3
lib.destroy()
assert torch.sin(torch.zeros(1)) == 0
with torch.autocast("cpu", dtype=torch.bfloat16):
    assert torch.tan(x) == 0
print("done")
"""
    command = [sys.executable, "-W", "error", "-c", script]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (out.stdout, out.stderr) == ("done\n", "")


def test_a_rule_is_the_first_thing_that_is_done():
    script = """
import torch
import opwright as ow
torch.library.define("first::op", "(Tensor x) -> Tensor")
ow.register_fake("first::op", lambda x: x.new_empty(5))
print(tuple(torch.ops.first.op(torch.empty(1, device="meta")).shape))
"""
    command = [sys.executable, "-W", "error", "-c", script]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (out.stdout, out.stderr) == ("(5,)\n", "")


def test_what_waits_is_registered_once_torch_holds_the_operator():
    handle = ow.register_kernel("foreign::awaited", "cpu", lambda x: x + 1)
    lib = torch.library.Library("foreign", "FRAGMENT")
    lib.define("awaited(Tensor x) -> Tensor")
    ow.attach("torch")
    assert torch.ops.foreign.awaited(torch.zeros(1)) == 1
    handle.destroy()
    assert not has_kernel("foreign::awaited", "CPU")
    lib._destroy()


def test_what_waits_for_an_overload_that_torch_does_not_have():
    handle = ow.register_kernel("foreign::unnamed", "cpu", lambda x: x + 1)
    lib = torch.library.Library("foreign", "FRAGMENT")
    lib.define("unnamed.tensor(Tensor x) -> Tensor")
    text = "kernel for CPU of foreign::unnamed registered at .* waits in vain: foreign::unnamed has no "
    with pytest.warns(registry.PendingWarning, match=text):
        ow.attach("torch")
    handle.destroy()
    assert "foreign::unnamed.default" not in registry.pending
    lib._destroy()
