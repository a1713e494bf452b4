"""Kernels at every dispatch key that torch.library takes, and autocast on every device type."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import opwright as ow  # noqa: E402

KEYS = [key for key in torch._C.DispatchKey.__members__ if torch._C._parse_dispatch_key(key) is not None]
RARE = ["Dense", "Sparse", "SparseCsr", "Quantized", "NestedTensor", "PrivateUse2", "PrivateUse3"]


@pytest.mark.parametrize("key", KEYS)
def test_impl_takes_every_key(ns, key):
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x.clone(), key, flavour="torch")
        assert hasattr(getattr(torch.ops, ns), "f")
        lib.define("g(Tensor x) -> Tensor")
        ow.impl(f"{ns}::g", getattr(torch._C.DispatchKey, key).name, lambda x: x.clone(), lib=lib)


@pytest.mark.parametrize("key", [*RARE, "AutogradPrivateUse2"])
def test_one_for_other_tensors_leaves_a_plain_call_alone(ns, key):
    """As in torch.library, which is asked too."""
    for library, name in ((ow.Library, ns), (torch.library.Library, f"{ns}_theirs")):
        lib = library(name, "FRAGMENT")
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x + 1, "CPU")
        lib.impl("f", lambda x: x + 100, key)
        op = getattr(torch.ops, name).f
        assert [op(torch.zeros(1)).item() for _ in range(3)] == [1, 1, 1]
        if library is ow.Library:
            direct = getattr(ow.ops, name).f
            assert [direct(torch.zeros(1)).item() for _ in range(3)] == [1, 1, 1]
        lib._destroy()


@pytest.mark.parametrize("key", ["PrivateUse2", "PrivateUse3"])
def test_fallback_takes_them_too(key):
    with ow.Library("_", "IMPL") as lib:
        lib.fallback(ow.fallthrough_kernel, key)
        assert torch.ones(1).add(1).item() == 2


def test_autocast_of_an_operator_of_torchs_is_for_devices_that_torch_has_it_for(ns):
    def half(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    op = ow.custom_op(f"{ns}::half", half, mutates_args=())
    for target in (op, "aten::mm"):
        for device in ("tpu", "meta", "lazy", "gpu"):
            with pytest.raises(ValueError, match="autocast for") as e:
                ow.register_autocast(target, device, torch.float16)
            name = f"{ns}::half" if target is op else "aten::mm"
            assert str(e.value) == (
                f"register_autocast of {name}: {device!r} is not a device type that torch has autocast for\n"
                "  expected: one of cpu, cuda, hpu, ipu, mps, privateuseone, xpu"
            )


def test_autocast_of_another_operator_may_be_for_a_device_that_torch_has_not(ns):
    def half(x: ow.Array) -> ow.Array:
        return x / 2

    op = ow.custom_op(f"{ns}::half", half, mutates_args=())
    op.register_autocast("tpu", "bfloat16")
    op.register_autocast("cpu", "bfloat16")
    assert op(torch.ones(1)).item() == 0.5
    with torch.autocast("cpu", torch.bfloat16):
        assert op(torch.ones(1)).dtype is torch.bfloat16
