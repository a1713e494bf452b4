"""Every case of the corpus, set by set."""

from __future__ import annotations

import functools
import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from definitions import Case, case

import opwright as ow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = "recipes/sine"

LAW_OF = {
    0: "call", 1: "schema", 2: "fake", 3: "autograd", 4: "jvp", 5: "vmap", 6: "autocast",
    7: "functionalization", 8: "compile", 9: "layout", 10: "determinism", 11: "agreement", 12: "device",
}  # fmt: skip
"""The law of an id, by its number: 3 for ``OW301``."""

left_out: dict[str, Counter[str]] = {}
"""How many operators each criterion leaves out, by set."""


@functools.cache
def cases() -> tuple[Case, ...]:
    """Return every case, wrong ones first."""
    sets = (
        zoo_cases, mutant_cases, _wrong_tests, recipe_cases, _op_db, _custom_op_db, _scipy, _right_tests,
        _examples,
    )  # fmt: skip
    return tuple(one for make in sets for one in make())


# ---------------------------------------------------------------------------------------- wrong operators


def zoo_cases() -> Iterator[Case]:
    """Yield the operators that users have written."""
    import zoo

    import kernels

    for module in ("zoo_contract", "zoo_programs"):  # each adds its own when it is imported
        importlib.import_module(module)
    yield from zoo.CASES
    yield from kernels.CASES


def mutant_cases() -> Iterator[Case]:
    """Yield what the mutators make of the recipes."""
    from mutators import mutants
    from recipes import RECIPES

    for mutator, wrong in mutants(RECIPES):
        yield case(wrong, "mutants", mutator.laws, mutator.words, level=mutator.level)


def _tests() -> Any:
    """Return the modules with the operators of the tests."""
    sys.path.insert(0, str(ROOT / "tests"))
    from checks import portable_operators, right_operators, wrong_operators

    return portable_operators, right_operators, wrong_operators


def _laws(ids: set[str]) -> tuple[str, ...]:
    return tuple(sorted({LAW_OF[int(one[2:]) // 100] for one in ids}))


def _registered(
    group: str, name: str, op: Any, laws: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> Case:
    return Case(group, name, lambda: (op, None, {}), None, tuple(laws), "", options or {})


def _wrong_tests() -> Iterator[Case]:
    portable, _, wrong = _tests()
    for one in wrong.WRONG:
        yield _wrong_test(one)
    for name, (op, ids) in portable.WRONG.items():
        yield _registered("tests", f"portable_{name}", op, _laws(ids))


def _wrong_test(one: Any) -> Case:
    def build() -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        return one.operator, one.args, one.kwargs

    options = {"frameworks": "numpy", "level": one.level}
    return Case("tests", one.name, build, None, _laws(one.ids), one.words, options)


# ---------------------------------------------------------------------------------------- right operators


def recipe_cases() -> Iterator[Case]:
    """Yield the recipes as they are."""
    from recipes import RECIPES

    for one in RECIPES:
        yield case(one, "recipes")


def _op_db() -> Iterator[Case]:
    import op_db

    yield from op_db.cases(left_out.setdefault("op_db", Counter()))


def _custom_op_db() -> Iterator[Case]:
    import torch
    from torch.testing._internal.custom_op_db import custom_op_db

    for info in custom_op_db:
        sample = next(iter(info.sample_inputs("cpu", torch.float64, requires_grad=True)))
        op = getattr(info.op, "_opoverload", info.op)
        if not hasattr(op, "_schema"):
            left_out.setdefault("custom_op_db", Counter())["is no operator but a function around one"] += 1
            continue
        yield _as_it_is(info.name, op, (sample.input, *sample.args), sample.kwargs)


def _as_it_is(name: str, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Case:
    def confirm(finding: Any) -> bool:
        from confirm import confirmed_of_operator

        return confirmed_of_operator(op, finding)

    return Case("custom_op_db", name, lambda: (op, args, kwargs), lambda: (op, args, kwargs), confirm=confirm)


def _scipy() -> Iterator[Case]:
    import scipy.special

    for name in dir(scipy.special):
        function = getattr(scipy.special, name)
        if not isinstance(function, np.ufunc):
            continue
        if f"{'d' * function.nin}->{'d' * function.nout}" not in function.types:
            why = "has no loop over float64 alone"
            left_out.setdefault("scipy", Counter())[why] += 1
            continue
        yield _special(name, function)


def _special(name: str, function: np.ufunc) -> Case:
    names = [f"x{i}" for i in range(function.nin)]
    returns = "Tensor" if function.nout == 1 else f"({', '.join(['Tensor'] * function.nout)})"
    schema = f"({', '.join(f'Tensor {one}' for one in names)}) -> {returns}"

    def compute(*arrays: np.ndarray) -> Any:
        out = function(*arrays)
        found = [np.asarray(one, arrays[0].dtype) for one in (out if isinstance(out, tuple) else [out])]
        return tuple(found) if function.nout > 1 else found[0]

    def shaped(*arrays: Any) -> Any:
        shape = ow.broadcast_shapes(*[one.shape for one in arrays])
        found = [arrays[0].new_empty(shape) for _ in range(function.nout)]
        return tuple(found) if function.nout > 1 else found[0]

    def build() -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        from op_db import named

        kernel, fake = named(compute, "kernel", names), named(shaped, "fake", names)
        op = ow.custom_op(f"special::{name}", kernel, mutates_args=(), schema=schema, flavour="numpy")
        op.register_fake(fake)
        random = np.random.default_rng(0)
        return op, [random.uniform(0.2, 0.8, (3, 4)) for _ in names], {}

    def confirm(finding: Any) -> bool:
        from confirm import confirmed_of_ufunc

        return confirmed_of_ufunc(function, finding)

    return Case("scipy", name, build, confirm=confirm)


def _right_tests() -> Iterator[Case]:
    portable, right, _ = _tests()
    for name, op in right.OPERATORS.items():
        yield _registered("tests", f"right_{name}", op, options={"frameworks": "numpy"})
    for name, op in portable.RIGHT.items():
        yield _registered("tests", f"right_portable_{name}", op)


def _examples() -> Iterator[Case]:
    from opwright.modules import UsageError, defined_in, import_target

    counts = left_out.setdefault("examples", Counter())
    for path in sorted((ROOT / "examples").glob("*.py")):
        try:
            module = import_target(str(path)).name
        except UsageError as error:
            counts[f"{path.name} does not import: {str(error).splitlines()[-1]}"] += 1
            continue
        for record in defined_in(module):
            if record.rule("samples") is None:
                counts["registers no samples"] += 1
            else:
                yield _registered("examples", record.qualname, record.operator)
