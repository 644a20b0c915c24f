"""`streams` keeps machine code by the rules of `model`, which it may not import: the two say the same."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from model import compiled as models
from streams import compiled

HERE = Path(compiled.__file__).parent


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


_START = """
import json, sys, time
from pathlib import Path
from streams import compiled

compiled._FOLDER = Path.cwd()  # where nobody has compiled yet
sys.path.insert(0, ".")
import loop
from streams.ingest import warm_up

def slowly() -> None:
    time.sleep(0.5)
    loop.twice(21)

warm_up._close_a_slot = slowly
warm_up.warm_up()
print(json.dumps([sum(loop.twice.stats.cache_misses.values()), compiled.is_complete()]))
"""


def test_of_workers_that_start_at_once_one_compiles(tmp_path: Path) -> None:
    loop = "from streams.compiled import compiled\n\n@compiled\ndef twice(number):\n    return 2 * number\n"
    (tmp_path / "loop.py").write_text(loop, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = kept | {"PYTHONPATH": str(HERE.parent)}
    starting = [
        subprocess.Popen([sys.executable, "-c", _START], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in starting]
    assert sorted(told) == [[0, True], [0, True], [1, True]]
