"""Triton: ``wrap_triton``, and what a wrapped kernel does when it is launched.

* Torch is never imported here: how a framework's arrays reach Triton is that framework's `Launching`.
* A launch on plain arrays goes through a cache (``triton_cache.py``); everything else, and everything that
  the cache does not know, goes through Triton's own ``kernel[grid](...)``.
* A kernel's decorators are kept in order: heuristics around or inside one ``autotune``, ``jit`` innermost.
"""

from __future__ import annotations

from copy import copy
from types import MethodType
from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.errors import (
    ArgumentError,
    RegistrationError,
    RegistrationTypeError,
    RegistrationValueError,
    layout,
)
from opwright.frameworks.base import load
from opwright.kernels.triton_code import never_traced, untraced
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opwright.frameworks.base import Launching
    from opwright.programs import Launch

INSTALL = "pip install 'opwright[triton]'"


class Layers:
    """The decorators of a kernel, outermost first, and the function under them.

    Parameters
    ----------
    kernel
        What ``triton.jit``, ``triton.autotune`` or ``triton.heuristics`` returned.

    Raises
    ------
    RegistrationError
        If it is no such object, or its decorators cannot be honoured.
    """

    def __init__(self, kernel: Any) -> None:
        autotuner, heuristics, jit, interpreted = classes()
        self.kernel = kernel
        self.around: list[Any] = []
        self.inside: list[Any] = []
        self.tuner: Any = None
        inner: Any = kernel
        while isinstance(inner, (autotuner, heuristics)):
            if isinstance(inner, heuristics):
                (self.around if self.tuner is None else self.inside).append(inner)
            elif self.tuner is not None:
                raise RegistrationValueError(
                    layout(
                        f"Triton kernel {_name(kernel)} has two autotune decorators: one would be ignored",
                        registered=_source(inner),
                        fix="put all configs in one @triton.autotune",
                    )
                )
            else:
                self.tuner = inner
            inner = inner.fn
        if not isinstance(inner, (jit, interpreted)):
            raise _not_a_kernel(kernel, inner)
        self.jit: Any = inner
        self.interpreted = isinstance(inner, interpreted)
        self.writes: dict[Any, tuple[str, ...]] = {}
        self._tuned: Any = None

    def constant(self, name: str) -> bool:
        """Return whether a value of this name is compiled in: of a constant parameter, or an option."""
        return all(parameter.is_constexpr for parameter in self.jit.params if parameter.name == name)

    def tuned(self, concrete: Callable[[Any], Any]) -> Any:
        """Return the kernel without the heuristics around its tuner, for what traces it.

        ``concrete`` makes a plain value of a symbolic one: heuristics below the tuner give plain constants.
        """
        if self._tuned is None:
            inner = self.jit
            for layer in reversed(self.inside):
                values = {
                    name: (lambda args, fn=fn: concrete(fn(args))) if self.constant(name) else fn
                    for name, fn in layer.values.items()
                }
                inner = type(layer)(inner, layer.arg_names, values)
            if self.tuner is None:
                self._tuned = inner
            elif not self.inside:
                self._tuned = self.tuner
            else:
                self._tuned = copy(self.tuner)
                self._tuned.fn = inner
        return self._tuned

    @property
    def name(self) -> str:
        """The kernel function's name."""
        return str(self.jit.fn.__name__)

    @property
    def source(self) -> str:
        """``file:line`` of the kernel function."""
        return _source(self.jit)

    @property
    def filled(self) -> list[str]:
        """The names that heuristics and configs give values to."""
        configs = [] if self.tuner is None else self.tuner.configs
        found = [name for layer in (*self.around, *self.inside) for name in layer.values]
        return found + [name for config in configs for name in config.all_kwargs()]


class Launcher:
    """A Triton kernel that ``wrap_triton`` returned: launch it as the kernel itself, ``[grid](...)``.

    Parameters
    ----------
    kernel
        The kernel, its decorators included.
    writes
        The parameters that it writes to, where declared.
    """

    def __init__(self, kernel: Any, writes: tuple[str, ...] | None) -> None:
        self.kernel = kernel
        self.layers = Layers(kernel)
        self.writes = writes
        self.arg_names: list[str] = [str(name) for name in self.layers.jit.arg_names]
        self.__name__ = self.layers.name
        if writes is not None:
            unknown = sorted(set(writes) - set(self.arg_names))
            if unknown:
                raise RegistrationValueError(
                    layout(
                        f"writes= of Triton kernel {self.layers.name} names parameters that it does not have",
                        expected=f"some of {', '.join(self.arg_names)}",
                        got=", ".join(unknown),
                        registered=self.layers.source,
                    )
                )
        self._verified: dict[int, Any] = {}
        self.has_front = False
        self._launch = self._dispatch()

    def put_in_front(self, launch: Callable[..., Any] | None) -> None:
        """Take another function for the launches that are made from now on."""
        if launch is not None:
            self.has_front = True
            self._launch = never_traced(launch)

    def __repr__(self) -> str:
        return f"<Triton kernel {self.layers.name} ({self.layers.source})>"

    @untraced
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        # A bound method is the cheapest way to keep an argument that comes first.
        return MethodType(self._launch, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a launch needs a grid."""
        raise ArgumentError(
            layout(
                f"Triton kernel {self.layers.name} was called without a grid",
                registered=self.layers.source,
                fix=f"wrap_triton({self.layers.name})[grid](...)",
            )
        )

    @untraced
    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch as Triton's own ``run`` does; with ``warmup`` it is only compiled."""
        if warmup:
            return self.kernel.run(*args, grid=grid, warmup=True, **kwargs)
        return self._launch(grid, *args, **kwargs)

    def _dispatch(self) -> Callable[..., Any]:
        """Return what a launch calls: the cache's generated function, or the plain way."""
        from opwright.kernels.triton_cache import dispatcher

        cached = None if self.layers.interpreted else dispatcher(self)
        never_traced(type(self).plain)
        return self.plain if cached is None else never_traced(cached)

    @untraced
    def plain(self, grid: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Launch without the cache, through the framework that the arrays belong to."""
        launching = self.launching((*args, *kwargs.values()))
        if launching is None:
            return self.kernel[grid](*args, **kwargs)
        kernel = launching.launch(self, grid, args, kwargs)
        if self.writes is not None and id(kernel) not in self._verified:
            self._verify(kernel)
        return kernel

    def _verify(self, kernel: Any) -> None:
        """Compare what a kernel was compiled to with what it is declared to write, once for each."""
        from opwright.kernels.triton_analysis import verify

        code = getattr(kernel, "asm", {}).get("ttir")
        if code is not None:
            verify(self, code, dict(kernel.src.signature))
            self._verified[id(kernel)] = kernel

    def written(self, given: Mapping[str, Any], is_array: Callable[[Any], bool]) -> tuple[str, ...]:
        """Return the names of the parameters that a launch with these arguments writes to.

        Raises
        ------
        UnsupportedError
            If nothing is declared and it cannot be told from the kernel's code.
        """
        from opwright.kernels.triton_analysis import written_arguments

        return written_arguments(self, given, is_array=is_array)

    def as_data(self, *launch: Any) -> Launch:
        """Return what a launch does; for the arguments see ``triton_programs.launch``."""
        from opwright.kernels.triton_programs import launch as described

        return described(self, *launch)

    def launching(self, values: Iterable[Any]) -> Launching | None:
        """Return how the first array among ``values`` reaches Triton; None where there is no array.

        Raises
        ------
        UnsupportedError
            If that array's framework cannot.
        """
        for value in values:
            info = catalogue.framework_of_class(value.__class__)
            if info is not None:
                return load(info.name).launching()
        return None


@untraced
def wrap_triton(kernel: Any, /, *, writes: Iterable[str] | None = None) -> Any:
    """Let a Triton kernel be launched inside a ``triton_op`` and be seen by what traces it.

    Parameters
    ----------
    kernel
        A function decorated with ``triton.jit``, and ``triton.autotune`` or ``triton.heuristics`` above it.
    writes
        The parameters that the kernel writes to, where the analysis of its code cannot tell.

    Returns
    -------
    Launcher
        Launched as the kernel: ``wrap_triton(kernel)[grid](x, y, BLOCK=128)``.

    Raises
    ------
    RegistrationError
        If ``kernel`` is no Triton kernel or its decorators cannot be honoured.

    Examples
    --------
    Inside a ``triton_op``: ``wrap_triton(add_kernel)[grid](x, y, out, n, BLOCK=1024)``.
    """
    if writes is None:
        # The kernel itself keeps its launchers: they live and go with it.
        try:
            return kernel._opwright_launcher  # noqa: SLF001
        except AttributeError:
            if isinstance(kernel, Launcher):
                return kernel
        launcher = kernel._opwright_launcher = Launcher(kernel, None)  # noqa: SLF001
        return launcher
    names = _parameters(writes)
    if isinstance(kernel, Launcher):
        return wrap_triton(kernel.kernel, writes=names)
    declared = getattr(kernel, "__dict__", {}).setdefault("_opwright_declared", {})
    if names not in declared:
        declared[names] = Launcher(kernel, names)
    return declared[names]


def _parameters(writes: Iterable[str]) -> tuple[str, ...]:
    if isinstance(writes, str):
        raise RegistrationValueError(
            layout(
                "writes= must be an iterable of parameter names",
                got=repr(writes),
                fix=f"write writes=({writes!r},)",
            )
        )
    return tuple(writes)


def classes() -> tuple[Any, Any, Any, Any]:
    """Return Triton's classes of kernels: autotuner, heuristics, jit function, interpreted function."""
    try:
        from triton.runtime.autotuner import Autotuner, Heuristics
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError as error:
        raise RegistrationError(layout("wrap_triton needs the package triton", fix=INSTALL)) from error
    return Autotuner, Heuristics, JITFunction, InterpretedFunction


def _name(kernel: Any) -> str:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", kernel))


def _source(kernel: Any) -> str:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return source_of(kernel)


def _not_a_kernel(kernel: Any, inner: Any) -> RegistrationError:
    if inner is kernel:
        return RegistrationTypeError(
            layout(
                "wrap_triton only works on functions annotated with triton.jit or triton.autotune",
                got=f"{kernel!r} of type {type(kernel).__name__}",
                fix="decorate the function with @triton.jit",
            )
        )
    return RegistrationTypeError(
        layout(
            f"the decorators of Triton kernel {_name(kernel)} are in an order that cannot be honoured",
            expected="@triton.heuristics and one @triton.autotune above @triton.jit",
            got=f"{type(inner).__name__} below {type(kernel).__name__}",
            registered=_source(inner),
            fix="put @triton.jit next to the function",
        )
    )
