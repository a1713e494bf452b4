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
    import array_api_compat.torch

    assert ow.array_namespace(torch.ones(2)) is array_api_compat.torch
    assert ow.array_namespace(torch.nn.Parameter(torch.ones(2)), [torch.ones(1)]) is array_api_compat.torch
    seen = []
    torch.vmap(lambda x: seen.append(ow.array_namespace(x)) or x)(torch.ones(2))
    assert seen == [array_api_compat.torch]


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
