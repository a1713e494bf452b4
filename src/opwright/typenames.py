"""The names of the schema language's types, and what to write instead of a name that is not one of them."""

from __future__ import annotations

from typing import Final

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES = (  # noqa: SIM905  (one a line would be thirty lines)
    "Tensor int SymInt float bool SymBool complex str Scalar number ScalarType dtype Device DeviceIndex "
    "Layout MemoryFormat Generator Dimname Storage Stream QScheme Quantizer ConstQuantizerPtr Capsule Any "
    "AnyClassType AnyEnumType PyObject None NoneType"
).split()

BASE_TYPES: Final = frozenset(_NAMES)
"""Every type that has a name and no parameters."""

GENERIC_TYPES: Final = {"Dict": 2, "Future": 1, "RRef": 1, "Await": 1, "Union": 0, "Tuple": 0}
"""Types with element types in parentheses, and how many; 0 is any number."""

_INSTEAD = {
    **dict.fromkeys(
        ("int64_t", "int32_t", "size_t", "long", "int64", "int32", "Int", "integer"), "int` or `SymInt"
    ),
    **dict.fromkeys(("double", "float64", "float32", "Float", "SymFloat", "real"), "float"),
    **dict.fromkeys(("string", "String", "Str", "std", "bytes", "char"), "str"),
    **dict.fromkeys(("Bool", "boolean"), "bool"),
    **dict.fromkeys(("Complex", "complex128", "complex64"), "complex"),
    **dict.fromkeys(
        ("tensor", "ndarray", "array", "Array", "ArrayLike", "torch.Tensor", "np.ndarray"), "Tensor"
    ),
    **dict.fromkeys(("numpy.ndarray", "jax.Array", "jnp.ndarray", "cupy.ndarray", "cp.ndarray"), "Tensor"),
    **dict.fromkeys(("scalar", "Number", "numeric"), "Scalar"),
    **dict.fromkeys(("torch.dtype", "np.dtype", "DType"), "ScalarType"),
    **dict.fromkeys(("device", "torch.device"), "Device"),
    **dict.fromkeys(("TensorList", "ITensorListRef"), "Tensor[]"),
    **dict.fromkeys(("IntArrayRef", "IntList"), "int[]"),
    **dict.fromkeys(("SymIntArrayRef", "Size", "torch.Size", "shape"), "SymInt[]"),
    **dict.fromkeys(("any", "object"), "Any"),
    **dict.fromkeys(("void", "null", "nothing"), "()"),
    "torch.layout": "Layout",
    "torch.memory_format": "MemoryFormat",
    "generator": "Generator",
    "torch.Generator": "Generator",
}
_LISTS = frozenset({"List", "list", "Sequence", "ArrayRef", "Iterable", "vector", "array"})
_OPTIONALS = frozenset({"Optional", "optional"})


def hint_for(word: str, rest: Sequence[str]) -> str | None:
    """Say what to write instead of a type name; ``rest`` holds the tokens that follow it.

    Returns None for a name that nothing known is close to.
    """
    inner = rest[1] if len(rest) > 1 and rest[0] in ("[", "<", "(") and rest[1][:1].isalpha() else ""
    inner = "int[]" if inner in _LISTS else _INSTEAD.get(inner, inner).partition("`")[0]
    bare = word.removeprefix("typing.")
    if bare in _LISTS and (inner or bare[0].isupper() or bare == "list"):
        return f"use `{inner or 'int'}[]` instead of `{word}{_bracketed(rest)}`"
    if bare in _OPTIONALS:
        return f"use `{inner or 'int'}?` instead of `{word}{_bracketed(rest)}`"
    if bare in ("dict", "Dict", "Mapping"):
        return "use `Dict(str, Tensor)`, in parentheses"
    if bare in ("tuple", "Tuple"):
        return "use `(int, int)`, or `int[2]` for elements of one type"
    if bare == "Union":
        return "use `Union(int, str)`, in parentheses"
    if word in GENERIC_TYPES:
        return f"use `{word}(int)`, in parentheses"
    if word in _INSTEAD:
        return f"use `{_INSTEAD[word]}` instead of `{word}`"
    if word[:1].isupper():
        from difflib import get_close_matches

        close = get_close_matches(word, BASE_TYPES | GENERIC_TYPES.keys(), n=1, cutoff=0.8)
        if close:
            return f"use `{close[0]}` instead of `{word}`"
    return None


def _bracketed(rest: Sequence[str]) -> str:
    """Return ``[int]`` where the tokens start with it."""
    return "".join(rest[:3]) if len(rest) > 2 and rest[0] in "[<(" and rest[2] in "]>)" else ""
