"""Kernels and rules that write to what they may not: JAX's arrays stay as they are."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opwright as ow
from opwright.errors import AliasError
from opwright.frameworks.jax import ffi
from opwright.outputs import CHECKED_CALLS

torch = pytest.importorskip("torch", reason="torch is not installed")

WAYS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0],
    "jit of vmap": lambda f: jax.jit(lambda x: jax.vmap(f)(x[None])[0]),
}


COPY = "a write to a copy"
OWN = "a write to what may be memory of JAX: its values have changed"


@pytest.fixture(params=[pytest.param(True, id="tvm-ffi"), pytest.param(False, id="buffers")], autouse=True)
def _route(request, monkeypatch):
    if request.param and not ffi.installed():
        pytest.skip("the extra tvm-ffi is not installed")
    monkeypatch.setattr(ffi, "enabled", request.param)


class Writing:
    """Whether the operator below writes to its argument ``y``."""

    on = False


@ow.custom_op("jaxinputs::last", mutates_args=())
def last(xs: list[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    if Writing.on:
        y -= 1
    return xs[0] + y


last.register_fake(lambda xs, y: torch.empty_like(y))


@pytest.fixture
def writing(monkeypatch):
    # A registration begins the first calls anew.
    handle = last.register_autocast("xpu", "float16")
    monkeypatch.setattr(Writing, "on", True)
    yield
    handle.destroy()


def refused(call, got, what="kernel of jaxinputs::last wrote to argument y, which it may not mutate"):
    """Return the rest of the message; a compiled program has it in the text of its own error."""
    with pytest.raises((AliasError, jax.errors.JaxRuntimeError, ValueError), match=re.escape(what)) as caught:
        call()
    lines = str(caught.value).partition(what)[2].splitlines()
    assert lines[1:3] == ["  expected: inputs left as they are: arrays of JAX are immutable", f"  got: {got}"]
    return lines[3:5]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("writing")
@pytest.mark.filterwarnings("ignore:.*no vmap rule")
def test_a_kernel_that_writes_to_an_input_is_refused_and_reaches_no_array_of_jax(way):
    x = jnp.arange(3.0)
    run = WAYS[way](lambda x: last([x], x * 1) if way == "eager" else last([x], x))
    for _ in range(CHECKED_CALLS + 2):
        rest = refused(lambda: run(x).block_until_ready(), COPY)
        assert rest[0].startswith(f"  registered at: {__file__}:")
        assert rest[1:] == ["  to fix: write to a copy of it, or declare it in mutates_args"]
        assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:.*no vmap rule")
def test_a_kernel_that_writes_later_is_refused_too(way, monkeypatch):
    x = jnp.arange(3.0)
    run = WAYS[way](lambda x: last([x], x))
    for _ in range(CHECKED_CALLS + 1):
        assert run(x).tolist() == [0, 2, 4]
    monkeypatch.setattr(Writing, "on", True)
    refused(lambda: run(x).block_until_ready(), OWN)


def test_a_declared_write_is_none_to_an_input():
    @ow.custom_op("jaxinputs::halve_", mutates_args=("y",))
    def halve_(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y /= 2
        return x + y

    halve_.register_fake(lambda x, y: torch.empty_like(x))
    x = jnp.arange(3.0)
    for _ in range(CHECKED_CALLS + 1):
        out, new = jax.jit(halve_)(x, x)
        assert (out.tolist(), new.tolist()) == ([0, 1.5, 3], [0, 0.5, 1])
    assert x.tolist() == [0, 1, 2]


def test_a_kernel_in_inference_mode_reaches_no_array_of_jax(monkeypatch):
    x = jnp.arange(3.0)
    with torch.inference_mode():
        for _ in range(CHECKED_CALLS + 1):
            assert last([x], x).tolist() == [0, 2, 4]
        monkeypatch.setattr(Writing, "on", True)
        with pytest.raises(AliasError, match="wrote to argument y"):
            last([x], x)
    assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize("way", ["eager", "jit"])
def test_a_backward_that_writes_to_what_it_is_given_is_refused(way):
    @ow.custom_op(f"jaxinputs::scaled_{way}", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    scaled.register_fake(lambda x: torch.empty_like(x))

    @scaled.register_autograd
    def rule(ctx, grad: torch.Tensor):
        return grad.mul_(2)

    grad = WAYS[way](jax.grad(lambda x: scaled(x).sum()))
    what = f"backward of {scaled.name} wrote to the gradient of output 0, which it may not mutate"
    rest = refused(lambda: grad(jnp.arange(3.0)).block_until_ready(), OWN, what)
    assert rest[1:] == ["  to fix: write to a copy of it"]


# ---------------------------------------------------------------- functions that take any array by DLPack


class Reader:
    """What the functions below read their argument by."""

    by = staticmethod(np.from_dlpack)
    seen: list = []


class BeforeOne:
    """An array as a reader of DLPack before version 1.0 asks for it: no capsule of such says read-only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


READERS = {
    "numpy": np.from_dlpack,
    "torch": torch.from_dlpack,  # takes no notice of what the capsule says
    "before 1.0": lambda x: torch.from_dlpack(BeforeOne(x)),
    "itself": lambda x: x,
}


@pytest.fixture
def doubled(ns):
    op = ow.custom_op(
        f"{ns}::doubled", double, mutates_args=(), schema="(Tensor x) -> Tensor", flavour="dlpack"
    )
    op.register_fake(ow.empty_like)
    return op


def double(x):
    array = Reader.by(x)
    Reader.seen.append(getattr(getattr(array, "flags", None), "writeable", None))
    if Writing.on:
        array *= 2
        return array + 0
    return array * 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.filterwarnings("ignore:.*no vmap rule")
def test_a_function_by_dlpack_reads_jax_arrays(doubled, way, reader, monkeypatch):
    monkeypatch.setattr(Reader, "by", staticmethod(READERS[reader]))
    monkeypatch.setattr(Reader, "seen", [])
    x = jnp.arange(3.0)
    run = WAYS[way](doubled)
    for _ in range(CHECKED_CALLS + 2):
        assert run(x).tolist() == [0, 2, 4]
    if reader in ("numpy", "itself"):
        assert Reader.seen[CHECKED_CALLS:] == [False] * 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.filterwarnings("ignore:.*no vmap rule")
def test_a_function_by_dlpack_that_writes_to_an_input_is_refused(doubled, way, reader, monkeypatch):
    monkeypatch.setattr(Reader, "by", staticmethod(READERS[reader]))
    monkeypatch.setattr(Writing, "on", True)
    x = jnp.arange(3.0)
    run = WAYS[way](doubled)
    for _ in range(CHECKED_CALLS + 2):
        what = f"kernel of {doubled.name} wrote to argument x, which it may not mutate"
        rest = refused(lambda: run(x).block_until_ready(), COPY, what)
        assert rest[1:] == ["  to fix: write to a copy of it, or declare it in mutates_args"]
        assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reader", ["numpy", "before 1.0", "itself"])
@pytest.mark.filterwarnings("ignore:.*no vmap rule")
def test_a_function_by_dlpack_that_writes_later_reaches_no_array_of_jax(doubled, way, reader, monkeypatch):
    monkeypatch.setattr(Reader, "by", staticmethod(READERS[reader]))
    x = jnp.arange(3.0)
    run = WAYS[way](doubled)
    for _ in range(CHECKED_CALLS):
        assert run(x).tolist() == [0, 2, 4]
    monkeypatch.setattr(Writing, "on", True)
    if reader == "before 1.0":  # it has a copy
        assert run(x).tolist() == [0, 2, 4]
    else:
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="read-only"):
            run(x).block_until_ready()
    assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("way", ["eager", "jit"])
def test_a_function_by_dlpack_writes_to_what_it_mutates(ns, way, reader, monkeypatch):
    monkeypatch.setattr(Reader, "by", staticmethod(READERS[reader]))

    def add_(x, y):
        out = Reader.by(y)
        out += Reader.by(x)

    schema = "(Tensor x, Tensor(a!) y) -> ()"
    op = ow.custom_op(f"{ns}::add_", add_, mutates_args=("y",), schema=schema, flavour="dlpack")
    op.register_fake(lambda x, y: None)
    x, y = jnp.arange(3.0), jnp.ones(3)
    run = WAYS[way](op)
    for _ in range(CHECKED_CALLS + 2):
        assert run(x, y).tolist() == [1, 2, 3]
    assert (x.tolist(), y.tolist()) == ([0, 1, 2], [1, 1, 1])
