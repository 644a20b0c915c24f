"""Prometheus and its tools, where they are installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "infra/monitoring"
RULES = MONITORING / "rules"


def needs(tool: str) -> pytest.MarkDecorator:
    """Skip where the tool is not on PATH; `make test` installs it where it can."""
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not on PATH")
