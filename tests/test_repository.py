"""What holds for the repository as a whole."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
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


def _length(node):
    """Return the lines of a function; a long docstring with an example is welcome and does not count."""
    first = node.body[0]
    described = ast.get_docstring(node) is not None
    return node.end_lineno - node.lineno + 1 - described * (first.end_lineno - first.lineno + 1)


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_functions_are_short(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [f"{node.name} ({_length(node)} lines)" for node in functions if _length(node) > 60]
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
    if path.stem == "pytest_plugin":  # which only pytest loads
        imports.discard("pytest")
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


def _run(code):
    """Run Python text in an interpreter of its own, with warnings as errors; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_runs_from_top_to_bottom_with_numpy_alone():
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert blocks
    loaded = _run(
        "\n".join([*blocks, "import sys", "print(*sorted({'jax', 'numpy', 'torch'} & set(sys.modules)))"])
    )
    assert loaded == "numpy\n"


EXAMPLE = """
import runpy
import numpy as np
import opwright as ow
names = runpy.run_path("examples/inpaint.py", run_name="example")
random = np.random.default_rng(0)
source, weight = random.standard_normal((3, 4, 5)), random.uniform(0.1, 2.0, (4, 5))
u = ow.ops.demo.diffuse(source, weight)
padded = np.pad(u, ((0, 0), (1, 1), (1, 1)), mode="edge")
around = padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:]
assert np.allclose(weight * u + 4 * u - around, source)
for one, own in zip(u, ow.ops.demo.diffuse(source, np.stack([weight] * 3)), strict=True):
    assert np.allclose(one, own)
assert names["bends"](names["photograph"](), 0.04).mean() < 0.045
out, pull = ow.vjp(ow.ops.demo.diffuse, source, weight)
by_source, by_weight = pull(np.ones_like(out))
nudged = weight + 1e-6 * np.eye(4, 5)
slope = (ow.ops.demo.diffuse(source, nudged) - u).sum() / 1e-6
assert np.isclose(slope, (by_weight * np.eye(4, 5)).sum(), rtol=1e-4)
assert np.array_equal(ow.vmap(ow.ops.demo.diffuse, in_dims=(0, None))(source, weight), u)
assert ow.opcheck(ow.ops.demo.diffuse.default, frameworks=["numpy"]).ok
print("right")
"""


def test_example_can_be_imported_and_solves_what_it_says():
    assert _run(EXAMPLE) == "right\n"
