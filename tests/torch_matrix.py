"""The matrix of torch: kinds of operators, transforms, and what each of their cells must be.

A cell is *right*, compared with built-in operations, or *raises* with a text. ``test_conformance.py`` runs it,
and the documentation prints it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import opwright as ow

Fn = Callable[[torch.Tensor], torch.Tensor]
NAMESPACE = "conformance"

FORMS: dict[str, Callable[[Fn], Fn]] = {
    "sum": lambda f: f,
    "product": lambda f: lambda y: f(y) * y,
    "three": lambda f: lambda y: f(y) * y * y,
}


# ------------------------------------------------------------------------------------------- operator kinds


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
    kind(optional, lambda op: lambda x: op(None, x, x) + op(None, x), lambda x: torch.sin(x) * x + torch.sin(x))


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


# ---------------------------------------------------------------------------------------------- transforms


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
enter("jacfwd_of_jacfwd", lambda f, x: jacfwd(jacfwd(total(f)))(x), "first", "second", "forward", "forward_twice")
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
enter("vmap_of_vmap", lambda f, x: vmap(vmap(f, in_dims=1), in_dims=1)(torch.stack([x, 2 * x])[None].repeat(4, 1, 1)))
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


_plain = False  # whether transforms run without a compiler


@contextmanager
def plain() -> Iterator[None]:
    """Run compiled and exported transforms without compiling: what the built-in functions are compared in."""
    global _plain
    _plain = True
    try:
        yield
    finally:
        _plain = False


def compiled(f: Any, **options: Any) -> Any:
    if _plain:
        return f
    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, **{"backend": "aot_eager", **options})


@transform(slow=True)
def compile_forward(f: Fn, x: torch.Tensor) -> Any:
    return compiled(f)(x)


@transform("first", slow=True)
def compile_backward(f: Fn, x: torch.Tensor) -> Any:
    y = leaf(x)
    out = compiled(f)(y)
    out.sum().backward()
    return out.detach(), y.grad


@transform("first", slow=True)
def compile_dynamic(f: Fn, x: torch.Tensor) -> Any:
    g = compiled(f, dynamic=True)
    found = []
    for size in (3, 5, 7):
        y = torch.linspace(0.1, 1.0, size, dtype=x.dtype).requires_grad_()
        g(y).sum().backward()
        found.append(y.grad)
    return tuple(found)


@transform("first", slow=True)
def compile_whole_step(f: Fn, x: torch.Tensor) -> Any:
    return compiled(lambda y: grad(total(f))(y))(x)


@transform("first", slow=True)
def compile_vmap_of_grad(f: Fn, x: torch.Tensor) -> Any:
    return compiled(lambda y: vmap(grad(total(f)))(y))(torch.stack([x, 2 * x]))


@transform(slow=True)
def compile_vmap(f: Fn, x: torch.Tensor) -> Any:
    return compiled(lambda y: vmap(f)(y))(torch.stack([x, 2 * x]))


@transform("first", "second", "forward", slow=True)
def compile_jvp(f: Fn, x: torch.Tensor) -> Any:
    return compiled(lambda y: jvp(f, (y,), (TANGENT,)))(x)


@transform("first", "second", "forward", "forward_twice", slow=True)
def compile_jacfwd_of_jacfwd(f: Fn, x: torch.Tensor) -> Any:
    return compiled(lambda y: jacfwd(jacfwd(total(f)))(y))(x)


@transform("first", "second", "forward", slow=True)
def compile_hessian(f: Fn, x: torch.Tensor) -> Any:
    return compiled(lambda y: hessian(total(f))(y))(x)


@transform("first", "second", slow=True)
def compile_grad_of_grad(f: Fn, x: torch.Tensor) -> Any:
    return compiled(lambda y: grad(total(grad(total(f))))(y))(x)


@transform("first", "second", slow=True)
def compile_jacrev_of_jacrev(f: Fn, x: torch.Tensor) -> Any:
    return compiled(lambda y: jacrev(jacrev(f))(y))(x)


class _Module(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def _exported(f: Fn, x: torch.Tensor, *, strict: bool) -> Any:
    import io

    if _plain:
        return f(2 * x), f(torch.ones(5, dtype=x.dtype))
    size = torch.export.Dim("size", min=2, max=64)
    program = torch.export.export(_Module(f), (x,), strict=strict, dynamic_shapes=({0: size},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    module = torch.export.load(file).module()
    return module(2 * x), module(torch.ones(5, dtype=x.dtype))


@transform(slow=True)
def export_strict(f: Fn, x: torch.Tensor) -> Any:
    return _exported(f, x, strict=True)


@transform(slow=True)
def export_not_strict(f: Fn, x: torch.Tensor) -> Any:
    return _exported(f, x, strict=False)


@transform("first", slow=True, inductor=True)
def inductor_backward(f: Fn, x: torch.Tensor) -> Any:
    y = leaf(x)
    out = compiled(f, backend="inductor")(y)
    out.sum().backward()
    return out.detach(), y.grad


@transform("first", slow=True, inductor=True)
def inductor_grad(f: Fn, x: torch.Tensor) -> Any:
    return compiled(lambda y: grad(total(f))(y), backend="inductor")(x)


X = torch.tensor([0.4, 1.1, -0.8], dtype=torch.float64)


def expected_error(kind_: Kind, transform_: Transform) -> str | None:
    """Return what the error of a cell says, or None where the cell must be right."""
    for need in transform_.needs:
        if need in kind_.raises:
            return kind_.raises[need]
    return None
