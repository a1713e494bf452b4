"""Programs that ``torch.compile`` and ``torch.export`` make of one call of an operator.

* Arrays are the program's arguments, everything else constants in it.
* Each program has code of its own, so that nothing counts against Dynamo's limit of recompilations, and
  no cache of the caller's is emptied.
"""

from __future__ import annotations

import io
import linecache
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from opwright.checks.adapters import torch_autograd
from opwright.checks.adapters.base import mutated, operator_of, outputs_of
from opwright.checks.adapters.programs import Compiler, Program, Recompiled
from opwright.checks.adapters.results import Called, Pullback, Unsupported
from opwright.frameworks.base import load
from opwright.source import GENERATED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opwright.checks.adapters.base import Adapter
    from opwright.overload import OpOverload
    from opwright.schema import Argument

_UNBACKED = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
"""Sizes and numbers that depend on the data are traced; torch 2.9 has to be told, newer ones do it anyway."""

_PROFILE = "profile_guard_manager"
"""The function by which Dynamo measures guards; what it returns is logged, nothing else."""

_LINE = "op = torch.compile(op, backend={!r}, fullgraph=True, dynamic={})"


def compilers(adapter: Adapter, *, thorough: bool) -> list[Compiler]:
    """Return the compilers: aot_eager with symbolic sizes; with fixed ones, and inductor, if thorough."""
    found = []
    for backend in ("aot_eager", "inductor") if thorough else ("aot_eager",):
        for dynamic in (False, True) if thorough else (True,):
            sizes = ", dynamic=True" if dynamic else ""
            program = partial(TorchProgram, backend=backend, dynamic=dynamic)
            line = _LINE.format(backend, dynamic)
            found.append(Compiler(f"torch.compile(backend={backend!r}{sizes})", program, line, dynamic))
    return found


class TorchProgram(Program):
    """What ``torch.compile(fullgraph=True)`` makes of an operator."""

    def __init__(self, record: OpOverload, values: Sequence[Any], *, backend: str, dynamic: bool) -> None:
        import torch

        self._record = record
        function = function_of(record, values)
        self._compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)

    def call(self, values: Sequence[Any], *, other_size: bool = False) -> Called:
        """Run the program; mutated arguments are changed in place."""
        arrays = [v for a, v in zip(self._record.schema.arguments, values, strict=True) if _is_passed(a, v)]
        with _configured(error_on_recompile=other_size):
            try:
                out = self._compiled(*arrays)
            except Exception as error:
                if other_size and type(error).__name__ == "RecompileError":
                    raise Recompiled(_reason(error)) from error
                raise
        return Called(outputs_of(self._record, out), mutated(self._record, values))

    def vjp(self, values: Sequence[Any], wanted: Sequence[Any], *, other_size: bool = False) -> Pullback:
        """Run the program on tensors that require gradients."""
        call = partial(self.call, other_size=other_size)
        return torch_autograd.pullback(self._record, values, wanted, call)


def _is_passed(argument: Any, value: Any) -> bool:
    return bool(argument.has_tensors and value is not None)


def in_torch(argument: Argument, value: Any) -> Any:
    """Return a value that is no array as torch's own operator takes it, such as a dtype given by name."""
    if value is None or argument.has_tensors:
        return value
    if isinstance(value, list | tuple):
        return [in_torch(argument, one) for one in value]
    value = value.value if isinstance(value, Enum) else value
    named = argument.base in ("ScalarType", "Device", "Layout", "MemoryFormat")
    return load("torch").convert(argument.base, value) if named else value


def function_of(record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
    """Return a new function that calls the operator; arrays are its parameters, the rest is fixed."""
    namespace: dict[str, Any] = {"op": operator_of(record)}
    names, texts = [], []
    for argument, value in zip(record.schema.arguments, values, strict=True):
        name = _parameter(argument.name)
        if _is_passed(argument, value):
            names.append(name)
        else:
            namespace[name] = in_torch(argument, value)
        texts.append(f"{argument.name}={name}" if argument.kwarg_only else name)
    return _defined(f"def program({', '.join(names)}):\n    return op({', '.join(texts)})", namespace)


@contextmanager
def _configured(**config: Any) -> Iterator[None]:
    """Configure Dynamo, and let a compiled backward run twice, as the laws do."""
    import torch._dynamo.config
    import torch._functorch.config

    dynamo, functorch = torch._dynamo.config, torch._functorch.config  # noqa: SLF001  (their public names)
    with dynamo.patch(**_UNBACKED, **config), functorch.patch(donated_buffer=False), _without_profile():
        yield


@contextmanager
def _without_profile() -> Iterator[None]:
    """Keep Dynamo from measuring for its log how long guards take: a sixth of what a small program takes."""
    import torch._dynamo.guards as module

    profile = getattr(module, _PROFILE, None)
    if profile is None:
        yield
        return
    setattr(module, _PROFILE, lambda *_: 0.0)
    try:
        yield
    finally:
        setattr(module, _PROFILE, profile)


def _reason(error: Exception) -> str:
    """Return the guard that failed, from the text of Dynamo's error."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")]
    return (
        next((line for line in lines if "/" in line and ": " in line), lines[-1]).partition(": ")[2]
        or lines[-1]
    )


def exported(record: OpOverload, values: Sequence[Any]) -> Called:
    """Return what a program does that was exported, saved and loaded."""
    import torch

    function = function_of(record, values)

    class Module(torch.nn.Module):
        def forward(self, *arrays: Any) -> Any:
            return function(*arrays)

    arrays = [v for a, v in zip(record.schema.arguments, values, strict=True) if _is_passed(a, v)]
    program = torch.export.export(Module(), tuple(arrays))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    out = torch.export.load(file).module()(*arrays)
    return Called(outputs_of(record, out), mutated(record, values))


def functionalised(record: OpOverload, values: Sequence[Any]) -> list[tuple[str, Any, Any]] | Unsupported:
    """Run a call with views of one tensor, eagerly and as a program without mutation.

    The mutated tensors, and those of their dtype, are transposed or sliced views of it.
    """
    import torch

    views, total = _views(record, values)
    if not views:
        return Unsupported("only lists of tensors are mutated, which are no views of one tensor here")
    dtype = next(tensor.dtype for _, tensor, _ in views)
    results = []
    for compiled in (False, True):
        base = torch.zeros(total, dtype=dtype)
        for _, tensor, text in views:
            eval(text, {"base": base}).copy_(tensor)  # noqa: S307  (the text was written below)
        function = _function_of_views(record, values, {index: text for index, _, text in views})
        if compiled:
            function = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)
        arrays = [
            v.clone()
            for i, (a, v) in enumerate(zip(record.schema.arguments, values, strict=True))
            if _is_passed(a, v) and not a.is_list and i not in {index for index, _, _ in views}
        ]
        with _configured():
            results.append([base, *outputs_of(record, function(base, *arrays))])
    names = ["the caller's array", *(f"output {index}" for index in range(len(record.schema.returns)))]
    return list(zip(names, *results, strict=True))


def _views(record: OpOverload, values: Sequence[Any]) -> tuple[list[tuple[int, Any, str]], int]:
    """Return index, tensor and expression of each argument that becomes a view, and the size of the base."""
    pairs = [
        (index, argument, value)
        for index, (argument, value) in enumerate(zip(record.schema.arguments, values, strict=True))
        if argument.has_tensors and not argument.is_list and value is not None
    ]
    dtype = next((value.dtype for _, argument, value in pairs if argument.is_write), None)
    views, at = [], 0
    for index, _, value in pairs:
        if value.dtype != dtype:
            continue
        shape, count = tuple(value.shape), value.numel()
        if value.ndim > 1:
            axes = tuple(reversed(range(value.ndim)))
            views.append((index, value, f"base[{at}:{at + count}].reshape({shape[::-1]}).permute({axes})"))
        else:
            count *= 2
            views.append(
                (index, value, f"base[{at}:{at + count}:2].reshape({shape})" if shape else f"base[{at}]")
            )
        at += max(count, 1)
    return views, at


def _function_of_views(
    record: OpOverload, values: Sequence[Any], views: Mapping[int, str]
) -> Callable[..., Any]:
    """Return a new function of the base, and of the tensors that are no views of it."""
    namespace: dict[str, Any] = {"op": operator_of(record)}
    names, texts = ["base"], []
    for index, (argument, value) in enumerate(zip(record.schema.arguments, values, strict=True)):
        text = views.get(index, _parameter(argument.name))
        if index not in views and _is_passed(argument, value) and not argument.is_list:
            names.append(text)
        elif index not in views:
            namespace[text] = in_torch(argument, value)
        texts.append(f"{argument.name}={text}" if argument.kwarg_only else text)
    return _defined(f"def program({', '.join(names)}):\n    return op({', '.join(texts)})", namespace)


def _parameter(name: str) -> str:
    """Return the name of a program's parameter for an argument."""
    return f"{name}_" if name in ("op", "base") else name


def _defined(source: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    filename = f"{GENERATED}program>"
    # Some releases of torch put one and the same function around all those that have no source.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)
    function: Callable[..., Any] = namespace["program"]
    return function
