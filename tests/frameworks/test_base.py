"""Frameworks by name, and what a framework does where it says nothing of its own."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from boxes import Boxes
from opwright import catalogue
from opwright.errors import NoKernelError, RegistrationError, UnsupportedError
from opwright.framework_info import FrameworkInfo
from opwright.frameworks import base
from opwright.frameworks.base import Framework, load, loaded, of_flavour
from opwright.overload import Kernel, OpOverload
from opwright.parse import parse_schema

ANY = "CompositeExplicitAutograd"


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
