"""Schema text to `FunctionSchema`; errors point at the column.

* The grammar is that of torch, ``#`` comments and line breaks included; what torch prints reads back.
* Lower-case names of types that are no types are type variables here, since torch's own operators have
  them; ``validate`` refuses them in an operator of ours.
* A dotted name is a class: one of torch's own, or one that was registered with a loaded framework.
"""

from __future__ import annotations

import re
from keyword import iskeyword
from typing import Any

from opwright import catalogue
from opwright.defaults import INT64, Default, Mismatch, Word, takes_word, unquote
from opwright.qualname import parse_qualname
from opwright.schema import (
    AliasInfo,
    Argument,
    BaseType,
    FunctionSchema,
    GenericType,
    ListType,
    OptionalType,
    Return,
    Type,
)
from opwright.tokens import END, Tokens, visible
from opwright.typenames import BASE_TYPES, GENERIC_TYPES, hint_for

__all__ = ["parse_qualname", "parse_schema"]

_NUMBER = re.compile(r"-?[\d.]", re.ASCII)
_BASES = {name: BaseType(name) for name in BASE_TYPES}
_CONSTANTS = {"None": None, "True": True, "False": False}
_FLOATS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan"), "-nan": float("nan")}
_CLASS = "__torch__."
_MAX_DEPTH = 32


def parse_schema(
    text: str,
    *,
    name_required: bool = True,
    namespace: str | None = None,
) -> FunctionSchema:
    """Read a schema.

    Parameters
    ----------
    text
        ``ns::name.overload(Tensor x, *, float eps=1e-05) -> Tensor``.
    name_required
        If false, a bare ``(Tensor x) -> Tensor`` is read too; its name is empty.
    namespace
        Where given, ``name(...) -> ...`` is read and gets this namespace; another one is refused.

    Raises
    ------
    SchemaSyntaxError
        If the text cannot be read; the message shows it with the column and what was expected there.

    Examples
    --------
    >>> schema = parse_schema("ns::f(Tensor x, float eps=1) -> Tensor")
    >>> schema.name, schema.arguments[1].default.value, str(schema)
    ('ns::f', 1.0, 'ns::f(Tensor x, float eps=1) -> Tensor')
    """
    reader = _Reader(text)
    name, overload = "", ""
    if name_required or reader.tokens[0] != "(":
        name, overload = reader.name(namespace)
    arguments, is_vararg = reader.arguments()
    reader.expect("->", "'->' and the returns")
    returns, is_varret, is_tuple = reader.returns()
    if reader.tokens[reader.at]:
        reader.fail(END)
    return FunctionSchema(name, overload, arguments, returns, is_vararg, is_varret, is_tuple)


class _Reader(Tokens):
    """What has been read of one text: the rules of the grammar, one method each."""

    __slots__ = ()

    # ------------------------------------------------------------------------------------- the parts

    def name(self, namespace: str | None) -> tuple[str, str]:
        """Read ``ns::name.overload``."""
        tokens = self.tokens
        given = namespace
        if len(tokens) > 1 and tokens[1] == "::":
            given = self.identifier("a namespace")
            if namespace not in (None, given):
                self.fail(f"the namespace {namespace!r} of this library", at=0, what="another namespace")
            self.at = 2
        elif namespace is None:
            self.fail("an operator's name with its namespace: ns::name", what="the namespace is missing")
        name, _, overload = tokens[self.at].partition(".")
        if not (name.isidentifier() and name.isascii()) or "." in overload:
            self.fail("the operator's name: name or name.overload")
        if overload == "default":
            self.fail("an overload name other than 'default', which the unnamed overload has")
        self.at += 1
        return f"{given}::{name}", overload

    def arguments(self) -> tuple[tuple[Argument, ...], bool]:
        """Read the arguments in their parentheses, and whether ``...`` ends them."""
        self.expect("(", "'(' and the arguments")
        tokens = self.tokens
        if tokens[self.at] == ")":
            self.at += 1
            return (), False
        arguments: list[Argument] = []
        keyword_only = False
        while True:
            here = tokens[self.at]
            if here == "...":
                self.at += 1
                self.expect(")", "')', since '...' stands last")
                return tuple(arguments), True
            if here == "*" and not keyword_only:
                self.at += 1
                self.expect(",", "',' and keyword-only arguments after '*'")
                keyword_only = True
                continue
            type_ = self.type()
            name = tokens[self.at]
            if not (name.isidentifier() and name.isascii()):
                self.fail("the argument's name after its type")
            self.at += 1
            default = None
            if tokens[self.at] == "=":
                self.at += 1
                default = self.default(type_)
            arguments.append(Argument(name, type_, default, keyword_only))
            here = tokens[self.at]
            if here == ")":
                self.at += 1
                return tuple(arguments), False
            self.expect(",", "',' or ')' after an argument")

    def returns(self) -> tuple[tuple[Return, ...], bool, bool]:
        """Read the returns, whether ``...`` ends them, and whether they are a 1-tuple."""
        tokens = self.tokens
        if tokens[self.at] == "...":
            self.at += 1
            return (), True, False
        if tokens[self.at] != "(":
            return (self.one_return(),), False, False
        self.at += 1
        returns: list[Return] = []
        while tokens[self.at] != ")" or returns:
            if tokens[self.at] == "...":
                self.at += 1
                self.expect(")", "')', since '...' stands last")
                return tuple(returns), True, False
            returns.append(self.one_return())
            if tokens[self.at] == ")":
                break
            self.expect(",", "',' or ')' after a return")
        self.at += 1
        if len(returns) == 1 and not returns[0].name:
            inner = returns[0].type
            if (
                isinstance(inner, GenericType)
                and not inner.name
                and len(inner.elements) == 1
                and not inner.alias
            ):
                return (Return(inner.elements[0]),), False, True
        return tuple(returns), False, False

    def one_return(self) -> Return:
        """Read a type, and a name where one stands."""
        type_ = self.type()
        here = self.tokens[self.at]
        if here.isidentifier() and here.isascii() and not iskeyword(here):
            self.at += 1
            return Return(type_, here)
        return Return(type_)

    # ------------------------------------------------------------------------------------- types

    def type(self, depth: int = 0) -> Type:
        """Read a type with its alias sets, lists and optionals."""
        tokens = self.tokens
        found: Type | None = _BASES.get(tokens[self.at])
        if found is None:
            found = self.rare_type(depth)
        else:
            self.at += 1
        aliased = False
        while True:
            here = tokens[self.at]
            if (here == "(" or (here == "!" and tokens[self.at - 1] != "?")) and not aliased:
                found, aliased = _with_alias(found, self.alias()), True
            elif here == "[":
                found, aliased = ListType(found, self.size()), False
            elif here == "?":
                self.at += 1
                if not isinstance(found, OptionalType):
                    found = OptionalType(found)
            else:
                return found
            depth += 1
            if depth > _MAX_DEPTH:
                self.fail(f"a type of at most {_MAX_DEPTH} levels")

    def size(self) -> int | None:
        """Read ``[]`` or ``[2]``."""
        size = self.tokens[self.at + 1]
        if size == "]":
            self.at += 2
            return None
        self.at += 1
        if not (size.isdigit() and size.isascii()) or len(size) > 18:
            self.fail("']' or the list's length")
        self.at += 1
        self.expect("]", "']' after the list's length")
        return int(size)

    def alias(self) -> AliasInfo:
        """Read ``(a!)``, ``(a|b)``, ``(a -> *)`` or ``!``, which torch prints as ``($0! -> )``."""
        if self.tokens[self.at] == "!":
            self.at += 1
            return AliasInfo((), (), is_write=True)
        self.at += 1
        if self.tokens[self.at] == "$" and self.tokens[self.at + 1].isdigit():
            self.at += 2
            for token in ("!", "->", ")"):
                self.expect(token, f"{token!r}, as torch prints a set without a name")
            return AliasInfo((), (), is_write=True)
        before = self.alias_sets()
        is_write = self.tokens[self.at] == "!"
        self.at += is_write
        after: tuple[str, ...] = ()
        if self.tokens[self.at] == "->":
            self.at += 1
            after = self.alias_sets()
        self.expect(
            ")",
            "')' after the alias set" if is_write or after else "'!', '|', '->' or ')' after the alias set",
        )
        return AliasInfo(before, after, is_write)

    def alias_sets(self) -> tuple[str, ...]:
        """Read ``a|b`` or ``*``."""
        names: list[str] = []
        while not names or self.tokens[self.at] == "|":
            self.at += bool(names)
            if self.tokens[self.at] == "*":
                self.at += 1
                names.append("*")
            else:
                names.append(self.identifier("the name of an alias set, or '*'"))
        return tuple(names)

    def rare_type(self, depth: int) -> Type:
        """Read a tuple, a dict and its kin, a class or a type variable."""
        word = self.tokens[self.at]
        start = self.at
        if depth > _MAX_DEPTH:
            self.fail(f"a type of at most {_MAX_DEPTH} levels")
        count = 0 if word == "(" else GENERIC_TYPES.get(word)
        if count is not None:
            if word != "(":
                self.at += 1
                if self.tokens[self.at] != "(":
                    self.fail(f"'(' after {word}", fix=hint_for(word, self.tokens[self.at + 1 :]))
            self.at += 1
            elements = [self.type(depth + 1)]
            while self.tokens[self.at] == ",":
                self.at += 1
                elements.append(self.type(depth + 1))
            self.expect(")", "',' or ')' after an element type")
            if count and len(elements) != count:
                self.fail(f"{word} with {count} element {'type' if count == 1 else 'types'}", at=start)
            return GenericType("" if word == "(" else word, tuple(elements))
        if not (word[:1].isidentifier() and word.isascii()):
            self.fail("a type, such as Tensor, int, float, bool, Scalar or SymInt")
        hint = hint_for(word, self.tokens[self.at + 1 :])
        known = (
            word.startswith(_CLASS)
            or ("." not in word and word[0].islower() and not hint)
            or ("." in word and catalogue.opaque_class(word) is not None)
        )
        if not known:
            self.fail(
                "a type of the schema language, such as Tensor, int, float, bool, Scalar or SymInt",
                what="unknown type specifier",
                fix=hint,
            )
        self.at += 1
        return BaseType(word)

    # ------------------------------------------------------------------------------------- defaults

    def default(self, type_: Type) -> Default:
        """Read a default and convert it to the argument's type; one of another type is kept as it is."""
        start = self.at
        raw = self.value(type_)
        text = self.tokens[start]
        if self.at - start > 1:
            first, last = self.span(start)[0], self.span(self.at - 1)[1]
            text = self.text[first:last]
            if "\n" in text or "#" in text:
                text = "".join(", " if here == "," else here for here in self.tokens[start : self.at])
        value = type_.coerce(raw)
        return Default(raw if isinstance(value, Mismatch) else value, text)

    def value(self, type_: Type, depth: int = 0) -> Any:
        """Read one value."""
        here = self.tokens[self.at]
        if here in _CONSTANTS:
            self.at += 1
            return _CONSTANTS[here]
        if _NUMBER.match(here) and here != "...":
            return self.number(here)
        if here[:1] in ("'", '"') and len(here) > 1:
            return self.string(here)
        if here == "[" and depth < _MAX_DEPTH:
            return self.values(type_, depth)
        if here in _FLOATS:
            self.at += 1
            return _FLOATS[here]
        base = next((leaf.name for leaf in type_.bases()), "")
        if not (here.isidentifier() and here.isascii() and takes_word(base)):
            self.fail(f"a default of type {type_}")
        return self.word()

    def word(self) -> Word:
        """Read a name without quotes, or a device with its number (``cuda:0``)."""
        here = self.tokens[self.at]
        self.at += 1
        if self.tokens[self.at] == ":" and self.tokens[self.at + 1].isdigit():
            here = f"{here}:{self.tokens[self.at + 1]}"
            self.at += 2
        return Word(here)

    def number(self, here: str) -> int | float | complex:
        """Read an int of 64 bits, a float or a complex number."""
        value: int | float | complex
        if here[-1] == "j":
            value = complex(here)
        elif here.lstrip("-").isdigit():
            value = int(here) if len(here) < 24 else INT64.stop
            if value not in INT64:
                self.fail("an int of 64 bits")
        else:
            value = float(here)
        self.at += 1
        return value

    def string(self, here: str) -> str:
        """Read a quoted string."""
        try:
            value = unquote(here)
        except KeyError as error:
            self.fail(
                r"a string with the escapes \n \t \r \f \v \a \b \\ \" \' \? and octal ones",
                what=f"unknown escape \\{visible(error.args[0])} in a string",
            )
        self.at += 1
        return value

    def values(self, type_: Type, depth: int) -> tuple[Any, ...]:
        """Read a list."""
        self.at += 1
        values: list[Any] = []
        while self.tokens[self.at] != "]" or values:
            values.append(self.value(type_, depth + 1))
            if self.tokens[self.at] == "]":
                break
            self.expect(",", "',' or ']' after an element")
        self.at += 1
        return tuple(values)


def _with_alias(type_: Type, alias: AliasInfo) -> Type:
    """Attach an alias set; one that torch prints behind ``?`` belongs to what is optional."""
    if isinstance(type_, OptionalType):
        return OptionalType(_with_alias(type_.element, alias))
    if isinstance(type_, ListType):
        return ListType(type_.element, type_.size, alias)
    if isinstance(type_, GenericType):
        return GenericType(type_.name, type_.elements, alias)
    return BaseType(type_.name, alias) if isinstance(type_, BaseType) else type_
