"""Which of an author's functions an error came out of, under whatever a framework wrapped around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.source import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from opwright.overload import OpOverload


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then what it wraps or followed."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [getattr(one, "inner_exception", None), one.__cause__, one.__context__]


def functions(record: OpOverload) -> dict[CodeType, str]:
    """Return the code of each function of an author's, with the word that findings have for it."""
    found: dict[CodeType, str] = {}
    words = {"autograd": "backward", "vmap": "vmap rule"}
    named: list[tuple[Any, str]] = [(kernel.fn, "kernel") for kernel in record.kernels]
    for rule in record.rules:
        named.append((rule.fn, words.get(rule.kind, rule.kind)))
        named.append((getattr(rule, "setup_context", None), "setup_context"))
    for fn, word in named:
        code = None if fn is None else code_of(fn)
        if code is not None:
            found[code] = word
    return found


def culprit(record: OpOverload, error: BaseException) -> tuple[str, str, BaseException]:
    """Return the word for the function that an error came out of, ``file:line`` there, and the error itself.

    Where no function of the author's is to blame, the word and the place are empty.
    """
    known = functions(record)
    for one in reversed(list(chain(error))):
        word, place = "", ""
        trace = one.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if code in known:
                word, place = known[code], f"{code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        if word:
            return word, place, one
    return "", "", error
