from __future__ import annotations

import numpy as np
import pytest

from checks.portable_operators import RIGHT, WRONG
from opwright.checks.adapters.base import adapter
from opwright.checks.runner import opcheck

jax = pytest.importorskip("jax", reason="JAX is not installed")


@pytest.mark.parametrize("name", RIGHT)
def test_right_operators_pass(name):
    report = opcheck(RIGHT[name], frameworks="jax")
    assert report.ok, str(report)
    assert report.outcome("call", "jax").status == "passed"


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operators_are_caught(name):
    operator, ids = WRONG[name]
    report = opcheck(operator, frameworks="jax", raise_exception=False)
    assert {finding.id for finding in report.findings} == ids, str(report)


def test_double_precision_is_used_and_the_switch_left_alone():
    before = jax.config.jax_enable_x64
    jax_adapter = adapter("jax")
    array = jax_adapter.array(np.ones(2))
    called = jax_adapter.call(RIGHT["sin"]._record, (array,))
    assert called.outputs[0].dtype == np.float64
    assert jax.config.jax_enable_x64 == before


def test_sizes_that_jax_cannot_trace_are_skipped():
    outcome = opcheck(RIGHT["nonzero"], frameworks="jax").outcome("fake", "jax")
    assert outcome.status == "skipped"
    assert outcome.reason == (
        "portable::nonzero has outputs whose size depends on data, which JAX cannot trace"
    )


def test_layout_is_jaxs_business():
    outcome = opcheck(RIGHT["sin"], frameworks="jax").outcome("layout", "jax")
    assert outcome.reason == "jax decides how arrays lie in memory"
