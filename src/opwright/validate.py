"""What a schema must satisfy before an operator of ours is made from it.

* Names reach generated source, so they are ASCII identifiers and no keywords.
* torch accepts more: it prints and ignores what is refused here, or fails later with an internal error.
* Python cannot write a required parameter after one with a default; as in torch that is refused, except
  among keyword-only arguments.
"""

from __future__ import annotations

from typing import NamedTuple

from opwright.defaults import Mismatch
from opwright.errors import SchemaError, SchemaSyntaxError, layout
from opwright.qualname import name_problem
from opwright.schema import BaseType, GenericType, ListType, OptionalType
from opwright.tokens import visible
from opwright.typenames import BASE_TYPES, hint_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import Enum

    from opwright.schema import Argument, FunctionSchema, Type


class _Problem(NamedTuple):
    """One thing that is wrong, what is allowed instead, and how to get there."""

    what: str
    expected: str
    fix: str | None = None
    kind: type[SchemaError] = SchemaError


def validate(schema: FunctionSchema) -> None:
    """Check a schema that an operator is to be made from.

    Parameters
    ----------
    schema
        As it was read, inferred or put together; its name may be empty.

    Raises
    ------
    SchemaError
        With everything that is wrong: names, unknown types, defaults of another type, mutation without an
        alias set, the order of arguments. It is a `SchemaSyntaxError` where a type is unknown.

    Examples
    --------
    >>> from opwright.parse import parse_schema
    >>> validate(parse_schema("ns::f(Tensor(a!) x, int k=1) -> ()"))
    """
    problems = [
        *_name_problems(schema),
        *_argument_problems(schema),
        *_order_problems(schema),
        *_return_problems(schema),
    ]
    if not problems:
        return
    first = next((problem for problem in problems if problem.kind is SchemaSyntaxError), problems[0])
    title, text = visible(schema.qualname) or "schema", visible(str(schema))
    message = layout(f"{title}: {first.what}", expected=first.expected, got=text, fix=first.fix)
    others = dict.fromkeys(problem.what for problem in problems if problem.what != first.what)
    raise first.kind(message + "".join(f"\n  also: {other}" for other in others))


def _name_problems(schema: FunctionSchema) -> Iterator[_Problem]:
    if schema.name:
        namespace, separator, name = schema.name.partition("::")
        if not separator:
            yield _Problem("the name has no namespace", "namespace::name")
            return
        parts = [("namespace", namespace), ("name", name)]
        if schema.overload:
            parts.append(("overload", schema.overload))
        for what, part in parts:
            problem = name_problem(part)
            if problem is not None:
                yield _Problem(
                    f"the {what} {part!a} {problem}", "namespace::name.overload of Python identifiers"
                )
    if schema.overload == "default":
        yield _Problem("an overload cannot be named 'default'", "no overload name, which means the same")


def _argument_problems(schema: FunctionSchema) -> Iterator[_Problem]:
    seen = set()
    for argument in schema.arguments:
        problem = name_problem(argument.name)
        if problem is not None:
            fix = f"name it {argument.name}_" if argument.name.isidentifier() else None
            yield _Problem(f"the argument name {argument.name!a} {problem}", "a Python identifier", fix)
        if argument.name in seen:
            yield _Problem(f"two arguments are named {argument.name}", "each name once")
        seen.add(argument.name)
        yield from _type_problems(f"argument {argument.name}", argument.type)
        yield from _default_problems(argument)
        yield from _mutation_problems(argument)


def _type_problems(where: str, type_: Type) -> Iterator[_Problem]:
    if isinstance(type_, BaseType) and type_.name in BASE_TYPES:  # most are
        return
    for base in type_.bases():
        if base.name not in BASE_TYPES and "." not in base.name:
            what = f"{where} has the type {base.name}, which is unknown (unknown type specifier)"
            expected = "a type of the schema language, such as Tensor, int, float, bool, Scalar or SymInt"
            yield _Problem(what, expected, hint_for(base.name, ()), SchemaSyntaxError)
    if any(base.name == "Tensor" for base in type_.bases()) and not _holds_plainly(type_):
        what = f"{where} of type {type_} holds Tensors where no call looks for them"
        yield _Problem(what, "Tensor or Tensor[], each with or without '?'", "use one flat list of Tensors")


def _holds_plainly(type_: Type) -> bool:
    """Whether Tensors are at the top or in one list, optional or not."""
    inner = type_.element if isinstance(type_, OptionalType) else type_
    inner = inner.element if isinstance(inner, ListType) else inner
    return isinstance(inner.element if isinstance(inner, OptionalType) else inner, BaseType)


def _default_problems(argument: Argument) -> Iterator[_Problem]:
    default, choices = argument.default, argument.choices
    if default is None:
        return
    if choices is not None:
        if default.value is None and argument.is_optional:
            return
        fits = default.value in choices if isinstance(choices, tuple) else isinstance(default.value, choices)
        if not fits:
            allowed = map(repr, choices) if isinstance(choices, tuple) else _members(choices)
            yield _Problem(
                f"the default {default.text} of argument {argument.name} is not among its choices",
                "one of " + ", ".join(allowed),
            )
        return
    value = argument.type.coerce(default.value)
    if isinstance(value, Mismatch):
        fix = None
        if default.value is None and not argument.is_optional:
            fix = f"write {argument.type}? {argument.name}=None"
        what = f"the default {default.text} of argument {argument.name} is not of type {argument.type}"
        yield _Problem(what, value.expected, fix)


def _members(choices: type[Enum] | type) -> Iterator[str]:
    return iter(getattr(choices, "__members__", (choices.__name__,)))


def _mutation_problems(argument: Argument) -> Iterator[_Problem]:
    name, written = argument.name, [alias for alias in argument.type.aliases() if alias.is_write]
    if not written:
        return
    if not argument.has_tensors:
        yield _Problem(
            f"argument {name} of type {argument.type} is marked as mutated",
            "mutation of Tensors only",
            "remove the '!'; what a kernel returns is new",
        )
        return
    if any("*" in alias.before for alias in written):
        yield _Problem(
            f"argument {name} is mutated, but its alias set is the wildcard",
            "a set of its own",
            f"write Tensor!, or name the set: Tensor({name}!)",
        )


def _order_problems(schema: FunctionSchema) -> Iterator[_Problem]:
    if schema.is_vararg or schema.is_varret:
        yield _Problem("'...' stands for any number of values", "a fixed list of arguments and returns")
    keyword_only = defaulted = ""
    for argument in schema.arguments:
        if argument.kwarg_only:
            keyword_only = argument.name
            continue
        if keyword_only:
            yield _Problem(
                f"argument {argument.name} is not keyword-only but follows {keyword_only}, which is",
                "keyword-only arguments last",
            )
        if argument.default is not None:
            defaulted = argument.name
        elif defaulted:
            yield _Problem(
                f"argument {argument.name} has no default but follows {defaulted}, which has one",
                "arguments with defaults last",
                f"give {argument.name} a default, move it forward, or put '*' before it",
            )


def _return_problems(schema: FunctionSchema) -> Iterator[_Problem]:
    aliases = [alias for argument in schema.arguments for alias in argument.type.aliases()]
    known = {name for alias in aliases for name in alias.before}
    written = {name for alias in aliases if alias.is_write for name in alias.before}
    seen = set()
    for number, entry in enumerate(schema.returns):
        where = f"return {entry.name or number}"
        yield from _type_problems(where, entry.type)
        if isinstance(entry.type, GenericType) and not entry.type.name:
            yield _Problem(f"{where} is a tuple inside the returns", "returns side by side")
        if entry.name:
            problem = name_problem(entry.name)
            if problem is not None:
                yield _Problem(f"the return name {entry.name!a} {problem}", "a Python identifier")
            if entry.name in seen:
                yield _Problem(f"two returns are named {entry.name}", "each name once")
            seen.add(entry.name)
        for alias in entry.type.aliases():
            if not known.intersection(alias.before) and "*" not in alias.before:
                what = f"{where} is in the alias set {alias}, which no argument has"
                yield _Problem(what, _sets(known))
            elif alias.is_write and not written.intersection(alias.before):
                yield _Problem(
                    f"{where} is marked {alias}, but no argument of that set is mutated", _sets(written)
                )


def _sets(names: set[str]) -> str:
    named = sorted(names - {"*"})
    return f"one of the sets {', '.join(named)}" if named else "no alias set"
