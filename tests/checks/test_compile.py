from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import opwright as ow
from checks.right_operators import OPERATORS
from opwright.checks import compile as law
from opwright.checks.runner import opcheck


def outcome_of(operator, framework, *args, **options):
    options = {"test_utils": ["fake", "autograd", "compile"], "raise_exception": False} | options
    return opcheck(operator, args, frameworks=framework, **options).outcome("compile", framework)


def test_numpy_has_no_compiler():
    outcome = outcome_of(OPERATORS["sin"], "numpy", np.ones(3))
    assert (outcome.status, outcome.reason) == ("skipped", "numpy has no compiler")


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize(
    ("level", "fake", "reason"),
    [
        ("quick", lambda x: ow.empty_like(x), "level quick compiles nothing"),
        ("default", None, "no fake is registered"),
        ("default", lambda x: x.new_empty((7,)), "compilers go by the fake: see fake"),
    ],
)
def test_what_is_left_out_is_said(ns, framework, level, fake, reason):
    pytest.importorskip(framework, reason=f"{framework} is not installed")

    def double(x: np.ndarray) -> np.ndarray:
        return x * 2

    operator = ow.custom_op(f"{ns}::double", double, mutates_args=())
    if fake is not None:
        operator.register_fake(fake)
    outcome = outcome_of(operator, framework, np.ones(3), level=level)
    assert (outcome.status, outcome.reason) == ("skipped", reason)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_random_operator_is_compiled_and_its_values_not_compared(framework):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    outcome = outcome_of(OPERATORS["dropout"], framework, np.ones((3, 4)), 0.5)
    assert (outcome.status, outcome.reason) == ("passed", "")


def test_a_value_that_is_asked_for_is_named():
    class TracerBoolConversionError(Exception):
        pass

    outer = RuntimeError("around it")
    outer.__cause__ = TracerBoolConversionError("array of shape ()")
    assert law._said(outer, outer) == (
        "a value is asked for, and there is none while tracing (TracerBoolConversionError)"
    )
    assert law._said(ValueError("no"), ValueError("no")) == "ValueError: no"


def test_a_framework_that_refuses_openly_is_no_fault_of_the_operator():
    pytest.importorskip("jax", reason="JAX is not installed")
    outcome = outcome_of(OPERATORS["nonzero"], "jax", np.ones((2, 2)))
    assert outcome.status == "skipped"
    assert outcome.reason == "right::nonzero has outputs whose size depends on data, which JAX cannot trace"


def test_programs_are_compared_in_double_precision_with_their_gradients():
    pytest.importorskip("jax", reason="JAX is not installed")
    full = outcome_of(OPERATORS["normalised"], "jax", np.ones((2, 3), "float32"))
    alone = outcome_of(OPERATORS["argmax"], "jax", np.ones((2, 3), "float32"))
    assert full.status == alone.status == "passed"
    assert full.comparisons > alone.comparisons


@pytest.mark.parametrize("name", ["portable_sin", "sort"])
def test_vmap_inside_a_program_is_compared_where_there_is_a_rule(name):
    pytest.importorskip("jax", reason="JAX is not installed")
    from checks.portable_operators import RIGHT

    operator = RIGHT[name.removeprefix("portable_")]
    called = []
    rule = operator._record.rule("vmap")
    if rule is not None:
        operator = _watched(operator, called)
    outcome_of(operator, "jax")
    assert bool(called) == (rule is not None)


def _watched(operator, called):
    rule = operator._record.rule("vmap")
    watched = ow.custom_op(
        f"watched::{operator.name.partition('::')[2]}", operator.__wrapped__, mutates_args=()
    )
    watched.register_fake(lambda x: ow.empty_like(x))
    watched.register_samples(lambda: [(np.ones((3, 4)),)])
    watched.register_vmap(lambda info, in_dims, x: (called.append(1), rule.fn(info, in_dims, x))[1])
    return watched


def test_a_compiled_backward_runs_twice_and_strings_stay_strings(ns):
    pytest.importorskip("torch", reason="torch is not installed")

    @ow.custom_op(f"{ns}::power", mutates_args=())
    def power(x: np.ndarray, mode: Literal["square", "cube"] = "square") -> np.ndarray:
        return np.asarray(x ** (2 if mode == "square" else 3))

    power.register_fake(lambda x, mode="square": ow.empty_like(x))

    def setup_context(ctx, inputs, output):
        x, ctx.n = inputs[0], 2 if inputs[1] == "square" else 3
        ctx.save_for_backward(x)

    @power.register_autograd(setup_context=setup_context)
    def _(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (ctx.n * x ** (ctx.n - 1)) * (
            1 + 0 * x
        ), None  # has an intermediate value that it saves

    for mode in ("square", "cube"):
        outcome = outcome_of(power, "torch", np.array([0.5, 2.0]), mode)
        assert (outcome.status, outcome.findings) == ("passed", ())


@pytest.mark.parametrize("at_fault", ["fake", "backward"])
def test_a_fixed_size_is_the_fault_of_the_rule_that_fixes_it(ns, at_fault):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def fake(x):
        return x.new_empty((int(x.shape[0]), *x.shape[1:]))

    def backward(ctx, grad):
        return torch.stack([3 * row for row in grad])

    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    triple.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    operator = ow.custom_op(f"{ns}::triple", triple, mutates_args=())
    operator.register_fake(fake if at_fault == "fake" else torch.empty_like)
    operator.register_autograd(backward if at_fault == "backward" else lambda ctx, grad: 3 * grad)
    options = {"frameworks": "torch", "test_utils": "compile", "raise_exception": False}
    findings = opcheck(operator, (torch.ones(3, 4, dtype=torch.float64),), **options).findings
    assert [(finding.id, finding.rule) for finding in findings] == [("OW804", at_fault)]
