"""``get_kernel``: behaviours 99 to 102."""

from __future__ import annotations

import enum

import numpy as np
import pytest

import opwright as ow
from opwright.errors import RegistrationError, StaleError
from opwright.source import source_of

X = np.arange(3.0)


def scale(x: np.ndarray, k: float = 2.0, *, n: int = 1) -> np.ndarray:
    return x * k * n


@pytest.fixture
def op(ns):
    return ow.custom_op(f"{ns}::scale", scale, mutates_args=())


def test_99_a_kernel_is_called_with_the_operators_arguments(op):
    kernel = ow.get_kernel(op, "CompositeExplicitAutograd")
    np.testing.assert_array_equal(kernel.call_boxed(None, X), X * 2)
    np.testing.assert_array_equal(kernel.call_boxed(None, X, 3, n=2), X * 6)
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        kernel.call_boxed(None)


class Key(enum.Enum):
    CPU = 1


@pytest.mark.parametrize("key", ["CPU", "cpu", Key.CPU])
@pytest.mark.parametrize("by", ["operator", "name", "overload name", "packet"])
def test_99_by_any_name(op, ns, key, by):
    op.register_kernel("cpu", lambda x, k, *, n: x + k)
    target = {
        "operator": op,
        "name": f"{ns}::scale",
        "overload name": f"{ns}::scale.default",
        "packet": getattr(ow.ops, ns).scale,
    }[by]
    np.testing.assert_array_equal(ow.get_kernel(target, key).call_boxed(None, X), X + 2)


def test_99_a_device_without_a_kernel_of_its_own_has_the_general_one(op):
    np.testing.assert_array_equal(ow.get_kernel(op, "CPU").call_boxed(None, X), X * 2)
    with pytest.raises(RegistrationError):
        ow.get_kernel(op, "AutogradCPU")


def test_100_chains_of_overrides(op):
    def override(n):
        before = ow.get_kernel(op, "CPU")

        def kernel(x, k, *, n):
            return before.call_boxed(None, x, k, n=n) + 10**step

        step = n
        return op.register_kernel("cpu", kernel)

    handles = [override(n) for n in range(3)]
    np.testing.assert_array_equal(op(X), X * 2 + 111)
    handles[2].destroy()
    np.testing.assert_array_equal(op(X), X * 2 + 11)
    handles[0].destroy()  # from under the second
    with pytest.raises(StaleError, match="invalidated"):
        op(X)
    handles[1].destroy()
    np.testing.assert_array_equal(op(X), X * 2)


def test_101_after_its_registration_is_gone(op, ns):
    def cpu(x, k, *, n):
        return x

    handle = op.register_kernel("cpu", cpu)
    kernel = ow.get_kernel(op, "CPU")
    handle.destroy()
    with pytest.raises(RuntimeError) as e:
        kernel.call_boxed(None, X)
    assert str(e.value) == (
        f"the kernel of {ns}::scale for CPU was invalidated: its registration is gone\n"
        f"  registered at: {source_of(cpu)}\n"
        "  to fix: keep the handle or Library that registered it alive"
    )


def test_101_after_its_operator_is_gone(op, ns):
    kernel = ow.get_kernel(op, "CPU")
    ow.custom_op(f"{ns}::scale", scale, mutates_args=())
    with pytest.raises(StaleError, match="invalidated"):
        kernel.call_boxed(None, X)


def test_102_no_kernel_names_key_and_operator(ns):
    def body(x):
        return x

    op = ow.custom_op(
        f"{ns}::f", body, mutates_args=(), schema="(Tensor x) -> Tensor", device_types="cpu", flavour="numpy"
    )
    with pytest.raises(RuntimeError) as e:
        ow.get_kernel(op, "CUDA")
    assert str(e.value) == (
        f"{ns}::f has no kernel for CUDA\n"
        f"  expected: one of those it has: cpu (numpy, {source_of(body)})\n"
        f"  registered at: {source_of(body)}"
    )


@pytest.mark.parametrize(
    ("target", "key", "text"),
    [
        ("nowhere::f", "CPU", "operator nowhere::f does not exist\n  to fix: define it first, with"),
        (3, "CPU", "not an operator\n  expected: a name such as"),
    ],
)
def test_102_no_such_operator(target, key, text):
    with pytest.raises(RuntimeError) as e:
        ow.get_kernel(target, key)
    assert str(e.value).startswith(text)


def test_a_kernel_that_is_off_is_not_in_force(op):
    op.register_kernel("cpu", lambda x, k, *, n: x + k)
    with op.set_kernel_enabled("cpu", False):
        np.testing.assert_array_equal(ow.get_kernel(op, "CPU").call_boxed(None, X), X * 2)


def test_a_kernel_that_asked_for_the_keyset_gets_it(op, ns):
    with ow.Library(ns, "IMPL") as lib:
        lib.impl("scale", lambda keyset, x, k, *, n: (keyset, x), "CPU", with_keyset=True)
        assert ow.get_kernel(op, "CPU").call_boxed("the set", X)[0] == "the set"


def test_a_kernel_takes_the_arrays_of_its_callers_framework(op):
    """A NumPy kernel that a torch override falls back on gets NumPy arrays."""
    torch = pytest.importorskip("torch", reason="the callers' framework")
    kernel = ow.get_kernel(op, "CPU")
    out = kernel.call_boxed(None, torch.ones(2), 3)
    assert type(out) is torch.Tensor
    assert out.tolist() == [3.0, 3.0]


def test_what_it_looks_like(op, ns):
    assert repr(ow.get_kernel(op, "CPU")) == (
        f"<kernel of {ns}::scale for CompositeExplicitAutograd ({source_of(scale)})>"
    )
