"""The command line: ``opwright list``, ``show``, ``check`` and ``explain``.

* Exit status 0: nothing found; 1: findings; 2: a mistake in the command, or a module that does not import.
* Colours where rich is installed and the output is a terminal; plain text and ``--json`` anywhere.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opwright import __version__, catalogue, registry
from opwright.description import choices, described, description
from opwright.errors import OpwrightError
from opwright.frameworks.base import Framework, load
from opwright.modules import UsageError, defined_in, import_target, named, split_target
from opwright.report import PASSED, aligned, counted, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opwright.overload import OpOverload
    from opwright.report import Report

OK, FOUND, USAGE = 0, 1, 2

STYLES = {"passed": "green", "skipped": "dim", "errored": "bold magenta"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv
        The command's words, by default those of this process.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if not hasattr(options, "run"):
        parser.print_help()
        return USAGE
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except (UsageError, OpwrightError) as error:
        print(f"opwright: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # whoever read the output has stopped, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="opwright", description="Look at operators, and check them.")
    parser.add_argument("--version", action="version", version=f"opwright {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    sub = command("list", _list, "List the operators that a module defines.")
    sub.add_argument("module", nargs="?", metavar="MODULE", help="a module, or a Python file")
    sub.add_argument("--pending", action="store_true", help="list what waits for an operator instead")
    sub.add_argument("--json", action="store_true", help="print data")
    sub = command("show", _show, "Show an operator: schema, kernels, rules, what frameworks make of them.")
    sub.add_argument("operator", metavar="[MODULE:]NAME", help="such as mylib.ops:mylib::sin")
    sub.add_argument("--framework", action="append", metavar="NAME", help="load a framework and show it too")
    sub.add_argument("--json", action="store_true", help="print data")
    sub = command("check", _check, "Check the operators that a module defines, with their samples.")
    sub.add_argument(
        "module", metavar="MODULE[:NAME]", help="a module or Python file, and one of its operators"
    )
    sub.add_argument("--level", choices=("quick", "default", "thorough"), default="default")
    sub.add_argument(
        "--framework", action="append", metavar="NAME", help="whose arrays to use; may be repeated"
    )
    sub.add_argument("--law", action="append", metavar="NAME", help="which law to look at; may be repeated")
    sub.add_argument("--json", action="store_true", help="print data")
    sub = command("explain", _explain, "Explain a finding by its id.")
    sub.add_argument("id", nargs="?", metavar="ID", help="such as OW301; left out, all are listed")
    return parser


# ---------------------------------------------------------------------------------------------------- list


def _list(options: argparse.Namespace) -> int:
    records, status = list(registry.records.values()), OK
    if options.module:
        records, status = _defined(options.module)
    if options.pending:
        rows: list[dict[str, Any]] = [
            {"operator": key.removesuffix(".default"), "what": entry.what, "source": entry.source}
            for key, entries in registry.pending.items()
            for entry in entries
        ]
        header = ["waits for", "what", "registered at"]
    else:
        rows = [
            {
                "operator": record.qualname,
                "signature": record.schema.signature,
                "choices": choices(record),
                "flavour": record.flavour,
                "rules": " ".join(dict.fromkeys(rule.kind for rule in record.rules)),
            }
            for record in sorted(records, key=lambda record: record.qualname)
        ]
        header = ["operator", "signature", "flavour", "rules"]
    if options.json:
        print(json.dumps(rows, indent=2))
        return status
    if not rows:
        print(
            "nothing waits for an operator" if options.pending else "no operators are defined; name a module"
        )
        return status
    for row in rows:
        for name, text in row.pop("choices", {}).items():
            row["signature"] += f"; {name} is {text}"
    for line in aligned([header, *([str(value) for value in row.values()] for row in rows)]):
        print(line[2:])
    return status


def _defined(module: str) -> tuple[list[OpOverload], int]:
    """Return the operators that a module defines, and the least exit status: a part may not import."""
    imported = import_target(module)
    for failure in imported.failures:
        print(f"opwright: {failure}", file=sys.stderr)
    return defined_in(imported.name), USAGE if imported.failures else OK


# ---------------------------------------------------------------------------------------------------- show


def _show(options: argparse.Namespace) -> int:
    module, name = split_target(options.operator)
    where = module if name else ""
    name = name or module
    own, status = _defined(where) if where else ([], OK)
    found = named(own, name) or named(registry.records.values(), name)
    if not found:
        raise _no_such(name, where)
    frameworks = _frameworks(options.framework or ())
    data = [description(record, frameworks) for record in found]
    if options.json:
        print(json.dumps(data, indent=2))
        return status
    print("\n\n".join("\n".join(described(entry)) for entry in data))
    return status


def _no_such(name: str, where: str) -> UsageError:
    """Return the error for a name of no operator; it says more where that is a module's."""
    if where:
        return UsageError(f"no such operator: {name}")
    if "::" in name or not _is_module(name):
        return UsageError(f"no such operator: {name}; say where it is defined: opwright show MODULE:{name}")
    found = sorted(record.qualname for record in _defined(name)[0])
    if not found:
        return UsageError(f"{name} is a module, and defines no operator")
    return UsageError(
        f"{name} is a module; name one of its operators: "
        + ", ".join(f"opwright show {name}:{each}" for each in found)
    )


def _is_module(name: str) -> bool:
    if name.endswith(".py") or Path(name).is_file():
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _frameworks(names: Iterable[str]) -> list[Framework]:
    """Return the frameworks in use, and those asked for."""
    used = [info.name for info in catalogue.frameworks() if info.flavours and catalogue.loaded(info)]
    return [load(name) for name in dict.fromkeys([*used, *names])]


# --------------------------------------------------------------------------------------------------- check


def _check(options: argparse.Namespace) -> int:
    from opwright.checks.runner import check, samples_of

    module, name = split_target(options.module)
    if not module:
        raise UsageError(f"say where {name} is defined: opwright check MODULE:{name}")
    records, status = _defined(module)
    if name:
        records = named(records, name)
    if not records:
        raise UsageError(f"{module} defines no operator{f' {name}' if name else ''}")
    start = time.perf_counter()
    reports = [
        check(
            record,
            samples_of(record),
            test_utils=options.law,
            frameworks=options.framework,
            level=options.level,
        )
        for record in sorted(records, key=lambda record: record.qualname)
    ]
    took = time.perf_counter() - start
    status = max(status, OK if all(report.ok for report in reports) else FOUND)
    if options.json:
        print(
            json.dumps(
                {"ok": status == OK, "seconds": took, "reports": [r.to_dict() for r in reports]}, indent=2
            )
        )
    else:
        _print_reports(reports, took)
    return status


def _print_reports(reports: Sequence[Report], took: float) -> None:
    console = _console()
    rows = summary(reports)
    if console is None:
        print("\n".join(line[2:] for line in aligned(rows)))
    else:
        console.print(_rich_table(rows))
    for line in dict.fromkeys(
        f"{report.operator}:{line[1:]}" for report in reports for line in report.reasons()
    ):
        print(line)
    problems = [problem for report in reports for problem in report.problems()]
    for problem in problems:
        head, _, rest = problem.partition("\n")
        if console is None:
            print(f"\n{problem}")
        else:
            console.print(f"\n{head}", style="bold red", markup=False, highlight=False)
            console.print(rest, markup=False, highlight=False, soft_wrap=True)
    passed = sum(outcome.status == PASSED for report in reports for outcome in report.outcomes)
    counts = counted(len(reports), "operator"), counted(passed, "law"), counted(len(problems), "finding")
    print("\n{}, {} passed, {} in {:.1f} s".format(*counts, took))


def _console() -> Any:
    """Return rich's console where it is installed and the output is a terminal, else None."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ or importlib.util.find_spec("rich") is None:
        return None
    from rich.console import Console

    return Console()


def _rich_table(rows: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in rows[0]:
        table.add_column(title, no_wrap=True)
    for row in rows[1:]:
        styled = [
            Text(text, style=STYLES.get(text, "bold red" if text.startswith("OW") else "")) for text in row
        ]
        table.add_row(*styled)
    return table


# ------------------------------------------------------------------------------------------------- explain


def _explain(options: argparse.Namespace) -> int:
    from opwright.checks.runner import explanations

    texts = explanations()
    if options.id is None:
        rows = [[key, text.partition(". ")[0].partition(": ")[0].rstrip(".")] for key, text in texts.items()]
        print("\n".join(line[2:] for line in aligned(rows)))
        return OK
    text = texts.get(options.id.upper())
    if text is None:
        raise UsageError(f"no finding has the id {options.id!r}; opwright explain lists them all")
    import textwrap

    print(f"{options.id.upper()}\n{textwrap.fill(text, 100)}")
    return OK
