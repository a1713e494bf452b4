"""torch's operator database as operators with torch's own derivative; the criteria are in the README."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import confirm
import torch
from definitions import Case, Definition
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping, Sequence

DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool)
LARGEST = 2000


class LeftOut(Exception):  # noqa: N818  (no error: an entry that the criteria leave out)
    """The criterion by which an entry is left out."""


@dataclass(frozen=True, slots=True)
class Call:
    """A sample of an entry, as a function of its tensors.

    Parameters
    ----------
    function
        Takes the tensors and returns what the entry returns.
    tensors
        The tensors that are arguments.
    marked
        Whether the sample marks each as differentiable.
    """

    function: Callable[..., Any]
    tensors: list[torch.Tensor]
    marked: list[bool]


def cases(left_out: Counter[str]) -> Iterator[Case]:
    """Yield a case for each entry, and count those left out."""
    for name, made in definitions(left_out):
        yield _case(name, made)


def definitions(left_out: Counter[str]) -> Iterator[tuple[str, Definition]]:
    """Yield the name and the definition of each entry, and count those left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    for info in op_db:
        variant = f"_{info.variant_test_name}" if info.variant_test_name else ""
        name = re.sub(r"\W", "_", f"{info.name}{variant}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield name, definition(info, name)
        except LeftOut as reason:
            left_out[str(reason)] += 1


def _case(name: str, made: Definition) -> Case:
    def build() -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        return made.define(), made.args(), {}

    def build_twin() -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        return made.define_twin(), made.args(), {}

    return Case("op_db", name, build, build_twin, confirm=lambda finding: confirm.confirmed(made, finding))


def definition(info: Any, name: str) -> Definition:
    """Return an entry as an operator.

    Raises
    ------
    LeftOut
        If the criteria leave the entry out.
    """
    if "empty" in info.name:
        raise LeftOut("returns memory that it has not written")
    call = _sample(info)
    outputs = _tried(call)
    names = [f"x{i}" for i in range(len(call.tensors))]
    is_tuple = len(_flat(outputs)) > 1
    returns = f"({', '.join(['Tensor'] * len(outputs))})" if is_tuple else "Tensor"
    schema = f"({', '.join(f'Tensor {one}' for one in names)}) -> {returns}"
    tags = ("nondeterministic_seeded",) if _is_random(call) else ()
    backward, setup = _derivative(info, call, outputs)

    def args() -> list[torch.Tensor]:
        pairs = zip(call.tensors, call.marked, strict=True)
        return [t.clone().requires_grad_(mark and backward is not None) for t, mark in pairs]

    compute = _owned(call)
    return Definition(
        name, named(compute, "kernel", names), args, schema=schema, tags=tags,
        fake=named(compute, "fake", names), backward=backward, setup=setup,
    )  # fmt: skip


def named(function: Callable[..., Any], name: str, parameters: Sequence[str]) -> Any:
    """Return a function of named parameters that calls one of any number."""
    listed = ", ".join(parameters)
    scope = {"function": function}
    source = f"def {name}({listed}):\n    return function({listed})\n"
    exec(compile(source, __file__, "exec"), scope)
    return scope[name]


def _sample(info: Any) -> Call:
    """Return the first sample of an entry in the first dtype that it has."""
    supported = info.supported_dtypes("cpu")
    dtype = next((one for one in DTYPES if one in supported), None)
    if dtype is None:
        raise LeftOut("has none of the dtypes")
    marks = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(0)
    try:
        sample = next(iter(info.sample_inputs("cpu", dtype, requires_grad=marks)))
    except Exception as error:
        raise LeftOut("raises on its own sample") from error
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    if any(isinstance(one, torch.Tensor) and one.layout != torch.strided for one in leaves):
        raise LeftOut("takes or returns a tensor that is not strided")
    differentiable = any(isinstance(one, torch.Tensor) and one.requires_grad for one in leaves)
    places = [
        i
        for i, one in enumerate(leaves)
        if isinstance(one, torch.Tensor) and (one.requires_grad or not (differentiable and _is_floating(one)))
    ]
    if not places:
        raise LeftOut("has no tensor among its arguments")
    rest = [_constant(one) for one in leaves]
    wrapper, process = info.gradcheck_wrapper, sample.output_process_fn_grad

    def function(*tensors: Any) -> Any:
        passed = [make() for make in rest]
        for place, tensor in zip(places, tensors, strict=True):
            passed[place] = tensor
        first, args, kwargs = tree_unflatten(passed, spec)
        return process(wrapper(info.op, first, *args, **kwargs))

    tensors = [leaves[i] for i in places]
    return Call(function, [one.detach().clone() for one in tensors], [one.requires_grad for one in tensors])


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _constant(value: Any) -> Callable[[], Any]:
    """Return what gives a value; a tensor is made anew, because it may have to be a fake one."""
    if not isinstance(value, torch.Tensor):
        return lambda: value
    data, dtype, shape = value.detach().tolist(), value.dtype, tuple(value.shape)
    return lambda: torch.tensor(data, dtype=dtype).reshape(shape)


def _copies(call: Call) -> list[torch.Tensor]:
    return [one.clone() for one in call.tensors]


def _tried(call: Call) -> Any:
    """Return what the function returns, if that is what an operator may return."""
    passed = _copies(call)
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            out = call.function(*passed)
    except Exception as error:
        raise LeftOut("raises on its own sample") from error
    flat = list(out) if isinstance(out, tuple | list) else [out]
    if not flat or not all(isinstance(one, torch.Tensor) for one in flat):
        raise LeftOut("returns something else than tensors")
    if any(one.layout != torch.strided for one in flat):
        raise LeftOut("takes or returns a tensor that is not strided")
    if sum(one.numel() for one in [*call.tensors, *flat]) > LARGEST:
        raise LeftOut(f"has more than {LARGEST:,} elements")
    if not _equal(passed, call.tensors):
        raise LeftOut("changes an argument")
    return out


def _equal(some: Any, others: Any) -> bool:
    pairs = zip(_flat(some), _flat(others), strict=True)
    return all(a.shape == b.shape and torch.equal(_wide(a), _wide(b)) for a, b in pairs)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a dtype that compares, without NaN."""
    return tensor.resolve_conj().to(torch.complex128 if tensor.is_complex() else torch.float64).nan_to_num()


class _Random(TorchDispatchMode):
    """Notes whether an operator of torch's is called that is declared random."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _is_random(call: Call) -> bool:
    with _Random() as seen:
        _tried(call)
    return seen.found


def _flat(out: Any) -> list[torch.Tensor]:
    return list(out) if isinstance(out, tuple | list) else [out]


def _owned(call: Call) -> Callable[..., Any]:
    """Return the function with outputs that share memory with nothing."""

    def compute(*tensors: torch.Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            out = call.function(*tensors)
        seen = {_storage(one) for one in tensors}
        own = []
        for one in _flat(out):
            kept = one.clone() if _storage(one) in seen else one
            seen.add(_storage(kept))
            own.append(kept)
        return tuple(own) if len(own) > 1 else own[0]

    return compute


def _storage(tensor: torch.Tensor) -> int:
    """Return what is equal for tensors of one storage, fake ones too."""
    return tensor.untyped_storage()._cdata  # noqa: SLF001  (torch has no public word for it)


Rules = tuple["Callable[..., Any] | None", "Callable[..., Any] | None"]


def _derivative(info: Any, call: Call, outputs: Any) -> Rules:
    """Return the backward and what fills its context; None where torch has no derivative."""
    floating = [i for i, one in enumerate(_flat(outputs)) if _is_floating(one)]
    if not any(call.marked) or not floating:
        return None, None

    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        twice = torch.is_grad_enabled()
        asked = [mark and need for mark, need in zip(call.marked, ctx.needs_input_grad, strict=True)]
        with torch.enable_grad():
            pairs = zip(ctx.saved_tensors, asked, strict=True)
            passed = [_varied(one) if ask else one.detach() for one, ask in pairs]
            flat = _flat(call.function(*passed))
            varied = [one for one, ask in zip(passed, asked, strict=True) if ask]
            live = [i for i in floating if flat[i].requires_grad]
            outputs, given = [flat[i] for i in live], [grads[i] for i in live]
            found = torch.autograd.grad(outputs, varied, given, create_graph=twice, allow_unused=True)
        left = list(found)
        return tuple(left.pop(0) if ask else None for ask in asked)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(*[one for i, one in enumerate(_flat(output)) if i in constant])

    class Saved:
        saved_tensors = _copies(call)
        needs_input_grad = call.marked

    try:
        constant = _without_gradient(call)
        backward(Saved, *[torch.ones_like(one) for one in _flat(outputs)])
    except Exception:  # noqa: BLE001  (whatever torch cannot differentiate)
        return None, None
    return backward, setup


def _without_gradient(call: Call) -> set[int]:
    """Return which outputs torch gives no gradient."""
    pairs = zip(_copies(call), call.marked, strict=True)
    with torch.enable_grad():
        out = call.function(*[one.requires_grad_(mark) for one, mark in pairs])
    return {i for i, one in enumerate(_flat(out)) if not one.requires_grad}


def _varied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that requires a gradient: the saved one where that does, for second derivatives."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()
