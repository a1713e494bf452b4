"""Commits that change all or nothing, handles that undo them in any order, duplicates, and what waits."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import threading
import warnings
import weakref

import numpy as np
import pytest

import opwright as ow
from opwright import registry
from opwright.duplicates import OverrideWarning
from opwright.errors import DuplicateError, RegistrationError, StaleError
from opwright.registry import Handle, PendingWarning
from opwright.source import source_of

X = np.arange(3.0)


def _line(fn):
    return source_of(fn)


def _elsewhere(text, file="/elsewhere/plugin.py"):
    """Run text as another source file; return its names."""
    scope = {"ow": ow, "np": np}
    exec(compile(text, file, "exec"), scope)
    return scope


def _state(ns):
    """Everything that the registry holds of a namespace."""
    records = {key: r for key, r in registry.records.items() if key.startswith(f"{ns}::")}
    return {
        "records": records,
        "parts": [(r.kernels, r.rules, r.fallbacks, r.stale, r.tags) for r in records.values()],
        "enabled": [k.enabled for r in records.values() for k in r.kernels],
        "overloads": {r.name: registry.overloads_of(r.name) for r in records.values()},
        "pending": {k: v for k, v in registry.pending.items() if k.startswith(f"{ns}::")},
        "fallbacks": dict(registry.fallbacks),
    }


@pytest.fixture
def f(ns):
    @ow.custom_op(f"{ns}::f", mutates_args=())
    def f(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        return x * k

    return f


class Broken(Exception):
    """What the listener raises."""


@pytest.fixture
def listener():
    """Events heard; the test says at which of them to raise."""
    heard, raise_at = [], set()

    def hear(event, record, item):
        heard.append(event)
        if event in raise_at:
            raise_at.discard(event)
            raise Broken(event)

    registry.listeners.append(hear)
    hear.heard, hear.raise_at = heard, raise_at
    yield hear
    registry.listeners.remove(hear)


# ------------------------------------------------------------------ invariant 2: all or nothing


def good(x, k=2.0):
    return x + k


def bad(x):
    return x


WRONG = {
    "kernel": lambda op: op.register_kernel("cpu", bad),
    "two kernels, the second on no device of its flavour": lambda op: ow.register_kernel(
        op, ["cpu", "cuda"], good
    ),
    "kernel, not a function": lambda op: op.register_kernel("cpu", 3),
    "kernel, unknown device": lambda op: op.register_kernel("gpu", good),
    "fake": lambda op: op.register_fake(bad),
    "autograd": lambda op: op.register_autograd(lambda ctx: None),
    "setup_context": lambda op: op.register_autograd(lambda ctx, g: None, setup_context=lambda c, i, o: None),
    "jvp": lambda op: op.register_jvp(lambda ctx: None),
    "vmap": lambda op: op.register_vmap(bad),
    "autocast": lambda op: op.register_autocast("cuda", "int8"),
    "torch_dispatch": lambda op: op.register_torch_dispatch(3, good),
    "samples": lambda op: op.register_samples(bad),
    "impl": lambda op: ow.impl(op._qualname, ["cpu", "meta"], bad),
    "impl, unknown key": lambda op: ow.impl(op._qualname, ["cpu", "gpu"], good),
    "legacy define": lambda op: ow.define(
        ow.Library(op._qualname.partition("::")[0], "FRAGMENT"), "g(Tensor x) -> Tensor"
    )(good_for_nothing),
    "definition": lambda op: ow.custom_op(op._qualname, mutates_args="k")(good),
    "definition, unknown flavour": lambda op: ow.custom_op(
        op._qualname, mutates_args=(), schema="(Tensor x, float k) -> Tensor", flavour="tensorflow"
    )(good),
    "definition, unknown tag": lambda op: ow.custom_op(
        op._qualname, mutates_args=(), schema="(Tensor x, float k) -> Tensor", tags="fast"
    )(good),
    "kernel of a library that is not one": lambda op: ow.register_kernel(op, "cpu", good, lib=object()),
    "fake of a library that is not one": lambda op: ow.register_fake(op, good, lib=object()),
    "vmap of a library that is not one": lambda op: ow.register_vmap(op, lambda *a: None, lib="lib"),
}


def good_for_nothing(a, b, c):
    return None


@pytest.mark.parametrize("name", WRONG)
def test_a_failed_registration_changes_nothing(f, ns, name):
    before = _state(ns)
    with pytest.raises((RegistrationError, ValueError)):
        WRONG[name](f)
    assert _state(ns) == before
    np.testing.assert_array_equal(f(X), X * 2)


RIGHT = {
    "kernel": ("add", lambda op: op.register_kernel("cpu", good)),
    "kernels": ("add", lambda op: ow.register_kernel(op, ["cpu", "meta"], good)),
    "fake": ("add", lambda op: op.register_fake(good)),
    "autograd": ("add", lambda op: op.register_autograd(lambda ctx, g: None)),
    "jvp": ("add", lambda op: op.register_jvp(lambda ctx, a, b: None)),
    "vmap": ("add", lambda op: op.register_vmap(lambda *args: None)),
    "autocast": ("add", lambda op: op.register_autocast("cpu", "float16")),
    "torch_dispatch": ("add", lambda op: op.register_torch_dispatch(int, lambda *args: None)),
    "samples": ("add", lambda op: op.register_samples(list)),
    "fallback": (
        "add",
        lambda op: ow.Library(op._qualname.partition("::")[0], "IMPL").fallback(lambda *a: None, "CPU"),
    ),
    "enable": ("enable", lambda op: op.set_kernel_enabled("cpu", False).__enter__()),
    "definition": ("define", lambda op: ow.custom_op(op._qualname, op.__wrapped__, mutates_args=())),
    "redefinition": ("undefine", lambda op: ow.custom_op(op._qualname, op.__wrapped__, mutates_args=())),
    "another overload": (
        "define",
        lambda op: ow.custom_op(op._qualname + ".other", op.__wrapped__, mutates_args=()),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_listener_refuses_is_undone(f, ns, name, listener):
    f.register_kernel("cpu", lambda x, k: x * k)
    event, register = RIGHT[name]
    before = _state(ns)
    listener.raise_at.add(event)
    with pytest.raises(Broken, match=event):
        register(f)
    assert _state(ns) == before
    np.testing.assert_array_equal(f(X), X * 2)
    register(f)  # nothing is left in its way


def test_what_undoing_raises_too_is_a_note(f, listener):
    def hear(event, record, item):
        raise Broken("while undoing") if event == "remove" else Broken("first")

    registry.listeners.append(hear)
    try:
        with pytest.raises(Broken, match="first") as e:
            f.register_kernel("cpu", good)
    finally:
        registry.listeners.remove(hear)
    assert e.value.__notes__ == ["undoing it raised too: Broken: while undoing"]
    assert len(f._record.kernels) == 1


def test_a_warning_that_is_an_error_changes_nothing(f, ns):
    other = _elsewhere("def kernel(x, k=2.0):\n    return x")["kernel"]
    f.register_kernel(None, lambda x, k: x * k)
    before = _state(ns)
    with pytest.raises(OverrideWarning):
        f.register_kernel(None, other)
    with pytest.raises(OverrideWarning):
        ow.custom_op(f"{ns}::f", other, mutates_args=(), schema="(Tensor x, float k) -> Tensor")
    assert _state(ns) == before


def test_run_all_runs_all_and_raises_the_first():
    done = []

    def fail(word):
        raise ValueError(word)

    with pytest.raises(ValueError, match="one") as e:
        registry.run_all(
            [lambda: fail("one"), lambda: done.append(1), lambda: fail("two"), lambda: done.append(2)]
        )
    assert done == [1, 2]
    assert e.value.__notes__ == ["then, while undoing the rest: ValueError: two"]


# ------------------------------------------------------------------ invariant 3: duplicates and handles


def _adders(op):
    return [lambda x, k=2.0, n=n: x + n for n in (10, 20, 30)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_handles_restore_what_was_under_them_in_any_order(f, order):
    """Behaviours 57, 68, 71: registering again replaces; the handle brings back what was there."""
    handles = [f.register_kernel("cpu", kernel) for kernel in _adders(f)]
    left = [10, 20, 30]
    for index in order:
        np.testing.assert_array_equal(f(X), X + [n for n in left if n][-1])
        handles[index].destroy()
        handles[index].destroy()  # a second time does nothing
        assert not handles[index].alive
        left[index] = 0
    np.testing.assert_array_equal(f(X), X * 2)


@pytest.mark.parametrize("kind", ["fake", "vmap", "autograd", "jvp", "samples"])
def test_rules_restore_what_was_under_them(f, kind):
    register = getattr(f, f"register_{kind}")
    fns = [lambda *args, n=n: n for n in range(3)]
    if kind == "samples":
        fns = [lambda n=n: n for n in range(3)]
    handles = [register(fn) for fn in fns]
    assert f._record.rule(kind).fn is fns[2]
    handles[1].destroy()
    assert f._record.rule(kind).fn is fns[2]
    handles[2].destroy()
    assert f._record.rule(kind).fn is fns[0]
    handles[0].destroy()
    assert f._record.rule(kind) is None


def test_rules_of_two_slots_do_not_cover_each_other(f):
    f.register_autocast("cpu", "float16")
    f.register_autocast("cuda", "float32")
    assert [rule.dtype for rule in f._record.rules_of("autocast")] == ["float32", "float16"]


def test_another_source_file_is_warned_of_with_both_lines(f, ns):
    def mine(x, k):
        return x + 1

    f.register_kernel("cpu", mine)
    other = _elsewhere("\n\ndef kernel(x, k=2.0):\n    return x")["kernel"]
    with pytest.warns(OverrideWarning) as caught:
        handle = f.register_kernel("cpu", other)
    assert [str(w.message) for w in caught] == [
        f"kernel of {ns}::f for CPU registered at {_line(mine)} "
        "is replaced by the one at /elsewhere/plugin.py:3"
    ]
    assert caught[0].filename == __file__  # the caller's own line
    handle.destroy()
    np.testing.assert_array_equal(f(X), X + 1)


def test_a_definition_from_another_source_file_is_warned_of(f, ns):
    with pytest.warns(OverrideWarning) as caught:
        _elsewhere(
            f"@ow.custom_op('{ns}::f', mutates_args=())\ndef f(x: np.ndarray) -> np.ndarray:\n    return x"
        )
    first = _line(f)
    assert str(caught[0].message) == (
        f"operator {ns}::f registered at {first} is replaced by the one at /elsewhere/plugin.py:1"
    )


@pytest.mark.parametrize("file", ["/var/run/ipykernel_9/{}.py", "<ipython-input-{}-abc>", "<stdin>"])
def test_cells_of_a_notebook_are_one_file(ns, file):
    text = f"@ow.custom_op('{ns}::f', mutates_args=())\ndef f(x: np.ndarray) -> np.ndarray:\n    return x"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cell in (1, 2):
            _elsewhere(text, file.format(cell))
    assert ow.ops.__getattr__(ns).f.overloads() == ["default"]


def test_no_override_raises_with_both_lines(f, ns):
    first, second = (lambda x, k: x), (lambda x, k: x)
    f.register_fake(first)
    with pytest.raises(DuplicateError) as e:
        ow.register_fake(f, second, allow_override=False)
    assert str(e.value) == (
        f"fake rule of {ns}::f is already registered\n"
        f"  got: a second one at {_line(second)}\n"
        f"  registered at: {_line(first)}\n"
        "  to fix: destroy the first handle or Library, or pass allow_override=True"
    )


def test_a_handle_is_callable_as_its_function(f):
    def kernel(x, k=3.0):
        """What it does."""
        return x + k

    handle = f.register_kernel("cpu", kernel)
    assert isinstance(handle, Handle)
    np.testing.assert_array_equal(handle(X), X + 3)
    assert handle.__doc__ == "What it does."
    assert repr(handle) == f"<Handle of kernel ({_line(kernel)})>"
    assert handle.source == _line(kernel)
    assert handle.alive


def test_a_handle_can_be_registered_in_its_turn(f, ns):
    @ow.custom_op(f"{ns}::g", mutates_args=())
    def g(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        return x * k

    first = f.register_kernel("cpu", good)
    second = g.register_kernel("cpu", first)
    second.destroy()
    assert first.alive
    np.testing.assert_array_equal(f(X), X + 2)
    np.testing.assert_array_equal(g(X), X * 2)


def test_a_redefined_operators_old_handle_is_stale(f, ns):
    """Behaviour 15 and I141: later calls run the new body; the old handle never mixes old and new."""
    f.register_autograd(lambda ctx, grad: grad)

    def body(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        return x - k

    old_line, new = _line(f), ow.custom_op(f"{ns}::f", body, mutates_args=())
    np.testing.assert_array_equal(new(X), X - 2)
    assert new._record.rules == ()
    text = (
        f"operator {ns}::f was redefined at {_line(body)}; this handle is stale\n"
        f"  registered at: {old_line}\n"
        f"  to fix: take the operator anew, from opwright.ops.{ns}.f or its module"
    )
    for use in (lambda: f(X), lambda: f.register_kernel("cpu", good), lambda: f.register_vmap(bad)):
        with pytest.raises(StaleError) as e:
            use()
        assert str(e.value) == text
    assert getattr(ow.ops, ns).f.default is new


def test_handles_of_a_replaced_operator_do_not_touch_the_new_one(f, ns):
    handle = f.register_kernel("cpu", good)
    new = ow.custom_op(f"{ns}::f", f.__wrapped__, mutates_args=())
    new_handle = new.register_kernel("cpu", lambda x, k: x - k)
    handle.destroy()
    np.testing.assert_array_equal(new(X), X - 2)
    new_handle.destroy()
    np.testing.assert_array_equal(new(X), X * 2)


def test_a_redefinition_keeps_its_place_among_the_overloads(ns):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f.a(Tensor x) -> Tensor")
        lib.define("f.b(Tensor x, int k) -> Tensor")
        ow.custom_op(f"{ns}::f.a", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
        assert getattr(ow.ops, ns).f.overloads() == ["a", "b"]


def test_nothing_keeps_a_replaced_operator_alive(ns):
    def define():
        @ow.custom_op(f"{ns}::f", mutates_args=())
        def f(x: np.ndarray) -> np.ndarray:
            return x + 1

        f(X)
        return weakref.ref(f), weakref.ref(f._record)

    old, new = define(), define()
    gc.collect()
    assert [ref() for ref in old] == [None, None]
    assert None not in [ref() for ref in new]


# ------------------------------------------------------------------ what waits


def test_registrations_before_the_definition_are_made_with_it(ns):
    """I137, I149: the order of imports does not matter."""
    cpu = ow.register_kernel(f"{ns}::f", "cpu", lambda x, k: x + 10)
    rule = ow.register_torch_dispatch(f"{ns}::f", int, lambda mode, func, types, args, kwargs: 0)
    fake = ow.register_fake(f"{ns}::f", good)
    impl = ow.impl(f"{ns}::f", "meta", good)
    with ow.Library(ns, "IMPL") as lib:
        lib.impl("f", lambda x, k: x, "CUDA", flavour="torch")
        assert [entry.what for entry in registry.pending[f"{ns}::f.default"]] == [
            f"kernel for CPU of {ns}::f",
            f"dispatch rule of {ns}::f",
            f"fake of {ns}::f",
            f"kernel for Meta of {ns}::f",
            f"kernel for CUDA of {ns}::f",
        ]

        @ow.custom_op(f"{ns}::f", mutates_args=())
        def f(x: np.ndarray, k: float = 2.0) -> np.ndarray:
            return x * k

        assert f"{ns}::f.default" not in registry.pending
        np.testing.assert_array_equal(f(X), X + 10)
        assert f._record.rule("torch_dispatch", int) is not None
        assert f._record.rule("fake").fn is good
        assert f._record.kernel("CUDA").flavour == "torch"
    assert f._record.kernel("CUDA") is None
    cpu.destroy()
    np.testing.assert_array_equal(f(X), X * 2)
    rule.destroy()
    fake.destroy()
    assert f._record.rules == ()
    impl.destroy()
    assert f._record.kernel("Meta") is None


def test_what_waits_can_be_taken_back(ns):
    handles = [ow.register_kernel(f"{ns}::f", "cpu", good) for _ in range(3)]
    handles[1].destroy()
    assert len(registry.pending[f"{ns}::f.default"]) == 2
    handles[0].destroy()
    handles[2].destroy()
    handles[2].destroy()
    assert f"{ns}::f.default" not in registry.pending


def test_what_waits_is_named_where_the_operator_is_missed(ns):
    handle = ow.register_kernel(f"{ns}::f", "cpu", good)
    with pytest.raises(AttributeError) as e:
        getattr(ow.ops, ns).f
    assert str(e.value) == (
        f"no operator {ns}::f is defined; kernel for CPU of {ns}::f waits for it ({_line(good)}); "
        "import the module that defines it"
    )
    with pytest.raises(RegistrationError) as e:
        ow.register_vmap(f"{ns}::f", bad)
    assert str(e.value) == (
        f"operator {ns}::f does not exist\n"
        f"  got: kernel for CPU of {ns}::f waits for it ({_line(good)})\n"
        "  to fix: define it first, with opwright.custom_op or Library.define, or import the module that does"
    )
    handle.destroy()


def test_what_does_not_fit_is_dropped_with_a_warning(ns):
    wrong = ow.register_kernel(f"{ns}::f", "cpu", bad)
    right = ow.register_kernel(f"{ns}::f", "cuda", good, flavour="torch")
    with pytest.warns(PendingWarning) as caught:

        @ow.custom_op(f"{ns}::f", mutates_args=())
        def f(x: np.ndarray, k: float = 2.0) -> np.ndarray:
            return x * k

    assert [str(w.message) for w in caught] == [
        f"kernel for CPU of {ns}::f registered at {_line(bad)} was dropped: kernel of {ns}::f for CPU "
        "has another "
        "signature than the operator calls it with\n"
        "  expected: (x, k)\n"
        "  got: (x) (too many positional arguments)\n"
        f"  registered at: {_line(bad)}"
    ]
    np.testing.assert_array_equal(f(X), X * 2)
    assert f._record.kernel("CUDA").fn is good
    wrong.destroy()
    right.destroy()


def test_a_definition_that_fails_leaves_what_waits_waiting(ns, listener):
    handle = ow.register_kernel(f"{ns}::f", "cpu", good)
    waiting = registry.pending[f"{ns}::f.default"]
    listener.raise_at.add("add")  # as the kernel that waited is put in
    with pytest.raises(Broken):
        ow.custom_op(f"{ns}::f", good, mutates_args=(), schema="(Tensor x, float k=2.0) -> Tensor")
    assert registry.pending[f"{ns}::f.default"] == waiting
    assert f"{ns}::f.default" not in registry.records
    handle.destroy()


# ------------------------------------------------------------------ fallbacks, threads, fork


def test_fallbacks_cover_each_other_and_come_back(ns):
    made = [lambda op, *args, n=n: n for n in range(3)]
    with ow.Library(ns, "FRAGMENT") as lib, ow.Library("_", "IMPL") as all_of_them:
        lib.define("f(Tensor x) -> Tensor")
        record = registry.records[f"{ns}::f.default"]
        one = lib.fallback(made[0], "CPU")
        general = all_of_them.fallback(made[1], "CPU")
        assert record.fallbacks["CPU"].fn is made[0]  # the namespace's own goes first
        two = lib.fallback(made[2], "CPU")
        one.destroy()
        assert record.fallbacks["CPU"].fn is made[2]
        two.destroy()
        assert record.fallbacks["CPU"].fn is made[1]
        lib.define("later(Tensor x) -> Tensor")
        assert registry.records[f"{ns}::later.default"].fallbacks["CPU"].fn is made[1]
        general.destroy()
        assert record.fallbacks == {}


def test_a_library_that_is_collected_in_the_midst_of_a_commit_waits(f, ns, listener):
    """I143: nothing rests on the moment at which the garbage collector comes."""
    lib = ow.Library(ns, "IMPL")
    lib.impl("f", lambda x, k: x + 1, "CPU")
    seen = []

    def hear(event, record, item):
        nonlocal lib
        if lib is not None:
            lib = None
            gc.collect()
            seen.append([kernel.key for kernel in record.kernels])

    registry.listeners.append(hear)
    try:
        f.register_kernel("meta", good)
    finally:
        registry.listeners.remove(hear)
    assert seen == [["CompositeExplicitAutograd", "CPU", "Meta"]]
    assert [k.key for k in f._record.kernels] == ["CompositeExplicitAutograd", "Meta"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_fork_while_another_thread_holds_the_lock(f, ns):
    """I146: the child can call, register and define at once."""
    inside, leave, order = threading.Event(), threading.Event(), []

    def hold():
        with registry.lock:
            inside.set()
            leave.wait(10)
            order.append("released")

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    threading.Timer(0.2, leave.set).start()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            f.register_kernel("cpu", lambda x, k: x + 5)
            new = ow.custom_op(f"{ns}::g", f.__wrapped__, mutates_args=())
            code = 0 if f(X)[0] == 5 and new(X)[1] == 2 and order == ["released"] else 2
        finally:
            os._exit(code)
    thread.join(10)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    np.testing.assert_array_equal(f(X), X * 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("module", ["catalogue", "modes"])
def test_no_lock_of_the_engine_stays_taken_in_a_child(module):
    name = {"catalogue": "_lock", "modes": "_count_lock"}[module]
    lock = getattr(importlib.import_module(f"opwright.{module}"), name)
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with lock:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    threading.Timer(0.2, leave.set).start()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with lock:
                code = 0
        finally:
            os._exit(code)
    thread.join(10)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
