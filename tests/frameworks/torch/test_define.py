"""Defining operators in torch's dispatcher: names, tags, kernels that come and go, what is left behind."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.errors import DuplicateError, StaleError
from opwright.frameworks.torch.lowered import lowered_of

NS = "torch_define"
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


def sine(name):
    @ow.custom_op(f"{NS}::{name}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x.sin()

    return op


def test_a_name_that_torch_holds():
    library = torch.library.Library(NS, "FRAGMENT")
    library.define("taken(Tensor x) -> Tensor")
    with pytest.raises(DuplicateError) as error:
        sine("taken")
    assert str(error.value).splitlines()[0] == (
        f"operator {NS}::taken is already registered, in torch's own dispatcher"
    )
    assert "registered at: " + __file__ in str(error.value)
    library._destroy()
    assert torch.equal(sine("taken")(torch.zeros(2)), torch.zeros(2))


def test_a_failed_definition_leaves_nothing(monkeypatch):
    from opwright.frameworks.torch import backend

    def fail(state):
        raise OSError("no")

    monkeypatch.setattr(backend, "make_kernel", fail)
    with pytest.raises(OSError, match="no"):
        sine("failed")
    monkeypatch.undo()
    assert not hasattr(torch.ops.torch_define, "failed")
    assert torch.equal(sine("failed")(torch.zeros(2)), torch.zeros(2))


def test_everything_is_gone_after_a_library_s_end():
    with ow.Library(NS, "FRAGMENT") as library:
        library.define("scoped(Tensor x) -> Tensor")
        library.impl("scoped", lambda x: x.sin(), "CPU")
        ow.register_fake(f"{NS}::scoped", lambda x: torch.empty_like(x))
        kept = ow.ops.torch_define.scoped.default
        assert torch.equal(torch.ops.torch_define.scoped(torch.zeros(2)), torch.zeros(2))
    assert not hasattr(torch.ops.torch_define, "scoped")
    from torch._library.simple_registry import singleton

    assert not singleton.find(f"{NS}::scoped").fake_impl.kernels
    with pytest.raises(StaleError, match="was unregistered at"):
        kept(torch.zeros(2))


def test_which_keys_have_kernels():
    op = sine("keys")
    for key in ("CompositeExplicitAutograd", "Autograd", "FuncTorchBatched", "Meta"):
        assert has_kernel(op.name, key), key
    for key in ("ADInplaceOrView", "AutocastCPU", "CPU"):
        assert not has_kernel(op.name, key), key
    handle = ow.register_autocast(op, "cpu", torch.bfloat16)
    assert has_kernel(op.name, "AutocastCPU")
    handle.destroy()
    assert not has_kernel(op.name, "AutocastCPU")
    for key in ("CompositeExplicitAutograd", "Autograd", "FuncTorchBatched", "Meta"):
        assert has_kernel(op.name, key), key


def test_an_implicit_composite_gives_way_to_explicit_kernels_and_comes_back():
    library = ow.Library(NS, "FRAGMENT")
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: x.sin())
    name = f"{NS}::composite"
    assert has_kernel(name, "CompositeImplicitAutograd")
    assert not has_kernel(name, "CompositeExplicitAutograd")
    x = torch.ones(2, requires_grad=True)
    torch.ops.torch_define.composite(x).sum().backward()
    assert torch.allclose(x.grad, x.detach().cos())
    handle = ow.register_kernel(name, None, lambda x: x.cos())
    assert torch.allclose(torch.ops.torch_define.composite(x), x.cos())
    handle.destroy()
    assert torch.allclose(torch.ops.torch_define.composite(x), x.sin())
    assert not has_kernel(name, "CompositeExplicitAutograd")
    library.destroy()


def test_torch_imported_after_the_definition():
    script = """
import sys
import numpy as np
import opwright as ow

@ow.custom_op("late::double", mutates_args=())
def double(x: np.ndarray) -> np.ndarray:
    return 2 * x

double.register_autograd(lambda ctx, g: 2 * g)
assert (double(np.ones(2)) == 2).all()
assert "torch" not in sys.modules
import torch
x = torch.ones(2, requires_grad=True)
double(x).sum().backward()
assert x.grad.tolist() == [2, 2]
assert torch.ops.late.double(x).tolist() == [2, 2]

@ow.custom_op("late::triple", mutates_args=())
def triple(x: np.ndarray) -> np.ndarray:
    return 3 * x

ow.attach("torch")
assert torch.ops.late.triple(torch.ones(1)).item() == 3
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


LATE = """
import numpy as np
import opwright as ow

def define(name):
    @ow.custom_op(f"late::{name}", mutates_args=())
    def op(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        return x * k

    op.register_fake(lambda x, k: ow.empty_like(x))
    setup_context = lambda ctx, inputs, output: setattr(ctx, "k", inputs[1])
    op.register_autograd(lambda ctx, g: (g * ctx.k, None), setup_context=setup_context)
    return op

f, g = define("f"), define("g")
import torch
x = torch.ones(2, requires_grad=True)
"""


def run_late(body):
    """Run a body in a process where two operators were defined before torch was imported."""
    done = subprocess.run([sys.executable, "-c", LATE + body], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_imported_after_the_definition_and_the_first_call_compiled():
    script = """
graphs = []

def backend(module, _):
    graphs.append([str(node.target) for node in module.graph.nodes if node.op == "call_function"])
    return module.forward

compiled = torch.compile(lambda x: ow.ops.late.g(f(x), 3.0), fullgraph=True, backend=backend)
for _ in range(2):
    (grad,) = torch.autograd.grad(compiled(x).sum(), x)
    assert grad.tolist() == [6, 6]
print(graphs)
from opwright.frameworks.torch import guards
print(guards.UNAVAILABLE)
"""
    assert run_late(script) == "[['late.f.default', 'late.g.default']]\nNone\n"


def test_torch_imported_after_the_definition_and_the_first_call_exported():
    script = """
module = type("Module", (torch.nn.Module,), {"forward": lambda self, x: f(x) + 1})()
print(torch.export.export(module, (torch.ones(2),), strict=True).module()(torch.ones(2)).tolist())
"""
    assert run_late(script) == "[3.0, 3.0]\n"


def test_a_tracer_that_cannot_attach_says_what_to_write():
    script = """
from opwright import dispatch
del dispatch.unattached._torchdynamo_inline  # as in a release that does not know it
try:
    torch.compile(f, fullgraph=True, backend="eager")(x)
except torch._dynamo.exc.Unsupported as error:
    print('write opwright.attach("torch") once, before compiling' in str(error))
ow.attach("torch")
print(torch.compile(f, fullgraph=True, backend="eager")(x).tolist())
"""
    assert run_late(script) == "True\n[2.0, 2.0]\n"


def test_the_operator_s_tags_and_schema_in_torch():
    @ow.custom_op(
        f"{NS}::tagged.one", mutates_args={"x"}, tags=("pointwise", torch.Tag.needs_fixed_stride_order)
    )
    def op(x: Tensor, n: int = 2, *, dtype: torch.dtype = torch.float32) -> None: ...

    native = torch.ops.torch_define.tagged.one
    assert str(native._schema) == (
        f"{NS}::tagged.one(Tensor(a0!) x, SymInt n=2, *, ScalarType dtype=6) -> ()"
    )
    assert {tag.name for tag in native.tags} == {"pointwise", "needs_fixed_stride_order", "pt2_compliant_tag"}
    assert op._opoverload is native
    assert lowered_of(op._record).native is native


@pytest.mark.parametrize("order", ["tensor first", "device first"])
def test_kernels_for_devices_and_for_all(order):
    @ow.custom_op(f"{NS}::chosen_{order.partition(' ')[0]}", mutates_args=())
    def op(x: np.ndarray) -> np.ndarray:
        return x + 1

    native = getattr(torch.ops.torch_define, op.name.partition("::")[2])
    x = torch.zeros(2)
    assert native(x).tolist() == [1, 1]
    first = ow.register_kernel(op, "cpu", lambda x: x + 2, flavour="torch")
    assert (op(x).tolist(), native(x).tolist()) == ([2, 2], [2, 2])
    second = ow.register_kernel(op, "cuda", lambda x: x + 3, flavour="torch")
    assert (op(x).tolist(), native(x).tolist()) == ([2, 2], [2, 2])
    for handle in (first, second) if order == "tensor first" else (second, first):
        handle.destroy()
    assert (op(x).tolist(), native(x).tolist()) == ([1, 1], [1, 1])
