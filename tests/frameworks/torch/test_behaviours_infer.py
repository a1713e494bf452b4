"""What the public tests of ``torch.library`` pin down about ``infer_schema``: rows 11 and 36 to 47."""

import collections.abc
import sys
from types import ModuleType
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import pytest
import torch
from torch import Tensor
from torch.types import Number

import opwright as ow


class Pair(NamedTuple):
    a: int
    b: int


def inferred(fn, mutates_args=(), **options):
    return ow.infer_schema(fn, mutates_args=mutates_args, **options)


def text(fn, mutates_args=(), **options):
    """Return the schema's text, after it was compared with that of torch."""
    found = inferred(fn, mutates_args, **options)
    assert found == torch.library.infer_schema(fn, mutates_args=mutates_args, **options)
    return found


def both_refuse(fn, match, **options):
    for infer in (torch.library.infer_schema, ow.infer_schema):
        with pytest.raises(ValueError, match=match):
            infer(fn, **{"mutates_args": (), **options})


@pytest.mark.parametrize(
    ("annotation", "suggested"),
    [
        (Tuple[Tensor], None),  # a list of one in torch, a list of a fixed length here
        (dict[str, int], "list[int]"),
        (bytes, "array of uint8"),
        (set[int], "list[int]"),
    ],
)
def test_row_11_an_unsupported_parameter_type(annotation, suggested):
    def f(x): ...

    f.__annotations__ = {"x": annotation, "return": None}
    if suggested is None:
        assert ow.infer_schema(f, mutates_args=()) == "(Tensor[1] x) -> ()"
        return
    with pytest.raises(ValueError, match="has unsupported type") as error:
        ow.custom_op("behaviours_infer::f", f, mutates_args=())
    assert suggested in str(error.value)


def torch_refuses_classes():
    """Return whether torch says that a class is unsupported; 2.9 asks the class for its origin."""

    def f(x: bytes) -> None: ...

    with pytest.raises((ValueError, AttributeError)) as error:
        torch.library.infer_schema(f, mutates_args=())
    return error.type is ValueError


@pytest.mark.parametrize("annotation", [Tuple[int, str], Callable, Callable[[int], int], Pair])
def test_row_11_no_list_is_suggested_where_none_would_do(annotation):
    def f(x): ...

    f.__annotations__ = {"x": annotation, "return": None}
    if annotation is not Pair or torch_refuses_classes():
        both_refuse(f, "unsupported type")
    with pytest.raises(ValueError, match="unsupported type") as error:
        ow.custom_op("behaviours_infer::f", f, mutates_args=())
    assert "list[" not in str(error.value)


def test_row_36_plain_types_as_parameters():
    def f(
        a: Tensor, b: int, c: bool, d: float, e: str, g: torch.dtype, h: torch.device, i: Number
    ) -> None: ...

    assert text(f) == ("(Tensor a, SymInt b, bool c, float d, str e, ScalarType g, Device h, Scalar i) -> ()")


@pytest.mark.parametrize(
    ("returned", "written"),
    [(Tensor, "Tensor"), (int, "SymInt"), (bool, "bool"), (float, "float"), (Number, "Scalar")],
)
def test_row_36_plain_types_as_returns(returned, written):
    def f(a: Tensor): ...

    f.__annotations__["return"] = returned
    assert text(f) == f"(Tensor a) -> {written}"


@pytest.mark.parametrize(
    ("annotation", "written"),
    [
        (Sequence[int], "SymInt[]"),
        (collections.abc.Sequence[float], "float[]"),
        (list[bool], "bool[]"),
        (List[Tensor], "Tensor[]"),
        (Optional[Tensor], "Tensor?"),
        (Tensor | None, "Tensor?"),
        (None | int, "SymInt?"),
        (Sequence[Optional[Tensor]], "Tensor?[]"),
        (Optional[Sequence[int]], "SymInt[]?"),
        (list[float] | None, "float[]?"),
        (int | float | bool, "Scalar"),
        (bool | int | float, "Scalar"),
        (Union[float, bool, int], "Scalar"),
        (Optional[Union[int, float, bool]], "Scalar?"),
    ],
)
def test_row_37_lists_optionals_and_unions(annotation, written):
    def f(x): ...

    f.__annotations__ = {"x": annotation, "return": None}
    assert text(f) == f"({written} x) -> ()"


def test_row_38_returns():
    def several() -> Tuple[Tensor, List[Tensor], int]: ...
    def one() -> tuple[Tensor]: ...
    def nothing() -> None: ...
    def lists(x: Tensor) -> tuple[list[Tensor], list[Tensor]]: ...

    assert text(several) == "() -> (Tensor, Tensor[], SymInt)"
    assert text(one) == "() -> ((Tensor))"
    assert text(nothing) == "() -> ()"
    assert text(lists) == "(Tensor x) -> (Tensor[], Tensor[])"


def test_row_39_keyword_only_parameters():
    def some(x: Tensor, *, k: int, s: str = "a") -> None: ...
    def every(*, x: Tensor, k: int = 2) -> None: ...

    assert text(some) == '(Tensor x, *, SymInt k, str s="a") -> ()'
    assert text(every) == "(*, Tensor x, SymInt k=2) -> ()"


def test_row_40_mutated_arguments_are_named_by_position():
    def f(
        x: Tensor, k: int, y: Optional[Tensor], zs: List[Tensor], ws: Sequence[Optional[Tensor]]
    ) -> None: ...

    assert text(f, ("x", "zs")) == (
        "(Tensor(a0!) x, SymInt k, Tensor? y, Tensor(a3!)[] zs, Tensor?[] ws) -> ()"
    )
    assert text(f, "unknown") == (
        "(Tensor(a0!) x, SymInt k, Tensor(a2!)? y, Tensor(a3!)[] zs, Tensor(a4!)?[] ws) -> ()"
    )


def test_row_41_defaults():
    def f(
        a: Optional[Tensor] = None,
        b: int = 3,
        c: float = 1e-5,
        d: bool = False,
        e: str = "x y",
        g: torch.dtype = torch.float32,
        h: torch.device = torch.device("cpu:0"),  # noqa: B008  (a default of the schema)
        i: torch.device = "cuda",
        j: Number = 2.5,
    ) -> None: ...

    assert text(f) == (
        '(Tensor? a=None, SymInt b=3, float c=1e-05, bool d=False, str e="x y", ScalarType g=float32, '
        'Device h="cpu:0", Device i="cuda", Scalar j=2.5) -> ()'
    )


def test_row_42_the_name_of_the_operator():
    def f(x: Tensor) -> Tensor: ...

    assert text(f) == "(Tensor x) -> Tensor"
    assert text(f, op_name="ns::f.other") == "ns::f.other(Tensor x) -> Tensor"


def test_row_43_tags_alias_the_returns():
    def inplace(x: Tensor, y: Tensor) -> Tensor: ...
    def out(x: Tensor, *, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]: ...

    known = hasattr(torch.Tag, "inplace")  # torch 2.9 has neither tag, and is not compared with
    tags, infer = (torch.Tag, text) if known else (ow.Tag, inferred)
    assert infer(inplace, ("x",), tags=tags.inplace) == "(Tensor(a0!) x, Tensor y) -> Tensor(a0!)"
    assert infer(out, ("a", "b"), tags=(tags.out,)) == (
        "(Tensor x, *, Tensor(a1!) a, Tensor(a2!) b) -> (Tensor(a1!), Tensor(a2!))"
    )


def in_module(source, **names):
    """Return ``f`` of a module of its own."""
    module = ModuleType("behaviours_infer_module")
    vars(module).update(names)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, module.__name__, "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]
    return module.f


def test_row_44_strings_are_resolved_in_the_function_s_own_module():
    source = "def f(x: 'Mine', y: 'list[Mine]', z: list['Mine'], k: 'Optional[int]' = None) -> 'Mine': ..."
    f = in_module(source, Mine=Tensor, Optional=Optional)
    assert text(f) == "(Tensor x, Tensor[] y, Tensor[] z, SymInt? k=None) -> Tensor"


@pytest.mark.parametrize("name", ["Tensor", "device", "dtype", "Type", "FunctionSchema", "ListType"])
def test_row_44_names_of_the_reading_module_do_not_leak_in(name):
    both_refuse(in_module(f"def f(x: '{name}') -> None: ..."), "not a type")


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("def f(*xs: Tensor) -> None: ...", "varargs"),
        ("def f(**xs: Tensor) -> None: ...", "varkwargs"),
        ("def f(x: Tensor, /) -> None: ...", "positional-only"),
        ("def f(x) -> None: ...", "must have a type annotation"),
        ("def f(x: Tensor): ...", "No return type annotation"),
        ("def f(x: Tensor) -> tuple[Tensor, ...]: ...", "unsupported type"),
    ],
)
def test_row_45_what_has_no_schema(source, match):
    both_refuse(in_module(source, Tensor=Tensor), match)


def test_row_45_what_is_no_tensor_is_not_mutated():
    both_refuse(in_module("def f(k: int) -> None: ..."), "only Tensors", mutates_args=("k",))


@pytest.mark.parametrize("prefix", ["", "from __future__ import annotations\n"])
def test_row_46_a_string_that_cannot_be_resolved(prefix):
    annotation = "Missing" if prefix else "'Missing'"
    f = in_module(f"{prefix}def f(x: {annotation}) -> None: ...")
    both_refuse(f, "not a type")
    with pytest.raises(ValueError, match="module scope"):
        ow.infer_schema(f, mutates_args=())


def test_row_47_a_bare_name_under_postponed_annotations():
    source = "from __future__ import annotations\ndef f(x: Tensor) -> Tensor: ..."
    both_refuse(in_module(source), "not a type")
    assert text(in_module(source, Tensor=Tensor)) == "(Tensor x) -> Tensor"
