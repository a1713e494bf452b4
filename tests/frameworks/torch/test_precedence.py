"""Which of several kernels runs: torch.library's own answer is the expectation, for every pair of keys."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import opwright as ow

if TYPE_CHECKING:
    from collections.abc import Callable

EXPLICIT, IMPLICIT = "CompositeExplicitAutograd", "CompositeImplicitAutograd"
FACTORS = {
    "CPU": 2.0, "CUDA": 3.0, "Meta": 5.0, "Autograd": 13.0, "AutogradCPU": 17.0,
    EXPLICIT: 7.0, IMPLICIT: 11.0,
}  # fmt: skip
"""What the kernel of each key multiplies by."""

SETS = [keys for count in (1, 2) for keys in itertools.permutations(FACTORS, count)]
SETS = [
    pytest.param(keys, marks=() if {EXPLICIT, IMPLICIT} & set(keys) else pytest.mark.slow) for keys in SETS
]
SETS += [("CPU", IMPLICIT, "Autograd"), (IMPLICIT, "CUDA", "Autograd"), ("Meta", IMPLICIT, "CPU")]
SETS += [(IMPLICIT, "AutogradCPU", "CPU"), ("CUDA", IMPLICIT, "CPU"), ("Autograd", "CUDA", IMPLICIT)]

Operator = Any


def x() -> torch.Tensor:
    return torch.tensor([1.0, 2.0])


def gradient(f: Operator) -> torch.Tensor:
    leaf = x().requires_grad_()
    return torch.autograd.grad(f(leaf).sum(), leaf)[0]


def compiled(f: Operator) -> Callable[[torch.Tensor], torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(lambda x: f(x) + 1.0, backend="aot_eager", fullgraph=True)


def on_fakes(f: Operator) -> tuple[Any, ...]:
    with FakeTensorMode() as mode:
        out = f(mode.from_tensor(x()))
    return tuple(out.shape), out.device.type


def sibling(f: Operator) -> Operator:
    """Return the operator whose kernels make as many elements as ``f`` multiplies by."""
    if isinstance(f, ow.Operator):
        return getattr(ow.ops, f.name.partition("::")[0]).shape.default
    return getattr(torch.ops, f._qualified_op_name.partition("::")[0]).shape


CALLS: dict[str, Callable[[Operator], Any]] = {
    "eager": lambda f: f(x()),
    "with a leaf": lambda f: f(x().requires_grad_()).detach(),
    "gradient": gradient,
    "torch.func.grad": lambda f: torch.func.grad(lambda x: f(x).sum())(x()),
    "vmap": lambda f: torch.func.vmap(f)(x()),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f))(x()),
    "compiled": lambda f: compiled(f)(x()),
    "compiled gradient": lambda f: gradient(compiled(f)),
    "meta": lambda f: f(x().to("meta")).device.type,
    "fake": on_fakes,
    "shape on meta": lambda f: tuple(sibling(f)(x().to("meta")).shape),
    "shape on fakes": lambda f: on_fakes(sibling(f)),
}


def define(library: Any, ns: str, keys: tuple[str, ...]) -> Any:
    lib = library.Library(ns, "FRAGMENT")
    lib.define("f(Tensor x) -> Tensor")
    lib.define("shape(Tensor x) -> Tensor")
    for key in keys:
        factor = FACTORS[key]
        try:
            lib.impl("f", lambda x, factor=factor: x * factor, key)
            lib.impl("shape", lambda x, factor=factor: x.new_empty(int(factor)), key)
        except RuntimeError:  # a kernel for Meta after a composite one; the same in both
            assert (key, IMPLICIT in keys) == ("Meta", True)
    return lib


def outcome(f: Operator, call: Callable[[Operator], Any]) -> tuple[Any, bool]:
    """Return what a call gives, and whether torch warned that a gradient is only what the kernel recorded."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            out = call(f)
        except Exception as error:  # noqa: BLE001  (what is compared)
            out = type(error)
    no_rule = any("an autograd kernel was not registered" in str(warning.message) for warning in caught)
    return out.tolist() if isinstance(out, torch.Tensor) else out, no_rule


def is_error(out: Any) -> bool:
    return isinstance(out, type) and issubclass(out, Exception)


@pytest.mark.parametrize("keys", SETS, ids=lambda keys: "-".join(keys))
def test_the_kernel_that_runs_is_torchs(ns: str, keys: tuple[str, ...]) -> None:
    reference = keys
    if {EXPLICIT, IMPLICIT} <= set(keys):
        # Beside an explicit one the composite kernel never runs. Torch itself leaves it in force for autograd
        # where it came first, and takes it in compiled code.
        reference = (EXPLICIT,)
    theirs, ours = define(torch.library, f"{ns}_t", reference), define(ow, ns, keys)
    expected_op = getattr(torch.ops, f"{ns}_t").f
    operators = {"torch.ops": getattr(torch.ops, ns).f, "direct": getattr(ow.ops, ns).f.default}
    for (what, call), (name, operator) in itertools.product(CALLS.items(), operators.items()):
        expected, no_rule = outcome(expected_op, call)
        got, _ = outcome(operator, call)
        case = f"{what} by {name}: torch {expected}, here {got}"
        if is_error(expected):
            assert is_error(got), case
        elif no_rule:  # torch records what the kernel computes with; here a gradient needs a rule
            assert got is ow.errors.MissingRuleError, case
        else:
            assert got == expected, case
    theirs._destroy()
    ours._destroy()


def test_a_composite_kernel_gives_way_and_comes_back(ns: str) -> None:
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x * 3.0, IMPLICIT)
        op = getattr(ow.ops, ns).f.default
        assert gradient(op).tolist() == [3.0, 3.0]
        explicit = lib.impl("f", lambda x: x * 2.0, EXPLICIT)
        assert op(x()).tolist() == [2.0, 4.0]
        explicit.destroy()
        cpu = lib.impl("f", lambda x: x * 2.0, "CPU")
        assert op(x()).tolist() == compiled(op)(x()).sub(1.0).tolist() == [2.0, 4.0]
        cpu.destroy()
        assert gradient(op).tolist() == gradient(getattr(torch.ops, ns).f).tolist() == [3.0, 3.0]


def test_a_rule_beside_a_composite_kernel_is_used_on_every_device(ns: str) -> None:
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x * 3.0, IMPLICIT)
        lib.impl("f", lambda x: x * 2.0, "CUDA")
        ow.register_autograd(f"{ns}::f", lambda ctx, grad: grad * 10.0, lib=lib)
        assert gradient(getattr(ow.ops, ns).f.default).tolist() == [10.0, 10.0]


def test_a_fake_that_came_before_a_composite_kernel_stays_in_force(ns: str) -> None:
    with ow.Library(ns, "FRAGMENT") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x * 2.0, "CPU")
        ow.register_fake(f"{ns}::f", lambda x: x.new_empty(7), lib=lib)
        lib.impl("f", lambda x: x * 3.0, IMPLICIT)
        lib.impl("f", lambda x: x * 4.0, "CUDA")
        op = getattr(ow.ops, ns).f.default
        assert op(x()).tolist() == [2.0, 4.0]
        assert op(x().to("meta")).shape == (7,)  # on FakeTensors torch takes the composite kernel apart
