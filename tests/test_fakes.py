"""``FakeArray``: metadata alone; everything that needs data raises."""

from __future__ import annotations

import operator
import weakref

import numpy as np
import pytest

import opwright as ow
from opwright import catalogue
from opwright.errors import FakeError
from opwright.fakes import INSTEAD, FakeArray, FakeContext, fake_of
from opwright.sizes import symbol

n = symbol("n")


@pytest.fixture
def x():
    return ow.FakeArray(("n", 3), "float32", "cuda:0")


def test_metadata(x):
    assert x.shape == (n, 3)
    assert x.dtype == np.float32
    assert x.device == "cuda:0"
    assert x.ndim == x.dim() == 2
    assert x.numel() == x.size == 3 * n
    assert x.itemsize == x.element_size() == 4
    assert x.nbytes == 12 * n
    assert (x.is_floating_point(), x.is_complex(), x.is_contiguous()) == (True, False, True)
    assert repr(x) == "FakeArray((n, 3), float32, cuda:0)"
    assert ow.FakeArray((2,), "complex64").is_complex()
    assert not ow.FakeArray((2,), "complex64").is_floating_point()


def test_defaults():
    assert repr(ow.FakeArray(3)) == "FakeArray((3,), float64, cpu)"
    assert repr(ow.FakeArray(())) == "FakeArray((), float64, cpu)"


def test_size_is_numpys_and_torchs():
    x = ow.FakeArray((2, 3))
    assert x.size == 6
    assert isinstance(x.size, int)
    assert x.size() == (2, 3)
    assert x.size(0) == 2
    assert x.size(-1) == 3
    assert len(x) == 2


def test_transposes(x):
    assert repr(x.T) == "FakeArray((3, n), float32, cuda:0)"
    assert repr(ow.FakeArray((2, 3, "n")).mT) == "FakeArray((2, n, 3), float64, cpu)"
    with pytest.raises(FakeError) as caught:
        ow.FakeArray((3,)).mT
    assert str(caught.value) == "mT needs two axes\n  got: FakeArray((3,), float64, cpu)"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: x.new_empty((2, "m")), "FakeArray((2, m), float32, cuda:0)"),
        (lambda x: x.new_empty(2, n), "FakeArray((2, n), float32, cuda:0)"),
        (lambda x: x.new_empty(()), "FakeArray((), float32, cuda:0)"),
        (lambda x: x.new_empty(3), "FakeArray((3,), float32, cuda:0)"),
        (lambda x: x.new_zeros(x.shape[:1], dtype=np.int64), "FakeArray((n,), int64, cuda:0)"),
        (lambda x: x.new_ones([2 * x.shape[0]], device="cpu"), "FakeArray((2*n,), float32, cpu)"),
        (lambda x: x.new_full((2, 2), 7.0), "FakeArray((2, 2), float32, cuda:0)"),
        (lambda x: x.astype("bool"), "FakeArray((n, 3), bool, cuda:0)"),
    ],
)
def test_new_arrays(x, make, text):
    assert repr(make(x)) == text


BINARY = [
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift"),
    *("and_", "xor", "or_", "lt", "le", "gt", "ge", "eq", "ne"),
]


@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_is_refused(x, name):
    function = getattr(operator, name)
    with pytest.raises(FakeError, match="has no data, so __"):
        function(x, 2)
    with pytest.raises(FakeError, match="has no data, so __"):
        function(2, x)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: divmod(x, 2),
        lambda x: -x,
        lambda x: +x,
        abs,
        lambda x: ~x,
        lambda x: x[0],
        lambda x: operator.setitem(x, 0, 1),
        lambda x: 3 in x,
        iter,
        bool,
        int,
        float,
        complex,
        operator.index,
        np.asarray,
        np.sin,
        np.sum,
        lambda x: np.add(np.ones(3), x),
        lambda x: np.ones(3) + x,
        lambda x: operator.iadd(x, 1),
        lambda x: x.__dlpack__(),
    ],
)
def test_what_needs_data_is_refused(x, use):
    with pytest.raises(FakeError, match=r"FakeArray.* has no data, so \w+ cannot be computed"):
        use(x)


def test_the_whole_text(x):
    with pytest.raises(FakeError) as caught:
        x * 2
    assert str(caught.value) == (
        "FakeArray((n, 3), float32, cuda:0) has no data, so __mul__ cannot be computed\n"
        f"  expected: metadata alone: {INSTEAD}\n"
        "  to fix: return opwright.empty_like(x) or x.new_empty(shape, dtype=...); for what arithmetic "
        "gives, opwright.broadcast_shapes and opwright.result_type"
    )
    assert isinstance(caught.value, TypeError)
    for name in ("new_empty", "empty_like", "broadcast_shapes", "result_type"):
        assert name in str(caught.value)


def test_torchs_functions_are_refused(x):
    torch = pytest.importorskip("torch")
    with pytest.raises(FakeError, match=r"^FakeArray has no data, so sin cannot be computed"):
        torch.sin(x)


def test_jaxs_functions_are_refused(x):
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(TypeError):
        jnp.sin(x)


def test_other_attributes(x):
    with pytest.raises(AttributeError) as caught:
        x.sum()
    assert str(caught.value) == f"a FakeArray has no 'sum'\n  expected: {INSTEAD}"
    assert not hasattr(x, "__cuda_array_interface__")


def test_len_of_a_0d_fake():
    with pytest.raises(TypeError, match=r"^len\(\) of a 0-d array$"):
        len(ow.FakeArray(()))


def test_a_fake_is_hashed_by_identity(x):
    assert len({x, x}) == 1
    assert weakref.ref(x)() is x


def test_the_catalogue_knows_fakes(x):
    info = catalogue.framework_of_class(FakeArray)
    assert (info.name, info.flavours) == ("fake", ())
    assert "fake" not in catalogue.flavours()


def test_sizes_of_other_libraries_stay_as_they_are():
    jax = pytest.importorskip("jax")
    from jax import export

    a, b = export.symbolic_shape("a, b")
    x = ow.FakeArray((a, b, 3), jax.numpy.float32)
    assert x.shape[0] is a
    assert x.numel() == 3 * a * b
    assert ow.broadcast_shapes(x.shape, (b, 1)) == (a, b, 3)
    assert str(x.new_empty((a + 1, 2 * b)).shape) == "(a + 1, 2*b)"


def test_fake_of():
    assert repr(fake_of(np.ones((2, 3), np.int8))) == "FakeArray((2, 3), int8, cpu)"
    assert repr(fake_of(np.float32(1))) == "FakeArray((), float32, cpu)"
    x = FakeArray(("n",))
    assert fake_of(x) is x


def test_dynamic_sizes():
    ctx = FakeContext()
    size = ctx.new_dynamic_size(min=2, max=9)
    assert (size >= 2, size > 9) == (True, False)
    assert ctx.new_dynamic_size() != -1
    assert len({ctx.new_dynamic_size(), ctx.new_dynamic_size(), size}) == 3


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"min": -1}, "new_dynamic_size: min must not be negative\n  got: -1"),
        ({"min": 4, "max": 3}, "new_dynamic_size: max must not be below min\n  got: min=4, max=3"),
    ],
)
def test_dynamic_sizes_with_wrong_bounds(bounds, text):
    with pytest.raises(ValueError) as caught:
        FakeContext().new_dynamic_size(**bounds)
    assert str(caught.value) == text


def test_sizes_of_torch_stay_as_they_are():
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    size = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(6, 7)).shape[0]
    x = ow.FakeArray((size, 3))
    assert x.shape[0] is size
    assert type(x.numel()) is torch.SymInt
    assert ow.broadcast_shapes(x.shape, (1,))[0] is size
