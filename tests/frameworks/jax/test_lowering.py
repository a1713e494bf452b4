"""What an operator becomes in a program: the kernel's own operations, or one call of a host kernel."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright.errors import UnsupportedError
from opwright.frameworks.jax import callbacks, ffi, lowering
from opwright.frameworks.jax.call import Call
from opwright.frameworks.jax.framework import FRAMEWORK
from opwright.frameworks.jax.vmap import NoVmapRuleWarning
from opwright.outputs import CHECKED_CALLS

X = jnp.asarray([0.5, -1.25, 2.0])
_counter = iter(range(1000))


def stablehlo(f, *args):
    text = jax.jit(f).lower(*args).as_text()
    return re.sub(r"@jit_\w+|@\w+\(", "@f(", re.sub(r"module @\w+", "module", text))


@ow.custom_op("jaxl::mixture", mutates_args=())
def mixture(x: ow.Array, y: ow.Array, k: float = 2.0) -> ow.Array:
    xp = ow.array_namespace(x)
    return xp.sin(x) * y + xp.where(x > 0, xp.exp(y), k * x).sum(axis=-1, keepdims=True)


def plain(x, y, k=2.0):
    return jnp.sin(x) * y + jnp.where(x > 0, jnp.exp(y), k * x).sum(axis=-1, keepdims=True)


def test_an_array_api_kernel_is_the_program_that_one_would_write():
    mixture_text, plain_text = stablehlo(mixture, X, X), stablehlo(plain, X, X)
    assert "stablehlo.sine" in mixture_text
    assert mixture_text == plain_text


def test_a_jax_kernel_is_the_program_that_one_would_write():
    kernel = ow.custom_op(
        "jaxl::jax_mixture", mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor", flavour="jax"
    )(lambda x, y: plain(x, y))
    assert stablehlo(kernel, X, X) == stablehlo(lambda x, y: plain(x, y), X, X)


def test_the_operator_has_its_own_name_in_a_jaxpr():
    assert re.search(
        r"jaxl\.mixture\[call=\(k=3\.0\)\]", str(jax.make_jaxpr(lambda x: mixture(x, x, 3.0))(X))
    )
    assert "jaxl.host_loop" in str(jax.make_jaxpr(jax.vmap(lambda x: host_looped()(x)))(jnp.stack([X, X])))


def host_looped():
    @ow.custom_op("jaxl::host", mutates_args=())
    def host(x: np.ndarray) -> np.ndarray:
        return x * 2

    host.register_fake(lambda x: ow.empty_like(x))
    host.register_vmap(lambda info, in_dims, x: (host(x), in_dims[0]))
    destroy = ow.register_vmap(host, lambda info, in_dims, x: (x, 0), flavour="numpy")
    return lambda x: looped(host, destroy, x)


def looped(host, destroy, x):
    with pytest.warns(NoVmapRuleWarning, match="its vmap rule is of flavour numpy, which JAX cannot trace"):
        out = host(x)
    destroy.destroy()
    return out


@pytest.fixture(params=["tvm-ffi", "buffer_callback", "pure_callback"])
def route(request, monkeypatch):
    if request.param == "tvm-ffi":
        if not ffi.installed():
            pytest.skip("the extra tvm-ffi is not installed")
    else:
        monkeypatch.setattr(ffi, "enabled", False)
    if request.param == "pure_callback":
        monkeypatch.setattr(callbacks, "has_buffers", lambda: False)
    return request.param


TARGETS = {
    "tvm-ffi": r"@opwright\.jaxl\.",
    "buffer_callback": "@xla_buffer_python_cpu_callback",
    "pure_callback": "@xla_ffi_partitioned_python_cpu_callback|@xla_ffi_python_cpu_callback",
}


def routed(name):
    @ow.custom_op(f"jaxl::{name}", mutates_args=())
    def op(
        x: np.ndarray, xs: list[np.ndarray], k: float = 2.0, flag: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        total = x * np.asarray(k, x.dtype)
        for one in xs:
            total = total + one.astype(x.dtype)
        return total, np.asarray(flag)

    op.register_fake(lambda x, xs, k=2.0, flag=False: (ow.empty_like(x), x.new_empty((), dtype="bool")))
    return op


def test_every_route_gives_the_same(route):
    op = routed(f"routed_{route.replace('-', '_')}")
    f = lambda x, y: op(x, [y, y + 1], 3.0, True)  # noqa: E731
    y = jnp.asarray([1, 2, 3])
    assert re.search(TARGETS[route], jax.jit(f).lower(X, y).as_text())
    total, flag = jax.jit(f)(X, y)
    np.testing.assert_array_equal(total, X * 3 + 2 * y + 1)
    assert flag
    with pytest.warns(NoVmapRuleWarning):
        many = jax.jit(jax.vmap(f))(jnp.stack([X, 2 * X]), jnp.stack([y, y]))
    np.testing.assert_array_equal(many[0][1], X * 6 + 2 * y + 1)


def test_a_route_takes_what_it_can(route):
    @ow.custom_op(f"jaxl::complex_{route.replace('-', '_')}", mutates_args=())
    def op(x: np.ndarray) -> np.ndarray:
        return np.conj(x)

    op.register_fake(lambda x: ow.empty_like(x))
    x = X + 1j
    text = jax.jit(op).lower(x).as_text()
    assert re.search(TARGETS["buffer_callback" if route == "tvm-ffi" else route], text)
    np.testing.assert_array_equal(jax.jit(op)(x), np.conj(x))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "complex64", "int8", "bool"])
def test_a_numpy_kernel_gets_read_only_views(dtype, shape, route):
    seen = []

    @ow.custom_op(f"jaxl::seen{next(_counter)}", mutates_args=(), schema="(Tensor x) -> Tensor")
    def op(x: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
        seen.append((type(x), x.dtype, x.shape, x.flags.writeable))
        if out is None:
            return x.copy()
        seen.append((type(out), out.dtype, out.shape, not out.flags.writeable))
        out[...] = x
        return out

    op.register_fake(ow.empty_like)
    x = jnp.ones(shape, dtype)
    run = jax.jit(op)
    for _ in range(CHECKED_CALLS + 2):
        np.testing.assert_array_equal(run(x), x)
    assert seen
    assert set(seen) == {(np.ndarray, np.dtype(jnp.dtype(dtype)), shape, False)}


PACKED = ["int2", "uint2", "int4", "uint4", "float4_e2m1fn"]
"""Dtypes of which XLA keeps several elements in each byte."""


@pytest.mark.parametrize("dtype", PACKED)
def test_elements_narrower_than_a_byte(dtype, route):
    name = f"{dtype}_{route.replace('-', '_')}"

    @ow.custom_op(f"jaxl::back_{name}", mutates_args=())
    def back(x: np.ndarray, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x[::-1].astype(like.dtype), x[::-1].astype(np.float32)

    back.register_fake(lambda x, like: (ow.empty_like(like), x.new_empty(x.shape, dtype="float32")))

    @ow.custom_op(f"jaxl::back_in_place_{name}", mutates_args={"x"})
    def back_(x: np.ndarray) -> None:
        x[...] = x[::-1].copy()

    def in_place(x):
        ref = jax.new_ref(x)
        back_(ref)
        return ref[...]

    wide = jnp.asarray([0.0, 1.0, 1.0])
    x = wide.astype(dtype)
    xs = jnp.stack([wide, wide]).astype(dtype)  # JAX 0.9 aborts the process where it stacks int2 itself
    assert re.search(TARGETS["pure_callback"], jax.jit(back).lower(x, x).as_text())
    calls = [
        lambda: back(x, x),
        lambda: back(x, wide),
        lambda: back(wide, x),
        lambda: (in_place(x), back_(x)),
    ]
    calls.append(lambda: jax.lax.scan(lambda c, x: (c, back(x, x)[0]), 0, xs)[1])
    for call in calls:
        for one in jax.tree.leaves(jax.jit(call)()):
            np.testing.assert_array_equal(one.astype(np.float32), np.broadcast_to([1, 1, 0], one.shape))
    with pytest.warns(NoVmapRuleWarning):
        rows, _ = jax.jit(jax.vmap(back))(xs, xs)
    np.testing.assert_array_equal(rows.astype(np.float32), [[1, 1, 0]] * 2)


@pytest.mark.parametrize("dtype", PACKED)
def test_elements_narrower_than_a_byte_of_an_operator_without_outputs(dtype):
    seen = []

    @ow.custom_op(f"jaxl::seen_{dtype}", mutates_args=())
    def keep(x: np.ndarray) -> None:
        seen.append((x.dtype, x.astype(np.float32).tolist()))

    x = jnp.asarray([0.0, 1.0, 1.0]).astype(dtype)
    keep(x)
    jax.jit(keep)(x)
    jax.effects_barrier()
    assert seen == [(np.dtype(jnp.dtype(dtype)), [0, 1, 1])] * 2


@pytest.mark.parametrize("dtype", PACKED)
def test_every_value_narrower_than_a_byte_comes_through(dtype, route):
    every = np.arange(2 ** (jnp.finfo if "float" in dtype else jnp.iinfo)(dtype).bits, dtype=np.uint8)
    values = (every if dtype.startswith("u") else every.view(np.int8)).astype(np.float32)
    if dtype.startswith("float"):
        values = np.unique(values.astype(jnp.dtype(dtype)))

    @ow.custom_op(f"jaxl::same_{dtype}_{route.replace('-', '_')}", mutates_args=())
    def same(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x.copy(), x.astype(np.float32)

    same.register_fake(lambda x: (ow.empty_like(x), x.new_empty(x.shape, dtype="float32")))
    x = jnp.asarray(values).astype(dtype)
    for one in jax.jit(same)(x):
        np.testing.assert_array_equal(np.asarray(one).astype(np.float32), np.asarray(x).astype(np.float32))


def test_elements_narrower_than_a_byte_on_a_gpu():
    plan = callbacks.Plan("jaxl::packed", "torch", lambda arrays, outs: list(arrays), "kernel.py:3")
    avals = [jax.core.ShapedArray((3,), jnp.dtype("int4"))]
    with pytest.raises(UnsupportedError) as caught:
        lowering.traceable(plan, "cuda", avals, avals, target=None, export=False)
    assert str(caught.value) == (
        "jaxl::packed: a torch kernel cannot have GPU buffers of int4: XLA keeps several elements in each "
        "byte\n"
        "  expected: arrays whose elements take whole bytes\n"
        "  registered at: kernel.py:3\n"
        "  to fix: convert the arguments first, x.astype('int8') for example, or register a kernel of "
        "flavour jax"
    )


def test_failures_on_every_route(route):
    @ow.custom_op(f"jaxl::failing_{route.replace('-', '_')}", mutates_args=())
    def failing(x: np.ndarray) -> np.ndarray:
        raise ArithmeticError("no such number")

    failing.register_fake(lambda x: ow.empty_like(x))
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(failing)(X)
    assert (
        f"kernel of {failing.name} raised ArithmeticError: no such number\n"
        f"  registered at: {failing._record.source} (numpy)\nTraceback"
    ) in str(caught.value)
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(X), X + 1)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_kernel_may_write_into_what_it_is_given(route, outputs):
    given = []

    def one(x, *, out=None):
        given.append(out is None)
        return np.multiply(x, 2, out=out)

    def two(x, *, out=None):
        given.append(out is None)
        first, second = (None, None) if out is None else out
        return np.multiply(x, 2, out=first), np.multiply(x, 3, out=second)

    returns = "Tensor" if outputs == 1 else "(Tensor, Tensor)"
    op = ow.custom_op(
        f"jaxl::into{outputs}_{route.replace('-', '_')}",
        mutates_args=(),
        schema=f"(Tensor x) -> {returns}",
        flavour="numpy",
    )(one if outputs == 1 else two)
    op.register_fake(lambda x: ow.empty_like(x) if outputs == 1 else (ow.empty_like(x), ow.empty_like(x)))
    eager, jitted = op(X), jax.jit(op)(X)
    assert given == [True, False]
    for got in (eager, jitted):
        first, *second = got if outputs == 2 else (got,)
        np.testing.assert_array_equal(first, X * 2)
        if second:
            np.testing.assert_array_equal(second[0], X * 3)
    many = jax.jit(jax.vmap(op, in_axes=0))
    with pytest.warns(NoVmapRuleWarning):
        got = many(jnp.stack([X, X + 1]))
    np.testing.assert_array_equal((got if outputs == 1 else got[0])[1], (X + 1) * 2)


def test_an_argument_named_out_is_an_argument():
    op = ow.custom_op(
        "jaxl::has_out", mutates_args=(), schema="(Tensor x, Tensor? out=None) -> Tensor", flavour="numpy"
    )(lambda x, out=None: x * 2 if out is None else x + out)
    op.register_fake(lambda x, out=None: ow.empty_like(x))
    np.testing.assert_array_equal(jax.jit(op)(X), X * 2)
    np.testing.assert_array_equal(jax.jit(op)(X, X), X * 2)


def test_the_route_is_told():
    record = routed("told")._record
    plan = Call(record, (0, (1,), 2.0, False)).plan("cpu")
    assert lowering.route(plan, "cpu", [np.dtype("float32")], None) == "buffer_callback"
    target = Call(record, (0, (1,), 2.0, False)).target()
    wanted = "tvm-ffi" if ffi.installed() else "buffer_callback"
    assert lowering.route(plan, "cpu", [np.dtype("float32")], target) == wanted
    assert lowering.route(plan, "cpu", [np.dtype("complex64")], target) == "buffer_callback"
    inlined = Call(mixture._record, (0, 1, 2.0)).plan("cpu")
    assert lowering.route(inlined, "cpu", [np.dtype("float32")], None) == "inlined"


@pytest.mark.parametrize(
    "value", [None, True, 3, -0.0, float("nan"), 1 + 2j, "é", [1, [2.5]], (1, (None, "x")), np.dtype("int8")]
)
def test_static_arguments_as_text(value):
    back = ffi.value_of(ffi.text(value))
    assert type(back) is type(value)
    assert repr(back) == repr(value)
    assert ffi.text(object()) is None


def test_the_routes_of_an_operator():
    host = "tvm-ffi" if ffi.installed() else "buffer_callback"
    record = routed("shown")._record
    assert FRAMEWORK.routes(record) == {
        "cpu": f"{host}, a copy of the results alone (numpy, {record.source})"
    }
    inlined = f"inlined (array_api, {mixture._record.source})"
    assert FRAMEWORK.routes(mixture._record) == dict.fromkeys(("cpu", "cuda", "tpu"), inlined)
