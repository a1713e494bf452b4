"""What the body of a fake calls: ``empty_like``, ``empty``, ``broadcast_shapes``, ``result_type``.

They take any framework's arrays and tracers as well as fakes, so that one fake serves every framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.dtypes import as_dtype
from opwright.errors import ContextError, layout
from opwright.fake_context import computing, current_ctx
from opwright.fakes import FakeArray, fake_of
from opwright.namespaces import array_namespace
from opwright.rules.autocast import dtype_name
from opwright.shapes import as_shape, broadcast
from opwright.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Sequence


_NAMELESS = (str, bool, int, float, complex)
"""Operands that are of no framework."""


def empty_like(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an uninitialised array, or one without data, like ``x``: what most fakes return.

    Parameters
    ----------
    x
        An array, a tracer, or a fake, of any framework; the result is of the same.
    dtype, device
        By default those of ``x``; a dtype of any framework or its name.

    Examples
    --------
    >>> import opwright as ow
    >>> ow.empty_like(ow.FakeArray(("n",), "float32"), dtype="float64")
    FakeArray((n,), float64, cpu)
    """
    if isinstance(x, FakeArray):
        return x.new_empty(x.shape, dtype=dtype, device=device)
    xp = array_namespace(x)
    options = {} if device is None else {"device": device}
    return xp.empty_like(x, dtype=None if dtype is None else _own_dtype(xp, dtype), **options)


def empty(shape: Any, *, dtype: Any = None, device: Any = None, like: Any = None) -> Any:
    """Return an uninitialised array, or one without data, of a shape.

    Parameters
    ----------
    shape
        The sizes: integers or symbolic ones.
    dtype, device
        By default those of ``like``; without it, the framework's defaults.
    like
        An array, a tracer, or a fake, of any framework; the result is of the same. It may be left out in
        the fake of an operator without array arguments.

    Raises
    ------
    ContextError
        If ``like`` is left out outside a fake.
    """
    if like is None:
        make = getattr(current_ctx(), "empty", None)
        if make is None:
            raise ContextError(
                layout("opwright.empty without like= can only be called inside a fake", fix="pass like=x")
            )
        return make(shape, dtype=dtype, device=device)
    if isinstance(like, FakeArray):
        return like.new_empty(as_shape(shape), dtype=dtype, device=device)
    xp = array_namespace(like)
    options = {"dtype": like.dtype if dtype is None else _own_dtype(xp, dtype)}
    if device is not None:
        options["device"] = device
    if hasattr(like, "new_empty"):  # torch: keeps subclasses and the transforms' wrappers
        return like.new_empty(shape, **options)
    return xp.empty(shape, **options)


def _own_dtype(xp: Any, dtype: Any) -> Any:
    """Return a namespace's own dtype for one of any framework, or a name."""
    name = dtype_name(dtype)
    found = getattr(xp, name, None)
    return as_dtype(dtype) if found is None else found


def broadcast_shapes(*shapes: Any) -> tuple[Any, ...]:
    """Return the shape that arrays of these shapes broadcast to; sizes may be symbolic.

    Raises
    ------
    ValueError
        If known sizes do not fit each other.
    TypeError
        If it depends on symbolic sizes that are not the same.

    Examples
    --------
    >>> import opwright as ow
    >>> x = ow.FakeArray(("n", 1))
    >>> ow.broadcast_shapes(x.shape, (4,))
    (n, 4)
    """
    return broadcast([as_shape(shape) for shape in shapes])


def result_type(*arrays_or_dtypes: Any) -> Any:
    """Return the dtype that arithmetic on arrays and Python numbers gives.

    It is that of the arrays' own framework: of ``torch.result_type``, where a tensor without axes counts
    less than one with axes, ``jax.numpy.result_type`` with its weak types, or ``numpy.result_type``. In a
    fake it is that of the framework which the kernel computes with: NumPy's for a kernel of flavour
    ``numpy``, whichever arrays it is called with. Functions of `array_namespace`, such as
    ``xp.multiply``, promote by the array API standard: their dtype is that of ``xp.result_type``.

    Parameters
    ----------
    arrays_or_dtypes
        Arrays of one framework, dtypes, and Python numbers; one of them at least is an array or a dtype.

    Examples
    --------
    >>> import opwright as ow
    >>> ow.result_type(ow.FakeArray((2,), "float32"), ow.FakeArray((), "float64"))
    dtype('float64')
    >>> ow.result_type(ow.FakeArray((2,), "float32"), 1.0)
    dtype('float32')
    """
    arrays = [one for one in arrays_or_dtypes if _is_array(one)]
    with_data = len(arrays) > 0 and not any(isinstance(one, FakeArray) for one in arrays)
    xp: Any = array_namespace(*arrays) if with_data else None
    own = _framework_of(arrays_or_dtypes)
    name = computing() or own
    promotion = catalogue.get(name).load_promotion
    if name == own and with_data and promotion is None:
        return xp.result_type(*arrays_or_dtypes)
    operands = [fake_of(one) if _is_array(one) and name != own else one for one in arrays_or_dtypes]
    found = _in_numpy(operands) if promotion is None else promotion().result_type(operands)
    if not with_data:
        return as_dtype(found)
    return found if name == own else _own_dtype(xp, found)


def _framework_of(operands: Sequence[Any]) -> str:
    """Return the framework of arrays, fakes or dtypes; those that say none are NumPy's."""
    names = []
    for one in operands:
        info = None if type(one) in _NAMELESS else catalogue.framework_of_value(one)
        names.append(one.framework if isinstance(one, FakeArray) else info.name if info else "")
    return next((name for name in names if name not in ("", "numpy")), "numpy")


def _in_numpy(operands: Sequence[Any]) -> Any:
    import numpy as np

    return np.result_type(
        *(
            0
            if isinstance(one, Size)
            else one
            if type(one) in _NAMELESS[1:]
            else as_dtype(one.dtype if _is_array(one) else one)
            for one in operands
        )
    )


def _is_array(value: Any) -> bool:
    # torch's tracer cannot say what attributes a symbolic size has
    known = isinstance(value, type) or type(value) in _NAMELESS
    return not known and hasattr(value, "shape") and hasattr(value, "dtype")
