"""NumPy kernels on the direct call: the tensors' own memory in, tensors out, nothing taken on trust."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import opwright as ow
import torch_operators
import torch_situations
from opwright.errors import AliasError, OutputError


def define(fn, **options):
    options.setdefault("mutates_args", ())
    return ow.custom_op(torch_operators.name_of("bridged"), fn, **options)


def test_the_kernel_sees_the_tensors_own_memory():
    seen = []

    def total(x: np.ndarray, ys: list[np.ndarray], z: np.ndarray | None = None, k: float = 2.0) -> np.ndarray:
        seen.append([one.__array_interface__["data"][0] for one in (x, *ys)])
        return x * k + sum(ys) + (0 if z is None else z)

    op = define(total)
    for z in (None, torch.ones(3), None, torch.ones(3)):
        x, y = torch.ones(3), torch.ones(3)
        assert op(x, [y, torch.zeros(3)], z, k=3).tolist() == [4.0 + (z is not None)] * 3
        assert seen[-1][:2] == [x.data_ptr(), y.data_ptr()]


def test_a_tensor_that_requires_grad_is_detached():
    op = torch_operators.of_numpy()
    for _ in range(4):
        x = torch.ones(3, requires_grad=True)
        op(x).sum().backward()
        assert x.grad.tolist() == [1.0] * 3
        with torch.no_grad():
            assert op(x).tolist() == [2.0] * 3


OUTPUTS = {
    "a scalar": lambda x: x.sum(),
    "zero dimensions": lambda x: np.array(2.0),
    "a column order": lambda x: np.asfortranarray(np.ones((2, 3), np.float32)),
    "a negative stride": lambda x: (x + 1)[::-1],
    "a view of new memory": lambda x: (x + 1)[1:],
    "read-only": lambda x: _read_only(x + 1),
    "big-endian": lambda x: (x + 1).astype(">f4"),
    "a structure": lambda x: np.zeros(3, dtype=[("a", "f4")]),
    "objects": lambda x: np.array([None, 1], dtype=object),
    "long double": lambda x: (x + 1).astype(np.longdouble),
    "unsigned": lambda x: (x + 1).astype(np.uint16),
    "the argument": lambda x: x,
    "a view of the argument": lambda x: x[1:],
    "a number": lambda x: 1.5,
    "nothing": lambda x: None,
    "a list": lambda x: [x + 1],
    "a matrix": lambda x: np.ones((2, 2)).view(_Matrix),
}


class _Matrix(np.ndarray):
    pass


def _read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("kind", OUTPUTS)
def test_every_output_is_what_it_is_through_the_dispatcher(kind):
    answer = [lambda x: x + 1]

    def kernel(x: np.ndarray) -> np.ndarray:
        return answer[0](x)

    op = define(kernel)
    direct, dispatched = torch_situations.calls_of(op)
    for _ in range(5):
        direct(torch.ones(3))
    answer[0] = OUTPUTS[kind]
    found = torch_situations.observed(torch_situations.SITUATIONS["plain"], direct)
    assert found == torch_situations.observed(torch_situations.SITUATIONS["plain"], dispatched)


def test_several_outputs():
    answer = [lambda x: (x + 1, x + 2)]

    def kernel(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return answer[0](x)

    def twice(x):
        return (x, x)

    op = define(kernel)
    for _ in range(5):
        assert [one.tolist() for one in op(torch.ones(2))] == [[2.0] * 2, [3.0] * 2]
    answer[0] = lambda x: (x.sum(), (x + 1)[::-1])
    assert [one.tolist() for one in op(torch.ones(2))] == [2.0, [2.0] * 2]
    answer[0] = lambda x: twice(x + 1)
    with pytest.raises(AliasError, match=r"output 1 of .* is output 0 itself"):
        op(torch.ones(2))
    for wrong in (lambda x: x + 1, lambda x: (x + 1,), lambda x: [x + 1, None]):
        answer[0] = wrong
        with pytest.raises(OutputError, match="returned something else than its schema says"):
            op(torch.ones(2))


def test_mutated_arguments_are_written_in_place_and_those_that_share_memory_refused():
    path = torch_operators.Path()
    op = torch_operators.mutating_numpy(path)
    for make in (lambda: torch.ones(4), lambda: torch.ones(2, 2).t(), lambda: torch.ones(8)[::2]):
        for _ in range(3):
            x = make()
            version = x._version
            op(x)
            assert x.flatten().tolist() == [-1.0] * 4
            assert x._version > version
        assert path.taken[-1] == "direct"
    for _ in range(2):
        with pytest.raises(ow.errors.ArgumentError, match="whose elements share memory"):
            op(torch.ones(1).expand(4))


def test_lists_that_are_mutated():
    path = torch_operators.Path()

    def negate(xs: list[np.ndarray]) -> None:
        path.note()
        for x in xs:
            np.negative(x, out=x)

    op = define(negate, mutates_args=("xs",))
    for _ in range(3):
        xs = [torch.ones(2), torch.ones(2, 2).t()]
        op(xs)
        assert [x.flatten().tolist() for x in xs] == [[-1.0] * 2, [-1.0] * 4]
        assert all(x._version for x in xs)
    assert path.taken == ["dispatcher", "direct", "direct"]
    with pytest.raises(ow.errors.ArgumentError, match="whose elements share memory"):
        op([torch.ones(2), torch.ones(1).expand(4).reshape(2, 2)[:, :1].expand(2, 2)])


def test_dtypes_and_devices_reach_the_kernel_as_its_own():
    seen = []

    def cast(x: np.ndarray, dtype: np.dtype | None = None, mode: str = "a") -> np.ndarray:
        seen.append((dtype, type(dtype), mode))
        return x.astype(dtype or x.dtype)

    op = define(cast)
    for _ in range(4):
        assert op(torch.ones(2), torch.float64).dtype == torch.float64
    assert seen == [(np.dtype("float64"), type(np.dtype("float64")), "a")] * 4


def test_keyword_only_arguments_are_passed_by_name():
    def scaled(x: np.ndarray, *, k: float = 2.0, y: np.ndarray | None = None) -> np.ndarray:
        return x * k + (0 if y is None else y)

    op = define(scaled)
    for _ in range(4):
        assert op(torch.ones(2), y=torch.ones(2), k=3).tolist() == [4.0] * 2
        assert op(torch.ones(2)).tolist() == [2.0] * 2


def test_dtypes_that_numpy_lacks_are_no_faster_and_no_worse():
    op = torch_operators.of_numpy()
    direct, dispatched = torch_situations.calls_of(op)
    for _ in range(3):
        run = torch_situations.SITUATIONS["bfloat16"]
        assert torch_situations.observed(run, direct) == torch_situations.observed(run, dispatched)


def test_the_first_direct_calls_look_at_aliasing():
    answer = [lambda x: x + 1]

    def kernel(x: np.ndarray) -> np.ndarray:
        return answer[0](x)

    op = define(kernel)
    x = torch.ones(3)
    op(x)
    answer[0] = lambda x: x
    with pytest.raises(AliasError, match="is argument x itself"):
        op(x)
