"""Every ``register_*`` by every target, as a decorator and as a call. Behaviours 68 to 71, 92 and 97."""

from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from opwright import registry
from opwright.errors import RegistrationError, RegistrationTypeError, RegistrationValueError
from opwright.registry import Handle
from opwright.source import source_of

X = np.arange(3.0)


def scale(x: np.ndarray, k: float = 2.0, *, n: int = 1) -> np.ndarray:
    return x * k * n


@pytest.fixture
def op(ns):
    return ow.custom_op(f"{ns}::scale", scale, mutates_args=())


def kernel(x, k, *, n):
    return x + k


def setup_context(ctx, inputs, output, keyword_only_inputs):
    pass


# name -> (the arguments before the function, the function, keyword arguments, what it becomes)
KINDS = {
    "register_kernel": (("cpu",), kernel, {}, None),
    "register_fake": ((), kernel, {}, "fake"),
    "register_autograd": ((), lambda ctx, grad: grad, {"setup_context": setup_context}, "autograd"),
    "register_jvp": ((), lambda ctx, dx, dk, dn: dx, {"setup_context": setup_context}, "jvp"),
    "register_vmap": ((), lambda info, in_dims, x, k, *, n: (x, 0), {}, "vmap"),
    "register_torch_dispatch": ((int,), lambda mode, func, types, args, kwargs: None, {}, "torch_dispatch"),
    "register_samples": ((), list, {}, "samples"),
    "register_reference": ((), kernel, {}, "reference"),
}


WAITING = ("register_kernel", "register_fake", "register_torch_dispatch")
"""What may be registered before its operator is defined."""


def _targets(op):
    namespace, _, name = op.name.partition("::")
    packet = getattr(getattr(ow.ops, namespace), name)
    return [op, op.name, op.name + ".default", packet, packet.default]


def _made(op, kind):
    return op._record.kernels[1:] if kind is None else [r for r in op._record.rules if r.kind == kind]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("target", range(5))
def test_by_every_target_and_in_every_form(op, name, target):
    before, fn, kwargs, kind = KINDS[name]
    register = getattr(ow, name)
    target = _targets(op)[target]
    handle = register(target, *before, fn, **kwargs)
    assert isinstance(handle, Handle)
    (made,) = _made(op, kind)
    assert made.fn is fn
    assert made.source == handle.source == source_of(fn)
    handle.destroy()
    assert not _made(op, kind)

    assert register(target, *before, **kwargs)(fn) is fn  # as a decorator
    (made,) = _made(op, kind)
    assert made.fn is fn


@pytest.mark.parametrize("name", [name for name in KINDS if name != "register_samples"])
def test_flavours_are_given_or_read(op, name):
    before, fn, kwargs, kind = KINDS[name]
    register = getattr(ow, name)
    register(op, *before, fn, **kwargs)
    assert _made(op, kind)[0].flavour == (
        "numpy" if name in ("register_kernel", "register_reference") else "array_api"
    )
    register(op, *before, fn, flavour="numpy", **kwargs)
    assert _made(op, kind)[-1].flavour == "numpy"
    with pytest.raises(RegistrationValueError, match="'nonsense' is not a flavour"):
        register(op, *before, fn, flavour="nonsense", **kwargs)


def test_the_flavour_is_read_from_annotations(op):
    def fake(x: np.ndarray, k: float, *, n: int) -> np.ndarray:
        return x

    op.register_fake(fake)
    assert op._record.rule("fake").flavour == "numpy"


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("numpy", "array_api"),
        ("array_api", "array_api"),
        ("torch", "torch"),
        ("jax", "jax"),
        ("cupy", "cupy"),
    ],
)
def test_rules_take_the_definitions_flavour_except_numpy(ns, definition, expected):
    op = ow.custom_op(
        f"{ns}::f", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor", flavour=definition
    )
    op.register_fake(lambda x: x)
    assert op._record.rule("fake").flavour == expected


@pytest.mark.parametrize("name", KINDS)
def test_with_a_library_they_go_with_it(op, ns, name):
    before, fn, kwargs, kind = KINDS[name]
    with ow.Library(ns, "IMPL") as lib:
        getattr(ow, name)(op, *before, fn, lib=lib, **kwargs)
        getattr(ow, name)(op, *before, lib=lib, **kwargs)(fn)
        ow.register_autocast(op, "cuda", "float16", lib=lib)
        assert len(_made(op, kind)) == 2
    assert not _made(op, kind)
    assert op._record.rules == ()


@pytest.mark.parametrize("name", [name for name in KINDS if name not in WAITING])
def test_rules_of_an_operator_that_is_not_there(ns, name):
    before, fn, kwargs, _ = KINDS[name]
    with pytest.raises(RegistrationError) as e:
        getattr(ow, name)(f"{ns}::nothing", *before, fn, **kwargs)
    assert str(e.value) == (
        f"operator {ns}::nothing does not exist\n"
        "  to fix: define it first, with opwright.custom_op or Library.define, or import the module that does"
    )
    assert not [key for key in registry.pending if key.startswith(f"{ns}::")]


@pytest.mark.parametrize("name", WAITING)
def test_what_may_come_before_its_operator(ns, name):
    before, fn, kwargs, kind = KINDS[name]
    getattr(ow, name)(f"{ns}::later", *before, fn, **kwargs)
    later = ow.custom_op(f"{ns}::later", scale, mutates_args=())
    assert [one.fn for one in _made(later, kind)] == [fn]


SIGNATURES = {
    "register_kernel": ("kernel of {q} for CPU", "(x, k, *, n)"),
    "register_fake": ("the fake of {q}", "(x, k, *, n)"),
    "register_autograd": ("backward of {q}", "(ctx, output_0)"),
    "register_jvp": ("jvp of {q}", "(ctx, tangent_x, tangent_k, tangent_n)"),
    "register_vmap": ("the vmap rule of {q}", "(info, in_dims, x, k, *, n)"),
    "register_samples": ("the samples of {q}", "()"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_another_signature_than_the_operators(op, name):
    """I038: at registration, not when a compiler comes along."""

    def wrong(only, these, two):
        return None

    before = KINDS[name][0]
    what, expected = SIGNATURES[name]
    with pytest.raises(RegistrationTypeError) as e:
        getattr(ow, name)(op, *before, wrong)
    first, second, third, *rest = str(e.value).splitlines()
    assert first == f"{what.format(q=op.name)} has another signature than the operator calls it with"
    assert second == f"  expected: {expected}"
    assert third.startswith("  got: (only, these, two) (")
    assert rest == [f"  registered at: {source_of(wrong)}"]


def test_another_signature_of_setup_context(op):
    def wrong(ctx, inputs, output):
        pass

    with pytest.raises(RegistrationTypeError) as e:
        op.register_autograd(lambda ctx, grad: None, setup_context=wrong)
    assert str(e.value) == (
        f"setup_context of {op.name} has another signature than the operator calls it with\n"
        "  expected: (*, ctx, inputs, keyword_only_inputs, output)\n"
        "  got: (ctx, inputs, output) (got an unexpected keyword argument 'keyword_only_inputs')\n"
        f"  registered at: {source_of(wrong)}"
    )


def test_another_signature_of_a_dispatch_rule(op):
    def wrong(func, args):
        pass

    with pytest.raises(RegistrationTypeError) as e:
        op.register_torch_dispatch(int, wrong)
    assert str(e.value) == (
        f"the dispatch rule of {op.name} has another signature than it is called with\n"
        "  expected: (mode, func, types, args, kwargs), or without mode for a tensor class\n"
        "  got: (func, args) (too many positional arguments)\n"
        f"  registered at: {source_of(wrong)}"
    )
    op.register_torch_dispatch(int, lambda func, types, args, kwargs: None)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("fn", [3, "f", [len]])
def test_what_is_no_function(op, name, fn):
    with pytest.raises(TypeError, match="must be a function"):
        getattr(ow, name)(op, *KINDS[name][0], fn)
    assert not _made(op, KINDS[name][3])


@pytest.mark.parametrize(
    ("device_type", "dtype", "kind", "text"),
    [
        (
            "cuda",
            "int8",
            RegistrationValueError,
            "cast_inputs must be a floating dtype\n  expected: float16, ",
        ),
        (
            None,
            "float16",
            RegistrationTypeError,
            "device_type must be a string such as 'cuda'\n  got: NoneType",
        ),
        ("gpu", "float16", RegistrationError, "'gpu' is not a device type"),
    ],
)
def test_autocast_of_what_cannot_be(op, device_type, dtype, kind, text):
    with pytest.raises(kind) as e:
        ow.register_autocast(op, device_type, dtype)
    assert text in str(e.value)
    assert op._record.rules == ()


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16"), np.float16(1).dtype])
def test_97_autocast_may_be_registered_again_and_for_several_devices(op, dtype):
    one = ow.register_autocast(op, "cuda", dtype)
    ow.register_autocast(op.name, "cpu", "bfloat16")
    two = op.register_autocast("cuda", "float32")
    rules = op._record.rules_of("autocast")
    assert {rule.device_type: rule.dtype for rule in rules} == {"cuda": "float32", "cpu": "bfloat16"}
    two.destroy()
    assert op._record.rule("autocast", "cuda").dtype == "float16"
    assert one.source.startswith(__file__)


def test_69_a_kernel_for_every_device_runs_instead_of_the_body(op):
    handle = ow.register_kernel(op, None, kernel)
    np.testing.assert_array_equal(op(X), X + 2)
    handle.destroy()
    np.testing.assert_array_equal(op(X), X * 2)


def test_69_several_devices_have_one_handle(op):
    handle = ow.register_kernel(op, ("cpu", "meta"), kernel)
    assert [k.key for k in op._record.kernels[1:]] == ["CPU", "Meta"]
    handle.destroy()
    assert len(op._record.kernels) == 1


def test_70_operators_of_a_library(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        ow.register_kernel(f"{ns}::f", "cpu", lambda x: x + 1, lib=lib)
        np.testing.assert_array_equal(getattr(ow.ops, ns).f(X), X + 1)


def test_impl_abstract_is_deprecated(op):
    with pytest.warns(FutureWarning, match="impl_abstract") as caught:
        ow.impl_abstract(op, kernel)
    assert [str(w.message) for w in caught] == [
        "opwright.impl_abstract is deprecated; use opwright.register_fake"
    ]
    assert caught[0].filename == __file__
    assert op._record.rule("fake").fn is kernel


def test_a_name_that_is_no_name():
    with pytest.raises(RegistrationValueError, match="an operator's name needs a namespace"):
        ow.register_kernel("scale", "cpu", kernel)
    with pytest.raises(RegistrationTypeError, match="not an operator"):
        ow.register_kernel(scale, "cpu", kernel)


@pytest.mark.parametrize(("name", "what"), [("register_autograd", "backward"), ("register_jvp", "jvp")])
def test_a_rule_that_is_declared_away_is_refused(ns, name, what):
    def rule(ctx, *grads):
        return grads

    op = ow.custom_op(f"{ns}::scale", scale, mutates_args=(), non_differentiable=True)
    for register in (lambda: getattr(op, name)(rule), lambda: getattr(ow, name)(f"{ns}::scale", rule)):
        with pytest.raises(RegistrationError) as e:
            register()
        assert str(e.value) == (
            f"{ns}::scale is declared non_differentiable, so its {what} would never be called\n"
            f"  got: a {what} at {source_of(rule)}\n"
            f"  registered at: {op._record.source}\n"
            f"  to fix: define it without non_differentiable=True, or register no {what}"
        )
    assert op._record.rule(name.removeprefix("register_")) is None
