"""Symbolic sizes: integers that are not known, in the shapes of fakes.

* Arithmetic gives polynomials in a normal form, so that ``2 * n - n`` is ``n``; what is no polynomial
  (``n // 2``) becomes an atom of its own. A result that is known is a plain ``int``.
* A question that the bounds of the symbols do not answer (``n > 2``, ``int(n)``) raises, or, while
  `recording` is on, is answered by the symbols' hints and kept with the line that asked.
* Sizes of other libraries' (JAX's symbolic dimensions, torch's SymInt) stand in shapes as they are.
"""

from __future__ import annotations

import math
import numbers
import operator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from opwright.errors import ArgumentError, ArgumentValueError, FakeError, layout
from opwright.source import caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Bound = float  # an int, or an infinity


@final
@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """A factor of a size: a symbol, or a quotient or remainder that is no polynomial.

    Parameters
    ----------
    text
        How it prints; two atoms of one text are the same.
    low, high
        The bounds of its value.
    hint
        A value that it could have, or None.
    parts
        The operation and its operands; empty for a symbol.
    """

    text: str
    low: Bound = 0
    high: Bound = math.inf
    hint: int | None = None
    parts: tuple[Any, ...] = ()

    def __eq__(self, other: object) -> Any:
        return isinstance(other, Atom) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def value(self, known: Mapping[str, int] | None) -> int | None:
        """Return its value where each symbol has the one in ``known``, or its hint; None if not known."""
        if not self.parts:
            return self.hint if known is None else known.get(self.text)
        values = [evaluate(operand, known) for operand in self.parts[1:]]
        return None if None in values else int(self.parts[0](*values))


Monomial = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of a size that is not known, the line that asked it, and the hints' answer."""

    text: str
    source: str
    answer: Any = None


_questions: ContextVar[list[Question] | None] = ContextVar("opwright_size_questions", default=None)


@contextmanager
def recording() -> Iterator[list[Question]]:
    """Answer questions about sizes by their hints for the duration, and list them."""
    asked: list[Question] = []
    token = _questions.set(asked)
    try:
        yield asked
    finally:
        _questions.reset(token)


def _ask(text: str, answer: Any) -> Any:
    """Return the hint's answer while questions are recorded; else raise."""
    source = caller()[0]
    asked = _questions.get()
    if asked is not None:
        asked.append(Question(text, source, answer))
        if answer is not None:
            return answer
    raise FakeError(
        layout(
            f"{text} needs the value of a size that is not known",
            got=f"asked at {source}",
            fix="leave the size symbolic: compute shapes with arithmetic, and do not branch on them",
        )
    )


@final
class Size:
    """A size that is not known: ``n``, ``2*n + 1``, ``n//2``. Made by `symbol` and by arithmetic."""

    __slots__ = ("terms",)
    terms: dict[Monomial, int]

    def __init__(self, terms: dict[Monomial, int]) -> None:
        object.__setattr__(self, "terms", terms)

    def __reduce__(self) -> tuple[Any, ...]:
        return Size, (self.terms,)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a size is frozen: {name!r} cannot be set")

    def __repr__(self) -> str:
        order = sorted(self.terms.items(), key=lambda term: (-len(term[0]), [atom.text for atom in term[0]]))
        return " + ".join(_term_text(*term) for term in order).replace("+ -", "- ")

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    # ------------------------------------------------------------------------------- arithmetic

    def __add__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else _sum(self.terms, terms)

    def __sub__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else _sum(self.terms, terms, -1)

    def __rsub__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else _sum(terms, self.terms, -1)

    def __mul__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else _product(self.terms, terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Size:
        return self

    def __pow__(self, power: Any) -> Any:
        if not isinstance(power, int) or power < 0:
            return NotImplemented
        return math.prod([self] * power)

    def __floordiv__(self, other: Any) -> Any:
        return _quotient(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _quotient(other, self)

    def __mod__(self, other: Any) -> Any:
        return _remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return _remainder(other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __truediv__(self, other: Any) -> Any:
        raise FakeError(layout(f"a size is an integer: {self} / {other} is not", fix="divide with //"))

    def __rtruediv__(self, other: Any) -> Any:
        raise FakeError(layout(f"a size is an integer: {other} / {self} is not", fix="divide with //"))

    # -------------------------------------------------------------------------------- questions

    def __eq__(self, other: object) -> Any:
        return self._compare("==", other, lambda low, high: (low == high == 0, low > 0 or high < 0))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> Any:
        return self._compare("<", other, lambda low, high: (high < 0, low >= 0))

    def __le__(self, other: Any) -> Any:
        return self._compare("<=", other, lambda low, high: (high <= 0, low > 0))

    def __gt__(self, other: Any) -> Any:
        return self._compare(">", other, lambda low, high: (low > 0, high <= 0))

    def __ge__(self, other: Any) -> Any:
        return self._compare(">=", other, lambda low, high: (low >= 0, high < 0))

    def _compare(self, sign: str, other: Any, decide: Callable[[Bound, Bound], tuple[bool, bool]]) -> Any:
        terms = _terms(other)
        if terms is None:
            return NotImplemented
        difference = _sum(self.terms, terms, -1)
        yes, no = decide(*bounds(difference))
        if yes or no:
            return yes
        hint = evaluate(difference)
        return _ask(f"{self} {sign} {other}", None if hint is None else decide(hint, hint)[0])

    def __bool__(self) -> bool:
        return self != 0

    def __int__(self) -> int:
        return int(_ask(f"int({self})", evaluate(self)))

    __index__ = __int__

    def __float__(self) -> float:
        return float(_ask(f"float({self})", evaluate(self)))


def symbol(name: str, hint: int | None = None, *, low: int = 0, high: int | None = None) -> Size:
    """Return the size called ``name``; two of one name are the same size.

    Parameters
    ----------
    name
        An identifier.
    hint
        A value that it could have; answers questions while `recording` is on.
    low, high
        The bounds of its value.
    """
    if not name.isidentifier():
        raise ArgumentValueError(layout(f"{name!r} is not a name for a size", expected="an identifier"))
    return Size({(Atom(name, low, math.inf if high is None else high, hint),): 1})


def as_size(value: Any) -> Any:
    """Return what stands in a shape for ``value``: an int, a symbol for a name, or another library's size.

    Raises
    ------
    ArgumentError
        If it is no size.
    ArgumentValueError
        If it is negative.
    """
    if isinstance(value, str):
        return symbol(value)
    if value.__class__ is not bool and isinstance(value, numbers.Integral):
        if int(value) < 0:
            raise ArgumentValueError(layout("a size is not negative", got=str(value)))
        return int(value)
    foreign = type(value).__module__ != "builtins" and hasattr(value, "__mul__")
    if isinstance(value, Size) or (
        foreign and not isinstance(value, numbers.Number) and not hasattr(value, "shape")
    ):
        return value
    raise ArgumentError(
        layout(
            "not a size",
            expected="an int, a symbolic size, or the name of one",
            got=f"{value!r} of type {type(value).__name__}",
        )
    )


def evaluate(size: Any, known: Mapping[str, int] | None = None) -> int | None:
    """Return the value of a size whose symbols have those of ``known`` (by default their hints), or None."""
    if not isinstance(size, Size):
        return int(size)
    total = 0
    for monomial, factor in size.terms.items():
        values = [atom.value(known) for atom in monomial]
        if None in values:
            return None
        total += factor * math.prod(value for value in values if value is not None)
    return total


def bounds(size: Any) -> tuple[Bound, Bound]:
    """Return the least and the greatest value that a size can have."""
    if not isinstance(size, Size):
        return size, size
    low: Bound = 0
    high: Bound = 0
    for monomial, factor in size.terms.items():
        ends: tuple[Bound, Bound] = (factor, factor)
        for atom in monomial:
            corners = [_times(end, bound) for end in ends for bound in (atom.low, atom.high)]
            ends = min(corners), max(corners)
        low, high = low + ends[0], high + ends[1]
    return low, high


def _times(a: Bound, b: Bound) -> Bound:
    return 0 if 0 in (a, b) else a * b  # an infinity times zero is none here


def _term_text(monomial: Monomial, factor: int) -> str:
    if not monomial:
        return str(factor)
    if factor == 1 and len(monomial) == 1:
        return monomial[0].text
    names = "*".join(_wrap(atom.text) for atom in monomial)
    return names if factor == 1 else f"-{names}" if factor == -1 else f"{factor}*{names}"


def _terms(value: Any) -> dict[Monomial, int] | None:
    """Return the terms of a size or an integer; None for anything else."""
    if isinstance(value, Size):
        return value.terms
    if isinstance(value, numbers.Integral):
        return {(): int(value)} if value else {}
    return None


def _from_terms(terms: dict[Monomial, int]) -> Any:
    terms = {monomial: factor for monomial, factor in terms.items() if factor}
    if not any(terms):
        return terms.get((), 0)
    return Size(terms)


def _sum(a: Mapping[Monomial, int], b: Mapping[Monomial, int], sign: int = 1) -> Any:
    terms = dict(a)
    for monomial, factor in b.items():
        terms[monomial] = terms.get(monomial, 0) + sign * factor
    return _from_terms(terms)


def _product(a: Mapping[Monomial, int], b: Mapping[Monomial, int]) -> Any:
    terms: dict[Monomial, int] = {}
    for first, factor in a.items():
        for second, other in b.items():
            monomial = tuple(sorted(first + second, key=lambda atom: atom.text))
            terms[monomial] = terms.get(monomial, 0) + factor * other
    return _from_terms(terms)


def _quotient(a: Any, b: Any) -> Any:
    top, bottom = _terms(a), _terms(b)
    if top is None or bottom is None:
        return NotImplemented
    if not bottom:
        raise ZeroDivisionError(f"{a} // 0")
    if (exact := _exact(top, bottom)) is not None:
        return exact
    (low, high), (least, most) = bounds(a), bounds(b)
    ends: tuple[Bound, Bound] = (-math.inf, math.inf)
    if low >= 0 and least > 0:
        ends = 0 if math.isinf(most) else low // most, high if math.isinf(high) else high // least
    return _atom(f"{_wrap(a)}//{_wrap(b)}", operator.floordiv, a, b, ends)


def _remainder(a: Any, b: Any) -> Any:
    top, bottom = _terms(a), _terms(b)
    if top is None or bottom is None:
        return NotImplemented
    if not bottom:
        raise ZeroDivisionError(f"{a} % 0")
    if _exact(top, bottom) is not None:
        return 0
    least, most = bounds(b)
    ends = (0, most - 1) if least > 0 else (-math.inf, math.inf)
    return _atom(f"{_wrap(a)}%{_wrap(b)}", operator.mod, a, b, ends)


def _exact(top: Mapping[Monomial, int], bottom: Mapping[Monomial, int]) -> Any:
    """Return the quotient where each term is divisible by a single one, else None."""
    if len(bottom) != 1:
        return 1 if top == bottom else None
    ((divisor, by),) = bottom.items()
    terms: dict[Monomial, int] = {}
    for monomial, factor in top.items():
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if factor % by:
            return None
        terms[tuple(rest)] = factor // by
    return _from_terms(terms)


def _atom(text: str, operation: Callable[[int, int], int], a: Any, b: Any, ends: tuple[Bound, Bound]) -> Size:
    return Size({(Atom(text, *ends, None, (operation, a, b)),): 1})


def _wrap(size: Any) -> str:
    return str(size) if str(size).isidentifier() or str(size).isdigit() else f"({size})"
