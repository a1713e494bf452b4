"""Fakes written with torch, for other frameworks' arrays."""

from __future__ import annotations

import pytest
import torch

import opwright as ow
from opwright.frameworks.torch.meta import run_fake
from opwright.rules.fake import FakeRule


def rule(fn):
    return FakeRule(fn, "torch", "here:1")


def test_arrays_lists_and_everything_else():
    seen = []

    def fake(xs, k, *, y):
        seen.append(([x.device.type for x in xs], xs[0].dtype, k, y))
        return [torch.cat(xs), None, 3], torch.empty_like(xs[0])

    x = ow.FakeArray((2, 3), "float16")
    out = run_fake(rule(fake), [[x, x], 2.0], {"y": None})
    assert repr(out) == ("([FakeArray((4, 3), float16, cpu), None, 3], FakeArray((2, 3), float16, cpu))")
    assert seen == [(["meta", "meta"], torch.float16, 2.0, None)]


def test_symbolic_sizes():
    with pytest.raises(ow.errors.UnsupportedError) as caught:
        run_fake(rule(torch.empty_like), [ow.FakeArray(("n", 3))], {})
    assert str(caught.value) == (
        "a fake of flavour torch runs on meta tensors, which have no symbolic sizes\n"
        "  got: shape (n, 3)\n"
        "  registered at: here:1\n"
        "  to fix: write it with opwright.empty_like and opwright.empty, for any framework"
    )
