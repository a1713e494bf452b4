"""Where something was written, from code objects and frames alone."""

from __future__ import annotations

import functools
import subprocess
import sys

import numpy as np
import pytest

import opwright as ow
from opwright.source import caller, code_of, file_of, source_of


def function(x):
    return x


LINE = function.__code__.co_firstlineno
HERE = f"{__file__}:{LINE}"


class Callable:
    def __call__(self, x):
        return x

    def method(self, x):
        return x


def test_a_function_is_where_its_def_is():
    assert source_of(function) == HERE


def test_what_wraps_a_function_is_where_the_function_is():
    wrapped = functools.wraps(function)(lambda x: x)
    assert source_of(functools.partial(wrapped)) == HERE
    assert source_of(functools.lru_cache(function)) == HERE
    assert source_of(staticmethod(function)) == HERE


def test_methods_and_callable_objects_have_a_line():
    line = Callable.__call__.__code__.co_firstlineno
    assert source_of(Callable()) == f"{__file__}:{line}"
    assert source_of(Callable().method) == f"{__file__}:{line + 3}"


def test_what_has_no_python_source_is_named():
    assert source_of(np.sin) == "<numpy.sin>"
    assert source_of(len) == "<builtins.len>"
    assert source_of(Callable) == f"<{__name__}.Callable>"


def test_a_function_that_wraps_itself_does_not_hang():
    def loop():
        pass

    loop.__wrapped__ = loop
    assert code_of(loop) is loop.__code__


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("/a/b.py:3", "/a/b.py"),
        ("C:\\a\\b.py:3", "C:\\a\\b.py"),
        ("<numpy.sin>", "<numpy.sin>"),
        ("<stdin>:1", "<typed>"),
        ("<ipython-input-3-0a1b>:7", "<typed>"),
        ("/var/run/ipykernel_71/123.py:2", "<typed>"),
    ],
)
def test_file_of_a_source(source, file):
    assert file_of(source) == file


def test_caller_is_the_first_line_outside_the_package(ns):
    place, depth = caller()
    line = test_caller_is_the_first_line_outside_the_package.__code__.co_firstlineno + 1
    assert place == f"{__file__}:{line}"
    assert depth == 1
    library = ow.Library(ns, "FRAGMENT")
    assert library.source == f"{__file__}:{line + 4}"


def test_caller_from_a_command_line():
    text = "import opwright as ow\nprint(ow.Library('ns', 'DEF').source)"
    out = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "<string>:2"


def test_no_module_is_searched_for_a_location(ns):
    class Raises:
        def __getattr__(self, name):
            raise RuntimeError(f"{name} of a lazy module")

    sys.modules["lazy_and_broken"] = Raises()
    try:

        @ow.custom_op(f"{ns}::f", mutates_args=())
        def f(x: np.ndarray) -> np.ndarray:
            return x + 1

        handle = ow.register_fake(f, lambda x: x)
    finally:
        del sys.modules["lazy_and_broken"]
    assert handle.source.startswith(f"{__file__}:")
