"""Dtypes and devices of other frameworks, and standard names, as torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opwright.frameworks.torch.convert import overlaps_itself, to_torch


@pytest.mark.parametrize("given", [torch.float32, np.float32, np.dtype("f4"), "float32", "torch.float32"])
def test_dtypes(given):
    assert to_torch("ScalarType", given) is torch.float32


def test_more_dtypes():
    assert to_torch("ScalarType", bool) is torch.bool
    assert to_torch("ScalarType", "bfloat16") is torch.bfloat16
    assert to_torch("ScalarType", np.int64) is torch.int64


def test_what_is_no_dtype():
    with pytest.raises(ValueError, match="torch has no dtype 'float31'"):
        to_torch("ScalarType", "float31")


def test_dtypes_of_jax():
    jnp = pytest.importorskip("jax.numpy", reason="needs JAX")
    assert to_torch("ScalarType", jnp.float32) is torch.float32
    assert to_torch("ScalarType", jnp.bfloat16) is torch.bfloat16


def test_devices():
    assert to_torch("Device", "cuda:1") == torch.device("cuda", 1)
    assert to_torch("Device", torch.device("cpu")) == torch.device("cpu")


def test_devices_of_jax():
    jax = pytest.importorskip("jax", reason="needs JAX")
    assert to_torch("Device", jax.devices("cpu")[0]).type == "cpu"


def test_layouts_and_memory_formats():
    assert to_torch("Layout", "strided") is torch.strided
    assert to_torch("MemoryFormat", "channels_last") is torch.channels_last
    assert to_torch("Layout", torch.sparse_coo) is torch.sparse_coo


def test_elements_that_share_memory():
    assert overlaps_itself(torch.ones(1).expand(3))
    assert not overlaps_itself(torch.ones(3))
    assert not overlaps_itself(torch.ones(1).expand(1))
    assert not overlaps_itself(torch.ones(2, 3).T)
