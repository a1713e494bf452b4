"""Bridges: a kernel or rule of one flavour on the arrays of another framework.

* Most share memory. Arrays go over by DLPack, or as NumPy's own; on a GPU the work is queued on the caller's
  stream, so that neither framework waits for the other.
* A kernel that is registered with ``copy=True`` gets copies on the host; what it returns and mutates goes
  back.
* Not all memory may be written to, that of a read-only array for one. A kernel that mutates such an argument
  is refused. One that only reads it gets a copy where its framework has no read-only arrays, and is told if
  it writes there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.arrays import arrays_of, read_only, refused_array
from opwright.errors import AliasError, UnsupportedError, layout
from opwright.frameworks.base import READ_ONLY, Framework, of_flavour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opwright.overload import Kernel, OpOverload
    from opwright.schema import Argument

    Pairs = list[tuple[Any, Any]]


def bridge(kernel: Kernel, framework: Framework, record: OpOverload | None = None) -> Callable[..., Any]:
    """Return a function that runs a kernel or rule of any flavour on a framework's arrays.

    Lists are converted element by element; what is no array of the framework passes through.

    Parameters
    ----------
    kernel
        The kernel, or the rule.
    framework
        That of the caller's arrays.
    record
        Whose kernel it is; left out for a rule.

    Raises
    ------
    UnsupportedError
        If the kernel mutates arguments, and arrays of its flavour never change.
    ArgumentError
        From the returned function, if an argument that it mutates cannot be written to.
    AliasError
        From the returned function, if the kernel wrote to an array that may not be written to.
    """
    if kernel.flavour in (framework.flavour, catalogue.ARRAY_API):
        return kernel.fn
    other = of_flavour(kernel.flavour)
    if record is not None and kernel.copies:  # a rule has no copies
        return _copying(kernel, framework, other, record)
    if record is not None and record.schema.mutated and other.immutable:
        raise cannot_mutate(record, kernel, framework)
    return _on_streams(_sharing(kernel, framework, other, record), framework, other)


def cannot_mutate(record: OpOverload, kernel: Kernel, framework: Framework) -> UnsupportedError:
    """Return the error for a kernel of a flavour whose arrays cannot stand for those of a framework."""
    return UnsupportedError(
        layout(
            f"kernel of {record.qualname} has flavour {kernel.flavour} and mutates {framework.name} arrays",
            expected="a kernel that writes to memory of these arrays",
            registered=kernel.source,
            fix="register a kernel with np.ndarray or torch.Tensor annotations for this operator",
        )
    )


def wrote_to(title: str, name: str, *, expected: str, got: str, registered: str, fix: str) -> AliasError:
    """Return the error for a body that wrote to an array which it may only read."""
    what = f"{title} wrote to {name}, which it may not mutate"
    return AliasError(layout(what, expected=expected, got=got, registered=registered, fix=fix))


# ------------------------------------------------------------------------------------- of the same memory


def _sharing(
    kernel: Kernel, framework: Framework, other: Framework, record: OpOverload | None
) -> Callable[..., Any]:
    """Return the function that runs a kernel on arrays of the same memory."""
    fn = kernel.fn
    one_stream = type(framework).stream_of is not Framework.stream_of
    there = crossing(framework, other, one_stream=one_stream)
    back = crossing(other, framework, one_stream=one_stream)
    closes = framework.immutable or type(framework).not_lent is not Framework.not_lent
    mutates = record is not None and bool(record.schema.mutated)
    always = mutates and framework.immutable
    title = f"a rule of flavour {kernel.flavour}" if record is None else f"kernel of {record.qualname}"

    def share(*args: Any, **kwargs: Any) -> Any:
        moved, named = there(args), there(kwargs)
        pairs = _pairs((moved, named), (args, kwargs))
        closed = [pair for pair in pairs if framework.not_lent(pair[1])] if closes else None
        if not closed and not always:
            return _returned(fn(*moved, **named), pairs, back)
        if mutates and record is not None:
            _require_lent(record, kernel, framework, args, kwargs)
        watched = [(one, given, other.writes(one)) for one, given in closed or ()]
        out = fn(*moved, **named)
        for one, given, count in watched:
            if other.writes(one) != count:
                name = "an array" if record is None else _name_of(record, given, args, kwargs)
                raise _written(kernel, framework, given, title, name)
        return _returned(out, pairs, back)

    return share


def _on_streams(share: Callable[..., Any], framework: Framework, other: Framework) -> Callable[..., Any]:
    """Return the function with the kernel's framework on the stream of the caller's arrays."""
    if type(framework).stream_of is Framework.stream_of:
        return share

    def call(*args: Any, **kwargs: Any) -> Any:
        place = _place(framework, (*args, *kwargs.values()))
        if place is None:
            return share(*args, **kwargs)
        with other.on_stream(*place):
            return share(*args, **kwargs)

    return call


def _place(framework: Framework, values: Sequence[Any]) -> tuple[int, int] | None:
    """Return the GPU and stream of the first array that has one."""
    for value in values:
        if value.__class__ in (list, tuple):
            found = _place(framework, value)
        else:
            info = catalogue.framework_of_class(value.__class__)
            found = framework.stream_of(value) if info is not None and info.name == framework.name else None
        if found is not None:
            return found
    return None


def _require_lent(
    record: OpOverload, kernel: Kernel, framework: Framework, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise where an argument that a kernel mutates cannot be written to."""
    for argument, name, array in _named(record, args, kwargs):
        why = framework.not_lent(array) if argument.is_write else None
        if why == READ_ONLY:
            raise read_only(record, name, array)
        if why is not None:
            expected = f"an array whose memory a kernel of flavour {kernel.flavour} can write to"
            raise refused_array(record, name, why, expected, "pass a copy, and use the copy afterwards")


def _written(kernel: Kernel, framework: Framework, array: Any, title: str, name: str) -> AliasError:
    """Return the error for a body that wrote to an array of the caller's which may not be written to."""
    return wrote_to(
        title,
        name,
        expected=f"an array left as it is: it is {framework.not_lent(array)}",
        got="a write to it, or to a copy of it",
        registered=kernel.source,
        fix="write to a copy, or declare the argument in mutates_args",
    )


def _name_of(record: OpOverload, array: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return next(f"argument {name}" for _, name, one in _named(record, args, kwargs) if one is array)


def _named(
    record: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Argument, str, Any]]:
    """Yield each array among the arguments, with the schema's argument and a name for messages."""
    for argument, value in _arguments(record, args, kwargs):
        if argument.has_tensors:
            for name, array in arrays_of(record, argument, value):
                yield argument, name, array


def _arguments(
    record: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[Argument, Any]]:
    """Return the schema's arguments with their values; a key set in front of these is left out."""
    schema = record.schema
    positional = list(zip(reversed(schema.positional), reversed(args), strict=False))[::-1]
    return [*positional, *((one, kwargs[one.name]) for one in schema.keyword_only if one.name in kwargs)]


# -------------------------------------------------------------------------------------------- with copies


def _copying(kernel: Kernel, framework: Framework, host: Framework, record: OpOverload) -> Callable[..., Any]:
    """Return the function that runs a kernel on copies on the host, and brings back what it changed."""
    fn, there = kernel.fn, crossing(framework, host)
    mutates = bool(record.schema.mutated)

    def written(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        return [value for argument, value in _arguments(record, args, kwargs) if argument.is_write]

    def copy(*args: Any, **kwargs: Any) -> Any:
        moved, named = there(args), there(kwargs)
        out = fn(*moved, **named)
        for copied, given in _pairs(written(moved, named), written(args, kwargs)) if mutates else ():
            given[...] = framework.from_host(copied, given)
        pairs = _pairs((moved, named), (args, kwargs))
        device = pairs[0][1] if pairs else None
        return _returned(out, pairs, crossing(host, framework, device))

    return copy


# ------------------------------------------------------------------------------------------ both of them


def _pairs(moved: Any, given: Any) -> Pairs:
    """Return the arrays that went over, each with the one that it was made of."""
    if moved.__class__ in (list, tuple):
        return [pair for one, its in zip(moved, given, strict=True) for pair in _pairs(one, its)]
    if moved.__class__ is dict:
        return [pair for name, one in moved.items() for pair in _pairs(one, given[name])]
    return [] if moved is given else [(moved, given)]


def _returned(out: Any, pairs: Pairs, back: Callable[[Any], Any]) -> Any:
    """Return what a kernel returned as the caller's: an argument that it returns is his own object again."""
    own = {id(array): given for array, given in pairs}
    if out.__class__ in (list, tuple):
        return out.__class__(own[id(one)] if id(one) in own else back(one) for one in out)
    return own[id(out)] if id(out) in own else back(out)


def crossing(
    giver: Framework, taker: Framework, like: Any = None, *, one_stream: bool = False
) -> Callable[[Any], Any]:
    """Return the function that turns a giver's arrays into a taker's, in lists and tuples too.

    NumPy arrays go to the device of the array ``like`` where one is given. With ``one_stream`` the function
    is called where both frameworks queue their work on one stream, if they can be told to.
    """
    one: Callable[[Any], Any]
    if like is not None:
        one = partial(taker.from_host, like=like)
    elif taker.flavour == "numpy":
        one = giver.to_numpy
    elif giver.flavour == "numpy":
        one = taker.from_numpy
    elif one_stream and all(type(side).on_stream is not Framework.on_stream for side in (giver, taker)):
        one = _without_waiting(giver, taker)
    else:
        one = taker.from_dlpack

    def cross(value: Any) -> Any:
        if value.__class__ in (list, tuple):
            return value.__class__(map(cross, value))
        if value.__class__ is dict:
            return {name: cross(one) for name, one in value.items()}
        info = catalogue.framework_of_class(value.__class__)
        if giver.flavour == catalogue.DLPACK:  # its arrays have classes that nobody knows
            theirs = info is not None and info.name == taker.name
            return value if theirs or not hasattr(value, "__dlpack__") else taker.from_dlpack(value)
        if info is None or info.name != giver.name or not giver.accepts(value):
            return value  # whoever takes it says what is wrong with it
        return one(value)

    return cross


def _without_waiting(giver: Framework, taker: Framework) -> Callable[[Any], Any]:
    """Return the function that turns a giver's array into a taker's, on one stream."""
    return lambda array: taker.from_dlpack(giver.exported(array))
