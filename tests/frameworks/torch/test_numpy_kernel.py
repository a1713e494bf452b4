"""NumPy kernels on tensors: which tensors they take, whose memory they see, what may come back."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

import opwright as ow
from opwright.errors import AliasError, OutputError
from opwright.frameworks.torch.convert import NoNumPyError

NS = "torch_numpy"
WITH_ML_DTYPES = pytest.mark.skipif(importlib.util.find_spec("ml_dtypes") is None, reason="needs ml_dtypes")
seen = []


@ow.custom_op(f"{NS}::same", mutates_args=())
def same(x: np.ndarray) -> np.ndarray:
    seen.append(x)
    return x.copy()


@ow.custom_op(f"{NS}::cast", mutates_args=())
def cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    assert isinstance(dtype, np.dtype)
    return x.astype(dtype)


BODY = [lambda x: x]


@ow.custom_op(f"{NS}::body", mutates_args=())
def body(x: np.ndarray) -> np.ndarray:
    return BODY[0](x)


@pytest.fixture(params=["operator", "torch.ops"])
def route(request):
    if request.param == "operator":
        return lambda op: op
    return lambda op: getattr(torch.ops.torch_numpy, op.name.partition("::")[2])


TENSORS = [
    torch.arange(6.0)[::2],
    torch.arange(6.0).reshape(2, 3).T,
    torch.tensor(3.0),
    torch.ones(1).expand(3),
    pytest.param(torch.ones(2, dtype=torch.bfloat16) / 3, marks=WITH_ML_DTYPES),
    torch.ones(2, dtype=torch.float16),
    torch.tensor([1 + 2j]).conj(),
    torch._neg_view(torch.arange(2.0)),
    torch.tensor([True, False]),
    torch.zeros(0, 3),
    torch.ones(2, dtype=torch.uint16),
    torch.ones(2, requires_grad=True),
    torch.nn.Parameter(torch.ones(2)),
    torch._efficientzerotensor(3),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{tuple(t.shape)}")
def test_tensors_that_are_taken(route, tensor):
    for _ in range(2):
        out = route(same)(tensor)
        assert (out.dtype, out.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(out.detach(), tensor.detach().resolve_conj().resolve_neg())
        assert out.is_contiguous()


@WITH_ML_DTYPES
def test_float8_goes_over_by_its_bits(route):
    tensor = torch.tensor([0.5, 1.0]).to(torch.float8_e4m3fn)
    out = route(same)(tensor)
    assert out.dtype == tensor.dtype
    assert torch.equal(out.float(), tensor.float())


def test_the_tensor_s_own_memory_is_seen(route):
    tensor = torch.ones(3)
    for _ in range(2):
        route(same)(tensor)
        assert seen.pop().__array_interface__["data"][0] == tensor.data_ptr()
    seen.clear()


@pytest.mark.parametrize(
    ("tensor", "got"),
    [
        (torch.ones(2).to_sparse(), "torch.float32, torch.sparse_coo, on cpu"),
        (torch.ones(2).to_mkldnn(), "torch.float32, torch._mkldnn, on cpu"),
    ],
)
def test_tensors_that_are_not_taken(route, tensor, got):
    with pytest.raises(NoNumPyError) as error:
        route(same)(tensor)
    assert str(error.value).startswith(
        f"{NS}::same: argument x: a tensor cannot be given to a NumPy kernel\n"
        "  expected: a dense tensor on the CPU, of a dtype that NumPy has\n"
        f"  got: {got}: "
    )
    assert str(error.value).endswith(
        "to fix: convert it first, or register a kernel with torch tensors for it"
    )


def test_without_ml_dtypes(route, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(NoNumPyError) as error:
        route(same)(torch.ones(2, dtype=torch.bfloat16))
    assert str(error.value) == (
        f"{NS}::same: argument x: a NumPy kernel was given a bfloat16 tensor, and NumPy alone has no "
        "bfloat16\n"
        "  to fix: pip install ml_dtypes, or convert the tensor first, for example with .float()"
    )


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: np.flip(x).copy()[::-1], [0.0, 1.0, 2.0]),
        (lambda x: x.sum(), 3.0),
        (lambda x: x.astype(">f4"), [0.0, 1.0, 2.0]),
        (lambda x: np.broadcast_to(np.float32(2.0), (3,)), [2.0, 2.0, 2.0]),
    ],
    ids=["negative strides", "a scalar", "big-endian", "read-only"],
)
def test_results_that_become_tensors(route, fn, expected):
    BODY[0] = fn
    for _ in range(2):
        out = route(body)(torch.arange(3.0))
        assert torch.equal(out, torch.tensor(expected))
        assert out.is_contiguous()
        out += 1  # it can be written to


def test_a_result_of_a_dtype_that_torch_lacks(route):
    BODY[0] = lambda x: x.astype(np.longdouble)
    with pytest.raises(OutputError) as error:
        route(body)(torch.ones(2))
    assert str(error.value).splitlines()[:2] == [
        f"{NS}::body: output 0: a NumPy array cannot become a tensor",
        "  expected: a dtype that torch has",
    ]
    assert str(error.value).endswith("to fix: convert it in the kernel, with astype")


@pytest.mark.parametrize("fn", [lambda x: x, lambda x: x[::2], lambda x: x.T])
def test_a_result_that_shares_memory(route, fn):
    BODY[0] = fn
    for _ in range(2):
        with pytest.raises(AliasError, match="may not alias"):
            route(body)(torch.ones(3))


def test_a_result_that_is_no_array(route):
    BODY[0] = lambda x: [1, 2]
    with pytest.raises(OutputError) as error:
        route(body)(torch.ones(3))
    assert str(error.value) == (
        f"kernel of {NS}::body returned something else than its schema says\n"
        f"  expected: an array of numpy as output 0: {NS}::body(Tensor x) -> Tensor\n"
        "  got: list of 2 (int, int)\n"
        f"  registered at: {body._record.source}"
    )


@pytest.mark.parametrize(
    ("fn", "got"),
    [
        (lambda x: np.ma.masked_less(x * 2, 0), "numpy.ma.MaskedArray"),
        (lambda x: (x * 2).view(np.recarray), f"{np.recarray.__module__}.recarray"),
    ],
)
def test_a_result_with_more_than_its_elements(route, fn, got):
    BODY[0] = fn
    calls = [lambda: body(np.asarray([-1.0, 2.0])), lambda: route(body)(torch.tensor([-1.0, 2.0]))]
    for call in calls:
        with pytest.raises(OutputError) as error:
            call()
        assert str(error.value) == (
            f"kernel of {NS}::body returned something else than its schema says\n"
            f"  expected: an array of numpy as output 0: {NS}::body(Tensor x) -> Tensor\n"
            f"  got: {got}\n"
            f"  registered at: {body._record.source}"
        )


def test_dtypes_are_numpy_s(route):
    for given in (torch.float64, np.float64, "float64") if route(cast) is cast else (torch.float64,):
        assert route(cast)(torch.ones(2), given).dtype == torch.float64
