"""The law *device*: on a GPU the operator computes there, on the GPU of its arguments, without the CPU.

It runs where PyTorch finds a CUDA device: on the first GPU, and with a second one while the first is current.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.checks import derived
from opwright.checks.adapters.base import gpu_adapters
from opwright.checks.adapters.results import Unsupported
from opwright.checks.agreement import differences
from opwright.checks.attempts import attempt
from opwright.checks.backward import differing
from opwright.checks.base import Law, Probe, line_of, raised
from opwright.checks.points import points, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opwright.checks.adapters.base import Adapter
    from opwright.checks.base import Run
    from opwright.checks.samples import Sample
    from opwright.report import Finding

EXPLANATIONS: Mapping[str, str] = {
    "OW1201": (
        "On a GPU the operator raises, or gives another result or gradient than on the CPU. The kernels for "
        "the two devices must agree; a rule may make arrays on the CPU that belong on the arguments' device."
    ),
    "OW1202": "An output is on another device than the arguments. Allocate it there: torch.empty_like(x).",
    "OW1203": (
        "With arguments on the second GPU while the first is current, the operator raises or gives another "
        "result. The kernel launches on a fixed GPU, or keeps something on one. Opwright makes the "
        "arguments' GPU current around the kernel; leave it so."
    ),
    "OW1204": (
        "Inside the kernel, data goes from one device to another: a .cpu(), a .to(), a table that is kept on "
        "the CPU. That waits for the GPU and for the bus in each call. Keep such tables on each device."
    ),
    "OW1205": (
        "The kernel waits for the GPU: .item(), a print, an if on a tensor, a size that depends on data. The "
        "GPU then idles until the CPU has queued more work. Compute with tensors instead of numbers."
    ),
    "OW1206": (
        "Captured in a CUDA graph, the operator raises, or a replay gives another result than a plain call "
        "with the same data. The kernel waits for the GPU, queues work on a stream of its own, takes memory "
        "from outside of the framework's allocator, or computes with numbers that it read from arrays. "
        "Correct that, or declare it with the tag cudagraph_unsafe."
    ),
}

UNSAFE = "cudagraph_unsafe"
"""The tag of operators that may not be captured in a CUDA graph."""


def check(probe: Probe) -> Iterator[Finding]:
    """Yield what goes wrong on a GPU."""
    devices = gpu_adapters(probe.adapter)
    if isinstance(devices, Unsupported):
        probe.skip(devices.reason)
        return
    if probe.record.select_kernel(probe.adapter.name, "cuda") is None and not probe.record.owner:
        probe.skip("no kernel takes arrays on cuda")
        return
    first, *others = devices
    gpu = Probe(probe.record, first, probe.samples, level=probe.level, rtol=probe.rtol, atol=probe.atol)
    gpu.law = probe.law
    for sample in probe.samples:
        found = list(_same(probe, gpu, sample))
        yield from found
        if not found:
            yield from _inside(gpu, sample)
            for other in others[:1]:
                yield from _elsewhere(probe, other, sample)
    if not others:
        probe.skip("a second GPU was not looked at: there is one alone")
    probe.compared(gpu.comparisons)
    for reason in gpu.skipped:
        probe.skip(reason)
    yield from _gradients(probe, gpu)


def _same(probe: Probe, gpu: Probe, sample: Sample) -> Iterator[Finding]:
    """Yield where the result on the GPU is not that on the CPU, or lies elsewhere."""
    run = gpu.run(sample)
    probe.compared()
    if run.error is not None:
        source = line_of(run.error, gpu.source("kernel"))
        worst = "the result that it gives on cpu", raised(run.error)
        what = "the operator raises on cuda"
        fix = "correct the kernel for cuda, or register none for it"
        yield _wrong(gpu, sample, "OW1201", what, worst, fix=fix, source=source)
        return
    yield from _placed(gpu, sample, run)
    if probe.random_reason() is None:
        for _, output, expected, got in differences(gpu, run.outputs, probe.reference(sample).outputs):
            worst = f"{expected}, as on cpu", got
            fix = "make the kernels for the devices agree"
            yield _wrong(gpu, sample, "OW1201", f"{output} on cuda differs", worst, fix=fix)
            return


def _placed(gpu: Probe, sample: Sample, run: Run) -> Iterator[Finding]:
    called = run.called
    names = {gpu.adapter.device_of(value) for value in run.values if gpu.adapter.is_array(value)}
    for name, value in zip(gpu.output_names, called.outputs if called is not None else (), strict=False):
        for one in value if isinstance(value, list | tuple) else [value]:
            if gpu.adapter.is_array(one) and names and gpu.adapter.device_of(one) not in names:
                worst = ", ".join(sorted(names)), gpu.adapter.device_of(one)
                what = f"{name} is on another device than the arguments"
                yield _wrong(gpu, sample, "OW1202", what, worst, fix="allocate it with torch.empty_like(x)")
                return


def _inside(gpu: Probe, sample: Sample) -> Iterator[Finding]:
    """Yield copies between devices, and waiting for the GPU, inside the kernel."""
    kernel = gpu.record.select_kernel(gpu.adapter.name, "cuda")
    if kernel is not None and kernel.copies:
        gpu.skip("its kernel takes copies on the host, as its author allowed")
        return
    moved = gpu.adapter.copies(gpu.record, gpu.values(sample))
    if isinstance(moved, Unsupported):
        gpu.skip(moved.reason)
    else:
        gpu.compared()
        if moved:
            name, source, target = moved[0]
            what = f"the kernel copies between devices: {name}"
            worst = "data that stays where it is", f"a copy from {source} to {target}"
            fix = "keep what the kernel needs on each device, and compute there"
            yield _wrong(gpu, sample, "OW1204", what, worst, fix=fix)
            return
    faked, _ = attempt(gpu.adapter.fake, gpu.record, sample.values)
    if faked is not None and any(None in meta.shape for meta in faked.arrays()):
        gpu.skip("the size of an output depends on data, so the kernel has to wait for the GPU")
        return
    waited = gpu.adapter.waits(gpu.record, gpu.values(sample))
    gpu.compared()
    if waited is not None:
        worst = "a call that queues work and returns", raised(waited)
        source = line_of(waited, gpu.source("kernel"))
        fix = "compute with tensors instead of numbers: no .item(), .cpu() or if on a tensor"
        yield _wrong(gpu, sample, "OW1205", "the kernel waits for the GPU", worst, fix=fix, source=source)
        return
    yield from _captured(gpu, sample)


def _captured(gpu: Probe, sample: Sample) -> Iterator[Finding]:
    """Yield what is wrong with replays of a captured call: with the same data, then with other data."""
    if UNSAFE in gpu.record.tags:
        gpu.skip(f"the operator is declared unsafe for CUDA graphs (tag {UNSAFE})")
        return
    if gpu.random_reason() is not None or not gpu.output_names:
        return
    same = derived.compact(sample)
    plain = gpu.run(same)
    others = map(gpu.run, derived.other_values(same))
    runs = [plain, next((run for run in others if _shapes(run) == _shapes(plain)), plain)]
    data = [gpu.values(run.sample) for run in runs]
    calls, error = attempt(gpu.adapter.replays, gpu.record, gpu.values(same), data)
    gpu.compared()
    if isinstance(calls, Unsupported):
        gpu.skip(calls.reason)
        return
    fix = f"correct the kernel, or declare the operator: tags=[{UNSAFE!r}]"
    if calls is None:
        worst = "a call that can be captured in a CUDA graph", raised(error)
        source = line_of(error, gpu.source("kernel"))
        what = "the operator cannot be captured in a CUDA graph"
        yield _wrong(gpu, sample, "OW1206", what, worst, fix=fix, source=source)
        return
    for run, called in zip(runs, calls, strict=True):
        for _, output, expected, found in differences(gpu, gpu.numpy_outputs(called), run.outputs):
            worst = f"{expected}, as in a plain call", found
            what = f"{output} of a replayed CUDA graph differs"
            yield _wrong(gpu, sample, "OW1206", what, worst, fix=fix)
            return


def _shapes(run: Run) -> list[Any] | None:
    """Return the shapes of a run's outputs, or None where it raised."""
    if run.error is not None:
        return None
    leaves = [one for value in run.outputs for one in (value if isinstance(value, list) else [value])]
    return [getattr(one, "shape", None) for one in leaves]


def _elsewhere(probe: Probe, other: Adapter, sample: Sample) -> Iterator[Finding]:
    """Yield what is wrong with arguments on the second GPU while the first is current."""
    second = Probe(probe.record, other, (), rtol=probe.rtol, atol=probe.atol)
    second.law = probe.law
    run = second.run(sample)
    probe.compared()
    fix = "launch on the current device, and keep nothing on a fixed one"
    if run.error is not None:
        worst = "the result that it gives on the first GPU", raised(run.error)
        yield _wrong(second, sample, "OW1203", "the operator raises on the second GPU", worst, fix=fix)
        return
    yield from _placed(second, sample, run)
    if probe.random_reason() is None:
        for _, output, expected, got in differences(second, run.outputs, probe.reference(sample).outputs):
            worst = f"{expected}, as on cpu", got
            yield _wrong(second, sample, "OW1203", f"{output} on the second GPU differs", worst, fix=fix)
            return


def _gradients(probe: Probe, gpu: Probe) -> Iterator[Finding]:
    """Yield where gradients on the GPU raise, or differ from those on the CPU."""
    no_gradient = probe.adapter.supports(probe.record, "autograd") is not None
    if no_gradient or why_not(probe) is not None or "autograd" in probe.failed:
        return
    for point, there in zip(points(probe), points(gpu), strict=False):
        expected = point.pulled(point.weights)
        grads, error = attempt(there.pulled, point.weights)
        probe.compared()
        if grads is None:
            source = line_of(error, gpu.source("backward"))
            worst = "the gradient that it gives on cpu", raised(error)
            fix = "make new arrays on the device of the arguments"
            what = "the backward raises on cuda"
            yield _wrong(gpu, there.sample, "OW1201", what, worst, fix=fix, rule="backward", source=source)
            return
        for leaf, (wanted, got) in differing(point, grads, expected):
            worst = f"{wanted}, as on cpu", got
            what = f"the gradient for {leaf.label} on cuda differs"
            yield _wrong(
                gpu, there.sample, "OW1201", what, worst, fix="correct the backward", rule="backward"
            )
            return


def _wrong(
    gpu: Probe, sample: Sample, id_: str, what: str, worst: tuple[str, str], *, fix: str, **more: Any
) -> Finding:
    return gpu.finding(id_, what, sample=sample, expected=worst[0], got=worst[1], fix=fix, **more)


CHECK = Law("device", check, EXPLANATIONS)
