"""How long ``opcheck`` takes at its quick and its default level, for each operator of ``examples``.

Run ``python benchmarks/checker/levels.py [FOLDER]``. Each operator is checked with its first sample alone, in
every framework that ``opcheck`` takes by default here, after the frameworks are imported and one other
operator was checked, and then once more: what the second time lacks is what kernels and programs took to
compile. The laws' times in the first are given by framework.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import tables  # beside this file
from numpy.typing import NDArray

import opwright as ow
from opwright.checks.runner import check, samples_of
from opwright.modules import defined_in, import_target

LIMITS = {"quick": 1.0, "default": 5.0}
ROOT = Path(__file__).resolve().parents[2]


@ow.custom_op("levels::first", mutates_args=())
def first(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Doubles; checked before anything is timed, so that what is imported late is there."""
    return x + x


first.register_fake(lambda x: x.new_empty(x.shape))
first.register_autograd(lambda ctx, grad: grad + grad)
first.register_jvp(lambda ctx, tangent: tangent + tangent)
first.register_vmap(lambda info, in_dims, x: (first(x), in_dims[0]))


def main() -> None:
    """Print a line for each operator and level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=str(ROOT / "examples"))
    folder = parser.parse_args().folder
    print("\n".join(tables.header()))
    ow.opcheck(first, (np.ones(3),))
    print(f"\n{'':32}{'level':8}{'seconds':>8}{'again':>8}")
    for record in sorted(defined_in(import_target(folder).name), key=lambda record: record.qualname):
        samples = samples_of(record)[:1]
        for level, limit in LIMITS.items() if samples else ():
            start = time.perf_counter()
            report = check(record, samples, level=level)
            middle = time.perf_counter()
            check(record, samples, level=level)
            took, again = middle - start, time.perf_counter() - middle
            parts = dict.fromkeys(report.frameworks, 0.0)
            for outcome in report.outcomes:
                parts[outcome.framework] += outcome.seconds
            verdict = f"<= {limit:.0f} {'reached' if took <= limit else 'NOT reached'}"
            shares = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
            print(f"{record.qualname:32}{level:8}{took:8.2f}{again:8.2f}  {verdict:17}{shares}")


if __name__ == "__main__":
    main()
