"""Which arguments of a launch a Triton kernel writes to: declared, or found by compiling and reading it.

Needs Triton and no GPU. A kernel whose analysis fails must declare what it writes; nothing is guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.errors import RegistrationValueError, UnsupportedError, layout
from opwright.kernels.triton_cache import compute
from opwright.kernels.triton_writes import Unclear, written_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opwright.kernels.triton import Launcher, Layers

_TYPES = {
    "bool": "i1",
    **{f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"fp{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2": "fp8e5",
    "float8_e5m2fnuz": "fp8e5b16",
}
_PLAIN = {"SymBool": bool, "SymInt": int, "SymFloat": float}
_NUMBERS = {"bool": "i1", "SymBool": "i1", "int": "i32", "SymInt": "i32", "float": "fp32", "SymFloat": "fp32"}


def written_arguments(
    launcher: Launcher, given: Mapping[str, Any], *, is_array: Callable[[Any], bool]
) -> tuple[str, ...]:
    """Return the names of the parameters that a launch writes to.

    Parameters
    ----------
    launcher
        The kernel; what it declares is believed here and verified where the kernel is compiled.
    given
        The arguments of the launch by name, those that heuristics and configs give left out.
    is_array
        Whether a value is an array; it has a ``dtype``.

    Raises
    ------
    UnsupportedError
        If nothing is declared and the analysis fails.
    """
    if launcher.writes is not None:
        return launcher.writes
    layers = launcher.layers
    try:
        key, signature, constants = _signature(layers, given, is_array)
        found = layers.writes.get(key)
        if found is None:
            found = layers.writes[key] = _analyse(layers, signature, constants)
    except Unclear as reason:
        raise unclear(layers, str(reason)) from None
    return found


def verify(launcher: Launcher, code: str, signature: Mapping[Any, str]) -> None:
    """Raise where a compiled kernel writes to a parameter that its declaration does not name.

    Parameters
    ----------
    launcher
        The kernel, with a declaration.
    code
        Its intermediate code.
    signature
        Its parameters' types by name; constants have none in the code.

    Raises
    ------
    RegistrationValueError
        Naming the parameters.
    """
    try:
        positions = written_parameters(code)
    except Unclear:
        return  # that is what the declaration is for
    names = [name for name, type_ in signature.items() if type_ != "constexpr"]
    missing = sorted({names[i] for i in positions if i < len(names)} - set(launcher.writes or ()))
    if missing:
        raise RegistrationValueError(
            layout(
                f"Triton kernel {launcher.layers.name} writes to parameters that writes= does not name",
                expected=", ".join(launcher.writes or ()) or "none",
                got=", ".join(missing),
                registered=launcher.layers.source,
                fix="add them to writes=",
            )
        )


def unclear(layers: Layers, reason: str) -> UnsupportedError:
    """Return the error that asks for a declaration."""
    return UnsupportedError(
        layout(
            f"what Triton kernel {layers.name} writes to cannot be told from its code: {reason}",
            registered=layers.source,
            fix=f"declare it: wrap_triton({layers.name}, writes=('out_ptr',))[grid](...)",
        )
    )


def _signature(
    layers: Layers, given: Mapping[str, Any], is_array: Callable[[Any], bool]
) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """Return a key, the type of each parameter, and the values of the constant ones."""
    if layers.interpreted:
        raise Unclear("it runs in Triton's interpreter, which has no intermediate code")
    values = dict(given)
    compute(layers.around, values)
    if layers.tuner is not None and layers.tuner.configs:
        values.update(layers.tuner.configs[0].all_kwargs())
    compute(layers.inside, values)
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for parameter in layers.jit.params:
        name = parameter.name
        if name not in values and not parameter.has_default:
            raise Unclear(f"its parameter {name} gets no value")
        value = values.get(name, parameter.default)
        if parameter.is_constexpr or value is None:
            types[name] = "constexpr"
            plain = _PLAIN.get(type(value).__name__)
            constants[name] = value if plain is None else plain(value)
        elif is_array(value):
            dtype = str(value.dtype).rpartition(".")[2]
            if dtype not in _TYPES:
                raise Unclear(f"its parameter {name} has dtype {dtype}")
            types[name] = "*" + _TYPES[dtype]
        elif type(value).__name__ in _NUMBERS:
            types[name] = _NUMBERS[type(value).__name__]
        else:
            raise Unclear(f"its parameter {name} is of type {type(value).__name__}")
    key = (tuple(types.values()), repr(sorted(constants.items())))
    return key, types, constants


def _analyse(layers: Layers, signature: dict[str, str], constants: dict[str, Any]) -> tuple[str, ...]:
    """Compile a kernel and read which parameters it writes to."""
    import triton
    from triton.compiler import ASTSource
    from triton.errors import TritonError

    source = ASTSource(layers.jit, signature, constants)
    try:
        code = triton.compile(source, target=_target()).asm["ttir"]
    except (TritonError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise Unclear(f"it does not compile ({type(error).__name__}: {str(error).strip()})") from error
    names = [name for name, type_ in signature.items() if type_ != "constexpr"]
    return tuple(names[number] for number in written_parameters(code))


def _target() -> Any:
    """Return the GPU that is there, else one that only compiling is done for."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    try:
        return driver.active.get_current_target()
    except RuntimeError:
        return GPUTarget("cuda", 90, 32)
