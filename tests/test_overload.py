"""The record: which rule and kernel is in force, and which kernel a call gets."""

from __future__ import annotations

import pytest

from opwright import fallthrough_kernel
from opwright.overload import Kernel, OpOverload
from opwright.parse import parse_schema
from opwright.rules.base import Rule

ANY, IMPLICIT = "CompositeExplicitAutograd", "CompositeImplicitAutograd"


def _record():
    return OpOverload(parse_schema("ns::f.out(Tensor x) -> Tensor"), flavour="numpy", source="a.py:1")


def _kernel(key, flavour, **kwargs):
    return Kernel(len, key, flavour, f"{key}-{flavour}.py:1", **kwargs)


def _with(*kernels):
    record = _record()
    record.kernels = kernels
    return record


class Autocast(Rule):
    kind = "autocast"

    @property
    def slot(self):
        return self.flavour


def test_names():
    record = _record()
    assert (record.name, record.overload, record.qualname, record.key) == (
        "ns::f",
        "out",
        "ns::f.out",
        "ns::f.out",
    )
    assert OpOverload(parse_schema("ns::f() -> ()"), flavour="numpy", source="").key == "ns::f.default"
    assert repr(record) == "<OpOverload ns::f.out(Tensor x) -> Tensor>"


def test_a_record_without_an_operator_cannot_be_called():
    with pytest.raises(NotImplementedError, match="this record has no operator to call"):
        _record().miss()


def test_the_newest_rule_of_a_slot_is_in_force():
    record = _record()
    first, second, other = (Autocast(len, slot, "") for slot in ("cpu", "cpu", "cuda"))
    record.rules = (first, other, second)
    assert record.rule("autocast", "cpu") is second
    assert record.rule("autocast", "meta") is None
    assert record.rule("fake") is None
    assert record.rules_of("autocast") == [second, other]


def test_the_newest_kernel_of_a_key_is_found():
    first, second, jax = _kernel("CPU", "numpy"), _kernel("CPU", "numpy"), _kernel("CPU", "jax")
    record = _with(first, second, jax)
    assert record.kernel("CPU") is jax
    assert record.kernel("CPU", "numpy") is second
    assert record.kernel("CUDA") is None


def test_kernels_of_one_key_and_flavour_cover_each_other():
    first, second, jax = _kernel("CPU", "numpy"), _kernel("CPU", "numpy"), _kernel("CPU", "jax")
    record = _with(first, second, jax)
    assert list(record.enabled_kernels()) == [jax, second]


def test_a_kernel_that_is_off_still_covers():
    first, second = _kernel("CPU", "numpy"), _kernel("CPU", "numpy")
    second.enabled = False
    assert list(_with(first, second).enabled_kernels()) == []


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        # each list from the most to the least wanted, for numpy arrays on the cpu
        ([("CPU", "numpy"), ("CPU", "array_api"), (ANY, "numpy"), (ANY, "array_api")], 0),
        ([("CPU", "array_api"), (ANY, "numpy"), (ANY, "array_api"), ("CPU", "torch")], 0),
        ([(ANY, "numpy"), (ANY, "array_api"), ("CPU", "torch"), (ANY, "torch")], 0),
        ([(IMPLICIT, "array_api"), ("CPU", "torch"), (ANY, "torch")], 0),
        ([("CPU", "torch"), (ANY, "jax")], 0),
        ([(ANY, "jax")], 0),
        ([("CUDA", "numpy"), (ANY, "numpy")], 1),
        ([("AutogradCPU", "numpy"), ("Meta", "numpy")], None),
        ([(ANY, "cupy")], None),
        ([("CUDA", "array_api")], None),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_choice_of_a_kernel_does_not_hang_on_the_order_of_registration(kernels, expected, reverse):
    made = [_kernel(*each) for each in kernels]
    chosen = _with(*(reversed(made) if reverse else made)).select_kernel("numpy", "cpu")
    assert chosen is (None if expected is None else made[expected])


def test_memory_is_only_shared_where_the_framework_lives():
    cupy = _kernel("CUDA", "cupy")
    record = _with(_kernel(ANY, "numpy"), cupy)
    assert record.select_kernel("torch", "cuda") is cupy
    assert _with(_kernel(ANY, "numpy")).select_kernel("torch", "cuda") is None
    assert record.select_kernel("torch", "xpu") is None


def test_a_kernel_that_arrays_are_copied_for_comes_last():
    copying, general = Kernel(len, "CUDA", "numpy", "s.py:1", copies=True), _kernel(ANY, "numpy")
    anywhere = Kernel(len, ANY, "numpy", "s.py:2", copies=True)
    for flavour in ("torch", "jax", "cupy"):
        assert _with(copying, general).select_kernel(flavour, "cuda") is copying
        assert _with(copying, anywhere).select_kernel(flavour, "cuda") is copying
        assert _with(copying, _kernel(ANY, flavour)).select_kernel(flavour, "cuda").flavour == flavour
        assert _with(copying, _kernel(ANY, "torch")).select_kernel(flavour, "cuda").flavour == "torch"
    assert _with(copying, general).select_kernel("torch", "cpu") is general
    assert _with(copying).select_kernel("torch", "cpu") is None
    assert _with(anywhere).select_kernel("torch", "mps") is anywhere
    assert _with(copying).select_kernel("torch", "mps") is None


def test_a_device_that_torch_does_not_know_takes_kernels_for_any_device():
    kernel = _kernel(ANY, "jax")
    assert _with(kernel, _kernel("CPU", "jax")).select_kernel("jax", "tpu") is kernel


def test_fallthrough_is_skipped_and_does_not_cover():
    skip = Kernel(fallthrough_kernel, "CPU", "numpy", "s.py:1")
    general = _kernel(ANY, "numpy")
    assert skip.falls_through
    assert not general.falls_through
    assert _with(general, skip).select_kernel("numpy", "cpu") is general
    assert _with(skip).select_kernel("numpy", "cpu") is None


def test_fallthrough_is_never_called():
    with pytest.raises(NotImplementedError) as e:
        fallthrough_kernel()
    assert str(e.value) == "fallthrough_kernel is a marker to register, not a function to call"


def test_kernels_in_a_message():
    record = _with(_kernel(ANY, "numpy"), _kernel("CUDA", "torch"), _kernel("AutocastCPU", "torch"))
    assert record.kernels_text() == (
        "AutocastCPU (torch, AutocastCPU-torch.py:1), cuda (torch, CUDA-torch.py:1), "
        f"any device (numpy, {ANY}-numpy.py:1)"
    )
    assert _record().kernels_text() == "none"
    assert repr(_kernel("CPU", "numpy")) == "<Kernel CPU (numpy, CPU-numpy.py:1)>"
