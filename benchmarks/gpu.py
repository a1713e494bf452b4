"""All GPU tests and benchmarks in one go, as a short table; ``make gpu`` runs it.

Run ``python benchmarks/gpu.py [FOLDER]`` with Opwright, torch, triton, cupy, numba and pytest importable. The
table, with versions and date, is also written to ``FOLDER/gpu-<name of the GPU>.txt``, by default into
``benchmarks/results``. Exit status 1 where a test fails.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = ("triton_launches.py", "gpu_operators.py")


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
    """Run a command and return its status and its lines."""
    # Plugins of pytest that happen to be installed may warn, and warnings are errors.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if command[0] != "-m":
        environment.setdefault("CUDA_VISIBLE_DEVICES", "0")  # benchmarks use one GPU, tests all
    done = subprocess.run(  # noqa: S603  (this interpreter, on files of this repository)
        [sys.executable, *command],
        cwd=HERE.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def main() -> int:
    """Run everything, print the table and write it down."""
    import torch

    if not torch.cuda.is_available():
        print("GPU tests and benchmarks: skipped, torch finds no GPU")
        return 0
    name = torch.cuda.get_device_name()
    count = torch.cuda.device_count()
    lines = [f"{dt.datetime.now(dt.UTC).date().isoformat()}, {count} x {name}", versions(), ""]
    status, output = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cuda")
    failed = [line for line in output if line.startswith(("FAILED", "ERROR"))]
    lines += ["tests/cuda: " + output[-1].strip("= "), *failed]
    if status:
        print("\n".join(output))
    for script in SCRIPTS:
        code, output = run(str(HERE / script))
        status = status or code
        lines += ["", script, *(output if not code else output[-15:])]
    text = "\n".join(lines)
    print(text)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"gpu-{name.lower().replace(' ', '-')}-x{count}.txt").write_text(text + "\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
