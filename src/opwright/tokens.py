"""Schema text cut into tokens, and errors that point at one of them.

* One regular expression cuts the text; columns are worked out only where they are needed.
* What no rule expects is a token too, so that nothing of the text is skipped.
"""

from __future__ import annotations

import re
from typing import NoReturn

from opwright.errors import SchemaSyntaxError, layout

END = "the end of the text"
_REAL = r"(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?"
_TOKEN = re.compile(
    r"(?:[ \t\r\n\f\v]++|\#[^\n]*+)*+"  # blanks and comments
    rf"([A-Za-z_]\w*+(?:\.\w++)*+|->|::|\.\.\.|-?{_REAL}(?:[+-]{_REAL}j|j)?|-inf\b|-nan\b"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'(?:[^'\\\n]|\\.)*+'"
    r"|.|\Z)",  # a bracket or a sign, or what no rule expects; then the end
    re.ASCII | re.DOTALL,
)
_MAX_SHOWN = 1000


def visible(text: str) -> str:
    """Return a text on one line, with escapes for what a terminal would act on."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class Tokens:
    """The tokens of one text and how far they have been read."""

    __slots__ = ("at", "text", "tokens")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = _TOKEN.findall(text)
        self.at = 0

    def fail(
        self, expected: str, *, at: int | None = None, what: str = "", fix: str | None = None
    ) -> NoReturn:
        """Raise the error of a token, the next one where ``at`` is not given."""
        at = self.at if at is None else at
        column = self.span(at)[0]
        start, stop = 0, len(self.text)
        if stop > _MAX_SHOWN:
            start, stop = max(0, column - 100), column + 100
        before, after = visible(self.text[start:column]), visible(self.text[column:stop])
        token = self.tokens[at]
        raise SchemaSyntaxError(
            layout(
                f"schema, column {column + 1}: {what or 'syntax error'}\n"
                f"    {'…' if start else ''}{before}{after}{'…' if stop < len(self.text) else ''}\n"
                f"    {' ' * (len(before) + bool(start))}^",
                expected=expected,
                got=ascii(token) if token else END,
                fix=fix,
            )
        )

    def span(self, at: int) -> tuple[int, int]:
        """Return where a token starts and stops in the text."""
        for number, match in enumerate(_TOKEN.finditer(self.text)):
            if number == at:
                return match.span(1)
        return len(self.text), len(self.text)

    def expect(self, token: str, words: str) -> None:
        """Read a token that must be there."""
        if self.tokens[self.at] != token:
            self.fail(words)
        self.at += 1

    def identifier(self, words: str) -> str:
        """Read a name without dots."""
        token = self.tokens[self.at]
        if not (token.isidentifier() and token.isascii()):
            self.fail(words)
        self.at += 1
        return token
