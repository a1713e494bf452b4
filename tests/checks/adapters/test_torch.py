from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.portable_operators import RIGHT, WRONG
from opwright.checks.adapters.base import adapter, installed
from opwright.checks.runner import opcheck
from opwright.errors import OpCheckError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(name="torch_adapter")
def fixture_torch_adapter():
    return adapter("torch")


@pytest.mark.parametrize("name", RIGHT)
def test_right_operators_pass(name):
    report = opcheck(RIGHT[name], frameworks="torch")
    assert report.ok, str(report)
    assert report.outcome("schema", "torch").status == "passed"


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operators_are_caught(name):
    operator, ids = WRONG[name]
    report = opcheck(operator, frameworks="torch", raise_exception=False)
    assert {finding.id for finding in report.findings} == ids, str(report)
    for finding in report.findings:
        exec(compile(finding.snippet, finding.id, "exec"), {})


def test_tensors_keep_the_layout_of_arrays(torch_adapter):
    array = np.ones((3, 4)).T
    tensor = torch_adapter.array(array)
    assert tensor.stride() == (1, 4)
    assert not np.shares_memory(torch_adapter.numpy(tensor), array)
    torch_adapter.array(array).resize_(20)  # the storage is torch's own
    assert torch_adapter.array(np.broadcast_to(np.ones(3), (2, 3)).copy(order="K")).shape == (2, 3)


def test_memory_is_shared_where_the_storage_is(torch_adapter):
    x = torch.ones(4)
    assert torch_adapter.shares_memory(x, x[1:])
    assert not torch_adapter.shares_memory(x, x.clone())
    assert not torch_adapter.shares_memory(torch.ones(0), torch.ones(0))


def test_strides_of_a_torch_kernel_are_compared():
    @ow.custom_op("portable::strided", mutates_args=())
    def strided(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x).contiguous()

    @strided.register_fake
    def _(x):
        return torch.empty_like(x)

    report = opcheck(strided, (torch.ones(3, 4).T,), raise_exception=False)
    assert report.frameworks == ["torch"]
    assert [finding.id for finding in report.findings] == ["OW204"]
    assert report.findings[0].what == "fake and kernel disagree on the strides of the output"
    assert report.findings[0].expected == "(3, 1), as the kernel returns"
    assert report.findings[0].got == "(1, 4)"


def test_a_tensor_that_requires_a_gradient_asks_for_a_formula():
    @ow.custom_op("portable::no_formula", mutates_args=())
    def no_formula(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    no_formula.register_fake(torch.empty_like)
    report = opcheck(no_formula, (torch.ones(3, requires_grad=True),), raise_exception=False)
    assert [finding.id for finding in report.findings] == ["OW305"]
    assert opcheck(no_formula, (torch.ones(3),)).outcome("autograd", "torch").status == "skipped"


def test_the_error_is_torchs_own_too_where_that_is_loaded():
    optests = pytest.importorskip("torch.testing._internal.optests", reason="this torch has no optests")
    operator, _ = WRONG["wrong_factor"]
    with pytest.raises(optests.OpCheckError) as raised:
        opcheck(operator, frameworks="torch")
    assert isinstance(raised.value, OpCheckError)
    assert type(raised.value).__name__ == "OpCheckError"


def test_it_is_among_the_frameworks_by_default():
    assert installed("torch")
    report = opcheck(RIGHT["sort"], test_utils="schema")
    assert report.frameworks[:2] == ["numpy", "torch"]


def test_operators_of_torchs_own_are_checked():
    report = opcheck(torch.ops.aten.sin.default, (torch.ones(3),))
    assert report == dict.fromkeys(report, "SUCCESS")
    assert report.outcome("fake", "torch").status == "passed"
    assert report.outcome("autograd", "torch").reason == "torch has the rules of its own operators"


def test_operators_of_torch_library_are_checked():
    @torch.library.custom_op("portable::of_torch", mutates_args=())
    def of_torch(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    of_torch.register_fake(lambda x: x.new_empty((*x.shape, 1)))
    report = opcheck(of_torch, (torch.ones(3),), raise_exception=False)
    assert [finding.id for finding in report.findings] == ["OW201"]
    assert "op = torch.ops.portable.of_torch.default\n" in report.findings[0].snippet


def test_a_packet_of_torch_is_a_value_error():
    with pytest.raises(ValueError, match="got: a packet of overloads"):
        opcheck(torch.ops.aten.sin, (torch.ones(3),))
