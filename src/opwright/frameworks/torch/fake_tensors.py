"""A fake written with torch, called with another framework's fakes: it runs on FakeTensors, as torch runs it.

* They have the device of what they stand for and no data, so that a body may look at the device, make
  tensors on it, and combine them. A device that torch does not know is meta.
* Where they stand for tensors of torch, a tensor with data beside them is refused, as when torch compiles.
* A size that depends on data is torch's own inside the body, and the caller's outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from opwright.errors import UnsupportedError, layout
from opwright.fake_context import FakeContextBase, check_bounds, computing, current_ctx, entered_ctx
from opwright.fakes import FakeArray, FakeContext
from opwright.frameworks.torch import private
from opwright.frameworks.torch.convert import to_torch
from opwright.shapes import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opwright.rules.base import Rule


def run_fake(rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what the fake returns, with a `FakeArray` for each tensor.

    Raises
    ------
    UnsupportedError
        If a size is symbolic: the body would get a plain one.
    """
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    own = any(one.framework == "torch" for one in _fakes([*args, *kwargs.values()]))
    context = _Context(current_ctx() or FakeContext(), ShapeEnv())
    with FakeTensorMode(shape_env=context.env, allow_non_fake_inputs=not own):
        given = [_tensor(rule, value) for value in args]
        named = {name: _tensor(rule, value) for name, value in kwargs.items()}
        contexts = entered_ctx(context, computing()), private.fake_context(lambda: context)
        with contexts[0], contexts[1], private.below_autograd():  # as it runs in torch's dispatcher
            out = rule.fn(*given, **named)
    return _fake(out, context.sizes)


def _fakes(value: Any) -> Iterator[FakeArray]:
    if isinstance(value, FakeArray):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _fakes(one)


def _tensor(rule: Rule, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_tensor(rule, one) for one in value)
    if not isinstance(value, FakeArray):
        return value
    if not all(isinstance(size, int) for size in value.shape):
        raise UnsupportedError(
            layout(
                "a fake of flavour torch runs on FakeTensors of known sizes outside torch",
                got=f"shape {show(value.shape)}",
                registered=rule.source,
                fix="write it with opwright.empty_like and opwright.empty, for any framework",
            )
        )
    return torch.empty(value.shape, dtype=to_torch("ScalarType", value.dtype), device=_device(value.device))


def _device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError:  # JAX has devices that torch has no word for
        return torch.device("meta")


def _fake(value: Any, sizes: Mapping[Any, Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_fake(one, sizes) for one in value)
    if isinstance(value, torch.Tensor):
        return FakeArray(tuple(_size(one, sizes) for one in value.shape), value.dtype, value.device)
    return value


def _size(size: Any, sizes: Mapping[Any, Any]) -> Any:
    """Return a size of torch's as the caller's: the expression is computed with the caller's own sizes."""
    if isinstance(size, int):
        return size
    import sympy

    functions: dict[str, Any] = {
        "FloorDiv": lambda a, b: a // b, "Mod": lambda a, b: a % b, "PythonMod": lambda a, b: a % b,
    }  # fmt: skip
    compute = sympy.lambdify(list(sizes), size.node.expr, modules=[functions])
    return compute(*sizes.values())


@final
class _Context(FakeContextBase):
    """What ``get_ctx()`` returns in the body, torch's own function of that name too."""

    def __init__(self, outer: Any, env: Any) -> None:
        self._outer = outer
        self.env = env
        self.sizes: dict[Any, Any] = {}

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:  # noqa: A002  (torch's names)
        """Return a ``SymInt`` for the size that the caller's context makes, or raise as that does."""
        check_bounds(min, max)
        given = self._outer.new_dynamic_size(min=min, max=max)
        size = self.env.create_unbacked_symint()
        torch._check(size >= min)  # noqa: SLF001  (documented)
        if max is not None:
            torch._check(size <= max)  # noqa: SLF001
        self.sizes[size.node.expr] = given
        return size

    def empty(self, shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
        """Return an output of an operator without array arguments."""
        return torch.empty(
            shape,
            dtype=None if dtype is None else to_torch("ScalarType", dtype),
            device=None if device is None else to_torch("Device", device),
        )
