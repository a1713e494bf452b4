"""A parameter annotated as a tuple: kernels and rules get one in every framework and on every way to them."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest

import opwright as ow

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

GIVEN = ({}, {"at": [3, 4], "more": [1.0, 2.0], "opt": [5, 6]}, {"at": (3, 3), "opt": None})
"""Defaults; lists; a tuple, and None."""


class Seen(list):
    """What kernels and rules were called with."""

    def add(self, what, xs, at, more, opt):
        """Note the classes of one call."""
        self.append((what, type(xs), type(at), type(more), type(opt)))

    def check(self, *needed):
        """Assert that these were called, and that nothing was called with a list."""
        assert {what for what, *_ in self} >= set(needed)
        assert [entry for entry in self if not set(entry[1:]) <= {tuple, type(None)}] == []
        self.clear()


def _numpy(op):
    def kernel(
        x: np.ndarray,
        xs: tuple[np.ndarray, np.ndarray],
        at: tuple[int, int] = (2, 1),
        *,
        more: tuple[float, ...] = (1.0,),
        opt: Optional[tuple[int, int]] = (1, 2),
    ) -> np.ndarray:
        op("kernel", xs, at, more, opt)
        return x * at[0] + xs[0]

    return kernel


def _torch(op):
    def kernel(
        x: torch.Tensor,
        xs: tuple[torch.Tensor, torch.Tensor],
        at: tuple[int, int] = (2, 1),
        *,
        more: tuple[float, ...] = (1.0,),
        opt: Optional[tuple[int, int]] = (1, 2),
    ) -> torch.Tensor:
        op("kernel", xs, at, more, opt)
        return x * at[0] + xs[0]

    return kernel


def _jax(op):
    def kernel(
        x: jax.Array,
        xs: tuple[jax.Array, jax.Array],
        at: tuple[int, int] = (2, 1),
        *,
        more: tuple[float, ...] = (1.0,),
        opt: Optional[tuple[int, int]] = (1, 2),
    ) -> jax.Array:
        op("kernel", xs, at, more, opt)
        return x * at[0] + xs[0]

    return kernel


def _any(op):
    def kernel(
        x: ow.Array,
        xs: tuple[ow.Array, ow.Array],
        at: tuple[int, int] = (2, 1),
        *,
        more: tuple[float, ...] = (1.0,),
        opt: Optional[tuple[int, int]] = (1, 2),
    ) -> ow.Array:
        op("kernel", xs, at, more, opt)
        return x * at[0] + xs[0]

    return kernel


@pytest.fixture
def define(ns):
    """Define the operator with a kernel and with rules that note what they get."""

    def make(kernel):
        seen = Seen()
        op = ow.custom_op(f"{ns}::op", mutates_args=())(kernel(seen.add))

        def fake(x, xs, at, *, more, opt):
            seen.add("fake", xs, at, more, opt)
            return ow.empty_like(x)

        def setup_context(ctx, inputs, keyword_only_inputs, output):
            _, xs, ctx.at = inputs
            seen.add("setup_context", xs, ctx.at, *keyword_only_inputs.values())

        op.register_fake(fake)
        op.register_autograd(
            lambda ctx, g: {"x": g * ctx.at[0], "xs": [g, None]}, setup_context=setup_context
        )
        return op, seen

    return make


def _with_vmap(op, seen):
    @op.register_vmap
    def vmap(info, in_dims, x, xs, at, *, more, opt):
        seen.add("vmap", xs, at, more, opt)
        return op(x, xs, at, more=more, opt=opt), 0


@pytest.mark.parametrize("kwargs", GIVEN)
@pytest.mark.parametrize("kernel", [_numpy, _torch, _jax, _any])
def test_numpy(define, kernel, kwargs):
    op, seen = define(kernel)
    x = np.ones(3, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(op(x, [x, x], **kwargs), x * (4 if "at" in kwargs else 3))
        seen.check("kernel")
    ow.vjp(op, x, [x, x], **kwargs)[1](x)
    seen.check("kernel", "setup_context")

    class Mode(ow.DispatchMode):
        def __torch_dispatch__(self, func, types, args, kwargs):
            named = {"at": (2, 1), **dict(zip(("x", "xs", "at"), args, strict=False)), **kwargs}
            seen.add("mode", tuple(named["xs"]), tuple(np.ravel(named["at"])), named["more"], named["opt"])
            return func(*args, **kwargs)

    with Mode():
        op(x, [x, x], **kwargs)
    seen.check("kernel", "mode")


@pytest.mark.parametrize("kwargs", GIVEN)
def test_numpy_vmap_rule(define, kwargs):
    op, seen = define(_numpy)
    _with_vmap(op, seen)
    x = np.ones(3)
    ow.vmap(op, in_dims=(0, None, None))(np.ones((2, 3)), [x, x], kwargs.get("at", (2, 1)))
    seen.check("kernel", "vmap")


@pytest.mark.parametrize("kwargs", GIVEN)
@pytest.mark.parametrize("kernel", [_numpy, _torch, _jax, _any])
def test_torch(define, ns, kernel, kwargs):
    op, seen = define(kernel)
    x, leaf = torch.ones(3), torch.ones(3, requires_grad=True)
    for _ in range(2):
        assert torch.equal(op(x, [x, x], **kwargs), x * (4 if "at" in kwargs else 3))
        seen.check("kernel")
        op(leaf, [x, x], **kwargs).sum().backward()
        seen.check("kernel", "setup_context")
    torch.func.grad(lambda one: op(one, [x, x], **kwargs).sum())(x)
    seen.check("kernel", "setup_context")
    # Torch cannot write the default of an optional list.
    getattr(torch.ops, ns).op(x, [x, x], **{"opt": None, **kwargs})
    seen.check("kernel")
    if kernel is _jax:
        return  # its fake is written with JAX
    op(x.to("meta"), [x.to("meta")] * 2, **kwargs)
    seen.check("fake")
    torch.compiler.reset()  # the operator is another for each case
    compiled = torch.compile(lambda one: op(one, [x, x], **kwargs), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), x * (4 if "at" in kwargs else 3))
    seen.check("fake", "kernel")


@pytest.mark.parametrize("kernel", [_numpy, _torch, _any])
def test_torch_vmap_rule(define, kernel):
    op, seen = define(kernel)
    _with_vmap(op, seen)
    x = torch.ones(3)
    torch.vmap(lambda one: op(one, [x, x], [3, 4], more=[1.0]))(torch.ones(2, 3))
    seen.check("kernel", "vmap")


def test_torch_dispatch_rule_of_a_mode_and_a_kernel_at_a_key(define, ns):
    from torch.utils._python_dispatch import TorchDispatchMode

    op, seen = define(_torch)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    @op.register_torch_dispatch(Mode)
    def rule(mode, func, types, args, kwargs):
        seen.add("mode", (), args[2], kwargs["more"], kwargs["opt"])
        return func(*args, **kwargs)

    x = torch.ones(3)
    with Mode():
        op(x, [x, x], [3, 4], more=[2.0], opt=[5, 6])
    seen.check("mode", "kernel")
    lib = ow.Library(ns, "IMPL")
    lib.impl("op", _torch(lambda _, *call: seen.add("at a key", *call)), "AutogradCPU")
    op(x, [x, x], [3, 4], more=[2.0], opt=[5, 6])
    seen.check("at a key")


@pytest.mark.parametrize("kwargs", GIVEN)
@pytest.mark.parametrize("kernel", [_numpy, _torch, _jax, _any])
def test_jax(define, kernel, kwargs):
    op, seen = define(kernel)
    x = jax.numpy.ones(3)
    right = np.full(3, 4.0 if "at" in kwargs else 3.0)
    for _ in range(2):
        np.testing.assert_array_equal(op(x, [x, x], **kwargs), right)
        seen.check("kernel")
    np.testing.assert_array_equal(jax.jit(lambda one: op(one, [x, x], **kwargs))(x), right)
    seen.check("kernel", "fake")
    jax.grad(lambda one: op(one, [x, x], **kwargs).sum())(x)
    seen.check("kernel", "setup_context")


def test_jax_vmap_rule(define):
    op, seen = define(_jax)
    _with_vmap(op, seen)
    x = jax.numpy.ones(3)
    jax.vmap(lambda one: op(one, [x, x], [3, 4], more=[1.0]))(jax.numpy.ones((2, 3)))
    seen.check("kernel", "vmap")


def test_an_index_is_one_index(ns):
    @ow.custom_op(f"{ns}::pick", mutates_args=())
    def pick(x: np.ndarray, at: tuple[int, int] = (0, 1)) -> np.ndarray:
        return np.array(x[at])

    pick.register_fake(lambda x, at=(0, 1): x.new_empty(()))
    x = np.arange(9.0).reshape(3, 3)
    assert pick(x) == pick(x, [0, 1]) == x[0, 1]
    assert pick(torch.from_numpy(x)) == x[0, 1]
    assert jax.jit(pick)(jax.numpy.asarray(x)) == x[0, 1]
    # There is no such element in a smaller array, which no fake can know.
    assert ow.opcheck(pick, (x, (1, 2))).ok


def test_a_mutated_tuple_of_arrays(ns):
    @ow.custom_op(f"{ns}::fill", mutates_args={"xs"})
    def fill(xs: tuple[np.ndarray, np.ndarray], to: tuple[float, float]) -> None:
        assert type(xs) is tuple
        assert type(to) is tuple
        for x, value in zip(xs, to, strict=True):
            x[:] = value

    a, b = np.zeros(2), np.zeros(2)
    fill([a, b], [1.0, 2.0])
    assert (a.tolist(), b.tolist()) == ([1.0, 1.0], [2.0, 2.0])
    s, t = torch.zeros(2), torch.zeros(2)
    fill((s, t), (1.0, 2.0))
    assert (s.tolist(), t.tolist()) == ([1.0, 1.0], [2.0, 2.0])

    @jax.jit
    def run(x):
        r, s = jax.new_ref(x), jax.new_ref(x)
        fill([r, s], [1.0, 2.0])
        return r[...], s[...]

    one, two = run(jax.numpy.zeros(2))
    assert (one.tolist(), two.tolist()) == ([1.0, 1.0], [2.0, 2.0])


def test_a_list_stays_a_list(ns):
    found = []

    @ow.custom_op(f"{ns}::op", mutates_args=())
    def op(x: np.ndarray, sizes: list[int]) -> np.ndarray:
        found.append(type(sizes))
        return x + 1

    op(np.ones(2), (1, 2))
    op(torch.ones(2), (1, 2))
    op(jax.numpy.ones(2), (1, 2))
    assert found == [list, list, list]
