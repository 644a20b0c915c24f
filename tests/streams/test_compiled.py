"""`streams` keeps machine code by the rules of `model`, which it may not import: the two say the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from model import compiled as models
from streams import compiled

HERE = Path(compiled.__file__).parent


def test_every_module_with_compiled_loops_counts() -> None:
    """A module left out would be called with its old code after a change."""
    found = set()
    for path in HERE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "compiled" for d in node.decorator_list):
                found.add(path.relative_to(HERE).with_suffix("").as_posix())
    assert found == set(compiled._SOURCES)


def _rules(module: object) -> dict[str, str]:
    """Functions without their docstrings; the name of the folder apart, which must differ."""
    found = {}
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:  # type: ignore[attr-defined]
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            text = "\n".join(ast.unparse(statement) for statement in body)
            found[node.name] = text.replace("harmony-streams-", "harmony-")
    return found


def test_the_rules_are_those_of_the_models() -> None:
    ours, theirs = _rules(compiled), _rules(models)
    assert ours
    assert ours == {name: theirs[name] for name in ours}
    assert compiled._TARGET == models._TARGET
    assert compiled._NEEDED == models._NEEDED


def test_kept_where_asked_or_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled._config, "CACHE_DIR", str(tmp_path / "here"))
    folder = compiled._folder()
    assert folder is not None
    assert folder.parent == tmp_path / "here"
    assert folder.name != models._folder().name  # type: ignore[union-attr]
    (tmp_path / "file").touch()
    monkeypatch.setattr(compiled._config, "CACHE_DIR", str(tmp_path / "file"))
    assert compiled._folder() is None
