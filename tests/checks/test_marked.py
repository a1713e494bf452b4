from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.checks.adapters.base import adapter
from opwright.checks.base import Probe
from opwright.checks.marked import filled, marked
from opwright.checks.samples import given


def probe_of(operator, framework, *args):
    record = operator._record
    return Probe(record, adapter(framework), [given(record, args, {})])


@pytest.fixture(name="several")
def fixture_several(ns):
    @ow.custom_op(f"{ns}::several", mutates_args=())
    def several(x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        return x * 2, [x + 1, x + 2]

    def setup(ctx, inputs, output):
        first, rest = output
        ctx.mark_non_differentiable(first, rest[1])
        ctx.kept = rest[0]

    several.register_fake(lambda x: (ow.empty_like(x), [ow.empty_like(x), ow.empty_like(x)]))
    several.register_autograd(lambda ctx, grad, grads: grads[0], setup_context=setup)
    return several


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_marked_outputs_are_found_by_their_place(several, framework):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    probe = probe_of(several, framework, np.ones(2))
    assert marked(probe, probe.samples[0]) == {(0, None), (1, 1)}


def test_a_context_is_filled_with_the_outputs_that_come_along(several):
    probe = probe_of(several, "numpy", np.ones(2))
    context, outputs = filled(probe, probe.samples[0])
    assert set(outputs) == {(0, None), (1, 0), (1, 1)}
    assert context.kept is outputs[1, 0]


def test_nothing_is_marked_without_a_rule_or_by_one_that_raises(ns, several):
    @ow.custom_op(f"{ns}::bare", mutates_args=())
    def bare(x: np.ndarray) -> np.ndarray:
        return x + 1

    probe = probe_of(bare, "numpy", np.ones(2))
    assert marked(probe, probe.samples[0]) == set()

    def raises(ctx, inputs, output):
        raise RuntimeError

    bare.register_autograd(lambda ctx, grad: grad, setup_context=raises)
    assert filled(probe, probe.samples[0]) == (None, {})


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_an_output_that_the_context_keeps_is_found_in_every_framework(ns, framework):
    library = pytest.importorskip(framework, reason=f"{framework} is not installed")

    def square(x):
        return x * x

    array = library.ndarray if framework == "numpy" else library.Tensor
    square.__annotations__ = {"x": array, "return": array}
    operator = ow.custom_op(f"{ns}::square", square, mutates_args=())
    operator.register_fake(lambda x: ow.empty_like(x))

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.result = output

    operator.register_autograd(lambda ctx, grad: 2 * grad * ctx.saved_tensors[0], setup_context=setup)
    report = ow.opcheck(operator, (library.ones(3),), frameworks=framework, raise_exception=False)
    assert [(finding.id, finding.got) for finding in report.findings] == [
        ("OW312", "ctx.result holds it, which makes a reference cycle in PyTorch")
    ]
