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


def checked(ns, kernel, *args, **rules):
    """Return the report on an operator of a kernel and rules."""
    operator = ow.custom_op(f"{ns}::{kernel.__name__}", kernel, mutates_args=())
    for kind, (rule, options) in rules.items():
        getattr(operator, f"register_{kind}")(rule, **options)
    return opcheck(operator, args, raise_exception=False)


def test_a_tensor_at_an_offset_has_one_in_the_snippet_too(ns, capsys):
    def from_the_start(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided(x.shape, x.stride(), 0) * 2

    report = checked(ns, from_the_start, torch.arange(3.0), fake=(torch.empty_like, {}))
    assert [finding.what for finding in report.findings] == ["the output differs where x is at an offset"]
    snippet = report.findings[0].snippet
    assert "x = torch.from_numpy(x.base).as_strided((3,), (1,), 1)\n" in snippet
    exec(compile(snippet, "snippet", "exec"), {})
    assert capsys.readouterr().out == "tensor([82.,  0.,  2.])\ntensor([0., 2., 4.])\n"


def test_an_argument_may_be_resized_and_that_is_found(ns):
    def resizes(x: torch.Tensor) -> torch.Tensor:
        out = x * 2
        x.resize_(x.numel() + 1)
        return out

    report = checked(ns, resizes, torch.ones(3), fake=(torch.empty_like, {}))
    assert report.findings[0].what == "the shape, address of argument x changed"
    exec(compile(report.findings[0].snippet, "snippet", "exec"), {})


def test_fakes_are_compared_in_other_layouts(ns):
    def dense(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x).contiguous()

    report = checked(ns, dense, torch.ones(3, 4), fake=(torch.empty_like, {}))
    assert [(finding.id, finding.got) for finding in report.findings] == [("OW204", "(1, 3)")]
    assert report.findings[0].sample.startswith("the given sample, x transposed: ")


def test_a_tangent_of_another_dtype_is_found(ns):
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    rules = {
        "fake": (torch.empty_like, {}),
        "autograd": (lambda ctx, grad: 2 * grad, {"setup_context": lambda ctx, inputs, output: None}),
        "jvp": (lambda ctx, tangent: (2 * tangent).float(), {}),
    }
    report = checked(ns, double, torch.ones(3, dtype=torch.float64), **rules)
    assert [(f.id, f.what, f.expected, f.got) for f in report.findings] == [
        (
            "OW403",
            "the tangent of the output has another dtype than the output",
            "dtype float64",
            "dtype float32",
        )
    ]


def test_a_backward_of_zeros_has_no_tangent_and_that_is_no_finding(ns):
    def whole(x: torch.Tensor) -> torch.Tensor:
        return torch.trunc(x)

    setup = {"setup_context": lambda ctx, inputs, output: None}
    rules = {"fake": (torch.empty_like, {}), "autograd": (lambda ctx, grad: torch.zeros_like(grad), setup)}
    report = checked(ns, whole, torch.tensor([0.3, 1.7], dtype=torch.float64), **rules)
    assert report.ok, str(report)
    assert "a backward that returns zeros" in report.outcome("jvp", "torch").reason


def test_an_index_that_no_longer_fits_is_no_finding(ns):
    def taken(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index].clone()

    fake = (lambda x, index: x.new_empty(index.shape), {})
    report = checked(ns, taken, torch.arange(5.0), torch.tensor([0, 3]), fake=fake)
    assert report.ok, str(report)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_outputs_that_numpy_does_not_have_are_not_compared(ns):
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.complex32)

    report = checked(
        ns, halves, torch.ones(3), fake=(lambda x: torch.empty_like(x, dtype=torch.complex32), {})
    )
    assert {outcome.status for outcome in report.outcomes} == {"skipped"}
    assert report.outcomes[0].reason == "a tensor cannot be given to a NumPy kernel"


def test_a_batch_axis_that_an_output_does_not_have_is_named(ns):
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    rules = {"fake": (torch.empty_like, {}), "vmap": (lambda info, in_dims, x: (x * 2, 5), {})}
    report = checked(ns, doubled, torch.ones(3), **rules)
    assert [(f.id, f.what, f.expected, f.got) for f in report.findings] == [
        (
            "OW503",
            "the vmap rule returned an impossible out_dim for output 0",
            "an axis of output 0, from -2 to 1",
            "5 for shape (3, 3)",
        )
    ]


def test_outputs_that_are_no_tensors_are_left_out_of_transforms(ns):
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x * 2, x.dim()

    report = checked(
        ns,
        twice,
        torch.arange(3.0, dtype=torch.float64),
        fake=(lambda x: (torch.empty_like(x), x.dim()), {}),
        autograd=(lambda ctx, grad, _: grad * 2, {}),
        vmap=(lambda info, in_dims, x: ((x * 2, x.dim() - 1), (in_dims[0], None)), {}),
    )
    assert report.ok, str(report)
    assert [report.outcome(law, "torch").status for law in ("jvp", "vmap")] == ["passed"] * 2


def test_a_vmap_rule_may_refuse(ns):
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def refuse(info, in_dims, x):
        raise NotImplementedError("this has no batches")

    report = checked(ns, twice, torch.ones(3), fake=(torch.empty_like, {}), vmap=(refuse, {}))
    outcome = report.outcome("vmap", "torch")
    assert (outcome.status, outcome.reason) == ("skipped", "this has no batches")
