"""Operators of PyTorch's arrays: right ones, and wrong ones by what is found.

``WRONG`` has a row for each: the operator, its sample, the ids, words that name the cause, and the level.
"""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

RIGHT = {}
WRONG = {}
normal = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 4)))
vector = torch.tensor([0.5, 1.5, -2.0], dtype=torch.float64)


def define(fn, namespace, mutates_args=(), rules=(), **options):
    operator = ow.custom_op(f"{namespace}::{fn.__name__}", fn, mutates_args=mutates_args, **options)
    for kind, *rule in rules:
        more = rule.pop() if isinstance(rule[-1], dict) else {}
        getattr(operator, f"register_{kind}")(*rule, **more)
    return operator


def right(*args, **options):
    def decorate(fn):
        RIGHT[fn.__name__] = (define(fn, "right_torch", **options), args)
        return RIGHT[fn.__name__][0]

    return decorate


def wrong(ids, words, *args, level="default", **options):
    def decorate(fn):
        operator = define(fn, "wrong_torch", **options)
        WRONG[fn.__name__] = (operator, args, set(ids.split()), words, level)
        return operator

    return decorate


def like(x, *rest):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def save(ctx, inputs, output):
    ctx.save_for_backward(*[one for one in inputs if isinstance(one, torch.Tensor)])


def autograd(backward, setup_context=save):
    return ("autograd", backward, {"setup_context": setup_context})


def double_x(ctx, grad):
    return 2 * grad * ctx.saved_tensors[0]


def square(name, ids, words, backward, setup_context=save, more_rules=(), **options):
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous() * x.contiguous()

    fn.__name__ = name
    rules = [("fake", like), autograd(backward, setup_context), *more_rules]
    if ids:
        wrong(ids, words, normal, rules=rules, **options)(fn)
    else:
        right(normal, rules=rules, **options)(fn)


# --------------------------------------------------------------------------------------------------- right


square("saved", "", "", double_x)


@right(
    normal,
    normal,
    rules=[
        ("fake", lambda x, y: x.new_empty(torch.broadcast_shapes(x.shape, y.shape))),
        autograd(lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0])),
    ],
)
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).contiguous()


def opaque(ctx, grad):
    (x,) = ctx.saved_tensors
    return torch.from_numpy(2 * grad.detach().numpy() * x.detach().numpy())


square("once", "", "", torch.autograd.function.once_differentiable(double_x))


@right(normal, normal[0], rules=[("fake", lambda x, y: (like(x), like(y)))])
def two_outputs(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x + 1).contiguous(), (y * 2).contiguous()


@right(normal.clone(), 2.0, normal.clone(), mutates_args=("x", "y"))
def add_to_both(x: torch.Tensor, k: float, y: torch.Tensor) -> None:
    x.add_(k)
    y.mul_(k)


def matmul_fake(x, w):
    torch._check(x.dtype == w.dtype, lambda: "dtypes do not fit")
    torch._check(x.ndim == w.ndim == 2, lambda: "numbers of axes do not fit")
    torch._check(x.shape[1] == w.shape[0], lambda: "sizes do not fit")
    return x.new_empty((x.shape[0], w.shape[1]))


@right(
    normal,
    normal.T.contiguous(),
    rules=[
        ("fake", matmul_fake),
        autograd(lambda ctx, g: (g @ ctx.saved_tensors[1].T, ctx.saved_tensors[0].T @ g)),
        ("autocast", "cpu", torch.bfloat16),
    ],
)
def matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


@right(torch.tensor([1.0, 0.0, 2.0]))
def nonzero(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero()


@nonzero.register_fake
def _(x):
    return x.new_empty((ow.get_ctx().new_dynamic_size(), x.ndim), dtype=torch.int64)


# ---------------------------------------------------------------------------------------------------- fake


def _branch(x):
    if x.shape[0] > 2:
        return like(x)
    return x.new_empty(x.shape)


@wrong("OW209", "the fake branches on a size: x.shape[0] > 2", normal, rules=[("fake", _branch)])
def branch_in_the_fake(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous() * 2


@wrong(
    "OW208",
    "the fake makes a number of a size: int(x.shape[0])",
    normal,
    rules=[("fake", lambda x: x.new_empty((int(x.shape[0]), x.shape[1])))],
)
def int_in_the_fake(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous() * 2


# ------------------------------------------------------------------------------------------------ autograd


square("broadcast_gradient", "OW302", "another shape", lambda ctx, g: torch.stack([double_x(ctx, g)] * 2))
square("single_gradient", "OW303", "another dtype", lambda ctx, g: double_x(ctx, g).float())
square("double_gradient", "OW303", "another dtype", lambda ctx, g: double_x(ctx, g).double())


def _stashes_double(ctx, inputs, output):
    save(ctx, inputs, output)
    ctx.twice = inputs[0].detach() * 2


square(
    "constant_intermediate",
    "OW314",
    "the second derivative along x differs",
    lambda ctx, g: g * ctx.twice,
    _stashes_double,
)


def _through_numpy(ctx, grad):
    (x,) = ctx.saved_tensors
    return 2 * grad * x.detach()


square("detaches_what_it_saved", "OW314", "the second derivative along x differs", _through_numpy)


class NoSecond(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, grad, x):
        return 2 * grad * x

    @staticmethod
    def backward(_ctx, _grad):
        raise ValueError("not thought of")


square(
    "raises_when_differentiated",
    "OW315",
    "the backward raises when it is differentiated",
    lambda ctx, g: NoSecond.apply(g, ctx.saved_tensors[0]),
)


def _attribute(ctx, inputs, output):
    ctx.x = inputs[0]


square(
    "keeps_its_input_as_an_attribute",
    "OW316",
    "silently wrong where x changes after the call",
    lambda ctx, g: 2 * g * ctx.x,
    _attribute,
)


weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x):
        return x * self.factor


layer = Scale()


@wrong(
    "OW317", "the kernel takes weight from outside", normal,
    rules=[("fake", like), autograd(lambda ctx, g: g * weight.detach())],
)  # fmt: skip
def closes_over_a_parameter(x: torch.Tensor) -> torch.Tensor:
    return (x * weight).detach().contiguous()


@wrong(
    "OW317", "the kernel takes layer.factor from outside", normal,
    rules=[("fake", like), autograd(lambda ctx, g: g * layer.factor.detach())],
)  # fmt: skip
def closes_over_a_module(x: torch.Tensor) -> torch.Tensor:
    return layer(x).detach().contiguous()


# ------------------------------------------------------------------------------------------------ autocast


@wrong(
    "OW605", "the dtype of the output changes under autocast", normal, normal.T.contiguous(),
    rules=[("fake", lambda x, w: x.new_empty((x.shape[0], w.shape[1])))],
)  # fmt: skip
def follows_autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w)


@wrong("OW605", "the kernel raises under autocast", normal, rules=[("fake", lambda x: x.new_empty(()))])
def raises_under_autocast(x: torch.Tensor) -> torch.Tensor:
    y = torch.mm(x, x.T)
    return torch.dot(y.reshape(-1), torch.ones(y.numel(), dtype=x.dtype))


@wrong(
    "OW604", "the gradient raises under autocast, which casts to float16", normal,
    rules=[
        ("fake", like), ("autocast", "cpu", torch.float16),
        autograd(lambda ctx, g: g * torch.linalg.inv(torch.eye(1, dtype=g.dtype))[0, 0]),
    ],
)  # fmt: skip
def no_half_in_the_backward(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _double_for(dtype):
    def backward(ctx, grad):
        found = 2 * grad * ctx.saved_tensors[0]
        return found.double() if found.dtype == dtype else found

    return backward


square(
    "double_gradient_of_what_is_cast",
    "OW604",
    "the gradient for x under autocast has another dtype than x",
    _double_for(torch.bfloat16),
    more_rules=[("autocast", "cpu", torch.bfloat16)],
)


# -------------------------------------------------------------------------------------- functionalization

lib = ow.Library("wrong_torch", "FRAGMENT")


def two_kernels(ids, words, schema, eager, composite, *args):
    """Define an operator whose composite kernel, which compilers take apart, is another than that for cpu."""
    name = schema.partition("(")[0]
    lib.define(schema)
    lib.impl(name, eager, "CPU")
    lib.impl(name, composite, "CompositeImplicitAutograd")
    WRONG[name] = (getattr(ow.ops.wrong_torch, name).default, args, set(ids.split()), words, "default")


def _adds(x: torch.Tensor) -> None:
    x.add_(1)


def _nothing(x: torch.Tensor) -> None:
    pass


two_kernels(
    "OW705 OW1101 OW802", "the caller's array differs in a program without mutation",
    "adds_only_eagerly(Tensor(a!) x) -> ()", _adds, _nothing, normal.clone(),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------- compile


def _decides(ctx, grad):
    (x,) = ctx.saved_tensors
    if x.sum() > 0:
        return 2 * grad * x
    return 2 * x * grad


square("decides_on_a_value", "OW801", "the backward cannot be compiled", _decides)


def _float_in_setup(ctx, inputs, output):
    save(ctx, inputs, output)
    ctx.largest = float(inputs[0].max())


square("float_in_setup_context", "OW801", "the setup_context cannot be compiled", double_x, _float_in_setup)


def _twice_or_thrice(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous() * (3 if torch.compiler.is_compiling() else 2)


lib.define("twice_or_thrice(Tensor x) -> Tensor")
lib.impl("twice_or_thrice", _twice_or_thrice, "CompositeImplicitAutograd")
WRONG["twice_or_thrice"] = (
    ow.ops.wrong_torch.twice_or_thrice.default,
    (normal,),
    {"OW802"},
    "the output differs under torch.compile(backend='aot_eager', dynamic=True)",
    "default",
)


def _not_exported(x):
    if torch.compiler.is_exporting():
        raise ValueError("not for export")
    return like(x)


@wrong(
    "OW805", "the operator cannot be exported, saved and loaded", normal, rules=[("fake", _not_exported)],
    level="thorough",
)  # fmt: skip
def refuses_export(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous() * 2


def _compiled_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return 3 * grad * x if torch.compiler.is_compiling() else 2 * grad * x


square(
    "another_gradient_when_compiled",
    "OW803",
    "the gradient for x differs under torch.compile",
    _compiled_backward,
)


def _fixed_size(ctx, grad):
    (x,) = ctx.saved_tensors
    return 2 * grad * x * (int(grad.shape[0]) / int(x.shape[0]))


square("number_of_a_size_in_the_backward", "OW804", "the operator is compiled again", _fixed_size)
