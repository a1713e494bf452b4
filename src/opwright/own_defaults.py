"""A kernel or fake with other defaults than its schema: its own count where a call leaves arguments out.

So it is with ``torch.library``: before Python code is called, torch takes away arguments that equal the
schema's default, positional ones from the end, and what the function itself has as default comes in.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from opwright.defaults import Mismatch
from opwright.signature import EMPTY, Refused, read_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.schema import Argument, FunctionSchema

_NUMBERS = (bool, int, float, complex)


def with_own_defaults(
    fn: Callable[..., Any], schema: FunctionSchema, *, leading: int = 0, none_counts: bool = True
) -> Any:
    """Return what to call for a function that the operator calls with every argument of its schema.

    Parameters
    ----------
    fn
        The author's function, whose signature fits the schema.
    schema
        The schema.
    leading
        How many arguments come before those of the schema.
    none_counts
        Whether None is a default like others. Fakes are often written with it where any value will do.

    Returns
    -------
    callable
        ``fn`` itself, unless one of its defaults is another one than the schema's.
    """
    if all(argument.default is None for argument in schema.arguments):
        return fn
    try:
        parameters = read_signature(fn).parameters[leading:]
    except Refused:
        return fn  # it has parameters without a name, and so no defaults that torch would use
    own = [EMPTY if one.default is None and not none_counts else one.default for one in parameters]
    named = {parameter.name: default for parameter, default in zip(parameters, own, strict=True)}
    positional = [
        (_schema_default(argument), default)
        for argument, default in zip(schema.positional, own, strict=False)
    ]
    by_name = {
        argument.name: (_schema_default(argument), named.get(argument.name, EMPTY))
        for argument in schema.keyword_only
    }
    if not any(_differ(*pair) for pair in (*positional, *by_name.values())):
        return fn
    return _adapted(fn, [(EMPTY, EMPTY)] * leading + positional, by_name)


def _adapted(
    fn: Callable[..., Any], positional: Sequence[tuple[Any, Any]], by_name: dict[str, tuple[Any, Any]]
) -> Callable[..., Any]:
    # Where a function has no default, there is nothing else than the schema's to call it with.
    last_first = [
        (index, default, default if own is EMPTY else own)
        for index, (default, own) in reversed([*enumerate(positional)])
    ]
    named = [(name, default, own) for name, (default, own) in by_name.items() if _differ(default, own)]

    @wraps(fn)
    def adapted(*args: Any, **kwargs: Any) -> Any:
        values = list(args)
        for index, default, own in last_first:
            if default is EMPTY or not _equal(values[index], default):
                break
            values[index] = values[index] if own is default else own
        for name, default, own in named:
            if _equal(kwargs[name], default):
                kwargs[name] = own
        return fn(*values, **kwargs)

    return adapted


def _schema_default(argument: Argument) -> Any:
    if argument.default is None:
        return EMPTY
    value = argument.type.coerce(argument.default.value)
    return argument.default.value if isinstance(value, Mismatch) else value


def _differ(default: Any, own: Any) -> bool:
    return default is not EMPTY and own is not EMPTY and not _equal(own, default)


def _equal(value: Any, default: Any) -> bool:
    """Return whether an argument is the schema's default; dtypes and devices stand there by name."""
    if default is None:
        return value is None
    if isinstance(default, str):
        name = getattr(value, "name", None) if not isinstance(value, str) else value
        return name == default or str(value).removeprefix("torch.") == default
    if isinstance(default, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(default)
            and all(map(_equal, value, default))
        )
    if isinstance(default, _NUMBERS):
        return value.__class__ in _NUMBERS and bool(value == default)
    return bool(value == default)
