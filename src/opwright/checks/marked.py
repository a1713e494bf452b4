"""Which outputs the autograd rule marks as non-differentiable: ``setup_context`` is asked, by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.checks.base import attempt
from opwright.frameworks.base import crossing, load, of_flavour
from opwright.rules.autograd import Context, run_setup_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.checks.base import Probe
    from opwright.checks.samples import Sample


def marked(probe: Probe, sample: Sample) -> set[tuple[int, int | None]]:
    """Return the places of the outputs that are marked: index, and index in a list or None.

    None are marked where the rule cannot be called by itself; what is wrong with it shows elsewhere.
    """
    rule: Any = probe.record.rule("autograd")
    if rule is None or rule.setup_context is None:
        return set()
    found, _ = attempt(_marked, probe, sample, rule)
    return found or set()


def _marked(probe: Probe, sample: Sample, rule: Any) -> set[tuple[int, int | None]]:
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
    ids = {id(one) for one in context.non_differentiable}
    places = set()
    for index, value in enumerate(outputs):
        many = isinstance(value, list | tuple)
        for element, one in enumerate(value if many else [value]):
            if id(one) in ids:
                places.add((index, element if many else None))
    return places


def crossing_of(probe: Probe, rule: Any) -> Callable[[Any], Any]:
    """Return what turns the framework's arrays into those that a rule's body takes."""
    framework = load(probe.adapter.name)
    if rule.flavour in ("array_api", framework.flavour):
        return lambda value: value
    return crossing(framework, of_flavour(rule.flavour))
