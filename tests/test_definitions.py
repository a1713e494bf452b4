"""Module-level ``define`` and ``impl``, and their older forms. Behaviours 52 to 54."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright import registry
from opwright.errors import RegistrationError, RegistrationTypeError, RegistrationValueError, SchemaError

X = np.arange(3.0)


def _packet(ns, name="f"):
    return getattr(getattr(ow.ops, ns), name)


def test_52_define(ns):
    assert ow.define(f"{ns}::f", "(Tensor x, int k=1) -> Tensor", tags="pointwise") is None
    ow.define(f"{ns}::f.b", " (Tensor x) -> Tensor", tags=(ow.Tag.core,))
    assert _packet(ns).overloads() == ["default", "b"]
    assert _packet(ns).default.tags == ("pointwise",)
    assert _packet(ns).b.tags == ("core",)
    ow.impl(f"{ns}::f", "cpu", lambda x, k: x + k)
    np.testing.assert_array_equal(_packet(ns)(X), X + 1)


def test_52_with_a_library_the_definition_goes_with_it(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        ow.define(f"{ns}::f", "(Tensor x) -> Tensor", lib=lib)
        assert lib._op_defs == {f"{ns}::f"}
    assert not hasattr(getattr(ow.ops, ns), "f")


@pytest.mark.parametrize(
    ("name", "schema", "kind", "text"),
    [
        (
            "f",
            "() -> ()",
            RegistrationValueError,
            "an operator's name needs a namespace\n"
            "  expected: namespace::name or namespace::name.overload\n"
            "  got: 'f'\n"
            "  to fix: put a namespace of your own in front: 'mylib::f'",
        ),
        (
            "ns::f",
            "f() -> ()",
            SchemaError,
            "define('ns::f'): the schema must start with a parenthesis\n"
            "  expected: such as '(Tensor x) -> Tensor'\n"
            "  got: 'f() -> ()'",
        ),
        (
            3,
            "() -> ()",
            RegistrationValueError,
            "define needs a qualified name\n  expected: a string 'ns::name'\n  got: int",
        ),
        (
            "ns::f",
            3,
            RegistrationTypeError,
            "define('ns::f'): the schema must be a string\n  got: 3 of type int",
        ),
    ],
)
def test_52_bad_input(name, schema, kind, text):
    before = dict(registry.records)
    with pytest.raises(kind) as e:
        ow.define(name, schema)
    assert str(e.value) == text
    assert registry.records == before


def test_53_the_older_forms_are_decorators(ns):
    with ow.Library(ns, "DEF") as lib:

        @ow.define(lib, "f(Tensor x, int k=2) -> Tensor")
        def f(x, k):
            return x + k

        assert f(1, 2) == 3
        np.testing.assert_array_equal(_packet(ns)(X), X + 2)

        @ow.impl(lib, "f", "CPU")
        def cpu(x, k):
            return x - k

        assert cpu(3, 2) == 1
        np.testing.assert_array_equal(_packet(ns)(X), X - 2)

        @ow.define(lib, "g() -> int", "CONSERVATIVE")
        def g():
            return 3

        assert callable(_packet(ns, "g"))


def test_53_a_body_that_does_not_fit_leaves_nothing_defined(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        with pytest.raises(RegistrationTypeError, match="has another signature"):

            @ow.define(lib, "f(Tensor x, int k) -> Tensor")
            def f(x):
                return x

        assert not hasattr(getattr(ow.ops, ns), "f")
        assert lib._op_defs == set()


@pytest.mark.parametrize(
    ("types", "keys"),
    [
        ("cpu", ["CPU"]),
        ("CPU", ["CPU"]),
        (["cpu", "meta", "cpu"], ["CPU", "Meta"]),
        ("default", ["CompositeExplicitAutograd"]),
        ("CompositeImplicitAutograd", ["CompositeImplicitAutograd"]),
        (("AutogradCPU", "cpu"), ["AutogradCPU", "CPU"]),
    ],
)
def test_54_impl_takes_keys_and_device_types(ns, types, keys):
    ow.define(f"{ns}::f", "(Tensor x) -> Tensor")
    handle = ow.impl(f"{ns}::f", types, lambda x: x + 1)
    record = _packet(ns).default._record
    assert [kernel.key for kernel in record.kernels] == keys
    np.testing.assert_array_equal(_packet(ns)(X), X + 1)
    handle.destroy()
    assert record.kernels == ()


def test_54_without_a_function_it_is_a_decorator(ns):
    ow.define(f"{ns}::f", "(Tensor x) -> Tensor")

    @ow.impl(f"{ns}::f", "cpu")
    def kernel(x):
        return x + 1

    assert kernel(1) == 2
    np.testing.assert_array_equal(_packet(ns)(X), X + 1)


@pytest.mark.parametrize("by", ["operator", "packet", "overload name"])
def test_54_by_object(ns, by):
    ow.define(f"{ns}::f", "(Tensor x) -> Tensor")
    target = {"operator": _packet(ns).default, "packet": _packet(ns), "overload name": f"{ns}::f.default"}[by]
    ow.impl(target, "cpu", lambda x: x + 1)
    np.testing.assert_array_equal(_packet(ns)(X), X + 1)


@pytest.mark.parametrize("types", ["gpu", ["cpu", "gpu"]])
def test_54_an_unknown_type_lists_the_valid_ones(ns, types):
    ow.define(f"{ns}::f", "(Tensor x) -> Tensor")
    with pytest.raises(RegistrationError) as e:
        ow.impl(f"{ns}::f", types, lambda x: x)
    assert str(e.value) == (
        "'gpu' is neither a device type nor a dispatch key\n"
        "  expected: one of cpu, cuda, hip, hpu, ipu, lazy, maia, meta, mps, mtia, privateuseone, ve, xla, "
        "xpu, 'default', or a dispatch key such as 'CPU'"
    )
    assert _packet(ns).default._record.kernels == ()


@pytest.mark.parametrize(
    ("types", "text"),
    [
        (3, "types must be a name or several\n  got: 3"),
        ((), "types is empty, so there is nothing to register for"),
    ],
)
def test_54_no_types(ns, types, text):
    with pytest.raises(RegistrationError) as e:
        ow.impl(f"{ns}::f", types, lambda x: x)
    assert str(e.value) == text


def test_54_all_keys_or_none(ns):
    ow.define(f"{ns}::f", "(Tensor x) -> Tensor")
    with pytest.raises(RegistrationValueError, match="whose arrays are never on cuda"):
        ow.impl(f"{ns}::f", ["cpu", "cuda"], _annotated)
    assert _packet(ns).default._record.kernels == ()


def _annotated(x: np.ndarray) -> np.ndarray:
    return x


def test_54_with_a_library_it_goes_with_it(ns):
    ow.define(f"{ns}::f", "(Tensor x) -> Tensor")
    with ow.Library(ns, "IMPL") as lib:
        ow.impl(f"{ns}::f", ["cpu", "meta"], lambda x: x + 1, lib=lib)
        np.testing.assert_array_equal(_packet(ns)(X), X + 1)
    assert _packet(ns).default._record.kernels == ()


def test_what_owns_a_definition_must_be_a_library(ns):
    for use in (
        lambda: ow.define(f"{ns}::f", "() -> ()", lib=3),
        lambda: ow.impl(f"{ns}::f", "cpu", lambda: None, lib=3),
    ):
        with pytest.raises(RegistrationTypeError) as e:
            use()
        assert str(e.value) == "lib must be an opwright.Library\n  got: 3 of type int"
    assert not hasattr(getattr(ow.ops, ns), "f")
