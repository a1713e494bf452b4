from __future__ import annotations

import pytest

from opwright.typenames import BASE_TYPES, GENERIC_TYPES, hint_for


@pytest.mark.parametrize(
    ("word", "rest", "hint"),
    [
        ("int64_t", [], "use `int` or `SymInt` instead of `int64_t`"),
        ("double", [], "use `float` instead of `double`"),
        ("List", ["[", "Tensor", "]"], "use `Tensor[]` instead of `List[Tensor]`"),
        ("List", ["x", ")"], "use `int[]` instead of `List`"),
        ("typing.Sequence", ["[", "int", "]"], "use `int[]` instead of `typing.Sequence[int]`"),
        ("Optional", ["[", "List", "[", "int"], "use `int[]?` instead of `Optional`"),
        ("list", ["[", "double", "]"], "use `float[]` instead of `list[double]`"),
        ("array", ["x"], "use `Tensor` instead of `array`"),
        ("Union", ["[", "int"], "use `Union(int, str)`, in parentheses"),
        ("Future", ["[", "int"], "use `Future(int)`, in parentheses"),
        ("Tuple", ["["], "use `(int, int)`, or `int[2]` for elements of one type"),
        ("Dict", ["["], "use `Dict(str, Tensor)`, in parentheses"),
        ("Scaler", [], "use `Scalar` instead of `Scaler`"),
        ("Quaternion", [], None),
        ("foo", [], None),
        ("t", [], None),
    ],
)
def test_what_to_write_instead_of_a_name(word, rest, hint):
    assert hint_for(word, rest) == hint


def test_type_variables_of_torch_get_no_hint():
    torch = pytest.importorskip("torch", reason="reads torch's type variables; torch is not installed")
    names = {"t", "tVal", "t1", "t2"}
    assert all(
        str(torch._C.parse_schema(f"ns::f({name} x) -> ()")) == f"ns::f({name} x) -> ()" for name in names
    )
    assert {hint_for(name, []) for name in names} == {None}


def test_torch_knows_every_name_or_we_know_why_not():
    torch = pytest.importorskip("torch", reason="asks torch's parser; torch is not installed")
    unknown = set()
    for name in sorted(BASE_TYPES):
        try:
            torch._C.parse_schema(f"ns::f({name} x) -> ()")
        except RuntimeError:
            unknown.add(name)
    # Dimname left torch's grammar with named tensors; PyObject is only printed.
    assert unknown == {"Dimname", "PyObject"}
    assert set(GENERIC_TYPES) == {"Dict", "Future", "RRef", "Await", "Union", "Tuple"}
