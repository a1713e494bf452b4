"""The forward half: what ``setup_context`` sees, which outputs have a gradient."""

from __future__ import annotations

import numpy as np
import pytest

import numpy_operators as ops
import opwright as ow
from opwright.calls import bind
from opwright.errors import ArgumentError
from opwright.forward import Forward, as_given, autograd_rule, counted, fits, leaves, no_formula

x = np.ones((2, 3))


def forward(op, *args, needs=(True,), **kwargs):
    call = bind("vjp", op, args, kwargs)
    rule = autograd_rule(call)
    return Forward(call, rule, rule.setup_context, needs)


def test_outputs_and_their_names():
    one = forward(ops.sincos, x)
    assert one.names == ["output_0", "output_1"]
    assert one.differentiable == [True, True]
    assert one.out[0] is one.outputs[0]
    assert forward(ops.sort, x[0]).differentiable == [True, False]
    assert forward(ops.parts, x).differentiable == [[True, True]]
    assert forward(ops.sin, x.astype(int).astype(object).astype(float)).differentiable == [True]


def test_the_new_value_of_a_mutated_argument_is_an_output():
    a = x.copy()
    one = forward(ops.add_, a, x, needs=(True, True))
    assert one.out is None
    assert one.names == ["x"]
    assert one.outputs[0] is a
    old, _ = one.ctx.saved_tensors
    np.testing.assert_array_equal(old, x)
    np.testing.assert_array_equal(a, 2 * x)


def test_integer_results_have_no_gradient():
    assert forward(ops.mul, x.astype(int), x.astype(int), needs=(False, False)).differentiable == [False]


def test_keyword_only_inputs():
    one = forward(ops.shift, x, by=x, factor=3)
    assert one.ctx.factor == 3.0


def test_rules():
    assert autograd_rule(bind("vjp", ops.bare, (x,), {})) is None
    assert autograd_rule(bind("vjp", ops.rounded, (x,), {})) is None
    assert "no autograd formula" in str(no_formula(bind("vjp", ops.bare, (x,), {}), "vjp", "one"))


def test_as_given():
    call = bind("vjp", ops.sin, (x,), {})
    given = as_given(call, "gradient", "output", x.astype(np.float32), x)
    assert given.dtype == np.float32
    assert not np.shares_memory(as_given(call, "gradient", "output", x, x), x)
    assert as_given(call, "gradient", "output", 1j * x, x).dtype == np.complex128
    assert as_given(call, "gradient", "output", x[0, 0], 3).shape == ()
    with pytest.raises(ArgumentError) as caught:
        as_given(call, "gradient", "output", x, None)
    assert str(caught.value) == (
        "nops::sin: the gradient of output does not fit it\n"
        "  expected: an array of numpy\n"
        "  got: None of type NoneType"
    )


def test_bfloat16_ranks_as_a_float():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    call = bind("vjp", ops.sin, (x,), {})
    assert as_given(call, "gradient", "output", x.astype(ml_dtypes.bfloat16), x).dtype == ml_dtypes.bfloat16
    with pytest.raises(ArgumentError):
        as_given(call, "gradient", "output", x.astype(ml_dtypes.bfloat16), 1j * x)


def test_trees():
    assert fits(x, None)
    assert fits([x, x], [1, 2])
    assert not fits([x, x], [1])
    assert not fits([x], x)
    assert leaves([1, [None, 2]]) == [1, None, 2]
    assert [counted(value) for value in ([1], (1, 2), 3)] == ["a list of 1", "a tuple of 2", "3 of type int"]


def test_contexts_of_torch_code():
    @ow.custom_op("forward::ctx", mutates_args=())
    def op(a: np.ndarray) -> np.ndarray:
        return a * 2

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], None)
        ctx.save_for_forward(output)
        ctx.mark_dirty()
        ctx.anything = {"array": output}

    @op.register_autograd(setup_context=setup)
    def _(ctx, grad):
        kept, none = ctx.saved_tensors
        assert none is None
        assert ctx.anything["array"].shape == kept.shape
        return 2 * grad

    assert ow.vjp(op, x)[1](x)[0].sum() == 12
