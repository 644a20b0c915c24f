"""Programs that only some tests need, where somebody has put them; `tests/build_go_tools.sh` builds those in Go."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from infra.paths import cache_home

ROOT = Path(__file__).parents[2]
PLACES = (ROOT / ".cache/tools/usr/bin", cache_home() / "tools/usr/bin")


def found(tool: str) -> Path | None:
    """The program, on PATH or in a cache of tools."""
    searched = os.pathsep.join([os.environ.get("PATH", ""), *map(str, PLACES)])
    path = shutil.which(tool, path=searched)
    return Path(path) if path else None


def needs(*tools: str) -> pytest.MarkDecorator:
    """Skip where one of them is absent."""
    absent = [tool for tool in tools if found(tool) is None]
    return pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)}: not found (sh tests/build_go_tools.sh)")
