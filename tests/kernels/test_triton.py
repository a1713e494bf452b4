"""``wrap_triton`` and ``triton_op`` without a GPU: what is refused, what a kernel writes, the interpreter."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs the package triton")

import opwright as ow  # noqa: E402
import triton_kernels as kernels  # noqa: E402
import triton_stub  # noqa: E402
from opwright.errors import (  # noqa: E402
    ArgumentError,
    RegistrationTypeError,
    RegistrationValueError,
    UnsupportedError,
)
from opwright.kernels import triton as wrapping  # noqa: E402
from opwright.kernels.triton_analysis import verify  # noqa: E402
from opwright.kernels.triton_reach import kernels_in  # noqa: E402

FILE = kernels.__file__
pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")


def line(function):
    return f"{FILE}:{function.fn.__code__.co_firstlineno}"


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def written(kernel, *args, writes=None, **kwargs):
    launcher = wrapping.Launcher(kernel, writes)
    return launcher.written({**dict(zip(launcher.arg_names, args, strict=False)), **kwargs}, is_tensor)


# ------------------------------------------------------------------------------------------ wrapping


def test_a_kernel_is_wrapped_once():
    assert ow.wrap_triton(kernels.add) is ow.wrap_triton(kernels.add)
    assert ow.wrap_triton(ow.wrap_triton(kernels.add)) is ow.wrap_triton(kernels.add)
    declared = ow.wrap_triton(kernels.add, writes=("out",))
    assert declared is not ow.wrap_triton(kernels.add)
    assert ow.wrap_triton(ow.wrap_triton(kernels.add), writes=["out"]) is declared
    assert repr(declared) == f"<Triton kernel add ({line(kernels.add)})>"
    assert declared.__name__ == "add"


def test_what_is_no_kernel_is_refused():
    def function():
        pass

    with pytest.raises(RuntimeError) as error:
        ow.wrap_triton(function)
    assert isinstance(error.value, RegistrationTypeError)
    assert str(error.value) == (
        "wrap_triton only works on functions annotated with triton.jit or triton.autotune\n"
        f"  got: {function!r} of type function\n"
        "  to fix: decorate the function with @triton.jit"
    )


def test_two_autotune_decorators_are_refused():
    once = triton.autotune(configs=[triton.Config({"BLOCK": 32})], key=[])(kernels.add)
    with pytest.raises(RegistrationValueError) as error:
        ow.wrap_triton(triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=[])(once))
    assert str(error.value) == (
        "Triton kernel add has two autotune decorators: one would be ignored\n"
        f"  registered at: {line(kernels.add)}\n"
        "  to fix: put all configs in one @triton.autotune"
    )


def test_an_order_of_decorators_that_cannot_be_honoured_is_refused():
    class Wrapper:
        def __init__(self, fn):
            self.fn = fn
            self.arg_names = fn.arg_names

    outer = triton.heuristics({"BLOCK": lambda args: 32})(Wrapper(kernels.add))
    with pytest.raises(RegistrationTypeError) as error:
        ow.wrap_triton(outer)
    first, expected, got, _, fix = str(error.value).splitlines()
    assert first == "the decorators of Triton kernel add are in an order that cannot be honoured"
    assert expected == "  expected: @triton.heuristics and one @triton.autotune above @triton.jit"
    assert got == "  got: Wrapper below Heuristics"
    assert fix == "  to fix: put @triton.jit next to the function"


def test_a_launch_needs_a_grid():
    with pytest.raises(ArgumentError) as error:
        ow.wrap_triton(kernels.add)(1, 2)
    assert str(error.value) == (
        "Triton kernel add was called without a grid\n"
        f"  registered at: {line(kernels.add)}\n"
        "  to fix: wrap_triton(add)[grid](...)"
    )


def test_declarations_name_parameters():
    with pytest.raises(RegistrationValueError) as error:
        ow.wrap_triton(kernels.add, writes=("z", "out"))
    assert str(error.value) == (
        "writes= of Triton kernel add names parameters that it does not have\n"
        "  expected: some of x, y, out, n, BLOCK\n"
        "  got: z\n"
        f"  registered at: {line(kernels.add)}"
    )
    with pytest.raises(RegistrationValueError) as error:
        ow.wrap_triton(kernels.add, writes="out")
    assert str(error.value) == (
        "writes= must be an iterable of parameter names\n  got: 'out'\n  to fix: write writes=('out',)"
    )


def test_arrays_that_triton_cannot_take_are_named():
    import numpy as np

    with pytest.raises(UnsupportedError) as error:
        ow.wrap_triton(kernels.add)[(1,)](np.ones(3), np.ones(3), np.ones(3), 3, 16)
    assert str(error.value) == (
        "Triton kernels cannot be launched on arrays of numpy\n"
        "  expected: arrays of torch or cupy on a GPU\n"
        "  to fix: register another kernel for these arrays, or annotate the operator with torch.Tensor"
    )


def test_warmup_compiles_and_launches_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with triton_stub.gpu():
        launches, compiled = triton_stub.captured(
            lambda: ow.wrap_triton(kernels.in_place).run(torch.zeros(64), 64, 32, grid=(1,), warmup=True)
        )
    assert launches == []
    assert "tt.store" in compiled.asm["ttir"]


def test_a_launch_in_a_plain_function_is_not_traced(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launcher = ow.wrap_triton(kernels.in_place)

    def wrapped_here(x):
        y = x + 1
        ow.wrap_triton(kernels.in_place)[(1,)](y, 64, 32)
        return y * 2

    def wrapped_before(x):
        y = x + 1
        launcher[(1,)](y, 64, 32)
        return y * 2

    for function in (wrapped_here, wrapped_before):
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"opwright\.triton_op, and call that"):
            torch.compile(function, backend="eager", fullgraph=True)(torch.ones(64))
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="eager")
        with triton_stub.gpu():
            for _ in range(3):
                launches, out = triton_stub.captured(lambda run=compiled: run(torch.ones(64)))
                assert len(launches) == 1
                assert torch.equal(out, torch.full((64,), 4.0))


# ------------------------------------------------------------------------------- what a kernel writes


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("add", ("x", "x", "x", 100, 32), ("out",)),
        ("scale", ("x", "x", 100, 2.0, None), ("out",)),
        ("scale", ("x", "x", 100, 2.0, "x", 128, True), ("out",)),
        ("tuned", ("x", "x", 100), ("out",)),
        ("computed", ("x", "x", 100), ("out",)),
        ("tuned_outside", ("x", "x", 100), ("out",)),
        ("tuned_inside", ("x", "x", 100), ("out",)),
        ("in_place", ("x", 100, 32), ("x",)),
        ("through_calls", ("x", "x", "x", 100, 32), ("y", "out")),
        ("only_reads", ("x", 100, 32), ()),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_written_parameters_are_found(name, args, expected, dtype):
    x = torch.zeros(100, dtype=dtype)
    assert written(getattr(kernels, name), *[x if arg == "x" else arg for arg in args]) == expected


def test_a_declaration_is_believed_and_verified():
    x = torch.zeros(100)
    assert written(kernels.loaded_address, x, 100, writes=("table",)) == ("table",)
    launcher = wrapping.Launcher(kernels.add, ("y",))
    compiled = triton.compile(
        triton.compiler.ASTSource(
            kernels.add,
            {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"},
            {"BLOCK": 32},
        ),
        target=triton.backends.compiler.GPUTarget("cuda", 80, 32),
    )
    with pytest.raises(RegistrationValueError) as error:
        verify(launcher, compiled.asm["ttir"], compiled.src.signature)
    assert str(error.value) == (
        "Triton kernel add writes to parameters that writes= does not name\n"
        "  expected: y\n"
        "  got: out\n"
        f"  registered at: {line(kernels.add)}\n"
        "  to fix: add them to writes="
    )


def test_a_wrong_declaration_raises_at_the_first_launch(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x = torch.zeros(64)
    with triton_stub.gpu(), pytest.raises(RegistrationValueError, match="does not name"):
        wrapping.Launcher(kernels.add, ("x",))[(1,)](x, x, x, 64, 64)


def test_an_analysis_that_fails_asks_for_a_declaration():
    with pytest.raises(UnsupportedError) as error:
        written(kernels.loaded_address, torch.zeros(4, dtype=torch.int64), 4)
    assert str(error.value) == (
        "what Triton kernel loaded_address writes to cannot be told from its code: tt.store writes to an "
        "address that does not come from a parameter alone\n"
        f"  registered at: {line(kernels.loaded_address)}\n"
        "  to fix: declare it: wrap_triton(loaded_address, writes=('out_ptr',))[grid](...)"
    )
    with pytest.raises(UnsupportedError, match=r"its parameter n gets no value"):
        written(kernels.add, torch.zeros(4), torch.zeros(4), torch.zeros(4))
    with pytest.raises(UnsupportedError, match=r"its parameter y is of type str"):
        written(kernels.add, torch.zeros(4), "y", torch.zeros(4), 4, 16)
    with pytest.raises(UnsupportedError, match=r"its parameter x has dtype complex64"):
        written(kernels.in_place, torch.zeros(4, dtype=torch.complex64), 4, 16)
    with pytest.raises(UnsupportedError, match=r"it does not compile \(CompilationError"):
        written(kernels.add, 1, 2, 3, 4, 16)


def test_kernels_that_a_function_may_launch_are_found():
    def inner(x):
        ow.wrap_triton(kernels.tuned)[(1,)](x)
        return [kernels.add for _ in x]

    def outer(x):
        return inner(x)

    assert {kernel.fn.__name__ for kernel in kernels_in(outer)} == {"tuned", "add"}


# ----------------------------------------------------------------------------------- the interpreter

INTERPRETED = """
    import warnings
    import torch
    import triton
    import triton_kernels as kernels
    import opwright as ow

    @ow.triton_op("ti::add", mutates_args=())
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = out.numel()
        ow.wrap_triton(kernels.add)[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=16)
        return out

    @ow.triton_op("ti::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = out.numel()
        for kernel in (kernels.tuned, kernels.computed, kernels.tuned_inside):
            ow.wrap_triton(kernel)[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
        return out

    @ow.triton_op("ti::half", mutates_args=())
    def half(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x, dtype=torch.float16)
        ow.wrap_triton(kernels.cast)[(1,)](x, out, x.numel(), KIND=triton.language.float16, BLOCK=64)
        return out

    @ow.triton_op("ti::double_", mutates_args=("x",))
    def double_(x: torch.Tensor) -> None:
        ow.wrap_triton(kernels.in_place).run(x, x.numel(), grid=(4,), warmup=False, BLOCK=16)

    @twice.register_autograd
    def backward(ctx, grad):
        return twice(grad)

    @add.register_autograd
    def backward(ctx, grad):
        return grad, grad

    @add.register_vmap
    def rule(info, in_dims, x, y):
        size = info.batch_size
        x, y = (
            a.movedim(d, 0) if d is not None else a.expand(size, *a.shape) for a, d in zip((x, y), in_dims)
        )
        return add(x.contiguous(), y.contiguous()), 0
"""


def interpreted(body):
    """Run the operators above and then ``body`` in a process of its own, in Triton's interpreter."""
    code = textwrap.dedent(INTERPRETED) + textwrap.dedent(body)
    here = Path(__file__).parent.parent
    path = f"import sys; sys.path[:0] = [{str(here)!r}]\n"
    import os

    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, "-c", path + code],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_row_109_111_interpreted_kernels_compute():
    interpreted("""
        x, y = torch.randn(40), torch.randn(40)
        assert torch.equal(add(x, y), x + y)
        assert torch.equal(twice(x), 2 * x)
        assert torch.equal(half(x), x.half())
        z = x.clone()
        version = z._version
        double_(z)
        assert torch.equal(z, 2 * x) and z._version > version
        assert add(torch.empty(0), torch.empty(0)).shape == (0,)
        a = torch.randn(40, dtype=torch.float64, requires_grad=True)
        torch.autograd.gradcheck(twice, (a,))
        torch.autograd.gradgradcheck(twice, (a,))
    """)


def test_interpreted_kernels_under_transforms_and_compilers():
    interpreted("""
        x, y = torch.randn(40), torch.randn(40)
        meta = add(x.to("meta"), y.to("meta"))
        assert meta.is_meta and meta.shape == (40,)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = add(torch.empty(3), torch.empty(3))
        assert fake.shape == (3,)
        assert torch.allclose(torch.func.grad(lambda a: (add(a, y) * a).sum())(x), 2 * x + y)
        assert torch.equal(torch.func.jacfwd(lambda a: twice(a))(x), 2 * torch.eye(40))
        batched = torch.vmap(add)(torch.ones(2, 8), torch.ones(2, 8))
        assert torch.equal(batched, torch.full((2, 8), 2.0))
        for backend in ("eager", "aot_eager"):
            torch._dynamo.reset()
            compiled = torch.compile(lambda a, b: add(a, b) * 2, fullgraph=True, backend=backend)
            assert torch.equal(compiled(x, y), (x + y) * 2)
        module = type("Module", (torch.nn.Module,), {"forward": lambda self, a, b: add(a, b)})()
        assert "torch.ops.ti.add.default" in torch.export.export(module, (x, y)).graph_module.code
    """)


def test_interpreted_kernels_in_a_compiled_plain_function():
    interpreted("""
        def plain(x):
            y = x + 1
            ow.wrap_triton(kernels.in_place)[(1,)](y, y.numel(), 64)
            return y * 2

        x = torch.ones(40)
        assert torch.equal(torch.compile(plain, backend="eager")(x), plain(x))
    """)


def test_the_checker_does_not_run_interpreted_kernels_in_threads():
    interpreted("""
        from opwright.checks import determinism

        del determinism.threading
        x = torch.randn(40)
        report = ow.opcheck(add, (x, x), frameworks="torch", raise_exception=False)
        outcome = report.outcome("determinism", "torch")
        assert outcome.status == "passed", str(outcome)
    """)


def test_interpreted_kernels_on_numpy_arrays():
    interpreted("""
        import numpy as np
        x = np.arange(5, dtype=np.float32)
        out = add(x, x)
        assert type(out) is np.ndarray and (out == 2 * x).all()
        double_(x)
        assert (x == 2 * np.arange(5)).all()
        y, pull = ow.vjp(twice, np.ones(3, np.float32))
        assert (pull(np.ones(3, np.float32))[0] == 2).all()
    """)


def test_without_triton_the_error_has_the_line_that_installs_it():
    code = (
        "import sys; sys.modules['triton'] = None\nimport opwright as ow\n"
        "try: ow.wrap_triton(lambda: 0)\nexcept RuntimeError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "wrap_triton needs the package triton\n  to fix: pip install 'opwright[triton]'\n"


def test_importing_it_imports_neither_torch_nor_triton():
    code = (
        "import sys, opwright; opwright.triton_op, opwright.wrap_triton\n"
        "print({'torch', 'triton'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
