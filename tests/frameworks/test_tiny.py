"""A framework that another distribution adds through the entry point group: the engine is not touched.

The two files of ``tests/tiny`` are all of it. Each scenario runs in a process of its own, with a
distribution that offers the entry point on ``sys.path``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY = Path(__file__).resolve().parent.parent / "tiny"
START = """
import sys
import numpy as np
import opwright as ow
from opwright import catalogue
"""


@pytest.fixture
def run(tmp_path):
    """Run a script where the distribution is installed."""
    info = tmp_path / "opwright_tiny-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: opwright-tiny\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[opwright.frameworks]\ntiny = opwright_tiny:INFO\n")

    def run(script):
        path = os.pathsep.join([str(tmp_path), str(TINY), *sys.path])
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", START + script],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_numpy_kernel_runs_on_it_in_its_own_memory(run):
    out = run("""
seen = []

@ow.custom_op("t::scale", mutates_args=())
def scale(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    seen.append(x)
    return x * k

assert "opwright_tiny" not in sys.modules
import tinyarrays
a = tinyarrays.Array([1.0, 2.0])
for _ in range(3):
    out = scale(a, k=np.int64(3))
assert type(out) is tinyarrays.Array and out.data.tolist() == [3.0, 6.0]
assert type(seen[0]) is np.ndarray and np.shares_memory(seen[0], a.data)
assert scale(np.ones(2)).tolist() == [2.0, 2.0]
print("fine")
""")
    assert out == "fine\n"


def test_a_kernel_of_its_own_flavour_goes_first_and_runs_on_numpy_through_dlpack(run):
    out = run("""
import tinyarrays

@ow.custom_op("t::f", mutates_args=())
def f(x: tinyarrays.Array) -> tinyarrays.Array:
    assert type(x) is tinyarrays.Array
    return x * 3

assert f._record.flavour == "tiny"
assert f(tinyarrays.Array([1.0])).data.tolist() == [3.0]
x = np.ones(2)
assert f(x).tolist() == [3.0, 3.0]

@f.register_kernel("cpu")
def numpy_body(x: np.ndarray) -> np.ndarray:
    return x * 5

assert f(tinyarrays.Array([1.0])).data.tolist() == [3.0]
assert f(x).tolist() == [5.0, 5.0]

@f.register_kernel("xpu")
def far(x):
    return x * 7

assert f(tinyarrays.Array([1.0], "xpu")).data.tolist() == [7.0]
print("fine")
""")
    assert out == "fine\n"


def test_lists_and_optional_arrays_cross(run):
    out = run("""
import tinyarrays
from collections.abc import Sequence

@ow.custom_op("t::total", mutates_args=())
def total(xs: Sequence[np.ndarray], y: np.ndarray | None = None) -> tuple[np.ndarray, list[np.ndarray]]:
    assert all(type(x) is np.ndarray for x in xs)
    return sum(xs) + (0 if y is None else y), [x * 2 for x in xs]

a = tinyarrays.Array([1.0])
one, many = total([a, a], y=a)
assert one.data.tolist() == [3.0] and [m.data.tolist() for m in many] == [[2.0], [2.0]]
assert type(many[0]) is tinyarrays.Array
print("fine")
""")
    assert out == "fine\n"


def test_it_hears_of_changes_and_is_in_every_list(run):
    out = run("""
import tinyarrays

@ow.custom_op("t::f", mutates_args=())
def f(x: tinyarrays.Array) -> tinyarrays.Array:
    return x * 3

import opwright_tiny
events = opwright_tiny.FRAMEWORK.events
f(tinyarrays.Array([1.0]))
f.register_kernel("cpu", lambda x: x * 4).destroy()
assert events == [("add", "t::f"), ("remove", "t::f")], events
assert f(tinyarrays.Array([1.0])).data.tolist() == [3.0]
assert "tiny" in catalogue.flavours()
assert ow.custom_op("t::f", f.__wrapped__, mutates_args=())(tinyarrays.Array([1.0])).data.tolist() == [3.0]
assert events[2:] == [("undefine", "t::f")]
ow.attach("tiny")
print("fine")
""")
    assert out == "fine\n"


@pytest.mark.parametrize("order", ["(a, x)", "(x, a)"])
@pytest.mark.parametrize("warm", ["", "for _ in range(4): f(x, x); f(a, a)"])
def test_a_mixture_names_both(run, order, warm):
    out = run(f"""
import tinyarrays

@ow.custom_op("t::f", mutates_args=())
def f(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x + y

a, x = tinyarrays.Array([1.0]), np.ones(1)
{warm}
try:
    f{order}
except ow.errors.MixedFrameworksError as error:
    print(error)
""")
    first, second = ("tiny", "numpy") if order == "(a, x)" else ("numpy", "tiny")
    assert out == (
        "t::f was called with arrays of 2 frameworks\n"
        "  expected: arrays of one framework\n"
        f"  got: x of {first}, y of {second}\n"
        "  to fix: convert them to one framework first; data is never moved without being asked\n"
    )


def test_a_device_without_a_kernel(run):
    out = run("""
import tinyarrays

def body(x):
    return x * 2

op = ow.custom_op("t::f", body, mutates_args=(), schema="(Tensor x) -> Tensor", flavour="numpy")
f = op(tinyarrays.Array([1.0]))
try:
    op(tinyarrays.Array([1.0], "xpu"))
except ow.errors.NoKernelError as error:
    print(error)
""")
    assert out == (
        "t::f has no kernel for tiny arrays on xpu\n"
        "  expected: kernels for any device (numpy, <string>:9)\n"
        "  got: tiny arrays on xpu\n"
        "  registered at: <string>:9\n"
        "  to fix: register one: @opwright.register_kernel('t::f', 'xpu')\n"
    )


def test_an_array_api_kernel_takes_it(run):
    out = run("""
import tinyarrays

@ow.custom_op("t::f", mutates_args=())
def f(x: ow.Array, y: ow.Array) -> ow.Array:
    return x + y

a = tinyarrays.Sub([1.0])
assert f(a, a).data.tolist() == [2.0]
assert f(np.ones(1), np.ones(1)).tolist() == [2.0]
print("fine")
""")
    assert out == "fine\n"


def test_its_outputs_are_checked(run):
    out = run("""
import tinyarrays

@ow.custom_op("t::f", mutates_args=())
def f(x: tinyarrays.Array) -> tinyarrays.Array:
    return x

@ow.custom_op("t::g", mutates_args=())
def g(x: tinyarrays.Array) -> tinyarrays.Array:
    return 3

for op, kind in (f, ow.errors.AliasError), (g, ow.errors.OutputError):
    try:
        op(tinyarrays.Array([1.0]))
    except kind as error:
        print(str(error).splitlines()[0])
""")
    assert out == (
        "output 0 of t::f is argument x itself; an output may not alias an argument or another output\n"
        "kernel of t::g returned something else than its schema says\n"
    )


def test_a_framework_by_its_own_objects_where_there_are_no_arrays(run):
    out = run("""
import tinyarrays

@ow.custom_op("t::make", mutates_args=())
def make(n: int) -> tinyarrays.Array:
    return tinyarrays.Array(np.zeros(n))

assert type(make(3)) is tinyarrays.Array
print("fine")
""")
    assert out == "fine\n"
