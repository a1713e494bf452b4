from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.portable_operators import RIGHT as PORTABLE
from opwright.checks import second
from opwright.checks.runner import opcheck


def autograd_of(operator, framework, *args, **options):
    report = opcheck(
        operator, args, frameworks=framework, test_utils="autograd", raise_exception=False, **options
    )
    return report.outcome("autograd", framework)


def test_numpy_has_no_second_derivatives():
    outcome = autograd_of(PORTABLE["sin"], "numpy")
    assert outcome.status == "passed"
    assert outcome.reason == "numpy has no second derivatives of a single operator"


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("name", ["sin", "product_and_sum", "scale_", "stack_rows"])
def test_second_derivatives_of_right_operators_are_right(framework, name):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    quick = autograd_of(PORTABLE[name], framework, level="quick")
    default = autograd_of(PORTABLE[name], framework)
    assert (quick.status, default.status) == ("passed", "passed")
    assert default.comparisons > quick.comparisons


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_backward_that_refuses_a_second_derivative_is_right(framework, ns):
    pytest.importorskip(framework, reason=f"{framework} is not installed")

    def square(x: np.ndarray) -> np.ndarray:
        return x * x

    def backward(ctx, grad: np.ndarray):
        return 2 * grad * ctx.saved_tensors[0]

    operator = ow.custom_op(f"{ns}::square", square, mutates_args=())
    operator.register_fake(lambda x: ow.empty_like(x))
    operator.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    assert operator._record.rule("autograd").flavour == "numpy"
    outcome = autograd_of(operator, framework, np.ones(3))
    assert outcome.status == "passed"
    assert "the backward cannot be differentiated, and says so: " in outcome.reason


def test_what_requires_a_gradient_is_found_in_lists_and_modules():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    parameter = torch.nn.Parameter(torch.ones(2))
    module = torch.nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    found = second._require_gradients
    assert list(found(parameter)) == [""]
    assert list(found([torch.ones(2), parameter])) == ["[1]"]
    assert list(found(module)) == [".weight"]
    assert list(found(torch.nn.Linear)) == []
    assert list(found(3)) == []


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_gradients_are_seen_before_the_framework_makes_them_fit(framework, ns):
    pytest.importorskip(framework, reason=f"{framework} is not installed")

    def double(x: np.ndarray) -> np.ndarray:
        return x * 2

    def backward(ctx, grad):
        return ow.array_namespace(grad).stack([grad, grad])

    operator = ow.custom_op(f"{ns}::double", double, mutates_args=())
    operator.register_fake(lambda x: ow.empty_like(x))
    operator.register_autograd(backward)
    outcome = autograd_of(operator, framework, np.ones(3))
    assert [(finding.id, finding.got) for finding in outcome.findings] == [("OW302", "shape (2, 3)")]
