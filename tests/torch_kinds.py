"""Kinds of operators for the matrix of torch, each with what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

import opwright as ow

Fn = Callable[[torch.Tensor], torch.Tensor]
NAMESPACE = "conformance"


@dataclass
class Kind:
    """A kind of operator: how a function of one tensor is made of it, and of built-in operations.

    ``raises`` has, for each group of transforms that cannot work, what the error says; with ``?`` in front,
    some of the group are right.
    """

    name: str
    make: Callable[[Callable[..., Any]], Fn]
    reference: Fn
    op: Any
    raises: dict[str, str] = field(default_factory=dict)

    def function(self, route: str) -> Fn:
        """Return the function through the Operator or through ``torch.ops``."""
        return self.make(self.op if route == "operator" else torch_op(self.op))


KINDS: dict[str, Kind] = {}


def torch_op(op: Any) -> Any:
    """Return torch's own object for an operator."""
    namespace, _, name = op.name.partition("::")
    return getattr(getattr(torch.ops, namespace), name)


def kind(op: Any, make: Callable[[Any], Fn], reference: Fn, **raises: str) -> None:
    """Enter a kind under the operator's name."""
    name = op.name.partition("::")[2]
    KINDS[name] = Kind(name, make, reference, op, raises)


NO_FORMULA = "no autograd formula"
SECOND = "second derivative of .*no autograd formula"


def _sin(name: str, **options: Any) -> Any:
    @ow.custom_op(f"{NAMESPACE}::{name}", mutates_args=(), **options)
    def sin(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
        return torch.sin(x) * k

    sin.register_fake(lambda x, k=2.0: ow.empty_like(x))
    return sin


def _setup(ctx, inputs, output):
    x, ctx.k = inputs
    ctx.save_for_backward(x)


def _sin_backward(ctx, g):
    (x,) = ctx.saved_tensors
    return g * torch.cos(x) * ctx.k, None


def _define_functional() -> None:
    @ow.custom_op(f"{NAMESPACE}::numpy_sin", mutates_args=())
    def numpy_sin(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        return np.sin(x) * k

    numpy_sin.register_fake(lambda x, k=2.0: ow.empty_like(x))
    numpy_sin.register_autograd(_sin_backward, setup_context=_setup)
    numpy_sin.register_vmap(lambda info, in_dims, x, k: (numpy_sin(x, k), in_dims[0]))
    kind(numpy_sin, lambda op: lambda x: op(x, 3.0), lambda x: torch.sin(x) * 3.0)

    loop = _sin("no_vmap")
    loop.register_autograd(_sin_backward, setup_context=_setup)
    kind(loop, lambda op: lambda x: op(x), lambda x: torch.sin(x) * 2.0)

    own = _sin("own_jvp")
    own.register_autograd(_sin_backward, setup_context=_setup)
    own.register_jvp(lambda ctx, t, _k: t * torch.cos(ctx.saved_tensors[0]) * ctx.k)
    own.register_vmap(lambda info, in_dims, x, k: (own(x, k), in_dims[0]))
    kind(own, lambda op: lambda x: op(x, k=3.0), lambda x: torch.sin(x) * 3.0)

    saved = _sin("saves_output")

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return {"x": g * torch.cos(x) * 2.0 + 0.0 * out}

    saved.register_autograd(backward, setup_context=setup)
    kind(saved, lambda op: lambda x: op(x), lambda x: torch.sin(x) * 2.0)


def _define_keyword_only() -> None:
    @ow.custom_op(f"{NAMESPACE}::keyword_only", mutates_args=())
    def keyword_only(x: torch.Tensor, *, weight: torch.Tensor, k: float = 2.0) -> torch.Tensor:
        return torch.sin(x) * weight * k

    keyword_only.register_fake(lambda x, *, weight, k=2.0: ow.empty_like(x))

    def setup(ctx, inputs, keyword_only_inputs, output):
        ctx.save_for_backward(*inputs, keyword_only_inputs["weight"])
        ctx.k = keyword_only_inputs["k"]

    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return {"x": g * torch.cos(x) * weight * ctx.k, "weight": g * torch.sin(x) * ctx.k}

    keyword_only.register_autograd(backward, setup_context=setup)
    kind(
        keyword_only,
        lambda op: lambda x: op(x, weight=x * x, k=3.0),
        lambda x: torch.sin(x) * x * x * 3.0,
    )


def _define_several() -> None:
    @ow.custom_op(f"{NAMESPACE}::two_outputs", mutates_args=())
    def two_outputs(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.sin(x) * y, x * y

    two_outputs.register_fake(lambda x, y: (ow.empty_like(x), ow.empty_like(x)))

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        return g * torch.cos(x) * y + h * y, g * torch.sin(x) + h * x

    def rule(info, in_dims, x, y):
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.expand(info.batch_size, *x.shape)
        y = y.movedim(in_dims[1], 0) if in_dims[1] is not None else y.expand(info.batch_size, *y.shape)
        return two_outputs(x, y), (0, 0)

    two_outputs.register_autograd(backward, setup_context=setup)
    two_outputs.register_vmap(rule)

    def make(op):
        def f(x):
            a, b = op(x, x * x)
            return a + 2.0 * b

        return f

    kind(two_outputs, make, lambda x: torch.sin(x) * x * x + 2.0 * x * x * x)
    kind_of_one = Kind(
        "unused_output",
        lambda op: lambda x: op(x, x * x)[0],
        lambda x: torch.sin(x) * x * x,
        two_outputs,
    )
    KINDS["unused_output"] = kind_of_one


def _define_lists() -> None:
    @ow.custom_op(f"{NAMESPACE}::lists", mutates_args=())
    def lists(xs: list[torch.Tensor], k: float) -> list[torch.Tensor]:
        return [torch.sin(x) * k for x in xs]

    lists.register_fake(lambda xs, k: [ow.empty_like(x) for x in xs])

    def setup(ctx, inputs, output):
        xs, ctx.k = inputs
        ctx.save_for_backward(*xs)

    def backward(ctx, gs):
        return [g * torch.cos(x) * ctx.k for g, x in zip(gs, ctx.saved_tensors, strict=True)], None

    lists.register_autograd(backward, setup_context=setup)

    def make(op):
        def f(x):
            a, b = op([x, x * x], 2.0)
            return a * b

        return f

    kind(lists, make, lambda x: torch.sin(x) * 2.0 * torch.sin(x * x) * 2.0)


def _define_optional() -> None:
    @ow.custom_op(f"{NAMESPACE}::optional", mutates_args=())
    def optional(x: torch.Tensor | None, y: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        return torch.sin(y) * (1.0 if z is None else z)

    optional.register_fake(lambda x, y, z=None: ow.empty_like(y))

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[1], inputs[2])

    def backward(ctx, g):
        y, z = ctx.saved_tensors
        return None, g * torch.cos(y) * (1.0 if z is None else z), None if z is None else g * torch.sin(y)

    optional.register_autograd(backward, setup_context=setup)
    kind(
        optional, lambda op: lambda x: op(None, x, x) + op(None, x), lambda x: torch.sin(x) * x + torch.sin(x)
    )


def _define_mutating() -> None:
    @ow.custom_op(f"{NAMESPACE}::mutating", mutates_args={"x"})
    def mutating(x: np.ndarray, y: np.ndarray) -> None:
        x *= y

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    mutating.register_autograd(backward, setup_context=setup)

    def make(op):
        def f(x):
            y = torch.sin(x)
            op(y, x)
            return y

        return f

    kind(
        mutating,
        make,
        lambda x: torch.sin(x) * x,
        functionalize="Found a custom \\(non-ATen\\) operator whose output has alias annotations",
        forward_twice="?cannot be changed in place",
        linearize="torch would lose the mutation",
        save_on_checkpoint="on recomputation the mutation would be left out",
    )

    @ow.custom_op(f"{NAMESPACE}::inplace_", mutates_args={"x"}, tags=("inplace",))
    def inplace_(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.mul_(y)

    inplace_.register_autograd(backward, setup_context=setup)
    kind(
        inplace_,
        lambda op: lambda x: op(torch.sin(x), x),
        lambda x: torch.sin(x) * x,
        functionalize="Found a custom \\(non-ATen\\) operator whose output has alias annotations",
        forward_twice="?cannot be changed in place",
        save_on_checkpoint="Tensor cached during selective activation checkpoint has been mutated",
    )


def _define_first_order() -> None:
    once = _sin("once")
    once.register_autograd(once_differentiable(_sin_backward), setup_context=_setup)
    kind(once, lambda op: lambda x: op(x), lambda x: torch.sin(x) * 2.0, second=SECOND)

    by_numpy = _sin("numpy_backward")

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    def backward(ctx, g: np.ndarray):
        (x,) = ctx.saved_tensors
        return g * np.cos(x) * 2.0, None

    by_numpy.register_autograd(backward, setup_context=setup)
    kind(by_numpy, lambda op: lambda x: op(x), lambda x: torch.sin(x) * 2.0, second=SECOND)


def _define_without_rule() -> None:
    kind(
        _sin("no_rule"),
        lambda op: lambda x: op(x),
        lambda x: torch.sin(x) * 2.0,
        first=NO_FORMULA,
        second=NO_FORMULA,
    )
    library = ow.Library(NAMESPACE, "FRAGMENT")
    LIBRARIES.append(library)
    library.define("defined(Tensor x) -> Tensor")
    library.impl("defined", lambda x: torch.sin(x) * 2.0, "CPU")
    ow.register_fake(f"{NAMESPACE}::defined", lambda x: ow.empty_like(x))
    kind(
        ow.ops.conformance.defined.default,
        lambda op: lambda x: op(x),
        lambda x: torch.sin(x) * 2.0,
        first=NO_FORMULA,
        second=NO_FORMULA,
    )
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: torch.sin(x) * 2.0, "CompositeImplicitAutograd")
    kind(ow.ops.conformance.composite.default, lambda op: lambda x: op(x), lambda x: torch.sin(x) * 2.0)
    constant = _sin("constant", non_differentiable=True)
    kind(constant, lambda op: lambda x: op(x) + x, lambda x: (torch.sin(x) * 2.0).detach() + x)


LIBRARIES: list[Any] = []

for _define in (
    _define_functional,
    _define_keyword_only,
    _define_several,
    _define_lists,
    _define_optional,
    _define_mutating,
    _define_first_order,
    _define_without_rule,
):
    _define()
