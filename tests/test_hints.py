"""What one annotation means: schema type, flavour, choices; what is refused, and what to write instead."""

import collections
import dataclasses
import enum
import numbers
import pathlib
import sys
import typing
from types import ModuleType
from typing import (
    Annotated,
    Any,
    Callable,
    ForwardRef,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypeVar,
    Union,
)

import numpy as np
import numpy.typing as npt
import pytest

from opwright.catalogue import Array
from opwright.defaults import Default, Mismatch
from opwright.hints import Meaning, default_of, flavours_in, meaning_of, show, unwrap
from opwright.signature import Refused, Scope


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(str, enum.Enum):
    FAST = "fast"


class Ratio(enum.Enum):
    HALF = 0.5


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Sub(np.ndarray): ...


class Pair(NamedTuple):
    low: int
    field: np.ndarray


@dataclasses.dataclass
class Box:
    low: float
    high: "float"


class Plain: ...


Count = NewType("Count", int)
Free = TypeVar("Free")
Bound = TypeVar("Bound", bound=np.ndarray)
Constrained = TypeVar("Constrained", int, float)
SCOPE = Scope(lambda: None)


def read(annotation):
    """The schema type and the flavour, and the choices where there are any."""
    meaning = meaning_of(annotation, SCOPE)
    return (str(meaning.type), meaning.flavour, *([meaning.choices] if meaning.choices is not None else []))


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "SymInt"),
        (float, "float"),
        (bool, "bool"),
        (str, "str"),
        (complex, "complex"),
        (numbers.Number, "Scalar"),
        (int | float, "Scalar"),
        (Union[bool, float, int], "Scalar"),
        (int | complex, "Scalar"),
        (float | int | None, "Scalar?"),
        (list[int | float], "Scalar[]"),
        (np.dtype, "ScalarType"),
        (np.dtype[np.float64], "ScalarType"),
        (np.dtype | None, "ScalarType?"),
        (Optional[int], "SymInt?"),
        (int | None, "SymInt?"),
        (None | int, "SymInt?"),
        (list[int], "SymInt[]"),
        (typing.List[int], "SymInt[]"),
        (typing.Sequence[float], "float[]"),
        (collections.abc.Sequence[bool], "bool[]"),
        (list[str], "str[]"),
        (list[int | None], "SymInt?[]"),
        (Optional[list[int]], "SymInt[]?"),
        (list[complex] | None, "complex[]?"),
        (tuple[int, ...], "SymInt[]"),
        (tuple[int, int], "SymInt[2]"),
        (tuple[float], "float[1]"),
        (tuple[int, int] | None, "SymInt[2]?"),
        (tuple[int | None, int | None], "SymInt?[2]"),
        (Annotated[int, "a note"], "SymInt"),
        (Annotated[int, []], "SymInt"),
        (Annotated[list[Annotated[float, 1]], 2], "float[]"),
        (Count, "SymInt"),
        (list[Count], "SymInt[]"),
        (NewType("Counts", list[Count]), "SymInt[]"),
        (Constrained, "Scalar"),
        ("int", "SymInt"),
        ("int | None", "SymInt?"),
        (list["int"], "SymInt[]"),
        (typing.List["int"], "SymInt[]"),
        (ForwardRef("float"), "float"),
    ],
)
def test_plain_types(annotation, text):
    assert read(annotation) == (text, None)


@pytest.mark.parametrize(
    ("annotation", "text", "flavour"),
    [
        (np.ndarray, "Tensor", "numpy"),
        (np.generic, "Tensor", "numpy"),
        (npt.NDArray, "Tensor", "numpy"),
        (npt.NDArray[np.float64], "Tensor", "numpy"),
        (np.ndarray[Any, np.dtype[np.int8]], "Tensor", "numpy"),
        (np.ndarray | np.generic, "Tensor", "numpy"),
        (Bound, "Tensor", "numpy"),
        ("np.ndarray", "Tensor", "numpy"),
        (Array, "Tensor", "array_api"),
        (np.ndarray | None, "Tensor?", "numpy"),
        (list[np.ndarray], "Tensor[]", "numpy"),
        (list[np.ndarray | None], "Tensor?[]", "numpy"),
        (Optional[list[Optional[np.ndarray]]], "Tensor?[]?", "numpy"),
        (list["np.ndarray"], "Tensor[]", "numpy"),
        (tuple[Array, Array], "Tensor[2]", "array_api"),
        (Annotated[npt.NDArray[np.float64], "metres"], "Tensor", "numpy"),
    ],
)
def test_arrays(annotation, text, flavour):
    assert read(annotation) == (text, flavour)


def test_torch_annotations():
    torch = pytest.importorskip("torch")
    expected = {
        torch.Tensor: ("Tensor", "torch"),
        torch.nn.Parameter: ("Tensor", "torch"),
        torch.Tensor | torch.nn.Parameter: ("Tensor", "torch"),
        Optional[torch.Tensor]: ("Tensor?", "torch"),
        torch.dtype: ("ScalarType", None),
        torch.device: ("Device", None),
        torch.layout: ("Layout", None),
        torch.memory_format: ("MemoryFormat", None),
        torch.Generator | None: ("Generator?", None),
        torch.SymInt: ("SymInt", None),
        int | torch.SymInt: ("SymInt", None),
        list[torch.SymInt | int]: ("SymInt[]", None),
        float | torch.SymFloat: ("float", None),
        torch.types.Number: ("Scalar", None),
    }
    assert {annotation: read(annotation) for annotation in expected} == expected


def test_jax_and_cupy_annotations(monkeypatch):
    jax = pytest.importorskip("jax")
    cupy = ModuleType("cupy")
    cupy.ndarray = type("ndarray", (), {})
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert read(jax.Array) == ("Tensor", "jax")
    assert read(list[cupy.ndarray]) == ("Tensor[]", "cupy")


@pytest.mark.parametrize(
    ("annotation", "text", "choices"),
    [
        (Literal["a", "b"], "str", ("a", "b")),
        (Literal[1, 2], "SymInt", (1, 2)),
        (Literal[True], "bool", (True,)),
        (Literal["a", None], "str?", ("a",)),
        (Literal["a"] | None, "str?", ("a",)),
        (Literal[Colour.RED], "str", (Colour.RED,)),
        (Colour, "str", Colour),
        (Colour | None, "str?", Colour),
        (Level, "SymInt", Level),
        (Mode, "str", Mode),
        (Ratio, "float", Ratio),
        (Annotated[Colour, "paint"], "str", Colour),
    ],
)
def test_choices(annotation, text, choices):
    assert read(annotation) == (text, None, choices)


_OTHER = "use arrays, int, float, bool, str, complex, a dtype, a device, or lists of them (or pass schema=)"
_FIELD = "use one parameter for each of its values"
_ONE_KIND = "use values of one type: all str, all int, all float or all bool"


@pytest.mark.parametrize(
    ("annotation", "fix"),
    [
        (dict[str, int], "use list[int] for its values, or one parameter for each"),
        (dict, "use a list, such as list[int] for its values, or one parameter for each"),
        (
            typing.Mapping[str, np.ndarray],
            "use list[numpy.ndarray] for its values, or one parameter for each",
        ),
        (
            dict[str, Any],
            "use a list of a supported type, such as list[int] for its values, or one parameter for each",
        ),
        (Box, f"{_FIELD}: low: float, high: float"),
        (Pair, f"{_FIELD}: low: int, field: numpy.ndarray"),
        (set[int], "use list[int]"),
        (collections.deque[str], "use list[str]"),
        (typing.Iterable[float], "use list[float]"),
        (list, "use a list, such as list[int]"),
        (typing.List, "name the elements' type, such as list[int]"),
        (tuple, "use a list, such as list[int]"),
        (tuple[()], "name the elements' types, such as tuple[int, int] or list[int]"),
        (tuple[int, str], f"{_FIELD} (a tuple must hold values of one type)"),
        (list[list[int]], "use one flat list: list[int]"),
        (list[tuple[int, int]], "use one flat list: tuple[int, int]"),
        (list[Colour], "use list[str], or one Literal or Enum parameter for each element"),
        (list[Literal[1]], "use list[int], or one Literal or Enum parameter for each element"),
        (Literal["a"] | Literal["b"] | Colour, "use one Literal or Enum that lists every value"),
        (Literal[1, "a"], _ONE_KIND),
        (Literal[b"a"], _ONE_KIND),
        (Mixed, _ONE_KIND),
        (enum.Enum("Empty", []), _ONE_KIND),
        (int | str, "choose one: int or str, with '| None' where it may be missing"),
        (np.ndarray | float, "choose one: numpy.ndarray or float, with '| None' where it may be missing"),
        (Callable[[int], int], "call it outside the operator, or choose among known functions by a Literal"),
        (np.float64, "use float"),
        (np.int8, "use int"),
        (np.complex64, "use complex"),
        (pathlib.Path, "use str"),
        (type("Word", (str,), {}), "use str"),
        (bytes, "use an array of uint8, or str"),
        (Sub, "annotate it numpy.ndarray, which takes subclasses too"),
        (Any, _OTHER),
        (object, _OTHER),
        (Plain, _OTHER),
        (3, _OTHER),
        (None, "leave it out, or name the type beside None: int | None"),
        (type(None), "leave it out, or name the type beside None: int | None"),
    ],
)
def test_what_is_refused_names_the_nearest(annotation, fix):
    with pytest.raises(Refused) as caught:
        meaning_of(annotation, SCOPE)
    assert (caught.value.fix, caught.value.reason, caught.value.flavours) == (fix, None, ())


def test_torch_types_that_come_near():
    torch = pytest.importorskip("torch")
    nearest = {
        torch.Size: "use a list, such as list[int]",
        torch.FloatTensor: _OTHER,
        str | torch.device: "choose one: str or torch.device, with '| None' where it may be missing",
        type("Mine", (torch.Tensor,), {}): "annotate it torch.Tensor, which takes subclasses too",
    }
    for annotation, fix in nearest.items():
        with pytest.raises(Refused) as caught:
            meaning_of(annotation, SCOPE)
        assert caught.value.fix == fix


def test_a_type_variable_needs_a_bound():
    with pytest.raises(Refused) as caught:
        meaning_of(list[Free], SCOPE)
    assert (caught.value.reason, caught.value.fix) == ("type variable Free has no bound", "give Free a bound")


@pytest.mark.parametrize(
    "annotation", [np.ndarray | Array, Union[Array, list[np.ndarray]], tuple[np.ndarray, Array]]
)
def test_a_mixture_of_flavours_names_both(annotation):
    with pytest.raises(Refused) as caught:
        meaning_of(annotation, SCOPE)
    assert set(caught.value.flavours) == {"numpy", "array_api"}


@pytest.mark.parametrize(
    ("annotation", "flavours"),
    [
        (np.ndarray, ["numpy"]),
        (tuple[np.ndarray, ...], ["numpy"]),
        (dict[str, Array] | None, ["array_api"]),
        (tuple[np.ndarray, Array], ["numpy", "array_api"]),
        (Literal["np.ndarray"], []),
        ("Missing", []),
        (list[ForwardRef("Missing")], []),
        (Callable[[np.ndarray], Array], ["array_api"]),
        (int, []),
        (3, []),
    ],
)
def test_flavours_are_found_anywhere(annotation, flavours):
    assert flavours_in(annotation, SCOPE) == flavours


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (np.ndarray, "numpy.ndarray"),
        (Optional[int], "Optional[int]"),
        (int | None, "int | None"),
        (list[int], "list[int]"),
        (dict[str, int], "dict[str, int]"),
        ("np.ndarray", "np.ndarray"),
        (Literal["a"], "Literal['a']"),
        (Callable[[int], str], "Callable[[int], str]"),
        (collections.abc.Sequence[int], "Sequence[int]"),
    ],
)
def test_annotations_are_shown_as_written(annotation, text):
    assert show(annotation) == text


def test_a_local_class_is_shown_without_its_path():
    class Local: ...

    assert show(Local) == f"{__name__}.Local"


def test_unwrapping_leaves_the_structure():
    assert unwrap(Annotated["list[int]", 1], SCOPE) == list[int]
    assert unwrap(tuple[int, str], SCOPE) == tuple[int, str]


if sys.version_info >= (3, 12):

    def test_type_statements_are_unwrapped():
        namespace = {}
        exec("type Shape = list[int]\ntype Many[T] = list[T]", namespace)
        assert read(namespace["Shape"]) == ("SymInt[]", None)
        assert read(namespace["Many"][float]) == ("float[]", None)


# ------------------------------------------------------------------------------------------- defaults


def default(annotation, value):
    return default_of(meaning_of(annotation, SCOPE), value)


@pytest.mark.parametrize(
    ("annotation", "value", "held", "text"),
    [
        (int, 3, 3, "3"),
        (int, -3, -3, "-3"),
        (int, True, 1, "True"),
        (int, np.int64(3), 3, "3"),
        (int, Level.LOW, 1, "1"),
        (float, 1.5, 1.5, "1.5"),
        (float, 1e-5, 1e-5, "1e-05"),
        (float, 1, 1.0, "1"),
        (float, np.float64(0.5), 0.5, "0.5"),
        (float, np.float32(0.5), 0.5, "0.5"),
        (float, float("inf"), float("inf"), "inf"),
        (float, float("-inf"), float("-inf"), "-inf"),
        (bool, False, False, "False"),
        (str, "a", "a", '"a"'),
        (str, 'say "a"\n\\', 'say "a"\n\\', '"say \\"a\\"\\n\\\\"'),
        (str, Mode.FAST, "fast", '"fast"'),
        (complex, 1 + 2j, 1 + 2j, "1.0+2.0j"),
        (int | float, 2.5, 2.5, "2.5"),
        (int | None, None, None, "None"),
        (int | None, 3, 3, "3"),
        (int, None, None, "None"),
        (np.ndarray, None, None, "None"),
        (list[int], None, None, "None"),
        (list[int], [1, 2], (1, 2), "[1, 2]"),
        (list[int], (1, 2), (1, 2), "[1, 2]"),
        (list[int], [], (), "[]"),
        (tuple[int, int], (1, 2), (1, 2), "[1, 2]"),
        (tuple[float, ...], (1, 2.5), (1.0, 2.5), "[1, 2.5]"),
        (list[str], ["a", '"'], ("a", '"'), '["a", "\\""]'),
        (list[int | None], [None, 1], (None, 1), "[None, 1]"),
        (list[int] | None, [1], (1,), "[1]"),
        (np.dtype, np.dtype("float32"), "float32", "float32"),
        (np.dtype, np.int8, "int8", "int8"),
        (np.dtype, np.bool, "bool", "bool"),
        (np.dtype, "half", "float16", "float16"),
        (Colour, Colour.RED, Colour.RED, '"red"'),
        (Level, Level.HIGH, Level.HIGH, "2"),
        (Colour | None, None, None, "None"),
        (Literal["a", "b"], "b", "b", '"b"'),
        (Literal[1, 2], 2, 2, "2"),
        (Literal[Colour.RED], Colour.RED, Colour.RED, '"red"'),
    ],
)
def test_defaults(annotation, value, held, text):
    found = default(annotation, value)
    assert isinstance(found, Default)
    assert (found.value, type(found.value), found.text) == (held, type(held), text)


def test_defaults_of_torch_types():
    torch = pytest.importorskip("torch")
    rows = [
        (torch.dtype, torch.float, "float32", "float32"),
        (torch.dtype, torch.bfloat16, "bfloat16", "bfloat16"),
        (torch.device, "cpu", "cpu", '"cpu"'),
        (torch.device, torch.device("cuda:1"), "cuda:1", '"cuda:1"'),
        (torch.layout, torch.strided, "strided", "strided"),
        (torch.memory_format, torch.channels_last, "channels_last", "channels_last"),
        (torch.Generator | None, None, None, "None"),
        (torch.types.Number, 2, 2, "2"),
    ]
    for annotation, value, held, text in rows:
        found = default(annotation, value)
        assert (found.value, found.text) == (held, text)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 1.5, "an int"),
        (int, "1", "an int"),
        (bool, 2, "True or False"),
        (float, 1j, "a float"),
        (str, 1, "a quoted string"),
        (list[int], 1, "a list or tuple"),
        (list[int], [1.5], "an int"),
        (list[int], [None], "no None"),
        (tuple[int, int], (1,), "a list or tuple of 2 values"),
        (np.ndarray, 1, "no default, for a schema cannot write a Tensor"),
        (np.dtype, float, "a dtype, such as float32"),
        (np.dtype, np.dtype(">f4"), "a dtype, such as float32"),
        (np.dtype, 1.5, "a dtype, such as float32"),
        (Colour, "red", "one of Colour.RED, Colour.BLUE"),
        (Level, 1, "one of Level.LOW, Level.HIGH"),
        (Literal["a", "b"], "c", "one of 'a', 'b'"),
        (Literal[1], True, "one of 1"),
    ],
)
def test_defaults_that_do_not_fit(annotation, value, expected):
    assert default(annotation, value) == Mismatch(expected)


def test_a_meaning_is_plain_data():
    assert Meaning(meaning_of(int, SCOPE).type) == meaning_of(int, SCOPE)
