"""Whether a finding is true of torch's own functions: seen by calling them alone, without an operator.

The arguments are those that the finding's snippet makes. The function is called on them, on contiguous
copies, on fake tensors, traced with symbolic sizes, and given to torch's gradcheck.
"""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import starmap, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from opwright.checks.agreement import PRECISION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from definitions import Definition


SECOND = ("OW314", "OW315", "OW316")
"""What is found of second derivatives."""

THREADS = 4


def confirmed(made: Definition, finding: Any) -> bool:
    """Return whether what is found holds for the function that an operator is made of.

    Without a finding: whether torch has no fake for the function's own arguments, or cannot compile it.
    """
    return bool(_attempt(_confirmed, made, finding)[0])


def _confirmed(made: Definition, finding: Any) -> bool:
    if finding is None:
        given = [one.detach() for one in made.args()]
        return _differ(made, given) or _not_traced(made, given)
    found, error = _attempt(_arguments, made, finding.snippet)
    if error is not None:
        return False
    if finding.law == "layout" and finding.id != "OW903":
        return _by_layout(made, found)
    if finding.law == "autograd":
        return _not_the_derivative(made, found, second=finding.id in SECOND)
    if finding.law == "jvp":
        return _no_tangent(made, found)
    if finding.id == "OW1003":
        return _by_threads(made, found)
    if finding.law == "compile":
        guards = finding.id == "OW804"
        return _differ(made, found) or _not_traced(made, found, guards=guards) or _twin_fails(made, found)
    return finding.law in ("fake", "layout") and _differ(made, found)


def confirmed_of_ufunc(function: Any, finding: Any) -> bool:
    """Return whether what is found holds for a function of SciPy: between dtypes, and between threads."""
    made = [line for line in finding.snippet.splitlines() if re.match(r"x\d+ = np\.", line)]
    scope: dict[str, Any] = {"np": np}
    exec(compile("\n".join(made), "snippet", "exec"), scope)
    arrays = [scope[f"x{i}"] for i in range(function.nin)]
    if finding.law == "agreement":
        single = np.asarray(function(*[one.astype("float32") for one in arrays]))
        double = np.asarray(function(*[one.astype("float64") for one in arrays]))
        allowed = PRECISION["float32"] * max(1.0, np.abs(double).max())  # as the law has it
        return not np.allclose(single, double, rtol=0, atol=allowed, equal_nan=True)
    if finding.id == "OW1003":
        expected = function(*arrays)
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(lambda _: function(*arrays), range(100 * THREADS)))
        return not all(np.array_equal(one, expected, equal_nan=True) for one in found)
    return False


def confirmed_of_operator(op: Any, finding: Any) -> bool:
    """Return whether an operator of ``torch.library`` says something else of fake tensors than of real ones.

    It is called on the arguments of the finding's snippet.
    """
    if finding is None or finding.law != "fake":
        return False
    lines = finding.snippet.splitlines()
    call = (
        next(line for line in lines if line.startswith("print(op(")).removeprefix("print(").removesuffix(")")
    )
    made = takewhile(lambda line: not line.startswith("print("), lines)
    scope: dict[str, Any] = {}
    exec(compile("\n".join(one for one in made if not one.startswith("op = ")), "snippet", "exec"), scope)
    scope["op"] = op
    real = eval(call, scope)  # noqa: S307  (a line of the snippet)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        tensors = {name: one for name, one in scope.items() if isinstance(one, torch.Tensor)}
        fakes = {name: mode.from_tensor(one, static_shapes=True) for name, one in tensors.items()}
        fake = eval(call, scope | fakes)  # noqa: S307
    return not all(starmap(_same, zip(_tensors(real), _tensors(fake), strict=True)))


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
    for symbolic, python in ((False, False), (False, True), (True, True)):
        fake, fake_error = _attempt(_faked, made, tensors, symbolic, python)
        if (error is None) != (fake_error is None):
            return True
        if error is None and not all(starmap(_same, zip(_tensors(real), _tensors(fake), strict=True))):
            return True
    return False


def _same(real: torch.Tensor, fake: torch.Tensor) -> bool:
    """Return whether a fake tensor says what a real one is; sizes that it leaves open do not count."""
    if real.dim() != fake.dim() or real.dtype != fake.dtype:
        return False
    if not all(isinstance(size, int) for size in [*fake.shape, *fake.stride()]):
        return True
    return real.shape == fake.shape and (real.stride() == fake.stride() or not real.numel())


def _faked(made: Definition, tensors: Sequence[torch.Tensor], symbolic: bool, python: bool = True) -> Any:
    """Return what the function returns for fake tensors; by torch's decompositions in Python, if so asked."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [mode.from_tensor(one, static_shapes=not symbolic) for one in tensors]
    with mode, enable_python_dispatcher() if python else contextlib.nullcontext():
        return made.kernel(*fakes)


def _by_layout(made: Definition, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether the function depends on how its arguments lie in memory."""
    compact = [one.clone(memory_format=torch.contiguous_format) for one in tensors]
    first, error = _attempt(made.kernel, *tensors)
    second, other_error = _attempt(made.kernel, *compact)
    if error is not None or other_error is not None:
        return (error is None) != (other_error is None)
    pairs = zip(_tensors(first), _tensors(second), strict=True)
    return any(a.shape != b.shape or not torch.allclose(a, b, equal_nan=True) for a, b in pairs)


def _no_tangent(made: Definition, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether torch derives no tangent of the function from its gradient either."""
    marks = [one.requires_grad for one in made.args()]
    varied = tuple(one.clone() for one, mark in zip(tensors, marks, strict=True) if mark)

    def function(*passed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = list(passed)
        every = [left.pop(0) if mark else one for one, mark in zip(tensors, marks, strict=True)]
        return tuple(one for one in _tensors(made.kernel(*every)) if one.requires_grad)

    ones = tuple(map(torch.ones_like, varied))
    return _attempt(lambda: torch.autograd.functional.jvp(function, varied, ones, strict=True))[1] is not None


def _by_threads(made: Definition, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether calls from several threads at once give other results than one alone."""
    expected = _tensors(made.kernel(*tensors))
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda _: _tensors(made.kernel(*tensors)), range(100 * THREADS)))
    return not all(_equal(one, expected) for one in found)


def _gradients(made: Definition) -> Callable[..., list[torch.Tensor]]:
    """Return a function that gives the results and the gradients of their sums."""
    marks = [one.requires_grad for one in made.args()]

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(tensors, marks, strict=True)
        passed = [one.detach().requires_grad_(mark) for one, mark in pairs]
        with torch.enable_grad():
            out = _tensors(made.kernel(*passed))
        live = [one for one in out if one.requires_grad]
        varied = [one for one, mark in zip(passed, marks, strict=True) if mark]
        if not live or not varied:
            return out
        ones = [torch.ones_like(one) for one in live]
        found = torch.autograd.grad(live, varied, ones, allow_unused=True)
        return [*out, *(one for one in found if one is not None)]

    return function


def _not_traced(made: Definition, tensors: Sequence[torch.Tensor], *, guards: bool = False) -> bool:
    """Return whether torch cannot trace the function and its gradient, or traces them wrong."""
    marks = [one.requires_grad for one in made.args()]
    varied = [one.clone().requires_grad_(mark) for one, mark in zip(tensors, marks, strict=True)]
    if _attempt(_faked, made, varied, True)[1] is not None:
        return True
    function = _gradients(made)
    expected, error = _attempt(function, *tensors)
    if error is not None:
        return True
    graph, error = _attempt(make_fx(function, tracing_mode="symbolic"), *tensors)
    if error is not None:
        return True
    if guards and (graph.shape_env.guards or graph.shape_env.replacements):
        return True
    got, error = _attempt(graph, *tensors)
    return error is not None or not _equal(got, expected)


def _twin_fails(made: Definition, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether an operator of ``torch.library`` made of the same function cannot be compiled either."""
    torch.compiler.reset()
    program = torch.compile(made.define_twin(), backend="aot_eager", fullgraph=True, dynamic=True)
    marks = [one.requires_grad for one in made.args()]
    varied = [one.clone().requires_grad_(mark) for one, mark in zip(tensors, marks, strict=True)]
    return _attempt(program, *varied)[1] is not None


def _equal(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(a.shape == b.shape and torch.allclose(a, b, equal_nan=True) for a, b in pairs)


def _not_the_derivative(made: Definition, tensors: Sequence[torch.Tensor], *, second: bool) -> bool:
    """Return whether torch's own derivative is not that of the function, as torch's gradcheck sees it."""
    marks = [one.requires_grad for one in made.args()]
    passed = [one.clone().requires_grad_(mark) for one, mark in zip(tensors, marks, strict=True)]

    def function(*varied: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(one for one in _tensors(made.kernel(*varied)) if one.requires_grad)

    check = torch.autograd.gradgradcheck if second else torch.autograd.gradcheck
    return _attempt(check, function, passed)[1] is not None
