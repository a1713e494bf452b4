"""``triton_op``: a function that launches Triton kernels becomes an operator that compilers see into."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from opwright.custom_ops import define_operator
from opwright.qualname import parse_qualname
from opwright.rules import fake
from opwright.rules.decomposition import DecompositionRule
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opwright.operator import Operator
    from opwright.rules.base import Rule
    from opwright.schema import FunctionSchema

P = ParamSpec("P")
R = TypeVar("R")


@overload
def triton_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    schema: str | None = None,
    tags: Any = None,
    flavour: str | None = None,
    non_differentiable: bool = False,
) -> Callable[[Callable[P, R]], Operator[P, R]]: ...
@overload
def triton_op(
    name: str,
    fn: Callable[P, R],
    /,
    *,
    mutates_args: str | Iterable[str],
    schema: str | None = None,
    tags: Any = None,
    flavour: str | None = None,
    non_differentiable: bool = False,
) -> Operator[P, R]: ...
def triton_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    schema: str | None = None,
    tags: Any = None,
    flavour: str | None = None,
    non_differentiable: bool = False,
) -> Any:
    """Make an operator of a function that launches Triton kernels through ``wrap_triton``.

    The function may consist of operators and launches only: it also serves as the operator's fake, where
    nothing is launched, and compilers take it apart to fuse and tune the kernels.

    Parameters
    ----------
    name
        ``"ns::name"``, or ``"ns::name.overload"``.
    fn
        The function, its parameters and return annotated; left out, this is a decorator.
    mutates_args
        Names of the arguments that the kernels write to, or ``"unknown"`` for every array.
    schema
        The schema from its opening parenthesis, instead of one inferred from the annotations.
    tags
        One tag or several.
    flavour
        The arrays that the body takes, where the annotations do not say.
    non_differentiable
        Declares that no output has a gradient.

    Returns
    -------
    Operator
        Callable as the function is. Kernels for other device types can be registered beside it.

    Raises
    ------
    ValueError
        If the name, an annotation, the schema, a tag or ``mutates_args`` is not valid.

    Examples
    --------
    A body of three lines: ``out = torch.empty_like(x)``, then
    ``wrap_triton(kernel)[grid](x, out, x.numel(), BLOCK=1024)``, then ``return out``.
    """
    parse_qualname(name)

    def define(fn: Callable[..., Any]) -> Operator[..., Any]:
        def describe(parsed: FunctionSchema, chosen: str) -> tuple[Rule, ...]:
            body = DecompositionRule(fn, chosen, source_of(fn), lambda: _kernels_in(fn), _interpreted)
            return fake.describe(parsed, fn, chosen), body

        return define_operator(
            "triton_op",
            name,
            fn,
            mutates_args=mutates_args,
            device_types=None,
            schema=schema,
            tags=tags,
            flavour=flavour,
            non_differentiable=non_differentiable,
            describe=describe,
        )

    return define if fn is None else define(fn)


def _kernels_in(fn: Callable[..., Any]) -> list[Any]:
    if find_spec("triton") is None:
        return []
    from opwright.kernels.triton_reach import kernels_in

    return kernels_in(fn)


def _interpreted() -> bool:
    from opwright.kernels.triton_reach import interpreting

    return interpreting()
