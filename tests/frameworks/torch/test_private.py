"""Torch's private names: stand-ins where one is missing, and the refusal where there is none."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from opwright.errors import UnsupportedError
from opwright.frameworks.torch import aliases, private
from opwright.frameworks.torch.jvp import primal


def test_stand_ins(monkeypatch):
    x, y = torch.ones(2), torch.ones(3)
    assert aliases._stand_in_alias((x, [y]), {}, (x[:1],))
    assert aliases._stand_in_alias((x,), {"y": y}, (y,))
    assert not aliases._stand_in_alias((x, None, 3), {}, (y, x.clone()))
    assert aliases._stand_in_alias((), {}, (x, x.view(-1)))
    assert private._stand_in_requires_grad(x, [y, None], 3, z=x.clone().requires_grad_())
    assert not private._stand_in_requires_grad(x, [y, None], 3)


def test_a_release_without_what_is_needed(monkeypatch):
    monkeypatch.setattr(private, "_NEEDED", ("torch._C._gone",))
    with pytest.raises(UnsupportedError) as error:
        private.require()
    assert str(error.value) == (
        f"torch {torch.__version__} lacks what operators are made with\n"
        "  got: torch._C._gone, all missing\n"
        "  to fix: install a release between torch 2.9 and the newest that this version was tested with"
    )


def test_a_release_with_all_of_it():
    private.require()
    assert not private._NEEDED


@pytest.mark.parametrize("attribute", ["_dynamo", "nothing"])
def test_functions_that_dynamo_leaves_alone(monkeypatch, attribute):
    if attribute == "_dynamo":
        monkeypatch.setattr(private, "_core", object())

    @private.never_traced
    def inner(x):
        assert not torch.compiler.is_dynamo_compiling()
        return x + 1

    def f(x):
        torch._dynamo.graph_break()
        return inner(x)

    torch._dynamo.reset()
    assert torch.equal(torch.compile(f, backend="eager")(torch.zeros(2)), torch.ones(2))


def test_tangents_of_the_current_level():
    x = torch.ones(2)
    assert not private.has_tangent(x)
    assert not private.forward_level()
    with forward_ad.dual_level():
        assert private.forward_level()
        dual = forward_ad.make_dual(x, x)
        assert private.has_tangent(dual)
        plain = primal([dual, (dual, 3)])
        assert not private.has_tangent(plain[0])
        assert not private.has_tangent(plain[1][0])


def test_modes_come_back_after_an_error():
    def fail():
        with private.modes_restored(True, True):
            assert torch.is_grad_enabled()
            raise KeyError

    with torch.no_grad():
        with pytest.raises(KeyError):
            fail()
        assert not torch.is_grad_enabled()


def test_a_fake_through_the_public_function(monkeypatch):
    library = torch.library.Library("torch_private", "FRAGMENT")
    library.define("one(Tensor x) -> Tensor")
    library.define("two(Tensor x) -> Tensor")
    private.register_fake(library, "torch_private::one", lambda x: torch.empty_like(x), "a.py:1")
    monkeypatch.setattr(private, "entry_of", lambda qualname: None)
    private.register_fake(library, "torch_private::two", lambda x: torch.empty_like(x), "a.py:2")
    for op in (torch.ops.torch_private.one, torch.ops.torch_private.two):
        assert op(torch.empty(3, device="meta")).shape == (3,)
    private.destroy(library)
