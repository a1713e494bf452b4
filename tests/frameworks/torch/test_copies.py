"""Kernels that arrays are copied to the host for, on a device that is none: its tensors hold NumPy arrays.

The device is torch's ``privateuseone`` with a backend in Python, in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import opwright as ow

pytest.importorskip("torch.utils.backend_registration")

DEVICE = """
    import numpy as np
    import pytest
    import torch
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    import opwright as ow

    _setup_privateuseone_for_python_backend()

    class Far(torch.Tensor):
        @staticmethod
        def __new__(cls, array):
            made = torch._C._acc.create_empty_tensor(array.shape, torch.from_numpy(array[:0]).dtype)
            made.__class__ = Far
            return made

        def __init__(self, array):
            self.array = array

    def impl(name):
        return torch.library.impl(name, "privateuseone")

    @impl("aten::detach")
    def detach(x):
        return Far(x.array)

    @impl("aten::_copy_from")
    def copy_from(source, target, non_blocking=False):
        array = source.array if isinstance(source, Far) else source.detach().numpy()
        if isinstance(target, Far):
            target.array[...] = array
        else:
            target.copy_(torch.from_numpy(array.copy()))
        return target

    @impl("aten::empty.memory_format")
    def empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return Far(torch.empty(size, dtype=dtype).numpy())

    @impl("aten::empty_strided")
    def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
        return Far(torch.empty(size, dtype=dtype).numpy())

    @impl("aten::mul.Tensor")
    def mul(a, b):
        return Far(a.array * getattr(b, "array", b))

    def far(*values):
        return torch.tensor(values, dtype=torch.float32).to("privateuseone")

    def values(tensor):
        assert type(tensor) is Far and tensor.device.type == "privateuseone"
        return tensor.cpu().tolist()
"""


def run(text):
    """Run a script after the device is made; return what it printed."""
    path = os.pathsep.join([str(Path(ow.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(DEVICE) + textwrap.dedent(text)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


pytestmark = pytest.mark.skipif(
    not hasattr(getattr(torch._C, "_acc", None), "create_empty_tensor"),
    reason="this torch has no backends in Python",
)


def test_results_come_back_to_the_device():
    run(
        """
        @ow.custom_op("far::twice", mutates_args=())
        def twice(x: np.ndarray) -> np.ndarray:
            return x * 2

        for call in (twice, torch.ops.far.twice):
            with pytest.raises(ow.errors.NoKernelError, match="no kernel for torch arrays on privateuseone"):
                call(far(1, 2))

        def scale(x, k=2.0):
            assert type(x) is np.ndarray
            return np.asfortranarray(x * np.float32(k))

        for number, devices in enumerate(["privateuseone", ("cpu", "privateuseone"), None]):
            name = f"far::scale{number}"
            ow.define(name, "(Tensor x, float k=2.0) -> Tensor")
            ow.register_kernel(name, "cpu", lambda x, k=2.0: x * 0, flavour="numpy")
            op = getattr(ow.ops.far, f"scale{number}").default
            op.register_kernel(devices, scale, flavour="numpy", copy=True)
            for call in (op, getattr(torch.ops.far, f"scale{number}")):
                for _ in range(5):
                    assert values(call(far(1, 2), 3.0)) == [3, 6]
            key = "PrivateUse1" if devices else "CompositeExplicitAutograd"
            assert values(ow.get_kernel(op, key).call_boxed(None, far(1, 2), 3.0)) == [3, 6]
            on_cpu = op(torch.ones(2), 3.0)
            assert type(on_cpu) is torch.Tensor
            assert on_cpu.tolist() == ([3, 3] if isinstance(devices, tuple) else [0, 0])

        split = ow.custom_op(
            "far::split",
            lambda xs, y=None: (xs[0] + 1, [x * 2 for x in xs]),
            mutates_args=(),
            schema="(Tensor[] xs, Tensor? y=None) -> (Tensor, Tensor[])",
            flavour="numpy",
        )
        split.register_kernel(None, lambda xs, y=None: (xs[0] + 1, [x * 2 for x in xs]), copy=True)
        for _ in range(4):
            one, several = split([far(1, 2), far(3)], far(4))
            assert values(one) == [2, 3]
            assert [values(each) for each in several] == [[2, 4], [6]]
        """
    )


def test_mutated_arguments_are_written_back():
    run(
        """
        ow.define("far::add_", "(Tensor(a!) x, Tensor y, *, Tensor(b!)[] out) -> ()")

        @ow.register_kernel("far::add_", "privateuseone", flavour="numpy", copy=True)
        def add_(x, y, *, out):
            x += y
            for one in out:
                one[...] = x * 2

        for call in (ow.ops.far.add_, torch.ops.far.add_):
            for _ in range(4):
                x, y, out = far(1, 2), far(10, 20), [far(0, 0), far(0, 0)]
                assert call(x, y, out=out) is None
                assert values(x) == [11, 22]
                assert values(y) == [10, 20]
                assert [values(one) for one in out] == [[22, 44]] * 2

        ow.define("far::same_", "(Tensor(a!) x) -> Tensor(a!)")

        @ow.register_kernel("far::same_", "privateuseone", flavour="numpy", copy=True)
        def same_(x):
            x *= 2
            return x

        x = far(1, 2)
        assert ow.ops.far.same_(x) is x
        assert values(x) == [2, 4]

        held = torch.library.Library("farheld", "FRAGMENT")  # an operator that torch's dispatcher holds
        held.define("plus(Tensor x) -> Tensor")
        ow.register_kernel("farheld::plus", "privateuseone", lambda x: x + 1, flavour="numpy", copy=True)
        assert values(torch.ops.farheld.plus(far(1, 2))) == [2, 3]
        """
    )
