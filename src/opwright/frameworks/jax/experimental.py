"""Transforms of ``jax.experimental`` that have a table of rules of their own: ``jet`` and ``sparsify``.

* ``jet`` describes a path by its Taylor coefficients. The derivatives along it are taken by ``jax.jvp``, one
  inside the other: by the operator's own rules, and with their errors.
* ``sparsify`` cannot know what an operator makes of zeros: an error says so.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from opwright.errors import UnsupportedError, layout
from opwright.frameworks.jax import private
from opwright.frameworks.jax.avals import arrays, is_inexact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Along = Callable[[Any], tuple[list[list[Any]], list[Any]]]


def add_jet(primitive: Any) -> None:
    """Give ``jet`` the rule of a primitive, where this JAX has one that is known."""
    jet = private.jet()
    if jet is not None:
        jet.jet_rules[primitive] = partial(_jet, primitive, jet.zero_series)


def _jet(
    primitive: Any, zero: Any, primals: Sequence[Any], series: Sequence[Sequence[Any]], **static: Any
) -> tuple[list[Any], list[Any]]:
    """Return the outputs, and for each its Taylor coefficients from the first on."""
    starts = arrays(primals)

    def outputs(time: Any) -> tuple[list[list[Any]], list[Any]]:
        pairs = zip(starts, series, strict=True)
        points = [_point(time, one, terms) if is_inexact(one) else one for one, terms in pairs]
        outs = primitive.bind(*points, **static)
        moving = [out for out in outs if is_inexact(out)]
        return [moving], [None if is_inexact(out) else out for out in outs]

    along: Along = outputs
    for _ in series[0]:
        along = _one_more(along)
    derivatives, fixed = along(jax.numpy.zeros(()))
    scales = [math.factorial(order) for order in range(len(derivatives))]
    moving = iter(zip(*derivatives, strict=True))
    outs: list[Any] = []
    coefficients: list[Any] = []
    for out in fixed:
        terms = [out] if out is not None else [d / s for d, s in zip(next(moving), scales, strict=True)]
        outs.append(terms[0])
        coefficients.append(zero if out is not None else terms[1:])
    return outs, coefficients


def _one_more(along: Along) -> Along:
    """Return the function that also gives the derivatives of the last terms that one gives."""

    def more(time: Any) -> tuple[list[list[Any]], list[Any]]:
        terms, moves, others = jax.jvp(along, (time,), (jax.numpy.ones_like(time),), has_aux=True)
        return [*terms, moves[-1]], others

    return more


def _point(time: Any, start: Any, coefficients: Sequence[Any]) -> Any:
    """Return where a path is at a time."""
    step = time.astype(start.real.dtype)
    way = jax.numpy.zeros_like(start)
    for term in reversed(coefficients):
        way = (way + term) * step
    return start + way


def add_sparse(primitive: Any) -> None:
    """Give ``sparsify`` the error of a primitive, once its module is loaded."""
    for rules in private.sparse_rules():
        rules.setdefault(primitive, partial(_sparse, primitive.name))


def _sparse(name: str, _environment: Any, *_values: Any, **_static: Any) -> Any:
    qualname = name.replace(".", "::", 1)
    raise UnsupportedError(
        layout(
            f"{qualname} takes dense arrays, and jax.experimental.sparse.sparsify gives it a sparse one",
            expected="an array, for what an operator makes of zeros is not known",
            got="a BCOO or BCSR array",
            fix="call it outside of sparsify on x.todense(), or on x.data if it maps zeros to zeros",
        )
    )
