"""Calls on concrete arrays: the short way gives what the general way does, whatever JAX's settings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright.frameworks.jax import eager, private
from opwright.frameworks.jax.framework import FRAMEWORK

X = jnp.asarray([0.5, -1.25, 2.0])


@ow.custom_op("jaxg::blend", mutates_args=())
def blend(x: np.ndarray, y: np.ndarray, k: float = 2.0, *, mode: str = "add") -> np.ndarray:
    return x + np.asarray(k, x.dtype) * y if mode == "add" else x - y


@ow.custom_op("jaxg::pair", mutates_args=())
def pair(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x * 2, np.argsort(x)


blend.register_fake(lambda x, y, k=2.0, *, mode="add": ow.empty_like(x))
pair.register_fake(lambda x: (ow.empty_like(x), ow.empty_like(x, dtype="int64")))


def warmed(op, *args):
    for _ in range(5):
        op(*args)
    return op._record.table[type(X)]


def general(op):
    from opwright.frameworks.jax.invoke import invoker

    return invoker(op._record, FRAMEWORK.convert)


def test_the_short_way_is_taken():
    call = warmed(blend, X, X)
    assert call.__code__.co_filename == "<opwright jaxg::blend on jax>"
    got = blend(X, X, 3)
    np.testing.assert_array_equal(got, 4 * X)
    assert got.dtype == np.float32
    assert not got.committed
    assert not got.weak_type


@pytest.mark.parametrize("k", [2, 2.5, True, np.float64(1.5), jnp.float32(4)])
@pytest.mark.parametrize("mode", ["add", "sub"])
def test_both_ways_agree_on_static_arguments(k, mode):
    short, long = warmed(blend, X, X), general(blend)
    np.testing.assert_array_equal(short(X, X, k, mode), long(X, X, k, mode))
    with pytest.raises(TypeError, match="jaxg::blend: argument k must be a number"):
        short(X, X, "2", mode)


def test_nothing_is_compiled():
    @ow.custom_op("jaxg::never", mutates_args=())
    def never(x: np.ndarray) -> np.ndarray:
        return x * 2

    x = jnp.ones(3)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    for _ in range(5):
        never(x)
    jax.monitoring.clear_event_listeners()
    assert compiled == []


def test_outputs_of_several_kinds():
    warmed(pair, X)
    doubled, order = pair(X)
    np.testing.assert_array_equal(doubled, X * 2)
    np.testing.assert_array_equal(order, [1, 0, 2])
    assert order.dtype == np.int32
    with jax.enable_x64(True):
        assert pair(X)[1].dtype == np.int64


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "float8_e4m3fn", "complex64"]
)
def test_dtypes(dtype):
    @ow.custom_op("jaxg::reversed", mutates_args=())
    def reversed_(x: np.ndarray) -> np.ndarray:
        return x[::-1].copy()

    reversed_.register_fake(lambda x: ow.empty_like(x))
    x = jnp.asarray([1, 0, 1, 1]).astype(dtype)
    for run in (
        reversed_,
        reversed_,
        jax.jit(reversed_),
        jax.vmap(reversed_, in_axes=None, axis_size=2, out_axes=None),
    ):
        got = run(x)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(x)[::-1])


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,), (3, 1, 2)])
def test_shapes(shape):
    x = jnp.ones(shape)
    for run in (blend, blend, jax.jit(blend)):
        got = run(x, x)
        assert got.shape == shape
        np.testing.assert_array_equal(got, np.full(shape, 3, np.float32))


def test_layouts():
    x = jnp.arange(6.0).reshape(2, 3).T
    for run in (blend, jax.jit(blend)):
        np.testing.assert_array_equal(run(x, x), 3 * x)

    @ow.custom_op("jaxg::turned", mutates_args=())
    def turned(x: np.ndarray) -> np.ndarray:
        return np.asfortranarray(x * 2)

    turned.register_fake(lambda x: ow.empty_like(x))
    for run in (turned, turned, turned, turned, jax.jit(turned)):
        np.testing.assert_array_equal(run(x), 2 * x)


def test_committed_arrays_stay_where_they_are():
    cpus = jax.devices("cpu")
    there = jax.device_put(X, cpus[1])
    warmed(blend, X, X)
    for args in ((there, there), (there, X), (X, there)):
        got = blend(*args)
        assert got.committed
        assert got.devices() == {cpus[1]}
    with pytest.raises(ValueError, match="incompatible devices"):
        blend(there, jax.device_put(X, cpus[2]))


def test_the_default_device_takes_uncommitted_arrays():
    cpus = jax.devices("cpu")
    warmed(blend, X, X)
    for default in (cpus[1], "cpu"):
        with jax.default_device(default):
            got = blend(X, X)
        assert got.devices() == {cpus[1] if default is cpus[1] else cpus[0]}
        assert not got.committed
    with jax.default_device(cpus[1]):
        assert blend(jax.device_put(X, cpus[2]), X).devices() == {cpus[2]}


def test_sharded_arrays():
    mesh = jax.make_mesh(
        (2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2]
    )
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    many = jax.device_put(jnp.arange(4.0), where)
    warmed(blend, X, X)
    np.testing.assert_array_equal(blend(many, many), 3 * np.arange(4))


def test_without_private_names_only_public_ones_are_used(monkeypatch):
    monkeypatch.setattr(private, "device_put", lambda: None)
    monkeypatch.setattr(private, "trace_state_clean", None)
    cpus = jax.devices("cpu")

    @ow.custom_op("jaxg::public", mutates_args=())
    def public(x: np.ndarray) -> np.ndarray:
        return x * 2

    public.register_fake(lambda x: ow.empty_like(x))
    assert warmed(public, X).__name__ == "invoke"
    got = public(X)
    np.testing.assert_array_equal(got, X * 2)
    assert not got.committed
    there = public(jax.device_put(X, cpus[1]))
    assert there.committed
    assert there.devices() == {cpus[1]}


def test_the_class_of_concrete_arrays_is_the_same_inside_a_trace():
    found = []
    jax.make_jaxpr(lambda x: found.append(private.array_class.__wrapped__()) or x)(jnp.ones(2))
    assert found == [type(jnp.ones(2))]


@pytest.mark.parametrize("size", [4, 1 << 16])
def test_public_names_alone_make_the_same_arrays(monkeypatch, size):
    monkeypatch.setattr(private, "device_put", lambda: None)
    kept = []
    x = jnp.arange(float(size))

    @ow.custom_op("jaxg::public_only", mutates_args=())
    def public_only(x: np.ndarray) -> np.ndarray:
        out = x * np.float32(2)
        kept.append(out)
        return out

    public_only.register_fake(ow.empty_like)
    assert warmed(public_only, x).__name__ == "call"
    settings = (jax.disable_jit(False), jax.disable_jit(), jax.debug_nans(True), jax.debug_infs(True))
    for setting in (*settings, jax.transfer_guard("disallow")):
        with setting:
            got = public_only(x)
        assert type(got) is private.array_class()
        assert not got.committed
        kept.pop()[...] = 99
        np.testing.assert_array_equal(got, x * 2)
    cpus = jax.devices("cpu")
    got = public_only(jax.device_put(x, cpus[1]))
    assert got.committed
    assert got.devices() == {cpus[1]}
    wrong = x * jnp.nan
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="in jaxg::public_only"):
        public_only(wrong)


def test_a_transfer_guard_lets_results_through():
    there = jax.device_put(X, jax.devices("cpu")[1])
    warmed(blend, X, X)
    with jax.transfer_guard("disallow"):
        for args in ((X, X), (there, there)):
            got = blend(*args)
            np.testing.assert_array_equal(got, 3 * np.asarray(X))
            assert got.committed == args[0].committed
            assert got.devices() == args[0].devices()
    with (
        jax.transfer_guard("disallow_explicit"),
        pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"),
    ):
        blend(X, X)


def test_traced_kernels_are_called_as_they_are():
    @ow.custom_op("jaxg::traced", mutates_args=())
    def traced(x: ow.Array, k: int = 2) -> ow.Array:
        return x * k if float(x.sum()) > 0 else -x

    for _ in range(3):
        np.testing.assert_array_equal(traced(X), X * 2)
        np.testing.assert_array_equal(traced(-X), X)
    assert (
        traced._record.table[type(X)].__code__.co_filename == "<opwright jaxg::traced on jax, traced kernel>"
    )


def test_operators_without_arrays():
    @ow.custom_op(
        "jaxg::ramp", mutates_args=(), schema="(int n, *, Device device, ScalarType dtype) -> Tensor"
    )
    def ramp(n: int, *, device, dtype) -> np.ndarray:
        assert device == "cpu"
        return np.arange(n, dtype=dtype)

    ramp.register_fake(lambda n, *, device, dtype: ow.empty((n,), dtype=dtype))
    ramp.register_kernel("cpu", ramp._record.kernels[0].fn, flavour="numpy")
    device = jax.devices("cpu")[0]
    for run in (ramp, jax.jit(ramp, static_argnames=("n", "device", "dtype"))):
        got = run(3, device=device, dtype=jnp.float32)
        assert isinstance(got, jax.Array)
        np.testing.assert_array_equal(got, [0, 1, 2])
        assert got.dtype == np.float32


def test_equal_dtypes_of_two_frameworks_decide_each_for_its_own():
    def body(n, dtype):
        return ow.empty((n,), dtype=dtype)

    schema = "(int n, ScalarType dtype) -> Tensor"
    filled = ow.custom_op("jaxg::filled", body, mutates_args=(), schema=schema)
    filled.register_kernel(None, lambda n, dtype: np.full(n, 2, dtype), flavour="numpy")
    filled.register_kernel(None, lambda n, dtype: jnp.full(n, 3, dtype), flavour="jax")
    assert jnp.float32 == np.float32
    for dtype, kind, value in [(np.float32, np.ndarray, 2), (jnp.float32, jax.Array, 3)] * 2:
        got = filled(4, dtype)
        assert isinstance(got, kind)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, [value] * 4)


def test_pickled_keys_and_donated_inputs_do_not_disturb():
    x = jnp.ones(4)
    view = np.asarray(x)
    got = blend(x, x)
    jax.jit(lambda a: a + 1, donate_argnums=0)(x)
    np.testing.assert_array_equal(got, [3] * 4)
    np.testing.assert_array_equal(view, [1] * 4)


def test_guards_cover_every_setting():
    assert eager.direct(
        blend._record, blend._record.kernels[0], "cpu", FRAMEWORK.convert, general(blend)
    ).__code__


@pytest.mark.parametrize("sizes", [range(3), np.array([1, 2], np.int8), (1, 2)])
@pytest.mark.parametrize("way", [lambda f: f, jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])[0], jax.grad])
def test_what_stands_in_the_place_of_a_list(ns, sizes, way):
    def kernel(x: ow.Array, sizes: list[int]) -> ow.Array:
        assert type(sizes) is list
        return x * sum(sizes)

    op = ow.custom_op(f"{ns}::summed", kernel, mutates_args=())
    op.register_fake(lambda x, sizes: ow.empty_like(x))
    op.register_vmap(lambda info, in_dims, x, sizes: (op(x, sizes), in_dims[0]))
    op.register_autograd(
        lambda ctx, grad: (grad * ctx.total, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "total", sum(inputs[1])),
    )
    assert [way(lambda x: op(x, sizes))(jnp.float32(1)).item() for _ in range(3)] == [3] * 3
