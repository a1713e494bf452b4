"""Operators and packets go by name into other processes. I145."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest

import opwright as ow
from opwright.errors import OpCheckError, StaleError

X = np.arange(3.0)
NS = "pickled"

MODULE = """
import numpy as np
import opwright as ow


@ow.custom_op("pickledmod::scale", mutates_args=())
def scale(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    return x * k


library = ow.Library("pickledmod", "FRAGMENT")
library.define("defined(Tensor x) -> Tensor")
library.impl("defined", lambda x: x + 1, "CPU")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "pickled_operators.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import pickled_operators

    yield pickled_operators
    del sys.modules["pickled_operators"]
    pickled_operators.library.destroy()
    pickled_operators.scale._lib.destroy()


def _call(op, x):
    return op(x)


def test_in_the_same_process_it_is_the_same_object(module):
    packet = ow.ops.pickledmod.scale
    for one in (module.scale, packet.default, ow.ops.pickledmod.defined.default):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(one, protocol)) is one
    assert pickle.loads(pickle.dumps(packet)) is packet


@pytest.mark.parametrize("name", ["scale", "defined"])
def test_in_another_process_its_module_is_imported(module, tmp_path, name):
    op = getattr(ow.ops.pickledmod, name).default
    (tmp_path / "op.pickle").write_bytes(pickle.dumps({"op": op}))
    script = (
        "import pickle, sys, numpy as np\n"
        "op = pickle.load(open('op.pickle', 'rb'))['op']\n"
        "assert 'pickled_operators' in sys.modules\n"
        "print(op(np.ones(2)).tolist())"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert out.stdout == "[2.0, 2.0]\n"


def test_a_pool_of_spawned_processes(module):
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(module.scale, (X,)), X * 2)
        np.testing.assert_array_equal(pool.map(module.scale, [X]), [X * 2])


def test_a_stale_operator_is_not_pickled_as_its_successor(ns):
    f = ow.custom_op(f"{ns}::f", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")
    ow.custom_op(f"{ns}::f", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")
    with pytest.raises(StaleError, match="was redefined at"):
        pickle.dumps(f)


def test_where_the_module_does_not_define_it(ns):
    lib = ow.Library(ns, "FRAGMENT")
    lib.define("f.a(Tensor x) -> Tensor")
    text = pickle.dumps(getattr(ow.ops, ns).f.a)
    lib.destroy()
    with pytest.raises(StaleError) as e:
        pickle.loads(text)
    assert str(e.value) == (
        f"operator {ns}::f.a is not defined in this process\n"
        f"  expected: module {__name__} to define it on import\n"
        "  to fix: define operators at module level, in a module that can be imported"
    )


def test_a_packet_in_another_process(module, tmp_path):
    with ow.Library("pickledmod", "FRAGMENT") as lib:
        (tmp_path / "packet.pickle").write_bytes(pickle.dumps(ow.ops.pickledmod.scale))
        script = (
            "import pickle, numpy as np\n"
            "packet = pickle.load(open('packet.pickle', 'rb'))\n"
            "print(packet, packet(np.ones(2)).tolist())"
        )
        command = [sys.executable, "-c", script]
        out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert out.stdout == "<OperatorPacket pickledmod::scale (default)> [2.0, 2.0]\n"
        lib.define("gone(Tensor x) -> Tensor")
        packet = ow.ops.pickledmod.gone
        text = pickle.dumps(packet)
    with pytest.raises(StaleError, match="pickledmod::gone is not defined in this process"):
        pickle.loads(text)
    with pytest.raises(StaleError, match="pickledmod::gone was unregistered"):
        pickle.dumps(packet)


def _round_trips(value):
    yield copy.copy(value)
    yield copy.deepcopy(value)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(value, protocol))


def test_fakes_and_their_sizes():
    fake = ow.FakeArray(("n", 3), "float32", "cuda:0", framework="jax", weak_type=True)
    n = fake.shape[0]
    for shape in (fake.shape, (2 * n + 1,), (n // 2, n % 2)):
        for one in _round_trips(fake.new_empty(shape)):
            assert (one.shape, one.dtype, one.device) == (shape, fake.dtype, "cuda:0")
            assert (one.framework, repr(one.shape)) == ("jax", repr(shape))
    assert {one.weak_type for one in _round_trips(fake)} == {True}


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_an_opcheck_error_and_its_report(ns, framework):
    pytest.importorskip(framework)
    f = ow.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_fake(lambda x: ow.empty_like(x, dtype="int8"))
    with pytest.raises(OpCheckError) as e:
        ow.opcheck(f, (X,), frameworks=framework, test_utils=("test_faketensor", "schema"))
    for error in _round_trips(e.value):
        assert isinstance(error, OpCheckError)
        assert (str(error), str(error.report)) == (str(e.value), str(e.value.report))
        assert error.report.outcomes == e.value.report.outcomes
        assert str(error.report["test_faketensor"]) == str(e.value.report["test_faketensor"])
        assert error.report["schema"] == "SUCCESS"
