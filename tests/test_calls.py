"""One call bound for the transforms: arguments, namespaces, trees of arrays."""

from __future__ import annotations

import numpy as np
import pytest

import numpy_operators as ops
import opwright as ow
from opwright import modes
from opwright.arrays import describe
from opwright.calls import (
    bind,
    crossings,
    flat,
    is_differentiable,
    mapped,
    named,
    outputs_of,
    split,
)
from opwright.errors import MixedFrameworksError, RegistrationError
from opwright.frameworks.base import load

x = np.ones((2, 3))


def test_bind():
    call = bind("vjp", ops.gammaln, (x,), {"scale": 3})
    assert (call.record, call.framework.name, call.given) == (ops.gammaln._record, "numpy", 1)
    assert call.values[0] is x
    assert call.values[1] == 3
    assert call.device_type == "cpu"
    assert call.xp is ow.array_namespace(x)
    assert call.for_rule("array_api", call.values)[0] is x
    assert call.for_rule("array_api", call.values)[1] == 3.0
    assert bind("vmap", ops.gammaln, (x,), {}).values[1] == 1.0
    assert [array is x for array in call.arrays()] == [True]


def test_bind_of_names_that_do_not_exist():
    with pytest.raises(RegistrationError, match="operator nops::missing does not exist"):
        bind("vjp", "nops::missing", (x,), {})


def test_bind_of_mixed_frameworks():
    torch = pytest.importorskip("torch")
    with pytest.raises(MixedFrameworksError):
        bind("vjp", ops.mul, (x, torch.ones(2, 3)), {})


def test_numpy_beside_jax_is_jaxs():
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(ow.errors.UnsupportedError, match=r"use jax\.vmap"):
        ow.vmap(ops.mul)(x, jnp.ones((2, 3)))


def test_operators_of_a_frameworks_own():
    torch = pytest.importorskip("torch")
    with pytest.raises(ow.errors.UnsupportedError) as caught:
        ow.vmap(torch.ops.aten.sin.default)(x)
    assert str(caught.value) == "aten::sin is an operator of torch, not for arrays of numpy"


def test_cast_and_modes():
    call = bind("vjp", ops.mul, (x, x), {})
    assert call.cast() == (call.values, ())
    handle = ops.mul.register_autocast("cpu", "float32")
    with ow.autocast("cpu"):
        values, stack = call.cast()
    handle.destroy()
    assert [value.dtype.name for value in values] == ["float32"] * 2
    assert [mode.enabled for mode in stack] == [True, False]
    assert modes.MODES.get() == ()


def test_crossings():
    numpy = load("numpy")
    there, back = crossings(numpy, "array_api")
    assert there(x) is x
    assert back([x])[0] is x
    torch = pytest.importorskip("torch")
    there, back = crossings(numpy, "torch")
    tensors = there([x, None, 3])
    assert isinstance(tensors[0], torch.Tensor)
    assert tensors[1:] == [None, 3]
    assert np.shares_memory(back(tensors)[0], x)
    assert isinstance(there({"a": x})["a"], torch.Tensor)


def test_trees():
    assert [array is x for array in flat([x, None, [x]])] == [True, True]
    assert flat(None) == []
    assert mapped(lambda a: a.ndim, [x, None, x[0]]) == [2, None, 1]
    assert mapped(lambda a, b: (a.ndim, b), [x, x[0]], 5) == [(2, 5), (1, 5)]
    assert mapped(lambda a, b: b, (x, x), [1, None]) == [1, None]
    assert mapped(lambda a: a, None) is None
    with pytest.raises(ValueError):
        mapped(lambda a, b: b, [x, x], [1])
    assert [name for name, _ in named("xs", [x, None, x])] == ["xs[0]", "xs[2]"]
    assert [name for name, _ in named("x", x)] == ["x"]
    assert named("x", None) == []


def test_split_and_outputs():
    args, kwargs = split(ops.shift._record, (1, 2, 3))
    assert (args, kwargs) == ((1,), {"by": 2, "factor": 3})
    assert outputs_of(ops.sin._record, x)[0] is x
    assert outputs_of(ops.sincos._record, (1, 2)) == [1, 2]
    assert outputs_of(ops.add_._record, None) == []


def test_describe():
    assert describe(np.ones(2, np.int8)) == "shape (2,), dtype int8"
    assert describe(3) == "3 of type int"
    assert [is_differentiable(a) for a in (x, x.astype(int), None, 2.0)] == [True, False, False, False]
