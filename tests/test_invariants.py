"""The invariants of the design that concern every framework, and where the others are tested.

1 imports: test_import. 2 and 3 transactions and duplicates: test_registry. 6 checks that did nothing:
tests/checks. 7 hostile names: test_entry. Here: 4, every pair of framework and rule kind is lowered or
declared unsupported with a reason.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from opwright import catalogue
from opwright.frameworks.base import RULE_KINDS, load

FRAMEWORKS = [info.name for info in catalogue.known()]
FOLDER = Path(catalogue.__file__).parent / "frameworks"


def _load(name):
    info = catalogue.get(name)
    if importlib.util.find_spec(info.package) is None:
        pytest.skip(f"{info.package} is not installed")
    return load(name)


@pytest.mark.parametrize("kind", RULE_KINDS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_4_every_rule_kind_is_lowered_or_unsupported_with_a_reason(name, kind):
    framework = _load(name)
    how, why_not = framework.lowered.get(kind), framework.unsupported.get(kind)
    assert (how is None) != (why_not is None), f"{name}: {kind} must be in one of the two tables"
    assert len(how or why_not) > 10


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_4_the_tables_have_nothing_else(name):
    framework = _load(name)
    assert set(framework.lowered) | set(framework.unsupported) == set(RULE_KINDS)
    assert framework.name == name
    # FakeArray's framework is known once fakes are loaded, and brings a flavour of no kernel.
    assert framework.flavour in (*catalogue.flavours(), "fake")


def test_every_rule_kind_of_the_record_is_known_to_the_frameworks():
    from opwright.rules import autocast, autograd, fake, jvp, samples, torch_dispatch, vmap

    rules = [
        autocast.AutocastRule,
        autograd.AutogradRule,
        fake.FakeRule,
        jvp.JvpRule,
        torch_dispatch.TorchDispatchRule,
        vmap.VmapRule,
    ]
    assert {rule.kind for rule in rules} == set(RULE_KINDS) - {"functionalization"}
    assert samples.SamplesRule.kind not in RULE_KINDS  # of the checker alone
