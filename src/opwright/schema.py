"""The schema of an overload: arguments, types, defaults, aliasing, mutation, returns.

* Everything here is frozen and prints itself back as the text it was read from.
* An alias set belongs to the type that carries it: ``Tensor(a!)[]`` marks the elements,
  ``t[](a!)`` the list.
* ``Argument.choices`` (of ``Literal`` and ``Enum`` parameters) and ``Argument.is_tuple`` are not part of the
  text.
* A default is converted to its argument's type where torch converts (``float x=1`` holds 1.0).
* What an operator of ours must satisfy beyond this is in ``validate.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from opwright.defaults import Default, Mismatch, coerce_base, repeats

TYPE_CHECKING = False
if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator, Sequence
    from inspect import Signature

__all__ = [
    "AliasInfo",
    "Argument",
    "BaseType",
    "Default",
    "FunctionSchema",
    "GenericType",
    "ListType",
    "OptionalType",
    "Return",
    "Type",
    "signature_of",
]


@dataclass(frozen=True, slots=True)
class AliasInfo:
    """The alias annotation of a type: ``(a!)``, ``(a|b)``, ``(a -> *)``.

    Parameters
    ----------
    before
        Names of the alias sets on entry; ``"*"`` is the wildcard; empty for ``Tensor!``.
    after
        Names on return where they differ (``a -> *``), else empty.
    is_write
        Whether the operator writes to it (``!``).
    """

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    is_write: bool = False

    def __str__(self) -> str:
        if not self.before:
            return "!"  # written ``Tensor!``: mutated, in a set without a name
        after = f" -> {'|'.join(self.after)}" if self.after else ""
        return f"({'|'.join(self.before)}{'!' if self.is_write else ''}{after})"


@dataclass(frozen=True, slots=True)
class Type:
    """Abstract base of the types of the schema language."""

    def parts(self) -> tuple[Type, ...]:
        """Return the types directly inside."""
        return ()

    def coerce(self, value: Any) -> Any:
        """Return a default's value as an argument of this type holds it, or a `Mismatch`."""
        return Mismatch("no default, for a schema cannot write one of this type")

    def leaf(self) -> Type:
        """Return the type under every list and optional."""
        return self.parts()[0].leaf() if isinstance(self, ListType | OptionalType) else self

    def aliases(self) -> Iterator[AliasInfo]:
        """Yield the alias annotations, from the inside out."""
        for part in self.parts():
            yield from part.aliases()
        alias: AliasInfo | None = getattr(self, "alias", None)
        if alias is not None:
            yield alias

    def bases(self) -> Iterator[BaseType]:
        """Yield the named types, those inside a tuple or a dict included."""
        if isinstance(self, BaseType):
            yield self
        for part in self.parts():
            yield from part.bases()


@dataclass(frozen=True, slots=True)
class BaseType(Type):
    """A named type: ``Tensor``, ``SymInt``, ``str``, ``Scalar``, a type variable, a torch class."""

    name: str
    alias: AliasInfo | None = None

    def __str__(self) -> str:
        return f"{self.name}{self.alias or ''}"

    def coerce(self, value: Any) -> Any:
        """Convert what torch converts, such as an int for a float."""
        return coerce_base(self.name, value)


@dataclass(frozen=True, slots=True)
class ListType(Type):
    """A list, with its length where the schema fixes it (``int[2]``)."""

    element: Type
    size: int | None = None
    alias: AliasInfo | None = None

    def __str__(self) -> str:
        return f"{self.element}[{'' if self.size is None else self.size}]{self.alias or ''}"

    def parts(self) -> tuple[Type, ...]:
        """Return the element's type."""
        return (self.element,)

    def coerce(self, value: Any) -> Any:
        """Convert each element; one number fills a list of fixed length."""
        if isinstance(value, list | tuple):
            values = tuple(self.element.coerce(entry) for entry in value)
            wrong = next((entry for entry in values if isinstance(entry, Mismatch)), None)
            return values if wrong is None else Mismatch(f"a list, each element {wrong.expected}")
        if self.size is not None and isinstance(self.element, BaseType) and repeats(self.element.name):
            one = self.element.coerce(value)
            return one if isinstance(one, Mismatch) else (one,) * self.size
        return Mismatch("a list")


@dataclass(frozen=True, slots=True)
class OptionalType(Type):
    """A type or ``None``."""

    element: Type

    def __str__(self) -> str:
        return f"{self.element}?"

    def parts(self) -> tuple[Type, ...]:
        """Return the type that may be missing."""
        return (self.element,)

    def coerce(self, value: Any) -> Any:
        """Keep ``None``."""
        inner = None if value is None else self.element.coerce(value)
        return Mismatch(f"None or {inner.expected}") if isinstance(inner, Mismatch) else inner


@dataclass(frozen=True, slots=True)
class GenericType(Type):
    """``Dict(str, int)``, ``Future(t)``, ``Union(…)``, or a bare tuple ``(int, int)`` (name ``""``)."""

    name: str
    elements: tuple[Type, ...]
    alias: AliasInfo | None = None

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.elements))}){self.alias or ''}"

    def parts(self) -> tuple[Type, ...]:
        """Return the element types."""
        return self.elements


@dataclass(frozen=True)
class Argument:
    """One argument of a schema.

    Parameters
    ----------
    name
        The parameter's name, a Python identifier.
    type
        Its type, with alias annotations.
    default
        Its default, or ``None`` where it has none.
    kwarg_only
        Whether it can only be passed by name.
    choices
        The values that a ``Literal`` allows, or the ``Enum`` class; ``None`` where any value goes.
    is_tuple
        Whether kernels and rules get its list as a tuple, as a parameter of theirs is annotated.
    """

    name: str
    type: Type
    default: Default | None = None
    kwarg_only: bool = False
    choices: tuple[Any, ...] | builtins.type | None = None
    is_tuple: bool = False

    def __str__(self) -> str:
        return f"{self.type} {self.name}{'' if self.default is None else f'={self.default}'}"

    @cached_property
    def base(self) -> str:
        """The name of the type under every list and optional, such as ``"Tensor"``."""
        leaf = self.type.leaf()
        return leaf.name if isinstance(leaf, BaseType | GenericType) else ""

    @cached_property
    def is_optional(self) -> bool:
        """Whether ``None`` is allowed for the whole argument."""
        return isinstance(self.type, OptionalType)

    @cached_property
    def is_list(self) -> bool:
        """Whether it is a list, or an optional one."""
        inner = self.type.element if isinstance(self.type, OptionalType) else self.type
        return isinstance(inner, ListType)

    @cached_property
    def has_tensors(self) -> bool:
        """Whether it is a Tensor, optional or in a list included."""
        return self.base == "Tensor"

    @cached_property
    def is_tensor(self) -> bool:
        """Whether it is one Tensor, optional or not."""
        return self.has_tensors and not self.is_list

    @cached_property
    def is_tensor_list(self) -> bool:
        """Whether it is a list of Tensors, with or without ``None`` among them."""
        return self.has_tensors and self.is_list

    @cached_property
    def is_write(self) -> bool:
        """Whether the operator mutates it."""
        return any(alias.is_write for alias in self.type.aliases())


@dataclass(frozen=True, slots=True)
class Return:
    """One return of a schema: its type, and its name where it has one."""

    type: Type
    name: str = ""

    def __str__(self) -> str:
        return f"{self.type}{' ' + self.name if self.name else ''}"


@dataclass(frozen=True)
class FunctionSchema:
    """``ns::name.overload(Tensor x, *, float eps=1e-05) -> Tensor``.

    Parameters
    ----------
    name
        The qualified name, ``"ns::name"``; empty for a bare signature.
    overload
        The overload's name; empty for ``default``.
    arguments
        Positional arguments, then keyword-only ones.
    returns
        The returns, in order.
    is_vararg, is_varret
        Whether the arguments or returns end with ``...``.
    is_tuple
        Whether the operator returns a 1-tuple, written ``-> ((Tensor))``; ``-> (Tensor)`` is a bare Tensor.
    """

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[Return, ...]
    is_vararg: bool = False
    is_varret: bool = False
    is_tuple: bool = False

    def __str__(self) -> str:
        return f"{self.name}{'.' + self.overload if self.overload else ''}{self.signature}"

    @cached_property
    def signature(self) -> str:
        """The text from the opening parenthesis on."""
        parts = [str(argument) for argument in self.positional]
        if self.keyword_only:
            parts += ["*", *(str(argument) for argument in self.keyword_only)]
        if self.is_vararg:
            parts.append("...")
        returns = [str(entry) for entry in self.returns] + (["..."] if self.is_varret else [])
        text = ", ".join(returns)
        if self.is_tuple and len(returns) == 1:
            text = f"({text})"
        if len(returns) != 1 or text.startswith("("):
            text = f"({text})"
        return f"({', '.join(parts)}) -> {text}"

    @cached_property
    def qualname(self) -> str:
        """``ns::name.overload``, with ``default`` spelled out nowhere."""
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @cached_property
    def positional(self) -> tuple[Argument, ...]:
        """The arguments that can be passed by position."""
        return tuple(argument for argument in self.arguments if not argument.kwarg_only)

    @cached_property
    def keyword_only(self) -> tuple[Argument, ...]:
        """The arguments that can only be passed by name."""
        return tuple(argument for argument in self.arguments if argument.kwarg_only)

    @cached_property
    def mutated(self) -> tuple[Argument, ...]:
        """The arguments that the operator writes to."""
        return tuple(argument for argument in self.arguments if argument.is_write)

    @cached_property
    def tuples(self) -> tuple[int, ...]:
        """The positions of the arguments that kernels and rules get as tuples."""
        return tuple(index for index, argument in enumerate(self.arguments) if argument.is_tuple)

    def with_tuples(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return values in schema order, lists as the tuples that kernels and rules get."""
        if not self.tuples:
            return values
        changed = list(values)
        for index in self.tuples:
            if isinstance(changed[index], list):
                changed[index] = tuple(changed[index])
        return changed


def signature_of(schema: FunctionSchema) -> Signature:
    """Return the Python signature of a schema's call, without annotations.

    Parameters
    ----------
    schema
        A validated schema.

    Examples
    --------
    >>> from opwright.parse import parse_schema
    >>> str(signature_of(parse_schema("ns::f(Tensor x, int[2] k=1, *, float? eps=None) -> Tensor")))
    '(x, k=(1, 1), *, eps=None)'
    """
    from inspect import Parameter, Signature

    def one(argument: Argument) -> Parameter:
        kind = Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD
        default = Parameter.empty if argument.default is None else argument.default.value
        return Parameter(argument.name, kind, default=default)

    return Signature([*map(one, schema.positional), *map(one, schema.keyword_only)])
