"""Whether a finding is true of torch's own functions: seen by calling them alone, without an operator.

The arguments are those that the finding's snippet makes. The function is called on them, on contiguous
copies, on fake tensors, and compiled.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from definitions import Definition


def confirmed(made: Definition, finding: Any) -> bool:
    """Return whether what is found holds for the function that an operator is made of.

    Without a finding: whether torch has no fake for the function's own arguments, or cannot compile it.
    """
    if finding is None:
        given = [one.detach() for one in made.args()]
        return _differ(made, given) or _not_compiled(made, given)
    found, error = _attempt(_arguments, made, finding.snippet)
    if error is not None:
        return False
    if finding.law == "layout" and finding.id != "OW903":
        return _by_layout(made, found)
    if finding.law == "compile":
        sizes = re.match(r"with size (\d+) in place of (\d+)", finding.what)
        if sizes is not None:
            return _compiled_again(made, found, int(sizes[2]), int(sizes[1]))
        return _differ(made, found) or _not_compiled(made, found)
    return finding.law in ("fake", "layout") and _differ(made, found)


def _attempt(function: Callable[..., Any], *args: Any) -> tuple[Any, Exception | None]:
    try:
        return function(*args), None
    except Exception as error:  # noqa: BLE001  (whatever torch raises)
        return None, error


def _arguments(made: Definition, snippet: str) -> list[torch.Tensor]:
    """Return the tensors that a snippet makes, by running its lines up to the first that does more."""
    names = [f"x{i}" for i in range(len(made.args()))]
    own = ("import ", *(f"{name} = " for name in names))
    lines = takewhile(lambda line: line.startswith((*own, "#", "op = ")), snippet.splitlines())
    scope: dict[str, Any] = {}
    kept = [line for line in lines if not line.startswith(("op = ", "import op_db"))]
    exec(compile("\n".join(kept), "snippet", "exec"), scope)
    return [scope[name] for name in names]


def _tensors(out: Any) -> list[torch.Tensor]:
    return list(out) if isinstance(out, tuple | list) else [out]


def _differ(made: Definition, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether the function says something else of fake tensors than it does with real ones."""
    real, error = _attempt(made.kernel, *[one.clone() for one in tensors])
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fakes = [mode.from_tensor(one, static_shapes=True) for one in tensors]
        fake, fake_error = _attempt(made.kernel, *fakes)
    if error is not None or fake_error is not None:
        return (error is None) != (fake_error is None)
    pairs = zip(_tensors(real), _tensors(fake), strict=True)
    return any((a.shape, a.dtype, a.stride()) != (b.shape, b.dtype, b.stride()) for a, b in pairs)


def _by_layout(made: Definition, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether the function depends on how its arguments lie in memory."""
    compact = [one.clone(memory_format=torch.contiguous_format) for one in tensors]
    first, error = _attempt(made.kernel, *tensors)
    second, other_error = _attempt(made.kernel, *compact)
    if error is not None or other_error is not None:
        return (error is None) != (other_error is None)
    pairs = zip(_tensors(first), _tensors(second), strict=True)
    return any(a.shape != b.shape or not torch.allclose(a, b, equal_nan=True) for a, b in pairs)


def _not_compiled(made: Definition, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether torch cannot compile the function, or its gradient."""
    torch.compiler.reset()
    program = torch.compile(made.kernel, backend="aot_eager", dynamic=True)
    return _attempt(_gradients, program, tensors)[1] is not None


def _gradients(program: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> None:
    wanted = [one.clone().requires_grad_(one.is_floating_point() or one.is_complex()) for one in tensors]
    losses = [one.abs().sum() for one in _tensors(program(*wanted)) if one.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()


def _compiled_again(made: Definition, tensors: Sequence[torch.Tensor], old: int, new: int) -> bool:
    """Return whether another size makes torch compile the function, or its gradient, again."""
    torch.compiler.reset()
    programs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        programs.append(len(inputs))
        return lookup_backend("aot_eager")(graph, inputs)

    program = torch.compile(made.kernel, backend=backend, dynamic=True)
    counts = []
    for size in (old, new):
        _attempt(_gradients, program, [_resized(one, old, size) for one in tensors])
        counts.append(len(programs))
    return counts[1] > counts[0]


def _resized(tensor: torch.Tensor, old: int, new: int) -> torch.Tensor:
    for axis, size in enumerate(tensor.shape):
        if size == old:
            tensor = tensor.index_select(axis, torch.arange(new) % old)
    return tensor
