"""Functions of numba as kernels, registered as they are: ``njit``, ``vectorize``, ``guvectorize``, CUDA.

* They are recognised by class; numba is never imported here before one was seen.
* Those for the CPU take NumPy arrays whatever the operator's definition takes.
* A kernel of ``numba.cuda`` is launched with one thread for each element of the largest array that it
  writes to, on the stream of the arrays' framework. One that needs another grid is launched by a function
  of the author's.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.errors import RegistrationTypeError, layout
from opwright.frameworks.base import load
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.schema import FunctionSchema


def adapt(fn: Any, schema: FunctionSchema) -> tuple[Callable[..., Any], str] | None:
    """Return the kernel that runs a function of numba, or a NumPy ufunc, and its flavour; None for others.

    Raises
    ------
    RegistrationTypeError
        If it cannot be a kernel of this operator.
    """
    names = {
        cls.__name__ for cls in type(fn).__mro__ if cls.__module__.partition(".")[0] in ("numba", "numpy")
    }
    if "CUDADispatcher" in names:
        return _on_gpu(fn, schema), catalogue.DLPACK
    if any(name.startswith("CUDA") for name in names):
        raise RegistrationTypeError(
            layout(
                f"a ufunc of numba.cuda returns its own arrays: it cannot be a kernel of {schema.qualname}",
                registered=source_of(fn),
                fix="register a function that calls it with out= and takes the output as an argument",
            )
        )
    if "GUFunc" in names:
        return _without_result(fn, schema), "numpy"
    return (fn, "numpy") if names & {"Dispatcher", "DUFunc", "ufunc"} else None


def _without_result(fn: Any, schema: FunctionSchema) -> Callable[..., Any]:
    """Return a generalised ufunc as a kernel: one that writes into an argument returns it too."""
    if schema.returns:

        def take(*args: Any) -> Any:  # its own signature also has the output
            return fn(*args)

        return take

    def call(*args: Any) -> None:
        fn(*args)

    return call


def _on_gpu(fn: Any, schema: FunctionSchema) -> Callable[..., Any]:
    """Return the function that launches a CUDA kernel on the arrays of any framework."""
    mutated = [index for index, argument in enumerate(schema.positional) if argument.is_write]
    if (
        schema.returns
        or schema.keyword_only
        or not mutated
        or any(schema.positional[i].is_list for i in mutated)
    ):
        raise RegistrationTypeError(
            layout(
                f"a kernel of numba.cuda cannot be a kernel of {schema.qualname}",
                expected="an operator that returns nothing and mutates the arrays that the kernel writes to",
                got=str(schema),
                registered=source_of(fn),
                fix="register a function that allocates the outputs and launches the kernel",
            )
        )

    def launch(*args: Any) -> None:
        written = [args[index] for index in mutated if args[index] is not None]
        size = max((prod(array.shape) for array in written), default=0)
        if size:
            fn.forall(size, stream=_stream(written[0]))(*args)

    return launch


def _stream(array: Any) -> Any:
    """Return the stream that work on an array is queued on, as numba has it."""
    info = catalogue.framework_of_class(array.__class__)
    place = None if info is None else load(info.name).stream_of(array)
    if place is None or not place[1]:
        return 0
    from numba import cuda

    return cuda.external_stream(place[1])
