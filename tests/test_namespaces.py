"""``array_namespace`` for every framework's arrays; it imports none."""

from __future__ import annotations

import subprocess
import sys

import array_api_compat.numpy
import numpy as np
import pytest

import opwright as ow
from opwright import fake_namespace
from opwright.errors import ArgumentError, MixedFrameworksError


@pytest.mark.parametrize(
    "arrays",
    [
        (np.ones(2),),
        (np.float32(1.0),),
        (np.ones(2), np.ones(3)),
        ([np.ones(2), None], 3, 2.0, None),
        (np.ma.array([1.0]),),
    ],
)
def test_numpy(arrays):
    assert ow.array_namespace(*arrays) is array_api_compat.numpy


def test_torch():
    torch = pytest.importorskip("torch")
    from opwright.frameworks.torch import namespace

    assert ow.array_namespace(torch.ones(2)) is namespace
    assert ow.array_namespace(torch.nn.Parameter(torch.ones(2)), [torch.ones(1)]) is namespace
    seen = []
    torch.vmap(lambda x: seen.append(ow.array_namespace(x)) or x)(torch.ones(2))
    assert seen == [namespace]
    assert namespace.cos is torch.cos
    assert {"cos", "linalg", "moveaxis"} <= set(dir(namespace))


@pytest.mark.parametrize("name", ["moveaxis", "unstack", "vecdot", "sign"])
def test_what_torch_is_given_can_be_batched_twice(name):
    torch = pytest.importorskip("torch")
    call = {
        "moveaxis": lambda xp, x: xp.moveaxis(x, -1, 0),
        "unstack": lambda xp, x: xp.unstack(x, axis=1)[1],
        "vecdot": lambda xp, x: xp.vecdot(x, xp.moveaxis(x, 0, 0), axis=0),
        "sign": lambda xp, x: xp.sign(x),
    }[name]
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    x[0, 0, 0, :2] = 0.0, np.nan
    batched = torch.vmap(torch.vmap(lambda t: call(ow.array_namespace(t), t)))(torch.tensor(x))
    each = [[call(array_api_compat.numpy, one) for one in row] for row in x]
    np.testing.assert_allclose(batched.numpy(), np.array(each), rtol=1e-12)


def test_sign_of_complex_tensors():
    torch = pytest.importorskip("torch")
    x = torch.tensor([0j, 3 + 4j])
    torch.testing.assert_close(ow.array_namespace(x).sign(x), torch.tensor([0j, 0.6 + 0.8j]))


def test_jax():
    jax = pytest.importorskip("jax")
    assert ow.array_namespace(jax.numpy.ones(2)) is jax.numpy
    assert ow.array_namespace(jax.numpy.ones(2), np.ones(2)) is jax.numpy
    assert ow.array_namespace(np.ones(2), jax.numpy.ones(2)) is jax.numpy
    seen = []
    jax.jit(lambda x: seen.append(ow.array_namespace(x)) or x)(1.0)
    jax.grad(lambda x: seen.append(ow.array_namespace(x)) or x)(1.0)
    assert seen == [jax.numpy, jax.numpy]


def test_fakes():
    x = ow.FakeArray(("n",))
    assert ow.array_namespace(x) is fake_namespace
    assert ow.array_namespace(np.ones(2), x) is fake_namespace


def test_arrays_of_several_frameworks():
    torch = pytest.importorskip("torch")
    with pytest.raises(MixedFrameworksError) as caught:
        ow.array_namespace(np.ones(2), torch.ones(2))
    assert str(caught.value) == (
        "array_namespace was given arrays of several frameworks\n"
        "  expected: arrays of one framework\n"
        "  got: numpy, torch"
    )


@pytest.mark.parametrize("values", [(), (None,), (2, 3.0), ([],)])
def test_no_array(values):
    with pytest.raises(ArgumentError) as caught:
        ow.array_namespace(*values)
    assert str(caught.value) == "array_namespace needs one array at least\n  got: no array"


def test_what_is_no_array():
    with pytest.raises(ArgumentError) as caught:
        ow.array_namespace("x")
    assert str(caught.value) == (
        "array_namespace takes arrays\n"
        "  expected: arrays of NumPy, PyTorch, JAX or CuPy\n"
        "  got: 'x' of type str"
    )


@pytest.mark.parametrize("package", ["torch", "jax", "cupy"])
def test_no_framework_is_imported(package):
    script = f"""
import sys, numpy, opwright as ow
ow.array_namespace(numpy.ones(2)).cos(numpy.ones(2))
ow.array_namespace(ow.FakeArray((2,)))
print({package!r} in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
