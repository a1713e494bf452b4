"""The rules on NumPy: how each is lowered, and rules for subclasses of ``numpy.ndarray``."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import numpy_operators as ops
import opwright as ow
from opwright.errors import ArgumentError, UnsupportedError
from opwright.frameworks.base import RULE_KINDS, load
from opwright.frameworks.fake import FRAMEWORK as FAKE

x = np.ones((2, 3), np.float32)


def test_every_kind_is_lowered_but_functionalization():
    numpy = load("numpy")
    assert {*numpy.lowered, *numpy.unsupported} == set(RULE_KINDS)
    assert set(numpy.unsupported) == {"functionalization"}


def test_cast():
    numpy = load("numpy")
    assert numpy.cast(x, "float16").dtype == np.float16
    assert numpy.cast(x, "float32") is x
    assert numpy.cast(x.astype(int), "float16").dtype == int
    assert numpy.cast(1j * x, "float16").dtype == np.complex64
    assert numpy.accepts(x)
    assert numpy.accepts(np.float64(1))
    assert not numpy.accepts(np.ma.array([1]))


def test_a_framework_without_autocast_of_ours():
    class Own(type(FAKE)):
        cast = load("numpy").__class__.__mro__[1].cast
        name = "own"

    with pytest.raises(UnsupportedError) as caught:
        Own().cast(x, "float16")
    assert str(caught.value) == "opwright.autocast does not act on arrays of own"


class Tagged(np.ndarray):
    """A subclass that operators refuse unless a rule says how."""


class SubTagged(Tagged):
    pass


def test_a_rule_for_a_subclass():
    @ow.custom_op("numpy_rules::double", mutates_args=())
    def double(x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        return x * 2

    with pytest.raises(ArgumentError):
        double(x.view(Tagged))
    calls = []

    def rule(func, types, args, kwargs):
        calls.append((func, types))
        return func(*(arg if arg is None else np.asarray(arg) for arg in args), **kwargs).view(types[0])

    handle = double.register_torch_dispatch(Tagged, rule)
    for cls in (Tagged, SubTagged):
        out = double(x.view(cls))
        assert type(out) is cls
        np.testing.assert_array_equal(np.asarray(out), 2 * x)
    assert type(double(x)) is np.ndarray
    double(x, x.view(Tagged))
    assert calls == [(double, (Tagged,)), (double, (SubTagged,)), (double, (np.ndarray, Tagged))]
    handle.destroy()
    with pytest.raises(ArgumentError):
        double(x.view(Tagged))


def test_a_rule_for_a_subclass_that_passes_the_call_on():
    @ow.custom_op("numpy_rules::passing", mutates_args=())
    def op(x: np.ndarray) -> np.ndarray:
        return x * 2

    op.register_torch_dispatch(Tagged, lambda func, types, args, kwargs: NotImplemented)
    with pytest.raises(ArgumentError):
        op(x.view(Tagged))
    assert op(x).sum() == 12


def test_the_examples_of_the_design():
    out, pull = ow.vjp(ops.sin, x)
    np.testing.assert_allclose(pull(np.ones_like(x))[0], np.cos(x))
    np.testing.assert_allclose(ow.vmap(ops.sin, in_dims=1)(x), np.sin(x).T)
    assert repr(ops.sin(ow.FakeArray(("n", 3)))) == "FakeArray((n, 3), float64, cpu)"
    assert out.dtype == np.float32


@pytest.mark.parametrize("package", ["torch", "jax"])
def test_no_framework_is_imported_for_the_rules(package):
    script = f"""
import sys
import numpy as np
import opwright as ow
import numpy_operators as ops
x = np.ones((2, 3))
ow.vjp(ops.mul, x, x)[1](x)
ow.jvp(ops.gammaln, (x,), (x,))
ow.vmap(ow.vmap(ops.sin))(x)
ops.nonzero(ow.FakeArray(("n", 3)))
with ow.autocast("cpu"):
    ops.sin(x)
print({package!r} in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "False"
