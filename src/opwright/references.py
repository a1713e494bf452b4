"""``register_reference``: what the checker compares an operator's results with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.register import _register_rule as register_rule
from opwright.register import result
from opwright.rules import reference
from opwright.targets import annotated_flavour_of, known_flavour

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.overload import OpOverload
    from opwright.registry import Handle
    from opwright.rules.base import Rule


def register_reference(
    op: Any,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Any = None,
    flavour: str | None = None,
) -> Any:
    """Register a reference for the checker: a plain function that every kernel must agree with.

    Parameters
    ----------
    op
        A qualified name or an operator.
    func
        Takes the operator's parameters and returns what it does; left out, this is a decorator.
    lib
        A ``Library`` that owns the registration.
    flavour
        The arrays that the body takes, where its annotations do not say; NumPy's by default.

    Raises
    ------
    RegistrationError
        If there is no such operator, or the signature or flavour does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::dot", mutates_args=())
    ... def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    ...     return np.asarray(np.einsum("i,i->", x, y))
    >>> @dot.register_reference
    ... def _(x, y):
    ...     return np.asarray(sum(a * b for a, b in zip(x, y)))
    """

    def register(fn: Callable[..., Any]) -> Handle:
        def describe(record: OpOverload) -> Rule:
            own = flavour if flavour is not None else annotated_flavour_of(fn)
            return reference.describe(record.schema, fn, known_flavour(own or "numpy"))

        return register_rule(op, fn, describe, lib=lib)

    return result(func, register)
