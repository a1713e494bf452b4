"""The batching rule: a kernel at ``FuncTorchBatched`` that runs the author's rule, or loops.

* A random operator has the kernel at ``FuncTorchVmapMode``, where calls without batched arguments come by
  too, and does as torch's own random functions do: refused where ``randomness`` is ``"error"``; one draw,
  which is not batched, for ``"same"``; one for each entry for ``"different"``.

* The rule runs one level lower and calls the operator, so that ``vmap(grad)`` and nesting go on.
* Keyword-only tensors are batched too; a rule gets their axes in ``in_dims`` after the positional ones, and
  only where one of them is batched.
* A mutated argument must be batched where another one is: its memory has no room for a result each.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from opwright.batch_outputs import checked, require_even
from opwright.errors import UnsupportedError, layout
from opwright.frameworks.torch import private
from opwright.frameworks.torch.lowered import Lowered, tensors_in
from opwright.frameworks.torch.nested import refused
from opwright.outputs import is_one, same_objects
from opwright.rules.vmap import VmapInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.rules.base import Rule

MODE = "FuncTorchVmapMode"
"""The key that every call inside vmap has."""

_LEVEL = torch.DispatchKeySet(torch.DispatchKey.FuncTorchBatched) | torch.DispatchKeySet(
    torch.DispatchKey.FuncTorchVmapMode
)
"""Where one level of vmap takes calls: those with batched tensors, and those that draw random numbers."""


def is_random(state: Lowered) -> bool:
    """Return whether an operator draws random numbers."""
    return "nondeterministic_seeded" in state.record.tags


def make_kernel(state: Lowered) -> Callable[..., Any]:
    """Return the kernel for ``FuncTorchBatched``; for a random operator also for ``FuncTorchVmapMode``."""
    random = is_random(state)
    position = {argument.name: i for i, argument in enumerate(state.record.schema.arguments)}
    same = {index: position[name] for index, name in same_objects(state.record)}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        flat = state.flat(args, kwargs)
        interpreter = private.current_interpreter()
        level = interpreter.level()
        pairs = [_unwrap(value, level) for value in flat]
        values, dims = tuple(v for v, _ in pairs), tuple(d for _, d in pairs)
        # Below this key each operation leaves the level by itself; to pop it here breaks nested ones.
        with private.exclude_keys(_LEVEL):
            unbatched = all(map(_unbatched, dims))
            if unbatched and not random:
                return state.call(flat)
            info = VmapInfo(interpreter.batch_size(), interpreter.randomness())
            rule = state.record.rule("vmap")
            if rule is not None and rule.flavour not in ("torch", "array_api"):
                rule = None
            if random:
                _check_randomness(state, info, unbatched=unbatched, ruled=rule is not None)
                if unbatched and info.randomness == "same":
                    return state.call(flat)
            if unbatched:
                values, dims = _expanded(values, info.batch_size)
            _require_batched(state, dims)
            if rule is None or all(map(_unbatched, dims)):
                outs, out_dims = loop(state, info, dims, values)
            else:
                outs, out_dims = _call_rule(state, rule, info, dims, values)
        return _wrap(state, flat, same, outs=outs, dims=out_dims, level=level)

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


def _check_randomness(state: Lowered, info: VmapInfo, *, unbatched: bool, ruled: bool) -> None:
    """Raise where a random operator cannot do what the caller said of randomness."""
    record = state.record
    if info.randomness == "error":
        raise UnsupportedError(
            layout(
                f"vmap of {record.qualname}: it is random, and randomness is 'error'",
                registered=record.source,
                fix="say randomness='different' (one draw for each element) or randomness='same'",
            )
        )
    if info.randomness == "same" and not unbatched and not ruled:
        raise UnsupportedError(
            layout(
                f"vmap of {record.qualname}: one draw for all elements needs a batching rule",
                registered=record.source,
                fix=f"register one: @opwright.register_vmap({record.qualname!r})",
            )
        )
    if info.randomness == "different" and unbatched and state.mutated:
        argument = record.schema.arguments[state.mutated[0]].name
        raise UnsupportedError(
            layout(
                f"vmap of {record.qualname}: argument {argument} is mutated and not batched, and randomness "
                "is 'different'",
                expected=f"in_dims that batch {argument} too: it has no room for a draw for each element",
                registered=record.source,
                fix=f"expand and clone {argument} to the batch first, or say randomness='same'",
            )
        )


def _expanded(values: tuple[Any, ...], size: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return values of which the first tensor has the batch in front, and the axes of all."""
    filled, dims, found = [], [], False
    for value in values:
        several = list(value) if value.__class__ in (list, tuple) else [value]
        axes: list[Any] = [None] * len(several)
        place = next((i for i, one in enumerate(several) if isinstance(one, torch.Tensor)), None)
        listed = place is not None and value.__class__ in (list, tuple)
        if place is not None and not found:
            found, axes[place] = True, 0
            several[place] = several[place].expand(size, *several[place].shape)
        filled.append(several if listed else several[0] if place is not None else value)
        dims.append(axes if listed else axes[0] if axes else None)
    return tuple(filled), tuple(dims)


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
) -> tuple[list[Any], list[Any]]:
    """Return what the author's rule returns for each return of the schema, and the batch axis of each."""
    in_dims = dims[: state.count]
    if not all(map(_unbatched, dims[state.count :])):
        in_dims = dims
    with refused(state.record, "vmap rule", rule):
        returned = state.apply(rule.fn, tuple(state.authors(values)), info, in_dims)
    return checked(state.record, rule, returned, ("torch",), info.batch_size)


def _wrap(
    state: Lowered,
    flat: tuple[Any, ...],
    same: dict[int, int],
    *,
    outs: Sequence[Any],
    dims: Sequence[Any],
    level: int,
) -> Any:
    """Return the outputs with their batch axis; a mutated argument that is returned, itself."""
    schema = state.record.schema
    if not schema.returns:
        return None
    wrapped = [
        flat[same[i]] if i in same else _batched(value, dim, level)
        for i, (value, dim) in enumerate(zip(outs, dims, strict=True))
    ]
    return wrapped[0] if is_one(state.record) else tuple(wrapped)


def _batched(value: Any, dim: Any, level: int) -> Any:
    if isinstance(value, torch.Tensor) and dim is not None:
        axis = dim + value.dim() if dim < 0 else dim
        return private.add_batch_dim(value, axis, level)
    if value.__class__ in (list, tuple) and dim.__class__ is list:
        return [_batched(one, axis, level) for one, axis in zip(value, dim, strict=True)]
    return value


def loop(
    state: Lowered, info: VmapInfo, dims: Sequence[Any], values: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Call the operator once for each entry of the batch: the results stacked, and the batch axis of each."""
    _warn(state, info)
    returns = state.record.schema.returns
    if info.batch_size == 0 and returns:
        outs = [_as_tuple(state, _empty(state, dims, values))]
    else:
        batch = range(info.batch_size)
        outs = [_as_tuple(state, state.call(_slice(values, dims, i))) for i in batch]
    columns = zip(*outs, strict=True)
    empty = info.batch_size == 0
    stacked = [_stack(state, index, list(column), empty=empty) for index, column in enumerate(columns)]
    return stacked, [[0] * len(one) if one.__class__ is list else 0 for one in stacked]


def _warn(state: Lowered, info: VmapInfo) -> None:
    record = state.record
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


def _stack(state: Lowered, index: int, column: list[Any], *, empty: bool) -> Any:
    """Return what one return was for each entry, stacked in front; a number must be the same for all."""
    require_even(state.record.qualname, index, column)
    first = column[0]
    if isinstance(first, torch.Tensor):
        return first.new_empty((0, *first.shape)) if empty else torch.stack(column)
    if first.__class__ in (list, tuple):
        return [_stack(state, index, list(row), empty=empty) for row in zip(*column, strict=True)]
    return first
