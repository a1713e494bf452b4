"""The parts of README.md and docs/ that code writes: tables of what frameworks do, and what examples print.

``python docs/make.py`` brings every page up to date, ``--check`` only says what differs, and
``python docs/make.py TABLE`` prints one table. In a page:

* ``<!-- table: NAME -->`` and ``<!-- end -->`` enclose a table.
* Python blocks run from top to bottom, each page in a process of its own with warnings as errors. Words after
  ``python`` name packages that a block needs; where one is missing, the block is left out.
* A ``text`` block right after a Python block is what that block prints.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib.util
import io
import json
import linecache
import re
import subprocess
import sys
import textwrap
import warnings
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# ------------------------------------------------------------------------------------------------ examples


@dataclass(frozen=True)
class Block:
    """A Python block of a page: its lines, and those of the output that follows it."""

    line: int
    source: str
    needs: tuple[str, ...]
    output: tuple[int, int] | None


def blocks(lines: Sequence[str]) -> list[Block]:
    """Return the Python blocks of a page, in order."""
    fences = [i for i, line in enumerate(lines) if line.startswith("```")]
    pairs = list(zip(fences[::2], fences[1::2], strict=True))
    found = []
    for (start, end), following in zip_longest(pairs, pairs[1:]):
        language, *needs = lines[start][3:].split() or [""]
        if language != "python":
            continue
        output = None
        if (
            following is not None
            and lines[following[0]] == "```text"
            and not "".join(lines[end + 1 : following[0]])
        ):
            output = following[0] + 1, following[1]
        found.append(Block(start + 1, "\n".join(lines[start + 1 : end]), tuple(needs), output))
    return found


def missing(block: Block) -> list[str]:
    """Return the packages that a block needs and that are not installed."""
    return [name for name in block.needs if importlib.util.find_spec(name) is None]


def run(name: str, text: str) -> dict[int, str]:
    """Run a page's blocks in this process and return what each printed, by its line."""
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")  # torch's own
    printed = {}
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(text.splitlines()):
        if missing(block):
            continue
        source = "\n" * block.line + block.source + "\n"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(source, name, "exec", dont_inherit=True), names)
        printed[block.line] = out.getvalue()
    return printed


def run_apart(name: str, text: str) -> dict[int, str]:
    """Run a page's blocks in a process of their own."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", __file__, "--run", name],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        raise SystemExit(f"{name} does not run:\n{done.stderr}")
    return {int(line): printed for line, printed in json.loads(done.stdout).items()}


# -------------------------------------------------------------------------------------------------- tables


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a Markdown table, the first one its head."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def rule_tables() -> dict[str, dict[str, dict[str, str]]]:
    """Return ``lowered`` and ``unsupported`` of each framework, read from its source: none is imported."""
    found = {}
    for name in ("numpy", "torch", "jax", "cupy"):
        folder = ROOT / "src" / "opwright" / "frameworks"
        path = folder / name / "framework.py"
        tree = ast.parse((path if path.is_file() else folder / f"{name}.py").read_text("utf-8"))
        tables = {}
        for node in ast.walk(tree):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id in ("lowered", "unsupported"):
                assert isinstance(node, ast.Assign | ast.AnnAssign)  # noqa: S101
                assert isinstance(node.value, ast.Call)  # noqa: S101
                tables[target.id] = ast.literal_eval(node.value.args[0])
        found[name] = {"lowered": {}, "unsupported": {}} | tables
    return found


TITLES = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX", "cupy": "CuPy"}


def support() -> str:
    """Frameworks and rule kinds: whether a rule is used."""
    from opwright.frameworks.base import RULE_KINDS

    tables = rule_tables()
    rows = [["framework", *RULE_KINDS]]
    for name, table in tables.items():
        rows.append([TITLES[name], *("yes" if kind in table["lowered"] else "no" for kind in RULE_KINDS)])
    return markdown(rows)


def rules() -> str:
    """Rule kinds and frameworks: what each framework makes of each rule, or why it makes nothing."""
    from opwright.frameworks.base import RULE_KINDS

    rows = [["rule", "framework", "becomes"]]
    for kind in RULE_KINDS:
        for name, table in rule_tables().items():
            text = table["lowered"].get(kind) or f"not supported: {table['unsupported'][kind]}"
            rows.append([kind, TITLES[name], text])
    return markdown(rows)


def findings() -> str:
    """The checker's laws, and every finding with its explanation."""
    from opwright.checks.runner import LAWS, load_law

    rows = [["id", "law", "what it means"]]
    rows += [[id_, law, text] for law in LAWS for id_, text in load_law(law).explanations.items()]
    return markdown(rows)


def errors() -> str:
    """The error classes, the built-in ones that each also is, and when it is raised."""
    import opwright.errors as module

    classes = [
        one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__
    ]
    rows = [["class", "is also", "raised when"]]
    for one in classes:
        bases = [f"`{base.__name__}`" for base in one.__bases__ if base is not Exception]
        rows.append([f"`{one.__name__}`", ", ".join(bases), (one.__doc__ or "").splitlines()[0]])
    return markdown(rows)


def behaviours() -> str:
    """PyTorch: what holds as it does for ``torch.library``, row by row, and the tests that show it."""
    from behaviour_rows import ROWS, named_tests

    tests = named_tests()
    rows = [["row", "what holds", "tests"]]
    for number, text in ROWS.items():
        names = (f"`{test.rpartition('::')[2]}`" for test in tests.get(number, ()))
        rows.append([str(number), text, ", ".join(names)])
    return markdown(rows)


def readable(pattern: str) -> str:
    """Return a regular expression of an error text as text."""
    return (
        re.sub(r"\\(.)", r"\1", pattern.replace(".*", " … ")).replace(" … …", " …").removeprefix("?").strip()
    )


ORDERS = {
    "none": "take no derivative",
    "first": "take a derivative",
    "second": "take a second derivative, or a tangent through the backward",
    "higher": "take a second derivative",
    "forward": "go forward",
    "forward_twice": "go forward twice",
    "functionalize": "functionalise",
    "linearize": "linearise",
    "save_on_checkpoint": "keep some values at a checkpoint",
}
"""What a transform needs of an operator, as the tests name it, in words."""


def torch_matrix() -> str:
    """PyTorch: kinds of operators, in how many transforms each is right, and where it raises what."""
    import torch_matrix as matrix

    rows = [["operator", "right", "raises", "in", "with"]]
    for kind in matrix.KINDS.values():
        expected = {name: matrix.expected_error(kind, one) for name, one in matrix.TRANSFORMS.items()}
        rows += _rows(kind.name, expected, {name: one.needs for name, one in matrix.TRANSFORMS.items()})
    return markdown(rows)


def torch_transforms() -> str:
    """PyTorch: the transforms of the matrix."""
    import torch_matrix as matrix

    return _transforms({name: one.needs for name, one in matrix.TRANSFORMS.items()})


def jax_matrix() -> str:
    """JAX: kinds of operators, in how many transforms each is right, and where it raises what."""
    kinds, transforms, needs = _jax()
    rows = [["operator", "right", "raises", "in", "with"]]
    for kind in kinds.values():
        expected = {
            name: kind.refuses.get(name) or kind.refuses.get(needs[name])
            for name in transforms
            if name not in kind.skips
        }
        rows += _rows(kind.name, expected, {name: (need,) for name, need in needs.items()})
        rows += [["", "", "", f"`{name}`", f"not run: {why}"] for name, why in kind.skips.items()]
    return markdown(rows)


def jax_transforms() -> str:
    """JAX: the transforms of the matrix."""
    return _transforms({name: (need,) for name, need in _jax()[2].items()})


def _jax() -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    import frameworks.jax.torch_operators  # noqa: F401  (it adds its rows)
    from frameworks.jax.operators import KINDS
    from frameworks.jax.transforms import NEEDS, TRANSFORMS

    return KINDS, TRANSFORMS, NEEDS


def _rows(name: str, expected: dict[str, str | None], needs: dict[str, tuple[str, ...]]) -> list[list[str]]:
    """Return a row for a kind of operator; one more for each further error that it raises."""
    right = sum(error is None for error in expected.values())
    errors_of = Counter(error for error in expected.values() if error is not None)
    if not errors_of:
        return [[f"`{name}`", str(right), "0", "", ""]]
    rows = []
    for error, count in errors_of.items():
        where = _where({one for one, text in expected.items() if text == error}, needs)
        text = f"“{readable(error)}”" + (", or right" if error.startswith("?") else "")
        rows.append(["" if rows else f"`{name}`", "" if rows else str(right), str(count), where, text])
    return rows


def _where(found: set[str], needs: dict[str, tuple[str, ...]]) -> str:
    """Return transforms by name, or, where there are many, by what they have in common."""
    named = ", ".join(f"`{one}`" for one in needs if one in found)
    if len(found) < 5:
        return named
    every = dict.fromkeys(need for its in needs.values() for need in its)
    groups = {need: {one for one, its in needs.items() if need in its} for need in every}
    whole = {need: group for need, group in groups.items() if group and group <= found}
    for need in sorted(whole, key=lambda need: len(whole[need])):  # a group that others cover says nothing
        if whole[need] <= {one for other, group in whole.items() if other != need for one in group}:
            del whole[need]
    covered = {one for group in whole.values() for one in group}
    return "all that " + " or ".join(ORDERS.get(need, need) for need in whole) if covered == found else named


def _transforms(needs: dict[str, tuple[str, ...]]) -> str:
    """Return the names of transforms, grouped by the last that they need of an operator."""
    lines = []
    for group in dict.fromkeys(needs.values()):
        words = ORDERS.get(group[-1], group[-1]) if group else ORDERS["none"]
        names = ", ".join(f"`{name}`" for name, its in needs.items() if its == group)
        lines.append(textwrap.fill(f"- They {words}: {names}.", 110, subsequent_indent="  "))
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "support": support,
    "rules": rules,
    "findings": findings,
    "errors": errors,
    "behaviours": behaviours,
    "torch-matrix": torch_matrix,
    "torch-transforms": torch_transforms,
    "jax-matrix": jax_matrix,
    "jax-transforms": jax_transforms,
}
NEEDS = {"torch-matrix": ("torch",), "torch-transforms": ("torch",)}
NEEDS |= dict.fromkeys(("jax-matrix", "jax-transforms"), ("jax", "torch"))


def table(name: str) -> str:
    """Return a table by name; those of a matrix are read from the tests, which run them."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        return TABLES[name]()
    finally:
        sys.path.remove(str(ROOT / "tests"))


def with_tables(text: str) -> str:
    """Return a page with its tables as they should be; one that needs a missing package is left as it is."""

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if any(importlib.util.find_spec(package) is None for package in NEEDS.get(name, ())):
            return match[0]
        return f"<!-- table: {name} -->\n\n{table(name)}\n\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", put, text, flags=re.DOTALL)


# --------------------------------------------------------------------------------------------------- pages


def updated(name: str, text: str) -> str:
    """Return a page with its tables and outputs as they should be."""
    for _ in range(3):  # where an output grows, the lines in later messages follow
        before, text = text, with_tables(text)
        lines = text.splitlines()
        found = [block for block in blocks(lines) if not missing(block)]
        printed = run_apart(name, text) if found else {}
        for block in reversed(found):
            if block.output is not None:
                lines[slice(*block.output)] = printed[block.line].rstrip("\n").splitlines()
        text = "\n".join(lines) + "\n"
        if text == before:
            break
    return text


def main() -> int:
    """Carry out the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", nargs="?", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--check", action="store_true", help="change nothing, fail where a page differs")
    parser.add_argument("--page", action="append", type=Path, metavar="PAGE", help="look at this page alone")
    parser.add_argument(
        "--run", metavar="NAME", help="run the page on standard input, print its outputs as data"
    )
    options = parser.parse_args()
    if options.run is not None:
        print(json.dumps(run(options.run, sys.stdin.read())))
        return 0
    if options.table is not None:
        print(table(options.table))
        return 0
    differ = False
    for page in options.page or PAGES:
        text = page.read_text("utf-8")
        new = updated(page.name, text)
        diff = difflib.unified_diff(
            text.splitlines(), new.splitlines(), page.name, "as it should be", lineterm=""
        )
        if new != text:
            differ = True
            print("\n".join(diff) if options.check else page.name)
        if not options.check:
            page.write_text(new, "utf-8")
    return int(options.check and differ)


if __name__ == "__main__":
    sys.exit(main())
