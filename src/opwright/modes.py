"""Modes for frameworks that have none: autocast, dispatch modes, and one process-wide count of those entered.

* A warm call reads ``ACTIVE[0]`` only; the stack of modes is read once it is not zero.
* Modes are per context: a new thread starts clean, though it takes the slower path meanwhile.
* As in torch, autocast comes before dispatch modes, a mode is off inside its own handler, and a kernel that
  runs sees no dispatch mode.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar

from opwright import catalogue
from opwright.errors import ArgumentError, ContextError, UnsupportedError, layout
from opwright.lock import Lock, held_over_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Any, Self

    from opwright.overload import OpOverload

ACTIVE: list[int] = [0]
"""How many modes are entered in this process, in all threads together."""

_count_lock = held_over_fork(Lock())

MODES: ContextVar[tuple[Any, ...]] = ContextVar("opwright_modes", default=())
"""The modes of this context, outermost first."""


class _Mode:
    """Abstract base of what goes on the stack: a context manager that may be entered again, in any thread."""

    def __enter__(self) -> Self:
        MODES.set((*MODES.get(), self))
        with _count_lock:
            ACTIVE[0] += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack = MODES.get()
        if not stack or stack[-1] is not self:
            raise ContextError(
                layout(
                    f"{type(self).__name__} was left in another order than it was entered",
                    expected="with blocks, one inside the other",
                )
            )
        MODES.set(stack[:-1])
        with _count_lock:
            ACTIVE[0] -= 1


@contextmanager
def stacked(stack: tuple[Any, ...]) -> Iterator[None]:
    """Let ``stack`` be the modes of this context for the duration."""
    token = MODES.set(stack)
    try:
        yield
    finally:
        MODES.reset(token)


class autocast(_Mode):  # noqa: N801  (torch's name)
    """Cast the floating inputs of operators that have an autocast rule, for frameworks without autocast.

    Use it in a ``with`` block. It acts on NumPy, CuPy and JAX arrays and on fakes; PyTorch tensors follow
    ``torch.autocast``. Each operator's own rule says which dtype its inputs are cast to; operators without
    a rule for the device type take their inputs as they are.

    Parameters
    ----------
    device_type
        In torch's words, such as ``"cpu"`` or ``"cuda"``.
    dtype
        Kept for code that asks for it, as ``torch.autocast`` does; the rules' own dtypes count.
    enabled
        False turns autocast off inside the block.

    Raises
    ------
    ArgumentError
        If ``device_type`` is not a string, or no device type.

    Notes
    -----
    Torch's own autocast leaves float64 inputs as they are; this one casts every floating dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::double", mutates_args=())
    ... def double(x: np.ndarray) -> np.ndarray:
    ...     return x * 2
    >>> _ = double.register_autocast("cpu", np.float16)
    >>> with ow.autocast("cpu"):
    ...     double(np.ones(2, np.float32)).dtype
    dtype('float16')
    """

    def __init__(self, device_type: str = "cpu", dtype: Any = None, enabled: bool = True) -> None:
        if not isinstance(device_type, str):
            raise ArgumentError(
                layout(
                    "autocast: device_type must be a string such as 'cpu'",
                    got=f"{device_type!r} of type {type(device_type).__name__}",
                )
            )
        self.device_type = device_type.partition(":")[0]
        known = catalogue.known_device_types()
        if self.device_type not in known:
            raise ArgumentError(
                layout(
                    f"autocast: {self.device_type!r} is not a device type",
                    expected=f"one of {', '.join(known)}",
                )
            )
        self.dtype = dtype
        self.enabled = bool(enabled)

    def __repr__(self) -> str:
        return f"autocast({self.device_type!r}, enabled={self.enabled})"


class DispatchMode(_Mode):
    """Abstract base of modes that see every call of an operator, for frameworks that have none.

    Subclass it and enter it in a ``with`` block. A call then runs, in this order: the rule that
    ``register_torch_dispatch`` has for the mode's class or a base class of it,
    ``fn(mode, func, types, args, kwargs)``; else the class's own
    ``__torch_dispatch__(self, func, types, args=(), kwargs=None)``, under torch's name for it; else the
    operator. A handler that returns ``NotImplemented`` passes the call on. Inside a handler the mode is off,
    so that ``func(*args, **kwargs)`` calls the operator. PyTorch tensors follow torch's own modes.

    ``func`` is the operator, ``types`` the classes of its arrays, ``args`` the positional arguments with
    defaults filled in, ``kwargs`` the keyword-only ones.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::triple", mutates_args=())
    ... def triple(x: np.ndarray) -> np.ndarray:
    ...     return x * 3
    >>> class Log(ow.DispatchMode):
    ...     def __torch_dispatch__(self, func, types, args=(), kwargs=None):
    ...         print(func.name)
    ...         return func(*args, **(kwargs or {}))
    >>> with Log():
    ...     triple(np.ones(2))
    docs::triple
    array([3., 3.])
    """


def autocast_of(device_type: str) -> autocast | None:
    """Return the autocast in force for a device type, or None where it is off."""
    for mode in reversed(MODES.get()):
        if isinstance(mode, autocast) and mode.device_type == device_type:
            return mode if mode.enabled else None
    return None


def cast_inputs(
    record: OpOverload, values: Sequence[Any], device_type: str, cast: Callable[[Any, str], Any]
) -> tuple[Any, ...] | None:
    """Return an operator's arguments as its autocast rule casts them; None where none is in force.

    Parameters
    ----------
    record, values
        The call: every argument in schema order.
    device_type
        Of its arrays.
    cast
        ``cast(array, dtype)`` returns a floating array as another dtype, given by its standard name, and
        any other array as it is.

    Raises
    ------
    UnsupportedError
        If an argument that the operator mutates would be cast: its new value would be lost.
    """
    rule: Any = record.rule("autocast", device_type)
    if rule is None or autocast_of(device_type) is None:
        return None

    def one(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [one(element) for element in value]
        return cast(value, rule.dtype) if hasattr(value, "dtype") else value

    out: list[Any] = []
    for argument, value in zip(record.schema.arguments, values, strict=True):
        changed = one(value) if argument.has_tensors else value
        if argument.is_write and _dtypes(changed) != _dtypes(value):
            raise UnsupportedError(
                layout(
                    f"{record.qualname} mutates argument {argument.name}, which autocast would cast",
                    expected=f"an array of dtype {rule.dtype}",
                    got=", ".join(_dtypes(value)),
                    registered=rule.source,
                    fix="cast it before the call, or call the operator under autocast(enabled=False)",
                )
            )
        out.append(changed)
    return tuple(out)


def _dtypes(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [name for element in value for name in _dtypes(element)]
    return [str(value.dtype)] if hasattr(value, "dtype") else []


def without_autocast(device_type: str) -> tuple[Any, ...]:
    """Return this context's modes with autocast off for a device type."""
    return (*MODES.get(), autocast(device_type, enabled=False))


def run_under(
    record: OpOverload,
    call: Callable[..., Any],
    values: tuple[Any, ...],
    *,
    device_type_of: Callable[[Any], str],
    cast: Callable[[Any, str], Any],
    adapt: Callable[[Any], Callable[..., Any]] | None = None,
) -> Any:
    """Run a call while a mode is entered: autocast first, then dispatch modes from the innermost out.

    Parameters
    ----------
    record, values
        The call: every argument in schema order.
    call
        Runs the operator's kernel, ``call(*values)``.
    device_type_of
        Gives the device type of an array, or of None.
    cast
        As for `cast_inputs`.
    adapt
        ``adapt(rule)`` returns a rule's function for the caller's arrays, where its flavour is another.
    """
    stack = MODES.get()
    if not stack:
        return call(*values)
    arrays = _arrays(record, values)
    device_type = device_type_of(arrays[0] if arrays else None)
    found = cast_inputs(record, values, device_type, cast)
    if found is not None:
        values, stack = found, without_autocast(device_type)
    for depth in range(len(stack) - 1, -1, -1):
        mode = stack[depth]
        handler = _handler(record, mode, adapt) if isinstance(mode, DispatchMode) else None
        if handler is not None:
            with stacked(_dispatch_modes(stack[:depth]) + _autocasts(stack)):
                out = handler(*_dispatched(record, values))
            if out is not NotImplemented:
                return out
    with stacked(_autocasts(stack)):
        return call(*values)


def _dispatch_modes(stack: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(mode for mode in stack if isinstance(mode, DispatchMode))


def _autocasts(stack: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(mode for mode in stack if isinstance(mode, autocast))


def _handler(
    record: OpOverload, mode: DispatchMode, adapt: Callable[[Any], Callable[..., Any]] | None
) -> Callable[..., Any] | None:
    """Return what handles a call under a mode: the rule for its class, else its own method, else None."""
    for cls in type(mode).__mro__:
        rule = record.rule("torch_dispatch", cls)
        if rule is not None:
            fn = rule.fn if adapt is None else adapt(rule)
            return lambda *call: fn(mode, *call)
    return getattr(mode, "__torch_dispatch__", None)


def _dispatched(record: OpOverload, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return ``func, types, args, kwargs`` of a call."""
    values = record.schema.with_tuples(values)
    count = len(record.schema.positional)
    kwargs = {a.name: value for a, value in zip(record.schema.keyword_only, values[count:], strict=True)}
    types = tuple(dict.fromkeys(type(array) for array in _arrays(record, values)))
    return record.operator, types, tuple(values[:count]), kwargs


def _arrays(record: OpOverload, values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for argument, value in zip(record.schema.arguments, values, strict=True):
        if argument.has_tensors:
            several = value if isinstance(value, list | tuple) else (value,)
            found += [array for array in several if array is not None]
    return found


def run_for_subclass(record: OpOverload, call: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    """Run the dispatch rule for the class of an array of a call; where there is none, the call itself."""
    for array in _arrays(record, values):
        for cls in type(array).__mro__:
            rule = record.rule("torch_dispatch", cls)
            out = NotImplemented if rule is None else rule.fn(*_dispatched(record, values))
            if out is not NotImplemented:
                return out
    return call(*values)
