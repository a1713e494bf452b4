"""All GPU tests and benchmarks in one go, as a short table; ``make gpu`` runs it.

Run ``python benchmarks/gpu.py [FOLDER]`` with Opwright, torch, triton, cupy, numba, pytest and, for its
matrix, jax importable. The table, with versions and date, is also written to ``FOLDER/gpu-<GPU>.txt``, by
default into ``benchmarks/results``. Exit status 1 where a test fails.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPTS = (("triton_launches.py",), ("gpu_operators.py",), ("torch_calls.py", "--device", "cuda"))
WORKERS = min(12, max(1, (os.cpu_count() or 2) - 2))
"""Processes that share the matrix of JAX, where pytest-xdist is installed."""


def versions() -> str:
    """Return the versions of what takes part."""
    found = []
    for name in ("opwright", "torch", "triton", "cupy-cuda12x", "cupy-cuda13x", "jax", "numba", "numpy"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join([f"Python {sys.version.split()[0]}", *found])


def run(*command: str) -> tuple[int, list[str]]:
    """Run a command and return its status and its lines, those of warnings only where it fails."""
    # Plugins of pytest that happen to be installed may warn, and warnings are errors.
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if command[0] != "-m":
        environment.setdefault("CUDA_VISIBLE_DEVICES", "0")  # benchmarks use one GPU, tests all
    done = subprocess.run(  # noqa: S603  (this interpreter, on files of this repository)
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr if done.returncode else done.stdout
    return done.returncode, said.splitlines()


def tests() -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return commands by what they are, each with a last line that sums up: short ones, and the long one."""
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE")
    files = [
        str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.cuda" in path.read_text()
    ]
    short = {
        "tests that need a GPU": (*pytest, "-m", "cuda", *files),
        "opwright check examples": ("-m", "opwright", "check", "examples"),
    }
    if importlib.util.find_spec("jax") is None:
        return short, {}
    parallel = importlib.util.find_spec("xdist") is not None
    spread = ("-p", "xdist.plugin", "-n", str(WORKERS)) if parallel else ("-m", "not slow")
    matrix = (*pytest, *spread, "tests/frameworks/jax/test_conformance.py")
    return short, {"JAX: operators x transforms": matrix}


def main() -> int:
    """Run everything, print the table and write it down as it grows."""
    import torch

    if not torch.cuda.is_available():
        print("GPU tests and benchmarks: skipped, torch finds no GPU")
        return 0
    name = torch.cuda.get_device_name()
    count = torch.cuda.device_count()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results"
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / f"gpu-{name.lower().replace(' ', '-')}-x{count}.txt"
    lines: list[str] = []
    status = 0

    def add(*more: str) -> None:
        lines.extend(more)
        print("\n".join(more), flush=True)
        record.write_text("\n".join(lines) + "\n")

    def test(commands: dict[str, tuple[str, ...]]) -> None:
        nonlocal status
        for what, command in commands.items():
            code, output = run(*command)
            status = status or code
            failed = [line for line in output if line.startswith(("FAILED", "ERROR"))]
            if code:
                print("\n".join(output))
            add(f"{what}: {output[-1].strip('= ')}", *failed)

    add(f"{dt.datetime.now(dt.UTC).date().isoformat()}, {count} x {name}", versions(), "")
    short, long = tests()
    test(short)
    for script, *arguments in SCRIPTS:
        code, output = run(str(HERE / script), *arguments)
        status = status or code
        add("", " ".join([script, *arguments]), *(output if not code else output[-15:]))
    add("")
    test(long)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
