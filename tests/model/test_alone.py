"""The model, and what measures it, work where nothing of Kafka is installed: on a machine for training, say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
WITHOUT_KAFKA = """
import sys
for name in ("faust", "mode", "aiokafka", "kafka"):
    sys.modules[name] = None  # whoever imports it is told that there is no such module
"""


def run(program: str) -> str:
    command = [sys.executable, "-c", WITHOUT_KAFKA + dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_of_the_model_is_imported_without_kafka() -> None:
    num_imported = run("""
        import importlib, model, pkgutil
        names = [module.name for module in pkgutil.walk_packages(model.__path__, "model.")]
        for name in names:
            importlib.import_module(name)
        print(len(names))
    """)
    assert int(num_imported) == sum(1 for _ in (ROOT / "model").rglob("*.py")) - 1


def test_the_bench_of_the_model_runs_without_kafka() -> None:
    told = run("""
        import runpy
        sys.argv = ["harmony", "bench", "inference", "--batches", "1", "--rounds", "1"]
        runpy.run_module("infra.cli.app", run_name="__main__")
    """)
    assert "eager" in told
    assert "pool" in told
