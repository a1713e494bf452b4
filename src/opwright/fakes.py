"""Fakes: arrays without data, and what the body of a fake rule works with.

* A `FakeArray` has a shape (with symbolic sizes), a dtype and a device; it is C-contiguous. Arithmetic on
  it raises.
* NumPy's dtypes are its vocabulary, whichever library the fake stands for.
* ``creation.py`` has the functions that make one like an array of any framework.
"""

from __future__ import annotations

import itertools
import math
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, final

from opwright import catalogue
from opwright.catalogue import FrameworkInfo
from opwright.dtypes import as_dtype, is_floating
from opwright.errors import FakeError, layout
from opwright.fake_context import FakeContextBase, check_bounds, entered_ctx, get_ctx
from opwright.shapes import as_shape, show
from opwright.sizes import Size, symbol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FakeArray",
    "FakeContext",
    "entered_ctx",
    "fake_of",
    "get_ctx",
]

INSTEAD = (
    "shape, ndim, dtype, device, size, numel(), T, astype, new_empty, new_zeros, new_ones, new_full, "
    "opwright.empty_like, opwright.empty, opwright.broadcast_shapes, opwright.result_type"
)
"""What a fake is made with, for messages."""

_REFUSED = [
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "divmod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "xor",
    "or",
    "radd",
    "rsub",
    "rmul",
    "rmatmul",
    "rtruediv",
    "rfloordiv",
    "rmod",
    "rdivmod",
    "rpow",
    "rlshift",
    "rrshift",
    "rand",
    "rxor",
    "ror",
    "iadd",
    "isub",
    "imul",
    "imatmul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "ilshift",
    "irshift",
    "iand",
    "ixor",
    "ior",
    "neg",
    "pos",
    "abs",
    "invert",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "getitem",
    "setitem",
    "contains",
    "iter",
    "bool",
    "int",
    "float",
    "complex",
    "index",
    "array",
    "array_ufunc",
    "array_function",
    "dlpack",
]


@final
class _Count(int):
    """The number of elements: an int, as NumPy's ``size``; called, torch's ``size(dim)``."""

    shape: tuple[Any, ...] = ()

    def __call__(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[dim]


@final
class FakeArray:
    """An array without data: what a fake rule takes and returns.

    Parameters
    ----------
    shape
        Its sizes: integers, symbolic sizes, or names of them (``("n", 3)``; one name is one size).
    dtype
        A dtype of any framework, or its name.
    device
        Where it stands for an array on, such as ``"cpu"`` or ``"cuda:0"``.
    framework
        The framework whose array it stands for, such as ``"jax"``: `result_type` promotes as that one does.
        By default none, and NumPy's rules.
    weak_type
        Whether the dtype is one of JAX's weak ones, as that of an array made of a Python number.

    Examples
    --------
    >>> import opwright as ow
    >>> x = ow.FakeArray(("n", 3), "float32")
    >>> x.new_empty((2 * x.shape[0], *x.shape[1:]), dtype="int64")
    FakeArray((2*n, 3), int64, cpu)
    """

    __slots__ = ("__weakref__", "device", "dtype", "framework", "shape", "weak_type")
    shape: tuple[Any, ...]
    dtype: Any
    device: str
    framework: str
    weak_type: bool

    def __init__(
        self,
        shape: Any,
        dtype: Any = "float64",
        device: Any = "cpu",
        *,
        framework: str = "",
        weak_type: bool = False,
    ) -> None:
        self.shape = as_shape(shape)
        self.dtype = as_dtype(dtype)
        self.device = str(device)
        self.framework = framework
        self.weak_type = weak_type

    def __repr__(self) -> str:
        return f"FakeArray({show(self.shape)}, {self.dtype.name}, {self.device})"

    __hash__ = object.__hash__

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        """Return the functions that work on metadata, under the array API's names."""
        return import_module("opwright.fake_namespace")  # which imports this module

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Refuse torch's functions."""
        raise _no_data(cls.__name__, getattr(func, "__name__", str(func)))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(layout(f"a FakeArray has no {name!r}", expected=INSTEAD))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return int(self.shape[0])

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Any:
        """The number of elements; called with an axis, as torch's method is, the size of that axis."""
        count = self.numel()
        if not isinstance(count, int):
            return count
        found = _Count(count)
        found.shape = self.shape
        return found

    def numel(self) -> Any:
        """Return the number of elements."""
        return math.prod(self.shape)

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return int(self.dtype.itemsize)

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return self.itemsize

    @property
    def nbytes(self) -> Any:
        """The bytes of all elements."""
        return self.numel() * self.itemsize

    def is_floating_point(self) -> bool:
        """Return whether the dtype is a real floating one."""
        return is_floating(self.dtype)

    def is_complex(self) -> bool:
        """Return whether the dtype is a complex one."""
        return bool(self.dtype.kind == "c")

    def is_contiguous(self) -> bool:
        """Return True: a fake has no strides of its own."""
        return True

    @property
    def T(self) -> FakeArray:  # noqa: N802  (the array API's name)
        """The array with its axes reversed."""
        return self._reshaped(self.shape[::-1])

    @property
    def mT(self) -> FakeArray:  # noqa: N802  (the array API's name)
        """The array with its last two axes swapped."""
        if self.ndim < 2:
            raise FakeError(layout("mT needs two axes", got=repr(self)))
        return self._reshaped((*self.shape[:-2], self.shape[-1], self.shape[-2]))

    def _reshaped(self, shape: tuple[Any, ...]) -> FakeArray:
        return FakeArray(shape, self.dtype, self.device, framework=self.framework, weak_type=self.weak_type)

    def astype(self, dtype: Any, *, copy: bool = True) -> FakeArray:
        """Return a fake of another dtype."""
        return FakeArray(self.shape, dtype, self.device, framework=self.framework)

    def new_empty(self, *size: Any, dtype: Any = None, device: Any = None) -> FakeArray:
        """Return a fake of another shape, by default with this one's dtype and device."""
        shape = size[0] if len(size) == 1 and isinstance(size[0], list | tuple) else size
        return FakeArray(
            shape,
            self.dtype if dtype is None else dtype,
            self.device if device is None else device,
            framework=self.framework,
        )

    def new_zeros(self, *size: Any, dtype: Any = None, device: Any = None) -> FakeArray:
        """Return what ``new_empty`` does: a fake has no values."""
        return self.new_empty(*size, dtype=dtype, device=device)

    def new_ones(self, *size: Any, dtype: Any = None, device: Any = None) -> FakeArray:
        """Return what ``new_empty`` does: a fake has no values."""
        return self.new_empty(*size, dtype=dtype, device=device)

    def new_full(self, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> FakeArray:
        """Return what ``new_empty`` does: a fake has no values."""
        return self.new_empty(as_shape(size), dtype=dtype, device=device)


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refused(self: FakeArray, *args: Any, **kwargs: Any) -> NoReturn:
        raise _no_data(self, name)

    refused.__name__ = refused.__qualname__ = name
    return refused


def _no_data(fake: Any, name: str) -> FakeError:
    return FakeError(
        layout(
            f"{fake} has no data, so {name} cannot be computed",
            expected=f"metadata alone: {INSTEAD}",
            fix="return opwright.empty_like(x) or x.new_empty(shape, dtype=...); for what arithmetic gives, "
            "opwright.broadcast_shapes and opwright.result_type",
        )
    )


for _name in _REFUSED:
    setattr(FakeArray, f"__{_name}__", _refuse(f"__{_name}__"))

catalogue.register(
    FrameworkInfo(
        "fake",
        package="opwright.fakes",
        module="opwright.frameworks.fake",
        array_classes=(("opwright.fakes", "FakeArray"),),
        constants=("numpy", "torch", "cupy", "jax"),
        flavours=(),
        distribution="opwright",
    )
)


def fake_of(array: Any, device: str = "cpu") -> FakeArray:
    """Return the metadata of any array, as a fake."""
    return array if isinstance(array, FakeArray) else fake_like(array, array.shape, device)


def fake_like(array: Any, shape: Any, device: str = "cpu") -> FakeArray:
    """Return a fake of a shape that stands for an array of another's dtype and framework."""
    info = catalogue.framework_of_class(array.__class__)
    return FakeArray(
        tuple(shape),
        array.dtype,
        device,
        framework=getattr(array, "framework", "") if info is None or info.name == "fake" else info.name,
        weak_type=bool(getattr(array, "weak_type", False)),
    )


_numbers = itertools.count()


@final
class FakeContext(FakeContextBase):
    """What ``get_ctx()`` returns in a fake that runs on `FakeArray`."""

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Size:  # noqa: A002  (torch's names)
        """Return a size that depends on data.

        Parameters
        ----------
        min, max
            The bounds of its value.

        Raises
        ------
        ValueError
            If a bound is symbolic, ``min`` is negative, or ``max`` is below ``min``.
        """
        check_bounds(min, max)
        return symbol(f"u{next(_numbers)}", low=min, high=max)

    def empty(self, shape: Any, *, dtype: Any = None, device: Any = None) -> FakeArray:
        """Return a fake for an operator without array arguments."""
        return FakeArray(shape, "float64" if dtype is None else dtype, "cpu" if device is None else device)
