"""Homes that are not there, or may not be written: one sentence, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.operate.doctor import _disk, examine
from infra.settings.load import load_settings

ROOT = Path(__file__).parents[3]
# As for a user id that a container made up: HOME is not set, and the system knows no such user.
NOBODY = """
import pwd, sys
def unknown(_):
    raise KeyError("no such user")
pwd.getpwuid = unknown
from infra.cli.app import main
sys.argv[0] = "harmony"
main()
"""


def harmony(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NOBODY, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [("doctor",), ("run", "--duration", "1"), ("status",), ("dlq", "list")])
def test_a_user_without_a_home_is_told_what_to_set(arguments: tuple[str, ...]) -> None:
    done = harmony(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("harmony: This user (id ")
    assert "Set HOME" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_set_in_place_of_a_home_will_do(tmp_path: Path) -> None:
    places = {"XDG_CACHE_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}
    done = harmony("status", **places)
    assert done.stderr.startswith("harmony: No brokers named"), done.stderr
    # Compiled code is looked for in a home, too.
    places["PYTHONDONTWRITEBYTECODE"] = "1"
    code = f"{NOBODY.partition('from infra')[0]}\nimport model.compiled"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_tilde_that_leads_nowhere_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    config = tmp_path / "harmony.yaml"
    config.write_text("state_dir: ~/harmony\n", encoding="utf-8")
    done = harmony("status", "--config", str(config))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "has no home directory; give the whole path" in done.stderr


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="/proc is what nobody may write to")
def test_a_home_that_cannot_be_written_is_found_and_told(tmp_path: Path) -> None:
    assert _disk("state disk", tmp_path / "new", 1, "HARMONY_STATE_DIR").status == "ok"
    found = {f.check: f for f in examine(load_settings(None, {"state_dir": "/proc/harmony"}, environ={}), None)}
    assert found["state disk"].status == "fail"
    assert "/proc cannot be written" in found["state disk"].detail
    assert "HARMONY_STATE_DIR" in found["state disk"].remedy
    done = harmony("run", "--duration", "1", "--brokers", "127.0.0.1:1", HOME="/proc")
    assert done.returncode == 1
    assert done.stderr.startswith("harmony: ")
    assert "Traceback" not in done.stderr
