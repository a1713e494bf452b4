"""Faults caught and false alarms of ``opwright.opcheck`` and ``torch.library.opcheck``, side by side.

Run ``python benchmarks/checker/run.py``; see the README beside it. ``--sample N`` takes N cases of each set.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import corpus  # noqa: E402  (beside this file)
import tables  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from definitions import Case

RESULT = HERE.parent / "results" / "checker-cpu.txt"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and save; the exit status is 1 where a fault got away or a false alarm was raised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="take N cases of each set, evenly spaced")
    parser.add_argument("--only", metavar="TEXT", help="take the cases whose set/name contains a text")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save what is found, a line for each case")
    options = parser.parse_args(argv)
    chosen = [one for one in corpus.cases() if not options.only or options.only in one.id]
    chosen = _sampled(chosen, options.sample) if options.sample else chosen
    results = measured(chosen, options.jobs, options.limit, options.json)
    text = "\n".join(tables.lines(chosen, results, corpus.left_out))
    print(text)
    if not options.sample and not options.only:
        RESULT.write_text(text + "\n")
    return 0 if tables.good(chosen, results) else 1


def _sampled(cases: Sequence[Case], number: int) -> list[Case]:
    """Return up to a number of cases of each set, evenly spaced."""
    sets: dict[tuple[str, bool], list[Case]] = {}
    for one in cases:
        sets.setdefault((one.group, one.wrong), []).append(one)
    return [one for rows in sets.values() for one in rows[:: max(1, -(-len(rows) // number))]]


def measured(cases: Sequence[Case], jobs: int, limit: float, file: Path | None = None) -> dict[str, Any]:
    """Return what was found in each case, by id; also append it to a file, as it comes."""
    waiting: queue.Queue[str] = queue.Queue()
    for one in cases:
        waiting.put(one.id)
    results: dict[str, Any] = {}
    threads = [threading.Thread(target=_serve, args=(waiting, results, limit, file)) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _serve(waiting: queue.Queue[str], results: dict[str, Any], limit: float, file: Path | None) -> None:
    """Have a worker measure until nothing waits; a worker that crashes or takes too long is replaced."""
    worker = None
    while True:
        try:
            name = waiting.get_nowait()
        except queue.Empty:
            break
        worker = worker or _Worker()
        results[name], whole = worker.ask(name, limit)
        if not whole:
            ended = worker.end()
            if "ours" in results[name]:
                results[name] |= {"torch": {"refused": ended}}
            else:
                results[name] |= {"crashed": ended, "alone": _alone(name, limit)}
            worker = None
        if file is not None:
            with file.open("a") as lines:
                lines.write(json.dumps(results[name]) + "\n")
        if sys.stderr.isatty():
            print(f"\r{len(results)} {name:60.60}", end="", file=sys.stderr)
    if worker is not None:
        worker.end()


def _alone(name: str, limit: float) -> str:
    """Return how the function of a case ends a process by itself; empty where it does not."""
    if name.partition("/")[0] not in ("op_db", "scipy"):
        return ""
    command = [sys.executable, "-W", "ignore", str(HERE / "alone.py"), name]
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit, check=False)  # noqa: S603  (as below)
    except subprocess.TimeoutExpired:
        return f"not back after {limit:g} s"
    return f"exit status {done.returncode}" if done.returncode < 0 else ""


class _Worker:
    """A process that measures."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(  # noqa: S603  (this interpreter, on a file of this folder)
            [sys.executable, "-W", "ignore", str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._errors: list[str] = []
        threading.Thread(target=self._read_errors, daemon=True).start()
        if not self._line():
            raise SystemExit("a worker did not start:\n" + "\n".join([self.end(), *self._errors]))

    def _read_errors(self) -> None:
        for line in self._process.stderr or ():
            self._errors = [*self._errors[-30:], line.rstrip()]

    def _line(self) -> str:
        return self._process.stdout.readline() if self._process.stdout is not None else ""

    def ask(self, name: str, limit: float) -> tuple[dict[str, Any], bool]:
        """Return what is found in a case, and whether it is all: the process may end, or take too long."""
        timer = threading.Timer(limit, self._process.kill)
        timer.start()
        found: dict[str, Any] = {"id": name}
        try:
            if self._process.stdin is not None:
                self._process.stdin.write(name + "\n")
                self._process.stdin.flush()
            lines = [self._line(), self._line()]
        except BrokenPipeError:
            lines = [""]
        timer.cancel()
        for line in filter(None, lines):
            found |= json.loads(line)
        return found, all(lines)

    def end(self) -> str:
        """End the process and return how it ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        code = self._process.wait()
        told = next((line for line in self._errors if "Error" in line or "error" in line), "")
        return f"exit status {code}: {told}"


if __name__ == "__main__":
    sys.exit(main())
