"""Random operators under vmap do what torch's own random functions do with ``randomness``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd, jvp, vmap

import opwright as ow
from opwright.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*has no vmap rule")
NS = "torch_vmap_random"
RANDOM = "nondeterministic_seeded"
ONES = torch.ones(30)


@ow.custom_op(f"{NS}::looped", mutates_args=(), tags=RANDOM)
def looped(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape)


looped.register_fake(torch.empty_like)


@ow.custom_op(f"{NS}::ruled", mutates_args=(), tags=RANDOM)
def ruled(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape)


ruled.register_fake(torch.empty_like)


@ruled.register_vmap
def _(info, in_dims, x):
    x = x.movedim(in_dims[0], 0)
    return x * torch.rand(x.shape if info.randomness == "different" else x.shape[1:]), 0


@ow.custom_op(f"{NS}::made", mutates_args=(), tags=RANDOM, flavour="torch")
def made(size: int) -> Tensor:
    return torch.rand(size)


@ow.custom_op(f"{NS}::joined", mutates_args=(), tags=RANDOM)
def joined(k: int, xs: list[Tensor], y: Tensor | None = None) -> Tensor:
    return k * xs[0] * torch.rand(xs[0].shape)


@joined.register_vmap
def _(info, in_dims, k, xs, y):
    assert in_dims == (None, [0, None], None)
    assert [one.shape[0] for one in xs] == [info.batch_size, 30]
    return k * xs[0] * torch.rand(xs[0].shape), 0


@ow.custom_op(f"{NS}::filled", mutates_args=("x",), tags=RANDOM)
def filled(x: Tensor) -> None:
    x.copy_(torch.rand(x.shape))


@ow.custom_op(f"{NS}::plain", mutates_args=())
def plain(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture(params=["operator", "torch.ops"])
def route(request):
    if request.param == "operator":
        return lambda op: op
    return lambda op: getattr(torch.ops.torch_vmap_random, op.name.partition("::")[2])


def _unbatched(call):
    """Return a function of a batched argument in which a call has none that is batched."""
    return lambda y: call(ONES) + 0 * y


def _calls(route):
    return {
        "looped": route(looped),
        "ruled": route(ruled),
        "made": lambda x: route(made)(30),
        "joined": lambda x: route(joined)(1, [x, x]),
        "torch.rand": lambda x: torch.rand(30),
        "torch.rand_like": torch.rand_like,
    }


every_call = pytest.mark.parametrize("name", _calls(lambda op: op))


@every_call
def test_unbatched_arguments(route, name):
    function = _unbatched(_calls(route)[name])
    batch = torch.zeros(3, 30)
    with pytest.raises(RuntimeError, match="random"):  # NotImplementedError is one
        vmap(function)(batch)
    first, second, third = vmap(function, randomness="same")(batch)
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    first, second, third = vmap(function, randomness="different")(batch)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


@pytest.mark.parametrize("name", ["looped", "ruled", "torch.rand_like"])
def test_batched_arguments(route, name):
    call = _calls(route)[name]
    batch = torch.ones(2, 30)
    with pytest.raises(RuntimeError, match="random"):
        vmap(call)(batch)
    first, second = vmap(call, randomness="different")(batch)
    assert not torch.equal(first, second)
    if name != "looped":
        first, second = vmap(call, randomness="same")(batch)
        assert torch.equal(first, second)


@pytest.mark.parametrize("inner", ["error", "same", "different"])
@pytest.mark.parametrize("outer", ["error", "same", "different"])
@every_call
def test_nested(route, name, outer, inner):
    call = _calls(route)[name]

    def function(rows):
        return vmap(lambda y: call(ONES) + 0 * y, randomness=inner)(rows)

    if "error" in (outer, inner):
        with pytest.raises(RuntimeError, match="random"):
            vmap(function, randomness=outer)(torch.zeros(2, 2, 30))
        return
    out = vmap(function, randomness=outer)(torch.zeros(2, 2, 30))
    assert torch.equal(out[0, 0], out[0, 1]) is (inner == "same")
    assert torch.equal(out[0, 0], out[1, 0]) is (outer == "same")


def test_an_inner_batch_of_one_draw_for_each_outer_element(route):
    def function(x):
        return vmap(lambda y: route(looped)(x) + 0 * y, randomness="same")(torch.zeros(2, 30))

    out = vmap(function, randomness="different")(torch.ones(2, 30))
    assert torch.equal(out[:, 0], out[:, 1])
    assert not torch.equal(out[0], out[1])


def test_what_is_mutated(route):
    call = route(filled)

    def unbatched(y):
        x = torch.zeros(30)
        call(x)
        return x + 0 * y

    def batched(x):
        call(x)
        return x

    first, second = vmap(batched, randomness="different")(torch.zeros(2, 30))
    assert not torch.equal(first, second)
    first, second = vmap(unbatched, randomness="same")(torch.zeros(2, 30))
    assert torch.equal(first, second)
    with pytest.raises(UnsupportedError) as error:
        vmap(unbatched, randomness="different")(torch.zeros(2, 30))
    assert str(error.value) == (
        f"vmap of {NS}::filled: argument x is mutated and not batched, and randomness is 'different'\n"
        "  expected: in_dims that batch x too: it has no room for a draw for each element\n"
        f"  registered at: {filled._record.source}\n"
        "  to fix: expand and clone x to the batch first, or say randomness='same'"
    )


def test_what_is_refused_says_so(route):
    with pytest.raises(UnsupportedError) as error:
        vmap(_unbatched(route(looped)))(torch.zeros(2, 30))
    assert str(error.value) == (
        f"vmap of {NS}::looped: it is random, and randomness is 'error'\n"
        f"  registered at: {looped._record.source}\n"
        "  to fix: say randomness='different' (one draw for each element) or randomness='same'"
    )
    with pytest.raises(UnsupportedError) as error:
        vmap(route(looped), randomness="same")(torch.ones(2, 30))
    assert str(error.value) == (
        f"vmap of {NS}::looped: one draw for all elements needs a batching rule\n"
        f"  registered at: {looped._record.source}\n"
        f"  to fix: register one: @opwright.register_vmap('{NS}::looped')"
    )


def test_other_transforms_and_empty_batches(route):
    def tangent(y):
        return jvp(lambda z: route(looped)(ONES) * z, (y,), (y,))[1]

    with pytest.raises(UnsupportedError, match="it is random"):
        vmap(tangent)(torch.ones(2, 30))
    first, second = vmap(tangent, randomness="different")(torch.ones(2, 30))
    assert not torch.equal(first, second)
    with pytest.raises(UnsupportedError, match="it is random"):
        jacfwd(lambda z: route(looped)(ONES) * z)(ONES)
    assert vmap(_unbatched(route(looped)), randomness="different")(torch.ones(0, 30)).shape == (0, 30)


@pytest.mark.parametrize("name", ["looped", "ruled"])
def test_compiled(route, name):
    call = _calls(route)[name]

    def program(batch, randomness):
        return vmap(_unbatched(call), randomness=randomness)(batch)

    torch.compiler.reset()  # compilations are counted for the program's code
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    first, second = compiled(torch.zeros(2, 30), "different")
    assert not torch.equal(first, second)
    first, second = compiled(torch.zeros(2, 30), "same")
    assert torch.equal(first, second)
    with pytest.raises(Exception, match="it is random"):
        compiled(torch.zeros(2, 30), "error")


def test_outside_vmap_and_without_the_tag_nothing_changes(route):
    assert not torch.equal(route(looped)(ONES), route(looped)(ONES))
    assert vmap(_unbatched(route(plain)))(torch.zeros(2, 30)).tolist() == [[2.0] * 30] * 2
