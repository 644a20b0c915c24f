"""Where machine code is kept, and that what is kept belongs to the sources as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from model import compiled

_ROOT = Path(compiled.__file__).resolve().parent.parent


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


_CALL = """
import json
from model import compiled, numerics
numerics.power(2.0, 3)
target = numerics.power.targetctx.codegen().magic_tuple()[1:]
print(json.dumps([str(compiled._FOLDER), sum(numerics.power.stats.cache_hits.values()), target]))
"""


def _called(**environment: str) -> tuple[Path, int, list[str]]:
    """Where a process of its own keeps machine code, how often it read some instead of compiling, and for what CPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    out = subprocess.run(
        [sys.executable, "-c", _CALL], env=kept | environment, cwd=_ROOT, check=True, capture_output=True, text=True
    ).stdout
    folder, hits, target = json.loads(out)
    return Path(folder), hits, target


def test_what_was_brought_along_is_read_where_sources_may_not_be_written_to(tmp_path: Path) -> None:
    """As in an image: numba itself reads machine code only from where it may write."""
    beside, _, target = _called()
    assert beside.parent == _ROOT / "model" / "__pycache__"
    elsewhere, hits, same = _called(NUMBA_CACHE_DIR=str(tmp_path / "own"))
    assert (elsewhere, hits, same) == (tmp_path / "own" / beside.name, 1, target)
    assert [path.name for path in (tmp_path / "own").iterdir()] == [beside.name]


def test_machine_code_is_not_for_this_machine_alone(tmp_path: Path) -> None:
    _, hits, target = _called(NUMBA_CACHE_DIR=str(tmp_path), NUMBA_CPU_NAME="generic")
    assert (hits, target) == (0, ["generic", ""])  # asked for by name: that, and nothing that was compiled for another
    features = compiled.llvmlite.binding.get_host_cpu_features()
    if all(features.get(name) for name in compiled._NEEDED_FEATURES):
        assert _called()[2] == ["x86-64-v3", ""]


def test_a_copy_may_be_written_to(tmp_path: Path) -> None:
    brought, folder = tmp_path / "image" / "code", tmp_path / "own" / "code"
    (brought / "model").mkdir(parents=True)
    (brought / "model" / "loop").write_text("")
    folder.parent.mkdir()
    for path in (brought / "model" / "loop", brought / "model", brought):
        path.chmod(path.stat().st_mode & ~0o222)
    compiled._adopt(brought, folder)
    for path in (folder, folder / "model", folder / "model" / "loop"):
        assert path.stat().st_mode & 0o200
    for path in (brought, brought / "model"):
        path.chmod(0o755)  # or the temporary folder could not be removed


def test_who_comes_second_leaves_what_is_there(tmp_path: Path) -> None:
    brought, folder = tmp_path / "image" / "code", tmp_path / "own" / "code"
    brought.mkdir(parents=True)
    (brought / "loop").write_text("new")
    folder.mkdir(parents=True)
    (folder / "loop").write_text("in use")
    compiled._adopt(brought, folder)
    assert (folder / "loop").read_text() == "in use"
    assert [path.name for path in folder.parent.iterdir()] == ["code"]
    compiled._adopt(tmp_path / "nothing", tmp_path / "own" / "none")
    assert not (tmp_path / "own" / "none").exists()


def test_one_compiles_and_the_others_wait_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_FOLDER", tmp_path)
    missing: list[bool] = []

    def start() -> None:
        with compiled.completing() as still:
            missing.append(still)

    with pytest.raises(ZeroDivisionError), compiled.completing():
        missing.append(bool(1 / 0))
    assert not compiled.is_complete()
    with compiled.completing() as still:
        assert still
        late = threading.Thread(target=start)
        late.start()
        late.join(0.2)
        assert missing == []
    late.join()
    assert missing == [False]
    assert compiled.is_complete()
    monkeypatch.setattr(compiled, "_FOLDER", None)
    with compiled.completing() as still:
        assert not still  # there is nowhere to keep it
        assert not compiled.is_complete()
