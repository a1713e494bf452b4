"""Host kernels from many threads at once, kernels that use JAX themselves, kernels that use torch."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow


@ow.custom_op("jaxh::square", mutates_args=())
def square(x: np.ndarray) -> np.ndarray:
    return x * x


square.register_fake(lambda x: ow.empty_like(x))
square.register_autograd(
    lambda ctx, g: 2 * ctx.saved_tensors[0] * g,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_eight_threads(wrap):
    f, slope = wrap(square), wrap(jax.grad(lambda x: square(x).sum()))

    def work(seed):
        x = jnp.asarray(np.random.default_rng(seed).normal(size=100).astype(np.float32))
        for _ in range(50):
            np.testing.assert_allclose(f(x), x * x, rtol=1e-6)
            np.testing.assert_allclose(slope(x), 2 * x, rtol=1e-6)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [True] * 8


def test_threads_meet_an_operator_for_the_first_time_together():
    for index in range(10):

        @ow.custom_op(f"jaxh::fresh{index}", mutates_args=())
        def fresh(x: np.ndarray) -> np.ndarray:
            return x + 1

        fresh.register_fake(lambda x: ow.empty_like(x))
        start = threading.Barrier(4)

        def work(_, fresh=fresh, start=start):
            start.wait()
            return float(fresh(jnp.zeros(1))[0]) + float(jax.jit(fresh)(jnp.zeros(1))[0])

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == [2.0] * 4


def test_rules_registered_while_others_call():
    @ow.custom_op("jaxh::changing", mutates_args=())
    def changing(x: np.ndarray) -> np.ndarray:
        return x * 2

    changing.register_fake(lambda x: ow.empty_like(x))
    changing.register_autograd(lambda ctx, g: g * 2)
    stop = threading.Event()
    found = []

    def call():
        while not stop.is_set():
            found.append(float(jax.grad(lambda x: changing(x).sum())(jnp.ones(1))[0]))

    thread = threading.Thread(target=call)
    thread.start()
    for factor in range(3, 8):
        ow.register_autograd(changing, lambda ctx, g, factor=factor: g * factor)
        jax.grad(lambda x: changing(x).sum())(jnp.ones(1))
    stop.set()
    thread.join()
    assert set(found) <= set(range(2, 8))
    assert jax.grad(lambda x: changing(x).sum())(jnp.ones(1))[0] == 7


_NESTED = """
import jax, jax.numpy as jnp, numpy as np, opwright as ow

inner = jax.jit(lambda x: jnp.sin(x) @ jnp.ones((300, 300)))

@ow.custom_op("nest::calls_jax", mutates_args=())
def calls_jax(x: np.ndarray) -> np.ndarray:
    return np.array(inner(np.array(x)))

@ow.custom_op("nest::calls_operator", mutates_args=())
def calls_operator(x: np.ndarray) -> np.ndarray:
    return np.array(calls_jax(jnp.array(np.array(x)))) + np.array(jax.jit(calls_jax)(np.array(x)))

for op in (calls_jax, calls_operator):
    op.register_fake(lambda x: ow.empty_like(x))
x = jnp.ones((300, 300))
f = jax.jit(lambda x: calls_jax(calls_jax(x)) + calls_operator(x))
for _ in range(20):
    out = f(x)
print(float(out[0, 0]))
"""


def test_a_kernel_that_calls_jitted_code_ends():
    done = subprocess.run(
        [sys.executable, "-c", _NESTED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    once = 300 * np.sin(1.0)
    assert abs(float(done.stdout) - (300 * np.sin(once) + 2 * once)) < 1.0


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_kernel_that_uses_torch(wrap):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    @ow.custom_op("jaxh::through_torch", mutates_args=())
    def through_torch(x: np.ndarray) -> np.ndarray:
        t = torch.from_numpy(np.array(x)).requires_grad_()
        (t @ t.T).sum().backward()
        return t.grad.numpy()

    through_torch.register_fake(lambda x: ow.empty_like(x))
    f = wrap(through_torch)
    x = jnp.ones((40, 40))

    def work(_):
        return [float(f(x)[0, 0]) for _ in range(20)]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [[80.0] * 20] * 6


def test_kernels_on_several_devices_at_once():
    f = jax.pmap(lambda x: square(square(x)))
    many = jnp.arange(8.0).reshape(4, 2)
    for _ in range(20):
        np.testing.assert_array_equal(f(many), many**4)
