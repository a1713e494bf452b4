"""Default values of arguments: how they are written in a schema, and which base type takes which value.

* A default keeps the text that it was read from, so that a schema prints back unchanged.
* A list is held as a tuple: a schema is hashable, and no call can change what the next one gets.
* Dtypes, layouts, memory formats and devices are held as their standard names, since a schema belongs to
  no framework; numbers that torch prints for them are read back as names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

INT64: Final = range(-(2**63), 2**63)

# torch prints an enumeration's default as its number; the position in a list is that number.
_DTYPES = (  # noqa: SIM905  (one a line would be thirty lines)
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool qint8 quint8 "
    "qint32 bfloat16 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 float8_e5m2 float8_e4m3fn "
    "float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64"
).split()
_LAYOUTS = "strided sparse_coo sparse_csr _mkldnn sparse_csc sparse_bsr sparse_bsc jagged".split()  # noqa: SIM905
_FORMATS = "contiguous_format preserve_format channels_last channels_last_3d".split()  # noqa: SIM905
_SHORT_DTYPES = {
    "byte": "uint8",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
}
# Words that stand for a number where the argument is an int.
_INT_WORDS = {
    "Mean": 1,
    **{name: number for names in (_FORMATS, _LAYOUTS, _DTYPES) for number, name in enumerate(names)},
    **{short: _DTYPES.index(name) for short, name in _SHORT_DTYPES.items()},
}
_NUMBERS = frozenset({"int", "SymInt", "DeviceIndex", "float", "complex", "Scalar", "number"})

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "b": "\b"}
_ESCAPES |= {char: char for char in "\\\"'?"}
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_LETTERS = {char: f"\\{letter}" for letter, char in _ESCAPES.items() if letter not in "'?"}


@dataclass(frozen=True, slots=True)
class Default:
    """The default of an argument: its value, and the text that stands for it in the schema."""

    value: Any
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A value does not fit a type; ``expected`` says in words what does."""

    expected: str


class Word(str):
    """A default that is written without quotes, such as ``strided`` or ``Mean``."""

    __slots__ = ()


def default_text(value: Any) -> str:
    r"""Write a value as a schema's default; the parser reads the same value back.

    Raises
    ------
    TypeError
        If a schema has no way to write the value.

    Examples
    --------
    >>> default_text((1, 2.5)), default_text('a "b"')
    ('[1, 2.5]', '"a \\"b\\""')
    """
    if value is None or isinstance(value, bool | int | float | Word):
        return str(value)
    if isinstance(value, complex):
        return f"{value.real!r}{value.imag:+}j"
    if isinstance(value, str):
        return f'"{"".join(map(_escape, value))}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(default_text, value))}]"
    msg = f"a schema cannot hold a default of type {type(value).__name__}"
    raise TypeError(msg)


def _escape(char: str) -> str:
    return _LETTERS.get(char) or (f"\\{ord(char):03o}" if char < " " or char == "\x7f" else char)


def unquote(token: str) -> str:
    """Read a quoted string of a schema.

    Raises
    ------
    KeyError
        With the letter of an escape sequence that a schema does not have, such as ``x``.
    """
    body = token[1:-1]
    return _ESCAPE.sub(_unescape, body) if "\\" in body else body


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if "0" <= code[0] <= "7" else _ESCAPES[code]


def takes_word(base: str) -> bool:
    """Whether a default of this base type may be written without quotes."""
    return base in _NAMED or base in _INTS or base == "Device"


def coerce_base(base: str, value: Any) -> Any:
    """Convert a default to what an argument of a base type holds, as torch does; else a `Mismatch`."""
    rule = _RULES.get(base)
    if rule is not None:
        return rule(value)
    if base[:1].islower() or base in ("Any", "AnyEnumType"):
        return value
    return Mismatch(f"no default, for a schema cannot write a {base}")


def repeats(base: str) -> bool:
    """Whether one value stands for a whole list of fixed length: ``int[2] stride=1``."""
    return base in _NUMBERS or base == "bool"


def _int(value: Any) -> Any:
    if isinstance(value, Word):
        return _INT_WORDS.get(value, Mismatch("an int"))
    if isinstance(value, int) and value in INT64:
        return int(value)
    return Mismatch("an int of 64 bits" if isinstance(value, int) else "an int")


def _bool(value: Any) -> Any:
    return bool(value) if isinstance(value, int) and value in (0, 1) else Mismatch("True or False")


def _number(
    words: str, allowed: type | tuple[type, ...], convert: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def rule(value: Any) -> Any:
        return convert(value) if isinstance(value, allowed) else Mismatch(words)

    return rule


def _text(value: Any) -> Any:
    return value if isinstance(value, str) and not isinstance(value, Word) else Mismatch("a quoted string")


def _none(value: Any) -> Any:
    return None if value is None else Mismatch("None")


def _device(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | complex | list | tuple):
        return Mismatch('a device, such as "cpu"')
    return str(value) if isinstance(value, str) else value


def _named(words: str, names: Iterable[str], short: dict[str, str]) -> Callable[[Any], Any]:
    numbered = tuple(names)
    known = frozenset(numbered)

    def rule(value: Any) -> Any:
        if isinstance(value, str):
            name = short.get(value, str(value))
            return name if name in known else Mismatch(words)
        if isinstance(value, int) and not isinstance(value, bool):
            return numbered[value] if 0 <= value < len(numbered) else Mismatch(words)
        if value is None or isinstance(value, bool | float | complex | list | tuple):
            return Mismatch(words)
        return value  # a framework's own object

    return rule


_INTS = dict.fromkeys(("int", "SymInt", "DeviceIndex", "ConstQuantizerPtr"), _int)
_NAMED = {
    **dict.fromkeys(("ScalarType", "dtype"), _named("a dtype, such as float32", _DTYPES, _SHORT_DTYPES)),
    "Layout": _named("a layout, such as strided", _LAYOUTS, {}),
    "MemoryFormat": _named("a memory format, such as contiguous_format", _FORMATS, {}),
}
_SCALAR = _number("a number", (bool, int, float, complex), lambda value: value)
_RULES: dict[str, Callable[[Any], Any]] = {
    **_INTS,
    **_NAMED,
    "bool": _bool,
    "SymBool": _bool,
    "float": _number("a float", (int, float), float),
    "complex": _number("a complex number", (int, float, complex), complex),
    "Scalar": _SCALAR,
    "number": _SCALAR,
    "str": _text,
    "Device": _device,
    "None": _none,
    "NoneType": _none,
}
