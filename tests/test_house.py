"""The rules of the house, held by the same command that runs the tests: import directions, lint, format, types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [("lint-imports",), ("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)],
    ids=["import directions", "lint", "format", "types"],
)
@pytest.mark.timeout(300)
def test_the_house_is_in_order(command: tuple[str, ...]) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
