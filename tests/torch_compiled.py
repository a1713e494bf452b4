"""Compiled and exported transforms for the matrix of torch."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from torch_kinds import Fn
from torch_transforms import TANGENT, leaf, total, transform

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
