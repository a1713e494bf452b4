"""get_kernel on operators of torch's own and of ours; rows 99 to 102 of torch.library's behaviours."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

import opwright as ow  # noqa: E402
from opwright.errors import RegistrationError, StaleError  # noqa: E402

CPU = torch.DispatchKeySet("CPU")


@pytest.mark.parametrize(
    "target", ["aten::add.Tensor", torch.ops.aten.add.Tensor], ids=["by name", "by object"]
)
@pytest.mark.parametrize("key", ["CPU", "cpu", torch.DispatchKey.CPU], ids=str)
def test_row_99_call_boxed(target, key):
    kernel = ow.get_kernel(target, key)
    x, y = torch.tensor([1.0]), torch.tensor([2.0])
    assert kernel.call_boxed(CPU, x, y) == 3
    assert kernel.call_boxed(CPU, x, y, alpha=3) == 7
    assert kernel.call_boxed(None, x, y, alpha=3) == 7
    assert repr(kernel) == "<kernel of aten::add.Tensor for CPU (torch's own)>"


def test_row_100_an_override_reaches_the_original():
    x = torch.tensor([1.0, -1.0])
    original = ow.get_kernel("aten::sin", "CPU")
    with ow.Library("aten", "IMPL") as lib:
        lib.impl("sin", lambda keys, self: original.call_boxed(keys, self) + 1, "CPU", with_keyset=True)
        assert torch.allclose(torch.sin(x), original.call_boxed(CPU, x) + 1)
    assert torch.allclose(torch.sin(x), original.call_boxed(CPU, x))


def test_row_100_a_chain_of_overrides():
    x = torch.tensor([1.0])
    plain = torch.sin(x)
    libraries = []
    for number in range(1, 4):
        below = ow.get_kernel("aten::sin", "CPU")
        lib = ow.Library("aten", "IMPL")

        def kernel(keys, self, below=below, number=number):
            return below.call_boxed(keys, self) * 10 + number

        lib.impl("sin", kernel, "CPU", with_keyset=True)
        libraries.append(lib)
    assert torch.allclose(torch.sin(x), plain * 1000 + 123)
    while libraries:
        libraries.pop().destroy()
        left = len(libraries)
        assert torch.allclose(torch.sin(x), plain * 10**left + [0, 1, 12][left])


def test_row_101_a_kernel_whose_registration_is_gone():
    lib = ow.Library("aten", "IMPL")
    lib.impl("sin", lambda self: self + 1, "CPU")
    kernel = ow.get_kernel("aten::sin", "CPU")
    assert kernel.call_boxed(CPU, torch.zeros(1)) == 1
    lib.destroy()
    with pytest.raises(RuntimeError, match="invalidated") as caught:
        kernel.call_boxed(CPU, torch.zeros(1))
    assert isinstance(caught.value, StaleError)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the kernel of aten::sin for CPU was invalidated: its registration is gone"
    assert lines[2] == "  to fix: keep the handle or Library that registered it alive"


def test_row_102_no_kernel_for_the_key():
    lib = torch.library.Library("getk", "FRAGMENT")
    lib.define("held(Tensor x) -> Tensor")
    lib.impl("held", lambda x: x, "CPU")
    with pytest.raises(RuntimeError) as caught:
        ow.get_kernel("getk::held", "CUDA")
    assert isinstance(caught.value, RegistrationError)
    lines = str(caught.value).splitlines()
    assert lines[0] == "getk::held has no kernel for CUDA in torch's dispatcher"
    assert lines[2].startswith(f"  registered at: {__file__}:")
    lib._destroy()


def test_row_102_for_an_operator_of_ours():
    with ow.Library("getk", "FRAGMENT") as lib:
        lib.define("ours(Tensor x) -> Tensor")
        lib.impl("ours", lambda x: x + 1, "CUDA")
        with pytest.raises(RuntimeError) as caught:
            ow.get_kernel("getk::ours", "CPU")
        text = "getk::ours has no kernel for CPU\n  expected: one of those it has: cuda ("
        assert str(caught.value).startswith(text)
        with pytest.raises(RuntimeError, match="getk::ours has no kernel for AutocastCPU"):
            ow.get_kernel("getk::ours", "AutocastCPU")


def test_ours_and_a_chain_of_ours():
    with ow.Library("getk", "FRAGMENT") as lib:
        lib.define("chain(Tensor x, int k=1) -> Tensor")
        lib.impl("chain", lambda x, k: x + k, "CPU")
        first = ow.get_kernel("getk::chain", "CPU")

        def tenfold(keys, x, k):
            return first.call_boxed(keys, x, k) * 10

        second = lib.impl("chain", tenfold, "CPU", with_keyset=True)
        kernel = ow.get_kernel(torch.ops.getk.chain.default, "CPU")
        assert torch.ops.getk.chain(torch.zeros(1)) == ow.ops.getk.chain(torch.zeros(1)) == 10
        assert kernel.call_boxed(CPU, torch.zeros(1), 2) == 20
        assert kernel.call_boxed(CPU, torch.zeros(1), k=3) == 30
        second.destroy()
        with pytest.raises(StaleError, match="the kernel of getk::chain for CPU was invalidated"):
            kernel.call_boxed(CPU, torch.zeros(1))
        assert first.call_boxed(None, torch.zeros(1)) == 1
    with pytest.raises(StaleError, match="invalidated"):
        first.call_boxed(None, torch.zeros(1))


def test_a_kernel_for_every_device_is_the_one_for_the_cpu():
    @ow.custom_op("getk::every", mutates_args=())
    def every(x: Tensor) -> Tensor:
        return x + 1

    assert ow.get_kernel(every, "CPU").call_boxed(None, torch.zeros(1)) == 1
    assert ow.get_kernel(every, "default").call_boxed(None, torch.zeros(1)) == 1


def test_a_numpy_kernel_is_called_with_tensors_and_with_arrays():
    @ow.custom_op("getk::with_numpy", mutates_args=())
    def with_numpy(x: np.ndarray) -> np.ndarray:
        assert type(x) is np.ndarray
        return x + 1

    kernel = ow.get_kernel(with_numpy, "CPU")
    out = kernel.call_boxed(CPU, torch.zeros(2))
    assert torch.equal(out, torch.ones(2))
    assert np.array_equal(kernel.call_boxed(None, np.zeros(2)), np.ones(2))


def test_a_kernel_of_ours_at_a_key_that_only_torch_has():
    with ow.Library("getk", "FRAGMENT") as lib:
        lib.define("autograd(Tensor x) -> Tensor")
        lib.impl("autograd", lambda x: x.clone(), "CPU")
        lib.impl("autograd", lambda x: x + 3, "AutogradCPU")
        assert ow.get_kernel("getk::autograd", "AutogradCPU").call_boxed(None, torch.zeros(1)) == 3


def test_an_unknown_key():
    with pytest.raises(RuntimeError, match="'gpu' is neither a device type nor a dispatch key"):
        ow.get_kernel("aten::sin", "gpu")
    with pytest.raises(RuntimeError, match="operator aten::no_such_operator does not exist"):
        ow.get_kernel("aten::no_such_operator", "CPU")
