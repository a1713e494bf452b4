"""Parameters, annotations and defaults of callables; where strings among them are looked up."""

import functools
import sys

import numpy as np
import pytest

from opwright.signature import EMPTY, Parameter, Refused, Scope, annotations_of, read_signature


def plain(x: np.ndarray, k: int = 3, *, flag: bool = True, free) -> np.ndarray: ...


def test_a_plain_function_is_read_without_inspect(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect", None)  # importing it now raises
    read = read_signature(plain)
    assert read.parameters == [
        Parameter("x", np.ndarray, EMPTY, kwarg_only=False),
        Parameter("k", int, 3, kwarg_only=False),
        Parameter("flag", bool, True, kwarg_only=True),
        Parameter("free", EMPTY, EMPTY, kwarg_only=True),
    ]
    assert read.returned is np.ndarray


@functools.wraps(plain)
def wrapper(*args, **kwargs): ...


class Callable:
    def __call__(self, x: "np.ndarray", k: int = 3) -> "np.ndarray": ...

    def method(self, x: "np.ndarray", k: int = 3) -> "np.ndarray": ...


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (wrapper, ["x", "k", "flag", "free"]),
        (functools.partial(plain, free=1), ["x", "k", "flag", "free"]),
        (functools.partial(plain, np.ones(2)), ["k", "flag", "free"]),
        (Callable(), ["x", "k"]),
        (Callable().method, ["x", "k"]),
    ],
)
def test_other_callables_are_read_as_inspect_does(fn, names):
    read = read_signature(fn)
    assert [parameter.name for parameter in read.parameters] == names
    assert read.scope.evaluate("np.ndarray") is np.ndarray


def slashed(x: int, /) -> None: ...
def starred(*xs: int) -> None: ...
def doubled(**xs: int) -> None: ...
def generator(x: int) -> None:
    yield x


async def coroutine(x: int) -> None: ...


_NO_TYPE = "Unsupported type annotation "
_NAMELESS = "We do not support positional-only args, varargs, or varkwargs. Parameter "


@pytest.mark.parametrize(
    ("fn", "reason", "fix"),
    [
        (slashed, _NAMELESS + "x is positional-only.", "give every parameter a name that callers can use"),
        (starred, _NAMELESS + "*xs is varargs.", "give every parameter a name that callers can use"),
        (doubled, _NAMELESS + "**xs is varkwargs.", "give every parameter a name that callers can use"),
        (generator, "a generator or coroutine function cannot be an operator", "return the values"),
        (coroutine, "a generator or coroutine function cannot be an operator", "return the values"),
        (
            3,
            "its signature cannot be read (3 is not a callable object)",
            "wrap it in an annotated function",
        ),
    ],
)
def test_what_cannot_be_an_operator(fn, reason, fix):
    with pytest.raises(Refused) as caught:
        read_signature(fn)
    assert (caught.value.reason, caught.value.fix) == (reason, fix)


def test_strings_see_the_closure_before_the_module():
    np = int

    def fn(x: "np"):
        return np

    def other(x: "np"): ...

    assert Scope(fn).evaluate("np") is int
    assert Scope(other).evaluate("np.ndarray").__name__ == "ndarray"


def test_a_variable_that_is_assigned_later_is_not_known_yet():
    def fn():
        return later

    with pytest.raises(Refused):
        Scope(fn).evaluate("later")
    later = int
    assert Scope(fn).evaluate("later") is int


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [
        (
            "Missing",
            _NO_TYPE + "Missing. It is not a type. (name 'Missing' is not defined)",
            "import or define its names at module scope, not under TYPE_CHECKING or inside a local function",
        ),
        (
            "Refused_",
            _NO_TYPE + "Refused_. It is not a type. (name 'Refused_' is not defined)",
            "import or define its names at module scope, not under TYPE_CHECKING or inside a local function",
        ),
        (
            "np.q",
            _NO_TYPE + "np.q. It is not a type. (AttributeError: module 'numpy' has no attribute 'q')",
            "write an annotation that can be evaluated in the function's module",
        ),
    ],
)
def test_strings_that_are_no_type(text, reason, fix):
    with pytest.raises(Refused) as caught:
        Scope(plain).evaluate(text)
    assert (caught.value.reason, caught.value.fix) == (reason, fix)


def test_names_of_this_package_do_not_leak_into_annotations():
    namespace = {}
    exec("def fn(x): ...", namespace)
    for name in ("Scope", "EMPTY", "Any", "Refused", "self", "text"):
        with pytest.raises(Refused):
            Scope(namespace["fn"]).evaluate(name)


def test_annotations_of_anything_callable():
    assert annotations_of(plain)[0]["x"] is np.ndarray
    assert annotations_of(wrapper)[0]["x"] is np.ndarray
    assert annotations_of(functools.partial(plain, 1))[0]["k"] is int
    assert annotations_of(Callable())[0]["k"] is int
    assert annotations_of(np.sin)[0] == {}
    assert annotations_of(len)[0] == {}
