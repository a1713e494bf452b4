from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.right_operators import OPERATORS
from opwright.checks.runner import opcheck


def report_of(operator, *args, **options):
    options = {"test_utils": "device", "raise_exception": False} | options
    return opcheck(operator, args, **options)


def test_frameworks_without_an_adapter_for_gpus_are_skipped():
    outcome = report_of(OPERATORS["sin"], np.ones(3), frameworks="numpy").outcome("device", "numpy")
    assert (outcome.status, outcome.reason) == ("skipped", "GPUs are looked at with torch's arrays")


def test_without_a_gpu_there_is_nothing_to_look_at():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    outcome = report_of(OPERATORS["sin"], np.ones(3), frameworks="torch").outcome("device", "torch")
    assert (outcome.status, outcome.reason) == ("skipped", "needs a CUDA device, and torch finds none")


# ---------------------------------------------------------------------------------------------- on a GPU


def defined(ns, fn, fake=None, backward=None, cpu=None):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    fn.__annotations__ = dict.fromkeys(("x", "return"), torch.Tensor)
    operator = ow.custom_op(f"{ns}::{fn.__name__}", fn, mutates_args=())
    operator.register_fake(fake or (lambda x: torch.empty_like(x, memory_format=torch.contiguous_format)))
    if backward is not None:
        operator.register_autograd(backward)
    if cpu is not None:
        operator.register_kernel("cpu", cpu)
    return operator, torch.ones(3, dtype=torch.float64)


@pytest.mark.cuda
def test_a_right_operator_passes(ns):
    def double(x):
        return x * 2

    operator, x = defined(ns, double, backward=lambda ctx, grad: grad * 2)
    outcome = report_of(operator, x).outcome("device", "torch")
    assert (outcome.status, outcome.findings) == ("passed", ())


@pytest.mark.cuda
def test_a_mutating_operator_passes_captured_too(ns):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def scale(x, k):
        x.mul_(k)
        return x + 1

    schema = "(Tensor(a!) x, float k) -> Tensor"
    scale_ = ow.custom_op(f"{ns}::scale_", scale, mutates_args=("x",), schema=schema, flavour="torch")
    scale_.register_fake(lambda x, k: torch.empty_like(x))
    outcome = report_of(scale_, torch.ones(2, 3), 2.0).outcome("device", "torch")
    assert (outcome.status, outcome.findings) == ("passed", ())


@pytest.mark.cuda
def test_an_operator_that_says_it_is_unsafe_is_not_captured(ns):
    operator, x = defined(ns, _synchronises)
    tagged = ow.custom_op(f"{ns}::tagged", _synchronises, mutates_args=(), tags=["cudagraph_unsafe"])
    tagged.register_fake(lambda x: x.new_empty(x.shape))
    assert [finding.id for finding in report_of(operator, x).findings] == ["OW1206"]
    outcome = report_of(tagged, x).outcome("device", "torch")
    assert outcome.findings == ()
    assert "the operator is declared unsafe for CUDA graphs (tag cudagraph_unsafe)" in outcome.reason


@pytest.mark.cuda
def test_an_operator_for_the_cpu_alone_is_skipped():
    outcome = report_of(OPERATORS["sin"], np.ones(3), frameworks="torch").outcome("device", "torch")
    assert (outcome.status, outcome.reason) == ("skipped", "no kernel takes arrays on cuda")


def _thrice(x):
    return x * 3


def _raises(x):
    raise ValueError("no luck")


def _elsewhere(x):
    return x.cpu() * 2


def _table(x):
    import torch

    return x * torch.full((1,), 2.0, dtype=x.dtype).to(x.device)


def _waits(x):
    return x * 2 if x.sum().item() > -1e9 else x


def _synchronises(x):
    import torch

    if x.is_cuda:
        torch.cuda.synchronize()
    return x * 2


def _on_a_stream_of_its_own(x):
    import torch

    if not x.is_cuda:
        return x * 2
    capturing = torch.cuda.is_current_stream_capturing()
    stream = torch.cuda.Stream()
    if not capturing:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = x * 2
    if not capturing:
        torch.cuda.current_stream().wait_stream(stream)
    return out


def _nothing_while_captured(x):
    import torch

    return torch.zeros_like(x) if x.is_cuda and torch.cuda.is_current_stream_capturing() else x * 2


def _on_the_cpu(ctx, grad):
    import torch

    return grad * torch.full((3,), 2.0, dtype=grad.dtype)


def _double(x):
    return x * 2


CASES = [
    (_thrice, _double, None, "OW1201", "the output on cuda differs", "2 at index (0,), as on cpu",
     "3; 3 of 3 elements differ", "make the kernels for the devices agree"),
    (_raises, _double, None, "OW1201", "the operator raises on cuda", "the result that it gives on cpu",
     "ValueError: no luck", "correct the kernel for cuda, or register none for it"),
    (_elsewhere, _double, None, "OW1202", "the output is on another device than the arguments", "cuda:0",
     "cpu", "allocate it with torch.empty_like(x)"),
    (_table, None, None, "OW1204", "the kernel copies between devices: aten._to_copy.default",
     "data that stays where it is", "a copy from cpu to cuda:0",
     "keep what the kernel needs on each device, and compute there"),
    (_waits, None, None, "OW1205", "the kernel waits for the GPU", "a call that queues work and returns",
     "RuntimeError: called a synchronizing CUDA operation",
     "compute with tensors instead of numbers: no .item(), .cpu() or if on a tensor"),
    (_synchronises, None, None, "OW1206", "the operator cannot be captured in a CUDA graph",
     "a call that can be captured in a CUDA graph", None,
     "correct the kernel, or declare the operator: tags=['cudagraph_unsafe']"),
    (_on_a_stream_of_its_own, None, None, "OW1206", "the operator cannot be captured in a CUDA graph",
     "a call that can be captured in a CUDA graph", None,
     "correct the kernel, or declare the operator: tags=['cudagraph_unsafe']"),
    (_nothing_while_captured, None, None, "OW1206", "the output of a replayed CUDA graph differs",
     "2 at index (0,), as in a plain call", "0; 3 of 3 elements differ",
     "correct the kernel, or declare the operator: tags=['cudagraph_unsafe']"),
    (_double, None, _on_the_cpu, "OW1201", "the backward raises on cuda", "the gradient that it gives on cpu",
     None, "make new arrays on the device of the arguments"),
]  # fmt: skip


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES, ids=[case[0].__name__ + case[3] for case in CASES])
def test_wrong_operators_are_caught_and_the_cause_is_named(ns, case):
    fn, cpu, backward, *facts = case
    operator, x = defined(ns, fn, cpu=cpu, backward=backward)
    (finding,) = report_of(operator, x).findings
    got = [finding.id, finding.what, finding.expected, finding.got, finding.fix]
    if facts[3] is None:
        facts[3] = finding.got
    assert got == facts
    assert finding.source.startswith(__file__)


@pytest.mark.cuda
def test_the_gpu_of_the_arguments_is_the_one_that_is_used(ns):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    kept = torch.full((1,), 2.0, dtype=torch.float64, device="cuda:0")

    def on_the_first(x):
        return x * (kept if x.is_cuda else 2)

    def always_first(x):
        return (x * 2).to("cuda:0") if x.is_cuda else x * 2

    operator, x = defined(ns, on_the_first)
    (finding,) = report_of(operator, x).findings
    assert [finding.id, finding.what, finding.expected, finding.fix] == [
        "OW1203",
        "the operator raises on the second GPU",
        "the result that it gives on the first GPU",
        "launch on the current device, and keep nothing on a fixed one",
    ]
    operator, x = defined(ns, always_first)
    assert [finding.id for finding in report_of(operator, x).findings] == ["OW1202"]
