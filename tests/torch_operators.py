"""Operators of every kind, each of a new name, whose kernels note which way they were reached."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

import opwright as ow

_numbers = itertools.count()


def name_of(kind):
    """Return a name that no operator has had."""
    return f"situations::{kind}_{next(_numbers)}"


class Path:
    """Records which way a kernel was reached: autograd's keys are excluded below torch's dispatcher.

    In inference mode they always are, so that it cannot tell.
    """

    def __init__(self):
        self.taken = []

    def note(self):
        core = torch._C
        below = core._dispatch_tls_is_dispatch_key_excluded(core.DispatchKey.AutogradFunctionality)
        self.taken.append("dispatcher" if below else "direct")

    def of(self, call):
        """Return the ways that the kernel was reached while ``call`` ran."""
        before = len(self.taken)
        call()
        return self.taken[before:]


def with_rule(path=None):
    """x * sin(x) * k, with a backward."""
    path = path or Path()

    @ow.custom_op(name_of("with_rule"), mutates_args=())
    def op(x: Tensor, k: float = 2.0) -> Tensor:
        path.note()
        assert not torch.is_grad_enabled()
        return x * torch.sin(x) * k

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    @op.register_autograd(setup_context=setup_context)
    def _(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (torch.sin(x) + x * torch.cos(x)).conj() * ctx.k, None

    @op.register_fake
    def _(x, k=2.0):
        return torch.empty_like(x)

    @op.register_vmap
    def _(info, in_dims, x, k=2.0):
        return op(x, k), in_dims[0]

    return op


def without_rule(path=None):
    """x * 3, with a fake only."""
    path = path or Path()

    @ow.custom_op(name_of("without_rule"), mutates_args=())
    def op(x: Tensor) -> Tensor:
        path.note()
        return x * 3

    @op.register_fake
    def _(x):
        return torch.empty_like(x)

    return op


def constant(path=None):
    """The sign, declared to have no gradient."""
    path = path or Path()

    @ow.custom_op(name_of("constant"), mutates_args=(), non_differentiable=True)
    def op(x: Tensor) -> Tensor:
        path.note()
        return torch.sgn(x)

    op.register_fake(torch.empty_like)
    return op


def of_numpy(path=None):
    """x + 1, computed by NumPy, with a backward."""
    path = path or Path()

    @ow.custom_op(name_of("of_numpy"), mutates_args=())
    def op(x: np.ndarray) -> np.ndarray:
        path.note()
        return x + 1

    @op.register_autograd
    def _(ctx, grad):
        return grad * 1

    op.register_fake(ow.empty_like)
    return op


def of_any(path=None):
    """x * x, for arrays of any library, with a backward."""
    path = path or Path()

    @ow.custom_op(name_of("of_any"), mutates_args=())
    def op(x: ow.Array) -> ow.Array:
        path.note()
        return ow.array_namespace(x).multiply(x, x)

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @op.register_autograd(setup_context=setup_context)
    def _(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0].conj()

    op.register_fake(ow.empty_like)
    return op


def closed_over(path=None):
    """x * weight of a parameter that is no argument."""
    path = path or Path()
    weight = torch.nn.Parameter(torch.tensor(2.0))

    @ow.custom_op(name_of("closed_over"), mutates_args=())
    def op(x: Tensor) -> Tensor:
        path.note()
        return x * weight

    op.register_fake(torch.empty_like)
    return op


def cast(path=None):
    """x + x, in bfloat16 under autocast."""
    path = path or Path()

    @ow.custom_op(name_of("cast"), mutates_args=())
    def op(x: Tensor) -> Tensor:
        path.note()
        return x + x

    @op.register_autograd
    def _(ctx, grad):
        return grad + grad

    op.register_fake(torch.empty_like)
    op.register_autocast("cpu", torch.bfloat16)
    return op


def mutating(path=None):
    """Doubles x in place, with a backward; the call returns x."""
    path = path or Path()

    @ow.custom_op(name_of("mutating"), mutates_args=("x",))
    def op(x: Tensor) -> None:
        path.note()
        x.mul_(2)

    @op.register_autograd
    def _(ctx, grad):
        return grad * 2

    @op.register_fake
    def _(x):
        return None

    return op


def mutating_numpy(path=None):
    """Negates x in place, with NumPy."""
    path = path or Path()

    @ow.custom_op(name_of("mutating_numpy"), mutates_args=("x",))
    def op(x: np.ndarray) -> None:
        path.note()
        np.negative(x, out=x)

    @op.register_fake
    def _(x):
        return None

    return op


def implicit(path=None):
    """x * x + 1, of torch's own operators, which gradients go through."""
    path = path or Path()
    name = name_of("implicit")
    library = ow.Library("situations", "FRAGMENT")
    library.define(name.partition("::")[2] + "(Tensor x) -> Tensor")

    def kernel(x):
        path.note()
        return x * x + 1

    library.impl(name, kernel, "CompositeImplicitAutograd")
    _kept.append(library)
    return getattr(ow.ops.situations, name.partition("::")[2]).default


_kept = []

KINDS = [
    implicit,
    with_rule,
    without_rule,
    constant,
    of_numpy,
    of_any,
    closed_over,
    cast,
    mutating,
    mutating_numpy,
]
