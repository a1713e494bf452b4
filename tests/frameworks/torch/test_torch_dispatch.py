"""Rules for dispatch modes and tensor subclasses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import opwright as ow

NS = "torch_dispatching"


class Plain(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"nothing for {func}")


@pytest.fixture(params=["operator", "torch.ops"])
def op(request):
    @ow.custom_op(f"{NS}::sine", mutates_args=())
    def sine(x: Tensor) -> Tensor:
        return x.sin()

    sine.route = sine if request.param == "operator" else torch.ops.torch_dispatching.sine
    return sine


def test_a_mode(op):
    @ow.register_torch_dispatch(op, Plain)
    def rule(mode, func, types, args, kwargs):
        assert isinstance(mode, Plain)
        assert func is torch.ops.torch_dispatching.sine.default
        return func(*args, **kwargs) * 10

    x = torch.ones(2)
    with Plain():
        assert torch.allclose(op.route(x), 10 * x.sin())
    assert torch.allclose(op.route(x), x.sin())
    handle = ow.register_torch_dispatch(op, Plain, lambda mode, func, types, args, kwargs: torch.zeros(1))
    with Plain():
        assert op.route(x).item() == 0
        handle.destroy()
        assert torch.allclose(op.route(x), 10 * x.sin())


@pytest.mark.parametrize("with_class", [True, False])
def test_a_tensor_subclass(op, with_class):
    x = Wrapped(torch.ones(2))
    with pytest.raises((NotImplementedError, TypeError)):
        op.route(x)
    if with_class:
        handle = ow.register_torch_dispatch(
            op, Wrapped, lambda cls, func, types, args, kwargs: func(args[0].inner) + 1
        )
    else:
        handle = ow.register_torch_dispatch(
            op, Wrapped, lambda func, types, args, kwargs: func(args[0].inner) + 1
        )
    assert torch.allclose(op.route(x), torch.ones(2).sin() + 1)
    handle.destroy()
    with pytest.raises((NotImplementedError, TypeError)):
        op.route(x)
