"""What ``setup_context`` makes of a context, called by itself: which outputs it marks, which it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.checks.attempts import attempt
from opwright.frameworks.base import load, of_flavour
from opwright.frameworks.bridges import crossing
from opwright.rules.autograd import Context, run_setup_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.checks.base import Probe
    from opwright.checks.samples import Sample


Place = tuple[int, int | None]
"""The index of an output, and its index in a list or None."""


def marked(probe: Probe, sample: Sample) -> set[Place]:
    """Return the places of the outputs that are marked as non-differentiable."""
    context, outputs = filled(probe, sample)
    if context is None:
        return set()
    ids = {id(one) for one in context.non_differentiable}
    return {place for place, one in outputs.items() if id(one) in ids}


def filled(probe: Probe, sample: Sample) -> tuple[Context | None, dict[Place, Any]]:
    """Return a context that ``setup_context`` filled, and the outputs that it was given, by place.

    None where the rule cannot be called by itself; what is wrong with it shows elsewhere.
    """
    rule: Any = probe.record.rule("autograd")
    if rule is None or rule.setup_context is None:
        return None, {}
    found, _ = attempt(_filled, probe, sample, rule)
    return found or (None, {})


def _filled(probe: Probe, sample: Sample, rule: Any) -> tuple[Context, dict[Place, Any]]:
    there = crossing_of(probe, rule)
    needs = tuple(
        [True] * len(value) if isinstance(value, list | tuple) else value is not None
        for value in sample.values
    )
    with probe.adapter.scope():
        before, values = probe.values(sample), probe.values(sample)
        called = probe.adapter.call(probe.record, values)
        context = Context(needs)
        outputs = [there(one) for one in called.outputs]
        single = len(probe.schema.returns) == 1 and not probe.schema.is_tuple
        passed = outputs[0] if single else tuple(outputs) if outputs else None
        run_setup_context(rule.setup_context, probe.schema, context, there(list(before)), passed)
    places: dict[Place, Any] = {}
    for index, value in enumerate(outputs):
        if isinstance(value, list | tuple):
            places.update({(index, element): one for element, one in enumerate(value)})
        else:
            places[index, None] = value
    return context, places


def crossing_of(probe: Probe, rule: Any) -> Callable[[Any], Any]:
    """Return what turns the framework's arrays into those that a rule's body takes."""
    framework = load(probe.adapter.name)
    if rule.flavour in ("array_api", framework.flavour):
        return lambda value: value
    return crossing(framework, of_flavour(rule.flavour))
