"""Triton kernels inside a compiled program: what a body launches, held by XLA itself.

* The body is run once, while the program is lowered, on arrays without data; its launches become custom calls
  with the compiled kernels in them. No Python runs when the program does, and the program can be exported.
* A body that does more than allocate, copy and launch, a kernel that is tuned where it runs, or a jaxlib
  without such calls: the kernel is called on XLA's stream instead.
"""

from __future__ import annotations

import importlib
import math
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from opwright.frameworks.base import load
from opwright.frameworks.jax.kernels import apply
from opwright.programs import Copy, Launch, NotAProgram, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opwright.frameworks.jax.arguments import Template
    from opwright.overload import Kernel, OpOverload

TARGET = "triton_kernel_call_ffi"
"""The custom call of jaxlib that launches a compiled Triton kernel."""

FIRST = (0, 10, 2)
"""The first release of JAX that was seen to have it."""


@cache
def library() -> Any:
    """Return jaxlib's module that writes such calls down, or None where there is none."""
    if jax.__version_info__ < FIRST:
        return None
    try:
        found = importlib.import_module("jaxlib.gpu_triton")
    except ImportError:
        return None
    names = ("TritonKernel", "TritonKernelCall", "create_array_parameter", "create_scalar_parameter")
    return found if all(hasattr(found, name) for name in names) else None


def holds(record: OpOverload, kernel: Kernel) -> bool:
    """Return whether the launches of a kernel may be held: it is the body of a ``triton_op`` of tensors."""
    rule = record.rule("decomposition")
    return rule is not None and rule.fn is kernel.fn and kernel.flavour == "torch" and library() is not None


def traceable(
    record: OpOverload, kernel: Kernel, template: Template, operands: Sequence[Any], outputs: Sequence[Any]
) -> Callable[..., list[Any]] | None:
    """Return the function that is traced in a kernel's place, or None where its launches cannot be held.

    Parameters
    ----------
    record, kernel, template
        The overload, its kernel, and the arguments with indices in place of arrays.
    operands, outputs
        Abstract values.
    """
    run = apply(record, kernel, template, checked=False)
    inputs = [(aval.shape, aval.dtype.name) for aval in operands]
    try:
        program = load("torch").record_launches(lambda tensors: run(tensors)[0], inputs, "cuda")
        calls = [_opaque(step) if isinstance(step, Launch) else b"" for step in program.steps]
    except NotAProgram:
        return None
    found = [program.buffers[number] for number in program.outputs]
    if [_described(one) for one in found] != [_described(aval) for aval in outputs]:
        return None  # the call itself says how kernel and fake differ
    shapes = [aval.shape for aval in outputs]

    def call(*arrays: Any) -> list[Any]:
        values = _run(program, calls, arrays)
        return [values[n].reshape(shape) for n, shape in zip(program.outputs, shapes, strict=True)]

    return call


def _described(array: Any) -> tuple[str, int]:
    """Return the dtype's name and the number of elements."""
    return str(array.dtype), math.prod(array.shape)


def _opaque(launch: Launch) -> bytes:
    """Return a launch as jaxlib's call takes it."""
    triton = library()
    data = launch.kernel.metadata
    try:
        array = triton.create_array_parameter(0, 16)
        parameters = [
            array if kind == "*" else triton.create_scalar_parameter(value, kind)
            for kind, value in launch.parameters
        ]
        kernel = triton.TritonKernel(
            data.name,
            data.num_warps,
            1,
            data.shared,
            launch.kernel.asm["ptx"],
            str(launch.kernel.asm["ttir"]),
            int(data.target.arch),
        )
        call = triton.TritonKernelCall(kernel, *launch.grid, parameters)
        return zlib.compress(call.to_proto(data.name, b""))
    except (TypeError, ValueError) as error:  # what this jaxlib does not take
        raise NotAProgram(str(error)) from error


def _run(program: Program, calls: Sequence[bytes], arrays: Sequence[Any]) -> list[Any]:
    """Return the values of all buffers after the program, None for one that was never written."""
    values: list[Any] = [*arrays, *(None for _ in program.buffers[len(arrays) :])]

    def value(number: int) -> Any:
        buffer = program.buffers[number]
        if values[number] is None:
            values[number] = jnp.full(buffer.shape, buffer.fill or 0, buffer.dtype)
        return values[number]

    for step, opaque in zip(program.steps, calls, strict=True):
        if isinstance(step, Copy):
            values[step.target] = value(step.source)
        elif 0 not in step.grid:
            _launch(program, step, opaque, values, value)
    for number in program.outputs:
        value(number)
    return values


def _launch(
    program: Program, step: Launch, opaque: bytes, values: list[Any], value: Callable[[int], Any]
) -> None:
    """Add a launch to the program that is traced.

    The call takes its arrays in the kernel's order: operands first, then results. What is allocated and
    written at the end of that order is a result; every other array that is written is an operand, and a
    result in the same memory.
    """
    order = [number for kind, number in step.parameters if kind == "*"]
    fresh: list[int] = []
    while order and order[-1] in step.written and _is_fresh(program, values, order[-1], order[:-1]):
        fresh.insert(0, order.pop())
    written = [number for number in dict.fromkeys(order) if number in step.written]
    results = [*fresh, *written]
    shapes = [
        jax.ShapeDtypeStruct(program.buffers[n].shape, jnp.dtype(program.buffers[n].dtype)) for n in results
    ]
    aliases = {order.index(number): len(fresh) + place for place, number in enumerate(written)}
    call = jax.ffi.ffi_call(TARGET, shapes, input_output_aliases=aliases)
    outs = call(*(value(number) for number in order), opaque=opaque)
    for number, out in zip(results, outs, strict=True):
        values[number] = out


def _is_fresh(program: Program, values: Sequence[Any], number: int, others: Sequence[int]) -> bool:
    return values[number] is None and program.buffers[number].fill is None and number not in others
