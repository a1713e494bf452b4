"""Differences of dtype between frameworks: which are their own, and which are the operator's."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.checks.runner import opcheck

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

AXES = {"float32": np.linspace(-1, 1, 6, dtype="float32"), "int64": np.arange(1, 7)}
AXES |= {"float16": AXES["float32"].astype("float16"), "int8": AXES["int64"].astype("int8")}
NONE = {"float64": np.array(1.5), "int64": np.array(3), "float32": np.array(2.5, "float32")}

frameworks = pytest.mark.parametrize("framework", ["torch", "jax"])


def _product(ns, kernel):
    operator = ow.custom_op(f"{ns}::f", kernel, mutates_args=(), flavour="array_api")
    operator.register_fake(lambda x, y: ow.empty_like(x, dtype=ow.result_type(x, y)))
    return operator


def _found(operator, *args, framework="torch", test_utils="agreement"):
    if framework == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    report = opcheck(
        operator, args, frameworks=["numpy", framework], test_utils=test_utils, raise_exception=False
    )
    assert [one for one in report.outcomes if one.status == "errored"] == []
    assert report.outcome("agreement", framework).comparisons
    return [(one.id, one.framework, one.expected, one.got) for one in report.findings]


@frameworks
@pytest.mark.parametrize("scalar", NONE)
@pytest.mark.parametrize("vector", AXES)
def test_each_frameworks_own_promotion_is_right(ns, vector, scalar, framework):
    def product(x: ow.Array, y: ow.Array) -> ow.Array:
        return x * y

    assert _found(_product(ns, product), AXES[vector], NONE[scalar], framework=framework) == []
    other_way = _product(f"{ns}_other_way", product)
    other_way.register_fake(lambda x, y: ow.empty_like(y, dtype=ow.result_type(x, y)))
    assert _found(other_way, NONE[scalar], AXES[vector], framework=framework) == []


def test_torch_and_numpy_do_promote_apart_here(ns):
    def product(x: ow.Array, y: ow.Array) -> ow.Array:
        return x * y

    operator = _product(ns, product)
    x, y = AXES["float32"], NONE["float64"]
    assert operator(x, y).dtype == np.float64
    assert operator(torch.from_numpy(x), torch.tensor(1.5, dtype=torch.float64)).dtype == torch.float32


def test_numbers_and_quotients_of_integers_are_promoted_too(ns):
    def quotient(x: ow.Array, power: float) -> ow.Array:
        return power * x / 3

    operator = ow.custom_op(f"{ns}::f", quotient, mutates_args=(), flavour="array_api")
    operator.register_fake(lambda x, power: ow.empty_like(x, dtype=ow.result_type(x, power)))
    assert _found(operator, AXES["int64"], 2.0) == []  # float64 in NumPy, float32 in torch


def test_a_dtype_that_no_promotion_gives_is_reported(ns):
    def product(x: ow.Array, y: ow.Array) -> ow.Array:
        own = ow.array_namespace(x)
        return own.astype(x * y, own.float64 if hasattr(x, "new_empty") else own.float32)

    found = _found(_product(ns, product), AXES["float32"], NONE["float64"])
    assert found == [("OW1103", "torch", "dtype float32, as with numpy arrays", "dtype float64")]


def test_a_dtype_of_one_argument_in_one_framework_and_another_in_the_other_is_reported(ns):
    def product(x: ow.Array, y: ow.Array) -> ow.Array:
        own = ow.array_namespace(x)
        return own.astype(x * y, x.dtype if hasattr(x, "new_empty") else y.dtype)

    x, y = AXES["float32"], np.linspace(0, 1, 6)  # of one rank both frameworks promote alike
    found = _found(_product(ns, product), x, y)
    assert found == [("OW1103", "torch", "dtype float64, as with numpy arrays", "dtype float32")]


def test_values_are_compared_although_dtypes_differ(ns):
    def product(x: ow.Array, y: ow.Array) -> ow.Array:
        return x * y * (1 + hasattr(x, "new_empty"))

    found = _found(_product(ns, product), AXES["float32"], NONE["float64"])
    assert [one[:2] for one in found] == [("OW1103", "torch")]
    assert found[0][2].startswith("-1.5 at index (0,)")


def test_one_kernel_for_every_framework_has_one_promotion(ns):
    """A NumPy kernel computes with NumPy whatever it is called with: no other dtype is explained."""

    def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * y

    operator = ow.custom_op(f"{ns}::f", product, mutates_args=())
    operator.register_kernel("cpu", lambda x, y: (x * y).to(torch.float64), flavour="torch")
    operator.register_fake(lambda x, y: ow.empty_like(x, dtype="float64"))
    assert _found(operator, AXES["float32"], NONE["float64"]) == []
    operator.register_kernel("cpu", lambda x, y: (x * y).to(torch.float16), flavour="torch")
    found = _found(operator, AXES["float32"], NONE["float64"])
    assert {one[0] for one in found} == {"OW1101", "OW1103"}


def test_references_and_kernels_of_other_flavours_promote_as_their_framework_does(ns):
    def product(x: ow.Array, y: ow.Array) -> ow.Array:
        return x * y

    operator = _product(ns, product)
    operator.register_reference(lambda x, y: np.multiply(x, y), flavour="numpy")
    operator.register_kernel("cpu", lambda x, y: x * y, flavour="numpy")
    assert _found(operator, AXES["float32"], NONE["float64"]) == []
    operator.register_reference(lambda x, y: np.multiply(x, y).astype("float16"), flavour="numpy")
    assert {one[0] for one in _found(operator, AXES["float32"], NONE["float64"])} == {"OW1102"}


def test_lists_and_values_that_overflow_the_narrower_dtype(ns):
    def several(x: ow.Array, y: ow.Array) -> list[ow.Array]:
        return [x * y, y * x]

    operator = ow.custom_op(f"{ns}::f", several, mutates_args=(), flavour="array_api")
    operator.register_fake(lambda x, y: [ow.empty_like(x, dtype=ow.result_type(x, y))] * 2)
    assert _found(operator, AXES["float32"], np.array(1e300)) == []
