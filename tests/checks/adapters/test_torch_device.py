from __future__ import annotations

import numpy as np
import pytest

from checks.torch_operators import define, torch
from opwright.checks.adapters import torch_device
from opwright.checks.adapters.base import adapter, gpu_adapters
from opwright.checks.adapters.results import Unsupported


def test_without_a_gpu_there_is_no_adapter():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert gpu_adapters(adapter("torch")) == Unsupported("needs a CUDA device, and torch finds none")


def test_numpy_has_no_adapter_for_gpus():
    assert gpu_adapters(adapter("numpy")) == Unsupported("GPUs are looked at with torch's arrays")


@pytest.mark.cuda
@pytest.mark.parametrize("array", [np.ones((2, 3)), np.arange(6.0).reshape(2, 3).T, np.ones((4, 6))[:, ::2]])
def test_arrays_go_there_with_their_strides_and_back(array):
    there = gpu_adapters(adapter("torch"))[0]
    tensor = there.array(array.copy(order="K") if array.flags.f_contiguous else array)
    assert (there.device_of(tensor), there.code("x")) == ("cuda:0", "torch.from_numpy(x).to('cuda:0')")
    np.testing.assert_array_equal(there.numpy(tensor), array)


@pytest.mark.cuda
def test_copies_are_seen_in_kernels_of_torchs_functions_alone(ns):
    def copying(x: torch.Tensor) -> torch.Tensor:
        return x.cpu().to(x.device) * 2

    operator = define(copying, ns)
    x = torch.ones(2, device="cuda")
    names = torch_device.copies(operator._record, (x,))
    assert names == [
        ("aten._to_copy.default", "cuda:0", "cpu"),
        ("aten._to_copy.default", "cpu", "cuda:0"),
    ]


@pytest.mark.cuda
def test_the_mode_that_reports_waiting_is_left_as_it_was(ns):
    def waiting(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    operator = define(waiting, ns)
    before = torch.cuda.get_sync_debug_mode()
    error = torch_device.waits(operator._record, (torch.ones(2, device="cuda"),))
    assert str(error) == "called a synchronizing CUDA operation"
    assert torch.cuda.get_sync_debug_mode() == before
