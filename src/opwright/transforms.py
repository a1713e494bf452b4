"""``vjp`` and ``jvp`` of one operator, for arrays whose library has no transforms.

There is no tape: they run the operator's own rules. For whole programs there are PyTorch and JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from opwright.calls import Call, bind, is_differentiable, mapped
from opwright.errors import ArgumentError, layout
from opwright.faking import run_fake as _run_fake
from opwright.forward import Forward, as_given, autograd_rule, no_formula
from opwright.frameworks.base import run_elsewhere
from opwright.gradients import pull_back
from opwright.rules.jvp import JvpRule
from opwright.tangents import by_backward, by_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.overload import OpOverload


def run_fake(record: OpOverload, values: Sequence[Any], *, ctx: Any = None) -> Any:
    """Return what an operator's fake returns, whatever its flavour; see ``faking.run_fake``."""
    return _run_fake(record, values, ctx=ctx, elsewhere=run_elsewhere)


@final
class Pull:
    """Turns gradients of a call's outputs into those of its arguments; made by ``opwright.vjp``.

    It may be called any number of times.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def __repr__(self) -> str:
        return f"<Pull of {self._forward.call.record.qualname}>"

    @property
    def ctx(self) -> Any:
        """The context that ``setup_context`` filled."""
        return self._forward.ctx

    def __call__(self, *cotangents: Any) -> tuple[Any, ...]:
        """Return one gradient for each argument that was given by position, None where it has none.

        Parameters
        ----------
        cotangents
            One for each output, then one for the new value of each mutated argument that is not returned;
            None for one that is not used; a list for a list.

        Raises
        ------
        GradientError
            If the backward returns gradients of the wrong number, shape or dtype.
        """
        return tuple(self._gradients(cotangents)[: self._forward.call.given])

    def by_name(self, *cotangents: Any) -> dict[str, Any]:
        """Return the gradients by argument name, those of keyword-only arguments among them."""
        arguments = self._forward.call.record.schema.arguments
        pairs = zip(arguments, self._gradients(cotangents), strict=True)
        return {argument.name: gradient for argument, gradient in pairs if gradient is not None}

    def _gradients(self, cotangents: Sequence[Any]) -> list[Any]:
        names = self._forward.names
        if len(cotangents) != len(names):
            raise ArgumentError(
                layout(
                    f"{self._forward.call.record.qualname}: pull takes one gradient for each output",
                    expected=f"{len(names)}, for {', '.join(names) or 'none'}",
                    got=str(len(cotangents)),
                )
            )
        return pull_back(self._forward, cotangents)


def vjp(op: Any, /, *args: Any, **static: Any) -> tuple[Any, Pull]:
    """Call an operator and return its result with the function that pulls gradients back.

    Parameters
    ----------
    op
        An operator, or its qualified name.
    args
        Its arguments; gradients come for those that are given by position.
    static
        Further arguments by name, which are constants; only of keyword-only arrays can gradients be had, from
        ``pull.by_name``.

    Returns
    -------
    out, pull
        What the operator returns, and `Pull`: ``pull(*cotangents)`` gives one gradient for each of ``args``,
        None where there is none (integers, scalars), zeros where the backward returned None. A complex
        gradient is dL/d(re) + i dL/d(im), as in PyTorch.

    Raises
    ------
    MissingRuleError
        If the operator has no autograd formula.
    UnsupportedError
        If the arrays' own library has vjp; the message names it.

    Notes
    -----
    The arrays that ``setup_context`` keeps are not copied: changing them between call and pull changes the
    gradient. A mutated argument is mutated; ``setup_context`` sees a copy of what it was.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::square", mutates_args=())
    ... def square(x: np.ndarray) -> np.ndarray:
    ...     return x * x
    >>> def setup_context(ctx, inputs, output):
    ...     ctx.save_for_backward(*inputs)
    >>> @square.register_autograd(setup_context=setup_context)
    ... def backward(ctx, grad):
    ...     return 2 * grad * ctx.saved_tensors[0]
    >>> out, pull = ow.vjp(square, np.array([1.0, 3.0]))
    >>> pull(np.ones(2))
    (array([2., 6.]),)
    """
    call = bind("vjp", op, args, static)
    rule = autograd_rule(call)
    if rule is None:
        raise no_formula(call, "vjp", "a backward")
    forward = Forward(call, rule, rule.setup_context, _wanted(call))
    return forward.out, Pull(forward)


def _wanted(call: Call) -> list[Any]:
    """Return for each argument in schema order whether it has a gradient, nested for lists."""
    out: list[Any] = []
    for index, (argument, value) in enumerate(zip(call.record.schema.arguments, call.values, strict=True)):
        if not argument.has_tensors or not (index < call.given or argument.kwarg_only):
            out.append(False)
        elif isinstance(value, list | tuple):
            out.append([is_differentiable(array) for array in value])
        else:
            out.append(is_differentiable(value))
    return out


def jvp(op: Any, primals: Sequence[Any], tangents: Sequence[Any], /, **static: Any) -> tuple[Any, Any]:
    """Call an operator and return its result with the tangents of its outputs.

    Parameters
    ----------
    op
        An operator, or its qualified name.
    primals
        Its positional arguments.
    tangents
        One for each of ``primals``: None where there is none, a list for a list.
    static
        Further arguments by name, which are constants.

    Returns
    -------
    out, tangent_out
        What the operator returns, and one tangent for each output, then for the new value of each mutated
        argument that is not returned; a tuple where there are several, None where an output has none.

    Raises
    ------
    MissingRuleError
        If the operator has neither a jvp rule nor an autograd formula.
    UnsupportedError
        If the arrays' own library has jvp; the message names it.

    Notes
    -----
    Without a jvp rule the tangents come from the backward, exactly, at the cost of one backward for each
    element of the outputs (two for a complex one).
    """
    if not isinstance(primals, list | tuple) or not isinstance(tangents, list | tuple):
        raise ArgumentError(
            layout(
                "opwright.jvp takes primals and tangents as tuples",
                got=f"{type(primals).__name__} and {type(tangents).__name__}",
            )
        )
    call = bind("jvp", op, primals, static)
    given = _tangents(call, tangents)
    rule, formula = call.record.rule("jvp"), autograd_rule(call)
    if isinstance(rule, JvpRule) and not call.record.non_differentiable:
        setup = rule.setup_context or (None if formula is None else formula.setup_context)
        forward = Forward(call, rule, setup, _flags(given))
        found = by_rule(forward, _as_cast(forward, given))
    elif formula is not None:
        forward = Forward(call, formula, formula.setup_context, _flags(given))
        found = by_backward(forward, given)
    else:
        raise no_formula(call, "jvp", "a backward or a jvp rule")
    return forward.out, found[0] if len(found) == 1 else tuple(found) if found else None


def _flags(tangents: Sequence[Any]) -> list[Any]:
    """Return which arguments have a tangent, nested for lists."""
    return [
        [one is not None for one in tangent] if isinstance(tangent, list) else tangent is not None
        for tangent in tangents
    ]


def _tangents(call: Call, tangents: Sequence[Any]) -> list[Any]:
    """Return one tangent for each argument in schema order: None, an array, a list for a list."""
    schema = call.record.schema
    if len(tangents) != call.given:
        raise ArgumentError(
            layout(
                f"{call.record.qualname}: jvp takes one tangent for each primal",
                expected=str(call.given),
                got=str(len(tangents)),
            )
        )
    padded = [*tangents, *[None] * (len(schema.arguments) - call.given)]
    out: list[Any] = []
    for argument, value, tangent in zip(schema.arguments, call.values, padded, strict=True):
        if not isinstance(value, list | tuple) or not argument.has_tensors:
            out.append(_tangent(call, argument.name, value, tangent, array=argument.has_tensors))
        elif tangent is None:
            out.append([None] * len(value))
        elif isinstance(tangent, list | tuple) and len(tangent) == len(value):
            labels = [f"{argument.name}[{index}]" for index in range(len(value))]
            out.append(
                [_tangent(call, *each, array=True) for each in zip(labels, value, tangent, strict=True)]
            )
        else:
            raise ArgumentError(
                layout(
                    f"{call.record.qualname}: the tangent of argument {argument.name} must be a list",
                    expected=f"a list of {len(value)}, or None",
                    got=type(tangent).__name__,
                )
            )
    return out


def _tangent(call: Call, name: str, value: Any, tangent: Any, *, array: bool) -> Any:
    if tangent is None:
        return None
    if not array or value is None or not is_differentiable(value):
        raise ArgumentError(
            layout(
                f"{call.record.qualname}: argument {name} has no tangent",
                expected="None: only floating and complex arrays have one",
                got=type(tangent).__name__,
            )
        )
    return as_given(call, "tangent", f"argument {name}", value, tangent)


def _as_cast(forward: Forward, tangents: Sequence[Any]) -> list[Any]:
    """Return the tangents with the dtypes that autocast gave the arguments."""
    xp = forward.call.xp

    def one(value: Any, tangent: Any) -> Any:
        return None if tangent is None else xp.asarray(tangent, dtype=xp.asarray(value).dtype)

    pairs = zip(forward.values, tangents, strict=True)
    return [tangent if tangent is None else mapped(one, value, tangent) for value, tangent in pairs]
