"""A GPU that is not there: Triton compiles for it, and its launches are written down instead of made.

Triton's own code decides what is compiled; only the last step, handing the kernel to the device, is
replaced. So what a launch from the cache would do can be compared with what a plain one would do, anywhere.
"""

from __future__ import annotations

from contextlib import contextmanager

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from opwright.frameworks.base import Launching
from opwright.frameworks.torch import triton as torch_triton
from opwright.frameworks.torch.framework import TorchFramework
from opwright.kernels import triton_cache

LAYOUT = tuple(int(part) for part in triton.__version__.split(".")[:2])
launches: list[tuple] = []


def plain(value):
    """Return what the device would get of an argument."""
    return value.data_ptr() if hasattr(value, "data_ptr") else value


class CudaLauncher:
    """Writes down: grid, stream, compiled kernel, arguments."""

    scratch = 0

    def __init__(self, src, metadata):
        self.global_scratch_size = self.scratch
        self.profile_scratch_size = 0
        self.launch_cooperative_grid = False
        self.launch_pdl = False
        self.arg_annotations = self.kernel_signature = ()
        self.constants = {name for name, type_ in src.signature.items() if type_ == "constexpr"}
        self.names = list(src.signature)
        self.src = src

    def __call__(self, x, y, z, stream, function, metadata, launch_metadata, enter, leave, *args):
        flags = (self.launch_cooperative_grid, self.launch_pdl)
        hooks = (metadata, launch_metadata, enter, leave)
        if LAYOUT >= (3, 7):
            self.launch(x, y, z, stream, function, *flags, *hooks, None, None, (), (), args)
        elif LAYOUT >= (3, 5):
            self.launch(x, y, z, stream, function, *flags, None, None, *hooks, *args)
        else:
            self.launch(x, y, z, stream, function, *flags, None, *hooks, *args)

    def launch(self, x, y, z, stream, function, *rest):
        if LAYOUT >= (3, 7):
            hooks, args = rest[2:6], rest[-1]
        else:
            start = 4 if LAYOUT >= (3, 5) else 3
            hooks, args = rest[start : start + 4], rest[start + 4 :]
        if hooks[2] is not None:
            hooks[2](hooks[1])
        values = {
            name: plain(value)
            for name, value in zip(self.names, args, strict=True)
            if name not in self.constants
        }
        launches.append(((x, y, z), stream, function, values))
        if hooks[3] is not None:
            hooks[3](hooks[1])


class Utils:
    def load_binary(self, name, kernel, shared, device):
        return object(), f"{name}@{device}:{hash(bytes(kernel))}", 0, 0, 1024

    def unload_module(self, module):
        pass

    def get_device_properties(self, device):
        return {"max_shared_mem": 1 << 20}


class Driver:
    def __init__(self):
        self.utils = Utils()
        self.launcher_cls = CudaLauncher
        self.device = -1  # where tensors on the CPU say they are
        self.stream = 7
        self.benchmarks = 0

    def get_current_target(self):
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return self.stream

    def get_benchmarker(self):
        def bench(call, quantiles):
            call()
            self.benchmarks += 1
            return [float(self.benchmarks)] * 3  # the first config wins

        return bench


def launching(stub):
    """Return how tensors on the CPU reach the GPU that is not there."""
    return Launching(
        address="{}.data_ptr()",
        dtype="{}.dtype",
        device="{}.get_device()",
        is_plain=torch_triton._CLASSES.__contains__,
        current_device=stub.get_current_device,
        current_stream=stub.get_current_stream,
        launch=torch_triton.launch,
        busy=torch_triton.private.dispatch_mode_count,
    )


@contextmanager
def gpu():
    """Make the absent GPU Triton's active one, for a block."""
    before, usual = driver._active, TorchFramework.launching
    stub = Driver()
    driver.set_active(stub)
    TorchFramework.launching = lambda _: launching(stub)
    triton_cache.runtime.cache_clear()
    launches.clear()
    try:
        yield stub
    finally:
        triton_cache.runtime.cache_clear()
        driver._active = before
        TorchFramework.launching = usual


def captured(launch):
    """Return what a launch would have done, and what it returned."""
    launches.clear()
    returned = launch()
    return list(launches), returned
