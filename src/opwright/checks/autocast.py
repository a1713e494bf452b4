"""The law *autocast*: under autocast the operator computes in the dtype of its rule, and close to float32.

Each sample is taken in float32, called with and without autocast, and with inputs that are cast by hand.
Without a rule nothing may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.checks import second
from opwright.checks.adapters.base import gpu_adapters
from opwright.checks.adapters.results import Meta, Unsupported
from opwright.checks.arrays import difference, is_floating, wide
from opwright.checks.attempts import attempt
from opwright.checks.base import Law, Probe, line_of, raised
from opwright.checks.points import point_at, why_not
from opwright.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.base import Run
    from opwright.checks.points import Point
    from opwright.checks.samples import Leaf, Sample
    from opwright.report import Finding

CLOSE: Mapping[str, float] = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4, "float64": 1e-4}
"""How far a result may be from float32's, relative to the largest value, by the dtype of the rule."""

EXPLANATIONS: Mapping[str, str] = {
    "OW601": (
        "The operator raises under autocast although it accepts float32. Autocast hands the kernel the dtype "
        "of its rule; let the kernel take that, or give the rule a dtype that it takes."
    ),
    "OW602": (
        "Under autocast the result is far from that in float32: it overflows, or loses its digits. Choose "
        "bfloat16 or float32 for the rule, or compute in float32 inside the kernel."
    ),
    "OW603": (
        "For inputs of the autocast rule's dtype, the fake and the kernel give outputs of different dtypes. "
        "A compiled program under autocast then goes by the wrong one."
    ),
    "OW604": (
        "Under autocast the gradient raises, is far from that in float32, or is of another dtype than what "
        "the rule cast. The backward gets what the rule cast, and gradients in that dtype."
    ),
    "OW605": (
        "Under autocast the kernel returns another dtype than without, and the operator has no autocast rule "
        "that says so. Functions that it calls follow autocast by themselves, while its fake does not. Turn "
        "autocast off inside the kernel, or register the dtype with register_autocast."
    ),
}


def check(probe: Probe) -> Iterator[Finding]:
    """Yield what goes wrong under autocast, on the CPU and, where a rule is for it, on a GPU."""
    yield from _on_device(probe)
    if probe.record.rule("autocast", "cuda") is None:
        return
    gpus = gpu_adapters(probe.adapter)
    if isinstance(gpus, Unsupported):
        probe.skip(f"autocast on cuda was not looked at: {gpus.reason}")
        return
    gpu = Probe(probe.record, gpus[0], probe.samples, level=probe.level, rtol=probe.rtol, atol=probe.atol)
    gpu.law, gpu.failed = probe.law, probe.failed
    yield from _on_device(gpu)
    probe.compared(gpu.comparisons)
    for reason in gpu.skipped:
        probe.skip(reason)


def _on_device(probe: Probe) -> Iterator[Finding]:
    """Yield what goes wrong under autocast on the device of a framework's arrays."""
    device = probe.adapter.device_type
    rule: Any = probe.record.rule("autocast", device)
    if rule is None and not probe.adapter.own_autocast:
        probe.skip(f"no autocast rule is registered for {device}, so nothing is cast")
        return
    reason = probe.random_reason()
    if reason is not None:
        probe.skip(reason)
        return
    for sample in probe.samples:
        narrow = _in_float32(sample)
        if narrow is None:
            probe.skip("no argument is a real floating array")
            continue
        plain = probe.run(narrow)
        if plain.error is not None:
            probe.skip("the operator does not take float32")
        elif rule is None:
            yield from _unchanged(probe, narrow, plain)
        else:
            found = list(_close(probe, rule, narrow, plain))
            yield from found
            yield from _fake(probe, rule, narrow)
            if not found:
                yield from _gradients(probe, rule, narrow)


def _in_float32(sample: Sample) -> Sample | None:
    leaves = [leaf for leaf in sample.leaves() if sample.array(leaf).dtype.kind == "f"]
    if not leaves:
        return None
    if all(sample.array(leaf).dtype.name == "float32" for leaf in leaves):
        return sample
    return sample.with_arrays({leaf: sample.array(leaf).astype("float32") for leaf in leaves}, "in float32")


def _under(probe: Probe, dtype: str, sample: Sample) -> Run:
    with probe.adapter.autocast(probe.adapter.device_type, dtype):
        return probe.run(sample)


def _wrong(
    probe: Probe, sample: Sample, id_: str, what: str, worst: tuple[str, str], *, dtype: str, **more: str
) -> Finding:
    return probe.finding(
        id_, what, sample=sample, expected=worst[0], got=worst[1],
        show=probe.adapter.autocast_lines(probe.adapter.device_type, dtype), **more,
    )  # fmt: skip


def _unchanged(probe: Probe, sample: Sample, plain: Run) -> Iterator[Finding]:
    """Yield an output whose dtype changes under autocast although there is no rule."""
    run = _under(probe, "bfloat16", sample)
    probe.compared()
    if run.error is not None:
        what = "the kernel raises under autocast, for which the operator has no rule"
        worst = "what it does without autocast", raised(run.error)
        fix = "turn autocast off inside the kernel, or register_autocast with the dtype that it takes"
        yield _wrong(probe, sample, "OW605", what, worst, dtype="bfloat16", fix=fix)
        return
    for kind, output, expected, got in probe.differences(run, plain, values=False):
        if kind == "dtype" and not _follows(probe, sample, run):
            what = f"the dtype of {output} changes under autocast, for which the operator has no rule"
            fix = "turn autocast off inside the kernel, or register_autocast with the dtype that it returns"
            worst = f"{expected}, as without autocast", got
            yield _wrong(probe, sample, "OW605", what, worst, dtype="bfloat16", fix=fix)
            return


def _follows(probe: Probe, sample: Sample, run: Run) -> bool:
    """Return whether the fake follows autocast as the kernel does, so that a compiled program knows."""
    if probe.adapter.supports(probe.record, "fake") is not None:
        return False
    with probe.adapter.autocast(probe.adapter.device_type, "bfloat16"):
        faked, _ = attempt(probe.adapter.fake, probe.record, sample.values)
    outputs = run.outputs[: len(probe.schema.returns)]
    real = [one for out in outputs for one in (out if isinstance(out, list) else [out])]
    arrays = [one.dtype.name for one in real if hasattr(one, "dtype")]
    return faked is not None and [meta.dtype for meta in faked.arrays()] == arrays


def _close(probe: Probe, rule: Any, sample: Sample, plain: Run) -> Iterator[Finding]:
    """Yield where the operator raises under autocast, or gives a result far from float32's."""
    run = _under(probe, rule.dtype, sample)
    if isinstance(run.error, UnsupportedError):
        probe.skip(str(run.error).splitlines()[0])
        return
    probe.compared()
    if run.error is not None:
        source = line_of(run.error, probe.source("kernel"))
        worst = f"a result, computed in {rule.dtype}", raised(run.error)
        fix = f"let the kernel take {rule.dtype}, or choose another dtype in register_autocast"
        what = f"the operator raises under autocast, which casts to {rule.dtype}"
        yield _wrong(probe, sample, "OW601", what, worst, dtype=rule.dtype, source=source, fix=fix)
        return
    pairs = zip(probe.output_names, run.outputs, plain.outputs, strict=True)
    for name, got, expected in pairs:
        worst_of = _far(got, expected, rule.dtype)
        if worst_of is not None:
            fix = "compute in float32 inside the kernel, or choose another dtype in register_autocast"
            what = f"{name} under autocast is far from float32's"
            worst = f"{worst_of[0]}, within {CLOSE[rule.dtype]:g} of the largest value", worst_of[1]
            yield _wrong(probe, sample, "OW602", what, worst, dtype=rule.dtype, fix=fix)
            return


def _far(got: Any, expected: Any, dtype: str) -> tuple[str, str] | None:
    """Return where a floating result is too far from another, as (expected, got), or None."""
    if isinstance(got, list) and isinstance(expected, list):
        pairs = zip(got, expected, strict=False)
        return next((worst for pair in pairs if (worst := _far(*pair, dtype)) is not None), None)
    arrays = all(hasattr(one, "dtype") and is_floating(one) for one in (got, expected))
    if not arrays or got.shape != expected.shape:
        return None
    return difference(wide(got), wide(expected), rtol=CLOSE[dtype], atol=CLOSE[dtype])


def _cast(sample: Sample, dtype: str) -> Sample | None:
    """Return the sample with its floating arrays in a dtype, or None where NumPy has no such dtype here."""
    leaves = [leaf for leaf in sample.leaves() if sample.array(leaf).dtype.kind == "f"]
    if dtype == "bfloat16":
        from opwright.dtypes import as_dtype

        made, _ = attempt(lambda: {leaf: sample.array(leaf).astype(as_dtype(dtype)) for leaf in leaves})
    else:
        made = {leaf: sample.array(leaf).astype(dtype) for leaf in leaves}
    return None if made is None else sample.with_arrays(made, f"in {dtype}")


def _fake(probe: Probe, rule: Any, sample: Sample) -> Iterator[Finding]:
    """Yield an output whose dtype the fake and the kernel disagree on for inputs of the rule's dtype."""
    if probe.adapter.supports(probe.record, "fake") is not None or "fake" in probe.failed:
        return
    low = _cast(sample, rule.dtype)
    run = None if low is None else probe.run(low)
    if low is None or run is None or run.error is not None:
        return
    faked, _ = attempt(probe.adapter.fake, probe.record, low.values)
    for name, fake, real in zip(
        probe.output_names, [] if faked is None else faked.outputs, run.outputs, strict=False
    ):
        pairs = zip(fake, real, strict=False) if isinstance(fake, list) else [(fake, real)]
        for meta, array in pairs:
            if not isinstance(meta, Meta) or not hasattr(array, "dtype"):
                continue
            probe.compared()
            if meta.dtype != array.dtype.name:
                what = (
                    f"fake and kernel disagree on the dtype of {name} for inputs of autocast's {rule.dtype}"
                )
                worst = f"{array.dtype.name}, as the kernel returns", meta.dtype
                fix = "correct the fake, or the kernel"
                yield _wrong(probe, low, "OW603", what, worst, dtype=rule.dtype, rule="fake", fix=fix)
                return


def _gradients(probe: Probe, rule: Any, sample: Sample) -> Iterator[Finding]:
    """Yield gradients that raise under autocast, or are far from float32's."""
    no_gradient = probe.adapter.supports(probe.record, "autograd") is not None or why_not(probe) is not None
    if no_gradient or "autograd" in probe.failed:
        return
    point = point_at(probe, sample, probe.reference(sample))
    if point is None:
        return
    plain = point.pulled(point.weights)
    grads, error = attempt(_under_autocast, point, rule.dtype)
    probe.compared()
    if grads is None:
        source = line_of(error, probe.source("backward"))
        worst = f"a gradient, computed in {rule.dtype}", raised(error)
        what = f"the gradient raises under autocast, which casts to {rule.dtype}"
        fix = f"let the backward take {rule.dtype}"
        yield _wrong(
            probe, sample, "OW604", what, worst, dtype=rule.dtype, rule="backward", source=source, fix=fix
        )
        return
    for leaf, grad in grads.items():
        worst_of = None if grad is None or plain[leaf] is None else _far(grad, plain[leaf], rule.dtype)
        if worst_of is not None:
            what = f"the gradient for {leaf.label} under autocast is far from float32's"
            worst = f"{worst_of[0]}, within {CLOSE[rule.dtype]:g} of the largest value", worst_of[1]
            fix = "compute in float32 inside the backward, or choose another dtype in register_autocast"
            yield _wrong(probe, sample, "OW604", what, worst, dtype=rule.dtype, rule="backward", fix=fix)
            return
    yield from _gradient_dtypes(probe, rule, sample)


def _under_autocast(point: Point, dtype: str) -> dict[Leaf, Any]:
    """Return the gradients of a call under autocast."""
    adapter = point.probe.adapter
    with adapter.autocast(adapter.device_type, dtype):
        pullback = point.differentiable()
    flat = point.flat([point.probe.to_numpy(out) for out in pullback.outputs])
    weights = [weight.astype(out.dtype) for weight, out in zip(point.weights, flat, strict=True)]
    return point.gradients(pullback, weights)


def _gradient_dtypes(probe: Probe, rule: Any, sample: Sample) -> Iterator[Finding]:
    """Yield a gradient that the backward returns in another dtype than that which autocast casts to."""
    low = _cast(sample, rule.dtype)
    run = None if low is None else probe.run(low)
    point = None if low is None or run is None or run.error is not None else point_at(probe, low, run)
    for leaf, grad in ((None if point is None else second.returned(point)) or {}).items():
        probe.compared()
        if hasattr(grad, "dtype") and low is not None and grad.dtype != low.array(leaf).dtype:
            what = f"the gradient for {leaf.label} under autocast has another dtype than {leaf.label}"
            worst = f"{rule.dtype}, which autocast casts {leaf.label} to", grad.dtype.name
            fix = f"convert it to the dtype of {leaf.label} in the backward"
            yield _wrong(probe, low, "OW604", what, worst, dtype=rule.dtype, rule="backward", fix=fix)
            return


CHECK = Law("autocast", check, EXPLANATIONS)
