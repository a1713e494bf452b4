"""Threads that define, redefine, register and call at once. I144."""

from __future__ import annotations

import gc
import random
import sys
import threading

import numpy as np
import pytest

import opwright as ow
from opwright import registry
from opwright.errors import StaleError

X = np.arange(3.0)
THREADS, NAMES, ROUNDS = 32, 4, 40


@pytest.fixture
def hurry():
    """Let threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _run(work):
    errors = []
    start = threading.Barrier(THREADS)

    def run(n):
        try:
            start.wait(30)
            work(n)
        except BaseException as error:  # noqa: BLE001  (reported below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not [thread for thread in threads if thread.is_alive()]
    assert errors == []


@pytest.mark.usefixtures("hurry")
def test_32_threads_define_call_register_and_destroy_4_names(ns):
    def define(name, n):
        @ow.custom_op(f"{ns}::{name}", mutates_args=())
        def f(x: np.ndarray, k: float = 2.0) -> np.ndarray:
            return x * k + n

        return f

    for name in range(NAMES):
        define(f"f{name}", 0)

    def work(n):
        rng = random.Random(n)  # noqa: S311  (no secret)
        for _ in range(ROUNDS):
            name = f"f{rng.randrange(NAMES)}"
            found = getattr(getattr(ow.ops, ns), name).default
            mine = define(name, n) if rng.random() < 0.2 else found
            try:
                before = mine(X)
                # A whole number: the body that one definition has, or the kernel that one thread put over it.
                assert before[1] - before[0] == 2.0
                with_kernel = mine.register_kernel("cpu", lambda x, k: x * k + 1000)
                during = mine(X)
                assert during[1] - during[0] == 2.0
                with_kernel.destroy()
                mine.register_fake(lambda x, k: x).destroy()
            except StaleError:
                continue  # another thread redefined it meanwhile: it says so, and never mixes

    _run(work)
    for name in range(NAMES):
        (record,) = registry.overloads_of(f"{ns}::f{name}")
        assert record.stale is None
        assert [kernel.key for kernel in record.kernels] == ["CompositeExplicitAutograd"]
        assert record.rules == ()
        np.testing.assert_array_equal(np.diff(record.operator(X)), [2.0, 2.0])


@pytest.mark.usefixtures("hurry")
def test_a_first_call_from_every_thread_at_once(ns):
    for round_ in range(10):

        @ow.custom_op(f"{ns}::g{round_}", mutates_args=())
        def g(x: np.ndarray) -> np.ndarray:
            return x + 1

        results = []

        def call(_, g=g, results=results):
            results.extend(g(X) for _ in range(5))

        _run(call)
        assert len(results) == 5 * THREADS
        assert all((one == X + 1).all() for one in results)


@pytest.mark.usefixtures("hurry")
def test_libraries_that_come_and_go(ns):
    with ow.Library(ns, "FRAGMENT") as outer:
        outer.define("f(Tensor x) -> Tensor")
        outer.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
        f = getattr(ow.ops, ns).f.default

        def work(n):
            for round_ in range(20):
                lib = ow.Library(ns, "FRAGMENT")
                lib.define(f"own{n}(Tensor x) -> Tensor")
                lib.impl("f", lambda x: x + 2, "CPU")
                assert f(X)[0] in (1.0, 2.0)
                if round_ % 2:
                    lib.destroy()
                del lib

        _run(work)
        gc.collect()
        np.testing.assert_array_equal(f(X), X + 1)
        assert dir(getattr(ow.ops, ns)) == ["f"]
        assert len(f._record.kernels) == 1


def test_one_thread_makes_a_def_library(ns):
    made, refused = [], []

    def work(n):
        try:
            made.append(ow.Library(ns, "DEF"))
        except RuntimeError as error:
            refused.append(error)

    _run(work)
    assert (len(made), len(refused)) == (1, THREADS - 1)
    made[0].destroy()


def test_an_overload_for_each_thread(ns):
    def work(n):
        ow.custom_op(f"{ns}::f.o{n}", lambda x: x + n, mutates_args=(), schema="(Tensor x) -> Tensor")

    _run(work)
    packet = getattr(ow.ops, ns).f
    assert sorted(packet.overloads()) == sorted(f"o{n}" for n in range(THREADS))
    for n in range(THREADS):
        np.testing.assert_array_equal(getattr(packet, f"o{n}")(X), X + n)
