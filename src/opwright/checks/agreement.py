"""The law *agreement*: whatever computes an operator gives the same result.

Compared are its kernels with each other, each framework with the first, the operator with a reference
where one is registered, and each floating dtype with double precision, within the tolerances below. That
frameworks promote the arguments' dtypes by rules of their own is no difference (``promotion.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.checks import derived
from opwright.checks.adapters.base import adapter, installed, mutated, outputs_of
from opwright.checks.adapters.results import Called
from opwright.checks.arrays import difference, is_floating, wide
from opwright.checks.attempts import attempt
from opwright.checks.base import Law, Probe, raised
from opwright.checks.promotion import computing, in_one_dtype
from opwright.frameworks.base import of_flavour

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opwright.checks.adapters.base import Adapter
    from opwright.checks.base import Run
    from opwright.checks.samples import Sample
    from opwright.overload import Kernel
    from opwright.report import Finding

SAME: Mapping[str, float] = {
    "float16": 1e-2,
    "bfloat16": 5e-2,
    "float32": 1e-4,
    "float64": 1e-8,
    "complex64": 1e-4,
    "complex128": 1e-8,
}
"""How far two results in a dtype may be apart, relative to the element and to the largest value."""

PRECISION: Mapping[str, float] = {"float16": 3e-2, "bfloat16": 2e-1, "float32": 1e-4, "complex64": 1e-4}
"""How far a result in a dtype may be from that in double precision, relative to the largest value."""

EPSILON: Mapping[str, float] = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-23,
    "complex64": 2.0**-23,
}
"""The spacing of numbers around 1, by dtype."""

EXPLANATIONS: Mapping[str, str] = {
    "OW1101": (
        "Two kernels of the operator give different results for the same arguments. Which one runs depends "
        "on the framework and the device of the caller's arrays, and so does the result."
    ),
    "OW1102": "The operator gives another result than the reference that is registered for it.",
    "OW1103": (
        "With one framework's arrays the operator gives another result than with another's: values, shapes "
        "or dtypes. Kernels and rules for several frameworks must agree; a body for any arrays may use "
        "functions that differ between frameworks. Dtypes that follow from the arguments' by each "
        "framework's own promotion are not reported."
    ),
    "OW1104": (
        "In one dtype the result is far from that in double precision for the same numbers, beyond what "
        "rounding explains. Usually the kernel sums in low precision, overflows, or has a branch for a dtype."
    ),
}


def check(probe: Probe) -> Iterator[Finding]:
    """Yield what does not agree."""
    reason = probe.random_reason()
    if reason is not None:
        probe.skip(reason)
        return
    if not probe.schema.returns and not probe.schema.mutated:
        probe.skip("the operator has no outputs")
        return
    yield from _kernels(probe)
    yield from _reference(probe)
    yield from _frameworks(probe)
    if not probe.quick:
        yield from _dtypes(probe)


def differences(
    probe: Probe, got: Sequence[Any], expected: Sequence[Any]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield where two lists of outputs differ by more than ``SAME`` allows, as ``Probe.different`` does."""
    for kind, name, wanted, found in probe.different(got, expected, values=False):
        yield kind, name, wanted, found
        return
    for name, one, other in zip(probe.output_names, got, expected, strict=True):
        pairs = zip(one, other, strict=True) if isinstance(other, list) else [(one, other)]
        for a, b in pairs:
            if hasattr(b, "dtype"):
                allowed = SAME.get(b.dtype.name, 0.0)
                rtol = allowed if probe.rtol is None else probe.rtol
                worst = difference(a, b, rtol=rtol, atol=allowed if probe.atol is None else probe.atol)
                if worst is not None:
                    yield "value", name, *worst
                    return


# -------------------------------------------------------------------------------------------------- kernels


def _kernels(probe: Probe) -> Iterator[Finding]:
    """Yield kernels for the arrays' device that give other results than the one that is called."""
    record, used = probe.record, probe.adapter
    called = record.select_kernel(used.name, used.device_type)
    kernels = [kernel for kernel in record.enabled_kernels() if _runs(kernel, used)]
    for kernel in kernels:
        if kernel is called or called is None:
            continue
        other = _adapter_of(kernel, used)
        if other is None:
            probe.skip(
                f"the kernel for {kernel.where} ({kernel.flavour}) was not called: it is not installed"
            )
            continue
        for sample in (*probe.samples, *_arguments(probe)):
            outputs, error = attempt(_run_kernel, probe, kernel, other, sample)
            if outputs is None and sample not in probe.samples:
                continue
            probe.compared()
            expected = _run(probe, sample).outputs
            name = f"{kernel.where} ({kernel.flavour}, {kernel.source})"
            against = f"as the kernel for {called.where} ({called.flavour}, {called.source}) gives"
            fix = "make the kernels compute the same"
            if outputs is None and not _reachable(probe, kernel):
                probe.skip(
                    f"the kernel for {kernel.where} ({kernel.flavour}) does not run on {used.device_type}"
                )
                break
            if outputs is None:
                worst = f"a result, {against}", f"{raised(error)}, from the kernel for {name}"
                yield probe.finding(
                    "OW1101", f"the kernel for {kernel.where} ({kernel.flavour}) raises", sample=sample,
                    source=kernel.source, expected=worst[0], got=worst[1], fix=fix,
                )  # fmt: skip
                break
            names = other.name if kernel.flavour != catalogue.ARRAY_API else used.name, computing(probe)
            for _, output, wanted, got in differences(probe, *in_one_dtype(sample, names, outputs, expected)):
                what = f"{output} of the kernel for {kernel.where} ({kernel.flavour}) differs"
                yield probe.finding(
                    "OW1101", what, sample=sample, source=kernel.source, expected=f"{wanted}, {against}",
                    got=f"{got}, from the kernel for {name}", fix=fix,
                )  # fmt: skip
                break


def _runs(kernel: Kernel, used: Adapter) -> bool:
    """Return whether a kernel is for a device type that the arrays are on, and takes some framework's."""
    from opwright.keys import DEFAULT, IMPLICIT, key_of

    keys = (DEFAULT, IMPLICIT, key_of(used.device_type))
    return kernel.key in keys and not kernel.falls_through and not kernel.with_keyset


def _reachable(probe: Probe, kernel: Kernel) -> bool:
    """Return whether a call with some framework's arrays on this device runs a kernel."""
    flavours = [name for info in catalogue.frameworks() if installed(info.name) for name in info.flavours]
    device = probe.adapter.device_type
    return any(probe.record.select_kernel(flavour, device) is kernel for flavour in flavours)


def _adapter_of(kernel: Kernel, used: Adapter) -> Adapter | None:
    """Return how the arrays of a kernel's flavour are made, or None where that is not installed."""
    if kernel.flavour in (used.name, catalogue.ARRAY_API):
        return used
    for info in catalogue.frameworks():
        if kernel.flavour in info.flavours and installed(info.name):
            return adapter(info.name)
    return None


def _run_kernel(probe: Probe, kernel: Kernel, other: Adapter, sample: Sample) -> list[Any]:
    """Return what one kernel makes of a sample, as ``Run.outputs`` holds it."""
    values = list(Probe(probe.record, other, ()).values(sample))
    framework = of_flavour(other.name)
    for index, argument in enumerate(probe.schema.arguments):
        if argument.base in ("ScalarType", "Device") and values[index] is not None:
            values[index] = framework.convert(argument.base, values[index])
    return _outputs(probe, kernel.fn, other, values)


def _outputs(probe: Probe, fn: Any, other: Adapter, values: Sequence[Any]) -> list[Any]:
    """Call a function as the operator's kernels are called; return its outputs as NumPy's."""
    count = len(probe.schema.positional)
    named = {a.name: v for a, v in zip(probe.schema.keyword_only, values[count:], strict=True)}
    with other.scope():
        out = fn(*values[:count], **named)
    called = Called(outputs_of(probe.record, out), mutated(probe.record, values))
    return Probe(probe.record, other, ()).numpy_outputs(called)


# ------------------------------------------------------------------------------------ reference, frameworks


def _reference(probe: Probe) -> Iterator[Finding]:
    """Yield where the operator differs from the reference that is registered for it."""
    rule = probe.record.rule("reference")
    if rule is None:
        return
    name = "numpy" if rule.flavour == catalogue.ARRAY_API else rule.flavour
    if not installed(name):
        probe.skip(f"the reference takes {name} arrays, which are not installed")
        return
    other = adapter(name)
    variants = [one for sample in probe.samples for one in (sample, *_variants(probe, sample))]
    for sample in variants:
        run = _run(probe, sample)
        values = Probe(probe.record, other, ()).values(sample)
        expected, error = attempt(_outputs, probe, rule.fn, other, values)
        if run.error is not None or expected is None:
            if sample in probe.samples and error is not None:
                probe.skip(f"the reference raises {type(error).__name__} on a sample")
            continue
        probe.compared()
        outputs, expected = in_one_dtype(sample, (computing(probe), name), run.outputs, expected)
        for _, output, wanted, got in differences(probe, outputs, expected):
            yield probe.finding(
                "OW1102", f"{output} differs from the reference", sample=sample,
                expected=f"{wanted}, as the reference at {rule.source} gives", got=got,
                fix="correct the kernel, or the reference",
            )  # fmt: skip
            break


def _variants(probe: Probe, sample: Sample) -> Iterator[Sample]:
    if not probe.quick:
        yield from derived.dtypes(sample)
        yield from derived.flags(sample)
        yield from derived.numbers(sample)
        yield from derived.smaller(sample)


def _run(probe: Probe, sample: Sample) -> Run:
    """Return what the operator does on a sample; kept only for the author's, which last."""
    return probe.reference(sample) if sample in probe.samples else probe.run(sample)


def _arguments(probe: Probe) -> Iterator[Sample]:
    """Yield the samples with another flag or number, where the operator accepts it."""
    for sample in () if probe.quick else probe.samples:
        for variant in (*derived.flags(sample), *derived.numbers(sample)):
            if probe.run(variant).error is None:
                yield variant


def _frameworks(probe: Probe) -> Iterator[Finding]:
    """Yield where this framework's arrays give another result than those of the first framework."""
    everyone = sorted(
        [probe.adapter, *probe.others],
        key=lambda one: (one.name != probe.record.flavour, one.name != "numpy"),
    )
    first = everyone[0]
    if first is probe.adapter or not probe.others:
        return
    theirs = Probe(probe.record, first, probe.samples, rtol=probe.rtol, atol=probe.atol)
    for sample in (*probe.samples, *_arguments(probe)):
        run, other = _run(probe, sample), theirs.run(sample)
        if other.error is not None:
            continue
        probe.compared()
        names = computing(probe), computing(theirs)
        pair = in_one_dtype(sample, names, run.outputs, other.outputs)
        for _, output, wanted, got in differences(probe, *pair):
            yield probe.finding(
                "OW1103", f"{output} differs from that of {first.name} arrays", sample=sample,
                expected=f"{wanted}, as with {first.name} arrays", got=got,
                fix="make kernels and rules for the frameworks agree",
            )  # fmt: skip
            break


# --------------------------------------------------------------------------------------------------- dtypes


def _dtypes(probe: Probe) -> Iterator[Finding]:
    """Yield where a result is further from double precision than its dtype explains."""
    names = tuple(PRECISION) if probe.thorough else ("float32", "complex64")
    for sample in probe.samples:
        for name in names:
            low = _lowered(sample, name)
            run = None if low is None else probe.run(low)
            if low is None or run is None or run.error is not None:
                continue
            double = derived.in_double(low)
            high = probe.run(double)
            if high.error is None and not any(_changed_dtype(run, high)):
                yield from _precision(probe, name, low, (run, high, probe.run(_nudged(double, name))))


def _lowered(sample: Sample, name: str) -> Sample | None:
    """Return the sample with its real, or complex, floating arrays in a dtype; None where it has none."""
    from opwright.dtypes import as_dtype

    kind = "c" if name.startswith("complex") else "f"
    leaves = [leaf for leaf in sample.leaves() if sample.array(leaf).dtype.kind == kind]
    made, _ = attempt(lambda: {leaf: sample.array(leaf).astype(as_dtype(name)) for leaf in leaves})
    return sample.with_arrays(made, f"in {name}") if made else None


def _changed_dtype(run: Run, high: Run) -> Iterator[bool]:
    """Yield for each output whether it has no counterpart in double precision to be compared with."""
    for one, other in zip(run.outputs, high.outputs, strict=True):
        yield isinstance(one, list) or getattr(one, "shape", None) != getattr(other, "shape", None)


def _nudged(sample: Sample, name: str) -> Sample:
    """Return the sample with its floating arrays changed by as little as the dtype can tell apart."""
    import numpy as np

    random = np.random.default_rng(5)

    def nudge(array: Any) -> Any:
        return array * (1 + EPSILON[name] * random.choice([-1.0, 1.0], array.shape))

    leaves = [leaf for leaf in sample.leaves() if is_floating(sample.array(leaf))]
    return sample.with_arrays({leaf: nudge(sample.array(leaf)) for leaf in leaves})


def _precision(probe: Probe, dtype: str, sample: Sample, runs: tuple[Run, Run, Run]) -> Iterator[Finding]:
    """Yield an output that is further from double precision than rounding the arguments explains."""
    import numpy as np

    run, high, nudged = runs
    for name, low, exact, near in zip(
        probe.output_names, run.outputs, high.outputs, nudged.outputs or high.outputs, strict=True
    ):
        if (
            not (hasattr(low, "dtype") and is_floating(low))
            or low.dtype.name not in PRECISION
            or not low.size
        ):
            continue
        probe.compared()
        limit = float(np.finfo(np.float16).max if dtype == "float16" else np.finfo(np.float32).max)
        if not np.isfinite(exact).all() or np.abs(exact).max() > limit or near.shape != exact.shape:
            continue
        spread = np.abs(near - exact)
        scale = max(1.0, float(np.abs(exact).max()))
        allowed = PRECISION[low.dtype.name] + 10 * float(np.nan_to_num(spread).max()) / scale
        worst = difference(wide(low), wide(exact), rtol=0, atol=allowed)
        if worst is not None:
            yield probe.finding(
                "OW1104", f"{name} in {dtype} is far from that in double precision", sample=sample,
                expected=f"{worst[0]}, within {allowed:.2g} of the largest value", got=worst[1],
                fix=f"compute in higher precision inside the kernel, or refuse {dtype}",
            )  # fmt: skip
            return


CHECK = Law("agreement", check, EXPLANATIONS)
