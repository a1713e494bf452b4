from __future__ import annotations

import numpy as np
import pytest

from checks.jax_operators import RIGHT, jax
from checks.portable_operators import RIGHT as PORTABLE
from opwright.checks.adapters import jax_program
from opwright.checks.adapters.base import adapter


@pytest.fixture(name="jax_adapter")
def fixture_jax_adapter():
    return adapter("jax")


@pytest.mark.parametrize("jit", [False, True])
def test_gradients_of_lists_are_nested(jax_adapter, jit):
    record = PORTABLE["stack_rows"]._record
    x, y = (jax_adapter.array(np.ones((n, 2))) for n in (2, 1))
    pullback = jax_program.pullback(jax_adapter, record, ([x, y],), ([True, True],), jit=jit)
    weights = jax_adapter.array(np.arange(6.0).reshape(3, 2))
    (grads,) = pullback.pull([weights])
    assert [grad.tolist() for grad in grads] == [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]]]


@pytest.mark.parametrize("jit", [False, True])
def test_outputs_that_are_not_used_have_zero_gradients(jax_adapter, jit):
    record = PORTABLE["product_and_sum"]._record
    x, y = (jax_adapter.array(np.full(2, value)) for value in (2.0, 3.0))
    pullback = jax_program.pullback(jax_adapter, record, (x, y), (True, False), jit=jit)
    grads = pullback.pull([jax_adapter.array(np.ones(2)), None])
    assert [None if grad is None else grad.tolist() for grad in grads] == [[3.0, 3.0], None]


def test_gradients_are_differentiated(jax_adapter):
    x, ones = jax_adapter.array(np.array([1.0, 2.0])), jax_adapter.array(np.ones(2))
    by_argument, by_weight = jax_adapter.second(RIGHT["saved"][0]._record, (x,), (True,), [ones], [ones])
    assert by_argument[0].tolist() == [2.0, 2.0]
    assert by_weight[0].tolist() == [2.0, 4.0]


def test_programs_are_called_differentiated_and_batched(jax_adapter):
    (compiler,) = jax_adapter.compilers(thorough=True)
    assert (compiler.name, compiler.dynamic) == ("jax.jit", False)
    x = jax_adapter.array(np.array([1.0, 2.0]))
    program = compiler.program(RIGHT["batched"][0]._record, (x,))
    assert program.call((x,)).outputs[0].tolist() == [1.0, 4.0]
    assert program.vjp((x,), (True,)).pull([x])[0].tolist() == [2.0, 8.0]
    batch = jax_adapter.array(np.ones((2, 3)))
    assert program.vmap((batch,), [[0]]).outputs[0].shape == (2, 3)


def test_a_reference_holds_the_new_value_after_the_call(jax_adapter):
    if not hasattr(jax, "new_ref"):
        pytest.skip("this version of JAX has no mutable references")
    record = PORTABLE["scale_"]._record
    with jax_adapter.scope():
        held = jax_program.references(record, (jax_adapter.array(np.ones(2)), 3.0))
    assert [(name, array.tolist()) for name, array in held] == [("x", [3.0, 3.0])]
