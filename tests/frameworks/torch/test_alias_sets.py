"""``Tensor! out`` in PyTorch: mutated in every transform, and an operator of torch's own that has it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import opwright as ow  # noqa: E402


def fill(x, out):
    out.copy_(x * 2)


@pytest.fixture
def op(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("fill(Tensor x, Tensor! out) -> ()")
        lib.impl("fill", fill, "CPU", flavour="torch")
        lib._register_fake("fill", lambda x, out: None)
        yield getattr(torch.ops, ns).fill


def test_it_is_mutated_eagerly_and_compiled(op):
    x, out = torch.ones(2), torch.zeros(2)
    version = out._version
    op(x, out)
    assert out.tolist() == [2, 2]
    assert out._version > version

    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(x):
        out = torch.zeros(2)
        op(x, out)
        return out + 1

    assert function(x).tolist() == [3, 3]
    assert op.default._schema.arguments[1].alias_info.before_set == {"a1"}


def test_a_list_of_them(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("fill_all(Tensor x, Tensor![] outs, *, Tensor!? more=None) -> ()")

        def fill_all(x, outs, *, more):
            for out in [*outs, *([] if more is None else [more])]:
                out.copy_(x)

        lib.impl("fill_all", fill_all, "CPU", flavour="torch")
        outs, more = [torch.zeros(2), torch.zeros(2)], torch.zeros(2)
        versions = [out._version for out in (*outs, more)]
        getattr(torch.ops, ns).fill_all(torch.ones(2), outs, more=more)
        assert [out.sum() for out in (*outs, more)] == [2, 2, 2]
        assert all(out._version > before for out, before in zip((*outs, more), versions, strict=True))


def test_one_that_torch_library_defined(ns):
    with torch.library._scoped_library(ns, "FRAGMENT") as lib:
        lib.define("theirs(Tensor x, Tensor! out) -> ()")
        ow.register_kernel(f"{ns}::theirs", "cpu", fill)
        out = torch.zeros(2)
        getattr(torch.ops, ns).theirs(torch.ones(2), out)
        assert out.tolist() == [2, 2]
