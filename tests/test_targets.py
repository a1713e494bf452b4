"""From what a registration names to a record, and what is checked before a kernel is put in."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import opwright as ow
from opwright import registry
from opwright.errors import RegistrationError, RegistrationTypeError, RegistrationValueError
from opwright.source import source_of
from opwright.targets import (
    annotated_flavour_of,
    device_keys,
    find,
    flavour_of,
    key_of_name,
    known_flavour,
    require,
    several,
)

X = np.arange(3.0)


def scale(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    return x * k


@pytest.fixture
def op(ns):
    return ow.custom_op(f"{ns}::scale", scale, mutates_args=())


@pytest.mark.parametrize(
    ("name", "key"), [("a::f", "a::f.default"), ("a::f.default", "a::f.default"), ("a::f.out", "a::f.out")]
)
def test_the_key_of_a_name(name, key):
    assert key_of_name(name) == key


def test_find_takes_names_operators_and_packets(op, ns):
    for target in (op, f"{ns}::scale", f"{ns}::scale.default", getattr(ow.ops, ns).scale):
        assert find(target) is op._record
        assert require(target) is op._record
    assert find(f"{ns}::other") is None
    for target in (3, None, scale, object()):
        with pytest.raises(RegistrationTypeError, match="not an operator"):
            find(target)


def test_flavours(op):
    assert known_flavour("numpy") == "numpy"
    assert annotated_flavour_of(scale) == "numpy"
    assert annotated_flavour_of(lambda x: x) is None
    assert flavour_of(lambda x: x, op._record, None, kernel=True) == "numpy"
    assert flavour_of(lambda x: x, op._record, None, kernel=False) == "array_api"
    assert flavour_of(lambda x: x, op._record, "jax", kernel=False) == "jax"


def test_an_annotation_that_cannot_be_evaluated_names_no_flavour():
    def kernel(x):
        return x

    kernel.__annotations__ = {"x": "SomethingForTypeCheckersOnly"}
    assert annotated_flavour_of(kernel) is None


def test_arrays_of_two_frameworks_in_one_kernel():
    torch = pytest.importorskip("torch", reason="the second framework")

    def kernel(x, y):
        return x

    kernel.__annotations__ = {"x": np.ndarray, "y": torch.Tensor}
    with pytest.raises(
        RegistrationTypeError,
        match="parameter x is annotated with numpy arrays and parameter y with torch arrays",
    ):
        annotated_flavour_of(kernel)


def test_device_keys():
    assert device_keys(None) == ["CompositeExplicitAutograd"]
    assert device_keys("cuda") == ["CUDA"]
    assert device_keys(iter(["cpu", "cuda", "cpu"])) == ["CPU", "CUDA"]


def test_several():
    assert several("types", "a") == ["a"]
    assert several("types", ("a", "b")) == ["a", "b"]
    with pytest.raises(
        RegistrationValueError, match=r"^types is empty, so there is nothing to register for$"
    ):
        several("types", [])
    with pytest.raises(RegistrationTypeError, match=r"^types must be a name or several\n  got: 3$"):
        several("types", 3)


def test_75_no_fake_where_there_is_a_meta_kernel(ns, op):
    def meta(x, k):
        return x

    ow.impl(f"{ns}::scale", "Meta", meta)
    op_fake = lambda x, k: x  # noqa: E731
    with pytest.raises(RuntimeError) as e:
        ow.register_fake(op, op_fake, allow_override=False)
    assert str(e.value) == (
        f"fake rule of {ns}::scale is already registered\n"
        f"  got: a second one at {source_of(op_fake)}\n"
        f"  registered at: {source_of(meta)}\n"
        "  to fix: destroy the first handle or Library, or pass allow_override=True"
    )
    ow.register_fake(op, op_fake)


@pytest.mark.parametrize("allow_override", [True, False])
def test_75_no_fake_for_what_is_traced_through(ns, allow_override):
    def body(x):
        return x + 1

    def fake(x):
        return x

    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", body, "CompositeImplicitAutograd")
        record = getattr(ow.ops, ns).f.default._record
        with pytest.raises(RegistrationError) as e:
            ow.register_fake(f"{ns}::f", fake, allow_override=allow_override)
        assert str(e.value) == (
            f"fake rule of {ns}::f was refused: the operator has a kernel for CompositeImplicitAutograd "
            "and runs as "
            "what that calls, so a fake would never run\n"
            f"  got: a fake at {source_of(fake)}\n"
            f"  registered at: {source_of(body)}\n"
            "  to fix: register fakes for the operators that it calls"
        )
        assert record.rules == ()


def test_74_a_fake_twice(op):
    first, second = (lambda x, k: x), (lambda x, k: x + 1)
    op.register_fake(first)
    op.register_fake(second)
    assert op._record.rule("fake").fn is second


def test_a_name_is_found_or_waits_even_while_it_is_being_defined(ns):
    """No registration falls between the look-up and the wait."""
    done = []

    def register(n):
        done.append(ow.register_kernel(f"{ns}::f", "xla", lambda x, n=n: x))

    threads = [threading.Thread(target=register, args=(n,)) for n in range(20)]
    for thread in threads[:10]:
        thread.start()
    f = ow.custom_op(f"{ns}::f", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    for thread in threads[10:]:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(done) == 20
    assert len([kernel for kernel in f._record.kernels if kernel.key == "XLA"]) == 20
    assert f"{ns}::f.default" not in registry.pending
