"""The launch cache: from the arguments of a launch straight to the compiled kernel's launcher.

* One generated function for each kernel, and one for each combination of argument classes
  (``triton_code.py``). Its key is finer than what Triton specialises on, so that two calls with one key are
  two that Triton would run one compiled kernel for.
* What is stored was learnt from a plain launch: the compiled kernel that it returned.
* What is not understood (hooks, tensor descriptors, tuples, unknown classes, another backend than CUDA, a
  release of Triton outside those known) takes the plain way, on every call.
"""

from __future__ import annotations

import inspect
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from opwright.kernels.triton_code import (
    MISSING,
    Front,
    Missing,
    Runtime,
    generate,
    generate_front,
    prefix_beside,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opwright.kernels.triton import Launcher

KNOWN = ((3, 4), (3, 10))
"""The releases of Triton, from the first up to and without the second, that are launched directly."""

LIMIT = 4096
"""How many launches one kernel and combination of classes may keep: some keys hold values that vary."""


@cache
def runtime() -> Runtime | None:
    """Return what is needed of Triton, looked up once; None where something is missing or not known."""
    import triton
    from triton import knobs
    from triton.language import dtype
    from triton.runtime import driver

    release = tuple(int(part) for part in triton.__version__.split(".")[:2])
    try:
        backend = driver.active.get_current_target().backend
    except RuntimeError:
        return None  # no GPU: a plain launch says so
    settings = ("launch_enter_hook", "launch_exit_hook", "debug")
    if not KNOWN[0] <= release < KNOWN[1] or backend != "cuda":
        return None
    if not all(hasattr(knobs.runtime, name) for name in settings):
        return None
    return Runtime(knobs, (bool, int, float, str, type(None), dtype), release)


def dispatcher(launcher: Launcher) -> Callable[..., Any] | None:
    """Return ``launch(grid, /, *the kernel's parameters, **options)``, or None where nothing can be cached.

    The first combination of argument classes that can be cached gets its launches inline: a second function,
    which replaces the first.
    """
    parameters = list(inspect.signature(launcher.layers.jit.fn).parameters.values())
    ordinary = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if any(parameter.kind is not ordinary for parameter in parameters):
        return None
    names = [parameter.name for parameter in parameters]
    filled = set(launcher.layers.filled)
    p = prefix_beside([*names, *filled])
    sites: dict[Any, Callable[..., Any]] = {}
    lock = threading.Lock()

    def miss(key: Any, grid: Any, options: dict[str, Any], *values: Any) -> Any:
        with lock:
            if key not in sites:
                site = Site(launcher, values, options)
                sites[key] = site.function()
                if sites[key] != site.slow and not options and not launcher.has_front:
                    launcher.put_in_front(site.front(front))
        return sites[key](grid, options, *values)

    # Python wants no parameter without a default after one that has one.
    optional, parts = False, []
    for parameter in parameters:
        optional = optional or parameter.default is not inspect.Parameter.empty or parameter.name in filled
        parts.append(f"{parameter.name}={p}missing, " if optional else f"{parameter.name}, ")
    classes = "".join(f"{name}.__class__, " for name in names)
    passed = "".join(f", {name}" for name in names)
    body = [
        f"{p}key = ({classes}*{p}options) if {p}options else ({classes})",
        f"{p}site = {p}sites.get({p}key)",
        f"if {p}site is None: return {p}miss({p}key, {p}grid, {p}options{passed})",
        f"return {p}site({p}grid, {p}options{passed})",
    ]
    scope = {f"{p}missing": MISSING, f"{p}sites": sites, f"{p}miss": miss}
    head = f"{p}grid, /, {''.join(parts)}**{p}options"
    front = Front(f"{launcher.layers.name} {id(launcher):#x}", head, body, scope)
    return front.compile()


class Site:
    """The launches of a kernel with one combination of argument classes and option names.

    Parameters
    ----------
    launcher
        The kernel.
    values
        The arguments of the launch that is made now, `MISSING` for those left out.
    options
        Its other keyword arguments, such as ``num_warps``.
    """

    def __init__(self, launcher: Launcher, values: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        self.launcher = launcher
        self.layers = launcher.layers
        self.names = launcher.arg_names
        self.options = list(options)
        self.classes = {name: value.__class__ for name, value in zip(self.names, values, strict=True)}
        self.passed = [name for name in self.names if self.classes[name] is not Missing]
        self.launching = launcher.launching(values)
        self.configs: dict[Any, Any] = {}
        self.entries: dict[Any, Any] = {}

    def function(self) -> Callable[..., Any]:
        """Return ``site(grid, options, *values)``: the cached launch, or the plain one where it must be."""
        triton = runtime()
        if triton is None or self.launching is None:
            return self.slow
        return generate(self, triton, self.launching) or self.slow

    def front(self, generic: Front) -> Callable[..., Any] | None:
        """Return the launch of all arguments with this site's launches inline, or None."""
        triton = runtime()
        if triton is None or self.launching is None:
            return None
        return generate_front(self, triton, self.launching, generic)

    def arguments(self, values: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments as the caller gave them: by position until one was left out, then by name."""
        given = dict(zip(self.names, values, strict=True))
        args: list[Any] = []
        for name in self.names:
            if given[name] is MISSING:
                break
            args.append(given.pop(name))
        return args, {name: value for name, value in given.items() if value is not MISSING}

    def slow(self, grid: Any, options: dict[str, Any], *values: Any) -> Any:
        """Launch without the cache."""
        args, kwargs = self.arguments(values)
        return self.launcher.plain(grid, *args, **kwargs, **options)

    def learn(self, key: Any, grid: Any, options: dict[str, Any], *values: Any) -> Any:
        """Launch without the cache, and keep what the launch was compiled to."""
        kernel = self.slow(grid, options, *values)
        found = kernel.result() if hasattr(kernel, "result") else kernel
        triton = runtime()
        record = None if triton is None else launch_record(found, self.layers.jit, triton.layout)
        if record is None:
            return kernel
        for store in (self.configs, self.entries):
            if len(store) >= LIMIT:
                store.clear()
        tuner = self.layers.tuner
        if tuner is None:
            self.entries[key] = (*record, None, ())
            return kernel
        args, kwargs = self.arguments(values)
        given = {**dict(zip(self.names, args, strict=False)), **kwargs, **options}
        compute(self.layers.around, given)
        chosen, tuned_by = self.choice(given)
        if chosen is None:
            return kernel
        filled = tuple(chosen.kwargs[name] for name in tuner.configs[0].kwargs)
        if self.layers.inside:
            # Heuristics below the tuner see its choice: it is looked up first, then the launch.
            self.configs[key] = (chosen, tuned_by, chosen.all_kwargs())
            given.update(chosen.all_kwargs())
            key = (key, *compute(self.layers.inside, given))
        self.entries[key] = (*record, (chosen, tuned_by), filled)
        return kernel

    def choice(self, given: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the config that the tuner has chosen, and its key in the tuner's own table."""
        tuner = self.layers.tuner
        if len(tuner.configs) == 1:
            return tuner.configs[0], None
        mine = {name: value for name, value in given.items() if name in self.names}
        # Triton's own key: the values that it is tuned by, then the dtypes of all arguments that have one.
        key = [mine[name] for name in tuner.keys if name in mine]
        key += [str(value.dtype) for value in mine.values() if hasattr(value, "dtype")]
        return tuner.cache.get(tuple(key)), tuple(key)


def compute(layers: Iterable[Any], given: dict[str, Any]) -> list[Any]:
    """Compute heuristics one after another, add them to ``given``, and return what the key has of them."""
    found = []
    for layer in layers:
        for name, function in layer.values.items():
            given[name] = function(dict(given))
            found += [given[name], given[name].__class__]
    return found


def launch_record(compiled: Any, jit: Any, layout: str) -> tuple[Any, ...] | None:
    """Return what a launch of a compiled kernel needs, or None where this release does not offer it.

    A launcher that allocates scratch memory is called in full, behind the same arguments as the others.
    """
    if not all(hasattr(compiled, name) for name in ("run", "function", "packed_metadata")):
        return None
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    sizes = [
        getattr(run, name, 0) for name in ("global_scratch_size", "profile_scratch_size", "gsan_enabled")
    ]
    wanted = ["launch", "launch_cooperative_grid", "launch_pdl"]
    wanted += ["arg_annotations", "kernel_signature"] if layout == "annotated" else []
    used = tuple((table, name, value) for (name, _), (value, table) in jit.used_global_vals.items())
    if type(run).__name__ == "CudaLauncher" and all(hasattr(run, name) for name in wanted) and not any(sizes):
        details = [getattr(run, name, None) for name in (*wanted, "arg_annotations", "kernel_signature")]
        return (*details[:3], function, metadata, *details[-2:], used, compiled)
    return (_in_full(run, layout), None, None, function, metadata, None, None, used, compiled)


def _in_full(run: Callable[..., Any], layout: str) -> Callable[..., Any]:
    """Return a function with the arguments of a bare launcher that calls the whole one."""
    if layout == "annotated":

        def annotated(*args: Any) -> None:
            run(*args[:5], args[7], *args[8:11], *args[15])

        return annotated
    skipped = 9 if layout == "plain" else 8  # grid, stream, function, two flags, the scratch pointers

    def plain(*args: Any) -> None:
        run(*args[:5], *args[skipped:])

    return plain
