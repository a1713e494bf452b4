"""What spares JAX compilations: it must find what the long way finds."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.checks.adapters.base import adapter
from opwright.checks.base import Probe
from opwright.checks.runner import check, opcheck, samples_of

jax = pytest.importorskip("jax", reason="JAX is not installed")

X = np.random.default_rng(0).standard_normal((3, 5))


def cube(name, *, backward=lambda xp, grad, x: 3 * x * x * grad):
    """Return an operator of arrays of every framework; the kernel has several operations."""
    operator = ow.custom_op(f"costs::{name}", _cube, mutates_args=())
    operator.register_fake(lambda x: ow.empty_like(x))
    operator.register_vmap(lambda info, in_dims, x: (operator(x), in_dims[0]))
    operator.register_autograd(
        lambda ctx, grad: backward(ow.array_namespace(grad), grad, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    operator.register_samples(lambda: [(X.astype(np.float32),)])
    return operator


def _cube(x: ow.Array) -> ow.Array:
    return x * x * x + 0 * x


@pytest.fixture(name="compiled")
def fixture_compiled():
    names = []

    def heard(event, _, **facts):
        if event.endswith("backend_compile_duration"):
            names.append(facts.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield names
    jax.monitoring.unregister_event_duration_listener(heard)


def test_a_traced_kernel_is_not_compiled_to_see_what_its_fake_says(compiled):
    operator = cube("fake")
    opcheck(operator, frameworks="jax", test_utils="call")
    called = len(compiled)
    outcome = opcheck(operator, frameworks="jax", test_utils="fake").outcome("fake", "jax")
    assert outcome.status == "passed"
    assert outcome.comparisons > 5
    assert called > 0
    assert len(compiled) == called


def test_a_fake_that_is_wrong_for_a_derived_size_is_found():
    operator = ow.custom_op(
        "costs::first_row", lambda x: x[:1] + 0, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    operator.register_fake(lambda x: x.new_empty((min(1, x.shape[0]) if x.shape[0] == 3 else 2, x.shape[1])))
    report = opcheck(operator, (X,), frameworks="jax", test_utils="fake", raise_exception=False)
    assert "OW201" in {finding.id for finding in report.findings}, str(report)


def test_a_kernel_that_cannot_be_traced_is_called():
    @ow.custom_op("costs::by_value", mutates_args=())
    def by_value(x: ow.Array) -> ow.Array:
        return x * 2 if bool(x[0, 0] > 0) else x * 3

    by_value.register_fake(lambda x: ow.empty_like(x))
    jax_adapter = adapter("jax")
    assert not jax_adapter.lowers(by_value._record, (X,))
    assert jax_adapter.lowers(cube("lowers")._record, (X,))
    outcome = opcheck(by_value, (X,), frameworks="jax", test_utils="fake").outcome("fake", "jax")
    assert outcome.status == "passed"


def test_a_host_kernel_is_never_taken_for_lowered():
    @ow.custom_op("costs::host", mutates_args=())
    def host(x: np.ndarray) -> np.ndarray:
        return x + x

    host.register_fake(lambda x: x.new_empty((7,)))
    assert not adapter("jax").lowers(host._record, (X,))
    report = opcheck(host, (X,), frameworks="jax", test_utils="fake", raise_exception=False)
    assert {finding.id for finding in report.findings} == {"OW201"}


@pytest.mark.parametrize("level", ["default", "thorough"])
def test_a_rule_that_numpy_runs_too_has_fewer_batches_in_jax(level):
    operator = cube(f"batches_{level}")
    counts = []
    for frameworks in (["jax"], ["numpy", "jax"]):
        report = opcheck(operator, frameworks=frameworks, test_utils="vmap", level=level)
        counts.append(report.outcome("vmap", "jax").comparisons)
    assert counts[1] >= 3
    assert (counts[1] < counts[0]) == (level == "default")


def test_a_rule_is_looked_at_elsewhere_only_where_another_framework_runs_it():
    def elsewhere(operator, rule, own="jax", other="numpy", level="default"):
        record = operator._record
        probe = Probe(record, adapter(own), samples_of(record), level=level, others=[adapter(other)])
        return probe.looked_at_elsewhere(rule)

    both = cube("elsewhere")
    assert elsewhere(both, "vmap")
    assert not elsewhere(both, "jvp")  # there is none
    assert not elsewhere(both, "vmap", level="thorough")
    assert not elsewhere(both, "vmap", own="numpy", other="jax")
    of_jax = ow.custom_op("costs::of_jax", lambda x: x + x, mutates_args=(), schema="(Tensor x) -> Tensor")
    of_jax.register_vmap(lambda info, in_dims, x: (of_jax(x), in_dims[0]), flavour="jax")
    assert not elsewhere(of_jax, "vmap")


@pytest.mark.parametrize(
    ("name", "backward", "id_"),
    [
        ("shape", lambda xp, grad, x: xp.sum(3 * x * x * grad, axis=0, keepdims=True), "OW302"),
        ("assigns", lambda xp, grad, x: grad.__setitem__(0, 0), "OW306"),
    ],
)
def test_what_is_wrong_with_a_gradient_in_jax_is_found_at_the_quick_level(name, backward, id_):
    report = check_quick(cube(f"quick_{name}", backward=backward))
    outcome = report.outcome("autograd", "jax")
    assert {finding.id for finding in outcome.findings} == {id_}, str(report)


def test_the_quick_level_compiles_no_gradient_that_numpy_looks_at(compiled):
    operator = cube("quick")
    operator(jax.device_put(X.astype(np.float32)))
    called = len(compiled)
    report = check_quick(operator, laws="autograd")
    assert report.ok, str(report)
    assert report.outcome("autograd", "jax").status == "passed"
    assert len(compiled) == called


def check_quick(operator, laws=None):
    record = operator._record
    return check(record, samples_of(record), frameworks=["numpy", "jax"], level="quick", test_utils=laws)


def test_a_batch_is_one_program_and_what_is_wrong_in_it_is_looked_at_eagerly(compiled):
    operator = cube("batch")
    jax_adapter = adapter("jax")
    rows = np.linspace(0, 1, 77).reshape(7, 11)  # of a shape that nothing was compiled for
    batch = jax_adapter.array(rows)
    with jax_adapter.cheaply():
        called = jax_adapter.vmap(operator._record, (batch,), [[0]])
    assert len(compiled) == 1
    np.testing.assert_allclose(np.asarray(called.outputs[0]), rows**3)
    again = jax_adapter.vmap(operator._record, (batch,), [[0]])
    assert len(compiled) > 2
    np.testing.assert_allclose(np.asarray(again.outputs[0]), rows**3)
