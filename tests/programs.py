"""Programs that only some tests need, where somebody has put them: on PATH, or in a cache of tools.

`make test` unpacks promtool and prometheus and installs Chromium where it can (`tests/install_tools.sh`);
`tests/build_go_tools.sh` builds those in Go.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from infra.console.host import cache_home

ROOT = Path(__file__).parents[1]
PLACES = (ROOT / ".cache/tools/usr/bin", cache_home() / "tools/usr/bin")
_UNPACKED = ("promtool", "prometheus")


def extend_path() -> None:
    """Look in the caches too, so that `pytest` by itself skips no more than `make test`."""
    searched = os.environ.get("PATH", "").split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*searched, *(str(p) for p in PLACES if str(p) not in searched)])


def found(program: str) -> Path | None:
    path = shutil.which(program)
    return Path(path) if path else None


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip where one of them is absent."""
    absent = [program for program in programs if found(program) is None]
    remedy = "tests/install_tools.sh .cache/tools" if {*absent} <= {*_UNPACKED} else "tests/build_go_tools.sh"
    return pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)}: not found (sh {remedy})")
