"""The autograd rule: what to keep of a call, and the gradients of its inputs from those of its outputs.

* ``setup_context`` is called by keyword: ``ctx``, ``inputs``, ``output`` and, where the schema has
  keyword-only arguments, ``keyword_only_inputs``. Defaults are filled in before.
* ``backward(ctx, *grads)`` gets one gradient for each return, then one for the new value of each mutated
  argument that is not returned.
* Complex gradients follow torch: the gradient of a real loss L is dL/d(re) + i dL/d(im).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.errors import GradientError, layout
from opwright.rules.base import Rule, require_signature
from opwright.source import source_of

if TYPE_CHECKING:
    from opwright.schema import Argument, FunctionSchema


@dataclass(frozen=True, slots=True, eq=False)
class AutogradRule(Rule):
    """``backward(ctx, *grads)`` as ``fn``, and ``setup_context`` where given."""

    kind: ClassVar[str] = "autograd"

    setup_context: Callable[..., None] | None = None


def of_another_dtype(
    qualname: str, rule: Rule, name: str, *, expected: Any, got: Any, kind: str = "gradient"
) -> GradientError:
    """Return the error for a gradient of an argument, or tangent of an output, whose dtype is wrong."""
    source, of = ("backward", "argument") if kind == "gradient" else ("jvp", "output")
    expected, got = (str(dtype).removeprefix("torch.") for dtype in (expected, got))
    shorter = "grad" if kind == "gradient" else kind
    fix = f"convert it: array_namespace({shorter}).astype({shorter}, x.dtype)"
    if "complex" in got and "complex" not in expected:
        fix = f"take its real part: array_namespace({shorter}).real({shorter})"
    return GradientError(
        layout(
            f"{source} of {qualname} returned a {kind} of another dtype for {of} {name}",
            expected=f"dtype {expected}, that of the {of}",
            got=f"dtype {got}",
            registered=rule.source,
            fix=fix,
        )
    )


def check_setup_context(schema: FunctionSchema, fn: Callable[..., Any]) -> None:
    """Raise where ``fn`` has another signature than a ``setup_context`` of this operator."""
    keyword_only = ["keyword_only_inputs"] if schema.keyword_only else []
    what = f"setup_context of {schema.qualname}"
    require_signature(what, fn, (), ["ctx", "inputs", *keyword_only, "output"])


def describe(
    schema: FunctionSchema,
    backward: Callable[..., Any],
    setup_context: Callable[..., None] | None,
    flavour: str,
) -> AutogradRule:
    """Return the rule for ``backward``, its signatures compared with the schema."""
    require_signature(f"backward of {schema.qualname}", backward, ["ctx", *output_names(schema)])
    if setup_context is not None:
        check_setup_context(schema, setup_context)
    return AutogradRule(backward, flavour, source_of(backward), setup_context)


def returned_mutations(schema: FunctionSchema) -> frozenset[str]:
    """Return the names of the mutated arguments that a return stands for (``Tensor(a!) -> Tensor(a!)``)."""
    sets = {name for entry in schema.returns for alias in entry.type.aliases() for name in alias.before}
    return frozenset(
        argument.name
        for argument in schema.mutated
        if any(name in sets for alias in argument.type.aliases() for name in alias.before)
    )


def new_values(schema: FunctionSchema) -> tuple[Argument, ...]:
    """Return the mutated arguments whose new value is an output of its own for differentiation."""
    returned = returned_mutations(schema)
    return tuple(argument for argument in schema.mutated if argument.name not in returned)


def output_names(schema: FunctionSchema) -> list[str]:
    """Return a name for each gradient that ``backward`` gets, in order."""
    returns = [entry.name or f"output_{index}" for index, entry in enumerate(schema.returns)]
    return returns + [argument.name for argument in new_values(schema)]


def call_setup_context(
    rule: AutogradRule, schema: FunctionSchema, ctx: Any, values: Sequence[Any], output: Any
) -> None:
    """Call the rule's ``setup_context``, if it has one, on all argument values in schema order."""
    run_setup_context(rule.setup_context, schema, ctx, values, output)


def run_setup_context(
    setup_context: Callable[..., None] | None,
    schema: FunctionSchema,
    ctx: Any,
    values: Sequence[Any],
    output: Any,
) -> None:
    """Call ``setup_context``, if there is one, on all argument values in schema order."""
    if setup_context is None:
        return
    values = schema.with_tuples(values)
    count = len(schema.positional)
    inputs = tuple(values[:count])
    if schema.keyword_only:
        named = {
            argument.name: value for argument, value in zip(schema.keyword_only, values[count:], strict=True)
        }
        setup_context(ctx=ctx, inputs=inputs, keyword_only_inputs=named, output=output)
    else:
        setup_context(ctx=ctx, inputs=inputs, output=output)


def split_gradients(rule: Rule, schema: FunctionSchema, returned: Any) -> list[Any]:
    """Return one entry for each argument of the schema from what a backward returned.

    A backward returns a mapping by argument name, one gradient where the operator has one positional
    argument (or one that takes a gradient), or a tuple for the positional arguments, with or without
    those for the keyword-only ones; trailing arguments that are not Tensors and have a default may be
    left out.

    Raises
    ------
    GradientError
        If a name is unknown or the number is wrong; the message names the arguments.
    """
    arguments = schema.arguments
    if isinstance(returned, Mapping):
        unknown = [name for name in returned if name not in {a.name for a in arguments}]
        if unknown:
            raise GradientError(
                layout(
                    f"backward of {schema.qualname} returned gradients for unknown arguments",
                    expected=f"names among {', '.join(a.name for a in arguments)}",
                    got=", ".join(map(repr, unknown)),
                    registered=rule.source,
                )
            )
        return [returned.get(argument.name) for argument in arguments]
    grads = list(returned) if isinstance(returned, tuple) else [returned]
    return grads + [None] * _left_out(rule, schema, len(grads))


def _left_out(rule: Rule, schema: FunctionSchema, got: int) -> int:
    """Return how many trailing gradients may be taken as None, or raise where the number is wrong."""
    count, total = len(schema.positional), len(schema.arguments)
    if got in (count, total):
        return total - got
    if got < count and all(a.default is not None and not a.has_tensors for a in schema.positional[got:]):
        return total - got
    missing = [a.name for a in schema.positional[got:]]
    raise GradientError(
        layout(
            f"backward of {schema.qualname} returned an incorrect number of gradients "
            f"(expected {count}, got {got})",
            expected="one for each of " + ", ".join(a.name for a in schema.positional),
            got=f"{got}, none for {', '.join(missing)}"
            if missing
            else f"{got}, more than there are arguments",
            registered=rule.source,
            fix="return None for an argument without a gradient, or a dict by argument name",
        )
    )


class Context:
    """What ``setup_context`` fills and ``backward`` reads, for frameworks without a context of their own.

    Parameters
    ----------
    needs_input_grad
        For each argument in schema order whether its gradient is asked for; nested for lists.
    """

    def __init__(self, needs_input_grad: tuple[Any, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.materialize_grads = True
        self.non_differentiable: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep arrays (or None) for the backward, which reads them from ``saved_tensors``."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Accept what torch's context accepts; ``save_for_backward`` serves both directions here."""
        if not self.saved_tensors:
            self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether gradients of unused outputs arrive as zeros (the default) or as None."""
        self.materialize_grads = value

    def mark_non_differentiable(self, *outputs: Any) -> None:
        """Declare outputs that have no gradient."""
        self.non_differentiable = outputs

    def mark_dirty(self, *tensors: Any) -> None:
        """Accept what torch's context accepts; which arguments are mutated is read from the schema."""
        self.dirty_tensors = tensors
