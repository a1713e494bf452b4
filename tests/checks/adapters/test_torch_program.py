from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.torch_operators import RIGHT, define, torch
from opwright.checks.adapters import torch_program
from opwright.checks.adapters.base import adapter
from opwright.checks.adapters.programs import Recompiled
from opwright.checks.adapters.results import Unsupported


@pytest.fixture(name="torch_adapter")
def fixture_torch_adapter():
    return adapter("torch")


def test_compilers_are_the_cheap_ones_unless_everything_is_looked_at(torch_adapter):
    names = [compiler.name for compiler in torch_adapter.compilers(thorough=False)]
    assert names == ["torch.compile(backend='aot_eager', dynamic=True)"]
    assert len(torch_adapter.compilers(thorough=True)) == 4


def test_arrays_are_parameters_and_all_else_is_fixed(ns):
    def op(x: torch.Tensor, k: float, ys: list[torch.Tensor], *, n: int = 1) -> torch.Tensor:
        return x * k + ys[0] * n

    operator = define(op, ns)
    x, y = torch.ones(2), torch.full((2,), 3.0)
    function = torch_program.function_of(operator._record, (x, 2.0, [y], 4))
    assert function.__code__.co_varnames == ("x", "ys")
    assert function(x, [y]).tolist() == [14.0, 14.0]


def test_a_parameter_may_have_the_name_of_the_operator(ns):
    def double(op: torch.Tensor) -> torch.Tensor:
        return op * 2

    operator = define(double, ns)
    assert torch_program.function_of(operator._record, (torch.ones(1),))(torch.ones(1)).tolist() == [2.0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_another_size_needs_another_program_or_not(torch_adapter, dynamic):
    record = RIGHT["saved"][0]._record
    compiler = torch_adapter.compilers(thorough=True)[dynamic]
    program = compiler.program(record, (torch.ones(3, 4),))
    assert program.call((torch.ones(3, 4),)).outputs[0].shape == (3, 4)
    if dynamic:
        assert program.call((torch.ones(5, 4),), other_size=True).outputs[0].shape == (5, 4)
    else:
        with pytest.raises(Recompiled, match=r"size mismatch at index 0\. expected 3, actual 5"):
            program.call((torch.ones(5, 4),), other_size=True)


def test_many_programs_are_no_recompilations(torch_adapter):
    record = RIGHT["saved"][0]._record
    compiler = torch_adapter.compilers(thorough=False)[0]
    for size in range(2, 14):  # more than Dynamo compiles one function for
        assert compiler.program(record, (torch.ones(size),)).call((torch.ones(size),)).outputs[0].shape == (
            size,
        )


def test_an_exported_program_is_saved_and_loaded(torch_adapter):
    operator, args = RIGHT["matmul"]
    called = torch_adapter.exported(operator._record, args)
    torch.testing.assert_close(called.outputs[0], operator(*args))


def test_mutated_arguments_become_views_of_one_array(torch_adapter):
    operator, args = RIGHT["add_to_both"]
    views, total = torch_program._views(operator._record, args)
    assert total == 24
    assert [text for _, _, text in views] == [
        "base[0:12].reshape((4, 3)).permute((1, 0))",
        "base[12:24].reshape((4, 3)).permute((1, 0))",
    ]
    ((name, eager, compiled),) = torch_adapter.functionalised(operator._record, args)
    assert name == "the caller's array"
    torch.testing.assert_close(compiled, eager, rtol=0, atol=0)


def test_lists_of_mutated_tensors_are_left_out(ns, torch_adapter):
    def op(xs: list[torch.Tensor]) -> None:
        xs[0].add_(1)

    operator = ow.custom_op(f"{ns}::op", op, mutates_args=("xs",))
    found = torch_adapter.functionalised(operator._record, ([torch.ones(2)],))
    assert isinstance(found, Unsupported)
    assert found.reason == "only lists of tensors are mutated, which are no views of one tensor here"


def test_gradients_go_through_a_program(torch_adapter):
    record = RIGHT["saved"][0]._record
    x = torch_adapter.array(np.array([1.0, 2.0]))
    program = torch_adapter.compilers(thorough=False)[0].program(record, (x,))
    pullback = program.vjp((x,), (True,))
    assert pullback.pull([torch.ones(2, dtype=torch.float64)])[0].tolist() == [2.0, 4.0]
