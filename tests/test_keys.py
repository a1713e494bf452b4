"""Dispatch keys as data."""

from __future__ import annotations

import enum

import pytest

from opwright.errors import RegistrationError
from opwright.keys import (
    AUTOCAST_DEVICES,
    BACKENDS,
    DEVICE_TYPES,
    DISPATCH_KEYS,
    device_of,
    key_of,
    resolve_key,
)


@pytest.mark.parametrize("key", BACKENDS)
def test_each_backend_key_is_one_device_type(key):
    device = device_of(key)
    assert key_of(device) == key
    assert resolve_key(device) == resolve_key(key) == key


def test_device_types():
    assert {"cpu", "cuda", "meta", "mps", "xpu", "privateuseone"} <= set(DEVICE_TYPES)
    assert device_of("AutogradCPU") is None
    assert key_of("tpu") is None


@pytest.mark.parametrize("key", ["AutogradCUDA", "AutocastCPU", "Autograd", "Functionalize", "SparseCPU"])
def test_other_keys_have_their_own_names(key):
    assert key in DISPATCH_KEYS
    assert resolve_key(key) == key


def test_default_is_every_device():
    assert resolve_key("default") == "CompositeExplicitAutograd"


def test_an_enumeration_of_keys_is_taken_by_name():
    class DispatchKey(enum.Enum):
        CPU = 1

    assert resolve_key(DispatchKey.CPU) == "CPU"


@pytest.mark.parametrize(
    ("name", "allow_default"), [("gpu", True), ("default", False), ("cuda:0", True), (3, True)]
)
def test_anything_else_is_refused_with_the_list(name, allow_default):
    with pytest.raises(RegistrationError) as e:
        resolve_key(name, allow_default=allow_default)
    shown = repr(name) if isinstance(name, str) else repr(repr(name))
    assert str(e.value) == (
        f"{shown} is neither a device type nor a dispatch key\n"
        "  expected: one of cpu, cuda, hip, hpu, ipu, lazy, maia, meta, mps, mtia, privateuseone, ve, xla, "
        "xpu, 'default', or a dispatch key such as 'CPU'"
    )


def test_the_names_are_torchs():
    torch = pytest.importorskip("torch", reason="compares with torch's own names")
    theirs = {name for name in torch._C.DispatchKey.__members__ if not name.startswith(("EndOf", "StartOf"))}
    assert {
        name for name in theirs - DISPATCH_KEYS if torch._C._parse_dispatch_key(name) is not None
    } == set()


def test_the_devices_of_autocast_are_torchs():
    torch = pytest.importorskip("torch", reason="compares with torch's own names")
    theirs = {
        name.removeprefix("Autocast")
        for name in torch._C.DispatchKey.__members__
        if name.startswith("Autocast")
    }
    assert {key_of(device) for device in AUTOCAST_DEVICES} == theirs
