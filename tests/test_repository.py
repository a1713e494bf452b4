"""What holds for the repository as a whole."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
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


def _imports(nodes, *, inside):
    """Yield the top-level package of every import, of those inside functions too where asked."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node.orelse, inside=inside)
        elif inside or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _imports(ast.iter_child_nodes(node), inside=inside)


def _part(path):
    """Return the folder of the package that a file is in, empty for the engine."""
    return path.relative_to(ROOT / "src" / "opwright").parent.as_posix().partition("/")[0].replace(".", "")


def test_imports_are_found():
    tree = ast.parse(
        "import a.b\nif TYPE_CHECKING:\n    import c\ntry:\n    from d.e import f\nfinally:\n    pass\n"
        "def g():\n    import h\n"
    )
    assert set(_imports(tree.body, inside=False)) == {"a", "d"}
    assert set(_imports(tree.body, inside=True)) == {"a", "d", "h"}


@pytest.mark.parametrize("path", [p for p in SOURCES if _part(p) != "frameworks"], ids=_name)
def test_nothing_but_the_standard_library_is_imported_outside_functions(path):
    imports = set(_imports(ast.parse(path.read_text(encoding="utf-8")).body, inside=False))
    assert imports - sys.stdlib_module_names - {"opwright"} == set()


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if _part(p) not in {"frameworks", "kernels", "checks"}], ids=_name
)
def test_array_libraries_with_transforms_are_only_imported_where_they_belong(path):
    imports = set(_imports(ast.parse(path.read_text(encoding="utf-8")).body, inside=True))
    assert imports & {"cupy", "jax", "jaxlib", "torch", "triton", "tvm_ffi"} == set()


@pytest.mark.parametrize("folder", ["rules", "kernels", "frameworks", "checks"])
def test_init_of_a_growth_folder_is_empty(folder):
    path = ROOT / "src" / "opwright" / folder / "__init__.py"
    assert not ast.parse(path.read_text(encoding="utf-8")).body


def test_every_ignored_lint_rule_has_its_reason():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    codes = re.findall(r'^ {4}"[A-Z]{1,4}\d*",.*$', text, flags=re.MULTILINE)
    assert len(codes) > 20
    assert [line for line in codes if not re.search(r" # \S", line)] == []
