"""Alias sets without a name: ``Tensor! x`` is mutated, in a set of its own.

Torch reads them and prints a text that it cannot read (``Tensor($0! -> )``), and much of what it does with an
operator starts from that text: an operator of ours gets a name for each, ``Tensor(a0!)``, before it is made.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from opwright.schema import (
    AliasInfo,
    Argument,
    BaseType,
    FunctionSchema,
    GenericType,
    ListType,
    OptionalType,
    Type,
)


def with_named_sets(schema: FunctionSchema) -> FunctionSchema:
    """Return a schema whose arguments have a name for each alias set.

    Examples
    --------
    >>> from opwright.parse import parse_schema
    >>> str(with_named_sets(parse_schema("ns::f(Tensor x, Tensor! y, *, Tensor!? out=None) -> ()")))
    'ns::f(Tensor x, Tensor(a1!) y, *, Tensor(a2!)? out=None) -> ()'
    """
    found = [alias for argument in schema.arguments for alias in argument.type.aliases()]
    if all(alias.before for alias in found):
        return schema
    taken = {name for alias in found for name in (*alias.before, *alias.after)}

    def named(index: int, argument: Argument) -> Argument:
        return replace(argument, type=_named(argument.type, index, taken))

    return replace(schema, arguments=tuple(named(*pair) for pair in enumerate(schema.arguments)))


def _named(type_: Type, index: int, taken: set[str]) -> Type:
    """Return a type whose alias sets have names: ``a2`` for the argument at 2, as ``infer_schema`` has it."""
    if isinstance(type_, OptionalType):
        return OptionalType(_named(type_.element, index, taken))
    if isinstance(type_, ListType):
        type_ = replace(type_, element=_named(type_.element, index, taken))
    if isinstance(type_, BaseType | ListType | GenericType) and type_.alias and not type_.alias.before:
        candidates = (f"a{index}{'' if number == 0 else f'_{number}'}" for number in count())
        name = next(candidate for candidate in candidates if candidate not in taken)
        taken.add(name)
        return replace(type_, alias=AliasInfo((name,), (), type_.alias.is_write))
    return type_
