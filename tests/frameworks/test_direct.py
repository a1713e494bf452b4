"""The generated callable: what it looks like, modes, fallbacks, fallthrough, and kernels turned off."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import opwright as ow
from opwright import modes
from opwright.errors import NoKernelError
from opwright.frameworks.base import load
from opwright.frameworks.direct import device_of_call

X = np.arange(3.0)


def _source(op, *args):
    for _ in range(5):
        op(*args)
    return inspect.getsource(op._record.table[np.ndarray])


def test_the_callable_tests_classes_calls_and_tests_the_output(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray, y: np.ndarray, k: float = 2.0) -> np.ndarray:
        return x + k * y

    assert _source(f, X, X) == (
        "def call(x, y, k):\n"
        "    if _ow_active[0]:\n"
        "        return _ow_moded(x, y, k)\n"
        "    if y.__class__ is not _ow_array: return _ow_other(x, y, k)\n"
        "    if not (k.__class__ is _ow_float): k = _ow_coerce_k(k)\n"
        "    _ow_out = _ow_kernel(x, y, k)\n"
        "    if _ow_out.__class__ is not _ow_array: _ow_out = _ow_check(_ow_out)\n"
        "    return _ow_out\n"
    )


def test_lists_are_tested_element_by_element(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=("xs",))
    def f(xs: list[np.ndarray], n: list[int]) -> None:
        xs[0] += 1

    assert _source(f, [X.copy()], [1]) == (
        "def call(xs, n):\n"
        "    if _ow_active[0]:\n"
        "        return _ow_moded(xs, n)\n"
        "    if xs.__class__ is _ow_list:\n"
        "        for _ow_each in xs:\n"
        "            if _ow_each.__class__ is not _ow_array or not (_ow_each.flags.writeable): "
        "return _ow_other(xs, n)\n"
        "    else: return _ow_other(xs, n)\n"
        "    if n.__class__ is _ow_list:\n"
        "        for _ow_each in n:\n"
        "            if _ow_each.__class__ is not _ow_int:\n"
        "                n = _ow_coerce_n(n)\n"
        "                break\n"
        "    else:\n"
        "        n = _ow_coerce_n(n)\n"
        "    _ow_out = _ow_kernel(xs, n)\n"
        "    if _ow_out is not None: _ow_out = _ow_check(_ow_out)\n"
        "    return _ow_out\n"
    )


def test_a_kernel_that_is_off_lets_the_general_one_run(ns, caplog):
    """Behaviour 24."""

    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray) -> np.ndarray:
        return x + 1

    f.register_kernel("cpu", lambda x: x + 10)
    np.testing.assert_array_equal(f(X), X + 10)
    with f.set_kernel_enabled("cpu", False):
        np.testing.assert_array_equal(f(X), X + 1)
        with f.set_kernel_enabled("cpu", True):
            np.testing.assert_array_equal(f(X), X + 10)
        np.testing.assert_array_equal(f(X), X + 1)
    np.testing.assert_array_equal(f(X), X + 10)
    assert caplog.messages == []
    with f.set_kernel_enabled("cpu"):
        np.testing.assert_array_equal(f(X), X + 10)
    with f.set_kernel_enabled("cuda", False):
        np.testing.assert_array_equal(f(X), X + 10)
    assert caplog.messages == [
        f"the kernel of {ns}::f for cpu is on already",
        f"{ns}::f has no kernel for cuda to turn on or off",
    ]


def test_a_kernel_is_on_again_after_an_error(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray) -> np.ndarray:
        return x + 1

    f.register_kernel("cpu", lambda x: x + 10)
    with pytest.raises(KeyError), f.set_kernel_enabled("cpu", False):
        raise KeyError
    np.testing.assert_array_equal(f(X), X + 10)


def test_fallthrough_skips_its_key(ns):
    """Behaviour 62."""

    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray) -> np.ndarray:
        return x + 1

    f.register_kernel("cpu", lambda x: x + 10)
    with ow.Library(ns, "IMPL") as lib:
        lib.impl("f", ow.fallthrough_kernel, "CPU")
        np.testing.assert_array_equal(f(X), X + 1)
        lib.impl("f", ow.fallthrough_kernel, "AutocastCPU")
        np.testing.assert_array_equal(f(X), X + 1)
    np.testing.assert_array_equal(f(X), X + 10)


def test_a_fallback_gets_the_operator_then_the_arguments(ns):
    """Behaviour 63."""
    given = []

    def fallback(op, x, k, *, y):
        given.append((op, k))
        return x + y

    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x, float k=2, *, Tensor y) -> Tensor")
        f = getattr(ow.ops, ns).f
        with pytest.raises(NoKernelError):
            f(X, y=X)
        handle = lib.fallback(fallback, "CPU")
        for _ in range(5):
            np.testing.assert_array_equal(f(X, 3, y=X), 2 * X)
        assert given[0] == (f.default, 3.0)
        assert type(given[0][1]) is float
        handle.destroy()
        with pytest.raises(NoKernelError):
            f(X, y=X)


def test_a_fallback_for_every_namespace_and_with_the_keyset(ns):
    with ow.Library(ns, "FRAGMENT") as lib, ow.Library("_", "IMPL", "CPU") as every:
        lib.define("f(Tensor x) -> Tensor")
        every.fallback(lambda keyset, op, x: x + (keyset is None), with_keyset=True)
        np.testing.assert_array_equal(getattr(ow.ops, ns).f(X), X + 1)
        lib.fallback(ow.fallthrough_kernel, "CPU")  # a valid fallback: it stands for none
        with pytest.raises(NoKernelError):
            getattr(ow.ops, ns).f(X)


def test_a_kernel_goes_before_a_fallback(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
        lib.fallback(lambda op, x: x + 2, "CPU")
        np.testing.assert_array_equal(getattr(ow.ops, ns).f(X), X + 1)


def test_a_mode_is_asked_first_and_only_while_it_is_entered(ns, monkeypatch):
    seen = []
    direct = load("numpy")._direct

    def under(record, call, values):
        seen.append(record.qualname)
        return call(*values)

    monkeypatch.setattr(direct, "under_modes", under)

    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        return x * k

    f(X)
    assert seen == []
    modes.ACTIVE[0] += 1
    try:
        np.testing.assert_array_equal(f(np.float64(3)), 6.0)
        np.testing.assert_array_equal(f(X, 1), X)
    finally:
        modes.ACTIVE[0] -= 1
    assert seen == [f"{ns}::f"] * 2
    f(X)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [("cpu", "cpu"), ("cuda:1", "cuda"), (None, "cpu"), (type("D", (), {"type": "xpu"})(), "xpu")],
)
def test_the_device_of_a_call_without_arrays(ns, value, expected):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(int n, *, Device? device=None) -> Tensor")
        record = getattr(ow.ops, ns).f.default._record
        assert device_of_call(load("numpy"), record, (3, value)) == expected
