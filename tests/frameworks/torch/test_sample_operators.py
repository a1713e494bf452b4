"""The sample operators of torch's own tests, its source run with the import changed.

Rows 80, 82, 91, 95 and 107.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map

import opwright as ow
from opwright.errors import OutputError

pytest.importorskip("expecttest", reason="expecttest is not installed, which torch's sample operators need")


def load():
    """Run torch's module with ``opwright`` for ``torch.library``, in a namespace of its own."""
    path = importlib.util.find_spec("torch.testing._internal.custom_op_db").origin
    source = Path(path).read_text("utf-8")
    changed = source.replace("torch.library.", "library.").replace("_torch_testing", "sample_operators")
    assert changed.count("@library.custom_op") >= 11
    names = {"__name__": "sample_operators", "library": ow}
    exec(compile(changed, path, "exec"), names)
    return names


MODULE = load()
INFOS = {info.name: info for info in MODULE["custom_op_db"]}
DIFFERENTIABLE = [name for name, info in INFOS.items() if info.supports_autograd]
REFUSING = [name for name in INFOS if name not in DIFFERENTIABLE]  # how much they return depends on the data
BATCHED = [name for name in DIFFERENTIABLE if name != "NumpyCatCustomOp"]  # see TRUE_OF_TORCH

pytestmark = pytest.mark.filterwarnings("ignore:`create_unbacked_symint` is deprecated:FutureWarning")


def samples(info, *, dtype=torch.float64, requires_grad=False):
    torch.manual_seed(0)
    found = list(info.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    assert found
    return [((sample.input, *sample.args), sample.kwargs) for sample in found]


def operator_of(info):
    """Return our operator of a sample, whether torch has it as an overload or a packet."""
    name = info.op.name() if hasattr(info.op, "name") else info.op._qualified_op_name
    return getattr(ow.ops.sample_operators, name.partition("::")[2].partition(".")[0]).default


def faked(mode, args):
    return tree_map(lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, args)


def routes(info):
    return operator_of(info), info.op


def test_row_80_there_are_eleven():
    assert len(INFOS) >= 11


@pytest.mark.parametrize("name", INFOS)
def test_row_80_fake_results_are_like_real_ones(name):
    info = INFOS[name]
    for args, kwargs in samples(info):
        for call in routes(info):
            real = call(*args, **kwargs)
            mode = FakeTensorMode(shape_env=ShapeEnv())
            fakes = faked(mode, args)
            with mode:
                fake = call(*fakes, **kwargs)
            for one, other in zip(tree_leaves(real), tree_leaves(fake), strict=True):
                if isinstance(one, torch.Tensor):
                    assert isinstance(other, FakeTensor)
                    assert (other.dtype, other.device, other.dim()) == (one.dtype, one.device, one.dim())
                    known = [isinstance(size, int) for size in other.shape]
                    assert [a for a, k in zip(other.shape, known, strict=True) if k] == [
                        a for a, k in zip(one.shape, known, strict=True) if k
                    ]
                else:
                    assert one == other


@pytest.mark.parametrize("name", INFOS)
def test_row_80_real_tensors_are_propagated(name):
    info = INFOS[name]
    args, kwargs = samples(info)[0]
    real = tree_leaves(info.op(*args, **kwargs))
    with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True):
        mode = FakeTensorMode(shape_env=ShapeEnv())
        fakes = faked(mode, args)
        with mode:
            fake = tree_leaves(info.op(*fakes, **kwargs))
    for one, other in zip(real, fake, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(other.real_tensor, one)


@pytest.mark.parametrize("name", REFUSING)
def test_row_95_a_rule_may_refuse(name):
    info = INFOS[name]
    args, kwargs = samples(info)[0]
    batch = [torch.stack([x, x]) if isinstance(x, torch.Tensor) else x for x in args]
    in_dims = tuple(0 if isinstance(x, torch.Tensor) else None for x in args)
    for call in routes(info):
        with pytest.raises(NotImplementedError, match="data-dependent"):
            torch.vmap(lambda *args, call=call: call(*args, **kwargs), in_dims)(*batch)


@pytest.mark.parametrize("name", REFUSING)
def test_row_82_opcheck_takes_sizes_that_depend_on_the_data(name):
    info = INFOS[name]
    args, kwargs = samples(info)[0]
    report = ow.opcheck(operator_of(info), args, kwargs, frameworks="torch")
    assert report.outcome("fake", "torch").status == "passed"
    assert set(report.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_row_91_first_and_second_gradients(name):
    info = INFOS[name]
    for args, kwargs in samples(info, requires_grad=True)[:2]:
        leaves = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        assert leaves
        for call in routes(info):

            def function(*tensors, args=args, kwargs=kwargs, call=call):
                given = iter(tensors)
                values = tree_map(
                    lambda x: next(given) if isinstance(x, torch.Tensor) and x.requires_grad else x, args
                )
                outs = [x for x in tree_leaves(call(*values, **kwargs)) if isinstance(x, torch.Tensor)]
                return tuple(out for out in outs if out.is_floating_point() and out.requires_grad)

            assert torch.autograd.gradcheck(function, leaves)
            assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("name", BATCHED)
def test_row_95_vmap_is_a_loop(name):
    info = INFOS[name]
    for args, kwargs in samples(info)[:2]:
        batch = tree_map(lambda x: torch.stack([x, x.flip(-1)]) if isinstance(x, torch.Tensor) else x, args)
        if "Take" in name:  # indices stay valid
            batch = (batch[0], *(torch.stack([x, x]) for x in args[1:3]), args[3])
        in_dims = tree_map(lambda x: 0 if isinstance(x, torch.Tensor) else None, args)
        for call in routes(info):
            looped = [
                call(*tree_map(lambda x, i=i: x[i] if isinstance(x, torch.Tensor) else x, batch), **kwargs)
                for i in range(2)
            ]

            def tensors(*values, call=call, kwargs=kwargs):
                return [x for x in tree_leaves(call(*values, **kwargs)) if isinstance(x, torch.Tensor)]

            found = torch.vmap(tensors, in_dims=in_dims)(*batch)
            expected = [[x for x in tree_leaves(out) if isinstance(x, torch.Tensor)] for out in looped]
            for one, others in zip(found, zip(*expected, strict=True), strict=True):
                assert torch.equal(one, torch.stack(others))


TORCH_NAMES = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
TRUE_OF_TORCH = {
    "NumpyMulCustomOp": {"OW204", "OW302"},  # a transposed argument; a gradient that torch sums itself
    "NumpySortCustomOp": {"OW204"},  # a transposed argument: the fake keeps its strides
    "NumpyTakeCustomOp": {"OW204"},
    "NumpyViewCopyCustomOp": {"OW206"},  # the fake takes a view of what has none
    "NumpyCatCustomOp": {"OW504"},  # the rule unpacks two axes into one name, under torch.library too
    "NumpySplitCopyCustomOp": {"OW503"},  # the rule adds 1 to an axis that counts from the end
    "NumpySplitCopyWithIntCustomOp": {"OW503"},
}
"""What the laws that torch's own four tests do not know find in its samples, and is so."""


@pytest.mark.parametrize("name", INFOS)
def test_row_107_opcheck_passes_but_for_what_is_wrong_in_the_samples(name):
    info = INFOS[name]
    args, kwargs = samples(info, requires_grad=info.supports_autograd)[0]
    known = TRUE_OF_TORCH.get(name, set())
    for target in (operator_of(info), operator_of(info)._opoverload):
        report = ow.opcheck(target, args, kwargs, raise_exception=False)
        assert {finding.id for finding in report.findings} == known, str(report)
        assert list(report) == TORCH_NAMES
        report = ow.opcheck(
            target, args, kwargs, test_utils=TORCH_NAMES, level="quick", raise_exception=not known
        )
        assert {finding.id for finding in report.findings} == known & {"OW302"}, str(report)


def test_row_107_what_is_wrong_in_the_samples_is_so_without_opcheck():
    x = torch.randn(3, 4, dtype=torch.float64)
    ops = torch.ops.sample_operators
    for call in (lambda x: ops.numpy_sort(x, 0)[0], lambda x: ops.numpy_mul(x, x)):
        with FakeTensorMode() as mode:
            fake = call(mode.from_tensor(x).T)
        assert fake.stride() != call(x.T).stride()
    assert ops.numpy_view_copy(x.T, [12]).shape == (12,)
    with pytest.raises(ValueError, match="Cannot view"), FakeTensorMode() as mode:
        ops.numpy_view_copy(mode.from_tensor(x).T, [12])
    with pytest.raises(ValueError, match="too many values"):
        torch.vmap(ops.numpy_cat, (0, None))([x, x], 0)
    with pytest.raises(OutputError, match=r"expected: an axis of size 3\n  got: axis 0 of shape \(1, 2, 9\)"):
        torch.vmap(lambda x: ops.numpy_split_copy(x, [1], -1))(torch.randn(3, 2, 9))
    assert MODULE["numpy_mul_backward"](_Needs(x[0], x), x)[0].shape == x.shape


class _Needs:
    """A context that saved two tensors."""

    needs_input_grad = (True, True)

    def __init__(self, *tensors):
        self.saved_tensors = tensors
