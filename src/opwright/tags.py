"""Tags of an overload: their names, and what the ``inplace`` and ``out`` tags ask of a schema."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Any

from opwright.errors import RegistrationTypeError, SchemaError, layout
from opwright.schema import AliasInfo, BaseType, FunctionSchema, Return

_TENSOR = BaseType("Tensor")


class Tag(Enum):
    """Tags of an operator, under torch's names; torch's own and plain strings are taken as well."""

    core = "core"
    cudagraph_unsafe = "cudagraph_unsafe"
    data_dependent_output = "data_dependent_output"
    dynamic_output_shape = "dynamic_output_shape"
    flexible_layout = "flexible_layout"
    generated = "generated"
    inplace = "inplace"
    inplace_view = "inplace_view"
    maybe_aliasing_or_mutating = "maybe_aliasing_or_mutating"
    needs_contiguous_strides = "needs_contiguous_strides"
    needs_exact_strides = "needs_exact_strides"
    needs_fixed_stride_order = "needs_fixed_stride_order"
    nondeterministic_bitwise = "nondeterministic_bitwise"
    nondeterministic_seeded = "nondeterministic_seeded"
    out = "out"
    pointwise = "pointwise"
    pt2_compliant_tag = "pt2_compliant_tag"
    reduction = "reduction"
    view_copy = "view_copy"


def tag_names(tags: Any) -> frozenset[str]:
    """Return the names of one tag or several: Opwright's, torch's, or strings.

    Raises
    ------
    SchemaError
        If a string names no tag.
    RegistrationTypeError
        If it is neither a tag nor a string.
    """
    if tags is None:
        return frozenset()
    if isinstance(tags, str) or hasattr(tags, "name") or not isinstance(tags, Iterable):
        tags = (tags,)
    return frozenset(map(_tag_name, tags))


def _tag_name(tag: Any) -> str:
    name = getattr(tag, "name", tag)
    if not isinstance(name, str):
        raise RegistrationTypeError(
            layout("a tag must be an opwright.Tag, a torch.Tag, or the name of one", got=repr(tag))
        )
    if name is tag and name not in Tag.__members__:
        raise SchemaError(layout(f"{name!r} is not a tag", expected=f"one of {', '.join(Tag.__members__)}"))
    return name


def alias_returns(schema: FunctionSchema, tags: Any, *, label: str) -> FunctionSchema:
    """Return the schema with the aliases that the ``inplace`` or ``out`` tag gives its returns.

    Raises
    ------
    SchemaError
        If the schema breaks a rule of the tag; the message names the rule.
    """
    names = tag_names(tags)
    if "inplace" in names and "out" in names:
        raise SchemaError(
            layout(
                f"{label}: torch.Tag.inplace and torch.Tag.out are mutually exclusive",
                fix="keep the tag that says where the result goes",
            )
        )
    if "inplace" in names:
        broken, aliases = _inplace_rule(schema)
        tag = "inplace"
    elif "out" in names:
        broken, aliases = _out_rule(schema)
        tag = "out"
    else:
        return schema
    if broken is not None:
        raise SchemaError(layout(f"{label}: torch.Tag.{tag} {broken}", got=schema.signature))
    returns = tuple(Return(replace(_TENSOR, alias=alias), old.name) for alias, old in _pairs(aliases, schema))
    return replace(schema, returns=returns)


def check_tags(schema: FunctionSchema, tags: Any, *, label: str | None = None) -> None:
    """Check a schema, written by hand, against the rules of the ``inplace`` and ``out`` tags.

    Raises
    ------
    SchemaError
        If it breaks one, or its returns lack the aliases.
    """
    expected = alias_returns(schema, tags, label=label or schema.qualname)
    if expected != schema:
        tag = "inplace" if "inplace" in tag_names(tags) else "out"
        raise SchemaError(
            layout(
                f"{label or schema.qualname}: torch.Tag.{tag} requires the returns to alias what is mutated",
                expected=expected.signature,
                got=schema.signature,
            )
        )


def _pairs(aliases: list[AliasInfo], schema: FunctionSchema) -> list[tuple[AliasInfo, Return]]:
    return list(zip(aliases, schema.returns, strict=True))


def _bare_returns(schema: FunctionSchema) -> list[object]:
    return [
        replace(entry.type, alias=None) if isinstance(entry.type, BaseType) else entry.type
        for entry in schema.returns
    ]


def _inplace_rule(schema: FunctionSchema) -> tuple[str | None, list[AliasInfo]]:
    """The rule that is broken, or None; and the aliases of the returns."""
    first = next(iter(schema.positional), None)
    if first is None:
        return "requires a positional Tensor argument.", []
    if not isinstance(first.type, BaseType) or first.type.name != "Tensor":
        return "requires the first positional argument to be a Tensor.", []
    mutated = [argument.name for argument in schema.mutated]
    if mutated != [first.name]:
        named = f"({', '.join(map(repr, mutated))}{',' if len(mutated) == 1 else ''})"
        return f"requires mutates_args to contain exactly the first positional argument, got {named}.", []
    if _bare_returns(schema) != [_TENSOR] or schema.is_tuple:
        return "requires the return annotation to be torch.Tensor.", []
    return None, list(first.type.aliases())


def _out_rule(schema: FunctionSchema) -> tuple[str | None, list[AliasInfo]]:
    """The rule that is broken, or None; and the aliases of the returns."""
    mutated = schema.mutated
    if any(not argument.kwarg_only for argument in mutated):
        return "requires mutable arguments to be keyword-only.", []
    if any(not isinstance(argument.type, BaseType) for argument in mutated):
        return "only supports mutable keyword-only Tensor arguments.", []
    if not mutated:
        return "requires at least one mutable keyword-only Tensor argument.", []
    if _bare_returns(schema) != [_TENSOR] * len(mutated) or schema.is_tuple:
        named = ", ".join(argument.name for argument in mutated)
        return (
            f"requires the return annotation to match the mutable keyword-only Tensor arguments {named}.",
            [],
        )
    return None, [alias for argument in mutated for alias in argument.type.aliases()]
