"""``ops``, and the choice among overloads."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright.errors import ArgumentError, RegistrationError

X = np.arange(3.0)


@pytest.fixture
def packet(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        for name, arguments in {
            "f": "Tensor x, int k",
            "f.float": "Tensor x, float k",
            "f.text": "Tensor x, str k='s', *, int n=1",
            "f.two": "Tensor x, Tensor k",
            "f.many": "Tensor[] x",
            "f.none": "Tensor? x, bool[2] k, int[] m",
        }.items():
            lib.define(f"{name}({arguments}) -> str")
            word = name.partition(".")[2] or "default"
            lib.impl(name, lambda *args, word=word, **kwargs: word, "CPU")
        yield getattr(ow.ops, ns).f


@pytest.mark.parametrize(
    ("args", "kwargs", "overload"),
    [
        ((X, 1), {}, "default"),
        ((X, True), {}, "default"),
        ((X, np.int64(1)), {}, "default"),
        ((X,), {"k": 1}, "default"),
        ((X, 1.5), {}, "float"),
        ((X, np.float32(1)), {}, "float"),
        ((X,), {}, "text"),
        ((X, "a"), {}, "text"),
        ((X,), {"n": 3}, "text"),
        ((X, X), {}, "two"),
        (([X, X],), {}, "many"),
        (((X,),), {}, "many"),
        ((X, [True, False], [1]), {}, "none"),
    ],
)
def test_16_the_first_overload_that_takes_the_arguments(packet, args, kwargs, overload):
    for _ in range(3):
        assert packet(*args, **kwargs) == overload


def test_no_overload_says_why_not_each(packet, ns):
    with pytest.raises(ArgumentError) as e:
        packet(X, None)
    assert str(e.value) == (
        f"no overload of {ns}::f takes these arguments\n"
        "  got: \n"
        f"    {ns}::f(Tensor x, int k) -> str: {ns}::f: argument k must be a number\n"
        f"    {ns}::f.float(Tensor x, float k) -> str: {ns}::f.float: argument k must be a number\n"
        f"    {ns}::f.text(Tensor x, str k='s', *, int n=1) -> str: {ns}::f.text: "
        "argument k must be a string\n"
        f"    {ns}::f.two(Tensor x, Tensor k) -> str: {ns}::f.two: argument k must be an array\n"
        f"    {ns}::f.many(Tensor[] x) -> str: f() takes 1 positional argument but 2 were given\n"
        f"    {ns}::f.none(Tensor? x, bool[2] k, int[] m) -> str: f() missing 1 "
        "required positional argument: 'm'"
    )


def test_its_overloads_and_what_it_looks_like(packet, ns):
    assert packet.overloads() == ["default", "float", "text", "two", "many", "none"]
    assert repr(packet) == f"<OperatorPacket {ns}::f (default, float, text, two, many, none)>"
    assert packet.__name__ == "f"
    assert packet.float.overload == "float"
    assert {"float", "text", "register_fake", "overloads"} <= set(dir(packet))


def test_a_registration_through_it_goes_to_default(packet):
    packet.register_fake(lambda x, k: None)
    ow.register_vmap(packet, lambda info, in_dims, x, k: None)
    assert [rule.kind for rule in packet.default._record.rules] == ["fake", "vmap"]
    assert packet.float._record.rules == ()


def test_attributes_that_are_not_there(packet, ns):
    with pytest.raises(AttributeError) as e:
        packet.nothing
    assert str(e.value) == f"operator {ns}::f has no overload 'nothing'"
    assert not hasattr(packet, "__wrapped__")


def test_without_a_default_overload(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f.a(Tensor x) -> Tensor")
        lib.define("f.b(Tensor x) -> Tensor")
        packet = getattr(ow.ops, ns).f
        with pytest.raises(RegistrationError) as e:
            ow.register_fake(packet, lambda x: x)
        assert str(e.value) == (
            f"operator {ns}::f has no default overload\n"
            "  expected: one of its overloads: a, b\n"
            f"  to fix: name it: opwright.ops.{ns}.f.<overload>"
        )
        with pytest.raises(AttributeError):
            packet.register_fake


def test_one_overload_raises_its_own_errors(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x, int k) -> Tensor")
        packet = getattr(ow.ops, ns).f
        with pytest.raises(TypeError, match=r"^f\(\) missing 1 required positional argument: 'k'$"):
            packet(X)


def test_arguments_named_like_its_own(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor self, int args=1, *, int kwargs=2) -> Tensor")
        lib.define("f.b(Tensor self, str args, *, int kwargs=2) -> Tensor")
        lib.impl("f", lambda self, args, *, kwargs: self + args + kwargs, "CPU")
        np.testing.assert_array_equal(getattr(ow.ops, ns).f(self=X, args=2, kwargs=3), X + 5)


def test_ops_lists_what_there_is(ns):
    space = getattr(ow.ops, ns)
    assert dir(space) == []
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("g() -> ()")
        lib.define("f() -> ()")
        lib.define("f.a() -> ()")
        assert dir(space) == ["f", "g"]
        assert ns in dir(ow.ops)
        assert space.f is space.f
        assert getattr(ow.ops, ns) is space
        assert repr(space) == f"<opwright.ops.{ns}>"
        assert repr(ow.ops) == "<opwright.ops>"
    assert ns not in dir(ow.ops)


def test_names_that_only_look_private(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("__and__(Tensor x) -> Tensor")
        lib.define("_f(Tensor x) -> Tensor")
        assert getattr(getattr(ow.ops, ns), "__and__").overloads() == ["default"]  # noqa: B009
        assert getattr(ow.ops, ns)._f.default.overload == "default"
    with pytest.raises(AttributeError):
        ow.ops.__nothing__
