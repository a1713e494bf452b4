"""The batching rule: a kernel at ``FuncTorchBatched`` that runs the author's rule, or loops.

* The rule runs one level lower and calls the operator, so that ``vmap(grad)`` and nesting go on.
* Keyword-only tensors are batched too; a rule gets their axes in ``in_dims`` after the positional ones, and
  only where one of them is batched.
* A mutated argument must be batched where another one is: its memory has no room for a result each.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from opwright.errors import OutputError, UnsupportedError, layout
from opwright.frameworks.torch import private
from opwright.frameworks.torch.lowered import Lowered, tensors_in
from opwright.outputs import same_objects
from opwright.rules.vmap import VmapInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.rules.base import Rule

_BATCHED = torch.DispatchKeySet(torch.DispatchKey.FuncTorchBatched)


def make_kernel(state: Lowered) -> Callable[..., Any]:
    """Return the kernel for the dispatch key ``FuncTorchBatched``."""
    position = {argument.name: i for i, argument in enumerate(state.record.schema.arguments)}
    same = {index: position[name] for index, name in same_objects(state.record)}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        flat = state.flat(args, kwargs)
        interpreter = private.current_interpreter()
        level = interpreter.level()
        pairs = [_unwrap(value, level) for value in flat]
        values, dims = tuple(v for v, _ in pairs), tuple(d for _, d in pairs)
        # Below this key each operation leaves the level by itself; to pop it here breaks nested ones.
        with private.exclude_keys(_BATCHED):
            if all(_unbatched(dim) for dim in dims):
                return state.call(flat)
            _require_batched(state, dims)
            info = VmapInfo(interpreter.batch_size(), interpreter.randomness())
            rule = state.record.rule("vmap")
            if rule is None or rule.flavour not in ("torch", "array_api"):
                out, out_dims = loop(state, info, dims, values)
            else:
                out, out_dims = _call_rule(state, rule, info, dims, values)
        return _wrap(state, flat, same, out=out, out_dims=out_dims, level=level)

    return private.never_traced(kernel)


def _unwrap(value: Any, level: int) -> tuple[Any, Any]:
    """Return a value without its batch axis of a level, and the axis; nested for lists."""
    if isinstance(value, torch.Tensor):
        return private.unwrap_batched(value, level)
    if value.__class__ in (list, tuple) and any(isinstance(one, torch.Tensor) for one in value):
        pairs = [_unwrap(one, level) for one in value]
        return [v for v, _ in pairs], [d for _, d in pairs]
    return value, None


def _unbatched(dim: Any) -> bool:
    return all(map(_unbatched, dim)) if dim.__class__ is list else dim is None


def _require_batched(state: Lowered, dims: Sequence[Any]) -> None:
    """Raise where a mutated argument is not batched; another one is."""
    for index in state.mutated:
        several = dims[index] if dims[index].__class__ is list else [dims[index]]
        if any(dim is None for dim in several):
            record = state.record
            argument = record.schema.arguments[index].name
            raise UnsupportedError(
                layout(
                    f"vmap of {record.qualname}: argument {argument} is mutated and not batched, but another "
                    "one is",
                    expected=f"in_dims that batch {argument} too: it has no room for a result for each",
                    registered=record.source,
                    fix=f"expand and clone {argument} to the batch first, or use a functional operator",
                )
            )


def _call_rule(
    state: Lowered, rule: Rule, info: VmapInfo, dims: tuple[Any, ...], values: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Call the author's rule."""
    in_dims = dims[: state.count]
    if not all(map(_unbatched, dims[state.count :])):
        in_dims = dims
    returned = state.apply(rule.fn, tuple(state.authors(values)), info, in_dims)
    if not isinstance(returned, tuple) or len(returned) != 2:
        got = f"{type(returned).__name__}" + (f" of {len(returned)}" if isinstance(returned, tuple) else "")
        raise _bad(state, rule, "a tuple (outputs, out_dims), two returns", got)
    out, out_dims = returned
    returns = state.record.schema.returns
    if not returns:
        return None, None
    if len(returns) == 1 and not state.record.schema.is_tuple:
        return out, _broadcast(state, rule, out, out_dims, "the output")
    if not isinstance(out, list | tuple) or len(out) != len(returns):
        raise _bad(state, rule, f"{len(returns)} outputs", type(out).__name__)
    if out_dims is None or isinstance(out_dims, int):
        out_dims = (out_dims,) * len(returns)
    if not isinstance(out_dims, list | tuple) or len(out_dims) != len(returns):
        raise _bad(state, rule, f"{len(returns)} out_dims, one for each output", repr(out_dims))
    pairs = enumerate(zip(out, out_dims, strict=True))
    return out, tuple(_broadcast(state, rule, o, d, f"output {i}") for i, (o, d) in pairs)


def _broadcast(state: Lowered, rule: Rule, out: Any, dim: Any, name: str) -> Any:
    """Return the axis of an output, or a list of them for a list; one axis stands for all."""
    if out.__class__ in (list, tuple):
        if dim is None or isinstance(dim, int):
            dim = [dim] * len(out)
        if not isinstance(dim, list | tuple) or len(dim) != len(out):
            raise _bad(state, rule, f"out_dims for a list of {len(out)}", repr(dim))
        pairs = enumerate(zip(out, dim, strict=True))
        return [_broadcast(state, rule, one, axis, f"{name}[{i}]") for i, (one, axis) in pairs]
    if dim is not None and (not isinstance(dim, int) or isinstance(dim, bool)):
        raise _bad(state, rule, "an int or None in out_dims for each output", repr(dim))
    if dim is not None and isinstance(out, torch.Tensor) and not -out.dim() <= dim < out.dim():
        expected = f"an axis from {-out.dim()} to {out.dim() - 1}" if out.dim() else "None: it has no axis"
        what = f"an impossible out_dim for {name}"
        raise _bad(state, rule, expected, f"{dim} for shape {tuple(out.shape)}", what)
    return dim


def _bad(
    state: Lowered, rule: Rule, expected: str, got: str, what: str = "something else than it must"
) -> OutputError:
    return OutputError(
        layout(
            f"the vmap rule of {state.record.qualname} returned {what}",
            expected=expected,
            got=got,
            registered=rule.source,
        )
    )


def _wrap(
    state: Lowered, flat: tuple[Any, ...], same: dict[int, int], *, out: Any, out_dims: Any, level: int
) -> Any:
    """Return the outputs with their batch axis; a mutated argument that is returned, itself."""
    schema = state.record.schema
    if not schema.returns:
        return None
    single = len(schema.returns) == 1 and not schema.is_tuple
    outs, dims = ((out,), (out_dims,)) if single else (out, out_dims)
    wrapped = [
        flat[same[i]] if i in same else _batched(value, dim, level)
        for i, (value, dim) in enumerate(zip(outs, dims, strict=True))
    ]
    return wrapped[0] if single else tuple(wrapped)


def _batched(value: Any, dim: Any, level: int) -> Any:
    if isinstance(value, torch.Tensor) and dim is not None:
        axis = dim + value.dim() if dim < 0 else dim
        return private.add_batch_dim(value, axis, level)
    if value.__class__ in (list, tuple) and dim.__class__ is list:
        return [_batched(one, axis, level) for one, axis in zip(value, dim, strict=True)]
    return value


def loop(state: Lowered, info: VmapInfo, dims: Sequence[Any], values: Sequence[Any]) -> tuple[Any, Any]:
    """Call the operator once for each entry of the batch, and stack the results."""
    _warn(state, info)
    returns = state.record.schema.returns
    if info.batch_size == 0 and returns:
        outs = [_as_tuple(state, _empty(state, dims, values))]
    else:
        batch = range(info.batch_size)
        outs = [_as_tuple(state, state.call(_slice(values, dims, i))) for i in batch]
    if not returns:
        return None, None
    stacked = [_stack(list(column), empty=info.batch_size == 0) for column in zip(*outs, strict=True)]
    axes = [[0] * len(one) if one.__class__ is list else 0 for one in stacked]
    if len(returns) == 1 and not state.record.schema.is_tuple:
        return stacked[0], axes[0]
    return stacked, axes


def _warn(state: Lowered, info: VmapInfo) -> None:
    record = state.record
    if "nondeterministic_seeded" in record.tags and info.randomness != "different":
        raise UnsupportedError(
            layout(
                f"vmap of {record.qualname}: the operator is random, and randomness is {info.randomness!r}",
                expected="torch.vmap(..., randomness='different'), or a vmap rule",
                registered=record.source,
                fix=f"add a rule: @opwright.register_vmap({record.qualname!r})",
            )
        )
    if state.backward_of is None and not state.warned:
        state.warned = True
        warnings.warn(
            f"{record.qualname} has no vmap rule: it is called once for each of {info.batch_size} entries, "
            f"at a performance drop; add one with @opwright.register_vmap({record.qualname!r})",
            UserWarning,
            stacklevel=2,
        )


def _slice(values: Sequence[Any], dims: Sequence[Any], index: int) -> tuple[Any, ...]:
    def one(value: Any, dim: Any) -> Any:
        if dim.__class__ is list:
            return [one(v, d) for v, d in zip(value, dim, strict=True)]
        return value if dim is None else value.select(dim, index)

    return tuple(one(value, dim) for value, dim in zip(values, dims, strict=True))


def _empty(state: Lowered, dims: Sequence[Any], values: Sequence[Any]) -> Any:
    """Return the outputs of one entry of an empty batch, without data: the fake says what they are."""

    def one(value: Any, dim: Any) -> Any:
        if dim.__class__ is list or value.__class__ in (list, tuple):
            axes = dim if dim.__class__ is list else [None] * len(value)
            return [one(v, d) for v, d in zip(value, axes, strict=True)]
        if not isinstance(value, torch.Tensor):
            return value
        shape = [size for axis, size in enumerate(value.shape) if axis != dim]
        return torch.empty(shape, dtype=value.dtype, device="meta")

    out = state.call(tuple(one(value, dim) for value, dim in zip(values, dims, strict=True)))
    device = next((tensor.device for value in values for tensor in tensors_in(value)), torch.device("cpu"))
    return _on(out, device)


def _on(out: Any, device: torch.device) -> Any:
    if isinstance(out, torch.Tensor):
        return torch.empty(out.shape, dtype=out.dtype, device=device)
    return type(out)(_on(one, device) for one in out) if out.__class__ in (list, tuple) else out


def _as_tuple(state: Lowered, out: Any) -> tuple[Any, ...]:
    schema = state.record.schema
    if not schema.returns:
        return ()
    return (out,) if len(schema.returns) == 1 and not schema.is_tuple else tuple(out)


def _stack(column: list[Any], *, empty: bool) -> Any:
    """Return one output of all entries, stacked in front."""
    first = column[0]
    if isinstance(first, torch.Tensor):
        return first.new_empty((0, *first.shape)) if empty else torch.stack(column)
    if first.__class__ in (list, tuple):
        return [_stack(list(row), empty=empty) for row in zip(*column, strict=True)]
    return first
