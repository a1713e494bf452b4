"""Invariant 1: the import is of the standard library only, and no framework is imported for the user.

Everything is asked of fresh processes; one test shows that the test can fail.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ARRAY_LIBRARIES = {
    "array_api_compat",
    "cupy",
    "jax",
    "jaxlib",
    "ml_dtypes",
    "numpy",
    "scipy",
    "torch",
    "triton",
}

ASK = """
import json, sys
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""


def _modules(script):
    """Return the top-level modules that are loaded after a script."""
    done = subprocess.run([sys.executable, "-c", script + ASK], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _foreign(modules):
    """Return the packages among these that are neither the standard library's nor Opwright."""
    tops = {name.partition(".")[0] for name in modules}
    ours = {"opwright", "__main__", "__mp_main__", "sitecustomize", "usercustomize"}
    # What site-packages' .pth files load in every process is not ours.
    bare = {name.partition(".")[0] for name in _modules("")}
    return {
        name for name in tops - sys.stdlib_module_names - ours - bare if not name.startswith("__editable__")
    }


def test_the_test_can_fail():
    assert _foreign(_modules("import numpy\n")) >= {"numpy"}


def test_import_is_the_standard_library_only():
    assert _foreign(_modules("import opwright\n")) == set()


def test_import_is_lazy():
    modules = {name for name in _modules("import opwright\n") if name.startswith("opwright")}
    assert modules == {"opwright"}


ENGINE = """
import opwright as ow
for name in ("ops", "custom_op", "Library", "define", "impl", "register_kernel", "register_fake",
             "get_kernel", "Tag", "infer_schema", "Handle", "Operator", "OperatorPacket", "Array", "errors"):
    getattr(ow, name)
"""


def test_the_whole_engine_is_the_standard_library_only():
    assert _foreign(_modules(ENGINE)) == set()


DEFINE = (
    ENGINE
    + """
@ow.custom_op("t::f", mutates_args=())
def f(x: ow.Array, k: float = 1.0) -> ow.Array:
    return x

@f.register_autograd
def _(ctx, grad):
    return grad

f.register_kernel("cpu", lambda x, k: x)
lib = ow.Library("t", "FRAGMENT")
lib.define("g(Tensor x) -> Tensor")
lib.impl("g", lambda x: x, "CPU")
"""
)


def test_definitions_and_rules_import_no_framework():
    assert _foreign(_modules(DEFINE)) == set()


def test_what_is_no_array_imports_no_framework():
    script = DEFINE + "try:\n    f(3.0)\nexcept TypeError:\n    pass\n"
    assert _foreign(_modules(script)) == set()


CALL = """
import numpy as np
import opwright as ow

@ow.custom_op("t::f", mutates_args=())
def f(x: np.ndarray, k: float = 1.0) -> np.ndarray:
    return x * k

for _ in range(5):
    f(np.ones(3))
"""


def test_numpy_calls_import_numpy_alone():
    loaded = _foreign(_modules(CALL)) & ARRAY_LIBRARIES
    assert loaded == {"numpy"}


@pytest.mark.parametrize("package", ["torch", "jax"])
def test_a_framework_that_is_loaded_before_is_used_and_no_other(package):
    pytest.importorskip(package, reason="the framework that is loaded")
    modules = _modules(f"import {package}\n" + CALL)
    assert f"opwright.frameworks.{package}" in modules
    other = {"torch": "jax", "jax": "torch"}[package]
    assert f"opwright.frameworks.{other}" not in modules
    assert other not in modules


def test_a_name_that_is_not_there():
    import opwright

    with pytest.raises(AttributeError) as e:
        opwright.nothing
    assert str(e.value) == "module 'opwright' has no attribute 'nothing'"


def test_every_public_name_is_there():
    import opwright

    assert set(opwright.__all__) <= set(dir(opwright))
    assert len(opwright.__all__) == len(set(opwright.__all__))
    for name in opwright.__all__:
        assert getattr(opwright, name) is not None
    assert isinstance(opwright.__version__, str)


def test_type_checkers_see_the_same_names_from_the_same_places():
    import ast
    import inspect

    import opwright

    tree = ast.parse(inspect.getsource(opwright))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen.pop("errors") == "opwright"
    assert seen == {
        name: f"opwright.{home}" for name, home in {**opwright._HOMES, **opwright._PRIVATE}.items()
    }
