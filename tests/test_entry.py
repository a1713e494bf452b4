"""The generated call function: real parameters, its source in tracebacks, no name that can be captured."""

from __future__ import annotations

import enum
import gc
import inspect
import linecache
import traceback
from functools import partial

import numpy as np
import pytest

import opwright as ow
from opwright import entry, registry
from opwright.entry import Names, call_function, compile_function, first_array, table_key
from opwright.parse import parse_schema
from opwright.schema import signature_of
from opwright.validate import validate


def _call(text, table=None):
    """Return a generated call function that gives back what it would pass on."""
    schema = parse_schema(text)
    validate(schema)
    function = call_function(schema, table or {}, lambda *values: values, "f")
    return lambda *args, **kwargs: function(None, *args, **kwargs)


def test_values_are_passed_on_in_schema_order_with_defaults():
    call = _call("ns::f(Tensor x, int k=3, float[2] s=0.5, *, str? name=None, Scalar c=1) -> Tensor")
    assert call(1) == (1, 3, (0.5, 0.5), None, 1)
    assert call(1, name="n", k=2) == (1, 2, (0.5, 0.5), "n", 1)


def test_the_signature_is_the_schemas(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x, int k=3, *, Tensor y, bool b=True) -> Tensor")
        f = getattr(ow.ops, ns).f.default
        assert str(inspect.signature(f)) == "(x, k=3, *, y, b=True)"
        assert str(inspect.signature(f)) == str(signature_of(f.schema))


def test_wrong_arguments_are_pythons_own_type_errors():
    call = _call("ns::f(Tensor x, *, int k=1) -> Tensor")
    for args, kwargs, text in [
        ((), {}, "f() missing 1 required positional argument: 'x'"),
        ((1, 2), {}, "f() takes 2 positional arguments but 3 were given"),
        ((1,), {"z": 1}, "f() got an unexpected keyword argument 'z'"),
        ((1,), {"x": 1}, "f() got multiple values for argument 'x'"),
    ]:
        with pytest.raises(TypeError) as e:
            call(*args, **kwargs)
        assert str(e.value) == text


@pytest.mark.parametrize(
    "name", ["self", "len", "list", "tuple", "KeyError", "float", "int", "bool", "str", "type", "complex"]
)
def test_a_parameter_may_have_any_name(ns, name):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define(
            f"f(Tensor[] xs, float k=1.0, int[]? n=None, *, int {name}=7, Scalar z=1, bool t=True)"
            " -> (Tensor, Tensor)"
        )
        given = []
        text = (
            f"def kernel(xs, k, n, *, {name}, z, t):\n"
            f"    given.append((k, n, {name}, z, t))\n"
            "    return xs[0] + 1, xs[0] * 2"
        )
        scope = {"given": given}
        exec(text, scope)
        lib.impl("f", scope["kernel"], "CPU")
        f = getattr(ow.ops, ns).f
        one, two = f([np.ones(2)], True, (1, 2), **{name: np.int64(3)})
        assert given == [(1.0, [1, 2], 3, 1, True)]
        np.testing.assert_array_equal(one, two)
        f([np.ones(2)])
        assert given[1] == (1.0, None, 7, 1, True)


@pytest.mark.parametrize("prefix", ["_ow_", "_ow__", "_ow_self", "_ow_table", "_ow_miss"])
def test_a_parameter_with_the_helpers_prefix(prefix):
    call = _call(f"ns::f(Tensor {prefix}x, int {prefix}=1) -> Tensor")
    assert call("x") == ("x", 1)


@pytest.mark.parametrize(
    "hostile",
    [
        "ns::f(Tensor x) -> Tensor\nimport os",
        "ns::f(Tensor x=__import__('os').system('true')) -> Tensor",
        "ns::f(Tensor x, int k=1):\n    import os\n    def g(y) -> Tensor",
        "ns::f(Tensor import) -> Tensor",
        "ns::f(Tensor x, Tensor х) -> Tensor",  # noqa: RUF001  (a Cyrillic letter)
        "ns::f(Tensor __debug__) -> Tensor",
        "ns::f;import os(Tensor x) -> Tensor",
        "ns::f.a b(Tensor x) -> Tensor",
        "ns::f(Tensor x\x00) -> Tensor",
        "ns::lambda(Tensor x) -> Tensor",
    ],
)
def test_no_schema_can_inject_code(hostile, monkeypatch, ns):
    """Invariant 7: what is not an identifier never reaches the compiler."""
    compiled = []
    monkeypatch.setattr("opwright.entry.compile_function", lambda *args: compiled.append(args))
    library = ow.Library("ns", "FRAGMENT")
    before = dict(registry.records)
    with pytest.raises(ValueError, match=r"."):
        library.define(hostile.removeprefix("ns::"))
    assert compiled == []
    assert registry.records == before


def test_a_hostile_default_stays_a_value():
    text = "'); import os; ('"
    call = _call(f'ns::f(Tensor x, str s="{text}") -> Tensor')
    assert call(1) == (1, text)


def test_the_source_is_in_tracebacks(ns):
    @ow.custom_op(f"{ns}::boom", mutates_args=())
    def boom(x: np.ndarray, k: int = 3) -> np.ndarray:
        raise ValueError("in the kernel")

    for _ in range(2):  # cold and warm
        with pytest.raises(ValueError, match="in the kernel") as e:
            boom(np.ones(1))
        frames = traceback.extract_tb(e.value.__traceback__)
        lines = {frame.filename: frame.line for frame in frames}
        assert lines[f"<opwright {ns}::boom>"] == "return _ow_call(x, k)"
        assert lines[f"<opwright {ns}::boom on numpy>"] == "_ow_out = _ow_kernel(x, k)"
        assert e.value.__context__ is None  # no KeyError of the table in sight


def test_the_source_is_there_for_inspect(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray, k: int = 3) -> np.ndarray:
        return x + k

    assert inspect.getsource(type(f).__call__) == (
        "def __call__(_ow_self, x, k=_ow_default_k):\n"
        "    try:\n"
        "        _ow_call = _ow_table[x.__class__]\n"
        "    except _ow_missing:\n"
        "        _ow_call = _ow_miss\n"
        "    return _ow_call(x, k)\n"
    )


def test_a_redefinition_has_a_source_of_its_own(ns):
    def define(k):
        @ow.custom_op(f"{ns}::f", mutates_args=())
        def f(x: np.ndarray) -> np.ndarray:
            return x + k

        return f

    first, second = define(1), define(2)
    files = [type(f).__call__.__code__.co_filename for f in (first, second)]
    assert files == [f"<opwright {ns}::f>", f"<opwright {ns}::f (2)>"]
    assert linecache.getlines(files[0])
    assert linecache.getlines(files[1])


class Wide(enum.Enum):
    """Choices that have the same text as those of ``Narrow``."""

    ONE = 1


class Narrow(enum.Enum):
    ONE = 1


def test_operators_of_like_schemas_share_a_text_and_no_value(ns):
    """Nor do they share a file, a name or a table, and each has the default of its own class."""
    given = []

    @ow.custom_op(f"{ns}::wide", mutates_args=())
    def wide(x: np.ndarray, k: Wide = Wide.ONE) -> np.ndarray:
        given.append(k)
        return x + 1

    @ow.custom_op(f"{ns}::narrow", mutates_args=())
    def narrow(x: np.ndarray, k: Narrow = Narrow.ONE) -> np.ndarray:
        given.append(k)
        return x * 5

    calls = [type(op).__call__ for op in (wide, narrow)]
    files = [call.__code__.co_filename for call in calls]
    assert wide.schema.signature == narrow.schema.signature
    assert files == [f"<opwright {ns}::wide>", f"<opwright {ns}::narrow>"]
    assert linecache.getlines(files[0]) is linecache.getlines(files[1])
    assert [call.__defaults__ for call in calls] == [(Wide.ONE,), (Narrow.ONE,)]
    for _ in range(2):  # cold and warm
        assert (wide(np.ones(1)), narrow(np.ones(1))) == (2, 5)
    assert given == [Wide.ONE, Narrow.ONE] * 2
    with pytest.raises(TypeError, match=r"^narrow\(\) missing 1"):
        narrow()


def test_texts_are_shared_by_few_schemas_at_a_time():
    for index in range(2 * entry._MOST_SHARED):
        call = _call(f"ns::f(Tensor x, int k{index}={index}) -> Tensor")
        assert call(1) == (1, index)
        assert len(entry._shared) <= entry._MOST_SHARED


def test_a_file_name_that_is_free_again_keeps_its_next_source():
    make = partial(compile_function, "a title that is used again", "g", "")
    first = make(["return 1"], Names(parse_schema("ns::f() -> ()")))
    filename = first.__code__.co_filename
    del first
    gc.collect()
    second = make(["return 2"], Names(parse_schema("ns::f() -> ()")))
    assert second.__code__.co_filename == filename
    assert linecache.getline(filename, 2) == "    return 2\n"
    del second
    gc.collect()
    assert filename not in linecache.cache
    assert filename not in entry._alive


def test_sources_of_functions_that_are_gone_are_dropped():
    names = Names(parse_schema("ns::f() -> ()"))
    function = compile_function("a title of its own", "g", "", ["return 1"], names)
    filename = function.__code__.co_filename
    linecache.checkcache()
    assert linecache.getline(filename, 2) == "    return 1\n"
    del function
    gc.collect()
    assert filename not in linecache.cache


def test_first_array():
    assert first_array([None, [], [None, ()], ["a"], "b"]) == "a"
    assert first_array([None, []]) is None
    assert first_array([0.0]) == 0.0


class Tracer:
    """Answers with the class that the key is taken of."""


@pytest.mark.parametrize(
    ("schema", "args"),
    [
        ("f(Tensor x, Tensor y) -> ()", (1, 2.0)),
        ("f(Tensor? x, Tensor? y=None) -> ()", (None, 2.0)),
        ("f(Tensor? x, Tensor? y=None) -> ()", (None, None)),
        ("f(Tensor? x) -> ()", (None,)),
        ("f(int k, Tensor y) -> ()", (1, 2.0)),
        ("f(Tensor[] x, Tensor y) -> ()", ([], 2.0)),
        ("f(Tensor[] x, Tensor y) -> ()", ([1], 2.0)),
        ("f(Tensor[] x, Tensor y) -> ()", ((1,), 2.0)),
        ("f(Tensor?[] x, Tensor y) -> ()", ([None, 3], 2.0)),
        ("f(Tensor[]? x, *, Tensor y) -> ()", (None, 2.0)),
        ("f(Device d, ScalarType t) -> ()", ("cpu", np.dtype("f4"))),
        ("f(ScalarType? t=None) -> ()", (np.float32,)),
        ("f(ScalarType? t=None) -> ()", (float,)),
        ("f(ScalarType? t=None) -> ()", (None,)),
        ("f(int k) -> ()", (1,)),
    ],
)
def test_the_generated_key_is_table_key(schema, args):
    parsed = parse_schema("ns::" + schema)
    found = []

    class Table(dict):
        def __missing__(self, key):
            found.append(key)
            return lambda *_: None

    call = call_function(parsed, Table(), lambda *_: None, "f")
    names = [argument.name for argument in parsed.positional]
    keyword_only = {a.name: v for a, v in zip(parsed.arguments, args, strict=False) if a.kwarg_only}
    call(None, *args[: len(names)], **keyword_only)
    assert found == [table_key(parsed, args)]
