"""Annotated functions to schemas: torch's text for all that torch accepts, and more on top."""

import enum
import subprocess
import sys
from types import SimpleNamespace
from typing import Annotated, List, Literal, NamedTuple, NewType, Optional, Sequence, Tuple, Union

import numpy as np
import pytest

from opwright.catalogue import Array
from opwright.errors import RegistrationTypeError, SchemaError
from opwright.infer import annotated_flavour, infer_function_schema, infer_schema
from opwright.parse import parse_schema
from opwright.tags import Tag

# ------------------------------------------------------------------------------------- torch's own text

# Parameters and return, as they stand in the source; and what is mutated.
ACCEPTED = [
    ("() -> None", ()),
    ("() -> Tensor", ()),
    ("(x: Tensor) -> Tensor", ()),
    ("(x: torch.Tensor) -> None", {}),
    ("(x: Tensor) -> Tuple[Tensor, Tensor]", ()),
    ("(x: Tensor) -> tuple[Tensor]", ()),
    ("(x: Tensor) -> tuple[()]", ()),
    ("(x: Tensor) -> tuple[Tensor, List[Tensor], int, float, bool]", ()),
    ("(x: Tensor) -> List[Tensor]", ()),
    ("(x: Tensor) -> list[Tensor]", ()),
    ("(x: Tensor) -> int", ()),
    ("(x: Tensor) -> float", ()),
    ("(x: Tensor) -> bool", ()),
    ("(x: Tensor) -> Number", ()),
    ("(x: Tensor) -> tuple[Number, Tensor]", ()),
    ("(a: int, b: float, c: bool, d: str, e: dtype, f: device, g: Number) -> None", ()),
    ("(a: Optional[int], b: Optional[float], c: Optional[bool], d: Optional[str]) -> None", ()),
    ("(a: Optional[dtype], b: Optional[device], c: Optional[Number], d: Optional[Tensor]) -> None", ()),
    ("(a: int | None, b: Tensor | None, c: str | None, d: None | float) -> None", ()),
    ("(a: List[int], b: list[float], c: Sequence[bool], d: Sequence[Number], e: List[Tensor]) -> None", ()),
    ("(a: Optional[List[int]], b: Optional[Sequence[float]], c: list[bool] | None) -> None", ()),
    ("(a: List[Optional[Tensor]], b: Sequence[Optional[Tensor]], c: list[Tensor | None]) -> None", ()),
    ("(a: collections.abc.Sequence[int]) -> None", ()),
    ("(a: int | float | bool, b: bool | int | float, c: Union[float, bool, int]) -> None", ()),
    ("(a: Optional[Union[int, float, bool]], b: list[int | float | bool]) -> None", ()),
    ("(x: Tensor, *, k: int) -> Tensor", ()),
    ("(*, x: Tensor, k: int = 3) -> Tensor", ()),
    ("(*, x: Optional[Tensor] = None, y: List[Tensor]) -> Tensor", ()),
    (
        "(k: int = 3, e: float = 1e-5, f: bool = False, s: str = 'a b', n: Optional[int] = None) -> None",
        (),
    ),
    ("(a: float = 1.0, b: float = 1, c: float = float('inf'), d: float = float('-inf')) -> None", ()),
    ("(a: float = float('nan'), b: float = -1.5e30, c: int = -7, d: float = True) -> None", ()),
    ("(a: Number = 1, b: Number = 2.5, c: Number = True, d: Optional[Number] = None) -> None", ()),
    ("(a: dtype = torch.float32, b: dtype = torch.int64, c: Optional[dtype] = torch.bool) -> None", ()),
    ("(a: dtype = torch.float, b: dtype = torch.half, c: dtype = torch.bfloat16) -> None", ()),
    ("(a: device = torch.device('cuda:1'), b: device = 'cpu', c: Optional[device] = None) -> None", ()),
    ("(a: Tensor = None, b: int = None, c: str = None) -> None", ()),
    ("(a: Optional[List[int]] = None, b: Optional[Tensor] = None, c: Optional[str] = 'x') -> None", ()),
    ("(x: Tensor, k: int, y: Tensor) -> None", ("x",)),
    ("(x: Tensor, k: int, y: Tensor) -> None", ["y"]),
    ("(x: Tensor, k: int, y: Tensor) -> None", {"x", "y"}),
    ("(x: Tensor, k: int, y: Tensor) -> Tensor", "unknown"),
    ("(x: Optional[Tensor], y: List[Tensor], z: List[Optional[Tensor]], k: int) -> None", "unknown"),
    ("(x: Optional[Tensor], y: List[Tensor], z: Sequence[Optional[Tensor]]) -> None", ("x", "y", "z")),
    ("(k: int, *, x: Tensor, y: Optional[Tensor] = None) -> None", ("x", "y")),
    ("(k: int) -> None", "unknown"),
    ("(group: GroupName, x: Tensor) -> Tensor", ()),
]
STRINGS = [
    "(x: 'Tensor', y: list['Tensor'], z: 'Optional[int]' = None) -> 'Tuple[Tensor, Tensor]'",
    "(x: Tensor) -> 'Tensor'",
    "(x: 'torch.Tensor') -> tuple['Tensor', 'int']",
    "(x: 'List[Tensor]') -> 'None'",
]
POSTPONED = "from __future__ import annotations\n"


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def make(source, torch, prefix=""):
    """Define ``def fn<source>: ...`` in a module of its own."""
    namespace = {
        "torch": torch,
        "Tensor": torch.Tensor,
        "dtype": torch.dtype,
        "device": torch.device,
        "Number": torch.types.Number,
        "collections": __import__("collections.abc"),
        "GroupName": NewType("GroupName", str),
        **{each.__name__: each for each in (List, Sequence, Tuple)},
        "Optional": Optional,
        "Union": Union,
    }
    if "GroupName" in source:
        namespace["GroupName"] = __import__("torch.distributed.distributed_c10d", fromlist=["x"]).GroupName
    exec(f"{prefix}def fn{source}: ...", namespace)
    return namespace["fn"]


@pytest.mark.parametrize("prefix", ["", POSTPONED], ids=["evaluated", "postponed"])
@pytest.mark.parametrize(("source", "mutated"), ACCEPTED)
def test_row_36_37_38_39_40_41_42_the_text_is_that_of_torch(torch, source, mutated, prefix):
    fn = make(source, torch, prefix)
    for name in (None, "ns::f", "f.Tensor"):
        ours = infer_schema(fn, mutates_args=mutated, op_name=name)
        assert ours == torch.library.infer_schema(fn, mutates_args=mutated, op_name=name)
    assert str(parse_schema(ours.replace("f.", "ns::f."))) == ours.replace("f.", "ns::f.")


@pytest.mark.parametrize("source", STRINGS)
def test_row_44_strings_are_read_as_in_torch(torch, source):
    fn = make(source, torch)
    assert infer_schema(fn, mutates_args=()) == torch.library.infer_schema(fn, mutates_args=())


# Torch infers these texts but cannot read them itself.
UNREADABLE = ("inf", "nan", "device] = None")


@pytest.mark.parametrize(
    "source", [source for source, _ in ACCEPTED if not any(each in source for each in UNREADABLE)]
)
def test_torch_reads_the_text(torch, source):
    inferred = infer_function_schema(make(source, torch), mutates_args=(), op_name="ns::f")
    assert len(torch._C.parse_schema(str(inferred.schema)).arguments) == len(inferred.schema.arguments)
    assert inferred.flavour == ("torch" if "Tensor" in source else None)


TAGGED = [
    ("inplace", "(x: Tensor, k: int = 3) -> Tensor", ("x",)),
    ("inplace", "(x: Tensor, *, y: Tensor) -> Tensor", ("x",)),
    ("out", "(x: Tensor, *, out: Tensor) -> Tensor", ("out",)),
    ("out", "(x: Tensor, *, p: Tensor, k: int, q: Tensor) -> tuple[Tensor, Tensor]", ("p", "q")),
    ("out", "(*, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]", "unknown"),
]


@pytest.mark.parametrize(("tag", "source", "mutated"), TAGGED)
def test_row_43_tags_alias_the_returns_as_in_torch(torch, tag, source, mutated):
    fn = make(source, torch)
    theirs = getattr(torch.Tag, tag)
    expected = torch.library.infer_schema(fn, mutates_args=mutated, op_name="ns::f", tags=theirs)
    for tags in (
        theirs,
        [theirs, torch.Tag.core],
        tag,
        (tag,),
        Tag[tag],
        [Tag[tag]],
        SimpleNamespace(name=tag),
    ):
        assert infer_schema(fn, mutates_args=mutated, op_name="ns::f", tags=tags) == expected
    assert "!)" in expected.partition(" -> ")[2]


REFUSED = [
    "(x) -> None",
    "(x: Tensor)",
    "(x: Tensor, /) -> None",
    "(*xs: Tensor) -> None",
    "(**xs: Tensor) -> None",
    "(x: object) -> None",
    "(x: Tensor) -> tuple[Tensor, ...]",
    "(x: Tensor) -> dict[str, Tensor]",
    "(x: 'Missing') -> None",
    "(x: Tuple[int, str]) -> None",
    "(x: dict[str, int]) -> None",
    "(x: Tensor) -> object",
    "(x: int = [1]) -> None",
]


@pytest.mark.parametrize("source", REFUSED)
def test_row_45_46_what_neither_takes(torch, source):
    fn = make(source, torch)
    for infer in (infer_schema, torch.library.infer_schema):
        with pytest.raises(ValueError, match=r".+"):
            infer(fn, mutates_args=())


# ------------------------------------------------------------------------------------------ beyond torch


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_a_numpy_function():
    def fn(
        x: np.ndarray,
        others: list[Optional[np.ndarray]],
        size: tuple[int, int] = (1, 2),
        axes: Optional[Sequence[int]] = (0, 1),
        *,
        kind: Literal["near", "far"] = "near",
        colour: Colour = Colour.BLUE,
        names: list[str] = ["a"],  # noqa: B006  (a mutable default is what is tested)
        factor: Annotated[complex, "gain"] = 1j,
    ) -> tuple[np.ndarray, Optional[np.ndarray], list[Optional[np.ndarray]], Optional[int], str]: ...

    inferred = infer_function_schema(fn, mutates_args=("x", "others"), op_name="ns::f.wide")
    assert str(inferred.schema) == (
        "ns::f.wide(Tensor(a0!) x, Tensor(a1!)?[] others, SymInt[2] size=[1, 2], SymInt[]? axes=[0, 1], *, "
        'str kind="near", str colour="blue", str[] names=["a"], complex factor=0.0+1.0j) -> '
        "(Tensor, Tensor?, Tensor?[], SymInt?, str)"
    )
    assert inferred.flavour == "numpy"
    schema = inferred.schema
    assert (schema.name, schema.overload) == ("ns::f", "wide")
    assert {each.name: each.choices for each in schema.arguments if each.choices is not None} == {
        "kind": ("near", "far"),
        "colour": Colour,
    }
    assert {each.name: each.default.value for each in schema.arguments if each.default is not None} == {
        "size": (1, 2),
        "axes": (0, 1),
        "kind": "near",
        "colour": Colour.BLUE,
        "names": ("a",),
        "factor": 1j,
    }
    assert parse_schema(str(schema)).returns == schema.returns


def test_arrays_of_any_framework():
    def fn(x: Array, y: "Array") -> Array: ...

    assert infer_schema(fn, mutates_args=()) == "(Tensor x, Tensor y) -> Tensor"
    assert infer_function_schema(fn, mutates_args=()).flavour == "array_api"


def test_jax_arrays():
    jax = pytest.importorskip("jax")

    def fn(x: jax.Array) -> jax.Array: ...

    assert infer_schema(fn, mutates_args=()) == "(Tensor x) -> Tensor"
    assert infer_function_schema(fn, mutates_args=()).flavour == "jax"


def test_no_arrays_no_flavour():
    def fn(n: int) -> float: ...

    assert infer_function_schema(fn, mutates_args=()).flavour is None


def test_a_one_element_tuple_stays_one():
    def fn(x: np.ndarray) -> tuple[np.ndarray]: ...

    schema = infer_function_schema(fn, mutates_args=()).schema
    assert schema.is_tuple
    assert str(schema) == "(Tensor x) -> ((Tensor))"
    assert parse_schema(str(schema), name_required=False) == schema


def test_a_default_of_none_makes_an_argument_optional():
    def fn(x: np.ndarray, bias: np.ndarray = None, k: list[int] = None) -> np.ndarray: ...

    schema = infer_function_schema(fn, mutates_args=("bias",), op_name="ns::f").schema
    assert str(schema) == "ns::f(Tensor x, Tensor(a1!)? bias=None, SymInt[]? k=None) -> Tensor"
    # The public text is torch's.
    assert infer_schema(fn, mutates_args=()) == "(Tensor x, Tensor bias=None, SymInt[] k=None) -> Tensor"


def test_a_string_default_is_escaped():
    def fn(s: str = 'say "a"\n') -> None: ...

    text = infer_schema(fn, mutates_args=(), op_name="ns::f")
    assert text == 'ns::f(str s="say \\"a\\"\\n") -> ()'
    assert parse_schema(text).arguments[0].default.value == 'say "a"\n'


def test_closures_and_aliases_are_resolved():
    Local = np.ndarray

    def fn(x: "Local", y: "List[Local]") -> "Local":
        return Local

    assert infer_schema(fn, mutates_args=()) == "(Tensor x, Tensor[] y) -> Tensor"


def test_mutates_args_may_be_a_generator():
    def fn(x: np.ndarray, y: np.ndarray) -> None: ...

    names = (name for name in ("y",))
    assert infer_schema(fn, mutates_args=names) == "(Tensor x, Tensor(a1!) y) -> ()"


def test_no_framework_is_imported():
    script = """
        import sys
        from opwright.catalogue import Array
        from opwright.infer import infer_schema
        def fn(x: Array, k: int = 3, *, s: "str" = "a") -> tuple[Array, Array]: ...
        assert infer_schema(fn, mutates_args="unknown")
        names = ("numpy", "torch", "jax", "importlib.metadata", "inspect")
        print([name for name in names if name in sys.modules])
    """
    text = "\n".join(line[8:] for line in script.splitlines())
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['inspect']", done.stderr  # dataclasses imports it


# --------------------------------------------------------------------------------------------- refusals


NO_TYPE = (
    "Unsupported type annotation Missing. It is not a type. (name 'Missing' is not defined)\n"
    "  to fix: import or define its names at module scope, not under TYPE_CHECKING or inside a local function"
)
NOT_MUTABLE = (
    "ns::f: Parameter k is in mutable_args but only Tensors or collections of Tensors can be mutated; "
    "its type is SymInt.\n  to fix: "
)


class Pair(NamedTuple):
    low: int
    high: float


def bare(x) -> None: ...
def no_return(x: np.ndarray): ...
def a_dict(x: np.ndarray, table: dict[str, np.ndarray]) -> None: ...
def a_pair(x: np.ndarray, pair: Pair) -> None: ...
def a_slash(x: int, /) -> None: ...
def missing(x: "Missing") -> None: ...  # noqa: F821
def missing_return(x: np.ndarray) -> "Missing": ...  # noqa: F821
def bad_default(x: np.ndarray, k: int = 1.5) -> None: ...
def bad_choice(x: np.ndarray, kind: Literal["a", "b"] = "c") -> None: ...
def many(x: np.ndarray) -> tuple[np.ndarray, ...]: ...
def a_choice(x: np.ndarray) -> Colour: ...
def fixed(x: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]: ...
def dict_return(x: np.ndarray) -> dict[str, np.ndarray]: ...
def pair_return(x: np.ndarray) -> Pair: ...


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (bare, "Parameter x must have a type annotation.\n  to fix: write x: float, or what else it is"),
        (
            no_return,
            (
                "No return type annotation was provided. Please add one.\n"
                "  to fix: write '-> None' for no return"
            ),
        ),
        (
            a_dict,
            (
                "Parameter table has unsupported type dict[str, numpy.ndarray].\n"
                "  to fix: use list[numpy.ndarray] for its values, or one parameter for each"
            ),
        ),
        (
            a_pair,
            (
                f"Parameter pair has unsupported type {__name__}.Pair.\n"
                "  to fix: use one parameter for each of its values: low: int, high: float"
            ),
        ),
        (
            a_slash,
            (
                "We do not support positional-only args, varargs, or varkwargs. Parameter x is "
                "positional-only.\n  to fix: give every parameter a name that callers can use"
            ),
        ),
        (
            missing,
            "Parameter x: " + NO_TYPE,
        ),
        (
            missing_return,
            "Return: " + NO_TYPE,
        ),
        (
            bad_default,
            "Parameter k has an unsupported default value type float: 1.5.\n  expected: an int",
        ),
        (
            bad_choice,
            "Parameter kind has an unsupported default value type str: 'c'.\n  expected: one of 'a', 'b'",
        ),
        (
            many,
            (
                "Return has unsupported type tuple[numpy.ndarray, ...].\n"
                "  to fix: use list[numpy.ndarray], or a tuple of fixed length"
            ),
        ),
        (
            a_choice,
            (
                f"Return has unsupported type {__name__}.Colour.\n"
                "  to fix: return plain values, one for each element"
            ),
        ),
        (
            fixed,
            (
                "Return has unsupported type tuple[numpy.ndarray, tuple[int, int]].\n"
                "  to fix: return plain values, one for each element"
            ),
        ),
        (
            dict_return,
            (
                "Return has unsupported type dict[str, numpy.ndarray].\n"
                "  to fix: use list[numpy.ndarray] for its values, or one parameter for each"
            ),
        ),
        (
            pair_return,
            (
                f"Return has unsupported type {__name__}.Pair.\n"
                "  to fix: use one parameter for each of its values: low: int, high: float"
            ),
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refusals_name_the_parameter_and_the_fix(fn, text):
    with pytest.raises(SchemaError) as caught:
        infer_schema(fn, mutates_args=(), op_name="ns::f")
    assert str(caught.value) == f"ns::f: {text}"


def test_without_a_name_the_function_is_named():
    with pytest.raises(ValueError, match=r"^infer_schema\(bare\): Parameter x must have a type annotation\."):
        infer_schema(bare, mutates_args=())


def arrays(x: np.ndarray, k: int, ys: list[np.ndarray]) -> None: ...
def no_arrays(k: int) -> None: ...


@pytest.mark.parametrize(
    ("fn", "mutated", "text"),
    [
        (
            arrays,
            ("z", "x", "a"),
            (
                "ns::f: 'a', 'z' in mutates_args were not found in the custom op's signature.\n"
                "  to fix: the array parameters are x, ys"
            ),
        ),
        (
            arrays,
            ("k",),
            NOT_MUTABLE + "the array parameters are x, ys",
        ),
        (
            no_arrays,
            ("k",),
            NOT_MUTABLE + "leave mutates_args empty: ()",
        ),
        (
            arrays,
            "x",
            (
                "mutates_args must either be a sequence of the names of the arguments that are mutated or "
                "the string 'unknown'\n"
                "  got: the string 'x'\n"
                "  to fix: mutates_args=('x',)"
            ),
        ),
    ],
)
def test_mutates_args_that_do_not_fit(fn, mutated, text):
    with pytest.raises(SchemaError) as caught:
        infer_schema(fn, mutates_args=mutated, op_name="ns::f")
    assert str(caught.value) == text


def test_mutates_args_must_be_iterable():
    with pytest.raises(RegistrationTypeError) as caught:
        infer_schema(arrays, mutates_args=None)
    assert str(caught.value) == (
        "mutates_args must be a sequence of names\n  got: None\n  to fix: mutates_args=()"
    )


def two(x: np.ndarray, k: int, y: Array) -> None: ...
def result(x: np.ndarray) -> tuple[np.ndarray, Array]: ...
def inside(x: Union[np.ndarray, Array]) -> None: ...


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (two, "parameter x is annotated with numpy arrays and parameter y with array_api arrays"),
        (result, "parameter x is annotated with numpy arrays and the return with array_api arrays"),
        (inside, "Parameter x is annotated with both numpy and array_api arrays"),
    ],
)
def test_a_mixture_of_flavours_names_two_parameters(fn, text):
    with pytest.raises(TypeError) as caught:
        infer_schema(fn, mutates_args=(), op_name="ns::f")
    assert isinstance(caught.value, RegistrationTypeError)
    assert str(caught.value) == (
        f"ns::f: {text}\n  to fix: annotate all alike, or all with opwright.Array where the body takes any"
    )


def test_broken_tag_rules_are_named():
    with pytest.raises(SchemaError) as caught:
        infer_schema(arrays, mutates_args=("ys",), op_name="ns::f", tags="inplace")
    assert str(caught.value) == (
        "ns::f: torch.Tag.inplace requires mutates_args to contain exactly the first positional argument, "
        "got ('ys',).\n"
        "  got: (Tensor x, SymInt k, Tensor(a2!)[] ys) -> ()"
    )


# ------------------------------------------------------------------------ flavours of kernels and rules


def rule(ctx, grad: np.ndarray, other: "Missing" = None) -> tuple[np.ndarray, ...]: ...  # noqa: F821
def untyped(ctx, *grads): ...
def variadic(*args: Array, **kwargs: int): ...


@pytest.mark.parametrize(
    ("fn", "flavour"),
    [(rule, "numpy"), (untyped, None), (variadic, "array_api"), (np.sin, None), (len, None)],
)
def test_the_flavour_of_a_kernel_or_rule(fn, flavour):
    assert annotated_flavour(fn) == flavour


def test_a_kernel_cannot_mix_flavours():
    with pytest.raises(RegistrationTypeError) as caught:
        annotated_flavour(two)
    assert str(caught.value) == (
        "two: parameter x is annotated with numpy arrays and parameter y with array_api arrays\n"
        "  to fix: annotate all alike, or all with opwright.Array where the body takes any"
    )
