"""The pages: examples run and print what they say, tables are what the code says, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from opwright.errors import RegistrationError
from opwright.frameworks.base import load

ROOT = Path(__file__).resolve().parent.parent
MAKE = ROOT / "docs" / "make.py"

spec = importlib.util.spec_from_file_location("docs_make", MAKE)
make = sys.modules["docs_make"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


def _name(page):
    return page.relative_to(ROOT).as_posix()


def _make(*words, **options):
    return subprocess.run(
        [sys.executable, str(MAKE), *words], capture_output=True, text=True, check=False, cwd=ROOT, **options
    )


@pytest.mark.parametrize("page", make.PAGES, ids=_name)
def test_page_is_what_the_code_says(page):
    done = _make("--check", "--page", str(page))
    assert done.returncode == 0, f"python docs/make.py brings it up to date\n{done.stdout}{done.stderr}"


def test_there_are_pages_and_examples():
    assert len(make.PAGES) > 8
    counts = {page.name: len(make.blocks(page.read_text("utf-8").splitlines())) for page in make.PAGES}
    assert [name for name, count in counts.items() if not count] == ["behaviours.md", "index.md"]


PAGE = """
```
not python
```

```python
x = 1
print(x)
```

```text
2
```

```python no_such_package
raise AssertionError
```

```text
kept
```
"""


def test_outputs_are_replaced_and_blocks_without_their_packages_left_out():
    found = make.blocks(PAGE.splitlines())
    assert [(block.line, block.needs, block.output) for block in found] == [
        (6, (), (11, 12)),
        (15, ("no_such_package",), (19, 20)),
    ]
    assert make.updated("page.md", PAGE) == PAGE.replace("2\n", "1\n")


def test_a_block_that_raises_or_warns_is_named_with_its_line():
    for line in ("raise ValueError", "import warnings; warnings.warn('no')"):
        with pytest.raises(SystemExit, match=r"page\.md does not run:\n(?s:.*)File \"page\.md\", line 3, in"):
            make.updated("page.md", f"\n```python\n{line}\n```\n")


def test_a_page_that_differs_fails_the_check_with_the_difference(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table: support -->\n<!-- end -->\n", "utf-8")
    done = _make("--check", "--page", str(page))
    assert done.returncode == 1
    assert "+| NumPy | yes |" in done.stdout
    assert page.read_text("utf-8") == "<!-- table: support -->\n<!-- end -->\n"
    assert _make("--page", str(page)).returncode == 0
    assert _make("--check", "--page", str(page)).returncode == 0


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "cupy"])
def test_tables_are_those_that_frameworks_declare(name):
    try:
        framework = load(name)
    except (ImportError, RegistrationError) as error:
        pytest.skip(f"{name} cannot be loaded here: {str(error).splitlines()[0]}")
    found = make.rule_tables()[name]
    assert found == {"lowered": dict(framework.lowered), "unsupported": dict(framework.unsupported)}


def _anchors(page):
    heads = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*make.PAGES, ROOT / "CONTRIBUTING.md"], ids=_name)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", prose)
    assert links or page.name not in {"README.md", "index.md"}
    for path, anchor in links:
        target = (page.parent / path) if path else page
        assert target.exists(), path
        assert not anchor or anchor in _anchors(target), anchor


@pytest.mark.parametrize("page", make.PAGES, ids=_name)
def test_files_and_commands_that_a_page_names_exist(page):
    text = page.read_text("utf-8")
    for path in re.findall(r"\b(?:tests|benchmarks|examples|src/opwright|docs)/[\w/.-]+\.\w+", text):
        assert (ROOT / path).exists(), path
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"\bmake (demo|test-all|test|lint|format|bench|docs|clean)\b", text)) <= set(
        targets
    )


def test_every_law_has_a_section():
    from opwright.checks.runner import LAWS

    text = (ROOT / "docs" / "checks.md").read_text("utf-8")
    assert [law for law in LAWS if f"\n## {law}\n" not in text] == []


def test_every_public_name_is_in_the_docs():
    import opwright

    text = "".join(page.read_text("utf-8") for page in make.PAGES)
    assert [name for name in opwright.__all__ if not re.search(rf"\b{name}\b", text)] == []
