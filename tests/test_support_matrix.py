"""Every framework lowers every kind of rule, or says why not."""

from __future__ import annotations

import pytest

import opwright.fakes  # noqa: F401  (makes the framework of fakes known)
from opwright import catalogue
from opwright.errors import RegistrationError
from opwright.frameworks.base import RULE_KINDS, load

FRAMEWORKS = ["numpy", "fake", "torch", "jax", "cupy"]


def framework(name):
    try:
        return load(name)
    except (ImportError, RegistrationError) as error:
        pytest.skip(f"{name} cannot be loaded here: {str(error).splitlines()[0]}")


def test_all_built_in_frameworks_are_in_the_matrix():
    assert {info.name for info in catalogue._BUILT_IN} | {"fake"} == set(FRAMEWORKS)


@pytest.mark.parametrize("kind", RULE_KINDS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_rule_kind_is_lowered_or_unsupported_with_a_reason(name, kind):
    one = framework(name)
    assert (kind in one.lowered) != (kind in one.unsupported), f"{name} and {kind}"
    text = one.lowered.get(kind) or one.unsupported.get(kind)
    assert len(text.split()) > 1 or "." in text


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_nothing_else_is_in_the_tables(name):
    one = framework(name)
    assert {*one.lowered, *one.unsupported} <= set(RULE_KINDS)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_frameworks_with_transforms_name_their_own(name):
    own = dict(catalogue.get(name).transforms)
    assert set(own) == {"vjp", "jvp", "vmap"}
    module = pytest.importorskip(name)
    for path in own.values():
        found = module
        for part in path.split(".")[1:]:
            found = getattr(found, part)
        assert callable(found)
