"""Where machine code is kept, and that what is kept belongs to the sources as they are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from model import compiled


def test_every_module_with_compiled_loops_counts() -> None:
    """A module left out would be called with its old code after a change."""
    found = set()
    here = Path(compiled.__file__).parent
    for path in here.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "compiled" for d in node.decorator_list):
                found.add(path.relative_to(here).with_suffix("").as_posix())
    assert found == set(compiled._SOURCES)


def test_kept_where_asked_or_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled._config, "CACHE_DIR", str(tmp_path / "here"))
    folder = compiled._folder()
    assert folder is not None
    assert folder.parent == tmp_path / "here"
    assert compiled._folder() == folder
    (tmp_path / "file").touch()
    monkeypatch.setattr(compiled._config, "CACHE_DIR", str(tmp_path / "file"))
    assert compiled._folder() is None


def test_an_uncached_function_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_FOLDER", None)
    before = compiled._config.CACHE_DIR

    def twice(number: int) -> int:
        return 2 * number

    assert compiled.compiled(twice)(21) == 42
    assert before == compiled._config.CACHE_DIR
