"""The CuPy framework without a GPU: an imitation of CuPy on NumPy, in a process of its own.

What is imitated is what the framework asks of CuPy: devices, streams, addresses. Real CuPy is tested in
``tests/cuda``.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

CUPY = """
    import sys, types
    import numpy as np
    log = []

    class Device:
        current = 0
        def __init__(self, index=None):
            self.id = Device.current if index is None else index
        def __enter__(self):
            self.before, Device.current = Device.current, self.id
            log.append(f"device {self.id}")
        def __exit__(self, *_):
            Device.current = self.before

    class Stream:
        current = 0
        def __init__(self, ptr=5):
            self.ptr = ptr
        @classmethod
        def from_external(cls, other):
            return cls(other.__cuda_stream__()[1])
        def __enter__(self):
            self.before, Stream.current = Stream.current, self.ptr
            log.append(f"stream {self.ptr}")
        def __exit__(self, *_):
            Stream.current = self.before
    Stream.null = Stream(0)

    class ndarray:
        def __init__(self, array, device=0):
            self.array = array
            self.device = Device(device)
            memory = types.SimpleNamespace(ptr=owner(array))
            self.data = types.SimpleNamespace(ptr=array.ctypes.data, mem=memory)
        shape = property(lambda self: self.array.shape)
        ndim = property(lambda self: self.array.ndim)
        size = property(lambda self: self.array.size)
        dtype = property(lambda self: self.array.dtype)
        strides = property(lambda self: self.array.strides)
        def __getitem__(self, index):
            return ndarray(self.array[index], self.device.id)
        def __mul__(self, other):
            return ndarray(self.array * getattr(other, "array", other), self.device.id)
        def fill(self, value):
            self.array[...] = value
        def astype(self, dtype, copy=True):
            return ndarray(self.array.astype(dtype, copy=copy), self.device.id)
        def __dlpack__(self, **kwargs):
            return self.array.__dlpack__()
        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    def owner(array):
        while isinstance(array.base, np.ndarray):
            array = array.base
        return array.ctypes.data

    cupy = types.ModuleType("cupy")
    cupy.ndarray = ndarray
    cupy.asnumpy = lambda a: a.array
    cupy.asarray = lambda a: ndarray(np.asarray(a), Device.current)
    cupy.from_dlpack = lambda a: ndarray(np.from_dlpack(a))
    cupy.may_share_memory = lambda a, b: np.may_share_memory(a.array, b.array)
    cupy.cuda = types.ModuleType("cupy.cuda")
    cupy.cuda.Device, cupy.cuda.Stream = Device, Stream
    cupy.cuda.runtime = types.SimpleNamespace(getDevice=lambda: Device.current)
    cupy.cuda.get_current_stream = lambda device=-1: types.SimpleNamespace(ptr=Stream.current)
    sys.modules.update({"cupy": cupy, "cupy.cuda": cupy.cuda})
    import opwright as ow
    from opwright.frameworks.base import load

    @ow.custom_op("c::twice", mutates_args=())
    def twice(x: cupy.ndarray, k: float = 2.0) -> cupy.ndarray:
        log.append(f"kernel on {Device.current}")
        return x * k

    @ow.custom_op("c::fill", mutates_args=("x",))
    def fill(x: cupy.ndarray) -> None:
        x.fill(7)

    x = ndarray(np.arange(4.0))
"""


def imitated(body):
    """Run ``body`` after the imitation, in a process of its own."""
    code = textwrap.dedent(CUPY) + textwrap.dedent(body)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr


def test_a_kernel_of_its_own_flavour_runs_on_the_arrays_device():
    imitated("""
        for _ in range(5):
            assert (twice(x).array == x.array * 2).all()
        assert log == ["kernel on 0"] * 5
        log.clear()
        y = ndarray(np.arange(4.0), device=1)
        out = twice(y, 3)
        assert log == ["device 1", "kernel on 1"] and out.device.id == 1 and Device.current == 0
    """)


def test_mutation_and_aliases():
    imitated("""
        fill(x[::2])
        assert x.array.tolist() == [7, 1, 7, 3]
        for bad in (np.broadcast_to(np.zeros(1), (4,)),):
            try:
                fill(ndarray(bad))
            except TypeError as error:
                assert "read-only" in str(error), error
            else:
                raise AssertionError("an array whose elements share memory was mutated")
        fill(ndarray(np.zeros((0, 3))))
        schema = "(Tensor x) -> Tensor"
        same = ow.custom_op("c::same", lambda x: x[1:], mutates_args=(), schema=schema, flavour="cupy")
        try:
            same(x)
        except RuntimeError as error:
            assert "may not alias" in str(error)
        else:
            raise AssertionError("a view was returned")
    """)


def test_arrays_and_objects_go_over():
    imitated("""
        cupy_ = load("cupy")
        assert cupy_.device_type(x) == "cuda"
        assert cupy_.convert("ScalarType", "float32") == np.float32
        assert cupy_.convert("Device", "cuda:3").id == 3
        assert cupy_.convert("Device", "cuda").id == 0
        assert cupy_.convert("Device", Device(2)).id == 2
        assert cupy_.cast(x, "float16").dtype == np.float16
        try:
            cupy_.convert("Device", "cpu")
        except ValueError as error:
            assert str(error) == "CuPy arrays are on cuda, not on cpu"
        else:
            raise AssertionError("a CuPy array on the cpu")
        assert (cupy_.from_numpy(np.ones(2)).array == 1).all()
        assert (cupy_.to_numpy(x) == x.array).all()
        try:
            twice(np.ones(3))
        except NotImplementedError as error:
            assert "has no kernel for numpy arrays on cpu" in str(error), error
        else:
            raise AssertionError("a kernel for cuda ran on the cpu")
    """)


def test_streams_are_handed_over():
    imitated("""
        cupy_ = load("cupy")
        with Stream(9):
            assert cupy_.stream_of(x) == (0, 9)
        log.clear()
        with cupy_.on_stream(0, 11):
            assert Stream.current == 11
        with cupy_.on_stream(None, 0):
            assert Stream.current == 0
        assert log == ["stream 11", "stream 0"]
        launching = cupy_.launching()
        assert launching.is_plain(ndarray) and not launching.is_plain(np.ndarray)
        assert eval(launching.address.format("x")) == x.array.ctypes.data
        assert eval(launching.device.format("x")) == 0 == launching.current_device()
        with Stream(13):
            assert launching.current_stream(0) == 13
    """)


def test_functions_that_take_any_dlpack_array():
    imitated("""
        ow.define("c::scale", "(Tensor x, float k) -> Tensor")

        @ow.register_kernel("c::scale", "cuda", flavour="dlpack")
        def scale(x, k):
            return np.from_dlpack(x) * k

        out = ow.ops.c.scale(x, 3.0)
        assert type(out) is ndarray and (out.array == x.array * 3).all()
    """)


def test_a_numpy_kernel_that_arrays_may_be_copied_for():
    imitated("""
        cupy.asnumpy = lambda a: a.array.copy()
        ndarray.__setitem__ = lambda self, index, other: self.array.__setitem__(index, other.array)
        op = ow.custom_op("c::host", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor",
                          flavour="numpy")
        y = ndarray(np.arange(4.0), device=1)
        try:
            op(y)
        except NotImplementedError as error:
            assert "no kernel for cupy arrays on cuda" in str(error), error
        else:
            raise AssertionError("data was moved unasked")
        seen = []
        op.register_kernel("cuda", lambda x: seen.append(type(x)) or x + 2, copy=True)
        for _ in range(4):
            out = op(y)
            assert type(out) is ndarray and out.device.id == 1 and out.array.tolist() == [2, 3, 4, 5]
        assert seen == [np.ndarray] * 4
        assert op(np.zeros(2)).tolist() == [1, 1]

        ow.define("c::add_", "(Tensor(a!) x, Tensor y, *, Tensor(b!)[] out) -> Tensor(a!)")

        @ow.register_kernel("c::add_", "cuda", flavour="numpy", copy=True)
        def add_(x, y, *, out):
            x += y
            out[0][...] = x * 2
            y += 100
            return x

        out = ndarray(np.zeros(4), device=1)
        assert ow.ops.c.add_(y, y * 10, out=[out]) is y
        assert y.array.tolist() == [0, 11, 22, 33] and out.array.tolist() == [0, 22, 44, 66]
    """)


def test_triton_kernels_are_launched_on_cupys_stream():
    pytest.importorskip("triton", reason="needs the package triton")
    imitated("""
        import contextlib
        from opwright.frameworks import cupy as framework

        calls = []

        class Interface:
            ExternalStream = staticmethod(lambda ptr, device: (ptr, device))
            device = staticmethod(lambda index: contextlib.nullcontext(calls.append(f"device {index}")))
            stream = staticmethod(lambda stream: contextlib.nullcontext(calls.append(f"stream {stream}")))

        from triton.runtime import driver
        driver._active = types.SimpleNamespace(get_device_interface=lambda: Interface)

        class Kernel:
            def __getitem__(self, grid):
                return lambda *args, **kwargs: calls.append((grid, args, kwargs)) or "compiled"

        layers = types.SimpleNamespace(interpreted=False, name="k")
        launcher = types.SimpleNamespace(kernel=Kernel(), layers=layers)
        y = ndarray(np.arange(4.0), device=1)
        with Stream(21):
            assert framework.launch(launcher, (1,), (y, 4), {"out": y}) == "compiled"
        assert calls[:2] == ["device 1", "stream (21, 1)"]
        grid, (pointer, n), named = calls[2]
        assert pointer.data_ptr() == named["out"].data_ptr() == y.array.ctypes.data
        assert pointer.dtype == "float64" and n == 4
        layers.interpreted = True
        try:
            framework.launch(launcher, (1,), (y, 4), {})
        except TypeError as error:
            assert "runs in the interpreter, which takes torch tensors" in str(error)
        else:
            raise AssertionError("the interpreter got CuPy arrays")
    """)
