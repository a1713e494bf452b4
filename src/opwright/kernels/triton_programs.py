"""A launch of a Triton kernel as data: the compiled kernel, and what it takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from opwright.kernels.triton_cache import compute
from opwright.programs import Launch, NotAProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def launch(
    launcher: Any,
    grid: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    buffer_of: Callable[[Any], tuple[int, Any] | None],
) -> Launch:
    """Return what a launch does, its kernel compiled.

    Parameters
    ----------
    launcher
        What ``wrap_triton`` returned.
    grid, args, kwargs
        As they were given to it.
    buffer_of
        ``buffer_of(value)`` returns the number of an array's buffer and its dtype, as Triton takes it, and
        None for what is no array.

    Raises
    ------
    NotAProgram
        If the kernel is interpreted, or tuned where it runs, or needs more than a plain launch.
    """
    layers = launcher.layers
    if layers.interpreted:
        raise NotAProgram(f"kernel {layers.name} is interpreted")
    given = {**dict(zip(launcher.arg_names, args, strict=False)), **kwargs}
    compute(layers.around, given)
    if layers.tuner is not None:
        configs = layers.tuner.configs
        if len(configs) != 1 or configs[0].pre_hook is not None:
            raise NotAProgram(f"kernel {layers.name} is tuned where it runs")
        given.update(configs[0].all_kwargs())
    compute(layers.inside, given)
    sizes = grid(dict(given)) if callable(grid) else grid
    sizes = tuple(map(int, sizes if isinstance(sizes, (tuple, list)) else (sizes,)))
    arrays = {name: found for name, value in given.items() if (found := buffer_of(value)) is not None}
    kernel = _compiled(launcher, given, arrays, sizes)
    names = launcher.written(given, lambda value: buffer_of(value) is not None)
    parameters = []
    for name, kind in kernel.src.signature.items():
        if name in arrays:
            parameters.append(("*", arrays[name][0]))
        elif kind != "constexpr":
            parameters.append((str(kind), given[name]))
    written = frozenset(arrays[name][0] for name in names if name in arrays)
    first, second, third = (*sizes, 1, 1, 1)[:3]
    return Launch(kernel, (first, second, third), tuple(parameters), written)


def _compiled(
    launcher: Any, given: Mapping[str, Any], arrays: Mapping[str, tuple[int, Any]], grid: tuple[int, ...]
) -> Any:
    """Compile a kernel for arrays that are aligned as those of a compiler are."""
    jit = launcher.layers.jit
    parameters = inspect.signature(jit.fn).parameters
    missing = [n for n, p in parameters.items() if n not in given and p.default is inspect.Parameter.empty]
    if missing:
        raise NotAProgram(f"kernel {launcher.layers.name} got no {missing[0]}")
    all_given = {name: given.get(name, p.default) for name, p in parameters.items()}
    values = [arrays[name][1] if name in arrays else value for name, value in all_given.items()]
    options = {name: value for name, value in given.items() if name not in parameters}
    kernel = jit.warmup(*values, grid=grid, **options)
    kernel = kernel.result() if hasattr(kernel, "result") else kernel
    data = kernel.metadata
    special = ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size")
    needed = [name for name in special if getattr(data, name, 0)]
    if needed or getattr(data, "num_ctas", 1) != 1 or "ptx" not in kernel.asm:
        raise NotAProgram(f"kernel {launcher.layers.name} needs more than a plain launch")
    return kernel
