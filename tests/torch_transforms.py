"""Transforms for the matrix of torch: what is done to a function of one tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

from torch_kinds import NAMESPACE, Fn


@dataclass
class Transform:
    """A transform: ``run(f, x)`` returns tensors to compare.

    ``needs`` names what it asks of an operator: ``first`` or ``second`` derivatives, ``forward`` mode,
    ``forward_twice``, ``functionalize``. ``slow`` transforms run in the default run for a few kinds only;
    those that need a C++ compiler say so with ``inductor``.
    """

    name: str
    run: Callable[[Fn, torch.Tensor], Any]
    needs: tuple[str, ...] = ()
    slow: bool = False
    inductor: bool = False


TRANSFORMS: dict[str, Transform] = {}


def transform(*needs: str, slow: bool = False, inductor: bool = False) -> Callable[[Any], Any]:
    """Enter a function as a transform under its name."""

    def enter(run: Any) -> Any:
        TRANSFORMS[run.__name__] = Transform(run.__name__, run, needs, slow, inductor)
        return run

    return enter


def enter(name: str, run: Any, *needs: str, slow: bool = False) -> None:
    TRANSFORMS[name] = Transform(name, run, needs, slow)


def total(f: Fn) -> Fn:
    """Return the sum of what ``f`` returns."""
    return lambda x: f(x).sum()


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.clone().requires_grad_()


TANGENT = torch.tensor([0.3, -1.2, 0.7], dtype=torch.float64)

enter("forward", lambda f, x: f(x))
enter("grad", lambda f, x: grad(total(f))(x), "first")
enter("grad_of_grad", lambda f, x: grad(total(grad(total(f))))(x), "first", "second")
enter("grad_three_times", lambda f, x: grad(total(grad(total(grad(total(f))))))(x), "first", "second")
enter("jacrev", lambda f, x: jacrev(f)(x), "first")
enter("jacfwd", lambda f, x: jacfwd(f)(x), "first", "second", "forward")
enter("hessian", lambda f, x: hessian(total(f))(x), "first", "second", "forward")
enter(
    "jacfwd_of_jacfwd",
    lambda f, x: jacfwd(jacfwd(total(f)))(x),
    "first",
    "second",
    "forward",
    "forward_twice",
)
enter("jacrev_of_jacrev", lambda f, x: jacrev(jacrev(f))(x), "first", "second")
enter("jacrev_of_jacfwd", lambda f, x: jacrev(jacfwd(f))(x), "first", "second", "forward")
enter(
    "jacfwd_three_times",
    lambda f, x: jacfwd(jacfwd(jacfwd(total(f))))(x),
    "first",
    "second",
    "forward",
    "forward_twice",
)
enter("jacrev_three_times", lambda f, x: jacrev(jacrev(jacrev(total(f))))(x), "first", "second")
enter("jvp", lambda f, x: jvp(f, (x,), (TANGENT,)), "first", "second", "forward")
enter("jvp_of_grad", lambda f, x: jvp(grad(total(f)), (x,), (TANGENT,)), "first", "second", "forward")
enter(
    "grad_of_jvp",
    lambda f, x: grad(lambda y: jvp(f, (y,), (TANGENT,))[1].sum())(x),
    "first",
    "second",
    "forward",
)
enter("linearize", lambda f, x: linearize(f, x)[1](TANGENT), "first", "second", "forward", "linearize")
enter("vmap", lambda f, x: vmap(f)(torch.stack([x, 2 * x])))
enter("vmap_last", lambda f, x: vmap(f, in_dims=1, out_dims=1)(torch.stack([x, 2 * x], 1)))
enter("vmap_negative", lambda f, x: vmap(f, in_dims=-1)(torch.stack([x, 2 * x], 1)))
enter(
    "vmap_of_vmap",
    lambda f, x: vmap(vmap(f, in_dims=1), in_dims=1)(torch.stack([x, 2 * x])[None].repeat(4, 1, 1)),
)
enter("vmap_of_grad", lambda f, x: vmap(grad(total(f)))(torch.stack([x, 2 * x])), "first")
enter(
    "vmap_of_vmap_of_grad",
    lambda f, x: vmap(vmap(grad(total(f))))(torch.stack([x, 2 * x])[None].repeat(2, 1, 1)),
    "first",
)
enter("grad_of_vmap", lambda f, x: grad(lambda y: vmap(f)(y).sum())(torch.stack([x, 2 * x])), "first")
enter(
    "vmap_of_jvp",
    lambda f, x: vmap(lambda y: jvp(f, (y,), (TANGENT,))[1])(torch.stack([x, 2 * x])),
    "first",
    "second",
    "forward",
)
enter(
    "jvp_of_vmap",
    lambda f, x: jvp(vmap(f), (torch.stack([x, 2 * x]),), (torch.stack([TANGENT, TANGENT]),)),
    "first",
    "second",
    "forward",
)


@transform()
def no_grad(f: Fn, x: torch.Tensor) -> Any:
    with torch.no_grad():
        out = f(leaf(x))
    assert not out.requires_grad
    return out


@transform()
def inference_mode(f: Fn, x: torch.Tensor) -> Any:
    with torch.inference_mode():
        out = f(x.clone())
        assert out.is_inference()
        return out.clone()


@transform("first")
def backward(f: Fn, x: torch.Tensor) -> Any:
    y = leaf(x)
    out = f(y)
    out.sum().backward()
    return out.detach(), y.grad


@transform("first", "second")
def double_backward(f: Fn, x: torch.Tensor) -> Any:
    y = leaf(x)
    (first,) = torch.autograd.grad(f(y).sum(), y, create_graph=True)
    return torch.autograd.grad((first * first).sum(), y)


@transform("first", "second")
def triple_backward(f: Fn, x: torch.Tensor) -> Any:
    y = leaf(x)
    (first,) = torch.autograd.grad(f(y).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), y, create_graph=True)
    return torch.autograd.grad((second * second).sum(), y)


@transform("first")
def vjp_(f: Fn, x: torch.Tensor) -> Any:
    out, pull = vjp(f, x)
    return out, pull(TANGENT)


@transform("first", "second", "forward")
def dual_tensors(f: Fn, x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, TANGENT))))


@transform("first", "second", "forward")
def dual_and_backward(f: Fn, x: torch.Tensor) -> Any:
    y = leaf(x)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(y, TANGENT))).tangent
        tangent.sum().backward()
    return y.grad


@transform("first", "second", "forward")
def jvp_with_outer_grad(f: Fn, x: torch.Tensor) -> Any:
    y = leaf(x)
    jvp(f, (y,), (TANGENT,))[1].sum().backward()
    return y.grad


@transform("functionalize")
def functionalized(f: Fn, x: torch.Tensor) -> Any:
    return functionalize(f)(x)


@transform()
def fake_tensors(f: Fn, x: torch.Tensor) -> Any:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = f(mode.from_tensor(x))
    return torch.tensor(out.shape), torch.tensor(out.stride())


@transform()
def meta(f: Fn, x: torch.Tensor) -> Any:
    out = f(x.to("meta"))
    return torch.tensor(out.shape), torch.tensor(out.stride())


@transform()
def traced_by_make_fx(f: Fn, x: torch.Tensor) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(f, tracing_mode="symbolic")(x)(2 * x)


@transform("first")
def make_fx_of_grad(f: Fn, x: torch.Tensor) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(grad(total(f)))(x)(2 * x)


@transform("first", "second", "forward")
def make_fx_of_jvp(f: Fn, x: torch.Tensor) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda y: jvp(f, (y,), (TANGENT,)))(x)(2 * x)


@transform("first")
def checkpoint(f: Fn, x: torch.Tensor) -> Any:
    from torch.utils.checkpoint import checkpoint as run

    y = leaf(x)
    run(f, y, use_reentrant=False).sum().backward()
    return y.grad


@transform("first")
def checkpoint_reentrant(f: Fn, x: torch.Tensor) -> Any:
    from torch.utils.checkpoint import checkpoint as run

    y = leaf(x)
    run(f, y, use_reentrant=True).sum().backward()
    return y.grad


@transform("first", "save_on_checkpoint")
def selective_checkpoint(f: Fn, x: torch.Tensor) -> Any:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    from torch.utils.checkpoint import checkpoint as run

    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op.namespace == NAMESPACE else CheckpointPolicy.PREFER_RECOMPUTE

    y = leaf(x)
    contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
    run(f, y, use_reentrant=False, context_fn=contexts).sum().backward()
    return y.grad


@transform()
def jit_trace(f: Fn, x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(f, (x,), check_trace=False)
    return traced(2 * x)


@transform("first")
def saved_tensor_hooks(f: Fn, x: torch.Tensor) -> Any:
    y = leaf(x)
    with torch.autograd.graph.save_on_cpu():
        out = f(y)
    out.sum().backward()
    return y.grad


@transform("first")
def anomaly_mode(f: Fn, x: torch.Tensor) -> Any:
    y = leaf(x)
    with torch.autograd.detect_anomaly(check_nan=True):
        f(y).sum().backward()
    return y.grad


@transform("first", slow=True)
def compiled_autograd(f: Fn, x: torch.Tensor) -> Any:
    from torch._dynamo import compiled_autograd as ca

    y = leaf(x)
    out = f(y).sum()
    with ca._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        out.backward()
    return y.grad


@transform("first")
def deep_copied_module(f: Fn, x: torch.Tensor) -> Any:
    import copy

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(x.clone())
            self.function = f

        def forward(self, y):
            return self.function(self.weight * y)

    module = copy.deepcopy(Module())
    module(x).sum().backward()
    return module.weight.grad


class Logged(torch.Tensor):
    """A tensor subclass that unwraps and wraps again."""

    @staticmethod
    def __new__(cls, elem):
        return torch.Tensor._make_wrapper_subclass(
            cls, elem.size(), dtype=elem.dtype, device=elem.device, requires_grad=elem.requires_grad
        )

    def __init__(self, elem):
        self.elem = elem

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        unwrap = lambda t: t.elem if isinstance(t, Logged) else t  # noqa: E731
        args, kwargs = torch.utils._pytree.tree_map(unwrap, (args, kwargs or {}))
        out = func(*args, **kwargs)
        return torch.utils._pytree.tree_map(lambda t: Logged(t) if isinstance(t, torch.Tensor) else t, out)


@transform("first")
def tensor_subclass(f: Fn, x: torch.Tensor) -> Any:
    y = Logged(x.clone()).requires_grad_()
    f(y).sum().backward()
    return y.grad.elem
