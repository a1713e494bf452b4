"""The generated function of a `Site` of the launch cache.

Its key holds dtype, alignment and device of arrays, size class and divisibility of integers, values of
constants, options, heuristics and what the kernel is tuned by, and debug settings. Pointers reach the
launcher as integers; each array is on the current GPU, or the launch is plain.
"""

from __future__ import annotations

import inspect
import linecache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opwright.frameworks.base import Launching
    from opwright.kernels.triton_cache import Site

_NUMBERS = (int, bool, float, type(None))


class Missing:
    """The class of `MISSING`: a parameter that the caller left out."""


MISSING = Missing()


class Runtime:
    """What the cache needs of Triton: its settings, and how a compiled kernel's launcher is called.

    Parameters
    ----------
    knobs
        The module ``triton.knobs``.
    constants
        The classes whose values a constant parameter may have.
    release
        Triton's major and minor version.
    """

    def __init__(self, knobs: Any, constants: tuple[type, ...], release: tuple[int, ...]) -> None:
        self.knobs = knobs
        self.constants = constants
        self.layout = "annotated" if release >= (3, 7) else "plain" if release >= (3, 5) else "early"


def compile_launch(title: str, head: str, body: Iterable[str], scope: dict[str, Any]) -> Callable[..., Any]:
    """Compile ``def launch(head): body`` and enter its source where tracebacks look for it."""
    filename = f"<opwright launch of {title}>"
    text = f"def launch({head}):\n" + "".join(f"    {line}\n" for line in body)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope["__name__"] = "opwright.generated"
    exec(compile(text, filename, "exec"), scope)
    function: Callable[..., Any] = scope.pop("launch")
    return function


def prefix_beside(names: Iterable[str]) -> str:
    """Return a prefix that none of the names has."""
    prefix = "_ow_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def changed(used: tuple[tuple[dict[str, Any], str, Any], ...]) -> bool:
    """Return whether a global variable that a kernel was compiled with has another value now."""
    return any(table.get(name, MISSING) != value for table, name, value in used)


def wide(number: int) -> int:
    """Return the size class of an integer that is 1 or needs more than 32 bits."""
    if number == 1:
        return 0
    return 3 + (number & 15 == 0) + 2 * (number > 2**63 - 1)


def generate(site: Site, triton: Runtime, launching: Launching) -> Callable[..., Any] | None:
    """Return the cached launch, or None where an argument's specialisation is not known."""
    defaults = _defaults(site)
    if defaults is None or not _understood(site, triton, launching, defaults):
        return None
    return _Code(site, triton, launching, defaults).compile()


def _computed(site: Site) -> list[str]:
    """Return the names that heuristics give values to."""
    return [name for layer in (*site.layers.around, *site.layers.inside) for name in layer.values]


def _defaults(site: Site) -> dict[str, Any] | None:
    """Return the values of parameters that are left out; None where one gets none, or two."""
    tuner = site.layers.tuner
    computed = _computed(site)
    configs = [] if tuner is None else tuner.configs
    kwargs = list(configs[0].kwargs) if configs else []
    if any(list(config.kwargs) != kwargs or config.pre_hook is not None for config in configs):
        return None
    settings = {name for config in configs for name in config.all_kwargs()}
    given = {*site.passed, *site.options}
    if len({*computed}) != len(computed) or given & {*computed, *settings} or settings & {*computed}:
        return None
    defaults = {}
    signature = inspect.signature(site.layers.jit.fn).parameters
    for name in site.names:
        if name in site.passed or name in computed or name in kwargs:
            continue
        if name in settings or signature[name].default is inspect.Parameter.empty:
            return None
        defaults[name] = signature[name].default
    return defaults


def _understood(site: Site, triton: Runtime, launching: Launching, defaults: dict[str, Any]) -> bool:
    """Whether it is known for every argument what Triton specialises on."""
    for parameter in site.layers.jit.params:
        cls = (
            defaults[parameter.name].__class__ if parameter.name in defaults else site.classes[parameter.name]
        )
        if cls is Missing:
            continue
        allowed = triton.constants if parameter.is_constexpr else _NUMBERS
        if cls not in allowed and (parameter.is_constexpr or not launching.is_plain(cls)):
            return False
    tuned_by = set() if site.layers.tuner is None else {*site.layers.tuner.keys}
    arrays = [name for name in site.passed if launching.is_plain(site.classes[name])]
    return bool(arrays) and not tuned_by & {*arrays}


class _Code:
    """The lines of one generated function, and the objects that it uses."""

    def __init__(self, site: Site, triton: Runtime, launching: Launching, defaults: dict[str, Any]) -> None:
        self.site = site
        self.triton = triton
        self.launching = launching
        self.defaults = defaults
        self.p = prefix_beside([*site.names, *_computed(site)])
        self.scope: dict[str, Any] = {}
        self.arrays = [name for name in site.passed if launching.is_plain(site.classes[name])]
        self.flat = "".join(f", {name}" for name in site.names)

    def use(self, name: str, value: Any) -> str:
        """Make an object available to the code and return its name there."""
        self.scope[self.p + name] = value
        return self.p + name

    def compile(self) -> Callable[..., Any]:
        """Return the function."""
        lines = [*self.guards(), *self.find(), *self.launch()]
        head = f"{self.p}grid, {self.p}options{self.flat}"
        title = f"{self.site.layers.name} {id(self.site):#x}"
        return compile_launch(title, head, lines, self.scope)

    def guards(self) -> list[str]:
        """Lines that take the plain way where the launch must not be made from the cache."""
        p, launching = self.p, self.launching
        slow = f"return {self.use('slow', self.site.slow)}({p}grid, {p}options{self.flat})"
        device = self.use("current_device", launching.current_device)
        tests = [f"{p}device != {device}()"]
        tests += [f"{launching.device.format(name)} != {p}device" for name in self.arrays[1:]]
        tests += [*self.hooks(), f"{self.use('jit', self.site.layers.jit)}.pre_run_hooks"]
        lines = [f"if {self.use('busy', launching.busy)}(): {slow}"] if launching.busy is not None else []
        lines.append(f"{p}device = {launching.device.format(self.arrays[0])}")
        lines.append(f"if {' or '.join(tests)}: {slow}")
        lines += [f"{p}at{i} = {launching.address.format(name)}" for i, name in enumerate(self.arrays)]
        return lines

    def hooks(self) -> list[str]:
        """Return expressions that are true while something watches launches."""
        knobs = self.triton.knobs.runtime
        runtime = self.use("runtime", knobs)
        tests = []
        for name in ("launch_enter_hook", "launch_exit_hook"):
            quiet = getattr(knobs, name)
            if isinstance(getattr(quiet, "calls", None), list):
                # A chain of hooks: the one that is there, while it is empty, is the quiet state.
                tests.append(f"{runtime}.{name} is not {self.use(name, quiet)}")
                tests.append(f"{self.p}{name}.calls")
            else:
                tests.append(f"{runtime}.{name} is not None")
        if hasattr(knobs, "add_stages_inspection_hook"):
            tests.append(f"{runtime}.add_stages_inspection_hook is not None")
        return tests

    def key(self) -> list[str]:
        """Return the expressions of all that decides which compiled kernel runs, heuristics aside."""
        p, site = self.p, self.site
        constants = {parameter.name for parameter in site.layers.jit.params if parameter.is_constexpr}
        by_value = constants if site.layers.tuner is None else constants | {*site.layers.tuner.keys}
        parts = [f"{p}device"]
        for name in site.passed:
            cls = site.classes[name]
            if name in self.arrays:
                number = self.arrays.index(name)
                parts += [self.launching.dtype.format(name), f"not {p}at{number} & 15"]
            elif name in by_value:
                parts.append(name)
            if cls is int and name not in constants:
                large = self.use("wide", wide)
                small = f"{name} != 1 and -2147483649 < {name} < 2147483648"
                parts.append(f"(1 if {name} & 15 else 2) if {small} else {large}({name})")
        if site.options:
            parts += [f"*{p}options.values()", f"*map(type, {p}options.values())"]
        parts.append(f"{p}runtime.debug")
        compilation = self.triton.knobs.compilation
        for setting in ("instrumentation_mode", "fpsan_homomorphic_casts"):
            if hasattr(compilation, setting):
                parts.append(f"{self.use('compilation', compilation)}.{setting}")
        return parts

    def find(self) -> list[str]:
        """Lines that find the stored launch: heuristics, config, entry."""
        p, site = self.p, self.site
        lines: list[str] = []
        learn = f"return {self.use('learn', site.learn)}({p}key, {p}grid, {p}options{self.flat})"
        entries = self.use("entries", site.entries)
        if _computed(site):
            given = "".join(f"{name!r}: {name}, " for name in site.passed)
            lines.append(f"{p}given = {{{given}**{p}options}}")
        around = self.compute(site.layers.around, lines)
        lines.append(f"{p}key = ({', '.join([*self.key(), *around])},)")
        tuner = site.layers.tuner
        if site.layers.inside:
            lines.append(f"{p}config = {self.use('configs', site.configs)}.get({p}key)")
            lines.append(f"if {p}config is None or {self.stale('config')}: {learn}")
            lines.append(f"{p}given.update({p}config[2])")
            inside = self.compute(site.layers.inside, lines)
            lines.append(f"{p}entry = {entries}.get(({', '.join([f'{p}key', *inside])}))")
            lines.append(f"if {p}entry is None or {p}entry[9][0] is not {p}config[0]: {learn}")
        else:
            lines.append(f"{p}entry = {entries}.get({p}key)")
            test = f" or {self.stale('entry[9]')}" if tuner is not None else ""
            lines.append(f"if {p}entry is None{test}: {learn}")
        names = "launch, cooperative, dependent, function, metadata, annotations, signature, used, compiled"
        targets = [f"{p}{name}" for name in [*names.split(", "), "_chosen", "filled"]]
        lines.append(f"{', '.join(targets)} = {p}entry")
        slow = f"return {p}slow({p}grid, {p}options{self.flat})"
        lines.append(f"if {p}used and {self.use('changed', changed)}({p}used): {slow}")
        return lines

    def stale(self, name: str) -> str:
        """Return the expression that is true where the tuner has chosen anew, or was changed."""
        tuner = self.use("tuner", self.site.layers.tuner)
        if len(self.site.layers.tuner.configs) == 1:
            return f"len({tuner}.configs) != 1 or {tuner}.configs[0] is not {self.p}{name}[0]"
        return f"{tuner}.cache.get({self.p}{name}[1]) is not {self.p}{name}[0]"

    def compute(self, layers: list[Any], lines: list[str]) -> list[str]:
        """Add lines that compute heuristics; return what the key has of them."""
        parts = []
        for layer in layers:
            for name, function in layer.values.items():
                given = f"{self.p}given"
                call = f"{self.use('compute_' + name, function)}({given}.copy())"
                computed = f"{self.p}got_{name}"
                lines.append(f"{computed} = {given}[{name!r}] = {call}")
                parts += [computed, f"{computed}.__class__"]
        return parts

    def launch(self) -> list[str]:
        """Lines that resolve the grid and call the launcher."""
        p, site = self.p, self.site
        lines = [f"{name} = {self.use('default_' + name, value)}" for name, value in self.defaults.items()]
        tuner = site.layers.tuner
        filled = [] if tuner is None else list(tuner.configs[0].kwargs)
        if filled:
            lines.append(f"{', '.join(filled)}, = {p}filled")
        lines += [f"{name} = {p}got_{name}" for name in _computed(site) if name in site.names]
        bound = ", ".join(f"{name!r}: {name}" for name in site.names)
        lines.append(
            f"if {p}grid.__class__ is not tuple and callable({p}grid): {p}grid = {p}grid({{{bound}}})"
        )
        lines.append(f"{p}size = len({p}grid)")
        sizes = f"{p}grid[0], {p}grid[1] if {p}size > 1 else 1, {p}grid[2] if {p}size > 2 else 1"
        stream = f"{self.use('current_stream', self.launching.current_stream)}({p}device)"
        flags = f"{p}cooperative, {p}dependent"
        arrays = {name: f"{p}at{number}" for number, name in enumerate(self.arrays)}
        args = "".join(f"{arrays.get(name, name)}, " for name in site.names)
        if self.triton.layout == "annotated":
            rest = f"{p}metadata, None, None, None, None, None, {p}annotations, {p}signature, ({args})"
        else:
            scratch = "None, None" if self.triton.layout == "plain" else "None"
            rest = f"{scratch}, {p}metadata, None, None, None, {args}"
        lines.append(f"{p}launch({sizes}, {stream}, {p}function, {flags}, {rest})")
        lines.append(f"return {p}compiled")
        return lines
