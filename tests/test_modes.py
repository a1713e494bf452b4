"""Autocast and dispatch modes: order, nesting, threads; nothing of them on a warm call without one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import opwright as ow
from opwright import modes
from opwright.errors import ArgumentError, ContextError, UnsupportedError


@ow.custom_op("modes::double", mutates_args=())
def double(x: np.ndarray) -> np.ndarray:
    seen.append(x.dtype.name)
    return x * 2


@ow.custom_op("modes::outer", mutates_args=())
def outer(x: np.ndarray) -> np.ndarray:
    """A kernel that calls an operator."""
    return double(x) + 1


@ow.custom_op("modes::total", mutates_args=())
def total(xs: list[np.ndarray], y: np.ndarray | None = None, *, n: int = 1) -> np.ndarray:
    return np.asarray(sum(x.sum() for x in xs), dtype=xs[0].dtype)


@ow.custom_op("modes::bump_", mutates_args=("x",))
def bump_(x: np.ndarray, y: np.ndarray) -> None:
    x += y.astype(x.dtype)


seen: list[str] = []
x = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def clean():
    seen.clear()
    yield
    assert modes.ACTIVE == [0]
    assert modes.MODES.get() == ()


@pytest.fixture
def cast():
    """Autocast rules for the duration of a test."""
    handles = [
        double.register_autocast("cpu", np.float16),
        total.register_autocast("cpu", "float16"),
        bump_.register_autocast("cpu", "float16"),
    ]
    yield
    for handle in handles:
        handle.destroy()


# ------------------------------------------------------------------------------------------- autocast


def test_autocast_casts_floating_inputs(cast):
    with ow.autocast("cpu"):
        assert double(x).dtype == np.float16
        assert double(x.astype(np.float64)).dtype == np.float16
        assert double(np.ones(2, np.int32)).dtype == np.int32
        assert double(np.ones(2, np.complex64)).dtype == np.complex64
        assert double(np.float32(1)).dtype == np.float16
    assert double(x).dtype == np.float32


def test_lists_and_optional_arrays_are_cast(cast):
    with ow.autocast("cpu"):
        assert total([x, x.astype(np.float64)]).dtype == np.float16
        assert total((x,), y=x).dtype == np.float16
        assert total([np.arange(3), x], None).dtype == np.arange(3).dtype


@pytest.mark.parametrize(
    "layout", [lambda a: a[::-1], np.asfortranarray, lambda a: a[:, ::2], lambda a: a[0, 0]]
)
def test_layouts(cast, layout):
    a = layout(np.arange(12, dtype=np.float64).reshape(3, 4))
    with ow.autocast("cpu"):
        out = double(a)
    np.testing.assert_array_equal(out, (2 * a).astype(np.float16))


def test_nested_and_disabled(cast):
    with ow.autocast("cpu"):
        with ow.autocast("cpu", enabled=False):
            assert double(x).dtype == np.float32
            with ow.autocast("cpu"):
                assert double(x).dtype == np.float16
        with ow.autocast("cuda"), ow.autocast("cuda", enabled=False):
            assert double(x).dtype == np.float16
    with ow.autocast("cuda"):
        assert double(x).dtype == np.float32


def test_autocast_without_a_rule():
    with ow.autocast("cpu"):
        assert double(x).dtype == np.float32


def test_autocast_is_off_inside_an_operator_that_it_cast(cast):
    with ow.autocast("cpu"):
        assert outer(x).dtype == np.float16  # has no rule: what it calls is cast
    assert seen == ["float16"]
    seen.clear()
    handle = outer.register_autocast("cpu", "float64")
    with ow.autocast("cpu"):
        assert outer(x).dtype == np.float64
    assert seen == ["float64"]
    handle.destroy()


def test_the_newest_rule_of_a_device_type_counts(cast):
    handle = double.register_autocast("cpu", np.float64)
    with ow.autocast("cpu"):
        assert double(x).dtype == np.float64
    handle.destroy()
    with ow.autocast("cpu"):
        assert double(x).dtype == np.float16


def test_bfloat16():
    pytest.importorskip("ml_dtypes")
    handle = double.register_autocast("cpu", "bfloat16")
    with ow.autocast("cpu"):
        assert double(x).dtype.name == "bfloat16"
    handle.destroy()


def test_a_mutated_argument_is_not_cast(cast):
    with ow.autocast("cpu"), pytest.raises(UnsupportedError) as caught:
        bump_(x.copy(), x)
    assert str(caught.value) == (
        "modes::bump_ mutates argument x, which autocast would cast\n"
        "  expected: an array of dtype float16\n"
        "  got: float32\n"
        f"  registered at: {bump_._record.rule('autocast', 'cpu').source}\n"
        "  to fix: cast it before the call, or call the operator under autocast(enabled=False)"
    )
    half = x.astype(np.float16)
    with ow.autocast("cpu"):
        bump_(half, x)
    assert half.tolist() == [2, 2, 2]


def test_autocast_arguments():
    mode = ow.autocast("cuda:1", dtype=np.float16)
    assert (mode.device_type, mode.dtype, mode.enabled) == ("cuda", np.float16, True)
    assert repr(ow.autocast("cpu", enabled=False)) == "autocast('cpu', enabled=False)"
    assert repr(ow.autocast()) == "autocast('cpu', enabled=True)"
    with pytest.raises(ArgumentError) as caught:
        ow.autocast(np.float16)
    assert str(caught.value) == (
        "autocast: device_type must be a string such as 'cpu'\n  got: <class 'numpy.float16'> of type type"
    )


def test_autocast_of_a_misspelt_device_type_is_refused():
    with pytest.raises(ArgumentError) as caught:
        ow.autocast("cup")
    assert str(caught.value) == (
        "autocast: 'cup' is not a device type\n"
        "  expected: one of cpu, cuda, hip, hpu, ipu, lazy, maia, meta, mps, mtia, privateuseone, tpu, ve, "
        "xla, xpu"
    )


# ------------------------------------------------------------------------------------- dispatch modes


class Log(ow.DispatchMode):
    """A mode with a handler of its own."""

    def __init__(self):
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func, types, args, kwargs))
        return func(*args, **(kwargs or {}))


class SubLog(Log):
    pass


class Silent(ow.DispatchMode):
    """A mode without."""


def test_a_modes_own_handler():
    with Log() as log:
        assert double(x).tolist() == [2, 2, 2]
        total([x, x], n=3)
    (func, types, args, kwargs), (_, list_types, list_args, list_kwargs) = log.calls
    assert func is double
    assert types == list_types == (np.ndarray,)
    assert len(args) == 1
    assert args[0] is x
    assert kwargs == {}
    assert list_args[1] is None  # defaults are filled in
    assert list_kwargs == {"n": 3}


def test_a_rule_runs_instead_of_the_handler():
    def rule(mode, func, types, args, kwargs):
        return type(mode).__name__, func(*args, **kwargs).tolist()

    handle = double.register_torch_dispatch(Log, rule)
    with Log() as log:
        assert double(x) == ("Log", [2, 2, 2])
    with SubLog() as sub:
        assert double(x) == ("SubLog", [2, 2, 2])  # a rule for a base class
    assert log.calls == sub.calls == []
    own = double.register_torch_dispatch(SubLog, lambda mode, func, types, args, kwargs: "mine")
    with SubLog():
        assert double(x) == "mine"
    own.destroy()
    handle.destroy()
    with Log() as log:
        double(x)
    assert len(log.calls) == 1


def test_a_mode_without_a_handler_lets_calls_through():
    with Silent():
        assert double(x).tolist() == [2, 2, 2]
    with Log() as log, Silent():
        double(x)
    assert len(log.calls) == 1


@pytest.mark.parametrize("where", ["rule", "handler"])
def test_not_implemented_passes_the_call_on(where):
    class Deaf(ow.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert where == "handler"
            return NotImplemented

    handle = double.register_torch_dispatch(Deaf, lambda *call: NotImplemented) if where == "rule" else None
    with Log() as log, Deaf():
        assert double(x).tolist() == [2, 2, 2]
    with Deaf():
        assert double(x).tolist() == [2, 2, 2]
    assert len(log.calls) == 1
    if handle is not None:
        handle.destroy()


def test_modes_nest_from_the_inside_out():
    order = []

    class Named(ow.DispatchMode):
        def __init__(self, name):
            self.name = name

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            order.append(self.name)
            return func(*args, **(kwargs or {}))

    with Named("outer"), Named("inner"):
        double(x)
        outer(x)  # the kernel's own call is not seen
    assert order == ["inner", "outer"] * 2
    order.clear()
    mode = Named("twice")
    with mode, mode:
        double(x)
    assert order == ["twice", "twice"]


def test_a_mode_is_off_inside_its_handler():
    depth = []

    class Deep(ow.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            depth.append(len(modes.MODES.get()))
            return double(double(*args))

    with Silent(), Deep(), Silent():
        assert double(x).tolist() == [4, 4, 4]
    assert depth == [1]


def test_an_exception_in_a_handler():
    class Broken(ow.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise KeyError("mine")

    with Broken(), pytest.raises(KeyError, match="mine"):
        double(x)
    assert double(x).tolist() == [2, 2, 2]


def test_autocast_goes_before_dispatch_modes(cast):
    for first, second in ((ow.autocast("cpu"), Log()), (Log(), ow.autocast("cpu"))):
        log = first if isinstance(first, Log) else second
        with first, second:
            assert double(x).dtype == np.float16
        assert [args[0].dtype for _, _, args, _ in log.calls] == [np.float16]


def test_calls_that_fail_under_a_mode_fail_as_without():
    with Silent(), pytest.raises(ArgumentError):
        double("x")
    with Silent(), pytest.raises(TypeError):
        double()


def test_a_rule_with_torchs_arrays():
    torch = pytest.importorskip("torch")
    kinds = []

    def rule(mode, func, types, args, kwargs):
        kinds.append(type(args[0]))
        return torch.square(args[0])

    handle = double.register_torch_dispatch(Log, rule, flavour="torch")
    with Log():
        out = double(np.full(2, 3.0))
    handle.destroy()
    assert kinds == [torch.Tensor]
    assert isinstance(out, np.ndarray)
    assert out.tolist() == [9, 9]


# ------------------------------------------------------------------------------------- entering, leaving


def test_modes_are_per_thread():
    log, inside = Log(), []

    def work():
        inside.append(modes.MODES.get())
        double(x)
        with Log() as own:
            double(x)
        inside.append(len(own.calls))

    with log:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        double(x)
    assert inside == [(), 1]
    assert len(log.calls) == 1


def test_a_mode_is_left_with_an_exception():
    with pytest.raises(KeyError), Log():
        raise KeyError
    assert modes.MODES.get() == ()


def test_modes_are_left_in_order():
    first, second = Log(), Silent()
    first.__enter__()
    second.__enter__()
    with pytest.raises(ContextError) as caught:
        first.__exit__(None, None, None)
    assert str(caught.value) == (
        "Log was left in another order than it was entered\n  expected: with blocks, one inside the other"
    )
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)


def test_a_warm_call_without_modes_reads_the_count_alone(monkeypatch):
    double(x)
    for _ in range(5):
        double(x)
    monkeypatch.setattr(modes, "MODES", None)
    monkeypatch.setattr(modes, "run_under", None)
    assert double(x).tolist() == [2, 2, 2]
