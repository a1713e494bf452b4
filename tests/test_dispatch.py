"""On a table miss: the framework of a call, what is stored for the next one, and what the errors say."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import opwright as ow
from opwright import catalogue, dispatch, registry
from opwright.errors import (
    ArgumentError,
    MixedFrameworksError,
    NoKernelError,
    RegistrationError,
    RegistrationValueError,
)
from opwright.framework_info import FrameworkInfo
from opwright.frameworks import base
from opwright.source import source_of

X = np.arange(3.0)


@pytest.fixture
def tiny(monkeypatch):
    """The little framework of ``tests/tiny``, which here takes NumPy arrays as constants, as JAX does."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "tiny"))
    import opwright_tiny
    import tinyarrays

    class Tiny(opwright_tiny.Tiny):
        name = "tiny"

        @staticmethod
        def _array(value):
            return value if isinstance(value, tinyarrays.Array | np.ndarray) else None

    info = FrameworkInfo(
        "tiny",
        package="tinyarrays",
        module="opwright_tiny",
        array_classes=(("tinyarrays", "Array"),),
        annotations=(("tinyarrays", "Array", "tiny"),),
        constants=("numpy",),
        device_types=("cpu",),
        shares=("cpu",),
    )
    framework = Tiny()
    monkeypatch.setattr(catalogue, "_infos", (*catalogue.known(), info))
    monkeypatch.setattr(catalogue, "_framework_of", type(catalogue._framework_of)())
    monkeypatch.setattr(catalogue, "_schema_type_of", type(catalogue._schema_type_of)())
    monkeypatch.setitem(base._loaded, "tiny", framework)
    yield types.SimpleNamespace(Array=tinyarrays.Array, framework=framework)
    for name in ("opwright_tiny", "tinyarrays"):
        del sys.modules[name]


@pytest.fixture
def add(ns):
    @ow.custom_op(f"{ns}::add", mutates_args=())
    def add(x: ow.Array, y: ow.Array) -> ow.Array:
        return x + y

    return add


def test_a_warm_call_stays_in_the_table(add):
    for _ in range(5):
        add(X, X)
    call = add._record.table[np.ndarray]
    assert call.__code__.co_filename.startswith("<opwright ")
    add(X, X)
    assert add._record.table[np.ndarray] is call


def test_a_registration_empties_the_table(add):
    add(X, X)
    assert np.ndarray in add._record.table
    handle = add.register_kernel("cpu", lambda x, y: x - y)
    assert np.ndarray not in add._record.table
    np.testing.assert_array_equal(add(X, X), 0 * X)
    handle.destroy()
    assert np.ndarray not in add._record.table


def test_what_was_found_before_a_registration_is_not_stored(add, monkeypatch):
    """Another thread registers a kernel while this one specialises."""
    numpy = base.load("numpy")
    specialise = type(numpy).specialise

    def late(self, record, values):
        call = specialise(self, record, values)
        add.register_kernel("cpu", lambda x, y: x - y)
        monkeypatch.undo()
        return call

    monkeypatch.setattr(type(numpy), "specialise", late)
    np.testing.assert_array_equal(add(X, X), X + X)
    np.testing.assert_array_equal(add(X, X), 0 * X)


def test_a_framework_that_takes_the_others_arrays_as_constants(add, tiny):
    """The class of the first array does not decide alone, and never once for all."""
    a = tiny.Array([1.0, 2.0, 3.0])
    for _ in range(5):
        assert type(add(X, X)) is np.ndarray
        assert type(add(a, a)) is tiny.Array
        assert type(add(a, X)) is tiny.Array


def test_a_constant_first_does_not_capture_the_class(ns, tiny):
    @ow.custom_op(f"{ns}::second", mutates_args=())
    def second(x: ow.Array, y: ow.Array) -> ow.Array:
        return y + 0

    a = tiny.Array([1.0])
    for order in ((X, a), (X, X), (X, a), (X, X), (X, a)):
        assert type(second(*order)) is type(order[1])
    assert (np.ndarray, "tiny") in second._record.table
    assert np.ndarray in second._record.table


def test_arrays_of_two_frameworks_are_named(ns):
    torch = pytest.importorskip("torch", reason="the second framework of the mixture")

    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(xs: list[np.ndarray], y: np.ndarray) -> np.ndarray:
        return xs[0] + y

    for warm in (False, True):
        if warm:
            f([X], X)
        with pytest.raises(MixedFrameworksError) as e:
            f([X, torch.ones(3)], X)
        assert str(e.value) == (
            f"{ns}::f was called with arrays of 2 frameworks\n"
            "  expected: arrays of one framework\n"
            "  got: xs[0] of numpy, xs[1] of torch\n"
            "  to fix: convert them to one framework first; data is never moved without being asked"
        )


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("value", "got"),
    [
        (1.0, "float"),
        ([1.0], "list"),
        ("x", "str"),
        (None, "NoneType"),
        (X.dtype, "numpy.dtypes.Float64DType"),
        (np.ndarray, "type"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_no_array_is_refused_in_the_same_words_cold_and_warm(add, ns, *, warm, value, got, place):
    if warm:
        for _ in range(5):
            add(X, X)
    args = [X, X]
    args[place] = value
    with pytest.raises(ArgumentError) as e:
        add(*args)
    name = "xy"[place]
    fix = "" if value is None else f"\n  to fix: make it one first, for example numpy.asarray({name})"
    assert str(e.value) == (
        f"{ns}::add: argument {name} must be an array\n"
        "  expected: an array of a framework, such as numpy.ndarray, torch.Tensor or jax.Array\n"
        f"  got: {got}{fix}"
    )
    assert e.value.__context__ is None


@pytest.mark.parametrize("warm", [False, True])
def test_what_is_no_list_of_arrays_is_refused(ns, warm):
    @ow.custom_op(
        f"{ns}::f", mutates_args=(), schema="(Tensor[2] xs, Tensor?[] ys) -> Tensor", flavour="numpy"
    )
    def f(xs, ys):
        return xs[0] + xs[1]

    if warm:
        for _ in range(5):
            f([X, X], [None])
    for args, text in [
        ((X, []), "argument xs must be a list of arrays\n  expected: Tensor[2]\n  got: numpy.ndarray"),
        (([X], []), "argument xs must be a list of arrays\n  expected: Tensor[2]\n  got: list of 1"),
        (([X, X], X), "argument ys must be a list of arrays\n  expected: Tensor?[]\n  got: numpy.ndarray"),
        (([X, X], "ab"), "argument ys must be a list of arrays\n  expected: Tensor?[]\n  got: str"),
        (
            ([X, None], []),
            "argument xs[1] must be an array\n"
            "  expected: an array of a framework, such as numpy.ndarray, torch.Tensor or jax.Array\n"
            "  got: NoneType",
        ),
    ]:
        with pytest.raises(ArgumentError) as e:
            f(*args)
        assert str(e.value) == f"{ns}::f: {text}"


def test_no_kernel_for_the_device(ns):
    """Behaviour 18 and I047: never a silent no-op."""

    def body(x):
        return x

    op = ow.custom_op(
        f"{ns}::f", body, mutates_args=(), schema="(Tensor x) -> Tensor", device_types="cuda", flavour="torch"
    )
    with pytest.raises(NoKernelError) as e:
        op(X)
    assert str(e.value) == (
        f"{ns}::f has no kernel for numpy arrays on cpu\n"
        f"  expected: kernels for cuda (torch, {source_of(body)})\n"
        "  got: numpy arrays on cpu\n"
        f"  registered at: {source_of(body)}\n"
        f"  to fix: register one: @opwright.register_kernel('{ns}::f', 'cpu')"
    )


def test_an_operator_without_any_kernel(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        with pytest.raises(NoKernelError, match=r"expected: kernels for none\n"):
            getattr(ow.ops, ns).f(X)


# ------------------------------------------------------------------ without arrays


def test_the_definitions_flavour_decides_where_there_are_no_arrays(ns):
    @ow.custom_op(f"{ns}::make", mutates_args=())
    def make(n: int) -> np.ndarray:
        return np.zeros(n)

    for _ in range(5):
        assert make(3).shape == (3,)


def test_without_arrays_and_without_a_flavour(ns):
    def body(n):
        return np.zeros(n)

    make = ow.custom_op(f"{ns}::make", body, mutates_args=(), schema="(int n) -> Tensor")
    with pytest.raises(ArgumentError) as e:
        make(3)
    assert str(e.value) == (
        f"{ns}::make was called without arrays, so the framework is not known\n"
        "  expected: an array, or a device or dtype object of a framework\n"
        f"  registered at: {source_of(body)}\n"
        "  to fix: pass a device or dtype, or annotate the definition with one framework's arrays"
    )


def test_a_name_of_a_dtype_is_of_no_framework(ns):
    def body(n, dtype):
        return np.zeros(n, dtype)

    make = ow.custom_op(f"{ns}::make", body, mutates_args=(), schema="(int n, ScalarType dtype) -> Tensor")
    with pytest.raises(ArgumentError) as e:
        make(3, "float32")
    assert str(e.value) == (
        f"{ns}::make was called without arrays, so the framework is not known\n"
        "  expected: an array, or a device or dtype object of a framework\n"
        "  got: dtype='float32'\n"
        f"  registered at: {source_of(body)}\n"
        "  to fix: pass a device or dtype, or annotate the definition with one framework's arrays"
    )


def test_a_dtype_object_decides(ns):
    def body(n, dtype, device):
        return np.zeros(n, dtype)

    make = ow.custom_op(
        f"{ns}::make",
        body,
        mutates_args=(),
        schema="(int n, ScalarType? dtype=None, Device device='cpu') -> Tensor",
    )
    for _ in range(5):
        assert make(3, np.dtype("int8")).dtype == np.int8
        assert make(3, np.int16).dtype == np.int16
    with pytest.raises(ArgumentError, match="was called without arrays"):
        make(3, float)
    with pytest.raises(ArgumentError, match="was called without arrays"):
        make(3)


def test_a_name_for_a_device_does_not_decide_for_later_calls(ns):
    torch = pytest.importorskip("torch", reason="the other framework's dtype")
    given = []

    def body(device, dtype):
        given.append(dtype)
        return np.zeros(1, dtype) if isinstance(dtype, np.dtype) else torch.zeros(1, dtype=dtype)

    make = ow.custom_op(
        f"{ns}::make", body, mutates_args=(), schema="(Device device, ScalarType dtype) -> Tensor"
    )
    for _ in range(5):
        assert type(make("cpu", np.dtype("f4"))) is np.ndarray
        assert type(make("cpu", torch.float32)) is torch.Tensor


# ------------------------------------------------------------------ frameworks come and go


def test_a_framework_that_cannot_be_loaded_does_not_stop_the_others(ns, monkeypatch):
    info = FrameworkInfo(
        "broken", package="brokenarrays", module="opwright_broken", array_classes=(("brokenarrays", "A"),)
    )
    package = types.ModuleType("brokenarrays")
    package.A = type("A", (), {"__module__": "brokenarrays"})
    monkeypatch.setitem(sys.modules, "brokenarrays", package)
    monkeypatch.setattr(catalogue, "_infos", (*catalogue.known(), info))
    monkeypatch.setattr(catalogue, "_framework_of", type(catalogue._framework_of)())
    monkeypatch.setattr(dispatch, "_unusable", set())

    def body(x):
        return x + 1

    with pytest.warns(dispatch.FrameworkWarning) as caught:
        op = ow.custom_op(f"{ns}::f", body, mutates_args=(), schema="(Tensor x) -> Tensor")
    assert [str(w.message) for w in caught] == [
        "operators cannot be used with broken: ModuleNotFoundError: No module named 'opwright_broken'"
    ]
    np.testing.assert_array_equal(op(X), X + 1)
    ow.custom_op(f"{ns}::g", body, mutates_args=(), schema="(Tensor x) -> Tensor")  # warned of once
    with pytest.raises(ModuleNotFoundError, match="opwright_broken"):
        op(package.A())


def test_a_package_that_is_still_being_imported_counts_as_not_loaded(monkeypatch):
    info = catalogue.get("torch")
    package = types.ModuleType("torch")
    package.__spec__ = types.SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "torch", package)
    assert not catalogue.loaded(info)
    package.__spec__._initializing = False
    assert catalogue.loaded(info)
    package.__spec__ = None
    assert catalogue.loaded(info)


def test_attach_defines_every_operator(add, tiny):
    assert "tiny" not in add._record.lowered
    ow.attach("tiny")
    assert add._record.lowered["tiny"] == {}


def test_attach_to_what_is_no_framework():
    with pytest.raises(RegistrationValueError, match="'tensorflow' is not a framework"):
        ow.attach("tensorflow")


def test_attach_to_what_is_not_installed():
    if importlib.util.find_spec("cupy"):
        pytest.skip("CuPy is installed here")
    with pytest.raises((RegistrationError, ModuleNotFoundError)):
        ow.attach("cupy")


def test_an_attach_that_fails_leaves_the_operator_unattached(add, tiny, monkeypatch):
    def fail(record):
        raise ValueError("not today")

    monkeypatch.setattr(tiny.framework, "attach", fail)
    with pytest.raises(ValueError, match="not today"):
        add(tiny.Array([1.0]), tiny.Array([1.0]))
    assert "tiny" not in add._record.lowered
    monkeypatch.undo()


def test_undefine_forgets_what_frameworks_made(add, tiny, ns):
    add(tiny.Array([1.0]), tiny.Array([1.0]))
    record = add._record
    assert "tiny" in record.lowered
    registry.undefine(record, "here")
    assert record.lowered == {}
    assert tiny.framework.events[-1] == ("undefine", f"{ns}::add")


def test_a_definition_that_one_framework_refuses_is_taken_from_the_others(ns, tiny, monkeypatch):
    monkeypatch.setattr(base.load("numpy"), "attach", lambda record: None)
    order = []

    def refuse(record):
        order.append("refused")
        raise ValueError("no room")

    monkeypatch.setattr(tiny.framework, "attach", refuse)
    monkeypatch.setattr(
        type(base.load("numpy")), "changed", lambda self, event, record, item: order.append(event)
    )
    with pytest.raises(ValueError, match="no room"):
        ow.custom_op(f"{ns}::f", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")
    assert order == ["refused", "undefine"]
    assert f"{ns}::f.default" not in registry.records
