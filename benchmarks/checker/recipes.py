"""Right torch-flavoured operators with all their rules, of which the mutators make wrong ones."""

from __future__ import annotations

from typing import Any

import torch
from definitions import Definition
from torch import Tensor

RECIPES: list[Definition] = []


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _front(x: Any, dim: int | None) -> Any:
    return x if dim is None else x.movedim(dim, 0)


def _batched(info: Any, in_dims: Any, *tensors: Tensor) -> list[Tensor]:
    """Return every tensor with the batch axis in front, those without one expanded."""
    pairs = zip(tensors, in_dims, strict=True)
    return [x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs]


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*[one for one in inputs if isinstance(one, Tensor)])


# ------------------------------------------------------------------------------------------- one tensor


def _sine(x: Tensor) -> Tensor:
    return torch.sin(x).contiguous()


def _dense(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


RECIPES.append(
    Definition(
        "sine",
        _sine,
        lambda: (_normal(3, 4),),
        fake=_dense,
        backward=lambda ctx, grad: grad * torch.cos(ctx.saved_tensors[0]),
        setup=_save,
        vmap=lambda info, in_dims, x: (_sine(_front(x, in_dims[0])), 0),
        jvp=lambda ctx, dx: dx * torch.cos(ctx.saved_tensors[0]),
    )
)


def _cumulated(x: Tensor) -> Tensor:
    return torch.cumsum(x, -1).contiguous() if x.dim() else x.clone()


RECIPES.append(
    Definition(
        "cumulated",
        _cumulated,
        lambda: (_normal(3, 4),),
        fake=_dense,
        backward=lambda ctx, grad: grad.flip(-1).cumsum(-1).flip(-1),
        setup=lambda ctx, inputs, output: None,
        vmap=lambda info, in_dims, x: (_cumulated(_front(x, in_dims[0])), 0),
        jvp=lambda ctx, dx: dx.cumsum(-1),
    )
)


def _log_sum(x: Tensor, dim: int = -1) -> Tensor:
    return torch.logsumexp(x, dim).contiguous()


def _log_sum_fake(x: Tensor, dim: int = -1) -> Tensor:
    shape = list(x.shape)
    del shape[dim]
    return x.new_empty(shape)


def _log_sum_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.dim = inputs[1]


RECIPES.append(
    Definition(
        "log_sum",
        _log_sum,
        lambda: (_normal(3, 4), 0),
        fake=_log_sum_fake,
        backward=lambda ctx, grad: (
            grad.unsqueeze(ctx.dim) * torch.softmax(ctx.saved_tensors[0], ctx.dim), None
        ),
        setup=_log_sum_setup,
        vmap=lambda info, in_dims, x, dim: (
            _log_sum(_front(x, in_dims[0]), dim + 1 if dim >= 0 else dim), 0
        ),
    )
)  # fmt: skip


# ----------------------------------------------------------------------------------------- several tensors


def _product(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).contiguous()


def _product_jvp(ctx: Any, dx: Tensor | None, dy: Tensor | None) -> Tensor:
    x, y = ctx.saved_tensors
    return (0 if dx is None else dx * y) + (0 if dy is None else x * dy)


RECIPES.append(
    Definition(
        "product",
        _product,
        lambda: (_normal(3, 4), _normal(3, 4, seed=1)),
        fake=lambda x, y: x.new_empty(
            torch.broadcast_shapes(x.shape, y.shape), dtype=torch.result_type(x, y)
        ),
        backward=lambda ctx, grad: (grad * ctx.saved_tensors[1], grad * ctx.saved_tensors[0]),
        setup=_save,
        vmap=lambda info, in_dims, x, y: (_product(*_batched(info, in_dims, x, y)), 0),
        jvp=_product_jvp,
    )
)


def _matrix_product(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast(
        x.device.type, enabled=False
    ):  # it would change the dtype, which the fake knows nothing of
        return torch.matmul(x, y).contiguous()


def _matrix_fake(x: Tensor, y: Tensor) -> Tensor:
    if x.shape[1] != y.shape[0] or x.dtype != y.dtype:
        raise ValueError("sizes or dtypes do not fit")
    return x.new_empty((x.shape[0], y.shape[1]))


RECIPES.append(
    Definition(
        "matrix_product",
        _matrix_product,
        lambda: (_normal(3, 4), _normal(4, 2, seed=1)),
        fake=_matrix_fake,
        backward=lambda ctx, grad: (grad @ ctx.saved_tensors[1].T, ctx.saved_tensors[0].T @ grad),
        setup=_save,
        vmap=lambda info, in_dims, x, y: (_matrix_product(*_batched(info, in_dims, x, y)), 0),
    )
)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(-1), (x * x).mean(-1)


def _moments_backward(ctx: Any, by_mean: Tensor, by_square: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return (by_mean.unsqueeze(-1) + 2 * x * by_square.unsqueeze(-1)) / x.shape[-1]


RECIPES.append(
    Definition(
        "moments",
        _moments,
        lambda: (_normal(3, 4),),
        fake=lambda x: (x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])),
        backward=_moments_backward,
        setup=_save,
        vmap=lambda info, in_dims, x: (_moments(_front(x, in_dims[0])), (0, 0)),
    )
)


def _normalised(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
    return (centred * scale * weight + bias).contiguous()


def _normalised_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.eps = inputs[3]


def _normalised_backward(ctx: Any, grad: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + ctx.eps)
    unit, inner = centred * scale, grad * weight
    by_x = inner - inner.mean(-1, keepdim=True) - unit * (inner * unit).mean(-1, keepdim=True)
    rows = tuple(range(x.dim() - 1))
    return by_x * scale, (grad * unit).sum(rows), grad.sum(rows), None


RECIPES.append(
    Definition(
        "normalised",
        _normalised,
        lambda: (_normal(3, 4), _normal(4, seed=1), _normal(4, seed=2)),
        fake=lambda x, weight, bias, eps=1e-5: x.new_empty(x.shape),
        backward=_normalised_backward,
        setup=_normalised_setup,
    )
)


def _rows(xs: list[Tensor]) -> Tensor:
    return torch.cat(xs)


def _rows_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.sizes = [x.shape[0] for x in inputs[0]]


RECIPES.append(
    Definition(
        "rows",
        _rows,
        lambda: ([_normal(2, 3), _normal(1, 3, seed=1)],),
        fake=lambda xs: xs[0].new_empty((sum(x.shape[0] for x in xs), *xs[0].shape[1:])),
        backward=lambda ctx, grad: ([part.clone() for part in grad.split(ctx.sizes)],),
        setup=_rows_setup,
    )
)


# --------------------------------------------------------------------------------------------- mutation


def _scaled(x: Tensor, k: float) -> None:
    x.mul_(k)


RECIPES.append(Definition("scaled", _scaled, lambda: (_normal(3, 4), 2.0), mutates_args=("x",)))


def _accumulated(total: Tensor, x: Tensor) -> Tensor:
    total.add_(x)
    return total.sum(-1)


RECIPES.append(
    Definition(
        "accumulated",
        _accumulated,
        lambda: (_normal(3, 4), _normal(3, 4, seed=1)),
        mutates_args=("total",),
        fake=lambda total, x: x.new_empty(x.shape[:-1]),
    )
)
