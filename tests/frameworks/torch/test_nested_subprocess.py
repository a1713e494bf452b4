"""A strided nested tensor would make torch's guards abort the process: each case has a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

DEFINE = """
import warnings
warnings.simplefilter("ignore")
import torch
import opwright as ow
from torch import Tensor

@ow.custom_op("nested::one", mutates_args=())
def one(x: Tensor) -> Tensor:
    return x * 2

@ow.custom_op("nested::two", mutates_args=())
def two(x: Tensor, y: Tensor) -> Tensor:
    return x * 2

@ow.custom_op("nested::maybe", mutates_args=())
def maybe(x: Tensor, y: Tensor | None = None) -> Tensor:
    return x * 2

@ow.custom_op("nested::several", mutates_args=())
def several(xs: list[Tensor]) -> Tensor:
    return xs[0] * 2

@ow.custom_op("nested::write", mutates_args=("x",))
def write(x: Tensor) -> None:
    x.mul_(2)

for op in (one, two, maybe, several):
    op.register_vmap(lambda info, in_dims, *args, op=op: ((args[0][0] if op is several else args[0]) * 2, 0))

x, y = torch.ones(3), torch.zeros(3)
for _ in range(5):
    one(x), two(x, y), maybe(x), maybe(x, y), several([x, y]), write(x)

def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

def show(call):
    try:
        out = call()
        print(type(out).__name__, out.is_nested if isinstance(out, Tensor) else "")
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""
CASES = {
    "alone": "show(lambda: one(nested()))",
    "first of two": "show(lambda: two(nested(), y))",
    "second of two": "show(lambda: two(x, nested()))",
    "optional": "show(lambda: maybe(x, nested()))",
    "in a list": "show(lambda: several([x, nested()]))",
    "first in a list": "show(lambda: several([nested(), x]))",
    "mutated": "show(lambda: write(nested()))",
    "detached": "show(lambda: one(nested().detach()))",
    "batched": "show(lambda: torch.vmap(one)(nested()))",
    "second of two, batched": "show(lambda: torch.vmap(lambda n: two(x, n))(nested()))",
    "by torch's own classes": "show(lambda: one(torch.nested.nested_tensor([x, y], layout=torch.jagged)))",
}


@pytest.mark.parametrize("case", CASES)
def test_a_nested_tensor_never_reaches_the_guards(case):
    done = subprocess.run(
        [sys.executable, "-c", DEFINE + CASES[case]], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_the_guards_would_abort():
    """If this fails, torch's guards have become safe, and the tests for nested tensors can go."""
    script = DEFINE + (
        "entries = next(iter(one._record.table.values())).__globals__['_ow_entries']\n"
        "entries[0][0](nested())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode < 0
