"""What every kind of rule has in common: its function, flavour, source, and its signature's comparison.

A rule is one registered behaviour of an overload. To add a kind: a file here with a final subclass of
``Rule`` and a function that checks its signature; a ``register_*`` in ``register.py``; in each framework
either a file of the same name that lowers it or a reason in its ``UNSUPPORTED`` table.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.errors import RegistrationTypeError, layout
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from opwright.schema import FunctionSchema


_STARRED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Abstract base of the rules of an overload.

    Parameters
    ----------
    fn
        The author's function.
    flavour
        The arrays that its body takes: ``array_api``, ``torch``, ``jax``, ``cupy`` or ``numpy``.
    source
        ``file:line`` of the function.
    """

    kind: ClassVar[str] = ""

    fn: Callable[..., Any]
    flavour: str
    source: str

    @property
    def slot(self) -> Hashable:
        """What tells rules of one kind apart, such as a device type; None where there is one a kind."""
        return None


def mismatch(
    fn: Callable[..., Any], positional: Sequence[str], keyword_only: Sequence[str] = ()
) -> str | None:
    """Return why ``fn`` cannot be called with these parameters, or None where it can.

    Built-in functions without a signature are taken as they are.
    """
    if _takes(fn, positional, keyword_only):
        return None
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*positional, **dict.fromkeys(keyword_only))
    except TypeError as error:
        return f"{signature} ({error})"
    return None


def _takes(fn: Callable[..., Any], positional: Sequence[str], keyword_only: Sequence[str]) -> bool:
    """Return whether a plain function shows, without a ``Signature``, that it takes these parameters."""
    if fn.__class__ is not FunctionType or fn.__dict__ or fn.__code__.co_flags & _STARRED:
        return False
    code, given = fn.__code__, len(positional)
    count = code.co_argcount
    if not (keyword_only or code.co_kwonlyargcount):
        return count - len(fn.__defaults__ or ()) <= given <= count
    named = set(keyword_only)
    by_name = code.co_varnames[max(given, code.co_posonlyargcount) : count + code.co_kwonlyargcount]
    optional = set(fn.__kwdefaults__ or ())
    required = code.co_varnames[given : count - len(fn.__defaults__ or ())]
    required += code.co_varnames[count : count + code.co_kwonlyargcount]
    return given <= count and named.issubset(by_name) and (set(required) - optional) <= named


def require_signature(
    what: str,
    fn: Callable[..., Any],
    positional: Sequence[str],
    keyword_only: Sequence[str] = (),
    *,
    suffix: str = "",
) -> None:
    """Raise where ``fn`` cannot be called as ``what`` with these parameters.

    Raises
    ------
    RegistrationTypeError
        If it is not callable or takes other parameters.
    """
    if not callable(fn):
        raise RegistrationTypeError(layout(f"{what} must be a function", got=type(fn).__name__))
    reason = mismatch(fn, positional, keyword_only)
    if reason is not None:
        wanted = ", ".join([*positional, *(["*", *keyword_only] if keyword_only else [])])
        raise RegistrationTypeError(
            layout(
                f"{what} has another signature than the operator calls it with",
                expected=f"({wanted}){suffix}",
                got=reason,
                registered=source_of(fn),
            )
        )


def names(schema: FunctionSchema) -> tuple[list[str], list[str]]:
    """Return the names of a schema's positional and of its keyword-only arguments."""
    return [a.name for a in schema.positional], [a.name for a in schema.keyword_only]
