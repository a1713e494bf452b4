"""What users hold: names, signatures, docstrings, types for a type checker, private names of the wild."""

from __future__ import annotations

import copy
import inspect
import pydoc
import subprocess
import sys
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

import opwright as ow
from opwright.operator import module_of_caller

X = np.arange(3.0)


def scale(x: np.ndarray, k: float = 2.0, *, n: Sequence[int] = (1,)) -> np.ndarray:
    """Scale by ``k``.

    More about it.
    """
    return x * k


scale.note = "an attribute of the function"


@pytest.fixture
def op(ns):
    return ow.custom_op(f"{ns}::scale", scale, mutates_args=())


def test_it_looks_like_the_function(op):
    """I150: name, docstring, annotations and signature survive."""
    assert inspect.signature(op) == inspect.signature(scale)
    assert op.__doc__ == scale.__doc__
    assert op.__name__ == "scale"
    assert op.__qualname__ == "scale"
    assert op.__module__ == __name__
    assert op.__wrapped__ is scale
    assert op.__annotations__ == scale.__annotations__
    assert op.note == "an attribute of the function"
    assert callable(op)
    assert "Scale by ``k``." in pydoc.render_doc(op)


def test_a_function_without_a_docstring(ns):
    op = ow.custom_op(f"{ns}::f", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")
    assert op.__doc__ == f"The operator ``{ns}::f(Tensor x) -> Tensor``."


def test_what_it_says_of_itself(op, ns):
    assert (op.name, op.overload) == (f"{ns}::scale", "default")
    assert op.schema.signature == "(Tensor x, float k=2.0, *, SymInt[] n=[1]) -> Tensor"
    assert op.tags == ("pt2_compliant_tag",)
    assert repr(op) == f"<Operator {ns}::scale(Tensor x, float k=2.0, *, SymInt[] n=[1]) -> Tensor>"


def test_private_names_that_code_in_the_wild_uses(op, ns):
    assert op._qualname == f"{ns}::scale"
    assert op._schema is op.schema
    assert isinstance(op._lib, ow.Library)


def test_an_operator_is_its_own_copy(op):
    """I145: a deep copy of what holds an operator holds the same one."""
    assert copy.copy(op) is op
    assert copy.deepcopy({"op": [op]})["op"][0] is op
    packet = ow.ops.__getattr__(op.name.partition("::")[0]).scale
    assert copy.deepcopy([packet.default])[0] is op


def test_it_can_be_referred_to_weakly_hashed_and_compared(op):
    assert weakref.ref(op)() is op
    assert {op: 1}[op] == 1
    assert op == op  # noqa: PLR0124
    assert op != scale


def test_each_operator_is_the_one_instance_of_a_class_of_its_own(op, ns):
    other = ow.custom_op(f"{ns}::other", scale, mutates_args=())
    assert type(op) is not type(other)
    assert type(op).__mro__[1] is ow.Operator
    assert type(op).__name__ == "scale"
    with pytest.raises(NotImplementedError):
        ow.Operator.__call__(op, X)


def test_methods_register_on_it(op):
    op.register_kernel("cpu", lambda x, k, *, n: x + k)
    np.testing.assert_array_equal(op(X), X + 2)

    @op.register_kernel("cpu")
    def minus(x, k, *, n):
        return x - k

    assert minus(3, 2, n=()) == 1
    np.testing.assert_array_equal(op(X), X - 2)

    @op.register_fake
    def fake(x, k, *, n):
        return x

    @op.register_autograd
    def backward(ctx, grad):
        return grad, None

    @op.register_jvp
    def jvp(ctx, dx, dk, dn):
        return dx

    @op.register_vmap
    def vmap(info, in_dims, x, k, *, n):
        return x, 0

    @op.register_torch_dispatch(int)
    def dispatch(mode, func, types, args, kwargs):
        return None

    @op.register_samples
    def samples():
        return []

    op.register_autocast("cuda", "float16")
    record = op._record
    assert [rule.kind for rule in record.rules] == [
        "fake",
        "autograd",
        "jvp",
        "vmap",
        "torch_dispatch",
        "samples",
        "autocast",
    ]
    for kind, fn in [
        ("fake", fake),
        ("autograd", backward),
        ("jvp", jvp),
        ("vmap", vmap),
        ("samples", samples),
    ]:
        assert record.rule(kind).fn is fn.__wrapped__  # without parentheses a decorator gives the handle
        assert isinstance(fn, ow.Handle)


def test_with_keyword_arguments_they_are_decorators_too(op):
    def setup_context(ctx, inputs, output, keyword_only_inputs):
        pass

    @op.register_autograd(setup_context=setup_context)
    def backward(ctx, grad):
        return grad, None

    @op.register_fake(flavour="numpy")
    def fake(x, k, *, n):
        return x

    @op.register_jvp(setup_context=setup_context, flavour="numpy")
    def jvp(ctx, *tangents):
        return None

    @op.register_vmap(flavour="jax")
    def vmap(info, in_dims, x, k, *, n):
        return x, 0

    record = op._record
    assert record.rule("autograd").setup_context is setup_context
    assert record.rule("autograd").fn is backward
    assert record.rule("fake").flavour == "numpy"
    assert record.rule("jvp").fn is jvp
    assert record.rule("vmap").flavour == "jax"


def test_the_module_of_the_caller():
    assert module_of_caller() == __name__


TYPED = """
from typing import assert_type

import numpy as np

import opwright as ow


@ow.custom_op("typed::scale", mutates_args=())
def scale(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    return x * k


def pair(x: np.ndarray, *, n: int) -> tuple[np.ndarray, int]:
    return x, n


assert_type(scale(np.ones(1)), np.ndarray)
assert_type(scale(np.ones(1), k=3.0), np.ndarray)
made = ow.custom_op("typed::pair", pair, mutates_args=())
assert_type(made(np.ones(1), n=2), tuple[np.ndarray, int])
assert_type(scale.name, str)


@scale.register_fake
def _(x: np.ndarray, k: float) -> np.ndarray:
    return x


scale("text")
scale(np.ones(1), 2.0, 3.0)
made(np.ones(1))
"""


@pytest.mark.slow
def test_a_type_checker_keeps_the_parameters(tmp_path):
    pytest.importorskip("mypy", reason="the type checker")
    path = tmp_path / "typed.py"
    path.write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, cwd=tmp_path, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.rpartition("  ")[2] for line in errors] == ["[arg-type]", "[call-arg]", "[call-arg]"], (
        done.stdout
    )
