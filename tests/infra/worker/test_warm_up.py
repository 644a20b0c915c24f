"""What is compiled before a worker joins."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.worker import warm_up
from model import compiled
from model.network import spec as packaged

ROOT = Path(__file__).parents[3]
# Without machine code every call of a loop can be seen.
TRACE = """
import json, sys
from infra.worker import warm_up
called = set()

def see(frame, event, argument):
    if event == "call":
        called.add((frame.f_code.co_filename, frame.f_code.co_name))

sys.setprofile(see)
warm_up.warm_up_plans()
warm_up.warm_up_forecasters()
sys.setprofile(None)
print(json.dumps(sorted(called)))
"""


def test_damaged_weights_of_the_package_keep_no_worker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "SHIPPED", tmp_path / "nothing")
    warm_up.warm_up_forecasters()


def test_who_finds_it_compiled_asks_for_no_second_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_FOLDER", tmp_path)
    started: list[str] = []
    monkeypatch.setattr(warm_up, "_compile_all", lambda: started.append("again"))
    warm_up.warm_up()
    warm_up.warm_up()
    assert started == ["again"]
    assert compiled.is_complete()


def test_a_half_that_its_process_could_not_compile_is_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_here: list[str] = []

    def warm_up_plans() -> None:
        compiled_here.append("plans")

    def warm_up_forecasters() -> None:
        compiled_here.append("forecasters")

    monkeypatch.setattr(warm_up, "warm_up_plans", warm_up_plans)
    monkeypatch.setattr(warm_up, "warm_up_forecasters", warm_up_forecasters)
    monkeypatch.setattr(warm_up, "_HALF", "import sys; sys.exit('{half}' == 'warm_up_plans')")
    warm_up._compile_all()
    assert compiled_here == ["plans"]


def loops() -> dict[tuple[str, str], set[str]]:
    """File and name of each function of the model that is compiled, and the names that it reads."""
    found = {}
    for path in sorted((ROOT / "model").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and "compiled" in map(ast.unparse, node.decorator_list):
                reads = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
                found[str(path), node.name] = reads
    return found


def test_every_loop_is_compiled_before_a_worker_joins() -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", TRACE], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reads = loops()
    assert len(reads) > 50
    called = {(file, name) for file, name in json.loads(done.stdout)}
    covered = called & reads.keys()
    # A loop is compiled with those that call it, whichever way the data lead.
    while more := {loop for loop in reads.keys() - covered if any(loop[1] in reads[by] for by in covered)}:
        covered |= more
    assert reads.keys() - covered == set()
