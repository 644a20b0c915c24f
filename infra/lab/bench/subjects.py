"""Subjects of `harmony bench ingest`: each is a process that reads the same topic and prints one JSON line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.console.errors import HarmonyError

_ROOT = Path(__file__).resolve().parents[3]
RIVALS = _ROOT / "tests" / "bench" / "rivals"
_ENVIRONMENTS = _ROOT / ".cache" / "bench"
# Rivals with libraries of their own: what is installed for each, and the modules that prove it.
ENVIRONMENTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "confluent": (("confluent-kafka==2.16.1", "orjson==3.13.0", "numpy==2.4.6"), "confluent_kafka, orjson, numpy"),
    "quix": (("quixstreams==3.28.1",), "quixstreams"),
    "bytewax": (("bytewax[kafka]==0.21.1", "orjson==3.13.0"), "bytewax, confluent_kafka, orjson"),
}
_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class BenchSubject:
    """A program that is measured.

    Attributes:
        name: as shown.
        command: argument list, without the job.
        share: of the job's samples that it is given (a slow one gets fewer).
    """

    name: str
    command: tuple[str, ...]
    share: float = 1.0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubjectResult:
    """Cost of one process, from its first batch to its last acknowledged output."""

    samples: int
    outputs: int
    wall_s: float
    cpu_s: float
    rss_mb: float
    refused: int = 0

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.wall_s

    @property
    def cpu_us(self) -> float:
        return 1e6 * self.cpu_s / self.samples


def harmony_subject() -> BenchSubject:
    """Return stage 1 of this project."""
    return BenchSubject("harmony", (sys.executable, "-m", f"{__package__}.ingest_subject"))


def rival(name: str, script: str, python: str = sys.executable, share: float = 1.0) -> BenchSubject:
    """Return a rival of `tests/bench/rivals`.

    Raises:
        HarmonyError: this installation does not have it.
    """
    path = RIVALS / script
    if not path.is_file():
        raise HarmonyError(f"The rivals are not installed: {path} is missing. Run the bench from a source checkout.")
    return BenchSubject(name, (python, str(path)), share)


def python_with(name: str) -> str:
    """Interpreter of one of `ENVIRONMENTS`, a directory of its own, made at the first call.

    Raises:
        HarmonyError: it cannot be made; says why.
    """
    packages, modules = ENVIRONMENTS[name]
    home = _ENVIRONMENTS / name
    python = home / "bin" / "python"
    if _imports(python, modules):
        return str(python)
    uv = shutil.which("uv") or next((str(p) for p in (_ROOT / ".uv").glob("*/bin/uv")), None)
    if uv is not None:
        create = [uv, "venv", "-q", "--clear", "--python", sys.executable]
        install = [uv, "pip", "install", "-q", "--python", str(python)]
    else:
        create = [sys.executable, "-m", "venv", "--clear"]
        install = [str(python), "-m", "pip", "install", "-q"]
    home.parent.mkdir(parents=True, exist_ok=True)
    for command in ([*create, str(home)], [*install, *packages]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            error_lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise HarmonyError(f"{packages[0]} cannot be installed: {error_lines[-1]}")
    return str(python)


def _imports(python: Path, modules: str) -> bool:
    if not python.exists():
        return False
    return subprocess.run([str(python), "-c", f"import {modules}"], capture_output=True, check=False).returncode == 0


def measure(subject: BenchSubject, job: Mapping[str, Any]) -> SubjectResult:
    """Run a subject to its end.

    Raises:
        HarmonyError: it failed; with the last line it said.
    """
    command = [*subject.command, json.dumps(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **subject.environment}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=False, cwd=_ROOT
        )
    except subprocess.TimeoutExpired:
        raise HarmonyError(f"{subject.name} did not finish within {_TIMEOUT_S:.0f} s.") from None
    # Faust's worker may leave terminal codes on the line.
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if '{"samples"' in line]
    if not lines:
        output_lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise HarmonyError(
            f"{subject.name} failed: {output_lines[-1] if output_lines else f'exit code {done.returncode}'}"
        )
    return SubjectResult(**json.loads(lines[-1]))
