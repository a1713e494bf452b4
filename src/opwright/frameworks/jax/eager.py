"""Calls on concrete arrays outside of every transform: the kernel itself, without a primitive.

The generated callable asks what the class of the first array does not tell: no trace under way, all arrays
of the exact class, on one device, committed alike; no mode, no ``jax_default_device``, no check of numbers.
Anything else goes the general way.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from opwright.entry import Names, compile_function, flat_names, kernel_call
from opwright.frameworks.base import load, of_flavour
from opwright.frameworks.jax import private
from opwright.frameworks.jax.execute import adopt, aval_of, hand_over
from opwright.frameworks.jax.kernels import device_name, state_of
from opwright.modes import ACTIVE
from opwright.outputs import bad_output, is_one
from opwright.scalars import coercion, coercion_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.overload import Kernel, OpOverload


def direct(
    record: OpOverload,
    kernel: Kernel,
    device_type: str,
    convert: Callable[[str, Any], Any],
    general: Callable[..., Any],
) -> Callable[..., Any]:
    """Return the callable for concrete arrays on a device type; ``general`` where there is no short way."""
    schema = record.schema
    arrays = [argument for argument in schema.arguments if argument.has_tensors]
    plain = all(not argument.is_list and not argument.is_optional for argument in arrays)
    returns = all(str(entry.type) == "Tensor" for entry in schema.returns)
    if not arrays or not plain or not returns or not schema.returns or schema.mutated:
        return general
    if private.trace_state_clean is None or kernel.with_keyset:
        return general
    traced = kernel.flavour in ("jax", "array_api")
    if not traced and (kernel.flavour != "numpy" or device_type != "cpu"):
        return general
    return _generated(record, kernel, convert, general, traced=traced)


def _generated(
    record: OpOverload,
    kernel: Kernel,
    convert: Callable[[str, Any], Any],
    general: Callable[..., Any],
    *,
    traced: bool,
) -> Callable[..., Any]:
    schema = record.schema
    names, flat = Names(schema), flat_names(schema)
    add, prefix = names.add, names.prefix
    add("general", general)
    add("array", private.array_class())
    arrays = [argument.name for argument in schema.arguments if argument.has_tensors]
    leave = f"return {prefix}general({flat})"
    body = [f"if {add('active', ACTIVE)}[0] or not {add('clean', private.trace_state_clean)}(): {leave}"]
    others = [f"{name}.__class__ is not {prefix}array" for name in arrays]
    body.append(f"if {' or '.join(others)}: {leave}")
    if not traced:
        body += _guard_lines(names, arrays, leave)
    for argument in schema.arguments:
        if not argument.has_tensors:
            coerce = _coercion(record, argument, kernel, convert)
            body += coercion_lines(argument, add("coerce_" + argument.name, coerce), add)
    rename = {} if traced else {name: f"{add('view', np.asarray)}({name})" for name in arrays}
    call = f"{add('kernel', kernel.fn)}({kernel_call(schema, rename)})"
    out = prefix + "out"
    if traced:
        check = add("check", _traced_check(record, kernel))
        body += [f"{out} = {call}", *_class_lines(record, names, out, check), f"return {out}"]
        title = f"{schema.qualname} on jax, traced kernel"
    else:
        # The general way looks at the aliasing of outputs in the first calls.
        body.insert(0, f"if {add('unchecked', state_of(record).unchecked)}[0]: {leave}")
        body += [f"{out} = {call}", *_hand_over_lines(record, kernel, names, out)]
        title = f"{schema.qualname} on jax"
    return compile_function(title, "call", flat, body, names)


def _hand_over_lines(record: OpOverload, kernel: Kernel, names: Names, out: str) -> list[str]:
    """Return the lines that return a NumPy result as an array of JAX, at once where nobody else holds it."""
    add, prefix = names.add, names.prefix
    where = f"{prefix}sharding, {prefix}device, {prefix}committed"
    take = add("take", _taker(record, kernel) if is_one(record) else _several(record, kernel))
    put = private.device_put()
    lines = []
    if is_one(record) and private.COUNTS_TELL:
        refs, aval = add("references", sys.getrefcount), add("aval", aval_of)
        tests = [
            f"{out}.__class__ is {add('ndarray', np.ndarray)}",
            f"{out}.dtype in {add('narrow', _NARROW)}",
            f"{out}.flags.owndata",
            f"{refs}({out}) <= {private.REFERENCES_TO_A_LOCAL}",
        ]
        if put is None:
            made = f"{add('hand_over', hand_over)}({out}, {prefix}device, {prefix}committed)"
        else:
            made = (
                f"{add('put', put)}({aval}({out}.shape, {out}.dtype), {where.replace(',', f', {out},', 1)})"
            )
        lines = [f"if {' and '.join(tests)}: return {made}"]
    return [*lines, f"return {take}({out}, {where})"]


def _guard_lines(names: Names, arrays: list[str], leave: str) -> list[str]:
    """Return the lines that leave where arrays are not on one CPU device, or JAX's settings matter."""
    prefix, add = names.prefix, names.add
    config, single = add("config", jax.config), add("single", jax.sharding.SingleDeviceSharding)
    sharding, device, committed = prefix + "sharding", prefix + "device", prefix + "committed"
    of = add("device_of", private.device_of)
    usual = jax.local_devices(backend="cpu")[0]
    lines = [
        f"if {config}.jax_default_device is not None: {leave}",
        f"if {config}.jax_debug_nans or {config}.jax_debug_infs: {leave}",
        f"{sharding} = {arrays[0]}.sharding",
        f"if {sharding}.__class__ is not {single}: {leave}",
        f"{device} = {of}({sharding})",
        f"if {device} is not {add('usual', usual)} and {device}.platform != 'cpu': {leave}",
        f"{committed} = {arrays[0]}.committed",
    ]
    for name in arrays[1:]:
        other = prefix + "other"
        lines += [
            f"{other} = {name}.sharding",
            f"if {other}.__class__ is not {single} or {of}({other}) is not {device}: {leave}",
            f"if {name}.committed != {committed}: {leave}",
        ]
    return lines


def _coercion(record: OpOverload, argument: Any, kernel: Kernel, convert: Callable[[str, Any], Any]) -> Any:
    """Return the coercion of a static argument, dtypes and devices as the kernel's flavour has them."""
    own = coercion(record.qualname, argument, convert)
    if kernel.flavour in ("jax", "array_api") or argument.base not in ("ScalarType", "Device"):
        return own
    theirs = of_flavour(kernel.flavour).convert

    def one(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(one, value))
        if value is None:
            return None
        return theirs(argument.base, device_name(value) if argument.base == "Device" else value)

    return lambda value: one(own(value))


def _class_lines(record: OpOverload, names: Names, out: str, check: str) -> list[str]:
    """Return the lines that hand outputs which are not plainly arrays of JAX to ``check``."""
    cls = names.prefix + "array"
    if is_one(record):
        return [f"if {out}.__class__ is not {cls}: {out} = {check}({out})"]
    count = len(record.schema.returns)
    tuple_, len_ = names.add("tuple", tuple), names.add("len", len)
    tests = [f"{out}.__class__ is not {tuple_}", f"{len_}({out}) != {count}"]
    tests += [f"{out}[{index}].__class__ is not {cls}" for index in range(count)]
    return [f"if {' or '.join(tests)}: {out} = {check}({out})"]


def _traced_check(record: OpOverload, kernel: Kernel) -> Callable[[Any], Any]:
    from opwright.frameworks.jax.arguments import as_user_output, flatten_outputs

    def check(out: Any) -> Any:
        return as_user_output(record.schema, flatten_outputs(record, out, "jax", kernel)[0])

    return check


_NARROW = frozenset(
    np.dtype(name)
    for name in (
        "bool",
        "int8",
        "int16",
        "int32",
        "uint8",
        "uint16",
        "uint32",
        "float16",
        "float32",
        "complex64",
    )
)
"""Dtypes that JAX keeps whether x64 is on or off."""


def _taker(record: OpOverload, kernel: Kernel) -> Callable[..., Any]:
    """Return what makes a JAX array of the one output of a NumPy kernel."""
    accepts = load("numpy").accepts

    def take(out: Any, _sharding: Any, device: Any, committed: bool) -> Any:
        if not accepts(out):
            raise bad_output(record, kernel, "an array of numpy as output 0", out)
        return adopt(out, device, committed, 2)

    return take


def _several(record: OpOverload, kernel: Kernel) -> Callable[..., Any]:
    """Return what makes JAX arrays of the outputs of a NumPy kernel."""
    count, accepts = len(record.schema.returns), load("numpy").accepts

    def take(out: Any, sharding: Any, device: Any, committed: bool) -> Any:
        if not isinstance(out, list | tuple) or len(out) != count:
            raise bad_output(record, kernel, f"a tuple of {count}", out)
        found = []
        for index, one in enumerate(out):
            if not accepts(one):
                raise bad_output(record, kernel, f"an array of numpy as output {index}", out)
            # The kernel's own tuple refers to each, and so does this loop.
            found.append(adopt(one, device, committed, 2))
        return tuple(found)

    return take
