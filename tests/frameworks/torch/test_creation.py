"""What fakes and kernels for any arrays are written with, in programs that torch compiles."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import opwright as ow

X, Y = torch.ones(3), torch.tensor(1.5, dtype=torch.float64)

PROGRAMS = {
    "result_type": lambda x, y: x.to(ow.result_type(x, y)),
    "result_type of a number": lambda x, y: y.to(ow.result_type(x, 2.0, True)),
    "result_type of a complex number": lambda x, y: x.to(ow.result_type(x, 1j)),
    "result_type of a dtype": lambda x, y: x.to(ow.result_type(torch.float16, y)),
    "result_type of a name": lambda x, y: x.to(ow.result_type(x, "float64")),
    "result_type of a size": lambda x, y: x.to(ow.result_type(x, x.shape[0])),
    "empty_like": lambda x, y: torch.zeros_like(ow.empty_like(x, dtype="float64")),
    "empty": lambda x, y: torch.zeros_like(ow.empty((2, x.shape[0]), like=x, dtype="int8", device="cpu")),
    "broadcast_shapes": lambda x, y: x.expand(ow.broadcast_shapes(x.shape, (2, 1))) + 1,
    "array_namespace": lambda x, y: ow.array_namespace(x, y).multiply(x, y),
    "its result_type": lambda x, y: x.to(ow.array_namespace(x, y).result_type(x, y)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_programs(name, dynamic):
    program = PROGRAMS[name]
    torch.compiler.reset()
    compiled = torch.compile(program, backend="eager", fullgraph=True, dynamic=dynamic)
    for x in (X, torch.ones(5)):
        got, expected = compiled(x, Y), program(x, Y)
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "expression",
    [
        "x.to(ow.result_type(x, y))",
        "ow.array_namespace(x).sin(x)",
        "ow.empty_like(x)",
        "x.expand(ow.broadcast_shapes(x.shape, (2, 1)))",
    ],
)
def test_the_first_call_of_all_may_be_compiled(expression):
    """Nothing of ours for torch is loaded: what is imported then is imported while torch traces."""
    script = f"""
import torch, opwright as ow
@torch.compile(backend="eager", fullgraph=True)
def program(x, y):
    return {expression}
print(program(torch.ones(3), torch.tensor(1.5, dtype=torch.float64)).dtype)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "torch.float32", done.stderr
