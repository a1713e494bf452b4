from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

OPERATORS = """
    import numpy as np
    import opwright as ow

    @ow.custom_op("myops::sine", mutates_args=())
    def sine(x: np.ndarray) -> np.ndarray:
        return np.sin(x)

    @sine.register_fake
    def _(x):
        return ow.empty_like(x)

    @sine.register_samples
    def _():
        yield (np.ones(3),)
        yield (np.ones((2, 2)),)

    @ow.custom_op("myops::first", mutates_args=())
    def first(x: np.ndarray) -> np.ndarray:
        return x[:1]

    @first.register_samples
    def _():
        yield (np.ones(3),)

    @ow.custom_op("myops::bare", mutates_args=())
    def bare(x: np.ndarray) -> np.ndarray:
        return x + 1
"""

TESTS = """
    import numpy as np
    import pytest
    from myops import bare, first, sine

    @pytest.mark.parametrize("size", [1, 2])
    def test_sine(size):
        assert sine(np.ones(size)).shape == (size,)

    def test_bare():
        assert bare(np.ones(3)).shape == (3,)

    def test_first():
        assert first(np.ones(3)).shape == (1,)
"""


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    """Run pytest in a folder with a module of operators and a file of tests, in a process of its own."""
    (tmp_path / "myops.py").write_text(textwrap.dedent(OPERATORS), encoding="utf-8")
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(TESTS), encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(SOURCE)])
    environment = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    environment.pop("PYTEST_ADDOPTS", None)

    def run(*options, plugins=("opwright.pytest_plugin",)):
        named = [word for plugin in plugins for word in ("-p", plugin)]
        root = ["--rootdir", str(tmp_path)]  # whatever configuration lies above the temporary folder
        command = [sys.executable, "-m", "pytest", *root, *named, "-p", "no:cacheprovider", *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


NUMPY = ("--opwright-framework", "numpy")
SOME = ("--opwright-law", "schema", "--opwright-law", "fake", *NUMPY)


def ids(text):
    return [line for line in text.splitlines() if line.startswith("myops::")]


# --------------------------------------------------------------------------------- the operators of a module


def test_there_is_a_test_for_each_operator_sample_and_law(run):
    status, text = run("--opwright", "myops", *SOME, "--collect-only", "-q")
    assert status == 0
    assert ids(text) == [
        "myops::myops::bare[no samples-samples]",
        "myops::myops::first[sample0-call]",
        "myops::myops::first[sample0-schema]",
        "myops::myops::first[sample0-fake]",
        "myops::myops::sine[sample0-call]",
        "myops::myops::sine[sample0-schema]",
        "myops::myops::sine[sample0-fake]",
        "myops::myops::sine[sample1-call]",
        "myops::myops::sine[sample1-schema]",
        "myops::myops::sine[sample1-fake]",
    ]


def test_laws_pass_fail_and_are_skipped(run):
    status, text = run("--opwright", "myops", *SOME, "-rs", "-q")
    assert status == 1
    assert "1 failed, 7 passed, 2 skipped" in text
    assert "no samples are registered: declare some with @op.register_samples" in text
    assert "OW104 myops::first, kernel, numpy: output 0 shares memory with argument x" in text
    assert "op = ow.ops.myops.first.default" in text
    assert "Traceback" not in text


def test_every_law_is_looked_at_by_default(run):
    _, text = run("--opwright", "myops:sine", "--opwright-level", "quick", *NUMPY, "-v")
    passed = [line.partition("-")[2].partition("]")[0] for line in ids(text) if "sample0" in line]
    assert {"call", "schema", "fake", "autograd", "jvp", "vmap", "layout", "determinism"} <= set(passed)


def test_one_operator_is_named(run):
    status, text = run("--opwright", "myops:sine", *SOME, "-q")
    assert (status, "6 passed" in text) == (0, True)


def test_tests_are_chosen_by_name(run):
    status, text = run("--opwright", "myops", *SOME, "-k", "sine and sample1", "-v")
    assert status == 0
    assert [line.split()[0] for line in ids(text)] == [
        f"myops::myops::sine[sample1-{law}]" for law in ("call", "schema", "fake")
    ]
    assert "3 passed, 7 deselected" in text


def test_paths_that_are_named_are_collected_too(run):
    _, text = run("--opwright", "myops:sine", *SOME, "test_mine.py", "-q")
    assert "1 failed, 9 passed" in text


def test_workers_of_xdist_collect_the_same(run):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    plugins = ("opwright.pytest_plugin", "xdist.plugin")
    status, text = run("--opwright", "myops", *SOME, "-n", "2", "-q", plugins=plugins)
    assert status == 1
    assert "1 failed, 7 passed, 2 skipped" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--opwright", "nowhere"), "--opwright nowhere: no module named 'nowhere'"),
        (("--opwright", "myops:cosine"), "--opwright myops:cosine: no operator is defined there"),
        (("--opwright", "myops", "--opwright-law", "nope"), "--opwright myops: opcheck knows no 'nope'"),
        (
            ("--opwright", "myops", "--opwright-framework", "foo"),
            "--opwright myops: 'foo' is not a framework",
        ),
        (("--opwright-calls", "--opwright-framework", "foo"), "--opwright-calls: 'foo' is not a framework"),
        (("--opwright-calls", "--opwright-law", "nope"), "--opwright-calls: opcheck knows no 'nope'"),
    ],
    ids=["module", "name", "law", "framework", "framework of calls", "law of calls"],
)
def test_what_is_not_there_is_a_usage_error(run, words, told):
    status, text = run(*words)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {told}" in text
    assert "Traceback" not in text


# -------------------------------------------------------------------------------------------- known failures


def known(tmp_path, *lines):
    (tmp_path / "known.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "--opwright-known-failures", "known.txt"


def test_a_known_failure_is_expected(run, tmp_path):
    words = known(tmp_path, "# ours", "", "myops::myops::first[sample0-schema]  # returns a view")
    status, text = run("--opwright", "myops", *SOME, *words, "-q", "-rx")
    assert status == 0
    assert "7 passed, 2 skipped, 1 xfailed" in text
    assert "XFAIL myops::myops::first[sample0-schema] - returns a view" in text


def test_a_known_failure_without_a_reason_says_where_it_is_known(run, tmp_path):
    words = known(tmp_path, "myops::myops::first[sample0-schema]")
    _, text = run("--opwright", "myops", *SOME, *words, "-q", "-rx")
    assert "XFAIL myops::myops::first[sample0-schema] - known failure, known.txt:1" in text


def test_a_known_failure_that_disappears_is_an_error(run, tmp_path):
    words = known(tmp_path, "myops::myops::sine[sample0-schema]  # was wrong once")
    status, text = run("--opwright", "myops:sine", *SOME, *words, "-q")
    assert status == 1
    assert "myops::myops::sine[sample0-schema] does not fail any more; take it out of known.txt:1" in text


def test_a_known_failure_that_does_not_exist_is_a_usage_error(run, tmp_path):
    words = known(tmp_path, "myops::myops::sine[sample9-schema]")
    status, text = run("--opwright", "myops", *SOME, *words, "-q")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "known.txt:1: there is no test 'myops::myops::sine[sample9-schema]'; take the line out" in text


def test_a_file_of_known_failures_that_does_not_exist_is_a_usage_error(run):
    status, text = run("--opwright", "myops", "--opwright-known-failures", "nowhere.txt")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --opwright-known-failures: [Errno 2] No such file or directory: 'nowhere.txt'" in text


# ------------------------------------------------------------------------------------------------ the fixture


def test_the_fixture_takes_the_options(run, tmp_path):
    (tmp_path / "test_fixture.py").write_text(
        textwrap.dedent("""
            import numpy as np
            from myops import sine

            def test_report(opcheck):
                report = opcheck(sine, (np.ones(3),))
                assert report.frameworks == ["numpy"]
                assert report.outcome("layout", "numpy").status == "skipped"
        """),
        encoding="utf-8",
    )
    status, text = run("test_fixture.py", *NUMPY, "--opwright-level", "quick", "-q")
    assert (status, "1 passed" in text) == (0, True)


# ---------------------------------------------------------------------------------- the calls of a test suite


def test_calls_of_a_test_suite_are_checked(run):
    status, text = run("test_mine.py", "--opwright-calls", *NUMPY, "-q")
    assert status == 1
    assert "4 calls of 3 operators were checked" in text
    assert "1 failed, 3 passed" in text
    assert "OW104 myops::first, kernel, numpy: output 0 shares memory with argument x" in text
    assert "sample: the call at " in text


def test_a_call_that_passes_the_test_fails_it_where_the_operator_is_wrong(run, tmp_path):
    (tmp_path / "test_noise.py").write_text(
        textwrap.dedent("""
            import numpy as np
            import opwright as ow

            @ow.custom_op("noise::add", mutates_args=())
            def add(x: np.ndarray) -> np.ndarray:
                return x + np.random.default_rng().random(x.shape)

            def test_shape():
                assert add(np.ones(3)).shape == (3,)
        """),
        encoding="utf-8",
    )
    status, text = run("test_noise.py", "--opwright-calls", *NUMPY, "-q")
    assert status == 1
    assert "OW1001 noise::add, kernel, numpy: two calls with equal arguments give different results" in text
    assert "the call at " in text


def test_calls_are_counted_over_workers(run):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    plugins = ("opwright.pytest_plugin", "xdist.plugin")
    _, text = run("test_mine.py", "--opwright-calls", *NUMPY, "-n", "2", "-q", plugins=plugins)
    assert "4 calls of 3 operators were checked" in text


# -------------------------------------------------------------------------------------------- where not used


def test_nothing_is_imported_where_it_is_not_used(run, tmp_path):
    (tmp_path / "test_plain.py").write_text(
        textwrap.dedent("""
            import sys

            def test_modules():
                mine = sorted(name for name in sys.modules if name.partition(".")[0] == "opwright")
                assert mine == ["opwright", "opwright.pytest_plugin"]
                assert not {"numpy", "torch", "jax", "hypothesis"} & set(sys.modules)
        """),
        encoding="utf-8",
    )
    status, text = run("test_plain.py", "-q")
    assert (status, "1 passed" in text) == (0, True), text


def test_the_entry_point_is_declared():
    import tomllib

    pyproject = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["entry-points"]["pytest11"] == {"opwright": "opwright.pytest_plugin"}
