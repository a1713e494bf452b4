"""Measures the cases whose ids come in, one a line, and writes two lines of JSON for each.

A process of its own, because an operator that is called in new ways may crash it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Measure until no more ids come."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.path.insert(0, str(HERE))
    import torch

    torch.set_num_threads(1)
    import corpus
    from measure import measure

    cases = {case.id: case for case in corpus.cases()}
    list(measure(cases[corpus.WARM_UP]))  # what is imported and compiled once is not measured
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    for line in sys.stdin:
        for part in measure(cases[line.strip()]):
            answers.write(json.dumps(part) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
