"""Where the documentation says what shows a promise, that test exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if NAMED.search(p.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT / "docs")))
def test_each_named_test_exists(page: Path) -> None:
    missing = []
    for file, name in NAMED.findall(page.read_text(encoding="utf-8")):
        path = ROOT / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
        if name not in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}:
            missing.append(f"{file}::{name}")
    assert not missing


def test_there_are_such_pages() -> None:
    assert PAGES
