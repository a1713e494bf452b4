"""Functions that take any array which exports DLPack."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright import catalogue
from opwright.errors import UnsupportedError
from opwright.frameworks.base import RULE_KINDS, of_flavour


class Exported:
    """What a compiled extension returns: an array that nobody knows and that exports DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.fixture
def scale(ns):
    @ow.custom_op(f"{ns}::scale", mutates_args=(), flavour="dlpack", schema="(Tensor x, float k) -> Tensor")
    def scale(x, k):
        seen.append(type(x))
        return Exported(np.from_dlpack(x) * k)

    @scale.register_fake
    def fake(x, k):
        return ow.empty_like(x)

    @scale.register_autograd(setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1]))
    def backward(ctx, grad):
        return scale(grad, ctx.k), None

    seen = []
    scale.seen = seen
    return scale


def test_numpy_arrays(scale):
    out = scale(np.ones(3), 2)
    assert type(out) is np.ndarray
    assert out.tolist() == [2, 2, 2]
    assert scale.seen == [np.ndarray]
    out, pull = ow.vjp(scale, np.ones(3), 2.0)
    assert pull(np.ones(3))[0].tolist() == [2, 2, 2]


def test_tensors(scale):
    torch = pytest.importorskip("torch", reason="needs torch")
    x = torch.ones(3, requires_grad=True)
    out = scale(x, 2.0)
    assert type(out) is torch.Tensor
    out.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    conjugated = torch.tensor([1 + 2j]).conj()
    assert torch.equal(scale(conjugated, 2.0), torch.tensor([2 - 4j]))


def test_jax_arrays(scale):
    jax = pytest.importorskip("jax", reason="needs jax")
    x = jax.numpy.ones(3)
    assert isinstance(scale(x, 2.0), jax.Array)
    assert jax.jit(lambda x: scale(x, 2.0) + 1)(x).tolist() == [3, 3, 3]
    assert jax.grad(lambda x: scale(x, 2.0).sum())(x).tolist() == [2, 2, 2]
    batched = jax.vmap(lambda x: scale(x, 2.0))
    with pytest.warns(UserWarning, match="no vmap rule"):
        out = batched(jax.numpy.ones((2, 3)))
    assert out.tolist() == jax.jit(batched)(jax.numpy.ones((2, 3))).tolist() == [[2, 2, 2]] * 2


def test_mutated_arguments(ns):
    ow.define(f"{ns}::scale_", "(Tensor x, float k, Tensor(a!) out) -> Tensor(a!)")

    @ow.register_kernel(f"{ns}::scale_", "cpu", flavour="dlpack")
    def scale_(x, k, out):
        np.from_dlpack(out)[...] = np.from_dlpack(x) * k
        return out

    op = getattr(ow.ops, ns).scale_.default
    out = np.zeros(3)
    assert op(np.ones(3), 2.0, out) is out
    assert out.tolist() == [2, 2, 2]
    torch = pytest.importorskip("torch", reason="needs torch")
    tensor = torch.zeros(3)
    version = tensor._version
    assert op(torch.ones(3), 2.0, tensor) is tensor
    assert tensor.tolist() == [2, 2, 2]
    assert tensor._version > version
    negative = torch.zeros(2, dtype=torch.complex64).conj().imag
    op(torch.ones(2), 2.0, negative)
    assert negative.tolist() == [2, 2]
    for call in (op, getattr(torch.ops, ns).scale_):
        for target in (torch.zeros(2, 3).T, torch.zeros(4)[::2], torch.zeros(1, 2).squeeze(0)):
            assert call(torch.ones(target.shape), 2.0, target) is target
            assert (target == 2).all()


def test_the_flavour_has_no_arrays_of_its_own():
    flavour = of_flavour(catalogue.DLPACK)
    assert set(flavour.unsupported) == set(RULE_KINDS)
    for use in (lambda: flavour.device_type(1), lambda: flavour.specialise(None, ())):
        with pytest.raises(UnsupportedError) as error:
            use()
        assert str(error.value) == "dlpack has no arrays of its own\n  to fix: pass arrays of a framework"
    array = np.ones(2)
    assert flavour.from_numpy(array) is flavour.from_dlpack(array) is flavour.to_numpy(array) is array
    assert type(flavour.to_numpy(Exported(array))) is np.ndarray


def test_a_read_only_array_of_numpy(scale):
    x = np.ones(3)
    x.flags.writeable = False
    seen = []

    def old(x, k):  # a reader of DLPack before version 1.0
        seen.append(x.__dlpack__())
        return Exported(np.from_dlpack(x) * k)

    assert scale(x, 2.0).tolist() == [2, 2, 2]
    assert isinstance(scale.seen[0](0), np.ndarray)
    handle = scale.register_kernel("cpu", old, flavour="dlpack")
    assert scale(x, 2.0).tolist() == [2, 2, 2]
    assert '"dltensor"' in repr(seen[0])
    with pytest.raises(BufferError, match="readonly"):
        x.__dlpack__()
    handle.destroy()
