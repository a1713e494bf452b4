"""The examples for GPUs: on the CPU their references run, and all laws hold in every framework installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import opwright as ow

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("triton", reason="needs the package triton")
pytest.importorskip("numba", reason="needs the package numba")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
OPERATORS = {
    "rms_norm": "rms_norm",
    "cross_entropy": "cross_entropy",
    "fft_convolution": "fft_convolution",
    "numba_recurrence": "recurrence",
    "cupy_gate": "gate",
}


@pytest.fixture
def example(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return importlib.import_module


@pytest.mark.parametrize("name", OPERATORS)
def test_it_agrees_with_its_reference(example, name, capsys):
    example(name).main()
    assert "largest difference" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", OPERATORS)
def test_every_law_holds(example, name, framework):
    pytest.importorskip(framework, reason=f"needs {framework}")
    operator = getattr(example(name), OPERATORS[name])
    report = ow.opcheck(operator, raise_exception=False, frameworks=framework)
    assert not report.findings, str(report)
    assert report.outcomes
