"""The gradient wrapper of the direct call: an autograd function around the kernel, without the dispatcher.

* It is only reached where a guard proves that no transform, mode, wrapper or subclass is there: it needs no
  level, no tangent, and none of the modes of its caller.
* The author's context is torch's own. Lists of tensors are spread out for torch, and travel whole in one
  leading value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from opwright.entry import Names, compile_function, flat_names, kernel_call, passed
from opwright.frameworks.torch import private
from opwright.frameworks.torch.autograd import Plan
from opwright.frameworks.torch.gradients import checked, missing_formula
from opwright.outputs import is_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.frameworks.torch.lowered import Lowered
    from opwright.schema import Argument

OWN_FLAVOURS = ("torch", "array_api")
"""The flavours of kernels that take tensors."""

Output = Any
"""``output(flat, out)`` takes what a kernel returned for these values, or raises."""


def possible(state: Lowered) -> bool:
    """Return whether calls that need a gradient have a direct way: plain tensors out, nothing mutated."""
    schema = state.record.schema
    return (
        not schema.mutated and bool(schema.returns) and all(str(r.type) == "Tensor" for r in schema.returns)
    )


def make(state: Lowered, kernel: Callable[..., Any], output: Output) -> Callable[..., Any]:
    """Return the function that calls ``kernel`` on all values by position and records the gradient.

    Parameters
    ----------
    state
        What torch made of the overload.
    kernel
        What computes, called as an author's kernel is; every value is coerced already.
    output
        Takes what the kernel returned that is not plainly right.
    """
    return _Writer(state, kernel, output).function()


class Given(NamedTuple):
    """What ``checked`` needs of a call: shapes and dtypes of its flat values, and the lengths of its lists.

    There is a dtype where a gradient is needed.
    """

    plan: Plan
    shapes: Sequence[Any]
    dtypes: Sequence[Any]
    lengths: Sequence[int | None]


class _Writer:
    """Writes the autograd function of an overload."""

    def __init__(self, state: Lowered, kernel: Callable[..., Any], output: Output) -> None:
        self.state = state
        self.schema = state.record.schema
        self.flat = flat_names(self.schema)
        self.plan: Plan = state.derive("autograd", lambda: Plan(state))
        self.names = Names(self.schema)
        self.prefix = self.names.prefix
        for name, value in {"kernel": kernel, "output": output, "tensor": Tensor, "tuple": tuple}.items():
            self.names.add(name, value)

    def function(self) -> Callable[..., Any]:
        """Return the function of all values by position."""
        members = {"forward": staticmethod(self._forward()), "backward": staticmethod(self._backward())}
        name = self.state.op_name.replace(".", "_")
        cls = type(name, (torch.autograd.Function,), {**members, "__module__": "opwright.generated"})
        apply = private.single_level_apply(cls)
        if not self.state.lists:
            return apply
        spread = [
            f"*((None,) if {a.name} is None else {a.name})" if a.is_tensor_list else a.name
            for a in self.schema.arguments
        ]
        body = [f"return {self.names.add('apply', apply)}(({self.flat},), {', '.join(spread)})"]
        return compile_function(
            f"{self.schema.qualname}, a gradient needed", "call", self.flat, body, self.names
        )

    def _forward(self) -> Callable[..., Any]:
        prefix = self.prefix
        ctx, out, values = prefix + "ctx", prefix + "out", prefix + "values"
        lines = [f"{out} = {prefix}kernel({kernel_call(self.schema)})"]
        check = f"{out} = {prefix}output(({self.flat},), {out})"
        test = f"if {out}.__class__ is not {prefix}tensor: " if is_one(self.state.record) else ""
        lines.append(test + check)
        rule = self.plan.rule
        if rule is not None:
            lines.append(f"{ctx}.{prefix}given = {self._shapes()}")
            if self.state.lists:
                needs = self.names.add("nest", self._nest)
                lines.append(f"{ctx}.needs_input_grad = {needs}({ctx}.needs_input_grad, {values})")
            if rule.setup_context is not None:
                lines.append(f"{self.names.add('setup', rule.setup_context)}({self._setup_arguments()})")
        lines.append(f"return {out}")
        head = f"{ctx}, {self.flat}"
        if self.state.lists:
            head = f"{ctx}, {values}, *{prefix}spread"
            lines.insert(0, f"{self.flat}, = {values}")
        return compile_function(f"{self.schema.qualname}, forward", "forward", head, lines, self.names)

    def _shapes(self) -> str:
        """Return the expression of what the gradients will be compared with."""
        if self.state.lists:
            return f"{self.names.add('measure', self._measure)}({self.prefix}values)"
        arrays = [argument for argument in self.schema.arguments if argument.has_tensors]
        return f"({', '.join(_of(a, 'shape') for a in arrays)}, {', '.join(_of(a, 'dtype') for a in arrays)})"

    def _setup_arguments(self) -> str:
        """Return the arguments of ``setup_context``, as its contract has them."""
        inputs = "".join(f"{passed(argument, argument.name)}, " for argument in self.schema.positional)
        text = f"ctx={self.prefix}ctx, inputs=({inputs}), output={self.prefix}out"
        if self.schema.keyword_only:
            named = ", ".join(f"{a.name!r}: {passed(a, a.name)}" for a in self.schema.keyword_only)
            text += f", keyword_only_inputs={{{named}}}"
        return text

    def _backward(self) -> Callable[..., Any]:
        rule, state = self.plan.rule, self.state
        if rule is None:

            def raises(ctx: Any, *grads: Any) -> Any:
                raise missing_formula(state)

            return raises
        prefix = self.prefix
        ctx, grads, given = prefix + "ctx", prefix + "grads", prefix + "given"
        lines = [
            f"{grads} = {self.names.add('rule', rule.fn)}({ctx}, *{grads})",
            f"{given} = {ctx}.{prefix}given",
        ]
        if self.state.lists:
            lines.append(f"return (None, *{self.names.add('check', self._check_lists)}({grads}, {given}))")
        else:
            lines += self._plain_test(
                f"{self.names.add('check', self._check)}({grads}, {given}, {ctx}.needs_input_grad)"
            )
        title = f"{self.schema.qualname}, backward"
        return compile_function(title, "backward", f"{ctx}, *{grads}", lines, self.names)

    def _plain_test(self, check: str) -> list[str]:
        """Return lines that pass on gradients that are plainly right, and have all others checked."""
        tensor, grads, given = (self.prefix + name for name in ("tensor", "grads", "given"))
        arguments = self.schema.arguments
        count = sum(argument.has_tensors for argument in arguments)
        wrong = [
            f"{grads}.__class__ is not {self.prefix}tuple",
            f"{self.names.add('len', len)}({grads}) != {len(arguments)}",
        ]
        position = 0
        for index, argument in enumerate(arguments):
            one = f"{grads}[{index}]"
            if argument.has_tensors:
                odd = [
                    f"{one}.__class__ is not {tensor}",
                    f"{one}.shape != {given}[{position}]",
                    f"{one}.dtype is not {given}[{count + position}]",
                ]
                wrong.append(f"({one} is not None and ({' or '.join(odd)}))")
                position += 1
            else:
                wrong.append(f"{one} is not None")
        lines = [f"if {' or '.join(wrong)}: return {check}", f"return {grads}"]
        if len(arguments) == 1:
            single = [
                f"{grads}.__class__ is {tensor}",
                f"{grads}.shape == {given}[0]",
                f"{grads}.dtype is {given}[1]",
            ]
            lines.insert(0, f"if {' and '.join(single)}: return {grads}")
        return lines

    def _check(self, grads: Any, given: Sequence[Any], needs: Sequence[bool]) -> Any:
        """Return the gradients of an overload without lists, or raise."""
        half = len(given) // 2
        shapes, dtypes = (
            [next(rest) if argument.has_tensors else None for argument in self.schema.arguments]
            for rest in (iter(given[:half]), iter(given[half:]))
        )
        dtypes = [dtype if need else None for dtype, need in zip(dtypes, needs, strict=True)]
        assert self.plan.rule is not None  # noqa: S101  (without a rule there is no check)
        whole: Any = Given(self.plan, shapes, dtypes, ())
        return tuple(checked(whole, self.plan.rule, grads))

    def _check_lists(self, grads: Any, given: Any) -> list[Any]:
        assert self.plan.rule is not None  # noqa: S101  (the same)
        return checked(given, self.plan.rule, grads)

    def _measure(self, values: tuple[Any, ...]) -> Given:
        """Return the shapes, dtypes and lengths of a call with lists of tensors."""
        flat: list[Any] = []
        lengths: list[int | None] = []
        for argument, value in zip(self.schema.arguments, values, strict=True):
            if argument.is_tensor_list:
                lengths.append(None if value is None else len(value))
                flat += [None] if value is None else value
            else:
                flat.append(value if isinstance(value, Tensor) else None)
        shapes = [getattr(one, "shape", None) for one in flat]
        dtypes = [one.dtype if getattr(one, "requires_grad", False) else None for one in flat]
        return Given(self.plan, shapes, dtypes, lengths)

    def _nest(self, flat: tuple[bool, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return ``needs_input_grad`` with one entry for each argument, a list for a list."""
        rest = iter(flat[1:])
        nested: list[Any] = []
        for argument, value in zip(self.schema.arguments, values, strict=True):
            if argument.is_tensor_list and value is not None:
                nested.append([next(rest) for _ in value])
            else:
                one = next(rest)
                nested.append(False if argument.is_tensor_list else one)
        return tuple(nested)


def _of(argument: Argument, attribute: str) -> str:
    """Return the expression of a tensor's attribute, None for a tensor that is absent."""
    text = f"{argument.name}.{attribute}"
    return f"(None if {argument.name} is None else {text})" if argument.is_optional else text
