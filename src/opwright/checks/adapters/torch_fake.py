"""Fakes on torch's FakeTensors: with known sizes, and with symbols, of which every question is listed.

Torch itself asks questions of sizes too, to compute strides and broadcasts. What counts here is what the
author's own line asked: between it and torch's answer there is only the symbolic integer.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from opwright.checks.adapters.base import call_arguments, operator_of, outputs_of
from opwright.checks.adapters.results import Asked, Faked, Meta
from opwright.checks.adapters.torch_program import in_torch
from opwright.frameworks.base import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opwright.overload import OpOverload

_ASSERTED = "expect_true"
"""The function in torch through which a check that must hold, ``torch._check``, asks."""


def fake(
    record: OpOverload, values: Sequence[Any], hints: Mapping[int, int] | None, tensor: Callable[[Any], Any]
) -> Faked:
    """Return what the operator returns for FakeTensors; ``tensor`` makes one of a NumPy array."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    env = _recording_env()
    mode = FakeTensorMode(shape_env=env)
    seen: list[tuple[str, Any]] = []

    def one(value: Any, label: str) -> Any:
        if isinstance(value, list | tuple):
            return [one(each, f"{label}[{i}]") for i, each in enumerate(value)]
        if value is None:
            return None
        found = _fake_tensor(mode, value, tensor, hints)
        seen.append((f"argument {label}", found))
        for axis, size in enumerate(found.shape):
            if not isinstance(size, int):
                env.names.setdefault(str(size), f"{label}.shape[{axis}]")
        return found

    pairs = zip(record.schema.arguments, values, strict=True)
    fakes = [one(value, a.name) if a.has_tensors else in_torch(a, value) for a, value in pairs]
    args, kwargs = call_arguments(record, fakes)
    with mode:
        env.asked.clear()
        outputs = outputs_of(record, _called(record, bool(seen))(*args, **kwargs))
    asked = list(env.asked)
    return Faked([_metas(out, f"output {i}", seen) for i, out in enumerate(outputs)], asked)


def _called(record: OpOverload, has_arrays: bool) -> Any:
    """Return what is called: without arrays torch's own operator, as in a program that is compiled."""
    return operator_of(record) if has_arrays else load("torch").native(record)


def _fake_tensor(mode: Any, value: Any, tensor: Callable[[Any], Any], hints: Mapping[int, int] | None) -> Any:
    """Return a FakeTensor of an array; with hints, its sizes above 1 are symbols of other values."""
    import numpy as np

    if hints is None:
        return mode.from_tensor(tensor(value.copy(order="K")), static_shapes=True)
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    shape = tuple(hints.get(size, size) if size > 1 else size for size in value.shape)
    other = value.copy(order="K") if shape == value.shape else np.zeros(shape, value.dtype)
    symbols = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * value.ndim)
    return mode.from_tensor(tensor(other), symbolic_context=symbols)


def _recording_env() -> Any:
    """Return a ShapeEnv that keeps what an author's line asked of a size in ``asked``."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    class Recording(ShapeEnv):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[Asked] = []
            self.names: dict[str, str] = {}

        def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(self.guards)
            answer = super().evaluate_expr(orig_expr, *args, **kwargs)
            source = _author() if len(self.guards) > before else None
            if source is not None:
                text = re.sub(r"\bs\d+\b", lambda found: self.names.get(found[0], found[0]), _text(orig_expr))
                question = text if answer in (True, False) and _is_relation(orig_expr) else f"int({text})"
                self.asked.append(Asked(question, source, bool(answer) if question is text else answer))
            return answer

    return Recording()


def _is_relation(expression: Any) -> bool:
    return bool(getattr(expression, "is_Relational", False) or getattr(expression, "is_Boolean", False))


def _text(expression: Any) -> str:
    """Return a question as Python writes it."""
    sign = {"Equality": "==", "Unequality": "!="}.get(type(expression).__name__)
    return str(expression) if sign is None else f"{expression.lhs} {sign} {expression.rhs}"


def _author() -> str | None:
    """Return ``file:line`` of what asked a symbolic integer directly, or None where torch itself did."""
    import torch

    package = os.path.dirname(torch.__file__)  # noqa: PTH120  (compared with the names of files)
    asking = (os.path.join(package, "__init__.py"), os.path.join(package, "fx", "experimental"))  # noqa: PTH118
    frame: Any = sys._getframe(2)  # noqa: SLF001  (the documented way to a frame)
    while frame is not None and frame.f_code.co_filename.startswith(asking):
        if frame.f_code.co_name == _ASSERTED:
            return None
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith((package, os.path.dirname(_PACKAGE))):  # noqa: PTH120
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_PACKAGE = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120


def _metas(value: Any, label: str, seen: list[tuple[str, Any]]) -> Any:
    import torch

    if isinstance(value, list | tuple):
        return [_metas(one, f"{label}[{index}]", seen) for index, one in enumerate(value)]
    if not isinstance(value, torch.Tensor):
        return value
    same = tuple(what for what, other in seen if other is value)
    seen.append((label, value))
    known = [isinstance(size, int) for size in value.shape]
    shape = tuple(int(size) if fixed else None for size, fixed in zip(value.shape, known, strict=True))
    strides = (
        tuple(value.stride()) if all(known) and all(isinstance(s, int) for s in value.stride()) else None
    )
    return Meta(shape, str(value.dtype).removeprefix("torch."), same, strides)
