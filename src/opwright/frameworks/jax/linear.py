"""Derivatives: the operator's jvp, and a primitive that is linear in the tangents.

* The linear primitive's transpose is the author's backward; its value is the author's jvp rule, or else the
  transpose of the backward, taken by ``jax.vjp`` at zero (``jax.linear_transpose`` would need a transpose
  rule of every operator that the backward calls). The operator itself is never transposed.
* Arrays that ``setup_context`` keeps become operands, everything else a static part that is compared by
  type and value.
* Complex: the author's rules follow torch, whose gradient is the conjugate of JAX's cotangent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from opwright.frameworks.jax import experimental
from opwright.frameworks.jax.avals import (
    arrays,
    is_inexact,
    same_axes,
    shaped,
    sharded_as,
    sharded_like,
    unsharded,
    zeros,
)
from opwright.frameworks.jax.callbacks import original_errors

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class Linear(ABC):
    """A map that is linear in its tangents; the static parameter of the linear primitive.

    Parameters
    ----------
    key
        Equal exactly for maps that are the same.
    opaque
        Whether something in it is compared by identity, so that compiling it would be in vain.
    """

    __slots__ = ("_hash", "key", "opaque", "title")

    def __init__(self, title: str, key: Hashable, *, opaque: bool) -> None:
        self.title = title
        self.key = key
        self.opaque = opaque
        self._hash = hash((type(self), key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.key == other.key)

    def __repr__(self) -> str:
        return self.title

    @abstractmethod
    def out_avals(self) -> list[Any]:
        """Return the abstract values of the tangents that come out."""

    @abstractmethod
    def apply(self, saved: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the outputs."""

    @abstractmethod
    def transpose(self, saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Return one cotangent for each tangent; cotangents may be symbolic zeros."""

    def bind(self, saved: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Apply the map to arrays or tracers."""
        outs: list[Any] = _linear.bind(*same_axes(arrays([*saved, *tangents])), rule=self, saved=len(saved))
        return outs

    def apply_by_transposing(self, saved: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the outputs, from the transpose alone."""
        at = [zeros(aval) for aval in self.out_avals()]
        grads, pull = jax.vjp(lambda *cotangents: self.transpose(saved, cotangents), *at)
        # On an explicit mesh a tangent may lie otherwise than its gradient does, in a batch for example.
        like = [sharded_as(one, jax.typeof(grad)) for one, grad in zip(tangents, grads, strict=True)]
        return list(pull(like))


class Part(Linear):
    """A linear map of some of its tangents, the others being zero."""

    __slots__ = ("avals", "inner", "keep")

    def __init__(self, inner: Linear, keep: Sequence[bool], avals: Sequence[Any]) -> None:
        self.inner = inner
        self.keep = tuple(keep)
        self.avals = tuple(avals)
        super().__init__(inner.title, (inner, self.keep, self.avals), opaque=inner.opaque)

    def out_avals(self) -> list[Any]:
        return self.inner.out_avals()

    def apply(self, saved: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        rest = iter(tangents)
        every = [
            next(rest) if kept else zeros(aval) for kept, aval in zip(self.keep, self.avals, strict=True)
        ]
        return self.inner.apply(saved, every)

    def transpose(self, saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        every = self.inner.transpose(saved, cotangents)
        return [one for one, kept in zip(every, self.keep, strict=True) if kept]


class Batched(Linear):
    """A linear map for each element of a batch; what comes out has the batch in front."""

    __slots__ = ("avals", "dims", "inner", "saved_dims", "size")

    def __init__(
        self,
        inner: Linear,
        size: Any,
        saved_dims: Sequence[Any],
        dims: Sequence[Any],
        avals: Sequence[Any],
    ) -> None:
        self.inner = inner
        self.size = size
        self.saved_dims = tuple(saved_dims)
        self.dims = tuple(dims)
        self.avals = tuple(avals)
        key = (inner, size, self.saved_dims, self.dims, self.avals)
        super().__init__(inner.title, key, opaque=inner.opaque)

    def out_avals(self) -> list[Any]:
        return [shaped((self.size, *aval.shape), aval.dtype, [aval]) for aval in self.inner.out_avals()]

    def apply(self, saved: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        axes = (list(self.saved_dims), list(self.dims))
        batched = jax.vmap(self.inner.apply, axes, axis_size=self.size)
        every = unsharded([*saved, *tangents])
        return list(batched(every[: len(saved)], every[len(saved) :]))

    def transpose(self, saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        every = [
            zeros(aval) if type(one) is ad.Zero else one
            for one, aval in zip(cotangents, self.out_avals(), strict=True)
        ]
        batched = jax.vmap(self.inner.transpose, (list(self.saved_dims), 0), axis_size=self.size)
        whole = unsharded([*saved, *every])
        grads = batched(whole[: len(saved)], whole[len(saved) :])
        return [
            sharded_like(grad.sum(0) if dim is None else jax.numpy.moveaxis(grad, 0, dim), aval)
            for grad, dim, aval in zip(grads, self.dims, self.avals, strict=True)
        ]


# ---------------------------------------------------------------------------------- the primitive

_linear: Any = Primitive("opwright_linear")
_linear.multiple_results = True


@partial(jax.jit, static_argnames=("rule", "saved"))
def _compiled(*operands: Any, rule: Linear, saved: int) -> list[Any]:
    return rule.apply(operands[:saved], operands[saved:])


@_linear.def_impl
def _run(*operands: Any, rule: Linear, saved: int) -> list[Any]:
    operands = tuple(arrays(operands))
    # Compiled, the author's rule is traced once; an opaque one would be compiled anew at each call.
    if rule.opaque or jax.config.jax_disable_jit or jax.config.jax_debug_nans or jax.config.jax_debug_infs:
        return rule.apply(operands[:saved], operands[saved:])
    with original_errors():
        return _compiled(*operands, rule=rule, saved=saved)


@_linear.def_abstract_eval
def _abstract(*avals: Any, rule: Linear, saved: int) -> list[Any]:
    return [shaped(aval.shape, aval.dtype, avals or [aval]) for aval in rule.out_avals()]


def _jvp(
    primals: Sequence[Any], moves: Sequence[Any], *, rule: Linear, saved: int
) -> tuple[list[Any], list[Any]]:
    primals = arrays(primals)
    outs = rule.bind(primals[:saved], primals[saved:])
    sums: list[Any] = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    moving = [type(move) is not ad.Zero for move in moves[saved:]]
    if any(moving):
        part = Part(rule, moving, [jax.typeof(one) for one in primals[saved:]])
        live = [move for move, on in zip(moves[saved:], moving, strict=True) if on]
        sums = part.bind(primals[:saved], live)
    kept = [type(m) is not ad.Zero and is_inexact(p) for m, p in zip(moves[:saved], primals, strict=False)]
    if any(kept):

        def of_saved(*varied: Any) -> list[Any]:
            rest = iter(varied)
            every = [next(rest) if on else one for one, on in zip(primals[:saved], kept, strict=True)]
            return rule.apply(every, primals[saved:])

        points = [one for one, on in zip(primals, kept, strict=False) if on]
        live = [move for move, on in zip(moves, kept, strict=False) if on]
        _, more = jax.jvp(of_saved, points, live)
        sums = [ad.add_tangents(one, other) for one, other in zip(sums, more, strict=True)]
    return outs, sums


def _transpose(cotangents: Sequence[Any], *args: Any, rule: Linear, saved: int) -> list[Any]:
    if all(type(one) is ad.Zero for one in cotangents):
        return [None] * len(args)
    grads = rule.transpose(arrays(args[:saved]), arrays(cotangents))
    own = [
        grad if ad.is_undefined_primal(arg) else None for grad, arg in zip(grads, args[saved:], strict=True)
    ]
    return [None] * saved + own


def _batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], *, rule: Linear, saved: int) -> Any:
    if all(dim is None for dim in dims):
        outs = rule.bind(args[:saved], args[saved:])
        return outs, [None] * len(outs)
    args = arrays(args)
    avals = [jax.typeof(arg) for arg in args[saved:]]
    outs = Batched(rule, axis.size, dims[:saved], dims[saved:], avals).bind(args[:saved], args[saved:])
    return outs, [0] * len(outs)


def _traced(*operands: Any, rule: Linear, saved: int) -> list[Any]:
    return rule.apply(operands[:saved], operands[saved:])


ad.primitive_jvps[_linear] = _jvp
ad.primitive_transposes[_linear] = _transpose
batching.fancy_primitive_batchers[_linear] = _batch
experimental.add_jet(_linear)
mlir.register_lowering(_linear, mlir.lower_fun(_traced, multiple_results=True))
