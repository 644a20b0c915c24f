"""Files and modules that README, docs and CHANGELOG name exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.prose import DOCS, ROOT

PACKAGES = "streams|agents|model|infra|tests"
FILE = re.compile(rf"(?<![\w/.-])(?:{PACKAGES}|config|docs)(?:/[\w.-]+)+(?![\w.*-])/?")
MODULE = re.compile(rf"(?<![\w/.-])(?:harmony\.)?((?:{PACKAGES})(?:\.[A-Za-z_]\w*)+)")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
# Words in capitals, and single letters, stand for a name that the reader chooses.
_CHOSEN = re.compile(r"[A-Z]{3,}|\.[a-z]$")
_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def is_module(name: str) -> bool:
    """Returns whether a dotted name is a module, or a top-level name or a class's attribute within one.

    >>> is_module("tests.docs.prose.problems"), is_module("tests.docs.prose.no_such_name")
    (True, False)
    """
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        rest = parts[count:]
        source = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if source.is_file():
            return not rest or rest[0] in top_level_names(source)
        if path.is_dir():
            return not rest
    return False


def top_level_names(source: Path) -> set[str]:
    """Returns the names that a module defines or imports at its top level."""
    names: set[str] = set()
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_named_file_and_module_exists(page: Path) -> None:
    missing = []
    for code in _CODE.findall(page.read_text(encoding="utf-8")):
        files = [name.rstrip("/.") for name in FILE.findall(code)]
        missing += [name for name in files if not _CHOSEN.search(name) and not (ROOT / name).exists()]
        missing += [name for name in MODULE.findall(code) if not _CHOSEN.search(name) and not is_module(name)]
    assert missing == []


def test_a_name_that_is_none_is_seen() -> None:
    assert FILE.findall("`agents/no_such.py`") == ["agents/no_such.py"]
    assert MODULE.findall("`python -m harmony.infra.no_such`") == ["infra.no_such"]
    assert not is_module("infra.no_such")
