"""JAX while torch's compiler has left its own frame evaluation behind, as it does after an error."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

LEAVE = """
    import torch

    compiled = torch.compile(lambda x: x * x.shape[0], backend="eager", dynamic=False)
    compiled(torch.ones(3))
    with torch._dynamo.config.patch(error_on_recompile=True):
        try:
            compiled(torch.ones(4))
        except Exception as error:
            print(type(error).__name__)
"""

LOAD = """
    import jax
    from opwright.frameworks.jax import private
"""

CALL = """
    import numpy as np
    import opwright as ow

    @ow.custom_op("frames::two", mutates_args=(), flavour="numpy")
    def two(x: ow.Array) -> tuple[ow.Array, ow.Array]:
        return x * 2, x * 3

    two.register_fake(lambda x: (ow.empty_like(x), ow.empty_like(x)))
    kept = []

    @ow.custom_op("frames::keeps", mutates_args=(), flavour="numpy")
    def keeps(x: ow.Array) -> tuple[ow.Array, ow.Array]:
        kept.append(x)
        return x * 2, x * 3

    keeps.register_fake(lambda x: (ow.empty_like(x), ow.empty_like(x)))
    print(private.references_of_two_calls() > 0)
    print([out.tolist() for out in jax.jit(two)(jax.numpy.ones(2))])
    try:
        jax.block_until_ready(jax.jit(keeps)(jax.numpy.ones(2)))
    except Exception as error:
        print("keeps a view of one of its arrays after the call" in str(error))
"""


@pytest.mark.parametrize("order", [(LOAD, LEAVE, CALL), (LEAVE, LOAD, CALL)], ids=["before", "after"])
def test_a_kernel_that_keeps_nothing_runs_and_one_that_keeps_a_view_is_refused(order):
    """JAX's side of the package is loaded before torch leaves its frame evaluation, or after."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "".join(map(textwrap.dedent, order))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "RecompileError",
        "True",
        "[[2.0, 2.0], [3.0, 3.0]]",
        "True",
    ], done.stderr


def test_what_nobody_else_holds_is_known_whatever_evaluates_frames():
    from opwright.frameworks.jax import private

    def one(thing):
        return sys.getrefcount(thing)

    found = one(object())  # an assertion of pytest's would hold it too
    # An earlier test may have left torch's frame evaluation behind, in which a call holds what it passes.
    assert found == private._SOLE + private.references_of_two_calls() // 2
