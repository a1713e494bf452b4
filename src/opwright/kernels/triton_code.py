"""The generated function of a `Site` of the launch cache.

Its key holds dtype, alignment and device of arrays, size class and divisibility of integers, values of
constants, options, heuristics and what the kernel is tuned by, and debug settings. Pointers reach the
launcher as integers; each array is on the current GPU, or the launch is plain.
"""

from __future__ import annotations

import inspect
import linecache
from typing import TYPE_CHECKING, Any, TypeVar

from opwright import catalogue
from opwright.frameworks.base import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opwright.frameworks.base import Launching
    from opwright.kernels.triton_cache import Site

F = TypeVar("F", bound="Callable[..., Any]")

_WHY_UNTRACED = (
    "a Triton kernel is launched through opwright.wrap_triton outside of a triton_op, which cannot be "
    "traced; put the launch in a function decorated with opwright.triton_op, and call that"
)

_NUMBERS = (int, bool, float, type(None))
MANY = 4
"""From how many integers on a launch is first looked up by their values."""

ENVIRONMENT = "fpsan_homomorphic_casts"
"""A setting that some releases read from the environment at every launch."""

RECENT = 512
"""How many launches are looked up by values; then it starts anew."""


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
        hooks = [getattr(knobs.runtime, name) for name in ("launch_enter_hook", "launch_exit_hook")]
        chains = [isinstance(getattr(hook, "calls", None), list) for hook in hooks]
        self.chains = [hook.calls for hook, chain in zip(hooks, chains, strict=True) if chain]
        # A hook that is set already is not the quiet state: nothing is, until it is gone.
        pairs = zip(hooks, chains, strict=True)
        self._quiet = [hook if chain or hook is None else object() for hook, chain in pairs]
        self.reads_environment = hasattr(vars(type(knobs.compilation)).get(ENVIRONMENT), "key")
        self.layout = "annotated" if release >= (3, 7) else "plain" if release >= (3, 5) else "early"

    def loud(self) -> bool:
        """Return whether anything is set that a launch depends on or that watches it, hook chains aside."""
        runtime, compilation = self.knobs.runtime, self.knobs.compilation
        enter, leave = self._quiet
        return bool(
            runtime.launch_enter_hook is not enter
            or runtime.launch_exit_hook is not leave
            or getattr(runtime, "add_stages_inspection_hook", None) is not None
            or runtime.debug
            or getattr(compilation, "instrumentation_mode", "")
            or getattr(compilation, ENVIRONMENT, False)
        )


def untraced(function: F) -> F:
    """Let tracers of Python code stop at a function, and say what to write instead."""
    catalogue.stop_tracers(function, _WHY_UNTRACED)
    return function


def never_traced(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Keep tracers out of a launch that Python code makes after they have stopped at it."""
    for info in catalogue.known():
        if info.tracer and catalogue.loaded(info):
            load(info.name).never_traced(launch)
    return launch


def compile_launch(title: str, head: str, body: Iterable[str], scope: dict[str, Any]) -> Callable[..., Any]:
    """Compile ``def launch(head): body`` and enter its source where tracebacks look for it."""
    filename = f"<opwright launch of {title}>"
    text = f"def launch({head}):\n" + "".join(f"    {line}\n" for line in body)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope["__name__"] = "opwright.generated"
    exec(compile(text, filename, "exec"), scope)
    function: Callable[..., Any] = scope.pop("launch")
    # A tracer would import the module that the globals name, and there is none.
    del scope["__name__"]
    return untraced(function)


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
    """Return the size class of an integer: of 32 bits, of 64, of 64 without a sign."""
    return 0 if -(2**31) <= number < 2**31 else 1 if number < 2**63 else 2


def generate(site: Site, triton: Runtime, launching: Launching) -> Callable[..., Any] | None:
    """Return the cached launch, or None where an argument's specialisation is not known."""
    defaults = _defaults(site)
    if defaults is None or not _understood(site, triton, launching, defaults):
        return None
    return _Code(site, triton, launching, defaults).compile()


def generate_front(
    site: Site, triton: Runtime, launching: Launching, generic: Front
) -> Callable[..., Any] | None:
    """Return the launch of all arguments that has one site's launches inline and hands on the others."""
    defaults = _defaults(site)
    if defaults is None or not _understood(site, triton, launching, defaults):
        return None
    return _Code(site, triton, launching, defaults).front(generic)


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


class Front:
    """The head of a kernel's launch function, the lines that serve any arguments, and what they use."""

    def __init__(self, title: str, head: str, lines: list[str], scope: dict[str, Any]) -> None:
        self.title = title
        self.head = head
        self.lines = lines
        self.scope = scope

    def compile(self) -> Callable[..., Any]:
        """Return the function."""
        return compile_launch(self.title, self.head, self.lines, dict(self.scope))


class _Code:
    """The lines of one generated function, and the objects that it uses."""

    def __init__(self, site: Site, triton: Runtime, launching: Launching, defaults: dict[str, Any]) -> None:
        self.site = site
        self.triton = triton
        self.launching = launching
        self.defaults = defaults
        self.p = prefix_beside([*site.names, *site.layers.filled])
        self.scope: dict[str, Any] = {}
        self.arrays = [name for name in site.passed if launching.is_plain(site.classes[name])]
        self.integers: list[str] = []
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

    def front(self, generic: Front) -> Callable[..., Any]:
        """Return the same behind a test of the arguments' classes, before the lines that serve any."""
        p, site = self.p, self.site
        lines = [*self.guards(), *self.find(), *self.launch()]
        tests = [
            f"{name}.__class__ is {self.use(f'class{number}', site.classes[name])}"
            for number, name in enumerate(site.names)
        ]
        body = [f"if not {p}options and {' and '.join(tests)}:", *(f"    {line}" for line in lines)]
        scope = {**self.scope, **generic.scope}
        return compile_launch(generic.title, generic.head, [*body, *generic.lines], scope)

    def guards(self) -> list[str]:
        """Lines that take the plain way where the launch must not be made from the cache."""
        p, launching = self.p, self.launching
        slow = f"return {self.use('slow', self.site.slow)}({p}grid, {p}options{self.flat})"
        if launching.only_device is None:
            device = f"{self.use('current_device', launching.current_device)}()"
        else:
            device = str(launching.only_device)
        tests = [f"{p}device != {device}"]
        tests += [f"{launching.device.format(name)} != {p}device" for name in self.arrays[1:]]
        tests += [*self.hooks(), f"{self.use('jit', self.site.layers.jit)}.pre_run_hooks"]
        lines = [f"if {self.use('busy', launching.busy)}(): {slow}"] if launching.busy is not None else []
        lines.append(f"{p}device = {launching.device.format(self.arrays[0])}")
        lines.append(f"if {' or '.join(tests)}: {slow}")
        lines += [f"{p}at{i} = {launching.address.format(name)}" for i, name in enumerate(self.arrays)]
        return lines

    def hooks(self) -> list[str]:
        """Return expressions that are true while something watches launches."""
        triton = self.triton
        loud = self.use("loud", triton.loud)
        # What is set stands in these dictionaries; mostly nothing is.
        settings = (triton.knobs.runtime, triton.knobs.compilation)
        names = [self.use(f"settings{number}", vars(knobs)) for number, knobs in enumerate(settings)]
        tests = [f"({' or '.join(names)}) and {loud}()"]
        tests += [self.use(f"hooks{number}", calls) for number, calls in enumerate(triton.chains)]
        if triton.reads_environment:
            tests.append(f"{self.use('compilation', triton.knobs.compilation)}.{ENVIRONMENT}")
        return tests

    def key(self) -> tuple[list[str], list[str]]:
        """Return the expressions of all that decides which compiled kernel runs, heuristics aside.

        First those that are one for all integers, then what there is of each integer.
        """
        p, site = self.p, self.site
        constants = {parameter.name for parameter in site.layers.jit.params if parameter.is_constexpr}
        by_value = constants if site.layers.tuner is None else constants | {*site.layers.tuner.keys}
        addresses = [f"{p}at{number}" for number in range(len(self.arrays))]
        # Mostly all are aligned, which one test says.
        each = ", ".join(f"not {address} & 15" for address in addresses)
        parts = [f"{p}device", f"not ({' | '.join(addresses)}) & 15 or ({each},)"]
        for name in site.passed:
            if name in self.arrays:
                parts.append(self.launching.dtype.format(name))
            elif name in by_value:
                parts.append(name)
        if site.options:
            parts += [f"*{p}options.values()", f"*map(type, {p}options.values())"]
        self.integers = [name for name in site.passed if site.classes[name] is int and name not in constants]
        numbers = [f"{name} == 1 or not {name} & 15 and 2" for name in self.integers]
        if numbers:
            # Mostly all are of 32 bits and not negative, which one test says too.
            large = self.use("wide", wide)
            sizes = ", ".join(f"{large}({name})" for name in self.integers)
            numbers.append(f"0 <= ({' | '.join(self.integers)}) < 2147483648 or ({sizes},)")
        return parts, numbers

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
        parts, numbers = self.key()
        key = f"{p}key = ({', '.join([*parts, *numbers, *around])},)"
        tuner = site.layers.tuner
        test = f" or {self.stale('entry[9]')}" if tuner is not None else ""
        if site.layers.inside:
            lines += [key, f"{p}config = {self.use('configs', site.configs)}.get({p}key)"]
            lines.append(f"if {p}config is None or {self.stale('config')}: {learn}")
            lines.append(f"{p}given.update({p}config[2])")
            inside = self.compute(site.layers.inside, lines)
            lines.append(f"{p}entry = {entries}.get(({', '.join([f'{p}key', *inside])}))")
            lines.append(f"if {p}entry is None or {p}entry[9][0] is not {p}config[0]: {learn}")
        elif len(self.integers) < MANY or around:
            lines += [key, f"{p}entry = {entries}.get({p}key)", f"if {p}entry is None{test}: {learn}"]
        else:
            # Mostly the same numbers come again: looked up as they are before their classes are.
            recent = self.use("recent", {})
            lines.append(f"{p}raw = ({', '.join([*parts, *self.integers])},)")
            lines += [f"{p}entry = {recent}.get({p}raw)", f"if {p}entry is None{test}:"]
            lines += [f"    {key}", f"    {p}entry = {entries}.get({p}key)"]
            lines.append(f"    if {p}entry is None{test}: {learn}")
            lines.append(f"    if len({recent}) >= {RECENT}: {recent}.clear()")
            lines.append(f"    {recent}[{p}raw] = {p}entry")
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
