"""What the public tests of ``torch.library`` pin down about ``opcheck``: rows 103 to 106."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.errors import MissingRuleError, OpCheckError

TORCH_NAMES = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]


def native(op):
    namespace, _, name = op.name.partition("::")
    return getattr(getattr(torch.ops, namespace), name).default


@pytest.fixture
def sin(ns):
    @ow.custom_op(f"{ns}::sin", mutates_args=())
    def sin(x: Tensor, k: float = 1.0) -> Tensor:
        return torch.sin(x) * k

    sin.register_fake(lambda x, k: torch.empty_like(x))
    sin.register_autograd(
        lambda ctx, g: (g * ctx.saved_tensors[0].cos() * ctx.k, None),
        setup_context=lambda ctx, inputs, output: (
            ctx.save_for_backward(inputs[0]),
            setattr(ctx, "k", inputs[1]),
        ),
    )
    return sin


def test_row_103_what_it_takes(sin):
    x = torch.randn(3, dtype=torch.float64)
    for target in (sin, native(sin)):
        assert ow.opcheck(target, (x,)).ok
        assert ow.opcheck(target, (x,), {"k": 2.0}).ok
        assert list(ow.opcheck(target, (x,), test_utils="test_schema")) == ["test_schema"]
        two = ["test_faketensor", "test_schema"]
        assert list(ow.opcheck(target, (x,), test_utils=two, atol=1e-3, rtol=1e-3)) == two
        with pytest.raises(ValueError, match="test_nothing"):
            ow.opcheck(target, (x,), test_utils="test_nothing")
    for wrong in (lambda x: x, native(sin).overloadpacket):
        with pytest.raises(ValueError, match=r"opcheck"):
            ow.opcheck(wrong, (x,))


def test_row_104_what_it_returns(sin, ns):
    assert ow.opcheck(sin, (torch.randn(3),)) == dict.fromkeys(TORCH_NAMES, "SUCCESS")
    op = ow.custom_op(f"{ns}::wrong", lambda x: x[:1].clone(), mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(lambda x: torch.empty_like(x))
    report = ow.opcheck(op, (torch.randn(3),), raise_exception=False)
    assert list(report) == TORCH_NAMES
    assert isinstance(report["test_faketensor"], OpCheckError)
    with pytest.raises(OpCheckError):
        ow.opcheck(op, (torch.randn(3),))


def undeclared_mutation(x: Tensor) -> Tensor:
    x.add_(1)
    return x.clone()


def undeclared_view(x: Tensor) -> Tensor:
    return x.view(-1)


def doubled(x: Tensor) -> Tensor:
    return x * 2


FAULTS = {
    "undeclared mutation": (undeclared_mutation, torch.empty_like, "mutat|writes|chang"),
    "undeclared view": (undeclared_view, torch.empty_like, "alias|shares memory"),
    "fake shape": (doubled, lambda x: x.new_empty((*x.shape, 1)), "shape"),
    "fake stride": (doubled, lambda x: x.new_empty(x.shape[::-1]).T, "strides"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_row_105_what_it_finds(ns, name):
    kernel, fake, words = FAULTS[name]
    op = ow.custom_op(f"{ns}::op", kernel, mutates_args=())
    op.register_fake(fake)
    x = torch.randn(3, 4)
    report = ow.opcheck(op, (x,), raise_exception=False)
    assert not report.ok
    assert any(re.search(words, finding.what) for finding in report.findings), str(report)
    with pytest.raises(OpCheckError):
        ow.opcheck(op, (x,))


def test_row_105_autograd_at_a_backend_key(ns):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("square(Tensor x) -> Tensor")
        lib.impl("square", Square.apply, "CPU")
        lib.impl("square", torch.empty_like, "Meta")
        op = getattr(torch.ops, ns).square.default
        with pytest.raises(OpCheckError, match="no autograd formula is registered"):
            ow.opcheck(op, (torch.randn(3, requires_grad=True),), test_utils="test_autograd_registration")


def test_row_105_eager_and_aot_dispatch_differ(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("double(Tensor x) -> Tensor")
        lib.impl("double", lambda x: x * (2 if type(x) is Tensor else 2.5))  # composite: it is traced
        op = getattr(ow.ops, ns).double.default
        x = torch.ones(3)
        report = ow.opcheck(op, (x,), raise_exception=False)
        (finding,) = [one for one in report.findings if one.law == "compile"]
        assert "2.5" in str(finding)
        assert isinstance(report["test_aot_dispatch_dynamic"], OpCheckError)
        assert ow.opcheck(op, (x,), test_utils="test_aot_dispatch_dynamic", atol=1.0, rtol=0.0).ok


@pytest.mark.parametrize("requires_grad", [False, True])
def test_row_106_with_and_without_a_gradient(sin, requires_grad):
    x = torch.randn(3, dtype=torch.float64, requires_grad=requires_grad)
    report = ow.opcheck(sin, (x,))
    assert report.ok
    assert report.outcome("autograd", "torch").status == "passed"


def test_row_106_it_needs_nothing_that_torch_does_not_install():
    script = """
        import sys
        import torch
        import opwright as ow

        sys.modules["expecttest"] = None  # importing it raises

        @ow.custom_op("lean::sin", mutates_args=())
        def sin(x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

        sin.register_fake(torch.empty_like)
        assert ow.opcheck(sin, (torch.ones(3),)).ok
        assert "torch.testing._internal.common_utils" not in sys.modules
        print("ok")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout == "ok\n", done.stderr


ABOUT_THE_FAKE = ("test_faketensor", "test_aot_dispatch_dynamic")


def test_row_104_without_a_fake_the_tests_about_it_are_no_success(ns):
    op = ow.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    report = ow.opcheck(op, (torch.randn(3),))
    assert report.ok  # laws that are skipped do not fail
    for name in TORCH_NAMES:
        assert isinstance(report[name], RuntimeError if name in ABOUT_THE_FAKE else str)
    for name in ABOUT_THE_FAKE:
        found = ow.opcheck(op, (torch.randn(3),), test_utils=name, raise_exception=False)[name]
        assert isinstance(found, MissingRuleError)
        assert str(found) == (
            f"{ns}::f: no fake impl is registered, which torch.compile and torch.export need\n"
            f"  expected: a fake for {name} to look at\n"
            f"  registered at: {op._record.source}\n"
            f"  to fix: register one: @opwright.register_fake('{ns}::f')"
        )
        with pytest.raises(RuntimeError, match="no fake impl is registered"):
            ow.opcheck(op, (torch.randn(3),), test_utils=name)
    assert ow.opcheck(op, (torch.randn(3),), test_utils="fake")["fake"] == "SUCCESS"
    op.register_fake(ow.empty_like)
    assert ow.opcheck(op, (torch.randn(3),)) == dict.fromkeys(TORCH_NAMES, "SUCCESS")


def test_row_104_what_needs_no_fake(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("composite(Tensor x) -> Tensor")
        lib.impl("composite", lambda x: x * 2, "CompositeImplicitAutograd")
        lib.define("nothing(Tensor(a!) x) -> ()")
        lib.impl("nothing", lambda x: [x.add_(1)].clear(), "CPU", flavour="torch")
        for name in ("composite", "nothing"):
            op = getattr(getattr(ow.ops, ns), name).default
            report = ow.opcheck(op, (torch.randn(3),), frameworks="torch")
            assert report == dict.fromkeys(TORCH_NAMES, "SUCCESS"), name


def test_the_test_that_torch_runs_only_when_asked(sin):
    assert "test_aot_dispatch_static" not in ow.opcheck(sin, (torch.randn(3),))
    name = "test_aot_dispatch_static"
    assert ow.opcheck(sin, (torch.randn(3),), test_utils=name) == {name: "SUCCESS"}
