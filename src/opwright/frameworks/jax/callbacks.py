"""Kernels on the host inside a compiled program: the body that XLA calls, and how it is reached.

* Inputs are views of XLA's buffers: read-only ones of NumPy, or those that ``inputs`` tells of.
* What a kernel returns is copied into XLA's output buffers, unless it wrote there itself (a keyword
  parameter ``out`` that is not in the schema).
* An exception becomes a ``JaxRuntimeError`` with operator, kernel, type and traceback in its text; where a
  frame of ours encloses the program, that frame raises the kernel's own exception instead.
"""

from __future__ import annotations

import gc
import importlib.util
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from opwright import catalogue
from opwright.errors import OutputError, UnsupportedError, layout
from opwright.frameworks.base import Framework, load, of_flavour
from opwright.frameworks.jax import private
from opwright.frameworks.jax.avals import canonical, unpacked

Compute = Callable[[Sequence[Any], Sequence[Any] | None], list[Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a computation runs on one device type.

    Parameters
    ----------
    title
        The operator, for messages.
    flavour
        The arrays that ``compute`` takes and returns; those of JAX are traced, others run on the host or,
        on a GPU, on device buffers.
    compute
        ``compute(arrays, outs)`` returns the outputs; ``outs``, where given, are arrays to write them into.
    source
        ``file:line`` of the kernel.
    impure
        Whether two equal calls may differ, so that none is merged or left out.
    lean
        ``lean(plan, view, mapped=None)`` returns a body for XLA's buffers that is generated for this very
        call: inputs, then outputs, each made a NumPy array by ``view``; the kernel is called for each row of
        the inputs that are ``mapped``. None where there is only the general body.
    held
        ``held(operands, outputs)`` returns a function to trace that launches the body's Triton kernels
        without the body, or None where it cannot; itself None where there is no such body.
    """

    title: str
    flavour: str
    compute: Compute
    source: str
    impure: bool = False
    lean: Callable[..., Callable[..., None]] | None = None
    held: Callable[[Sequence[Any], Sequence[Any]], Callable[..., list[Any]] | None] | None = None

    @property
    def inline(self) -> bool:
        """Whether the body is traced."""
        return self.flavour in ("jax", "array_api")


class _Watch:
    """How many frames of ours wait for a compiled program, and the exceptions of kernels meanwhile."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.raised: list[tuple[str, BaseException]] = []


_watch = _Watch()


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise a kernel's own exception where the block fails because of it."""
    with _watch.lock:
        _watch.count += 1
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        with _watch.lock:
            own = next((raised for key, raised in _watch.raised if key in text), None)
        if own is None:
            raise
        raise own from error
    finally:
        with _watch.lock:
            _watch.count -= 1
            if not _watch.count:
                _watch.raised.clear()


class KernelError(RuntimeError):
    """What a body raises into XLA: the text is all that comes through."""


def failure(plan: Plan, error: BaseException) -> KernelError:
    """Return the exception that carries a kernel's own one through XLA."""
    lines = "".join(traceback.format_exception(error)).rstrip()
    text = layout(
        f"kernel of {plan.title} raised {type(error).__name__}: {error}",
        registered=f"{plan.source} ({plan.flavour})",
    )
    text = f"{text}\n{lines}"
    with _watch.lock:
        if _watch.count:
            _watch.raised.append((text, error))
    return KernelError(text)


def fill(plan: Plan, outs: Sequence[Any], results: Sequence[Any]) -> None:
    """Copy a kernel's results into output buffers, after comparing shapes and dtypes exactly."""
    if len(results) != len(outs):
        raise differs(plan, f"{len(outs)} outputs", f"{len(results)} outputs")
    for index, (out, result) in enumerate(zip(outs, results, strict=True)):
        if result is out:
            continue
        if tuple(result.shape) != tuple(out.shape) or not _fits(result.dtype, out.dtype):
            raise differs(plan, described(out), described(result), index)
        out[...] = result


def _fits(dtype: Any, wanted: Any) -> bool:
    """Return whether a dtype is the wanted one, or would be while x64 is off."""
    return dtype == wanted or (isinstance(dtype, np.dtype) and canonical(dtype) == wanted)


def described(array: Any) -> str:
    """Return ``float32[2,3]``."""
    return f"{str(array.dtype).removeprefix('torch.')}[{','.join(map(str, array.shape))}]"


def differs(plan: Plan, expected: str, got: str, index: int | None = None) -> OutputError:
    """Return the error for a kernel whose output is not what the fake said."""
    which = "" if index is None else f" output {index} of"
    return OutputError(
        layout(
            f"{plan.title}:{which} the kernel and the fake differ",
            expected=f"{expected} (the fake)",
            got=f"{got} (the kernel)",
            registered=plan.source,
        )
    )


def on_numpy(plan: Plan) -> Compute:
    """Return the plan's ``compute`` for NumPy views, whatever CPU flavour its kernel has."""
    if plan.flavour == "numpy":
        return plan.compute
    other = of_flavour(plan.flavour)

    def compute(arrays: Sequence[Any], outs: Sequence[Any] | None) -> list[Any]:
        theirs = None if outs is None else [other.from_numpy(out) for out in outs]
        results = plan.compute([other.from_numpy(array) for array in arrays], theirs)
        if theirs is None or outs is None:
            return [other.to_numpy(result) for result in results]
        # A result that is the output given to the kernel is that output on this side too.
        known = {id(one): out for one, out in zip(theirs, outs, strict=True)}
        return [known[id(r)] if id(r) in known else other.to_numpy(r) for r in results]

    return compute


def host_body(plan: Plan, view: Callable[[Any], Any], count: int) -> Callable[..., None]:
    """Return what is called with XLA's ``count`` input buffers and then its output buffers."""
    if plan.lean is not None:
        return plan.lean(plan, view)
    compute = on_numpy(plan)
    closed = plan.flavour in ("numpy", catalogue.DLPACK)

    def body(*buffers: Any) -> None:
        views = [view(buffer) for buffer in buffers]
        try:
            arrays, outs = views[:count], views[count:]
            if closed:
                for array in arrays:
                    array.setflags(write=False)
            fill(plan, outs, compute(arrays, outs))
        except BaseException as error:  # noqa: BLE001  (XLA would lose it; its text goes on)
            raise failure(plan, error) from None
        array = arrays = outs = None  # type: ignore[assignment]
        while views:
            require_released(plan, views.pop())

    return body


def require_released(plan: Plan, view: Any) -> None:
    """Raise where a kernel keeps a view of a buffer: XLA writes other data there after the call."""
    if not private.COUNTS_TELL or private.is_sole(view, 1):
        return
    known = 1 + private.references_of_two_calls()
    if private.is_sole(view, known):
        return
    gc.collect()  # what only a cycle refers to is not kept
    if not private.is_sole(view, known):
        kept = OutputError(
            layout(
                f"kernel of {plan.title} keeps a view of one of its arrays after the call, "
                "and XLA reuses the memory",
                expected="a kernel that keeps copies",
                got=f"a view of {described(view)} that is still referred to",
                registered=plan.source,
                fix="keep numpy.array(x) instead of x",
            )
        )
        raise failure(plan, kept)


def through_buffers(plan: Plan, shapes: Sequence[jax.ShapeDtypeStruct], count: int) -> Callable[..., Any]:
    """Return a traceable function that runs a host kernel on XLA's own buffers."""
    from jax.experimental.buffer_callback import Buffer, buffer_callback

    body = host_body(plan, Buffer.__array__, count)  # what numpy.asarray calls, at twice the cost

    def callback(_context: Any, outs: Sequence[Any], *arrays: Any) -> None:
        body(*arrays, *outs)

    call: Callable[..., Any] = buffer_callback(callback, list(shapes), has_side_effect=plan.impure)
    return call


def through_device_buffers(plan: Plan, shapes: Sequence[jax.ShapeDtypeStruct]) -> Callable[..., Any]:
    """Return a traceable function that runs a CUDA kernel on XLA's buffers and XLA's stream."""
    from jax.experimental.buffer_callback import buffer_callback

    other = carrier(plan.flavour)

    def callback(context: Any, outs: Sequence[Any], *arrays: Any) -> None:
        try:
            with other.on_stream(None, context.stream):
                theirs = [other.from_dlpack(out) for out in outs]
                results = plan.compute([other.from_dlpack(array) for array in arrays], theirs)
                results = [own(other, result) for result in results]
                fill(plan, theirs, results)
        except BaseException as error:  # noqa: BLE001  (XLA would lose it; its text goes on)
            raise failure(plan, error) from None

    call: Callable[..., Any] = buffer_callback(callback, list(shapes), has_side_effect=plan.impure)
    return call


def carrier(flavour: str) -> Framework:
    """Return the framework whose arrays a kernel on a GPU gets: any will do for one that takes DLPack."""
    if flavour != catalogue.DLPACK:
        return of_flavour(flavour)
    return load("torch" if importlib.util.find_spec("torch") is not None else "cupy")


def taken(array: Any) -> Any:
    """Return what exports DLPack as an array of NumPy, or on a GPU of a framework that is known."""
    info = catalogue.framework_of_class(type(array))
    if array.__dlpack_device__()[0] == _CPU:
        return np.from_dlpack(array) if info is None else load(info.name).to_numpy(array)
    return carrier(catalogue.DLPACK).from_dlpack(array) if info is None else array


_CPU = 1
"""DLPack's number of the CPU."""


def own(framework: Framework, array: Any) -> Any:
    """Return a kernel's result as an array of the framework that carried its inputs."""
    info = catalogue.framework_of_class(type(array))
    return array if info is not None and info.name == framework.name else framework.from_dlpack(array)


def through_copies(plan: Plan, shapes: Sequence[jax.ShapeDtypeStruct], count: int) -> Callable[..., Any]:
    """Return a traceable function that runs a host kernel with copies both ways, by public names only."""
    body = host_body(plan, np.ndarray.view, count)
    dtypes = [shape.dtype for shape in shapes]
    carried = [jax.ShapeDtypeStruct(shape.shape, unpacked(shape.dtype)) for shape in shapes]

    def call(*arrays: Any) -> list[Any]:
        passed, restored = in_whole_bytes(arrays)

        def callback(*given: Any) -> list[Any]:
            outs = [np.empty(shape.shape, shape.dtype) for shape in shapes]
            body(*restored(given), *outs)
            return [out.astype(one.dtype, copy=False) for out, one in zip(outs, carried, strict=True)]

        if plan.impure:
            from jax.experimental import io_callback

            outs = io_callback(callback, carried, *passed)
        else:
            outs = jax.pure_callback(callback, carried, *passed, vmap_method="sequential")
        return list(map(_of_dtype, outs, dtypes))

    return call


def in_whole_bytes(arrays: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Return what to hand a callback of JAX for some arrays, and what makes NumPy's of that again there.

    JAX 0.9 gives callbacks packed elements as if each took a byte, and memory that nobody wrote for the rest.
    """
    dtypes = [array.dtype for array in arrays]

    def restored(given: Sequence[Any]) -> list[Any]:
        return [np.asarray(one).astype(dtype, copy=False) for one, dtype in zip(given, dtypes, strict=True)]

    return [_of_dtype(array, unpacked(array.dtype)) for array in arrays], restored


def _of_dtype(array: Any, dtype: Any) -> Any:
    return array if array.dtype == dtype else jax.lax.convert_element_type(array, dtype)


def has_buffers() -> bool:
    """Return whether this JAX offers ``buffer_callback``."""
    try:
        from jax.experimental.buffer_callback import buffer_callback
    except ImportError:
        return False
    return callable(buffer_callback)


def not_exportable(title: str) -> UnsupportedError:
    """Return the error for exporting a host kernel where no stable target can be named."""
    return UnsupportedError(
        layout(
            f"{title} cannot be exported: its kernel runs on the host",
            expected="a kernel of flavour jax or array_api, "
            "or the extra that gives host kernels a target by name",
            fix="pip install 'opwright[tvm-ffi]', then allow the target that "
            "opwright.frameworks.jax.export_target(op) names",
        )
    )
