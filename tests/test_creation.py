"""``empty_like``, ``empty``, ``broadcast_shapes``, ``result_type`` on every framework's arrays."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.errors import ContextError
from opwright.fake_context import entered_ctx
from opwright.fakes import FakeContext


def test_empty_like_a_fake():
    x = ow.FakeArray(("n", 3), "float32", "cuda:1")
    assert repr(ow.empty_like(x)) == "FakeArray((n, 3), float32, cuda:1)"
    assert repr(ow.empty_like(x, dtype=np.int8, device="cpu")) == "FakeArray((n, 3), int8, cpu)"


def test_empty_like_numpy():
    out = ow.empty_like(np.ones((2, 3), np.float32), dtype="int64")
    assert (out.shape, out.dtype) == ((2, 3), np.int64)
    assert ow.empty_like(np.float64(1.0)).shape == ()
    out = ow.empty((4,), like=np.ones(2, np.int16))
    assert (out.shape, out.dtype) == ((4,), np.int16)
    assert ow.empty(4, like=np.ones(2), dtype=bool).dtype == bool


def test_torch():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3, dtype=torch.float64)
    out = ow.empty_like(x)
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert ow.empty_like(x, dtype=np.float32).dtype is torch.float32
    assert ow.empty_like(x, dtype="bfloat16").dtype is torch.bfloat16
    assert ow.empty_like(x, device="meta").device.type == "meta"
    out = ow.empty((4, 5), like=x, dtype="int32")
    assert (tuple(out.shape), out.dtype) == ((4, 5), torch.int32)
    assert ow.result_type(x, torch.ones(2, dtype=torch.int64)) is torch.float64


def test_torch_under_vmap_and_fake_mode():
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    out = torch.vmap(lambda x: ow.empty((7,), like=x) * 0)(torch.ones(3, 2))
    assert out.shape == (3, 7)
    with FakeTensorMode():
        out = ow.empty_like(torch.ones(3))
    assert type(out).__name__ == "FakeTensor"


def test_jax():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    x = jnp.ones((2, 3), jnp.float32)
    assert ow.empty_like(x).shape == (2, 3)
    assert ow.empty_like(x, dtype=np.int32).dtype == jnp.int32
    out = jax.jit(lambda x: ow.empty((4, x.shape[0]), like=x, dtype="int32"))(x)
    assert (out.shape, out.dtype) == ((4, 2), jnp.int32)
    assert ow.result_type(x, jnp.int32) == jnp.float32


def test_empty_without_like_outside_a_fake():
    with pytest.raises(ContextError) as caught:
        ow.empty((3,))
    assert str(caught.value) == (
        "opwright.empty without like= can only be called inside a fake\n  to fix: pass like=x"
    )


def test_empty_without_like_inside_a_fake():
    with entered_ctx(FakeContext()):
        assert repr(ow.empty(("n",))) == "FakeArray((n,), float64, cpu)"
        assert repr(ow.empty((2, 3), dtype="int8", device="cuda")) == "FakeArray((2, 3), int8, cuda)"


def test_arrays_made_of_a_fake_stand_for_the_same_framework():
    x = ow.FakeArray((2, 3), "float32", framework="jax", weak_type=True)
    made = [x.T, x.mT, x.astype("int8"), x.new_empty(4), ow.empty_like(x), ow.empty((), like=x)]
    assert {one.framework for one in made} == {"jax"}
    assert [one.weak_type for one in made] == [True, True, False, False, False, False]
    assert ow.FakeArray((2,)).framework == ""


def test_a_factorys_fake():
    @ow.custom_op("creation::steps", mutates_args=())
    def steps(n: int, dtype: np.dtype) -> np.ndarray:
        return np.arange(n, dtype=dtype)

    @steps.register_fake
    def _(n, dtype):
        return ow.empty((n,), dtype=dtype)

    from opwright.testing import fake

    assert repr(fake(steps, 4, np.dtype("int8"))) == "FakeArray((4,), int8, cpu)"


def test_broadcast_shapes():
    x, y = ow.FakeArray(("n", 1)), ow.FakeArray((5,))
    assert str(ow.broadcast_shapes(x.shape, y.shape)) == "(n, 5)"
    assert ow.broadcast_shapes() == ()
    with pytest.raises(ValueError, match=r"^shapes do not broadcast"):
        ow.broadcast_shapes((2,), (3,))


@pytest.mark.parametrize(
    ("operands", "name"),
    [
        ((ow.FakeArray((2,), "float32"), 1.0), "float32"),
        ((ow.FakeArray((2,), "int32"), 1.5), "float64"),
        ((ow.FakeArray((2,), "float32"), np.float64), "float64"),
        ((ow.FakeArray((2,), "int8"), ow.FakeArray((2,), "uint8")), "int16"),
        ((ow.FakeArray((2,), "float32"), np.ones(2)), "float64"),
        (("float32", "complex64"), "complex64"),
        ((np.int8, 1), "int8"),
        ((ow.FakeArray((2,), "float32"), ow.FakeArray((), "float64")), "float64"),
        ((ow.FakeArray((2,), "float32"), ow.FakeArray(("n",)).shape[0]), "float32"),
    ],
)
def test_result_type(operands, name):
    assert ow.result_type(*operands) == np.dtype(name)


def test_result_type_of_numpy_arrays():
    assert ow.result_type(np.ones(2, np.float32), np.ones(2, np.int64)) == np.float64
