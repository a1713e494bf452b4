"""``result_type`` of tensors is what torch's arithmetic gives, with and without axes, for any number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import opwright as ow
from opwright.testing import fake

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
NUMBERS = (True, 2, 1.5, 1j)
TENSORS = [torch.ones(shape, dtype=dtype) for dtype in DTYPES for shape in ((2,), ())]


@ow.custom_op("promotion::mul", mutates_args=())
def mul(x: ow.Array, y: ow.Array) -> ow.Array:
    return x * y


@ow.custom_op("promotion::mul_numpy", mutates_args=())
def mul_numpy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x * y


@mul.register_fake
@mul_numpy.register_fake
def product(x, y):
    return ow.empty(ow.broadcast_shapes(x.shape, y.shape), like=x, dtype=ow.result_type(x, y))


def test_two_operands():
    for x, y in itertools.product(TENSORS, [*TENSORS, *NUMBERS]):
        assert ow.result_type(x, y) is torch.result_type(x, y), (x, y)
        assert ow.result_type(y, x) is torch.result_type(y, x), (y, x)


def test_three_operands():
    # addcmul takes no booleans, and float16 beside complex numbers is a dtype that torch warns of.
    tensors = [x for x in TENSORS if x.dtype not in (torch.bool, torch.float16)]
    for x, y, z in itertools.product(tensors, repeat=3):
        assert ow.result_type(x, y, z) is torch.addcmul(x, y, z).dtype, (x, y, z)


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_without_data(kind):
    mode = FakeTensorMode()
    made = [x.to("meta") if kind == "meta" else mode.from_tensor(x) for x in TENSORS]
    for x, y in itertools.product(made[::2], made[1::2]):
        assert ow.result_type(x, y) is torch.result_type(x, y)


def test_under_vmap_the_axes_are_those_of_one_element():
    seen = []

    def one(x, y):
        seen.append((ow.result_type(x, y), (x * y).dtype))
        return x * y

    torch.vmap(one)(torch.ones(3, 2), torch.ones(3, dtype=torch.float64))
    assert seen == [(torch.float32, torch.float32)]


def test_dtypes_count_as_those_of_tensors_with_axes():
    x = torch.ones((), dtype=torch.float64)
    assert ow.result_type(x, torch.float32) is torch.float32
    assert ow.result_type(x, "float16") is torch.float16
    assert ow.result_type(torch.float32, torch.int64) == np.float32


def test_other_default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert ow.result_type(torch.ones(2, dtype=torch.int32), 1.0) is torch.float64
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("op", [mul, mul_numpy], ids=["array_api", "numpy"])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.arange(4.0), torch.tensor(2.0, dtype=torch.float64)),
        (torch.ones(2, dtype=torch.float16), torch.tensor(2.0)),
        (torch.ones(2, dtype=torch.int32), torch.tensor(2)),
        (torch.ones(2), torch.ones(2, dtype=torch.int64)),
    ],
)
def test_a_fake_says_what_the_kernel_returns(op, x, y):
    torch._dynamo.reset()
    out = op(x, y)
    meta = op(x.to("meta"), y.to("meta"))
    compiled = torch.compile(lambda x, y: op(x, y) + 0, backend="aot_eager", fullgraph=True)(x, y)
    assert meta.dtype is out.dtype
    assert compiled.dtype is out.dtype
    torch.testing.assert_close(compiled, out)


@pytest.mark.parametrize("op", [mul, mul_numpy], ids=["array_api", "numpy"])
def test_the_checker_passes_it(op):
    x, y = torch.arange(4.0), torch.tensor(2.0, dtype=torch.float64)
    report = ow.opcheck(op, (x, y), test_utils="test_faketensor", frameworks=("numpy", "torch"))
    assert {(one.framework, one.status) for one in report.outcomes if one.law == "fake"} == {
        ("numpy", "passed"),
        ("torch", "passed"),
    }


@pytest.mark.slow
def test_inductor_reads_what_the_kernel_wrote():
    x, y = torch.arange(4.0), torch.tensor(2.0, dtype=torch.float64)
    out = torch.compile(lambda x, y: mul(x, y).sin() + 1)(x, y)
    torch.testing.assert_close(out, (x * y).sin() + 1)


def test_a_torch_kernel_promotes_other_frameworks_arrays_as_torch_does():
    @ow.custom_op("promotion::mul_torch", mutates_args=())
    def mul_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    mul_torch.register_fake(product)
    x, y = np.ones(2, np.float32), np.ones(())
    assert fake(mul_torch, x, y).dtype == mul_torch(x, y).dtype == np.float32
