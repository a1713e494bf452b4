"""``Library``: kinds, what it defines and undoes, whole texts. Behaviours 48 to 58 and 60 to 63."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

import opwright as ow
from opwright import registry
from opwright.errors import (
    DuplicateError,
    RegistrationError,
    RegistrationTypeError,
    RegistrationValueError,
    SchemaError,
    StaleError,
)
from opwright.source import source_of

X = np.arange(3.0)


def _here(offset=0):
    return f"{__file__}:{sys._getframe(1).f_lineno + offset}"


def _packet(ns, name="f"):
    return getattr(getattr(ow.ops, ns), name)


# ------------------------------------------------------------------ kinds


@pytest.mark.parametrize("kind", ["def", "", "IMPLEMENT", None])
def test_48_an_unknown_kind(ns, kind):
    with pytest.raises(RegistrationValueError) as e:
        ow.Library(ns, kind)
    assert (
        str(e.value)
        == f"Library('{ns}', {kind!r}): unsupported kind\n  expected: 'DEF', 'FRAGMENT' or 'IMPL'"
    )


@pytest.mark.parametrize("namespace", ["prim", "_"])
def test_no_operator_is_defined_in_a_reserved_namespace(namespace):
    def body(x: ow.Array) -> ow.Array:
        return x

    text = f"'{namespace}' is a reserved namespace\n  to fix: choose one of your own"
    for define in (
        lambda: ow.custom_op(f"{namespace}::f", mutates_args=())(body),
        lambda: ow.triton_op(f"{namespace}::f", mutates_args=())(body),
        lambda: ow.define(f"{namespace}::f", "(Tensor x) -> Tensor"),
    ):
        with pytest.raises(RegistrationValueError) as e:
            define()
        assert str(e.value) == text


@pytest.mark.parametrize("kind", ["DEF", "FRAGMENT"])
def test_48_the_reserved_namespace(kind):
    with pytest.raises(ValueError, match="'prim' is a reserved namespace\n  to fix: choose one of your own"):
        ow.Library("prim", kind)
    assert repr(ow.Library("prim", "IMPL")) == "<Library IMPL prim>"


def test_48_a_namespace_that_is_no_name():
    with pytest.raises(RegistrationValueError, match="the namespace 'a b' is not an identifier"):
        ow.Library("a b", "DEF")


def test_49_a_second_def_names_both_lines(ns):
    first = ow.Library(ns, "DEF")
    line = _here(-1)
    with pytest.raises(RuntimeError) as e:
        ow.Library(ns, "DEF")
    assert str(e.value) == (
        f"namespace {ns} has a DEF library already; only one may define a namespace\n"
        f"  got: a second one at {_here(-3)}\n"
        f"  registered at: {line}\n"
        "  to fix: make the second one a FRAGMENT"
    )
    assert isinstance(e.value, DuplicateError)
    first.destroy()
    ow.Library(ns, "DEF").destroy()


def test_49_from_a_command_line():
    text = (
        "import opwright as ow\n"
        "a = ow.Library('n', 'DEF')\n"
        "try:\n"
        "    ow.Library('n', 'DEF')\n"
        "except RuntimeError as e:\n"
        "    print(e)"
    )
    out = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert "got: a second one at <string>:4\n  registered at: <string>:2\n" in out


def test_50_fragments_need_no_def_and_may_be_several(ns):
    with ow.Library(ns, "FRAGMENT") as one, ow.Library(ns, "FRAGMENT") as two, ow.Library(ns, "DEF") as three:
        for library, name in ((one, "a"), (two, "b"), (three, "c")):
            library.define(f"{name}(Tensor x) -> Tensor")
        assert dir(getattr(ow.ops, ns)) == ["a", "b", "c"]


# ------------------------------------------------------------------ define


def test_51_define_makes_the_operator(ns):
    with ow.Library(ns, "DEF") as lib:
        assert lib.define("f(Tensor x, *, int k=1) -> Tensor") == "f"
        assert lib.define("f.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)") == "f.out"
        f = _packet(ns).default
        assert (f.name, f.overload, f.tags) == (f"{ns}::f", "default", ())
        assert f._record.source == _here(-4)
        assert f.__module__ == __name__
        assert f.__doc__ == f"The operator ``{ns}::f(Tensor x, *, int k=1) -> Tensor``."
        assert (f.__name__, f.__qualname__) == ("f", "f")
        assert lib._op_defs == {f"{ns}::f", f"{ns}::f.out"}
        assert f._lib is lib
        assert lib.m is lib


def test_51_an_overload_named_default_is_the_unnamed_one(ns):
    text = "an overload name other than 'default'"
    with ow.Library(ns, "DEF") as lib, pytest.raises(SchemaError, match=text):
        lib.define("f.default(Tensor x) -> Tensor")


@pytest.mark.parametrize(("type_", "hint"), [("int64_t", "int"), ("double", "float"), ("Tensorr", None)])
def test_51_an_unknown_type(ns, type_, hint):
    with ow.Library(ns, "FRAGMENT") as lib:
        with pytest.raises(RuntimeError, match=type_) as e:
            lib.define(f"f(Tensor x, {type_} k) -> Tensor")
        assert isinstance(e.value, ValueError)
        assert hint is None or f"{hint}" in str(e.value)
        assert not hasattr(getattr(ow.ops, ns), "f")


def test_a_schema_of_another_namespace(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        assert lib.define(f"{ns}::f(Tensor x) -> Tensor") == "f"
        with pytest.raises(SchemaError) as e:
            lib.define("other::f(Tensor x) -> Tensor")
        assert str(e.value) == (
            "schema, column 1: another namespace\n"
            "    other::f(Tensor x) -> Tensor\n"
            "    ^\n"
            f"  expected: the namespace '{ns}' of this library\n"
            "  got: 'other'"
        )


def test_a_schema_that_is_no_text(ns):
    with ow.Library(ns, "FRAGMENT") as lib, pytest.raises(RegistrationTypeError) as e:
        lib.define(3)
    assert (
        str(e.value) == f"<Library FRAGMENT {ns}>.define: the schema must be a string\n  got: 3 of type int"
    )


def test_an_impl_library_cannot_define(ns):
    with ow.Library(ns, "IMPL") as lib, pytest.raises(RegistrationError) as e:
        lib.define("f(Tensor x) -> Tensor")
    assert str(e.value) == (
        f"<Library IMPL {ns}> cannot define operators\n"
        "  to fix: make the Library with kind 'DEF' or 'FRAGMENT'"
    )


def test_alias_analysis(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor", "CONSERVATIVE")
        lib.define("g(Tensor x) -> Tensor", alias_analysis="FROM_SCHEMA")
        with pytest.raises(RuntimeError) as e:
            lib.define("h(Tensor x) -> Tensor", "PURE")
    assert str(e.value) == "invalid alias_analysis 'PURE'\n  expected: 'FROM_SCHEMA' or 'CONSERVATIVE'"


def test_defining_twice_names_both_lines(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        line = _here(-1)
        with pytest.raises(DuplicateError) as e:
            lib.define("f(Tensor x, int k) -> Tensor")
        assert str(e.value) == (
            f"operator {ns}::f is already registered\n"
            f"  got: a second one at {_here(-3)}\n"
            f"  registered at: {line}\n"
            "  to fix: destroy the Library that holds the first, or choose another name or overload"
        )
        assert str(_packet(ns).default.schema) == f"{ns}::f(Tensor x) -> Tensor"


@pytest.mark.parametrize("tags", ["pointwise", ow.Tag.pointwise, ("core", "pointwise"), [ow.Tag.core]])
def test_tags(ns, tags):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor", tags=tags)
        assert set(_packet(ns).default.tags) <= {"core", "pointwise"}


@pytest.mark.parametrize(
    ("schema", "tag"),
    [
        ("f(Tensor x) -> Tensor", "inplace"),
        ("f(*, Tensor(a!) x) -> Tensor(a!)", "inplace"),
        ("f(Tensor(a!) x) -> ()", "inplace"),
        ("f(Tensor(a!) x, Tensor(b!) y) -> Tensor(a!)", "inplace"),
        ("f(Tensor(a!) x) -> Tensor(a!)", "out"),
        ("f(Tensor x, *, Tensor(a!) out) -> Tensor", "out"),
    ],
)
def test_66_rules_of_the_tags(ns, schema, tag):
    with ow.Library(ns, "FRAGMENT") as lib:
        with pytest.raises(ValueError, match=rf"torch\.Tag\.{tag}"):
            lib.define(schema, tags=tag)
        assert not hasattr(getattr(ow.ops, ns), "f")


# ------------------------------------------------------------------ impl


def test_54_55_impl_by_name_qualified_name_or_overload(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.define("f.b(Tensor x, int k) -> Tensor")
        for op in ("f", f"{ns}::f", "f.default", _packet(ns).default, _packet(ns)):
            handle = lib.impl(op, lambda x: x + 1, "CPU")
            np.testing.assert_array_equal(_packet(ns).default(X), X + 1)
            handle.destroy()
        for op in ("f.b", f"{ns}::f.b", _packet(ns).b):
            handle = lib.impl(op, lambda x, k: x + k, "cpu")
            np.testing.assert_array_equal(_packet(ns).b(X, 3), X + 3)
            handle.destroy()


def test_55_an_operator_of_another_namespace(ns):
    with ow.Library(ns, "FRAGMENT") as lib, ow.Library(f"{ns}b", "IMPL") as other:
        lib.define("f(Tensor x) -> Tensor")
        with pytest.raises(RuntimeError) as e:
            other.impl(f"{ns}::f", lambda x: x, "CPU")
        assert str(e.value) == (
            f"{ns}::f is not in the namespace of <Library IMPL {ns}b>\n  expected: {ns}b\n  got: {ns}"
        )
        with pytest.raises(RuntimeError) as e:
            other.impl(_packet(ns).default, lambda x: x, "CPU")
        assert str(e.value) == f"{ns}::f is not in the namespace of <Library IMPL {ns}b>\n  expected: {ns}b"


@pytest.mark.parametrize("fn", [3, None, "f"])
def test_55_a_kernel_that_is_no_function(ns, fn):
    with ow.Library(ns, "FRAGMENT") as lib:
        with pytest.raises(TypeError) as e:
            lib.impl("f", fn, "CPU")
        assert (
            str(e.value) == f"the kernel of f must be a function\n  got: {fn!r} of type {type(fn).__name__}"
        )
        assert f"{ns}::f.default" not in registry.pending


def test_55_what_is_no_operator(ns):
    with ow.Library(ns, "IMPL") as lib, pytest.raises(RegistrationTypeError) as e:
        lib.impl(3, lambda x: x, "CPU")
    assert str(e.value) == (
        "not an operator\n"
        "  expected: a name such as 'mylib::op', an operator, or an operator of a framework's own\n"
        "  got: 3 of type int"
    )


def test_an_unknown_key(ns):
    with (
        ow.Library(ns, "IMPL") as lib,
        pytest.raises(RegistrationError, match="'gpu' is neither a device type nor a"),
    ):
        lib.impl("f", lambda x: x, "gpu")


def test_the_signature_is_compared(ns):
    def kernel(x):
        return x

    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x, int k) -> Tensor")
        with pytest.raises(RegistrationTypeError) as e:
            lib.impl("f", kernel, "CPU")
        assert str(e.value) == (
            f"kernel of {ns}::f for CPU has another signature than the operator calls it with\n"
            "  expected: (x, k)\n"
            "  got: (x) (too many positional arguments)\n"
            f"  registered at: {source_of(kernel)}"
        )
        with pytest.raises(RegistrationTypeError, match=r"expected: \(keyset, x, k\)"):
            lib.impl("f", lambda x, k: x, "CPU", with_keyset=True)
        lib.impl("f", lambda x, k, more=3: x + k, "CPU")  # what has a default may be more
        lib.impl("f", lambda *args: args[0] + 1, "CPU")
        lib.impl("f", np.add, "CPU")  # and what has no signature is taken as it is
        np.testing.assert_array_equal(_packet(ns)(X, 3), X + 3)


def test_56_a_library_for_one_key(ns):
    with ow.Library(ns, "FRAGMENT") as lib, ow.Library(ns, "IMPL", "CPU") as cpu:
        lib.define("f(Tensor x) -> Tensor")
        assert repr(cpu) == f"<Library IMPL {ns} CPU>"
        cpu.impl("f", lambda x: x + 1)
        np.testing.assert_array_equal(_packet(ns)(X), X + 1)
        with pytest.raises(RegistrationError) as e:
            cpu.impl("f", lambda x: x, "CUDA")
        assert str(e.value) == (
            f"<Library IMPL {ns} CPU> was made for one dispatch key\n  expected: CPU\n  got: CUDA"
        )
        cpu.impl("f", lambda x: x + 2, "cpu")
        np.testing.assert_array_equal(_packet(ns)(X), X + 2)


def test_without_a_key_a_kernel_is_for_every_device_and_gradients_go_through(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x + 1)
        assert [k.key for k in _packet(ns).default._record.kernels] == ["CompositeImplicitAutograd"]
        np.testing.assert_array_equal(_packet(ns)(X), X + 1)


def test_57_no_override(ns):
    def first(x):
        return x

    def second(x):
        return x

    with ow.Library(ns, "FRAGMENT") as lib, ow.Library(ns, "IMPL") as other:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", first, "CPU")
        for library in (lib, other):
            with pytest.raises(RuntimeError) as e:
                library.impl("f", second, "CPU", allow_override=False)
            assert str(e.value) == (
                f"kernel of {ns}::f for CPU is already registered\n"
                f"  got: a second one at {source_of(second)}\n"
                f"  registered at: {source_of(first)}\n"
                "  to fix: destroy the first handle or Library, or pass allow_override=True"
            )
        lib.impl("f", second, "CUDA", allow_override=False)


@pytest.mark.parametrize(
    "schema", ["(ScalarType[] d)", "(Layout[] d)", "(MemoryFormat[] d)", "(int[] d)", "(bool[2] d)"]
)
def test_61_kernels_get_lists(ns, schema):
    given = []
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define(f"f(Tensor x, {schema[1:-1]}) -> Tensor")
        lib.impl("f", lambda x, d: given.append(d) or x + 1, "CPU", flavour="numpy")
        value = {"S": np.int8, "L": "strided", "M": "contiguous_format", "i": 3, "b": True}[schema[1]]
        for one in ([value, value], (value, value)):
            _packet(ns)(X, one)
    assert [type(one) for one in given] == [list, list]


# ------------------------------------------------------------------ the end of a library


def test_58_the_end_of_the_block_undoes_exactly_what_it_did(ns):
    with ow.Library(ns, "FRAGMENT") as outer:
        outer.define("f(Tensor x) -> Tensor")
        outer.impl("f", lambda x: x + 1, "CPU")
        f = _packet(ns).default
        with ow.Library(ns, "FRAGMENT") as inner:
            inner.define("g(Tensor x) -> Tensor")
            inner.impl("f", lambda x: x + 2, "CPU")
            ow.register_fake(f, lambda x: x, lib=inner)
            ow.register_kernel(f"{ns}::later", "cpu", lambda x: x, lib=inner)
            inner.fallback(lambda op, x: x + 5, "CPU")
            np.testing.assert_array_equal(f(X), X + 2)
            np.testing.assert_array_equal(_packet(ns, "g")(X), X + 5)
        np.testing.assert_array_equal(f(X), X + 1)
        assert f._record.rules == ()
        assert f._record.fallbacks == {}
        assert f"{ns}::later.default" not in registry.pending
        assert not hasattr(getattr(ow.ops, ns), "g")


def test_58_libraries_end_in_any_order(ns):
    outer = ow.Library(ns, "FRAGMENT")
    outer.define("f(Tensor x) -> Tensor")
    libraries = [ow.Library(ns, "IMPL") for _ in range(3)]
    for n, library in enumerate(libraries):
        library.impl("f", lambda x, n=n: x + n, "CPU")
    f = _packet(ns)
    libraries[1].destroy()
    np.testing.assert_array_equal(f(X), X + 2)
    libraries[2].destroy()
    np.testing.assert_array_equal(f(X), X)
    outer.destroy()
    libraries[0].destroy()


@pytest.mark.parametrize("end", ["destroy", "_destroy", "del", "with"])
def test_60_142_operators_of_a_library_that_is_gone(ns, end):
    """I142: a call says so, instead of failing somewhere inside."""
    lib = ow.Library(ns, "FRAGMENT")
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x + 1, "CPU")
    packet, f = _packet(ns), _packet(ns).default
    f(X)
    line = f._record.source
    if end == "with":
        with lib:
            place = _here(-1)
    elif end == "del":
        place = f"the end of the Library made at {lib.source}"
        del lib
        gc.collect()
    else:
        getattr(lib, end)()
        place = _here(-1)
    for use in (
        lambda: f(X),
        lambda: f.register_vmap(lambda *a: None),
        lambda: f.register_kernel("cpu", len),
    ):
        with pytest.raises(StaleError) as e:
            use()
        assert str(e.value) == (
            f"operator {ns}::f was unregistered at {place}; this handle is stale\n"
            f"  registered at: {line}\n"
            f"  to fix: take the operator anew, from opwright.ops.{ns}.f or its module"
        )
    with pytest.raises(
        AttributeError, match=f"no operator {ns}::f is defined; import the module that defines it"
    ):
        getattr(ow.ops, ns).f
    with pytest.raises(StaleError) as e:
        packet(X)
    assert str(e.value) == (f"operator {ns}::f was unregistered\n  to fix: import the module that defines it")
    with pytest.raises(AttributeError, match=f"operator {ns}::f has no overload 'default'"):
        packet.default
    assert repr(packet) == f"<OperatorPacket {ns}::f ()>"
    assert repr(f) == f"<Operator {ns}::f(Tensor x) -> Tensor>"


def test_a_name_can_be_defined_again_afterwards(ns):
    for n in range(3):
        with ow.Library(ns, "DEF") as lib:
            lib.define("f(Tensor x) -> Tensor")
            lib.impl("f", lambda x, n=n: x + n, "CPU")
            np.testing.assert_array_equal(_packet(ns)(X), X + n)


def test_a_destroyed_library_takes_nothing_more(ns):
    lib = ow.Library(ns, "FRAGMENT")
    made = _here(-1)
    lib.destroy()
    gone = _here(-1)
    lib.destroy()  # a second time does nothing
    with ow.Library(ns, "FRAGMENT") as other:
        other.define("f(Tensor x) -> Tensor")
        for use in (
            lambda: lib.define("g(Tensor x) -> Tensor"),
            lambda: lib.impl("f", lambda x: x, "CPU"),
            lambda: lib.fallback(lambda op, x: x, "CPU"),
            lambda: ow.register_kernel(f"{ns}::f", "cpu", lambda x: x, lib=lib),
            lambda: ow.register_fake(f"{ns}::f", lambda x: x, lib=lib),
            lambda: ow.register_vmap(f"{ns}::f", lambda *a: None, lib=lib),
            lambda: ow.impl(f"{ns}::f", "cpu", lambda x: x, lib=lib),
            lambda: ow.define(f"{ns}::h", "() -> ()", lib=lib),
        ):
            with pytest.raises(StaleError) as e:
                use()
            assert str(e.value) == (
                f"<Library FRAGMENT {ns}> was destroyed at {gone}\n"
                f"  registered at: {made}\n"
                "  to fix: make another Library"
            )
        assert _packet(ns).default._record.kernels == ()


def test_an_undo_that_raises_does_not_stop_the_others(ns, monkeypatch):
    lib = ow.Library(ns, "FRAGMENT")
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x, "CPU")

    def hear(event, record, item):
        if event == "remove":
            raise ValueError("a framework's own trouble")

    monkeypatch.setattr(registry, "listeners", [*registry.listeners, hear])
    with pytest.raises(ValueError, match="a framework's own trouble"):
        lib.destroy()
    assert not hasattr(getattr(ow.ops, ns), "f")


def test_a_library_cannot_take_away_what_replaced_its_operator(ns):
    lib = ow.Library(ns, "FRAGMENT")
    lib.define("f(Tensor x) -> Tensor")
    f = ow.custom_op(f"{ns}::f", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    lib.destroy()
    np.testing.assert_array_equal(f(X), X + 1)


def test_the_library_of_a_custom_op(ns):
    """A name that code in the wild uses, though it is private."""

    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray) -> np.ndarray:
        return x + 1

    lib = f._lib
    assert isinstance(lib, ow.Library)
    assert f._lib is lib
    assert lib._op_defs == {f"{ns}::f"}
    lib.impl("f", lambda x: x + 2, "CPU")
    np.testing.assert_array_equal(f(X), X + 2)
    lib._destroy()
    with pytest.raises(StaleError):
        f(X)


def test_the_library_of_an_operator_does_not_outlive_its_owner(ns):
    lib = ow.Library(ns, "FRAGMENT")
    lib.define("f(Tensor x) -> Tensor")
    f = _packet(ns).default
    assert f._lib is lib
    del lib
    gc.collect()
    assert f._lib is None
    assert not hasattr(getattr(ow.ops, ns), "f")


# ------------------------------------------------------------------ fallback


def test_63_a_fallback_needs_a_key(ns):
    with ow.Library(ns, "IMPL") as lib:
        with pytest.raises(RegistrationError) as e:
            lib.fallback(lambda op, x: x)
        assert str(e.value) == f"<Library IMPL {ns}>.fallback needs a dispatch key\n  expected: such as 'CPU'"
        with pytest.raises(
            RegistrationTypeError, match="a fallback must be a function\n  got: 3 of type int"
        ):
            lib.fallback(3, "CPU")
    assert registry.fallbacks == {}
