"""Frameworks by name, and the bridge between two of them."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import opwright as ow
from opwright import catalogue
from opwright.errors import NoKernelError, RegistrationError, UnsupportedError
from opwright.framework_info import FrameworkInfo
from opwright.frameworks import base
from opwright.frameworks.base import RULE_KINDS, Framework, bridge, load, loaded, of_flavour
from opwright.overload import Kernel, OpOverload
from opwright.parse import parse_schema

ANY = "CompositeExplicitAutograd"


class Boxes(Framework):
    """Arrays in boxes: a one-element tuple-like object around NumPy's."""

    name = "boxes"
    flavour = "boxes"
    unsupported = dict.fromkeys(RULE_KINDS, "boxes are for tests")

    def device_type(self, array):
        return "cpu"

    def specialise(self, record, values):
        raise AssertionError

    def to_numpy(self, array):
        return array.inside

    def from_numpy(self, array):
        return Box(array)

    def from_dlpack(self, array):
        return Box(np.from_dlpack(array))


class Box:
    def __init__(self, inside):
        self.inside = inside


@pytest.fixture
def boxes(monkeypatch):
    info = FrameworkInfo("boxes", package="boxarrays", module="none", array_classes=(("boxarrays", "Box"),))
    monkeypatch.setitem(sys.modules, "boxarrays", types.SimpleNamespace(Box=Box))
    monkeypatch.setattr(catalogue, "_infos", (*catalogue.known(), info))
    monkeypatch.setattr(catalogue, "_framework_of", type(catalogue._framework_of)())
    framework = Boxes()
    monkeypatch.setitem(base._loaded, "boxes", framework)
    return framework


def _record():
    return OpOverload(parse_schema("ns::f(Tensor x) -> Tensor"), flavour="numpy", source="a.py:1")


def test_load_is_once():
    assert load("numpy") is load("numpy")
    assert load("numpy") in loaded()
    assert of_flavour("numpy") is load("numpy")


def test_a_framework_that_is_not_installed_names_the_line_that_installs_it(monkeypatch):
    info = FrameworkInfo(
        "absent",
        package="absentarrays",
        module="absentarrays",
        array_classes=(),
        install="pip install 'absent[arrays]'",
    )
    monkeypatch.setattr(catalogue, "_infos", (*catalogue.known(), info))
    with pytest.raises(RegistrationError) as e:
        load("absent")
    assert str(e.value) == (
        "framework absent needs the package absentarrays\n  to fix: pip install 'absent[arrays]'"
    )
    with pytest.raises(RegistrationError):
        of_flavour("absent")


def test_the_protocol_is_abstract_and_what_is_optional_refuses_in_words():
    with pytest.raises(TypeError, match="abstract"):
        Framework()
    framework, record = Boxes(), _record()
    assert framework.attach(record) is None
    assert framework.changed("add", record, None) is None
    assert framework.lookup("ns::f") is None
    assert framework.convert("ScalarType", int) is int
    with pytest.raises(UnsupportedError) as e:
        framework.native(record)
    assert str(e.value) == "boxes has no operator object for ns::f"
    with pytest.raises(UnsupportedError) as e:
        framework.get_kernel(record, "CPU")
    assert str(e.value) == "boxes has no kernels of its own for ns::f"


@pytest.mark.parametrize("flavour", ["numpy", "array_api"])
def test_no_bridge_where_the_kernel_takes_the_arrays(flavour):
    kernel = Kernel(len, ANY, flavour, "")
    assert bridge(kernel, load("numpy")) is len


def test_a_bridge_carries_arrays_in_lists_and_by_name(boxes):
    given = []

    def body(x, xs, k, *, y):
        given.append((x, xs, k, y))
        return x + 1, [one * 2 for one in xs if one is not None], None

    call = bridge(Kernel(body, ANY, "numpy", ""), boxes)
    x = np.ones(2)
    out, many, nothing = call(Box(x), [Box(x), None], [1, 2], y=Box(x))
    assert given[0][0] is x
    assert given[0][1][0] is x
    assert given[0][1][1] is None
    assert given[0][2] == [1, 2]
    assert given[0][3] is x
    assert isinstance(out, Box)
    assert isinstance(many[0], Box)
    assert nothing is None


def test_a_bridge_between_two_frameworks_goes_by_dlpack(boxes, monkeypatch):
    torch = pytest.importorskip("torch", reason="the second framework")
    monkeypatch.setattr(
        Box, "__dlpack__", lambda self, **kwargs: self.inside.__dlpack__(**kwargs), raising=False
    )
    monkeypatch.setattr(Box, "__dlpack_device__", lambda self: self.inside.__dlpack_device__(), raising=False)
    given = []

    def body(x):
        given.append(x)
        return x + 1

    x = np.ones(2)
    out = bridge(Kernel(body, ANY, "torch", ""), boxes)(Box(x))
    assert type(given[0]) is torch.Tensor
    assert given[0].data_ptr() == x.ctypes.data
    np.testing.assert_array_equal(out.inside, [2.0, 2.0])


def test_no_kernel_says_what_there_is():
    record = _record()
    record.kernels = (Kernel(len, "CUDA", "torch", "k.py:3"),)
    error = base.no_kernel(record, load("numpy"), "cpu")
    assert isinstance(error, NoKernelError)
    assert str(error) == (
        "ns::f has no kernel for numpy arrays on cpu\n"
        "  expected: kernels for cuda (torch, k.py:3)\n"
        "  got: numpy arrays on cpu\n"
        "  registered at: a.py:1\n"
        "  to fix: register one: @opwright.register_kernel('ns::f', 'cpu')"
    )


def test_attaching_happens_once_and_not_to_what_is_stale(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray) -> np.ndarray:
        return x + 1

    made = []

    class Counting(Boxes):
        name = "counting"

        def attach(self, record):
            made.append(record)

    framework = Counting()
    for _ in range(2):
        base.ensure_attached(framework, f._record)
    assert made == [f._record]
    old = f._record
    ow.custom_op(f"{ns}::f", f.__wrapped__, mutates_args=())
    old.lowered.clear()
    with pytest.raises(ow.errors.StaleError):
        base.ensure_attached(framework, old)
    assert old.lowered == {}
