"""What a body allocates and launches, recorded on FakeTensors, and as XLA is told of it."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs the package triton")

import opwright as ow  # noqa: E402
import triton_kernels as kernels  # noqa: E402
import triton_stub  # noqa: E402
from opwright.frameworks.torch.launches import record  # noqa: E402
from opwright.programs import Buffer, Copy, NotAProgram  # noqa: E402

pytestmark = [
    pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
X = ((100,), "float32")


@pytest.fixture(autouse=True)
def gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with triton_stub.gpu():
        yield


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def recorded(body, *inputs):
    return record(lambda tensors: body(*tensors), inputs, "cpu")


def test_allocations_copies_and_launches():
    def body(x, y):
        out, zeros, ones = torch.empty_like(x), torch.zeros(100), torch.full((100,), 2.5)
        copy = x.clone()
        ow.wrap_triton(kernels.add)[blocks](x, y.view(10, 10), out, out.numel(), BLOCK=64)
        ow.wrap_triton(kernels.computed)[(4,)](out, zeros, 100)
        ow.wrap_triton(kernels.in_place)[2, 1](copy.reshape(-1), 100, BLOCK=64)
        return out.reshape(10, 10), zeros, copy, ones

    program = recorded(body, X, X)
    assert program.inputs == 2
    assert program.buffers == [
        Buffer(*X),
        Buffer(*X),
        Buffer(*X),
        Buffer(*X, fill=0),
        Buffer(*X, fill=2.5),
        Buffer(*X),
    ]
    assert program.outputs == [2, 3, 5, 4]
    copy, *launches = program.steps
    assert copy == Copy(0, 5)
    assert [(one.grid, one.parameters, one.written) for one in launches] == [
        ((2, 1, 1), (("*", 0), ("*", 1), ("*", 2), ("i32", 100)), {2}),
        ((4, 1, 1), (("*", 2), ("*", 3), ("i32", 100)), {3}),
        ((2, 1, 1), (("*", 5), ("i32", 100)), {5}),
    ]
    assert all("ptx" in one.kernel.asm for one in launches)


def test_numbers_nones_and_defaults():
    def body(x):
        out = torch.empty_like(x)
        ow.wrap_triton(kernels.scale)[blocks](x, out, 1, 0.5, None, BLOCK=64, num_warps=2)
        return (out,)

    (launch,) = recorded(body, X).steps
    assert launch.parameters == (("*", 0), ("*", 1), ("fp32", 0.5))  # 1 and None are compiled in
    assert launch.kernel.metadata.num_warps == 2


def _launched(x, kernel, *args, **options):
    out = torch.empty_like(x)
    ow.wrap_triton(kernel)[blocks](x, out, *args, **options)
    return (out,)


OTHERS = {
    "computes": (lambda x: (x + 1,), "aten.add"),
    "in_place": (lambda x: (torch.zeros(3).add_(1),), "aten.add_"),
    "part": (lambda x: _launched(x[1:], kernels.computed, 3), "a part of a tensor"),
    "part_returned": (lambda x: (_launched(x, kernels.computed, 3)[0][:3],), "part"),
    "strided": (lambda x: (torch.empty_strided((4, 4), (1, 4)),), "not contiguous"),
    "as_another_dtype": (lambda x: _launched(x.view(torch.int32), kernels.computed, 3), "another dtype"),
    "reads": (lambda x: (torch.zeros(int(x[0])),), "without data"),
    "tuned": (lambda x: _launched(x, kernels.tuned, 100), "tuned where it runs"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_cannot_be_held(case):
    body, why = OTHERS[case]
    with pytest.raises(NotAProgram, match=why):
        recorded(body, X)


def test_an_output_that_nobody_wrote_is_an_argument():
    assert recorded(lambda x: (x,), X).outputs == [0]


class Library:
    """What is needed of jaxlib where there is no GPU: it writes down what it is told."""

    def create_array_parameter(self, zeroed, aligned):
        return f"array {zeroed} {aligned}"

    def create_scalar_parameter(self, value, kind):
        return f"{kind} {value}"

    def TritonKernel(self, name, warps, blocks, shared, ptx, ttir, arch):
        assert ".entry" in ptx
        return f"{name} {warps} {blocks} {arch}"

    def TritonKernelCall(self, kernel, *call):
        self.call = kernel, *call
        return self

    def to_proto(self, name, metadata):
        return repr(self.call).encode()


def test_the_launches_in_a_program_of_jax(ns, monkeypatch):
    jax = pytest.importorskip("jax", reason="needs jax")
    import zlib

    from opwright.frameworks.base import load
    from opwright.frameworks.jax import launches, lowering

    on_torch = load("torch").record_launches
    monkeypatch.setattr(
        type(load("torch")),
        "record_launches",
        lambda self, body, inputs, device: on_torch(body, inputs, "cpu"),
    )
    monkeypatch.setattr(launches, "library", Library)

    @ow.triton_op(f"{ns}::op", mutates_args=("y",))
    def op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        between, out = torch.full_like(x, 3), torch.empty_like(x)
        ow.wrap_triton(kernels.add)[blocks](x, between, out, x.numel(), BLOCK=64)
        ow.wrap_triton(kernels.in_place)[blocks](y, 100, BLOCK=64)
        return out

    record_, kernel = op._record, op._record.select_kernel("jax", "cuda")
    assert launches.holds(record_, kernel)
    assert lowering.routes(record_)["cuda"].startswith("triton_kernel_call_ffi, no copies (torch, ")
    x = jax.ShapeDtypeStruct((10, 10), "float32")
    function = launches.traceable(record_, kernel, (0, 1), [x, x], [x, x])
    first, second, third = (
        one
        for one in jax.make_jaxpr(function)(x, x).eqns
        if one.primitive.name in ("ffi_call", "broadcast_in_dim")
    )
    assert first.primitive.name == "broadcast_in_dim"  # the memory that is full of threes
    assert second.params["input_output_aliases"] == ()
    assert third.params["input_output_aliases"] == ((0, 0),)  # the new value of y, in its memory
    told = [zlib.decompress(dict(one.params["attributes"])["opaque"]).decode() for one in (second, third)]
    assert told == [
        "('add 4 1 80', 2, 1, 1, ['array 0 16', 'array 0 16', 'array 0 16', 'i32 100'])",
        "('in_place 4 1 80', 2, 1, 1, ['array 0 16', 'i32 100'])",
    ]
    assert launches.traceable(record_, kernel, (0, 1), [x, x], [x]) is None  # not what the fake says
