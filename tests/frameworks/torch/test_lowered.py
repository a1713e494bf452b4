"""What the kernels of an operator share: whether two tensors use one storage."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import opwright as ow
from opwright.errors import AliasError
from opwright.frameworks.torch.lowered import shares_storage


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.ones(3),
        lambda: torch.empty(0),
        lambda: torch.ones(3, device="meta"),
        lambda: FakeTensorMode().from_tensor(torch.ones(3)),
        lambda: torch._to_functional_tensor(torch.ones(3)),
    ],
    ids=["data", "no elements", "meta", "fake", "functional"],
)
def test_a_view_shares_its_storage_and_a_copy_does_not(made):
    x = made()
    assert shares_storage(x, x)
    assert shares_storage(x, x.view(-1))
    assert shares_storage(x[1:], x.detach()[:1])
    assert not shares_storage(x, x.clone())


def test_tensors_without_strides():
    x = torch.ones(3)
    sparse = x.to_sparse()
    assert shares_storage(sparse, sparse)
    assert not shares_storage(sparse, x)
    assert not shares_storage(x, sparse)


SPARSE = [lambda x: x.to_sparse(), lambda x: x.expand(2, 2).to_sparse_csr(), lambda x: x.to_mkldnn()]


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("made", SPARSE, ids=["sparse", "csr", "mkldnn"])
def test_kernels_that_take_or_return_tensors_without_storage(ns, made):
    @ow.custom_op(f"{ns}::dense", mutates_args=())
    def dense(x: Tensor, y: Tensor) -> Tensor:
        return x.to_dense() + y

    @ow.custom_op(f"{ns}::pair", mutates_args=())
    def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), y.clone()

    @ow.custom_op(f"{ns}::same", mutates_args=())
    def same(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), y

    y = torch.ones(2)
    x = made(y)
    for _ in range(2):
        assert torch.equal(dense(x, y), x.to_dense() + 1)
        first, second = pair(x, y)
        assert first.layout == x.layout
        assert torch.equal(second, y)
        with pytest.raises(AliasError, match="output 1"):
            same(x, y)
