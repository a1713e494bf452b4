"""What is known of a framework: frozen, with defaults; the built-in ones."""

from __future__ import annotations

import pytest

from opwright import catalogue
from opwright.framework_info import BUILT_IN, FrameworkInfo


def test_defaults():
    info = FrameworkInfo("toy", package="toys", module="toys.opwright", array_classes=[("toys", "Grid")])
    assert info.array_classes == (("toys", "Grid"),)
    assert (info.annotations, info.types, info.constants, info.shares, info.transforms) == ((),) * 5
    assert info.device_types is None
    assert info.flavours == ("toy",)
    assert (info.distribution, info.install) == ("toys", "pip install toys")
    assert repr(info) == "<FrameworkInfo toy>"


def test_it_is_frozen():
    with pytest.raises(AttributeError, match=r"^FrameworkInfo is frozen: 'name' cannot be set$"):
        BUILT_IN[0].name = "other"


def test_its_public_home_is_the_catalogue():
    assert catalogue.FrameworkInfo is FrameworkInfo


@pytest.mark.parametrize("info", BUILT_IN, ids=lambda info: info.name)
def test_transforms_have_the_names_of_ours(info):
    assert {ours for ours, _ in info.transforms} in (set(), {"vjp", "jvp", "vmap"})
    assert bool(info.transforms) == (info.name in ("torch", "jax"))
