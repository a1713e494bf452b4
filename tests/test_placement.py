"""Devices that a kernel can be for, and copies that its author allows."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.errors import RegistrationValueError

X = np.arange(3.0)


def kernel(x):
    return x * 2


def test_copies_are_for_numpy_kernels_of_arrays(ns):
    op = ow.custom_op(f"{ns}::f", kernel, mutates_args=(), schema="(Tensor x) -> Tensor", flavour="numpy")
    handle = ow.register_kernel(op, ("cpu", "cuda"), kernel, flavour="numpy", copy=True)
    assert [(k.key, k.copies) for k in op._record.kernels[1:]] == [("CPU", True), ("CUDA", True)]
    handle.destroy()
    ow.define(f"{ns}::made", "(int n, Device device) -> Tensor")
    made = getattr(ow.ops, ns).made.default
    refused = [
        (op, "cuda", kernel, "torch", "a kernel of flavour torch for cuda"),
        (op, None, kernel, "array_api", "a kernel of flavour array_api for any device"),
        (op, "meta", kernel, "numpy", "a kernel of flavour numpy for meta"),
        (
            made,
            "cuda",
            lambda n, device: X,
            "numpy",
            "a kernel of flavour numpy for cuda, without Tensor inputs",
        ),
    ]
    for target, device, fn, flavour, got in refused:
        before = target._record.kernels
        with pytest.raises(RegistrationValueError) as e:
            target.register_kernel(device, fn, flavour=flavour, copy=True)
        assert "cannot be registered with copy=True\n" in str(e.value)
        assert f"  got: {got}\n" in str(e.value)
        assert target._record.kernels == before


def test_a_numpy_kernel_is_for_no_gpu_unless_copies_are_allowed(ns):
    op = ow.custom_op(f"{ns}::f", kernel, mutates_args=(), schema="(Tensor x) -> Tensor", flavour="numpy")
    with pytest.raises(
        RegistrationValueError, match=r"let them be copied: register_kernel\(..., copy=True\)"
    ):
        op.register_kernel("cuda", kernel)
    with pytest.raises(RegistrationValueError) as e:
        op.register_kernel("cpu", kernel, flavour="cupy")
    assert "copy=True" not in str(e.value)
