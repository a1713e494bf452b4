"""``custom_op``: behaviours 1 to 34 as NumPy alone shows them, and what is refused in which words."""

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple

import numpy as np
import pytest

import opwright as ow
from opwright import registry
from opwright.errors import (
    NoKernelError,
    RegistrationError,
    RegistrationTypeError,
    RegistrationValueError,
    SchemaError,
    SchemaSyntaxError,
)
from opwright.source import source_of

X = np.arange(3.0)


def scale(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    """Scale it."""
    return x * k


def fill(x: np.ndarray, y: np.ndarray) -> None:
    x[:] = y


@pytest.fixture
def unchanged(ns):
    """Nothing of the namespace is registered, before or after."""
    yield
    assert not [key for key in registry.records if key.startswith(f"{ns}::")]


def test_row_1_the_result_is_called_like_the_function(ns):
    op = ow.custom_op(f"{ns}::scale", mutates_args=())(scale)
    for args, kwargs in [((X,), {}), ((X, 3), {}), ((X,), {"k": 3.0}), ((), {"x": X})]:
        np.testing.assert_array_equal(op(*args, **kwargs), scale(*args, **kwargs))
    assert isinstance(op, ow.Operator)
    assert repr(op) == f"<Operator {ns}::scale(Tensor x, float k=2.0) -> Tensor>"


def test_the_function_may_be_given_at_once(ns):
    op = ow.custom_op(f"{ns}::scale", scale, mutates_args=())
    np.testing.assert_array_equal(op(X), X * 2)


@pytest.mark.parametrize(
    "names", [("x",), ["x"], {"x"}, {"x": 1}, iter(["x"]), (n for n in "x"), frozenset("x")]
)
def test_row_2_mutates_args_is_any_iterable_even_one_that_is_consumed(ns, names):
    op = ow.custom_op(f"{ns}::fill", fill, mutates_args=names)
    assert op.schema.signature == "(Tensor(a0!) x, Tensor y) -> ()"


@pytest.mark.parametrize("names", [(), [], {}, set(), iter(())])
def test_row_2_mutates_args_may_be_empty(ns, names):
    op = ow.custom_op(f"{ns}::scale", scale, mutates_args=names)
    assert op.schema.signature == "(Tensor x, float k=2.0) -> Tensor"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("schema", [None, "(Tensor(a!) x, Tensor y) -> ()"])
def test_row_3_a_string_for_mutates_args(ns, schema):
    with pytest.raises(ValueError, match=r".") as e:
        ow.custom_op(f"{ns}::fill", fill, mutates_args="x", schema=schema)
    assert str(e.value) == (
        "mutates_args must either be a sequence of the names of the arguments that are mutated or the string "
        "'unknown'\n"
        "  got: the string 'x'\n"
        "  to fix: mutates_args=('x',)"
    )


def test_row_4_unknown_marks_every_array(ns):
    def f(x: np.ndarray, ys: list[np.ndarray], z: np.ndarray | None, k: int) -> None:
        x += 1

    op = ow.custom_op(f"{ns}::f", f, mutates_args="unknown")
    assert op.schema.signature == "(Tensor(a0!) x, Tensor(a1!)[] ys, Tensor(a2!)? z, SymInt k) -> ()"


@pytest.mark.usefixtures("unchanged")
def test_row_5_a_name_that_is_no_argument(ns):
    with pytest.raises(SchemaError) as e:
        ow.custom_op(f"{ns}::fill", fill, mutates_args=("x", "z", "w"))
    assert str(e.value) == (
        f"{ns}::fill: 'w', 'z' in mutates_args were not found in the custom op's signature.\n"
        "  to fix: the array parameters are x, y"
    )


def test_row_8_a_mutating_operator_emits_no_warning(ns):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ow.custom_op(f"{ns}::fill", fill, mutates_args=("x",))(X.copy(), X)


def test_row_9_defaults_reach_the_kernel_as_written(ns):
    given = []

    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(
        x: np.ndarray,
        a: int | None = None,
        b: float = 1.5,
        c: bool = True,
        d: int = 3,
        e: str = "s",
        g: np.dtype = np.dtype("float32"),  # noqa: B008  (what is under test)
        h: list[int] = [1, 2],  # noqa: B006  (a kernel gets a new list each time)
    ) -> np.ndarray:
        given.append((a, b, c, d, e, g, h))
        return x + 1

    f(X)
    f(X)
    assert given == [(None, 1.5, True, 3, "s", np.dtype("float32"), [1, 2])] * 2
    assert f.schema.signature == (
        '(Tensor x, SymInt? a=None, float b=1.5, bool c=True, SymInt d=3, str e="s", ScalarType g=float32, '
        "SymInt[] h=[1, 2]) -> Tensor"
    )


@pytest.mark.usefixtures("unchanged")
def test_row_10_no_return_annotation(ns):
    def f(x: np.ndarray):
        return x

    with pytest.raises(SchemaError) as e:
        ow.custom_op(f"{ns}::f", f, mutates_args=())
    assert str(e.value) == (
        f"{ns}::f: No return type annotation was provided. Please add one.\n"
        "  to fix: write '-> None' for no return"
    )


class Pair(NamedTuple):
    a: int
    b: float


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("annotation", "shown", "fix"),
    [
        (dict[str, int], "dict[str, int]", "use list[int] for its values, or one parameter for each"),
        (Pair, f"{__name__}.Pair", "use one parameter for each of its values: a: int, b: float"),
        (bytes, "bytes", "use an array of uint8, or str"),
    ],
)
def test_row_11_an_unsupported_parameter_type_names_the_nearest(ns, annotation, shown, fix):
    def f(x, k):
        return x

    f.__annotations__ = {"x": np.ndarray, "k": annotation, "return": np.ndarray}
    with pytest.raises(SchemaError) as e:
        ow.custom_op(f"{ns}::f", f, mutates_args=())
    assert str(e.value) == f"{ns}::f: Parameter k has unsupported type {shown}.\n  to fix: {fix}"


def test_row_12_a_schema_replaces_annotations(ns):
    op = ow.custom_op(
        f"{ns}::f",
        lambda x, n: x.__iadd__(n) and None,
        mutates_args=("x",),
        schema="(Tensor(a!) x, int n) -> ()",
    )
    assert op.schema.signature == "(Tensor(a!) x, int n) -> ()"
    assert op._record.flavour == "array_api"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("mutates_args", "schema", "declared", "given"),
    [
        ((), "(Tensor(a!) x, Tensor y) -> ()", "x", "none"),
        (("x", "y"), "(Tensor(a!) x, Tensor y) -> ()", "x", "x, y"),
        (("x",), "(Tensor x, Tensor y) -> ()", "none", "x"),
    ],
)
def test_row_12_mutates_args_and_schema_must_agree(ns, mutates_args, schema, declared, given):
    with pytest.raises(SchemaError) as e:
        ow.custom_op(f"{ns}::fill", fill, mutates_args=mutates_args, schema=schema)
    assert str(e.value) == (
        f"{ns}::fill: mutates_args and the schema name other arguments as mutated\n"
        f"  expected: {declared} (the schema's alias annotations)\n"
        f"  got: {given}\n"
        "  to fix: make them agree"
    )


@pytest.mark.usefixtures("unchanged")
def test_row_12_the_functions_parameters_must_be_the_schemas(ns):
    with pytest.raises(RegistrationTypeError) as e:
        ow.custom_op(f"{ns}::f", scale, mutates_args=(), schema="(Tensor x, *, float k, int n=1) -> Tensor")
    assert str(e.value) == (
        f"kernel of {ns}::f has another signature than the operator calls it with\n"
        "  expected: (x, *, k, n)\n"
        "  got: (x: 'np.ndarray', k: 'float' = 2.0) -> 'np.ndarray' "
        "(got an unexpected keyword argument 'n')\n"
        f"  registered at: {source_of(scale)}"
    )


@pytest.mark.usefixtures("unchanged")
def test_row_12_the_schema_starts_with_a_parenthesis(ns):
    with pytest.raises(SchemaError) as e:
        ow.custom_op(f"{ns}::f", scale, mutates_args=(), schema="f(Tensor x, float k) -> Tensor")
    assert str(e.value) == (
        f"{ns}::f: schema= must start with a parenthesis\n  got: 'f(Tensor x, float k) -> Tensor'"
    )


def test_row_15_defining_again_replaces(ns):
    first = ow.custom_op(f"{ns}::f", scale, mutates_args=())
    second = ow.custom_op(f"{ns}::f", lambda x: x - 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    np.testing.assert_array_equal(second(X), X - 1)
    np.testing.assert_array_equal(getattr(ow.ops, ns).f(X), X - 1)
    with pytest.raises(RuntimeError, match="was redefined at"):
        first(X)


def test_row_16_an_overload_of_its_own(ns):
    one = ow.custom_op(f"{ns}::f", scale, mutates_args=())
    two = ow.custom_op(f"{ns}::f.text", mutates_args=(), schema="(Tensor x, str s) -> Tensor")(
        lambda x, s: x + len(s)
    )
    packet = getattr(ow.ops, ns).f
    np.testing.assert_array_equal(packet(X, 3), X * 3)
    np.testing.assert_array_equal(packet(X, "ab"), X + 2)
    assert packet.default is one
    assert packet.text is two
    assert (two.name, two.overload) == (f"{ns}::f", "text")
    assert ow.custom_op(f"{ns}::f.default", scale, mutates_args=()) is packet.default


def test_row_17_a_one_element_tuple(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray) -> tuple[np.ndarray]:
        return (x + 1,)

    for _ in range(5):
        (out,) = f(X)
        assert type(out) is np.ndarray
    assert f.schema.signature == "(Tensor x) -> ((Tensor))"


@pytest.mark.usefixtures("unchanged")
def test_row_18_kernels_for_devices_need_an_array_or_a_device(ns):
    def f(n: int) -> np.ndarray:
        return np.zeros(n)

    with pytest.raises(RegistrationValueError) as e:
        ow.custom_op(f"{ns}::f", f, mutates_args=(), device_types="cpu")
    assert str(e.value) == (
        f"{ns}::f has no Tensor inputs, so kernels for device types cannot be told apart\n"
        "  expected: a parameter 'device: torch.device' (schema: Device device)\n"
        f"  got: {ns}::f(SymInt n) -> Tensor\n"
        f"  registered at: {source_of(f)}"
    )


def test_row_18_and_later_kernels_too(ns):
    def f(n: int) -> np.ndarray:
        return np.zeros(n)

    op = ow.custom_op(f"{ns}::f", f, mutates_args=())
    with pytest.raises(ValueError, match="cannot be told apart"):
        op.register_kernel("cpu", f)
    handle = ow.register_kernel(f"{ns}::g", "cpu", f)
    with pytest.warns(registry.PendingWarning, match="cannot be told apart"):
        ow.custom_op(f"{ns}::g", f, mutates_args=())
    handle.destroy()


def test_row_18_a_device_decides_where_there_are_no_arrays(ns):
    op = ow.custom_op(
        f"{ns}::f",
        lambda n, device: np.zeros(n),
        mutates_args=(),
        schema="(int n, Device device) -> Tensor",
        device_types="cpu",
        flavour="numpy",
    )
    for _ in range(5):
        assert op(2, "cpu").shape == (2,)
    other = ow.custom_op(
        f"{ns}::g",
        lambda n, device: np.zeros(n),
        mutates_args=(),
        schema="(int n, Device device) -> Tensor",
        device_types="cpu",
        flavour="numpy",
    )
    with pytest.raises(NoKernelError, match=f"{ns}::g has no kernel for numpy arrays on cuda"):
        other(2, "cuda:0")


@pytest.mark.parametrize("device_types", ["cpu", ("cpu",), ["cpu", "meta"], ("cpu", "cpu")])
def test_row_19_the_body_is_for_the_devices_named(ns, device_types):
    op = ow.custom_op(f"{ns}::f", scale, mutates_args=(), device_types=device_types)
    np.testing.assert_array_equal(op(X), X * 2)
    keys = [kernel.key for kernel in op._record.kernels]
    assert keys == (["CPU", "Meta"] if "meta" in device_types else ["CPU"])


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("device_types", "text"),
    [
        ((), "device_types is empty, so there is nothing to register for"),
        (3, "device_types must be a name or several\n  got: 3"),
        ([None], "a device type must be a string\n  got: None"),
        (
            "CUDA:0",
            "'CUDA:0' is not a device type\n"
            "  expected: one of cpu, cuda, hip, hpu, ipu, lazy, maia, meta, mps, mtia, privateuseone, ve, "
            "xla, xpu\n"
            "  to fix: write 'cuda'",
        ),
        (
            "gpu",
            "'gpu' is not a device type\n"
            "  expected: one of cpu, cuda, hip, hpu, ipu, lazy, maia, meta, mps, mtia, privateuseone, ve, "
            "xla, xpu",
        ),
    ],
)
def test_row_19_what_is_no_device_type(ns, device_types, text):
    with pytest.raises(RegistrationError) as e:
        ow.custom_op(f"{ns}::f", scale, mutates_args=(), device_types=device_types)
    assert str(e.value) == text


@pytest.mark.usefixtures("unchanged")
def test_row_19_a_flavour_that_is_never_on_the_device(ns):
    with pytest.raises(RegistrationValueError) as e:
        ow.custom_op(f"{ns}::f", scale, mutates_args=(), device_types=("cpu", "cuda"))
    assert str(e.value) == (
        f"kernel of {ns}::f for CUDA has flavour numpy, whose arrays are never on cuda\n"
        f"  registered at: {source_of(scale)}\n"
        "  to fix: annotate it with arrays that can be on cuda, or pass flavour=, "
        "or let them be copied: register_kernel(..., copy=True)"
    )


@pytest.mark.parametrize(
    "tags", ["pointwise", ow.Tag.pointwise, ["pointwise"], (ow.Tag.pointwise, "pt2_compliant_tag")]
)
def test_row_20_tags(ns, tags):
    op = ow.custom_op(f"{ns}::f", scale, mutates_args=(), tags=tags)
    assert op.tags == ("pointwise", "pt2_compliant_tag")


def test_row_20_without_tags(ns):
    assert ow.custom_op(f"{ns}::f", scale, mutates_args=()).tags == ("pt2_compliant_tag",)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("tags", "kind", "text"),
    [
        ("fast", SchemaError, "'fast' is not a tag\n  expected: one of "),
        (
            3,
            RegistrationTypeError,
            "a tag must be an opwright.Tag, a torch.Tag, or the name of one\n  got: 3",
        ),
        (
            [None],
            RegistrationTypeError,
            "a tag must be an opwright.Tag, a torch.Tag, or the name of one\n  got: None",
        ),
    ],
)
@pytest.mark.parametrize("schema", [None, "(Tensor x, float k) -> Tensor"])
def test_row_20_what_is_no_tag(ns, tags, kind, text, schema):
    with pytest.raises(kind) as e:
        ow.custom_op(f"{ns}::f", scale, mutates_args=(), tags=tags, schema=schema)
    assert str(e.value).startswith(text)


# ------------------------------------------------------------------ 25 to 31: in-place and out


def inplace(x: np.ndarray, k: float) -> np.ndarray:
    x *= k
    return x


def out(x: np.ndarray, *, to: np.ndarray) -> np.ndarray:
    return np.sin(x, out=to)


def no_array_first(k: float, x: np.ndarray) -> np.ndarray:
    return x


def nothing(x: np.ndarray) -> None:
    pass


def several(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x, x


def by_keyword(*, x: np.ndarray) -> np.ndarray:
    return x


def two_outs(*, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a


def one_tuple(*, a: np.ndarray) -> tuple[np.ndarray]:
    return (a,)


def optional_out(*, a: np.ndarray | None) -> np.ndarray:
    return np.ones(1)


def list_out(*, a: list[np.ndarray]) -> np.ndarray:
    return a[0]


RULES = [
    ("inplace", no_array_first, ("x",)),
    ("inplace", nothing, ("x",)),
    ("inplace", several, ("x",)),
    ("inplace", by_keyword, ("x",)),
    ("inplace", inplace, ()),
    ("out", inplace, ("x",)),
    ("out", out, ()),
    ("out", optional_out, ("a",)),
    ("out", list_out, ("a",)),
    ("out", two_outs, ("a", "b")),
    ("out", one_tuple, ("a",)),
    (("inplace", "out"), inplace, ("x",)),
]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("tag", "fn", "mutates"), RULES)
def test_row_27_28_30_rules_of_the_tags(ns, tag, fn, mutates):
    with pytest.raises(ValueError, match=r"torch\.Tag\.(inplace|out)") as e:
        ow.custom_op(f"{ns}::f", fn, mutates_args=mutates, tags=tag)
    assert str(e.value).startswith(f"{ns}::f: torch.Tag.")


@pytest.mark.usefixtures("unchanged")
def test_row_31_a_manual_schema_is_held_to_the_same_rules(ns):
    with pytest.raises(ValueError, match=r"torch\.Tag\.inplace"):
        ow.custom_op(
            f"{ns}::f",
            inplace,
            mutates_args=("x",),
            tags="inplace",
            schema="(Tensor(a!) x, float k) -> Tensor",
        )
    with pytest.raises(ValueError, match=r"torch\.Tag\.out"):
        ow.custom_op(
            f"{ns}::f", out, mutates_args=("to",), tags="out", schema="(Tensor x, *, Tensor(a!) to) -> Tensor"
        )


def test_row_32_an_own_fake_is_warned_of(ns):
    op = ow.custom_op(f"{ns}::f", inplace, mutates_args=("x",), tags="inplace")
    with pytest.warns(UserWarning, match="has a fake by its Tag") as caught:
        op.register_fake(lambda x, k: x)
    assert [str(w.message) for w in caught] == [
        f"{ns}::f has a fake by its Tag.inplace; the one that is registered now covers it"
    ]
    assert caught[0].filename == __file__


def test_row_34_no_gradient_for_an_out_operator(ns):
    op = ow.custom_op(f"{ns}::f", out, mutates_args=("to",), tags="out")
    text = (
        f"{ns}::f has Tag.out: its out arguments are overwritten, so it has no gradient\n"
        f"  registered at: {source_of(out)}\n"
        "  to fix: define a functional operator, register its gradient, and let this one call it"
    )
    for register in (op.register_autograd, functools.partial(ow.register_autograd, f"{ns}::f")):
        with pytest.raises(RuntimeError) as e:
            register(lambda ctx, g: None)
        assert str(e.value) == text


# ------------------------------------------------------------------ bad input, whole texts


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        (
            "scale",
            RegistrationValueError,
            "an operator's name needs a namespace\n"
            "  expected: namespace::name or namespace::name.overload\n"
            "  got: 'scale'\n"
            "  to fix: put a namespace of your own in front: 'mylib::scale'",
        ),
        (
            "ns::class",
            RegistrationValueError,
            "'ns::class': the name 'class' is a keyword of Python\n"
            "  expected: namespace::name or namespace::name.overload of Python identifiers",
        ),
        (
            "ns::a b",
            RegistrationValueError,
            "'ns::a b': the name 'a b' is not an identifier (ASCII letters, digits and _, "
            "not starting with a "
            "digit)\n"
            "  expected: namespace::name or namespace::name.overload of Python identifiers",
        ),
        (
            3,
            RegistrationTypeError,
            "an operator's name must be a string\n"
            "  expected: namespace::name or namespace::name.overload\n"
            "  got: 3 of type int",
        ),
    ],
)
def test_a_bad_name_is_refused_before_the_function_is_seen(name, kind, text):
    with pytest.raises(kind) as e:
        ow.custom_op(name, mutates_args=())
    assert str(e.value) == text


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("fn", [3, "f", None])
def test_what_is_no_function(ns, fn):
    with pytest.raises(RegistrationTypeError) as e:
        ow.custom_op(f"{ns}::f", mutates_args=())(fn)
    assert str(e.value) == f"custom_op('{ns}::f') decorates a function\n  got: {fn!r}"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("schema", [None, "(Tensor x) -> Tensor"])
@pytest.mark.parametrize("kind", ["generator", "coroutine", "asynchronous generator"])
def test_a_function_that_returns_before_it_has_computed(ns, schema, kind):
    def generator(x: np.ndarray) -> np.ndarray:
        yield x

    async def coroutine(x: np.ndarray) -> np.ndarray:
        return x

    async def asynchronous(x: np.ndarray) -> np.ndarray:
        yield x

    fn = {"generator": generator, "coroutine": coroutine, "asynchronous generator": asynchronous}[kind]
    with pytest.raises((SchemaError, RegistrationTypeError), match="a generator or coroutine function") as e:
        ow.custom_op(f"{ns}::f", fn, mutates_args=(), schema=schema)
    if schema is not None:
        assert str(e.value) == (
            f"kernel of {ns}::f must be a function that returns\n"
            "  got: a generator or coroutine function\n"
            f"  registered at: {source_of(fn)}"
        )
    op = ow.custom_op(f"{ns}::g", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")
    for register in (op.register_fake, functools.partial(op.register_kernel, "cpu")):
        with pytest.raises(RegistrationTypeError, match="must be a function that returns"):
            register(fn)
    op._lib.destroy()


@pytest.mark.usefixtures("unchanged")
def test_an_unknown_flavour(ns):
    with pytest.raises(RegistrationValueError) as e:
        ow.custom_op(f"{ns}::f", scale, mutates_args=(), flavour="tensorflow")
    assert str(e.value).startswith("'tensorflow' is not a flavour\n  expected: array_api, ")


@pytest.mark.usefixtures("unchanged")
def test_a_hostile_schema(ns):
    with pytest.raises(SchemaSyntaxError) as e:
        ow.custom_op(f"{ns}::f", scale, mutates_args=(), schema="(Tensor x, float k) -> Tensor\nimport os")
    assert "import os" in str(e.value)
    assert "\n  to fix" in str(e.value) or "expected" in str(e.value)


def test_a_partial_and_a_callable_object_can_be_operators(ns):
    class Adder:
        def __call__(self, x: np.ndarray) -> np.ndarray:
            return x + 1

    op = ow.custom_op(f"{ns}::f", Adder(), mutates_args=())
    np.testing.assert_array_equal(op(X), X + 1)
    assert op.__name__ == "f"

    partial = functools.partial(scale, k=3.0)
    op = ow.custom_op(f"{ns}::g", partial, mutates_args=(), schema="(Tensor x) -> Tensor", flavour="numpy")
    np.testing.assert_array_equal(op(X), X * 3)


def test_an_operator_can_be_the_body_of_another(ns):
    one = ow.custom_op(f"{ns}::f", scale, mutates_args=())
    two = ow.custom_op(f"{ns}::g", one, mutates_args=())
    np.testing.assert_array_equal(two(X), X * 2)
    assert two._record is not one._record
    assert two._lib is not one._lib


def test_a_nested_call(ns):
    one = ow.custom_op(f"{ns}::f", scale, mutates_args=())

    @ow.custom_op(f"{ns}::g", mutates_args=())
    def g(x: np.ndarray) -> np.ndarray:
        return one(one(x, 2), 3)

    np.testing.assert_array_equal(g(X), X * 6)
