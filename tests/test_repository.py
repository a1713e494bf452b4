"""What holds for the repository as a whole."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def _name(path):
    return path.relative_to(ROOT).as_posix()


def test_there_are_sources():
    assert ROOT / "src" / "opwright" / "errors.py" in SOURCES


def test_installed_version_is_that_of_pyproject():
    assert importlib.metadata.version("opwright") == PROJECT["version"]


def test_runtime_dependencies_are_numpy_and_array_api_compat_only():
    names = {re.match(r"[\w-]+", line).group() for line in PROJECT["dependencies"]}
    assert names == {"numpy", "array-api-compat"}


def test_package_is_typed():
    assert (ROOT / "src" / "opwright" / "py.typed").is_file()


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_source_says_what_it_is(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body, f"{_name(path)} has no module docstring"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_source_is_short(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 400, f"{_name(path)} has {lines} lines; 400 are allowed"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_functions_are_short(path):
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno + 1 > 60
    ]
    assert not long, f"{_name(path)}: 60 lines are allowed in a function: {', '.join(long)}"


@pytest.mark.parametrize("folder", ["rules", "kernels", "frameworks", "checks"])
def test_init_of_a_growth_folder_is_empty(folder):
    path = ROOT / "src" / "opwright" / folder / "__init__.py"
    assert not ast.parse(path.read_text(encoding="utf-8")).body


def test_every_ignored_lint_rule_has_its_reason():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    codes = re.findall(r'^ {4}"[A-Z]{1,4}\d*",.*$', text, flags=re.MULTILINE)
    assert len(codes) > 20
    assert [line for line in codes if not re.search(r" # \S", line)] == []
