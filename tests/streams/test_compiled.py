"""Compiled loops: code is kept where it may be written, adopted from an image, and compiled by one process of many."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import streams

_PACKAGE = Path(streams.__file__).parent
_LOOP = "from streams.compiled import compiled\n\n@compiled\ndef twice(number):\n    return 2 * number\n"
_CALL = """
import json, sys
sys.path.insert(0, ".")
import loop
loop.twice(21)
stats = loop.twice.stats
print(json.dumps([sum(stats.cache_misses.values()), sum(stats.cache_hits.values()), stats.cache_path]))
"""


def _environment(**variables: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return clean | {"PYTHONPATH": str(_PACKAGE.parent)} | variables


def _call(folder: Path, **variables: str) -> tuple[int, int, str]:
    """(compiled, read, folder of the code) of a process that calls the loop of this folder."""
    answer = subprocess.run(
        [sys.executable, "-c", _CALL], cwd=folder, env=_environment(**variables), stdout=subprocess.PIPE, check=True
    )
    misses, hits, path = json.loads(answer.stdout)
    return misses, hits, path


def _compiled_names(tree: ast.Module) -> set[str]:
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "compiled" for d in node.decorator_list)
    }


def test_no_compiled_function_calls_one_of_another_file() -> None:
    """numba looks only at a function's own file to see whether its code is stale."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(_PACKAGE.rglob("*.py"))}
    kernels = {path: names for path, tree in trees.items() if (names := _compiled_names(tree))}
    assert kernels
    for path in kernels:
        imported = {
            alias.name for node in ast.walk(trees[path]) if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        foreign = set().union(*(names for other, names in kernels.items() if other != path))
        assert not imported & foreign, path
        # A constant of another file would be frozen into the code as well.
        assert not {name for name in imported if name.isupper()}, path


def test_code_lies_beside_the_source_or_where_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(_LOOP, encoding="utf-8")
    assert _call(tmp_path) == (1, 0, str(tmp_path / "__pycache__"))
    assert _call(tmp_path)[:2] == (0, 1)
    # Code that an image has brought is read without a compiler, from a folder that may be written to.
    misses, hits, path = _call(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "own"))
    assert (misses, hits) == (0, 1)
    assert Path(path).parent == tmp_path / "own"


def test_code_of_a_changed_file_is_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(_LOOP, encoding="utf-8")
    _call(tmp_path)
    (tmp_path / "loop.py").write_text(_LOOP.replace("2 * number", "3 * number"), encoding="utf-8")
    assert _call(tmp_path)[:2] == (1, 0)


_START = """
import json, sys, time
sys.path.insert(0, ".")
import loop
from streams import compiled
from streams.ingest import warm_up

compiled._folders[:] = compiled._folders[:1]  # that of this loop

def slowly() -> None:
    time.sleep(0.5)
    loop.twice(21)

warm_up._close_a_slot = slowly
warm_up.warm_up()
print(sum(loop.twice.stats.cache_misses.values()))
"""


def test_of_workers_that_start_at_once_one_compiles(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(_LOOP, encoding="utf-8")
    starting = [
        subprocess.Popen([sys.executable, "-c", _START], cwd=tmp_path, env=_environment(), stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert sorted(int(process.communicate(timeout=120)[0]) for process in starting) == [0, 0, 1]


def test_loops_run_as_python_where_compilation_is_switched_off() -> None:
    code = "from streams.compiled import compiled\n@compiled\ndef twice(n):\n    return 2 * n\nprint(twice(21))"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(_PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "42"), done.stderr
