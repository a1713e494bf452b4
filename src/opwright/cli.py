"""The command line: ``opwright list``, ``show``, ``check`` and ``explain``.

* Exit status 0: nothing found; 1: findings; 2: a mistake in the command, or a module that does not import.
* Colours where rich is installed and the output is a terminal; plain text and ``--json`` anywhere.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from opwright import __version__, catalogue, registry
from opwright.description import choices, described, description
from opwright.errors import OpwrightError
from opwright.frameworks.base import Framework, load
from opwright.report import PASSED, aligned, counted, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opwright.overload import OpOverload
    from opwright.report import Report

OK, FOUND, USAGE = 0, 1, 2

STYLES = {"passed": "green", "skipped": "dim", "errored": "bold magenta"}


class UsageError(Exception):
    """The command cannot be carried out as it was given."""


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


# ------------------------------------------------------------------------------------------------- targets


def split_target(text: str) -> tuple[str, str]:
    """Split ``MODULE:NAME`` at the one colon; those of ``ns::name`` and of a drive letter are none.

    Without that colon, ``ns::name`` is a name and anything else a module.
    """
    match = re.fullmatch(r"(?:((?:[A-Za-z]:[\\/])?[^:]+)(?::(?!:)|$))?((?:[^:]+::)?[^:]+)?", text)
    if match is None:
        raise UsageError(f"{text!r} is not MODULE, NAME or MODULE:NAME")
    return match[1] or "", match[2] or ""


def import_target(text: str) -> ModuleType:
    """Import a module by name, or a Python file by path; of a folder without ``__init__`` every module.

    A folder in the current one goes before a package of the same name that is installed.
    """
    path = Path(text)
    try:
        if text.endswith(".py") or path.is_file():
            return _import_file(path)
        if path.is_dir() and not (path / "__init__.py").exists() and any(path.glob("*.py")):
            return _import_folder(path)
        sys.path.insert(0, str(Path.cwd()))
        return _import_module(text)
    except ModuleNotFoundError as error:
        if error.name is not None and (text == error.name or text.startswith(f"{error.name}.")):
            raise UsageError(
                f"no module named {text!r}; give a module's name or the path of a Python file"
            ) from None
        raise UsageError(f"{text} cannot be imported: {error}") from error
    except (UsageError, OpwrightError):
        raise
    except Exception as error:
        lines = traceback.format_exception(error)
        raise UsageError(f"{text} cannot be imported:\n{''.join(lines).rstrip()}") from error


def _import_module(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if getattr(module, "__file__", None) is None:  # a folder, or built in
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            importlib.import_module(f"{name}.{found.name}")
    return module


def _import_folder(path: Path) -> ModuleType:
    folder = path.resolve()
    module = sys.modules[folder.name] = ModuleType(folder.name)
    module.__path__ = [str(folder)]
    sys.path.insert(0, str(folder.parent))
    for found in pkgutil.iter_modules(module.__path__):
        importlib.import_module(f"{folder.name}.{found.name}")
    return module


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no file {str(path)!r}")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def defined_in(module: str) -> list[OpOverload]:
    """Return the operators that a module, or one inside it, defines."""
    return [
        record
        for record in list(registry.records.values())
        if record.operator is not None
        and (record.operator.__module__ == module or record.operator.__module__.startswith(f"{module}."))
    ]


def named(records: Iterable[OpOverload], name: str) -> list[OpOverload]:
    """Return the operators that ``ns::name.overload``, or a part of it, names."""
    bare = name.removesuffix(".default")
    return [
        r
        for r in records
        if bare in (r.qualname, r.name, r.name.partition("::")[2], r.qualname.partition("::")[2])
    ]


# ---------------------------------------------------------------------------------------------------- list


def _list(options: argparse.Namespace) -> int:
    records = list(registry.records.values())
    if options.module:
        records = defined_in(import_target(options.module).__name__)
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
        return OK
    if not rows:
        print(
            "nothing waits for an operator" if options.pending else "no operators are defined; name a module"
        )
        return OK
    for row in rows:
        for name, text in row.pop("choices", {}).items():
            row["signature"] += f"; {name} is {text}"
    for line in aligned([header, *([str(value) for value in row.values()] for row in rows)]):
        print(line[2:])
    return OK


# ---------------------------------------------------------------------------------------------------- show


def _show(options: argparse.Namespace) -> int:
    module, name = split_target(options.operator)
    where = module if name else ""
    name = name or module
    own = defined_in(import_target(where).__name__) if where else []
    found = named(own, name) or named(registry.records.values(), name)
    if not found:
        raise _no_such(name, where)
    frameworks = _frameworks(options.framework or ())
    data = [description(record, frameworks) for record in found]
    if options.json:
        print(json.dumps(data, indent=2))
        return OK
    print("\n\n".join("\n".join(described(entry)) for entry in data))
    return OK


def _no_such(name: str, where: str) -> UsageError:
    """Return the error for a name of no operator; it says more where that is a module's."""
    if where:
        return UsageError(f"no such operator: {name}")
    if "::" in name or not _is_module(name):
        return UsageError(f"no such operator: {name}; say where it is defined: opwright show MODULE:{name}")
    found = sorted(record.qualname for record in defined_in(import_target(name).__name__))
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
    records = defined_in(import_target(module).__name__)
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
    good = all(report.ok for report in reports)
    if options.json:
        print(json.dumps({"ok": good, "seconds": took, "reports": [r.to_dict() for r in reports]}, indent=2))
    else:
        _print_reports(reports, took)
    return OK if good else FOUND


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
