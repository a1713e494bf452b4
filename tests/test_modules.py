from __future__ import annotations

import sys

import pytest

from opwright.modules import Imported, UsageError, import_target, split_target


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.b", ("a.b", "")),
        ("a.b:c", ("a.b", "c")),
        ("a.b:n::c", ("a.b", "n::c")),
        ("n::c", ("", "n::c")),
        ("n::c.out", ("", "n::c.out")),
        ("/x/y.py:n::c", ("/x/y.py", "n::c")),
        (r"C:\x\y.py:n::c", (r"C:\x\y.py", "n::c")),
        (r"C:\x\y.py", (r"C:\x\y.py", "")),
    ],
)
def test_targets_are_split_at_the_one_colon(text, parts):
    assert split_target(text) == parts


def test_each_module_of_a_folder_is_imported_for_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "modules_folder"
    folder.mkdir()
    (folder / "bad.py").write_text("import modules_is_missing\n", "utf-8")
    (folder / "good.py").write_text("", "utf-8")
    (folder / "wrong.py").write_text("import opwright as ow\n\now.define('f', '()')\n", "utf-8")
    name, failures = import_target(str(folder))
    assert name == "modules_folder"
    assert "modules_folder.good" in sys.modules
    assert failures[0] == f"{folder / 'bad.py'} cannot be imported: No module named 'modules_is_missing'"
    assert failures[1].startswith(
        f"{folder / 'wrong.py'} cannot be imported: an operator's name needs a namespace\n"
    )
    assert len(failures) == 2


def test_a_file_is_imported_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "modules_file.py"
    path.write_text("x = 1\n", "utf-8")
    assert import_target(str(path)) == Imported("modules_file")
    path.write_text("raise SystemExit\n", "utf-8")
    with pytest.raises(UsageError, match="it ends the process"):
        import_target(str(path))
