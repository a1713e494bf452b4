"""Modules that a command line names: how one is imported, and which operators it defines.

* A folder's modules are imported each for itself: one that fails is reported, and the others go on.
* A module may end the process where it is imported, as a script without a guard does: that is its failure.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from opwright import registry
from opwright.errors import OpwrightError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opwright.overload import OpOverload


class UsageError(Exception):
    """The command cannot be carried out as it was given."""


class Imported(NamedTuple):
    """A module that was imported, and for each module inside it that could not be, why."""

    name: str
    failures: tuple[str, ...] = ()


def split_target(text: str) -> tuple[str, str]:
    """Split ``MODULE:NAME`` at the one colon; those of ``ns::name`` and of a drive letter are none.

    Without that colon, ``ns::name`` is a name and anything else a module.
    """
    match = re.fullmatch(r"(?:((?:[A-Za-z]:[\\/])?[^:]+)(?::(?!:)|$))?((?:[^:]+::)?[^:]+)?", text)
    if match is None:
        raise UsageError(f"{text!r} is not MODULE, NAME or MODULE:NAME")
    return match[1] or "", match[2] or ""


def import_target(text: str) -> Imported:
    """Import a module by name, or a Python file by path; of a folder without ``__init__`` every module.

    A folder in the current one goes before a package of the same name that is installed.

    Raises
    ------
    UsageError
        If there is no such module, or it cannot be imported.
    """
    path = Path(text)
    try:
        if text.endswith(".py") or path.is_file():
            return Imported(_import_file(path))
        if path.is_dir() and not (path / "__init__.py").exists() and any(path.glob("*.py")):
            return _import_folder(path)
        sys.path.insert(0, str(Path.cwd()))
        return _import_module(text)
    except ModuleNotFoundError as error:
        if error.name is not None and (text == error.name or text.startswith(f"{error.name}.")):
            raise UsageError(
                f"no module named {text!r}; give a module's name or the path of a Python file"
            ) from None
        raise UsageError(_failure(text, error)) from error
    except (UsageError, OpwrightError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsageError(_failure(text, error)) from error


def _import_module(name: str) -> Imported:
    module = importlib.import_module(name)
    if getattr(module, "__file__", None) is None:  # a folder, or built in
        return Imported(name, _import_inside(module))
    return Imported(name)


def _import_folder(path: Path) -> Imported:
    folder = path.resolve()
    module = sys.modules[folder.name] = ModuleType(folder.name)
    module.__path__ = [str(folder)]
    sys.path.insert(0, str(folder.parent))
    return Imported(folder.name, _import_inside(module))


def _import_inside(module: ModuleType) -> tuple[str, ...]:
    """Import every module of a folder, and return why those that cannot be imported cannot."""
    failures = []
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        name = f"{module.__name__}.{found.name}"
        try:
            importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  (reported; one of sys.exit is none of Exception)
            spec = importlib.util.find_spec(name)
            failures.append(_failure((spec and spec.origin) or name, error))
    return tuple(failures)


def _failure(where: str, error: BaseException) -> str:
    """Return a report of what was raised where a module was imported."""
    if isinstance(error, ModuleNotFoundError | OpwrightError):
        return f"{where} cannot be imported: {error}"
    if isinstance(error, SystemExit):
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).resolve() == Path(where).resolve()]
        last = [*frames, *own][-1]
        return (
            f"{where} cannot be imported: it ends the process, at {last.filename}:{last.lineno}: "
            f"SystemExit({'' if error.code is None else repr(error.code)})"
        )
    lines = traceback.format_exception(error)
    return f"{where} cannot be imported:\n{''.join(lines).rstrip()}"


def _import_file(path: Path) -> str:
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
    return name


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
