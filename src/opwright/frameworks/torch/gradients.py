"""What a backward returned, made one gradient for each flat argument, or an error that names the argument.

* A gradient that broadcasting made larger is summed to its argument's shape, as torch's engine does.
* The engine casts a gradient to its argument's dtype; a complex one of a real argument is an error there too.
* Symbolic shapes are left to the engine: a comparison here would add guards, or fail on unbacked sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opwright.arrays import class_name, describe
from opwright.errors import GradientError, MissingRuleError, layout
from opwright.frameworks.torch.lowered import OPAQUE, Lowered
from opwright.rules.autograd import AutogradRule, of_another_dtype, split_gradients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opwright.frameworks.torch.call import Call
    from opwright.rules.base import Rule
    from opwright.schema import Argument, FunctionSchema


def missing_formula(state: Lowered, *, tangent: bool = False) -> MissingRuleError:
    """Return the error for differentiating an operator that has no rule for it."""
    record, rule = state.record, state.backward_of
    if rule is not None:
        qualname = record.schema.name.replace(OPAQUE, "", 1)
        return MissingRuleError(
            layout(
                f"second derivative of {qualname}: no autograd formula was registered for its backward, "
                "which runs as one opaque kernel",
                expected="a backward of differentiable operations of the arrays that it gets, not "
                "once_differentiable",
                registered=rule.source,
                fix="write it so, or make it an operator of its own with register_autograd",
            )
        )
    doing = "forward-mode differentiation" if tangent else "differentiation"
    return MissingRuleError(
        layout(
            f"{doing} of {record.qualname}: no autograd formula was registered for it",
            registered=record.source,
            fix=f"add one: opwright.register_autograd({record.qualname!r}, backward, setup_context=...), "
            "or declare non_differentiable=True",
        )
    )


def checked(
    call: Call, rule: AutogradRule, returned: Any, dtypes: Sequence[torch.dtype | None] | None = None
) -> list[Any]:
    """Return one gradient for each flat value of a call from what its backward returned.

    Parameters
    ----------
    call, rule, returned
        The call, its rule, and what that returned.
    dtypes
        Those of the flat values that a gradient is asked for, None for others; the call's own if left out.

    Raises
    ------
    GradientError
        If the number, a shape or a class is wrong, or one is complex that must be real; the message names the
        argument.
    """
    state = call.plan.state
    schema = state.record.schema
    entries = split_gradients(rule, schema, returned)
    flat: list[Any] = []
    dtypes = call.dtypes if dtypes is None else dtypes
    given = list(zip(call.shapes, dtypes, strict=True))
    for argument, entry in zip(schema.arguments, entries, strict=True):
        if not argument.has_tensors:
            if entry is not None and not _only_none(entry):
                raise _not_none(schema, rule, argument, entry)
            flat.append(None)
        elif not argument.is_tensor_list:
            flat.append(one_gradient(schema, rule, argument.name, entry, given[len(flat)]))
        else:
            flat += _several(call, rule, argument, entry, given[len(flat) :])
    return flat


def _several(
    call: Call, rule: AutogradRule, argument: Argument, entry: Any, given: Sequence[tuple[Any, Any]]
) -> list[Any]:
    """Return the gradients of a list of tensors, with the shapes and dtypes from there on."""
    state = call.plan.state
    schema = state.record.schema
    length = dict(zip((schema.arguments[i].name for i in state.lists), call.lengths, strict=True))[
        argument.name
    ]
    count = 1 if length is None else length
    if entry is None:
        return [None] * count
    # Not list | tuple, here and below: compiled autograd of torch 2.9 traces this, and knows no unions.
    if length is None or not isinstance(entry, (list, tuple)) or len(entry) != length:
        expected = "None, as the argument was None" if length is None else f"a list of {length} gradients"
        raise GradientError(
            layout(
                f"backward of {schema.qualname}: the gradient of {argument.name} must be a list of the same "
                "structure as the inputs",
                expected=expected,
                got=f"{type(entry).__name__} of {len(entry)}"
                if isinstance(entry, (list, tuple))
                else _what(entry),
                registered=rule.source,
            )
        )
    names = [f"{argument.name}[{i}]" for i in range(length)]
    rows = zip(names, entry, given[:length], strict=True)
    return [one_gradient(schema, rule, name, grad, like) for name, grad, like in rows]


def one_gradient(schema: FunctionSchema, rule: Rule, name: str, grad: Any, like: tuple[Any, Any]) -> Any:
    """Return the gradient of one tensor, summed to its shape; one that is wrong raises.

    ``like`` is the tensor's shape, None where there is none, and its dtype, None where the engine asks for no
    gradient and takes no notice of one.
    """
    shape, dtype = like
    if grad is None:
        return None
    if not isinstance(grad, torch.Tensor):
        raise _bad(schema, rule, name, "a tensor, or None where it has no gradient", _what(grad))
    if shape is None:
        raise _bad(schema, rule, name, "None: the argument was None", _what(grad))
    if dtype is not None and grad.dtype.is_complex and not dtype.is_complex:
        raise of_another_dtype(schema.qualname, rule, name, expected=dtype, got=grad.dtype)
    if not (_static(shape) and _static(grad.shape)) or grad.shape == shape:
        return grad
    if _broadcasts(shape, grad.shape):
        return grad.sum_to_size(shape)
    raise _bad(
        schema, rule, name, f"shape {tuple(shape)}, that of the argument", f"shape {tuple(grad.shape)}"
    )


def _static(shape: torch.Size) -> bool:
    return all(size.__class__ is int for size in shape)


def _broadcasts(shape: torch.Size, larger: torch.Size) -> bool:
    """Return whether a shape broadcasts to a larger one."""
    if len(shape) > len(larger):
        return False
    return all(s in (1, n) for s, n in zip(reversed(shape), reversed(larger), strict=False))


def _only_none(entry: Any) -> bool:
    return isinstance(entry, (list, tuple)) and all(one is None for one in entry)


def _what(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if hasattr(value, "shape"):
        return f"{class_name(value)}, {describe(value)}"
    return f"{value!r} of type {type(value).__name__}"


def _bad(schema: FunctionSchema, rule: Rule, name: str, expected: str, got: str) -> GradientError:
    return GradientError(
        layout(
            f"backward of {schema.qualname} returned an invalid gradient for argument {name}",
            expected=expected,
            got=got,
            registered=rule.source,
        )
    )


def _not_none(schema: FunctionSchema, rule: Rule, argument: Argument, entry: Any) -> GradientError:
    return GradientError(
        layout(
            f"backward of {schema.qualname} returned a gradient for argument {argument.name}, "
            "which is no tensor",
            expected="None",
            got=_what(entry),
            registered=rule.source,
        )
    )
