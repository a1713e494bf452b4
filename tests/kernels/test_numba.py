"""Functions of numba, and NumPy's ufuncs, as kernels."""

from __future__ import annotations

import numpy as np
import pytest

numba = pytest.importorskip("numba", reason="needs the package numba")

import opwright as ow  # noqa: E402
from opwright.errors import RegistrationTypeError  # noqa: E402
from opwright.kernels.numba import adapt  # noqa: E402
from opwright.parse import parse_schema  # noqa: E402


@numba.njit
def scaled(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    return x * k


@numba.vectorize
def plus_one(x, y):
    return x + y + 1


@numba.guvectorize("(n),()->(n)", nopython=True)
def into(x, k, out):
    for i in range(x.shape[0]):
        out[i] = x[i] * k


@numba.guvectorize(["void(float64[:], float64, float64[:])"], "(n),()->(n)", nopython=True)
def returned(x, k, out):
    for i in range(x.shape[0]):
        out[i] = x[i] * k


def flavours(operator):
    return [kernel.flavour for kernel in operator._record.kernels]


def op(ns, name):
    return getattr(getattr(ow.ops, ns), name).default


def test_an_njit_function_is_a_definition(ns):
    operator = ow.custom_op(f"{ns}::scaled", scaled, mutates_args=())
    assert flavours(operator) == ["numpy"]
    assert not hasattr(operator, "overloads")
    assert operator(np.ones(3)).tolist() == [2, 2, 2]
    assert operator(np.ones(3), 3).tolist() == [3, 3, 3]
    torch = pytest.importorskip("torch", reason="needs torch")
    assert operator(torch.ones(3)).tolist() == [2, 2, 2]


def test_functions_for_the_cpu_take_numpy_arrays_whatever_the_definition_takes(ns):
    ow.define(f"{ns}::add", "(Tensor x, Tensor y) -> Tensor")
    ow.register_kernel(f"{ns}::add", "cpu", plus_one)
    ow.define(f"{ns}::sin", "(Tensor x) -> Tensor")
    ow.register_kernel(f"{ns}::sin", "cpu", np.sin)
    assert flavours(op(ns, "add")) == flavours(op(ns, "sin")) == ["numpy"]
    assert op(ns, "add")(np.ones(2), np.ones(2)).tolist() == [3, 3]
    torch = pytest.importorskip("torch", reason="needs torch")
    assert op(ns, "add")(torch.ones(2), torch.ones(2)).tolist() == [3, 3]
    assert torch.equal(op(ns, "sin")(torch.zeros(2)), torch.zeros(2))


def test_generalised_ufuncs_write_or_return(ns):
    ow.define(f"{ns}::into", "(Tensor x, float k, Tensor(a!) out) -> ()")
    ow.register_kernel(f"{ns}::into", "cpu", into)
    ow.define(f"{ns}::returned", "(Tensor x, float k) -> Tensor")
    ow.register_kernel(f"{ns}::returned", "cpu", returned)
    out = np.zeros(3)
    assert op(ns, "into")(np.ones(3), 4.0, out) is None
    assert out.tolist() == [4, 4, 4]
    assert op(ns, "returned")(np.ones(3), 4.0).tolist() == [4, 4, 4]
    torch = pytest.importorskip("torch", reason="needs torch")
    tensor = torch.zeros(3)
    op(ns, "into")(torch.ones(3), 5.0, tensor)
    assert tensor.tolist() == [5, 5, 5]


def test_a_flavour_that_is_given_wins(ns):
    ow.define(f"{ns}::add", "(Tensor x, Tensor y) -> Tensor")
    ow.register_kernel(f"{ns}::add", "cpu", plus_one, flavour="array_api")
    assert flavours(op(ns, "add")) == ["array_api"]


def test_other_functions_are_left_alone():
    schema = parse_schema("t::f(Tensor x) -> Tensor")
    assert adapt(lambda x: x, schema) is None
    assert adapt(np.asarray, schema) is None


class CUDADispatcher:
    """As numba's kernels are, as far as they are looked at."""

    __module__ = "numba.cuda.dispatcher"

    def __init__(self):
        self.launches = []

    def forall(self, size, stream):
        return lambda *args: self.launches.append((size, stream, args))


def test_a_cuda_kernel_gets_one_thread_for_each_element():
    kernel = CUDADispatcher()
    launch, flavour = adapt(
        kernel, parse_schema("t::f(Tensor x, Tensor(a!) out, Tensor(b!)? more=None) -> ()")
    )
    assert flavour == "dlpack"
    x = np.ones(3)
    assert launch(x, np.zeros((2, 3)), np.zeros(4)) is None
    launch(x, np.zeros(3), None)
    launch(x, np.zeros(0), None)
    assert [(size, stream) for size, stream, _ in kernel.launches] == [(6, 0), (3, 0)]
    assert kernel.launches[1][2][0] is x


def test_a_cuda_kernel_has_nothing_to_return():
    with pytest.raises(RegistrationTypeError) as error:
        adapt(CUDADispatcher(), parse_schema("t::f(Tensor x) -> Tensor"))
    assert str(error.value) == (
        "a kernel of numba.cuda cannot be a kernel of t::f\n"
        "  expected: an operator that returns nothing and mutates the arrays that the kernel writes to\n"
        "  got: t::f(Tensor x) -> Tensor\n"
        "  registered at: <numba.cuda.dispatcher.CUDADispatcher>\n"
        "  to fix: register a function that allocates the outputs and launches the kernel"
    )


def test_a_cuda_ufunc_is_refused():
    ufunc = type("CUDAUFuncDispatcher", (), {"__module__": "numba.cuda.vectorizers"})()
    with pytest.raises(RegistrationTypeError) as error:
        adapt(ufunc, parse_schema("t::f(Tensor x) -> Tensor"))
    assert str(error.value) == (
        "a ufunc of numba.cuda returns its own arrays: it cannot be a kernel of t::f\n"
        "  registered at: <numba.cuda.vectorizers.CUDAUFuncDispatcher>\n"
        "  to fix: register a function that calls it with out= and takes the output as an argument"
    )
