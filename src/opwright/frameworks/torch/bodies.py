"""Whether a kernel's body can meet a gradient: if not, grad mode need not be turned off around it.

Grad mode is off around kernels so that a tensor that is no argument, such as a module's parameter, records
nothing. Turning it off and on costs as much as all guards of a call. A body that names nothing but the
modules below, C extensions and built-ins, and nothing that has to do with gradients, has no such tensor.
"""

from __future__ import annotations

import builtins
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

_MODULES = frozenset(
    {"array_api_compat", "functools", "itertools", "math", "numpy", "operator", "opwright", "torch", "triton"}
)
_GRADIENT_NAMES = frozenset(
    {
        "Parameter",
        "autograd",
        "backward",
        "compile",
        "enable_grad",
        "eval",
        "exec",
        "func",
        "getattr",
        "globals",
        "grad",
        "hub",
        "is_grad_enabled",
        "jit",
        "load",
        "nn",
        "requires_grad",
        "requires_grad_",
        "set_grad_enabled",
        "vars",
    }
)


def meets_no_gradient(fn: Any) -> bool:
    """Return whether a kernel that is given tensors without gradient can meet none with one."""
    if isinstance(fn, BuiltinFunctionType):
        return _is_free(fn)
    if type(fn) is not FunctionType or fn.__closure__ is not None:
        return False
    return _names_nothing_else(fn.__code__, fn.__globals__)


def _names_nothing_else(code: CodeType, space: dict[str, Any]) -> bool:
    for name in code.co_names:
        if name in _GRADIENT_NAMES or (name in space and not _is_harmless(space[name])):
            return False
    return all(
        _names_nothing_else(one, space) if isinstance(one, CodeType) else not _says_gradient(one)
        for one in code.co_consts
    )


def _says_gradient(constant: Any) -> bool:
    """Return whether a constant is a keyword argument's name, or names, that has to do with gradients."""
    if isinstance(constant, str):
        return constant in _GRADIENT_NAMES
    return isinstance(constant, tuple) and any(map(_says_gradient, constant))


def _is_harmless(value: Any) -> bool:
    """Return whether a global is a module or function that holds no tensor and turns no gradient on."""
    if type(value) in (bool, int, float, str):
        return True  # unlike None, which may stand for what is still to be loaded
    if type(value).__module__.partition(".")[0] == "triton":
        return True  # a Triton kernel, or a type of its language: it records nothing
    if isinstance(value, ModuleType):
        file = getattr(value, "__file__", None) or ""
        known = file.endswith(tuple(EXTENSION_SUFFIXES)) or value.__name__ in sys.builtin_module_names
        return known or _is_known(value.__name__.split("."))
    if isinstance(value, BuiltinFunctionType) and not _is_free(value):
        return False
    name, module = getattr(value, "__name__", None), getattr(value, "__module__", None)
    if not isinstance(value, BuiltinFunctionType | FunctionType | type) or name is None:
        return False
    return getattr(builtins, name, None) is value or _is_known([*(module or "torch").split("."), name])


def _is_free(function: BuiltinFunctionType) -> bool:
    """Return whether a built-in function is a module's or class's, not the method of some object."""
    return isinstance(function.__self__, ModuleType | type | None)


def _is_known(path: list[str]) -> bool:
    return path[0] in _MODULES and not _GRADIENT_NAMES.intersection(path)
