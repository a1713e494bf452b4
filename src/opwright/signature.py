"""A callable -> its parameters, annotations and defaults, and the scope in which its strings are evaluated.

A thousand operators are defined at start-up: a plain function is read directly; ``inspect`` is asked only
about partials, wrappers, methods and callable objects.
"""

from __future__ import annotations

from functools import lru_cache, partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import CodeType

EMPTY: Any = object()
"""Stands for an annotation or a default that is not there."""

# Bits of co_flags: *args, **kwargs; generator, coroutine, asynchronous generator.
_VARIADIC, _SUSPENDED = 0x04 | 0x08, 0x20 | 0x80 | 0x200
_KINDS = {"POSITIONAL_ONLY": "positional-only", "VAR_POSITIONAL": "varargs", "VAR_KEYWORD": "varkwargs"}
_FIX_SCOPE = "import or define its names at module scope, not under TYPE_CHECKING or inside a local function"


class Refused(Exception):  # noqa: N818  (a finding that the caller words and raises, not an error yet)
    """A function's signature, or one of its annotations, is not supported.

    Parameters
    ----------
    fix
        What to write instead.
    reason
        What is wrong, where that is not just that a type is unsupported.
    flavours
        The flavours that an annotation mixes, where that is what is wrong.
    """

    def __init__(self, fix: str | None, reason: str | None = None, flavours: tuple[str, ...] = ()) -> None:
        super().__init__(fix, reason, flavours)
        self.fix = fix
        self.reason = reason
        self.flavours = flavours


class Scope:
    """Where the strings among a function's annotations are looked up: what it closes over, and its module."""

    __slots__ = ("_fn", "_inner")

    def __init__(self, fn: Any) -> None:
        self._fn = fn
        self._inner: dict[str, Any] | None = None

    def evaluate(self, text: str) -> Any:
        """Evaluate an annotation that is a string.

        Raises
        ------
        Refused
            If it cannot be evaluated.
        """
        if self._inner is None:
            self._inner = _names_inside(self._fn)
        try:
            # The text is the author's own source, which a postponed annotation turned into a string.
            return eval(_compiled(text), getattr(self._fn, "__globals__", {}), self._inner)  # noqa: S307
        except NameError as error:
            raise Refused(
                _FIX_SCOPE, f"Unsupported type annotation {text}. It is not a type. ({error})"
            ) from error
        except Exception as error:
            raise Refused(
                "write an annotation that can be evaluated in the function's module",
                f"Unsupported type annotation {text}. It is not a type. ({type(error).__name__}: {error})",
            ) from error


class Parameter(NamedTuple):
    """One parameter as it is written."""

    name: str
    annotation: Any
    default: Any
    kwarg_only: bool


class Signature(NamedTuple):
    """The parameters of a callable, its return annotation, and the scope of both."""

    parameters: list[Parameter]
    returned: Any
    scope: Scope


def read_signature(fn: Any) -> Signature:
    """Read the signature of a callable.

    Raises
    ------
    Refused
        If it cannot be read, or has parameters without a name.
    """
    plain = type(fn) is FunctionType and fn.__dict__.keys().isdisjoint(("__wrapped__", "__signature__"))
    code = fn.__code__ if plain else None
    if code is None or code.co_flags & (_VARIADIC | _SUSPENDED) or code.co_posonlyargcount:
        return _inspected(fn)
    try:
        annotations = fn.__annotations__
    except NameError as error:  # Python 3.14 evaluates them here
        raise Refused(_FIX_SCOPE, f"Unsupported type annotation. It is not a type. ({error})") from error
    names, count = code.co_varnames, code.co_argcount
    defaults, by_name = fn.__defaults__ or (), fn.__kwdefaults__ or {}
    bare = count - len(defaults)
    found = [
        Parameter(
            name, annotations.get(name, EMPTY), EMPTY if index < bare else defaults[index - bare], False
        )
        for index, name in enumerate(names[:count])
    ]
    found += [
        Parameter(name, annotations.get(name, EMPTY), by_name.get(name, EMPTY), True)
        for name in names[count : count + code.co_kwonlyargcount]
    ]
    return Signature(found, annotations.get("return", EMPTY), Scope(fn))


def _inspected(fn: Any) -> Signature:
    import inspect

    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError, NameError) as error:
        raise Refused(
            "wrap it in an annotated function", f"its signature cannot be read ({error})"
        ) from error
    function = _function_under(inspect.unwrap(fn))
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & _SUSPENDED:
        raise Refused("return the values", "a generator or coroutine function cannot be an operator")
    found = []
    for parameter in signature.parameters.values():
        if parameter.kind.name in _KINDS:
            name = str(parameter).partition(":")[0]
            raise Refused(
                "give every parameter a name that callers can use",
                "We do not support positional-only args, varargs, or varkwargs. "
                f"Parameter {name} is {_KINDS[parameter.kind.name]}.",
            )
        annotation, default = (
            EMPTY if each is inspect.Parameter.empty else each
            for each in (parameter.annotation, parameter.default)
        )
        found.append(Parameter(parameter.name, annotation, default, parameter.kind is parameter.KEYWORD_ONLY))
    returned = signature.return_annotation
    return Signature(found, EMPTY if returned is inspect.Parameter.empty else returned, Scope(function))


def annotations_of(fn: Any) -> tuple[dict[str, Any], Scope]:
    """Return the annotations of anything callable, and their scope; none where they cannot be read."""
    while hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    fn = _function_under(fn)
    try:
        found = getattr(fn, "__annotations__", None)
    except NameError:  # Python 3.14 evaluates them here
        found = None
    return found if isinstance(found, dict) else {}, Scope(fn)


def _function_under(fn: Any) -> Any:
    """The function whose module and closure the annotations of a callable belong to."""
    while isinstance(fn, partial):
        fn = fn.func
    if not hasattr(fn, "__globals__") and not isinstance(fn, type):
        fn = getattr(fn, "__func__", None) or type(fn).__call__
    return fn


@lru_cache(maxsize=512)
def _compiled(text: str) -> CodeType:
    return compile(text.strip(), "<annotation>", "eval", dont_inherit=True)


def _names_inside(fn: Any) -> dict[str, Any]:
    """The type parameters of a function and the variables that it closes over."""
    names = {parameter.__name__: parameter for parameter in getattr(fn, "__type_params__", ())}
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None)
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # assigned only after the function was defined: not known yet
            continue
    return names
