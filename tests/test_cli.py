from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

import opwright as ow
from opwright import cli
from opwright.cli import main

MODULE = """
    import numpy as np
    import opwright as ow

    @ow.custom_op("{ns}::scale", mutates_args=(), tags="pointwise")
    def scale(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        return x * k

    @scale.register_fake
    def _(x, k=2.0):
        return ow.empty_like(x)

    @scale.register_samples
    def _():
        yield (np.arange(3.0),)

    @ow.custom_op("{ns}::bad", mutates_args=(), non_differentiable=True)
    def bad(x: np.ndarray) -> np.ndarray:
        return x * x

    @bad.register_fake
    def _(x):
        return x

    @bad.register_samples
    def _():
        yield (np.arange(3.0),)

    @ow.custom_op("{ns}::bare", mutates_args=())
    def bare(x: np.ndarray) -> np.ndarray:
        return x + 1
"""


@pytest.fixture(name="module")
def fixture_module(tmp_path, monkeypatch, request):
    """Write a module with operators of its own namespace, and return its path."""
    namespace = f"cli_{abs(hash(request.node.name))}"
    path = tmp_path / f"{namespace}.py"
    path.write_text(textwrap.dedent(MODULE.format(ns=namespace)), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield path
    sys.modules.pop(namespace, None)


@pytest.fixture(name="run")
def fixture_run(capsys):
    """Run a command; return its exit status, and what it printed with the source's folder left out."""

    def run(*words):
        status = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return status, out, err

    return run


# ----------------------------------------------------------------------------------------------------- list


def test_list_prints_the_operators_of_a_module(run, module):
    ns = module.stem
    width = len(ns) + len("::scale")
    status, out, err = run("list", module)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"{'operator':{width}}  {'signature':33}  flavour  rules",
        f"{ns + '::bad':{width}}  {'(Tensor x) -> Tensor':33}  numpy    fake samples",
        f"{ns + '::bare':{width}}  {'(Tensor x) -> Tensor':33}  numpy",
        f"{ns + '::scale':{width}}  {'(Tensor x, float k=2.0) -> Tensor':33}  numpy    fake samples",
    ]


def test_list_prints_data(run, module):
    status, out, _ = run("list", module, "--json")
    assert status == 0
    assert json.loads(out)[1] == {
        "operator": f"{module.stem}::bare",
        "signature": "(Tensor x) -> Tensor",
        "choices": {},
        "flavour": "numpy",
        "rules": "",
    }


def test_list_pending_prints_what_waits(run):
    handle = ow.register_kernel("cli_waits::op", "cpu", lambda x: x)
    try:
        status, out, _ = run("list", "--pending")
        lines = out.splitlines()
        assert status == 0
        assert lines[0].split() == ["waits", "for", "what", "registered", "at"]
        row = next(line for line in lines if line.startswith("cli_waits::op"))
        assert "kernel for CPU of cli_waits::op" in row
        assert f"{__file__}:" in row
    finally:
        handle.destroy()


def test_list_says_where_there_is_nothing(run, tmp_path):
    path = tmp_path / "cli_no_operators.py"
    path.write_text("x = 1\n", encoding="utf-8")
    assert run("list", path) == (0, "no operators are defined; name a module\n", "")


# ----------------------------------------------------------------------------------------------------- show


def test_show_prints_kernels_rules_and_frameworks(run, module):
    ns = module.stem
    status, out, err = run("show", f"{module}:scale")
    assert (status, err) == (0, "")
    head, _, numpy = out.partition("\n\nin numpy\n")
    assert numpy.startswith(f"  kernel, cpu        called directly (numpy, {module}:5)\n  fake   ")
    assert head == textwrap.dedent(
        f"""\
        {ns}::scale(Tensor x, float k=2.0) -> Tensor
          defined at {module}:5 (numpy)
          tags: pointwise, pt2_compliant_tag

        kernels
          any device  numpy  {module}:5

        rules
          fake       array_api  {module}:9
          samples    array_api  {module}:13"""
    )
    assert "\n  vmap               opwright.vmap; a loop where there is no vmap rule\n" in out
    assert (
        "\n  functionalization  not supported: NumPy traces nothing: a mutated argument is mutated in place"
        in out
    )


def test_show_finds_what_is_defined_already(run, module):
    run("list", module)
    status, out, _ = run("show", f"{module.stem}::bad.default")
    assert status == 0
    assert "  declared non-differentiable\n" in out


def test_show_prints_data(run, module):
    status, out, _ = run("show", f"{module}:scale", "--json")
    (data,) = json.loads(out)
    assert status == 0
    assert data["schema"] == f"{module.stem}::scale(Tensor x, float k=2.0) -> Tensor"
    assert data["kernels"] == [
        {"device": "any device", "flavour": "numpy", "source": f"{module}:5", "enabled": True}
    ]
    assert data["rules"][0] == {"kind": "fake", "for": "", "flavour": "array_api", "source": f"{module}:9"}
    assert data["choices"] == {}
    assert data["frameworks"]["numpy"]["kernels"] == {"cpu": f"called directly (numpy, {module}:5)"}
    assert data["frameworks"]["numpy"]["autograd"] == {"lowered": "opwright.vjp", "unsupported": None}


CHOICES = """
    import enum
    from typing import Literal

    import numpy as np
    import opwright as ow

    class Edge(enum.Enum):
        WRAP = "wrap"
        CUT = "cut"

    @ow.custom_op("{ns}::pad", mutates_args=())
    def pad(x: np.ndarray, side: Literal["left", "right"] = "left", edge: Edge = Edge.CUT) -> np.ndarray:
        return x + 1
"""


def test_choices_are_shown(run, module):
    module.write_text(textwrap.dedent(CHOICES.format(ns=module.stem)), encoding="utf-8")
    side, edge = "one of 'left', 'right'", "a member of Edge (WRAP, CUT) or its value"
    _, out, _ = run("show", f"{module}:pad")
    assert out.splitlines()[1:4] == [
        f"  defined at {module}:12 (numpy)",
        f"  side: {side}",
        f"  edge: {edge}",
    ]
    assert f'str edge="cut") -> Tensor; side is {side}; edge is {edge}  numpy' in run("list", module)[1]
    (data,) = json.loads(run("list", module, "--json")[1])
    assert data["choices"] == {"side": side, "edge": edge}


def test_show_of_an_operator_that_takes_no_arrays_of_a_framework(run):
    @ow.custom_op("cli_nowhere::op", mutates_args=(), device_types="cuda", schema="(Tensor x) -> Tensor")
    def op(x):
        return x

    out = run("show", "cli_nowhere::op", "--framework", "numpy")[1]
    assert "\nin numpy\n  kernel             none for its arrays\n  fake  " in out


def test_show_of_a_module_names_its_operators(run, module):
    ns = module.stem
    advice = ", ".join(f"opwright show {module}:{ns}::{name}" for name in ("bad", "bare", "scale"))
    text = f"opwright: {module} is a module; name one of its operators: {advice}\n"
    assert run("show", module) == (2, "", text)
    assert run("show", "json") == (2, "", "opwright: json is a module, and defines no operator\n")
    assert run("show", "no_such.module")[2].startswith("opwright: no such operator: no_such.module; say")


def test_the_version(capsys):
    with pytest.raises(SystemExit) as e:
        main(["--version"])
    assert e.value.code == 0
    assert capsys.readouterr().out == f"opwright {ow.__version__}\n"


def test_show_without_the_operator_says_how_to_find_it(run):
    assert run("show", "cli_no::such") == (
        2,
        "",
        "opwright: no such operator: cli_no::such; "
        "say where it is defined: opwright show MODULE:cli_no::such\n",
    )


# ---------------------------------------------------------------------------------------------------- check


def test_check_prints_a_table_and_findings(run, module):
    ns = module.stem
    status, out, err = run("check", module, "--framework", "numpy", "--law", "schema", "--law", "fake")
    table, finding = out.split("\n\n")[:2]
    width = len(ns) + len("::scale")
    assert (status, err) == (1, "")
    assert table.splitlines() == [
        f"{'operator':{width}}  call     schema   fake",
        f"{ns + '::bad':{width}}  passed   passed   OW205",
        f"{ns + '::bare':{width}}  skipped  skipped  skipped",
        f"{ns + '::scale':{width}}  passed   passed   passed",
        f"{ns}::bare: everything skipped on numpy: no samples are registered: "
        "declare some with @op.register_samples",
    ]
    assert finding.startswith(f"OW205 {ns}::bad, fake, numpy: in the fake, the output is argument x itself\n")
    assert f"\n    import {ns}\n" in finding
    assert "\n\n3 operators, 5 laws passed, 1 finding in " in out


def test_check_one_operator_that_is_right(run, module):
    status, out, _ = run("check", f"{module}:scale", "--framework", "numpy")
    assert status == 0
    assert out.splitlines()[1].split()[:3] == [f"{module.stem}::scale", "passed", "passed"]


def test_check_prints_data(run, module):
    status, out, _ = run("check", module, "--framework", "numpy", "--json", "--level", "quick")
    data = json.loads(out)
    assert status == 1
    assert data["ok"] is False
    assert [(report["operator"].partition("::")[2], report["ok"]) for report in data["reports"]] == [
        ("bad", False),
        ("bare", True),
        ("scale", True),
    ]
    findings = [f for report in data["reports"] for o in report["outcomes"] for f in o["findings"]]
    assert [finding["id"] for finding in findings] == ["OW205"]


def test_check_a_module_by_name(run, module, monkeypatch):
    monkeypatch.chdir(module.parent)
    status, out, _ = run("check", f"{module.stem}:scale", "--framework", "numpy", "--law", "schema")
    assert status == 0
    assert out.startswith("operator")


def test_check_prints_colours_with_rich(run, module, monkeypatch):
    console = pytest.importorskip("rich.console", reason="rich is an extra")
    monkeypatch.setattr(cli, "_console", lambda: console.Console(force_terminal=True, width=200))
    status, out, _ = run("check", module, "--framework", "numpy", "--law", "fake")
    assert status == 1
    assert "\x1b[1;31mOW205" in out
    assert "\x1b[32mpassed" in out


# -------------------------------------------------------------------------------------------------- explain


def test_explain_prints_a_paragraph(run):
    status, out, err = run("explain", "ow301")
    assert (status, err) == (0, "")
    assert out == (
        "OW301\n"
        "The gradient that the backward returns is not the derivative of the kernel, as finite differences\n"
        "show it. Compare the formula with the kernel; constant factors, a transposed matrix, a clamp or a\n"
        "broadcast that the backward forgot are the usual causes.\n"
    )


def test_explain_lists_all(run):
    status, out, _ = run("explain")
    assert status == 0
    assert "OW101   The kernel changed the data of an argument" in out
    assert len(out.splitlines()) > 40


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "OW999"], "no finding has the id 'OW999'; opwright explain lists them all"),
        (
            ["check", "cli_no_module"],
            "no module named 'cli_no_module'; give a module's name or the path of a Python file",
        ),
        (["check", "cli_none.py"], "no file 'cli_none.py'"),
        (["check", "ns::op"], "say where ns::op is defined: opwright check MODULE:ns::op"),
        (["check", "a:b:c:d"], "'a:b:c:d' is not MODULE, NAME or MODULE:NAME"),
        (["check", "json"], "json defines no operator"),
        (["check", "json:dumps"], "json defines no operator dumps"),
    ],
)
def test_mistakes_are_told_in_a_line(run, words, message):
    assert run(*words) == (2, "", f"opwright: {message}\n")


def test_a_framework_that_is_not_there_is_told(run, module):
    status, _, err = run("check", module, "--framework", "nope")
    assert status == 2
    assert err.startswith("opwright: 'nope' is not a framework\n")


def test_a_module_that_does_not_import_is_told_with_its_traceback(run, tmp_path):
    path = tmp_path / "cli_broken.py"
    path.write_text("1 / 0\n", encoding="utf-8")
    status, out, err = run("check", path)
    assert (status, out) == (2, "")
    assert err.startswith(f"opwright: {path} cannot be imported:\nTraceback")
    assert err.endswith("ZeroDivisionError: division by zero\n")
    assert "cli_broken" not in sys.modules


def test_a_module_that_misses_another_is_told(run, tmp_path):
    path = tmp_path / "cli_misses.py"
    path.write_text("import cli_is_missing\n", encoding="utf-8")
    assert run("check", path) == (
        2,
        "",
        f"opwright: {path} cannot be imported: No module named 'cli_is_missing'\n",
    )


def test_a_command_that_is_none_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["nope"])
    assert raised.value.code == 2
    assert "invalid choice: 'nope'" in capsys.readouterr().err


def test_no_command_prints_help(run):
    status, out, _ = run()
    assert status == 2
    assert out.startswith("usage: opwright [-h] [--version] COMMAND ...\n")


# ------------------------------------------------------------------------------------------- the process


def test_the_script_is_installed_under_its_name(module):
    script = os.path.join(os.path.dirname(sys.executable), "opwright")  # noqa: PTH118, PTH120
    code = "import sys; from opwright.cli import main; sys.exit(main())"
    command = [script] if os.path.exists(script) else [sys.executable, "-c", code]  # noqa: PTH110
    done = subprocess.run([*command, "list", str(module)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{module.stem}::scale" in done.stdout


def test_listing_imports_no_checker_and_no_array_library(tmp_path):
    path = tmp_path / "cli_nothing.py"
    path.write_text("x = 1\n", encoding="utf-8")
    code = (
        "import sys; from opwright.cli import main; main(['list', sys.argv[1]]); "
        "sys.exit(int(bool({'numpy', 'rich', 'opwright.checks.runner'} & set(sys.modules))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_nobody_reads_is_no_error(module):
    code = "import sys; from opwright.cli import main; sys.exit(main(['explain']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_runs_the_package():
    done = subprocess.run(
        [sys.executable, "-m", "opwright", "explain", "OW301"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OW301\n")


def test_a_folder_is_checked_with_every_module_in_it(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(
            "import numpy as np\nimport opwright as ow\n\n"
            f"@ow.custom_op('folder_cli::{name}', mutates_args=())\n"
            "def op(x: np.ndarray) -> np.ndarray:\n    return x + 1\n\n"
            "op.register_fake(ow.empty_like)\nop.register_samples(lambda: [(np.ones(3),)])\n",
            "utf-8",
        )
    installed = tmp_path / "site" / "folder"  # a package of that name does not come before it
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("raise ImportError('the wrong one')\n", "utf-8")
    paths = [str(installed.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for target in ("folder", f".{os.sep}folder{os.sep}"):
        command = [sys.executable, "-m", "opwright", "check", target, "--framework", "numpy"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "folder_cli::one" in done.stdout
        assert "folder_cli::two" in done.stdout
        assert "2 operators" in done.stdout


def _exiting(tmp_path, call):
    folder = tmp_path / "exits"
    folder.mkdir(exist_ok=True)
    (folder / "a_script.py").write_text(f"import sys\n\n{call}\n", "utf-8")
    (folder / "b_broken.py").write_text("1 / 0\n", "utf-8")
    (folder / "c_good.py").write_text(textwrap.dedent(MODULE.format(ns="cli_exits")), "utf-8")
    return folder


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["check"], ["check", "--json"], ["show"]])
@pytest.mark.parametrize("code", ["", "0", "3", "'stop'"])
def test_a_module_of_a_folder_that_ends_the_process_is_reported_and_the_others_go_on(tmp_path, words, code):
    folder = _exiting(tmp_path, f"sys.exit({code})")
    command, *more = words
    target = f"{folder}:scale" if command == "show" else str(folder)
    more += ["--framework", "numpy"] if command == "check" else []
    done = subprocess.run(
        [sys.executable, "-m", "opwright", command, target, *more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    script = folder / "a_script.py"
    first, *rest = done.stderr.splitlines()
    assert first == (
        f"opwright: {script} cannot be imported: it ends the process, at {script}:3: SystemExit({code})"
    )
    assert rest[0] == f"opwright: {folder / 'b_broken.py'} cannot be imported:"
    assert rest[-1] == "ZeroDivisionError: division by zero"
    assert "cli_exits::scale" in done.stdout
    if "--json" in words and command == "check":
        data = json.loads(done.stdout)
        assert not data["ok"]
        assert [report["operator"] for report in data["reports"]] == [
            "cli_exits::bad",
            "cli_exits::bare",
            "cli_exits::scale",
        ]


def test_a_folder_without_findings_has_the_status_of_what_does_not_import(tmp_path):
    folder = tmp_path / "quiet"
    folder.mkdir()
    (folder / "one.py").write_text("raise SystemExit\n", "utf-8")
    command = [sys.executable, "-m", "opwright", "list", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "no operators are defined; name a module\n")
    one = folder / "one.py"
    assert done.stderr == (
        f"opwright: {one} cannot be imported: it ends the process, at {one}:1: SystemExit()\n"
    )


def test_a_file_that_ends_the_process_is_told_in_a_line(run, tmp_path):
    path = tmp_path / "cli_exit.py"
    path.write_text(
        "import argparse\n\nparser = argparse.ArgumentParser()\nparser.parse_args(['--no'])\n", "utf-8"
    )
    for command in ("list", "check"):
        status, out, err = run(command, path)
        assert (status, out) == (2, "")
        assert err.endswith(
            f"opwright: {path} cannot be imported: it ends the process, at {path}:4: SystemExit(2)\n"
        )
    assert "cli_exit" not in sys.modules


def test_an_interrupt_is_the_users(run, tmp_path):
    path = tmp_path / "cli_interrupted.py"
    path.write_text("raise KeyboardInterrupt\n", "utf-8")
    with pytest.raises(KeyboardInterrupt):
        run("list", path)
